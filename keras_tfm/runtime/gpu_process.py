"""What LiteRT's GPU delegate makes of a .tflite file, in a separate process.

`python -m keras_tfm.runtime.gpu_process FILE INPUTS.npz OUTPUTS.npz float32` (or float16) prints
JSON and writes the outputs. Separate, because the delegate ends its process at some graphs.
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

# What LiteRT logs where no driver, or no device of a driver, computes on a GPU.
_NO_ADAPTER = "No adapters found"


def run(path: str, inputs: Any, float32: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs every signature of a file on the GPU delegate.

    Args:
        path: str, the file.
        inputs: mapping of arrays by "signature|input".
        float32: bool, whether the delegate computes in float32, not in float16.

    Returns:
        A dict: "adapter", whether there is a GPU; "refused", the delegate's reasons, a list of str;
        "whole", whether all operators run on it. And the outputs, by "signature|output".
    """
    from ai_edge_litert.compiled_model import CompiledModel, GpuOptions, Options
    from ai_edge_litert.hardware_accelerator import HardwareAccelerator

    options = Options(
        hardware_accelerators=HardwareAccelerator.GPU, gpu_options=GpuOptions(enforce_f32=float32)
    )
    with tempfile.TemporaryFile("w+b") as log:
        try:
            with _errors_to(log.fileno()):
                model = CompiledModel.from_file(path, options=options)
        except RuntimeError as error:
            log.seek(0)
            said = log.read().decode(errors="replace")
            return {
                "adapter": _NO_ADAPTER not in said,
                "refused": re.findall(r"^[A-Z][A-Z0-9_]*: .+$", _without_levels(said), re.MULTILINE)
                or [str(error).splitlines()[0]],
                "whole": False,
            }, {}
    outputs = {}
    for name, tensors in model.get_signature_list().items():
        buffers = {x: model.create_input_buffer_by_name(name, x) for x in tensors["inputs"]}
        for x, buffer in buffers.items():
            buffer.write(inputs[f"{name}|{x}"])
        results = {x: model.create_output_buffer_by_name(name, x) for x in tensors["outputs"]}
        model.run_by_name(name, buffers, results)
        details = model.get_output_tensor_details(name)
        for x, buffer in results.items():
            shape, dtype = details[x]["shape"], details[x]["dtype"]
            size = int(np.prod(shape))
            outputs[f"{name}|{x}"] = np.asarray(buffer.read(size, dtype)).reshape(shape)
    return {"adapter": True, "refused": [], "whole": model.is_fully_accelerated()}, outputs


def _without_levels(log: str) -> str:
    return re.sub(r"^(INFO|WARNING|ERROR|VERBOSE): .*$", "", log, flags=re.MULTILINE)


@contextmanager
def _errors_to(descriptor: int) -> Iterator[None]:
    """Native code writes its errors to a file; this process has no other threads."""
    before = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def main() -> None:
    """Runs a file, and prints what `run` returns."""
    path, given, results, precision = sys.argv[1:]
    # The delegate's libraries write to standard output, too.
    standard_output = os.dup(1)
    os.dup2(2, 1)
    with np.load(given) as inputs:
        answer, outputs = run(path, inputs, precision == "float32")
    np.savez(results, **outputs)
    os.write(standard_output, json.dumps(answer).encode())


if __name__ == "__main__":
    main()
