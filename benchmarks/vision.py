"""ViT-S/16 and DETR on one thread, float32 and int8: keras_tfm, ONNX Runtime, litert-torch.

    pip install -e ".[benchmarks,checkpoints]" transformers torch onnx onnxscript onnxruntime
    python benchmarks/vision.py --litert-torch VENV/bin/python     # ten minutes
    python benchmarks/vision.py vit --rounds 3 --layers 1         # a quick test, two engines

ViT-S/16 at 224 x 224 and DETR with a ResNet-50 at 320 x 320, batch 1, random weights, the same in
all engines: our model is saved as a Hugging Face folder, which `transformers` loads for the others.
Ours reads uint8 pixels and normalises them in the file; the others get normalised float32 pixels.
The output is ViT's features, and DETR's logits. int8 is each engine's own dynamic quantization, for
litert-torch that of ai-edge-quantizer. litert-torch needs another environment than TensorFlow:
VENV has litert-torch, ai-edge-quantizer, torch and transformers. In float32 all outputs must agree
within 1e-4 of the outputs' size, or the run fails. The engines take turns in one process, in a new
order each round; a row is the median over rounds, and "speedup" the median over rounds of the
engine's time divided by ours at the same precision.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

SIZES = {"vit": 224, "detr": 320}
CLASSES = 91
TOLERANCE = 1e-4
OURS = "keras_tfm"
Files = dict[tuple[str, str], Path]
Call = Callable[[], np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help=f"of {', '.join(SIZES)}; default: both")
    parser.add_argument("--layers", type=int, help="blocks, instead of the size's own")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--litert-torch", type=Path, metavar="PYTHON")
    parser.add_argument("--convert", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.convert:  # in the other environment
        litert_torch(*arguments.convert)
        return
    unknown = set(arguments.models) - set(SIZES)
    if unknown:
        parser.error(f"models must be among {list(SIZES)}, got {sorted(unknown)}")
    wrong = []
    for name in arguments.models or SIZES:
        wrong += compare(name, arguments)
    if wrong:
        raise SystemExit("float32 outputs differ: " + "; ".join(wrong))


def compare(name: str, arguments: argparse.Namespace) -> list[str]:
    """Prints the table of one model; what differed in float32."""
    size = SIZES[name]
    pixels = np.random.default_rng(0).integers(0, 256, (1, size, size, 3)).astype("uint8")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        mean, std = checkpoint(name, arguments.layers, folder)
        files = ours(folder) | onnx_runtime(folder)
        if arguments.litert_torch:
            command = [arguments.litert_torch, __file__, "--convert", folder, folder]
            subprocess.run(
                list(map(str, command)), check=True, env={**os.environ, "OMP_NUM_THREADS": "2"}
            )
            files |= {
                ("litert-torch", precision): folder / f"litert-torch-{precision}.tflite"
                for precision in ("float32", "int8")
            }
        normal = ((pixels / 255 - mean) / std).astype("float32").transpose(0, 3, 1, 2)
        calls: dict[tuple[str, str], Call] = {}
        for (engine, precision), path in files.items():
            if path.suffix == ".onnx":
                calls[engine, precision] = run_onnx(path, normal)
            else:
                calls[engine, precision] = run_litert(path, pixels if engine == OURS else normal)
        outputs = {key: call() for key, call in calls.items()}
        seconds: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
        for _ in range(arguments.rounds):
            for key, call in random.sample(list(calls.items()), len(calls)):
                call()  # warm-up: another engine has used the CPU caches
                start = time.perf_counter()
                call()
                seconds[key].append(time.perf_counter() - start)
        print(f"\n{name}, {size} x {size} pixels, one thread, {arguments.rounds} rounds")
        return report(outputs, seconds, files)


def report(outputs: dict, seconds: dict, files: Files) -> list[str]:
    print(f"{'':14}{'':9}{'ms':>8}{'speedup':>9}{'error':>9}{'MB':>8}")
    expected, wrong = outputs[OURS, "float32"], []
    medians = {key: statistics.median(x) for key, x in seconds.items()}
    for engine, precision in sorted(medians, key=lambda key: (key[1], medians[key])):
        off = outputs[engine, precision] - expected
        if precision == "float32" and np.abs(off).max() > TOLERANCE * np.abs(expected).max():
            wrong.append(f"{engine} is off by {np.abs(off).max():.1e}")
        pairs = zip(seconds[engine, precision], seconds[OURS, precision], strict=True)
        print(
            f"{engine:14}{precision:9}{1e3 * medians[engine, precision]:8.1f}"
            f"{statistics.median(a / b for a, b in pairs):8.2f}x"
            f"{off.std() / expected.std():9.1e}"
            f"{files[engine, precision].stat().st_size / 1e6:8.1f}",
            flush=True,
        )
    return wrong


# The contestants. Each returns its files by engine and precision.


def checkpoint(name: str, layers: int | None, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Saves our model with random weights as a Hugging Face folder; its mean and deviation."""
    import keras

    from keras_tfm import checkpoints, models
    from keras_tfm.models.vision.vit import SIZES as VIT

    keras.utils.set_random_seed(0)
    deep = {"num_layers": layers} if layers else {}
    if name == "vit":
        model = models.vit(SIZES[name], 16, **{**VIT["small"], **deep})
    else:
        model = models.detr(SIZES[name], CLASSES, **deep)
    checkpoints.save_huggingface(model, folder / "checkpoint")
    return np.array(model.arguments["image_mean"]), np.array(model.arguments["image_std"])


