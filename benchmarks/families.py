"""Text families on one thread, float32 and int8: keras_tfm, ONNX Runtime, KerasHub's export.

    pip install -e ".[benchmarks,checkpoints]" keras-hub transformers
    pip install torch onnx onnxscript onnxruntime
    python benchmarks/families.py                        # nine families; forty minutes
    python benchmarks/families.py bert --rounds 30       # one; four minutes
    python benchmarks/families.py bert bart --layers 1   # a quick test that everything runs

Each family at its base size with a vocabulary of 30,522, S=128 (in both stacks of BART), batch 1,
no padding, random weights. The output is the features of all tokens: the last hidden states,
without a head. All engines have the same weights: our model is saved as a Hugging Face folder,
which `transformers` (for ONNX) and KerasHub load. int8 is each engine's own dynamic quantization;
for KerasHub, Keras's `export(format="litert")` with the converter's default optimization. In
float32 all outputs must agree within 1e-4 of the outputs' size (KerasHub, which uses the tanh
approximation of gelu in some families, within 1e-3), or the run fails. KerasHub loads no DeBERTa
and no ELECTRA, and its RoBERTa has other outputs. "error" is the root mean square difference from
our float32 output, relative to that of the output. The engines take turns in one process, in a new
order each round; a row is the median over rounds. "speedup" is the engine's time divided by ours
at the same precision.

For DeBERTa there is one line more: the median over rounds of our time divided by that of our BERT
with the same widths, layers and vocabulary.
"""

import argparse
import importlib
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

VOCABULARY, LENGTH = 30522, 128
BERT = "keras_tfm's BERT"
TOLERANCES = {"KerasHub": 1e-3, "ONNX Runtime": 1e-4, "keras_tfm": 0.0}
Call = Callable[[], np.ndarray]


class Family(NamedTuple):
    """How a family is built and fed.

    Attributes:
        builder: a function of `keras_tfm.models`, with `SIZES` in its module.
        size: a key of `SIZES`.
        inputs: the arguments of the model of `transformers`, beside the attention mask.
        head: a function of `keras_tfm.models` for the head in the folder: KerasHub's converters of
            some families expect the names that such a folder has.
        keras_hub: whether KerasHub loads the folder.
        per_channel: whether ONNX Runtime has kernels for a scale per channel.
    """

    builder: str
    size: str = "base"
    inputs: tuple[str, ...] = ("input_ids",)
    head: str = ""
    keras_hub: bool = True
    per_channel: bool = True


