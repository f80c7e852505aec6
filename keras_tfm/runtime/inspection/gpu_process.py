"""What LiteRT's GPU delegate makes of a .tflite file, in a separate process.

`python -m keras_tfm.runtime.inspection.gpu_process FILE INPUTS.npz OUTPUTS.npz LOG float32` (or
float16) writes the outputs and the delegate's log, and prints JSON. The delegate
ends its process at some graphs.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np


def run(path: str, inputs: Mapping[str, np.ndarray], float32: bool = True) -> dict[str, np.ndarray]:
    """Runs every signature of a file on the GPU delegate.

    Args:
        path: str, the file.
        inputs: mapping of arrays by "signature|input".
        float32: bool, whether the delegate computes in float32, not in float16.

    Returns:
        The outputs, by "signature|output".

    Raises:
        RuntimeError: the delegate does not take the whole file.
    """
    from ai_edge_litert.compiled_model import CompiledModel, GpuOptions, Options
    from ai_edge_litert.hardware_accelerator import HardwareAccelerator

    options = Options(
        hardware_accelerators=HardwareAccelerator.GPU, gpu_options=GpuOptions(enforce_f32=float32)
    )
    model = CompiledModel.from_file(path, options=options)
    if not model.is_fully_accelerated():
        raise RuntimeError("it runs only a part of the graph")
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
    return outputs


@contextmanager
def _output_to(path: str) -> Iterator[None]:
    """The delegate's libraries write to a file, not to standard output and standard error."""
    before = os.dup(1), os.dup(2)
    with Path(path).open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        try:
            yield
        finally:
            for stream, earlier in zip((1, 2), before, strict=True):
                os.dup2(earlier, stream)
                os.close(earlier)


def main() -> None:
    """Runs a file; prints why the delegate does not take it, or null."""
    path, given, results, log, precision = sys.argv[1:]
    refusal = None
    with np.load(given) as inputs:
        try:
            with _output_to(log):
                outputs = run(path, inputs, precision == "float32")
        except RuntimeError as error:
            refusal = str(error).splitlines()[0]
        else:
            np.savez(results, allow_pickle=False, **outputs)
    print(json.dumps(refusal))


if __name__ == "__main__":
    main()
