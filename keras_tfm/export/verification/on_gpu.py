"""Compares a file on LiteRT's GPU delegate with the same file on the CPU."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from keras_tfm.atomic_files import temporary_folder
from keras_tfm.export.verification.checks import EXACT
from keras_tfm.runtime.inspection.random_inputs import random_inputs
from keras_tfm.runtime.inspection.subprocesses import run_module
from keras_tfm.runtime.loaded_file import LoadedFile

# Where one of the two rounds activations: some layers of random weights reach 0.02.
_ROUNDED = 0.1
# Seconds. A file of SwiftShader's kind of driver takes minutes; a delegate that hangs has no end.
_LONGEST = 1800


@dataclass
class GpuCheck:
    """What LiteRT's GPU delegate makes of a file.

    Attributes:
        ran: bool, whether the delegate took the file.
        reason: str, why it did not, or that there is no GPU; "" if it ran.
        errors: dict of float by signature, the largest difference from the CPU, relative to the
            largest value of the output.
        tolerance: float, the largest allowed error.

    Example:

    >>> from keras_tfm.export import GpuCheck
    >>> print(GpuCheck(True, errors={"predict": 2e-7}))
    GPU delegate, error relative to the largest value: predict 2e-07
    """

    ran: bool
    reason: str = ""
    errors: dict[str, float] = field(default_factory=dict)
    tolerance: float = EXACT

    @property
    def failures(self) -> list[str]:
        """One sentence for each signature that the delegate computes wrongly."""
        return [
            f"{name}: on the GPU delegate, expected a relative error of at most "
            f"{self.tolerance:.2g}, got {error:.2g}"
            for name, error in self.errors.items()
            if not error <= self.tolerance
        ]

    def __str__(self) -> str:
        """One line."""
        if not self.ran:
            return f"GPU delegate: not run: {self.reason}"
        errors = ", ".join(f"{name} {error:.1g}" for name, error in self.errors.items())
        return f"GPU delegate, error relative to the largest value: {errors}"


def check_on_gpu(
    path: str | Path, tolerance: float | None = None, float32: bool = True
) -> GpuCheck:
    """Runs every signature of a file on LiteRT's GPU delegate and on the CPU, on random inputs.

    The delegate runs in a separate process, because it ends its process at some graphs. It needs
    a GPU with a Vulkan driver. Debian's package `chromium` has one in software: set
    `VK_DRIVER_FILES=/usr/lib/chromium/vk_swiftshader_icd.json`, and install `libvulkan1`.

    Args:
        path: str or Path, a file of `export_tflite`, exported with `accelerator="gpu"`.
        tolerance: float, the largest allowed error, relative to the largest value of an output.
            Default: 1e-4 in float32, otherwise 0.1: the CPU rounds the activations of a file with
            int8 weights, the delegate does not, and float16 has 11 bits.
        float32: bool, whether the delegate computes in float32. By default apps compute in float16.

    Returns:
        A `GpuCheck`. It does not raise where the delegate refuses the file, ends its process or
        computes something else.

    Raises:
        FileNotFoundError, ValueError: as `runtime.load`.

    Example:

    >>> import tempfile, keras
    >>> from keras_tfm.export import check_on_gpu, export_tflite
    >>> x = keras.Input((2,), name="x")
    >>> model = keras.Model(x, keras.layers.Dense(3)(x))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_tflite(model, folder + "/dense.tflite", accelerator="gpu")
    ...     found = check_on_gpu(report.path)
    >>> found.failures
    []
    """
    file = LoadedFile(path)
    if tolerance is None:
        tolerance = EXACT if float32 and not file.manifest.is_rounded else _ROUNDED
    given: dict[str, Any] = {}
    expected: dict[str, np.ndarray] = {}
    for name, signature in file.signatures.items():
        inputs = random_inputs(signature.inputs)
        given.update({f"{name}|{x}": y for x, y in inputs.items()})
        results = file.run(name, inputs)
        expected.update({f"{name}|{x}": np.array(y) for x, y in results.items()})
    with temporary_folder() as folder:
        inputs_path, outputs_path = folder / "inputs.npz", folder / "outputs.npz"
        log = folder / "log.txt"
        np.savez(inputs_path, **given)
        paths = (path, inputs_path, outputs_path, log)
        try:
            refusal = run_module(
                "running the GPU delegate",
                "keras_tfm.runtime.inspection.gpu_process",
                *map(str, paths),
                "float32" if float32 else "float16",
                seconds=_LONGEST,
            )
        except RuntimeError as error:
            refusal = str(error)
        if refusal is not None:
            return GpuCheck(False, _reason(log, refusal))
        with np.load(outputs_path) as found:
            errors: dict[str, float] = {}
            for key, values in expected.items():
                name = key.partition("|")[0]
                errors[name] = max(errors.get(name, 0.0), relative_error(values, found[key]))
    return GpuCheck(True, "", errors, tolerance)


def _reason(log: Path, refusal: str) -> str:
    """Why the delegate did not run, by its log; `refusal` is what LiteRT or Python says of it."""
    text = log.read_text("utf-8", errors="replace") if log.exists() else ""
    if "No adapters found" in text:
        return "this machine has no GPU with a Vulkan driver"
    # Such as "GATHER: Only support 1D indices"; levels of the log have the same form.
    lines = re.findall(r"^(?!INFO|WARNING|ERROR|VERBOSE)[A-Z][A-Z0-9_]*: .+$", text, re.MULTILINE)
    operators = "; ".join(dict.fromkeys(lines))
    if not operators:
        return refusal
    return f"{operators} ({refusal})" if "exit code" in refusal else operators


def relative_error(expected: np.ndarray, found: np.ndarray) -> float:
    """The largest difference, relative to the largest value; infinite if a value is not finite."""
    if not (np.isfinite(expected).all() and np.isfinite(found).all()):
        return np.inf
    expected = expected.astype("float64")
    scale = float(np.max(np.abs(expected), initial=0.0)) or 1.0
    return float(np.max(np.abs(found.astype("float64") - expected), initial=0.0)) / scale