def ours(folder: Path) -> Files:
    from keras_tfm import checkpoints, export

    model = checkpoints.load_huggingface(folder / "checkpoint")
    files = {}
    for precision in ("float32", "int8"):
        path = files[OURS, precision] = folder / f"{OURS}-{precision}.tflite"
        export.export_tflite(model, path, quantization=precision, verify=False)
    return files


def peer(folder: Path):
    """The model of `transformers` as a module from pixels to one output."""
    import torch
    import transformers

    model_type = transformers.AutoConfig.from_pretrained(folder / "checkpoint").model_type
    if model_type == "vit":
        cls = transformers.ViTModel
        model = cls.from_pretrained(folder / "checkpoint", add_pooling_layer=False).eval()
    else:
        model = transformers.DetrForObjectDetection.from_pretrained(folder / "checkpoint").eval()

    class Output(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            found = self.model(pixels)
            return found.logits if "logits" in found else found.last_hidden_state

    return Output().eval(), torch.zeros((1, 3, *[SIZES[model_type]] * 2))


def onnx_runtime(folder: Path) -> Files:
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model, example = peer(folder)
    path, prepared = folder / "float32.onnx", folder / "prepared.onnx"
    with torch.no_grad():
        torch.onnx.export(
            model, (example,), str(path), dynamo=True, external_data=False, verbose=False
        )
    quant_pre_process(str(path), str(prepared))
    quantized = folder / "int8.onnx"
    # Convolutions with int8 weights and activations exist for uint8 weights only.
    quantize_dynamic(str(prepared), str(quantized), weight_type=QuantType.QUInt8)
    return {("ONNX Runtime", "float32"): path, ("ONNX Runtime", "int8"): quantized}


def litert_torch(folder: Path, target: Path) -> None:
    """Converts in the environment that has litert-torch."""
    import litert_torch as converter
    from ai_edge_quantizer import quantizer, recipe

    model, example = peer(folder)
    plain, rounded = (target / f"litert-torch-{x}.tflite" for x in ("float32", "int8"))
    converter.convert(model, (example,)).export(str(plain))
    rounding = quantizer.Quantizer(str(plain), recipe.dynamic_wi8_afp32())
    rounding.quantize().export_model(str(rounded), overwrite=True)


def run_litert(path: Path, pixels: np.ndarray) -> Call:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=1)
    runner = interpreter.get_signature_runner(next(iter(interpreter.get_signature_list())))
    (name,) = runner.get_input_details()

    def call() -> np.ndarray:
        found = runner(**{name: pixels})
        return found["logits"] if "logits" in found else next(iter(found.values()))

    return call


def run_onnx(path: Path, pixels: np.ndarray) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {session.get_inputs()[0].name: pixels})[0]


if __name__ == "__main__":
    sys.exit(main())
