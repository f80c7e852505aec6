"""BERT-base or DeBERTa on one thread, float32 and int8: keras_tfm, ONNX Runtime, KerasHub's export.

    pip install -e ".[benchmarks,checkpoints]" keras-hub transformers
    pip install torch onnx onnxscript onnxruntime
    python benchmarks/bert.py                # BERT-base; four minutes
    python benchmarks/bert.py --size tiny    # a quick test that everything runs
    python benchmarks/bert.py --family deberta --size v3-base    # beside BERT of the same size

12 layers, D=768, H=12, F=3072, S=128, batch 1, no padding, two segments. The outputs are the
features and the pooled token. All engines have the same random weights: our model is saved as a
Hugging Face folder, which `transformers` (for ONNX) and KerasHub load. int8 is each engine's own
dynamic quantisation; for KerasHub, Keras's `export(format="litert")` with the converter's default
optimisation. In float32 all outputs must agree within 1e-4 of the outputs' size (KerasHub, which
uses the tanh approximation of gelu, within 1e-3), or the run fails. "error" is the root mean square
difference from our float32 output, relative to that of the output. The engines take turns in one
process, in a new order each round; a row is the median over rounds. "speedup" is the engine's time
divided by ours at the same precision.

With `--family deberta`, one text and the features only, KerasHub is left out (it loads no DeBERTa
folder), and the last two lines are the median over rounds of our time divided by that of our BERT
with the same widths, layers and vocabulary.
"""

import argparse
import importlib
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

