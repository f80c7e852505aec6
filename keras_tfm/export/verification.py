"""Whether an exported file returns what the model returns, signature by signature."""

import logging
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import keras

from keras_tfm.export.checks import Check
from keras_tfm.export.comparison import Comparison
from keras_tfm.export.pairing import check_pair, other_arguments
from keras_tfm.export.precision import in_float32
from keras_tfm.export.verification_rows import check_given
from keras_tfm.generation.strategies import Beam, Greedy, Strategy
from keras_tfm.runtime.model import Model, load

_log = logging.getLogger(__name__)

# The largest relative error by quantization. Rounding makes 1e-6 in float32 and 1e-3 in float16;
# int8 makes 1e-2 in trained models and ten times as much with large random weights; int4 ten times
# as much as int8.
TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "int8": 0.25, "int8_full": 0.5, "int4": 0.75}


@dataclass
class Verification:
    """The checks of all signatures; `print` it, or take `asdict()`."""

    path: str
    quantization: str
    tolerance: float
    checks: list[Check]

    @property
    def failures(self) -> list[str]:
        """One sentence for each signature beyond the tolerance."""
        result = []
        for x in self.checks:
            if not x.relative_error <= self.tolerance:  # NaN fails, too
                result.append(
                    f"{x.signature}: expected a relative error of at most {self.tolerance:g}, "
                    f"got {x.relative_error:.2g} (largest absolute error {x.max_error:.2g})"
                )
        return result

    def asdict(self) -> dict[str, Any]:
        """Everything, as plain dictionaries and lists."""
        return asdict(self)

    def __str__(self) -> str:
        """A table for people."""
        lines = [
            f"  {'against Keras':16} {'rows':>5} {'max error':>10} {'mean error':>11} "
            f"{'relative':>9} {'top-1':>7} {'ms':>9}"
        ]
        for x in self.checks:
            top = "" if x.top_1 is None else f"{100 * x.top_1:.1f} %"
            lines.append(
                f"  {x.signature:16} {x.rows:5} {x.max_error:10.2g} {x.mean_error:11.2g} "
                f"{x.relative_error:9.1g} {top:>7} {x.ms:9.3f}"
            )
        return "\n".join(lines)


class VerificationError(ValueError):
    """A file that differs from the model; `verification` has the numbers."""

    def __init__(self, message: str, verification: Verification):
        super().__init__(message)
        self.verification = verification


def verify(
    model: keras.Model,
    path: str | Path,
    inputs: dict[str, Any] | None = None,
    tolerance: float | None = None,
    strategy: Strategy | None = None,
) -> Verification:
    """Runs every signature of a file and the model on the same inputs, and compares the results.

    "predict" is compared number by number. "decode", with its "encode" and "prefill", is fed tokens
    one by one, and its logits are compared with those of one full pass. Every token of "generate"
    must have the largest logit in a full pass over the tokens before it; with another strategy
    than greedy search, tokens and scores must equal those of the same loop in Keras.

    Args:
        model: the exported model; one in mixed precision is compared in float32.
        path: the file.
        inputs: rows of the model's inputs by name, of any exported lengths; the stepped input is
            optional. By default random rows of every exported length.
        tolerance: the largest relative error (`Check.relative_error`); by default 1e-4 in float32,
            1e-2 in float16, 0.25 in int8, 0.5 in int8_full, 0.75 in int4.
        strategy: the exported strategy; needed only for a custom one.

    Raises:
        VerificationError: a signature is beyond the tolerance.
        ValueError: the inputs do not fit, or the file is damaged.
        TypeError: ids are not integers.

    Example:

    >>> import tempfile, keras
    >>> from keras_tfm.export import export_tflite, verify
    >>> x = keras.Input((2,), name="x")
    >>> model = keras.Model(x, keras.layers.Dense(3)(x))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_tflite(model, folder + "/dense.tflite")
    ...     verify(model, report.path).checks[0].top_1
    1.0
    """
    file = load(path)
    model = in_float32(model)
    quantization = file.manifest["quantization"]
    check_pair(model, file)
    if tolerance is None:
        tolerance = TOLERANCES[quantization]
    if inputs is not None:
        check_given(model, file, inputs)
    comparison = Comparison(model, file, inputs, strategy or _strategy_of(file))
    checks = []
    for name in file.signatures:
        _log.info("comparing %s with %s", name, model.name)
        checks.append(comparison.of(name))
    result = Verification(str(path), quantization, tolerance, checks)
    if result.failures:
        raise VerificationError(
            f"the file differs from {model.name}: "
            + "; ".join(filter(None, [*result.failures, other_arguments(model, file)])),
            result,
        )
    return result


def _strategy_of(file: Model) -> Strategy:
    """The strategy of an exported file."""
    for signature in file.signatures.values():
        settings = dict(signature.get("strategy") or {})
        if settings:
            name = settings.pop("name")
            if name != "Beam" or set(settings) != {field.name for field in fields(Beam)}:
                raise ValueError(
                    f"{file.path} was exported with the custom strategy {name}: give strategy="
                )
            return Beam(**settings)
    return Greedy()