SEGMENTS = ("input_ids", "token_type_ids")
FAMILIES = {
    "bert": Family("bert", inputs=SEGMENTS),
    # KerasHub 0.32 loads it, with other outputs than transformers and ONNX Runtime.
    "roberta": Family("roberta", head="masked_language_model", keras_hub=False),
    "distilbert": Family("distilbert", head="masked_language_model"),
    "albert": Family("albert", inputs=SEGMENTS, head="sequence_classifier"),
    "electra": Family("electra", inputs=SEGMENTS, keras_hub=False),
    # ONNX Runtime has no kernel for the channels of DeBERTa's projected positions (H, K, 2S).
    "deberta": Family("deberta", "v3-base", keras_hub=False, per_channel=False),
    "bart": Family("bart", inputs=("input_ids", "decoder_input_ids")),
    "gpt2": Family("gpt", "gpt2"),
    "llama": Family("llama", "smollm2-135m"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", help=f"of {', '.join(FAMILIES)}; default: all")
    parser.add_argument("--layers", type=int, help="instead of the size's own")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    unknown = set(arguments.families) - set(FAMILIES)
    if unknown:
        parser.error(f"families must be among {list(FAMILIES)}, got {sorted(unknown)}")
    wrong = []
    for name in arguments.families or FAMILIES:
        wrong += compare(name, arguments.layers, arguments.rounds)
    if wrong:
        raise SystemExit("float32 outputs differ: " + "; ".join(wrong))


def compare(name: str, layers: int | None, rounds: int) -> list[str]:
    """Prints the table of one family; what differed in float32."""
    family, rng = FAMILIES[name], np.random.default_rng(0)
    known = {
        "input_ids": rng.integers(5, VOCABULARY, (1, LENGTH), "int32"),
        "decoder_input_ids": rng.integers(5, VOCABULARY, (1, LENGTH), "int32"),
        "token_type_ids": (np.arange(LENGTH) >= LENGTH // 2).astype("int32")[np.newaxis],
        "attention_mask": np.ones((1, LENGTH), "int32"),
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = ours(family, layers, folder) | onnx_runtime(family, folder)
        if family.keras_hub:
            files |= keras_hub_exported(folder)
        if name == "deberta":
            files |= our_bert(family, layers, folder)
        calls = {}
        for (engine, precision), path in files.items():
            run = run_onnx if path.suffix == ".onnx" else run_litert
            calls[engine, precision] = run(path, known)
        outputs = {key: call() for key, call in calls.items()}
        seconds: dict = {key: [] for key in calls}
        for _ in range(rounds):
            for key, call in random.sample(list(calls.items()), len(calls)):
                call()  # warm-up: another engine has used the CPU caches
                start = time.perf_counter()
                call()
                seconds[key].append(time.perf_counter() - start)
        print(f"\n{name} {family.size}, S={LENGTH}, one thread, {rounds} rounds")
        return report(outputs, seconds, files)


def report(outputs: dict, seconds: dict, files: dict) -> list[str]:
    expected = outputs["keras_tfm", "float32"]
    medians = {key: statistics.median(x) for key, x in seconds.items()}
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
    return wrong


# The contestants. Each returns its files by engine and precision.


def ours(family: Family, layers: int | None, folder: Path) -> dict[tuple[str, str], Path]:
    from keras_tfm.runtime import native_log

    with native_log.remove():
        import keras
    from keras_tfm import checkpoints, models

    keras.utils.set_random_seed(0)
    model = getattr(models, family.builder)(VOCABULARY, **size_of(family, layers))
    saved = model
    if family.head:
        classes = [2] if family.head == "sequence_classifier" else []
        saved = getattr(models, family.head)(model, *classes)
    checkpoints.save_huggingface(saved, folder / "checkpoint")
    path = folder / "checkpoint" / "config.json"
    config = json.loads(path.read_text())
    if "encoder_layers" in config:  # read by KerasHub, as configs of older folders have it
        path.write_text(json.dumps({**config, "num_hidden_layers": config["encoder_layers"]}))
    return exported(model, "keras_tfm", folder)


def our_bert(family: Family, layers: int | None, folder: Path) -> dict[tuple[str, str], Path]:
    from keras_tfm import models

    names = ("dim", "num_layers", "num_heads", "intermediate_dim")
    size = size_of(family, layers)
    sizes = {name: size[name] for name in names}
    model = models.bert(VOCABULARY, **sizes, segments=False, pooler=False)
    return exported(model, BERT, folder)


def size_of(family: Family, layers: int | None) -> dict[str, Any]:
    sizes = importlib.import_module(f"keras_tfm.models.{family.builder}").SIZES
    return {**sizes[family.size], **({"num_layers": layers} if layers else {})}


def exported(model: Any, engine: str, folder: Path) -> dict[tuple[str, str], Path]:
    import keras

    from keras_tfm import export

    model = keras.Model(model.inputs, model.features)
    lengths = {"source_length": LENGTH}
    if len(model.inputs) > 1 and model.inputs[-1].name == "target":
        lengths["max_length"] = LENGTH
    files = {}
    for precision in ("float32", "int8"):
        path = files[engine, precision] = folder / f"{engine}-{precision}.tflite"
        export.export_tflite(
            model, path, ["predict"], quantization=precision, verify=False, **lengths
        )
    return files


def onnx_runtime(family: Family, folder: Path) -> dict[tuple[str, str], Path]:
    import torch
    import transformers
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    torch.set_num_threads(1)
    model = transformers.AutoModel.from_pretrained(folder / "checkpoint").eval()
    names = (*family.inputs, "attention_mask")

    class Features(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            given = dict(zip(names, inputs, strict=True))
            return self.model(**given, return_dict=True).last_hidden_state

    path, prepared = folder / "float32.onnx", folder / "prepared.onnx"
    # A tensor for each input: the exporter would merge one tensor that is passed twice.
    example = tuple(torch.ones((1, LENGTH), dtype=torch.int64) for _ in names)
    if "use_cache" in model.config.to_dict():
        model.config.use_cache = False
    with torch.no_grad():
        torch.onnx.export(
            Features(),
            example,
            str(path),
            dynamo=True,
            external_data=False,
            input_names=names,
            verbose=False,
        )
    quant_pre_process(str(path), str(prepared))
    quantized = folder / "int8.onnx"
    quantize_dynamic(
        str(prepared),
        str(quantized),
        weight_type=QuantType.QInt8,
        per_channel=family.per_channel,
    )
    return {("ONNX Runtime", "float32"): path, ("ONNX Runtime", "int8"): quantized}


def keras_hub_exported(folder: Path) -> dict[tuple[str, str], Path]:
    import keras_hub
    import tensorflow as tf

    model = keras_hub.models.Backbone.from_preset(str(folder / "checkpoint"))
    signature = {name: tf.TensorSpec((1, LENGTH), tf.int32, name=name) for name in model.input}
    files = {}
    for precision in ("float32", "int8"):
        path = files["KerasHub", precision] = folder / f"keras-hub-{precision}.tflite"
        options = {"optimizations": [tf.lite.Optimize.DEFAULT]} if precision == "int8" else {}
        model.export(
            str(path), format="litert", input_signature=[signature], verbose=False, **options
        )
    return files


# Running. Each returns a function that returns the features of all tokens.


# The engines' names of the inputs, as those of `transformers`.
NAMES = {
    "token": "input_ids",
    "source": "input_ids",
    "encoder_token": "input_ids",
    "segment": "token_type_ids",
    "decoder_token": "decoder_input_ids",
    "target": "decoder_input_ids",
    "padding": "attention_mask",
    "encoder_padding": "attention_mask",
    "decoder_padding": "attention_mask",
}


def run_litert(path: Path, known: dict[str, np.ndarray]) -> Call:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=1)
    (signature,) = interpreter.get_signature_list()
    runner = interpreter.get_signature_runner(signature)
    names = list(runner.get_input_details())
    if names == ["target"]:  # a decoder alone
        inputs = {"target": known["input_ids"]}
    else:
        inputs = {
            name: next(known[x] for start, x in NAMES.items() if name.startswith(start))
            for name in names
        }
    return lambda: features(runner(**inputs))


def run_onnx(path: Path, known: dict[str, np.ndarray]) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    inputs = {x.name: known[x.name].astype("int64") for x in session.get_inputs()}
    return lambda: session.run(None, inputs)[0]


def features(outputs: dict[str, np.ndarray]) -> np.ndarray:
    """The output (1, S, D): of several, the decoder's."""
    found = {name: x for name, x in outputs.items() if x.ndim == 3}
    return next((x for name, x in found.items() if "decoder" in name), next(iter(found.values())))


if __name__ == "__main__":
    main()