VOCABULARY, LENGTH = 30522, 128
# KerasHub's BertBackbone uses the tanh approximation of gelu; BERT's checkpoints use the exact one.
BERT = "keras_tfm's BERT"
TOLERANCES = {"KerasHub": 1e-3, "ONNX Runtime": 1e-4, "keras_tfm": 0.0}
Call = Callable[[], np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=("bert", "deberta"), default="bert")
    parser.add_argument("--size", default="base", help="a key of the family's SIZES")
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, VOCABULARY, (1, LENGTH), "int32")
    segments = (np.arange(LENGTH) >= LENGTH // 2).astype("int32")[np.newaxis]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = {}
        last = keras_hub_exported if arguments.family == "bert" else our_bert
        for build in (ours, onnx_runtime, last):
            files |= build(arguments.family, arguments.size, folder)
        calls = {}
        for (engine, precision), path in files.items():
            run = run_onnx if path.suffix == ".onnx" else run_litert
            calls[engine, precision] = run(path, tokens, segments)
        outputs = {key: call() for key, call in calls.items()}
        seconds: dict = {key: [] for key in calls}
        for _ in range(arguments.rounds):
            for key, call in random.sample(list(calls.items()), len(calls)):
                call()  # warm-up: another engine has used the CPU caches
                start = time.perf_counter()
                call()
                seconds[key].append(time.perf_counter() - start)
        report(arguments, outputs, seconds, files)


def report(arguments: argparse.Namespace, outputs: dict, seconds: dict, files: dict) -> None:
    expected = outputs["keras_tfm", "float32"]
    medians = {key: statistics.median(x) for key, x in seconds.items()}
    print(
        f"\n{arguments.family} {arguments.size}, S={LENGTH}, one thread, {arguments.rounds} rounds"
    )
    print(f"{'':14}{'':9}{'ms':>8}{'speedup':>9}{'error':>9}{'MB':>8}")
    wrong = []
    for engine, precision in sorted(medians, key=lambda key: (key[1], medians[key])):
        if engine == BERT:
            continue
        off = outputs[engine, precision] - expected
        allowed = TOLERANCES[engine] * np.abs(expected).max()
        if precision == "float32" and np.abs(off).max() > allowed:
            wrong.append(f"{engine} is off by {np.abs(off).max():.1e}")
        milliseconds = 1e3 * medians[engine, precision]
        ratio = medians[engine, precision] / medians["keras_tfm", precision]
        size = files[engine, precision].stat().st_size / 1e6
        error = off.std() / expected.std()
        print(
            f"{engine:14}{precision:9}{milliseconds:8.1f}{ratio:8.2f}x{error:9.1e}{size:8.1f}",
            flush=True,
        )
    for precision in ("float32", "int8") if (BERT, "int8") in seconds else ():
        pairs = zip(seconds["keras_tfm", precision], seconds[BERT, precision], strict=True)
        print(f"{precision}: {statistics.median(a / b for a, b in pairs):.2f} times {BERT}'s time")
    if wrong:
        raise SystemExit("float32 outputs differ: " + "; ".join(wrong))


# The contestants. Each returns its files by engine and precision.


def ours(family: str, size: str, folder: Path) -> dict[tuple[str, str], Path]:
    from keras_tfm.runtime import native_log

    with native_log.removed():
        import keras
    from keras_tfm import checkpoints

    keras.utils.set_random_seed(0)
    model = built(family, size)
    checkpoints.save_huggingface(model, folder / "checkpoint")
    return exported(model, "keras_tfm", folder)


def our_bert(family: str, size: str, folder: Path) -> dict[tuple[str, str], Path]:
    from keras_tfm import models

    names = ("dim", "num_layers", "num_heads", "intermediate_dim")
    sizes = {name: sizes_of(family)[size][name] for name in names}
    model = models.bert(VOCABULARY, **sizes, segments=False, pooler=False)
    return exported(model, BERT, folder)


def sizes_of(family: str) -> dict:
    return importlib.import_module(f"keras_tfm.models.{family}").SIZES


def built(family: str, size: str) -> Any:
    from keras_tfm import models

    return getattr(models, family)(VOCABULARY, **sizes_of(family)[size])


def exported(model: Any, engine: str, folder: Path) -> dict[tuple[str, str], Path]:
    from keras_tfm import export

    files = {}
    for precision in ("float32", "int8"):
        path = files[engine, precision] = folder / f"{engine}-{precision}.tflite"
        export.export_tflite(
            model, path, quantization=precision, source_length=LENGTH, verify=False
        )
    return files


def onnx_runtime(family: str, size: str, folder: Path) -> dict[tuple[str, str], Path]:
    import torch
    import transformers
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    torch.set_num_threads(1)
    model = transformers.AutoModel.from_pretrained(folder / "checkpoint").eval()

    class Features(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: torch.Tensor, segments: torch.Tensor) -> tuple:
            mask = (tokens != 0).long()
            if family == "deberta":
                return self.model(tokens, attention_mask=mask)[:1]
            return self.model(tokens, attention_mask=mask, token_type_ids=segments)[:2]

    path, prepared = folder / "float32.onnx", folder / "prepared.onnx"
    # Two tensors: the exporter would merge one tensor that is passed twice into one input.
    example = tuple(torch.ones((1, LENGTH), dtype=torch.int64) for _ in range(2))
    with torch.no_grad():
        torch.onnx.export(Features(), example, str(path), dynamo=True, external_data=False)
    quant_pre_process(str(path), str(prepared))
    quantized = folder / "int8.onnx"
    # ONNX Runtime has no kernel for the channels of DeBERTa's projected positions (H, K, 2S).
    per_channel = family == "bert"
    quantize_dynamic(
        str(prepared), str(quantized), weight_type=QuantType.QInt8, per_channel=per_channel
    )
    return {("ONNX Runtime", "float32"): path, ("ONNX Runtime", "int8"): quantized}


def keras_hub_exported(family: str, size: str, folder: Path) -> dict[tuple[str, str], Path]:
    import keras_hub
    import tensorflow as tf

    model = keras_hub.models.BertBackbone.from_preset(str(folder / "checkpoint"))
    names = ("token_ids", "segment_ids", "padding_mask")
    signature = {name: tf.TensorSpec((1, LENGTH), tf.int32, name=name) for name in names}
    files = {}
    for precision in ("float32", "int8"):
        path = files["KerasHub", precision] = folder / f"keras-hub-{precision}.tflite"
        options = {"optimizations": [tf.lite.Optimize.DEFAULT]} if precision == "int8" else {}
        model.export(
            str(path), format="litert", input_signature=[signature], verbose=False, **options
        )
    return files


# Running. Each returns a function that returns the features of all tokens.


def run_litert(path: Path, tokens: np.ndarray, segments: np.ndarray) -> Call:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=1)
    (signature,) = interpreter.get_signature_list()
    runner = interpreter.get_signature_runner(signature)
    known = {"token": tokens, "segment": segments, "padding": (tokens != 0).astype("int32")}
    inputs = {
        name: next(x for start, x in known.items() if name.startswith(start))
        for name in runner.get_input_details()
    }
    return lambda: features(runner(**inputs).values())


def run_onnx(path: Path, tokens: np.ndarray, segments: np.ndarray) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    known = {"tokens": tokens.astype("int64"), "segments": segments.astype("int64")}
    inputs = {x.name: known[x.name] for x in session.get_inputs()}
    return lambda: features(session.run(None, inputs))


def features(outputs) -> np.ndarray:
    """The output (1, S, D) of the two outputs."""
    return next(x for x in outputs if x.ndim == 3)


if __name__ == "__main__":
    main()
