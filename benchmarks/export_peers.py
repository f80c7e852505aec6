"""The contestants of benchmarks/export.py: one encoder's weights, built and run by each engine.

    python benchmarks/export_peers.py build ENGINE FOLDER           # writes the engine's files
    python benchmarks/export_peers.py run ENGINE PRECISION FOLDER   # answers lines with seconds
    python benchmarks/export_peers.py load FILE                     # seconds and memory

benchmarks/export.py starts each of these in a separate process, some with another Python. Only the
contestant "keras_tfm" imports keras_tfm. FOLDER holds weights.npz and x.npy (1, S, D), written by
benchmarks/export.py; kernels are (inputs, outputs), and head h has columns h*D/H to (h+1)*D/H - 1.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

LAYERS, DIM, HEADS, INNER, LENGTH = 4, 256, 8, 1024, 128
EPSILON = 1e-5
PRECISIONS = ("float32", "int8")
PARTS = ("query", "key", "value", "output", "inner", "outer")
CALLS = 10  # per turn; the answer is their median


def random_weights() -> dict[str, np.ndarray]:
    """Kernels with Glorot's scale; biases around 0 and norms around 1."""
    generator = np.random.default_rng(0)
    widths = dict.fromkeys(PARTS, (DIM, DIM)) | {"inner": (DIM, INNER), "outer": (INNER, DIM)}
    weights = {}
    for i in range(LAYERS):
        for part, (inputs, outputs) in widths.items():
            kernel = generator.normal(0.0, (2.0 / (inputs + outputs)) ** 0.5, (inputs, outputs))
            weights[f"{i}.{part}.kernel"] = kernel
            weights[f"{i}.{part}.bias"] = generator.normal(0.0, 0.02, outputs)
        for norm in ("norm1", "norm2"):
            weights[f"{i}.{norm}.gamma"] = generator.normal(1.0, 0.02, DIM)
            weights[f"{i}.{norm}.beta"] = generator.normal(0.0, 0.02, DIM)
    return {name: values.astype("float32") for name, values in weights.items()}


def reference(weights: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """The encoder in NumPy float64: (1, S, D) -> (1, S, D)."""
    w = {name: values.astype("float64") for name, values in weights.items()}
    x = x[0].astype("float64")

    def dense(x, name):
        return x @ w[f"{name}.kernel"] + w[f"{name}.bias"]

    def heads(x):
        return x.reshape(len(x), HEADS, -1).transpose(1, 0, 2)

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON)
        return x * w[f"{name}.gamma"] + w[f"{name}.beta"]

    for i in range(LAYERS):
        query, key, value = (heads(dense(x, f"{i}.{part}")) for part in PARTS[:3])
        scores = query @ key.transpose(0, 2, 1) * (DIM // HEADS) ** -0.5
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        y = (scores / scores.sum(-1, keepdims=True) @ value).transpose(1, 0, 2).reshape(x.shape)
        x = norm(x + dense(y, f"{i}.output"), f"{i}.norm1")
        y = dense(np.maximum(dense(x, f"{i}.inner"), 0.0), f"{i}.outer")
        x = norm(x + y, f"{i}.norm2")
    return x[None]


# Building: one file per precision for each engine.


def keras_tfm_encoder(weights):
    import keras

    from keras_tfm.layers import TransformerEncoderBlock

    inputs = x = keras.Input((LENGTH, DIM), name="x")
    for i in range(LAYERS):
        block = TransformerEncoderBlock(INNER, HEADS, layer_norm_epsilon=EPSILON)
        x = block(x)
        attention, feed_forward = block.self_attention, block.feed_forward
        for layer, parts in (
            (attention.query_key_value, PARTS[:3]),
            (attention.output_projection, ("output",)),
            (feed_forward.inner, ("inner",)),
            (feed_forward.outer, ("outer",)),
        ):
            layer.kernel.assign(
                np.concatenate([weights[f"{i}.{part}.kernel"] for part in parts], axis=1)
            )
            layer.bias.assign(np.concatenate([weights[f"{i}.{part}.bias"] for part in parts]))
        for norm, residual in (
            ("norm1", block.self_attention_residual),
            ("norm2", block.feed_forward_residual),
        ):
            layer = residual.input_norm or residual.sum_norm
            layer.gamma.assign(weights[f"{i}.{norm}.gamma"])
            layer.beta.assign(weights[f"{i}.{norm}.beta"])
    return keras.Model(inputs, x)


def build_keras_tfm(weights, folder: Path) -> None:
    from keras_tfm.export import export_tflite

    model = keras_tfm_encoder(weights)
    for precision in PRECISIONS:
        path = folder / f"keras_tfm-{precision}.tflite"
        print(export_tflite(model, path, quantization=precision))


def build_keras_hub(weights, folder: Path) -> None:
    """Keras's own export, as documented; int8 is the converter's default optimisation."""
    import keras
    import keras_hub
    import tensorflow as tf

    inputs = x = keras.Input((LENGTH, DIM), name="x")
    for i in range(LAYERS):
        block = keras_hub.layers.TransformerEncoder(INNER, HEADS, layer_norm_epsilon=EPSILON)
        x = block(x)
        for variable in block.trainable_variables:
            # .../query/kernel, self_attention_layer_norm/gamma, feedforward_output_dense/bias, ...
            layer, kind = variable.path.split("/")[-2:]
            name = {
                "attention_output": "output",
                "self_attention_layer_norm": "norm1",
                "feedforward_intermediate_dense": "inner",
                "feedforward_output_dense": "outer",
                "feedforward_layer_norm": "norm2",
            }.get(layer, layer)
            variable.assign(weights[f"{i}.{name}.{kind}"].reshape(variable.shape))
    model = keras.Model(inputs, x)
    for precision in PRECISIONS:
        options = {"optimizations": [tf.lite.Optimize.DEFAULT]} if precision == "int8" else {}
        path = folder / f"Keras export-{precision}.tflite"
        model.export(str(path), format="litert", verbose=False, **options)


def torch_encoder(weights):
    import torch

    # No exporter supports the fused inference kernel of nn.TransformerEncoderLayer.
    torch.backends.mha.set_fastpath_enabled(False)
    layer = torch.nn.TransformerEncoderLayer(
        DIM, HEADS, INNER, dropout=0.0, batch_first=True, layer_norm_eps=EPSILON
    )
    model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    state = {}
    for i in range(LAYERS):
        for kind, suffix in (("kernel", "weight"), ("bias", "bias")):
            w = {part: weights[f"{i}.{part}.{kind}"].T for part in PARTS}
            state[f"layers.{i}.self_attn.in_proj_{suffix}"] = np.concatenate(
                [w[part] for part in PARTS[:3]]
            )
            state[f"layers.{i}.self_attn.out_proj.{suffix}"] = w["output"]
            state[f"layers.{i}.linear1.{suffix}"] = w["inner"]
            state[f"layers.{i}.linear2.{suffix}"] = w["outer"]
        for norm in ("norm1", "norm2"):
            state[f"layers.{i}.{norm}.weight"] = weights[f"{i}.{norm}.gamma"]
            state[f"layers.{i}.{norm}.bias"] = weights[f"{i}.{norm}.beta"]
    model.load_state_dict({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in state.items()})
    return model.eval()


def torch_inputs() -> tuple:
    import torch

    return (torch.zeros(1, LENGTH, DIM),)


def build_onnx(weights, folder: Path) -> None:
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    path, prepared = folder / "ONNX Runtime-float32.onnx", folder / "prepared.onnx"
    torch.onnx.export(
        torch_encoder(weights), torch_inputs(), str(path), dynamo=True, external_data=False
    )
    quant_pre_process(str(path), str(prepared))
    quantize_dynamic(
        str(prepared),
        str(folder / "ONNX Runtime-int8.onnx"),
        weight_type=QuantType.QInt8,
        per_channel=True,
    )


def build_executorch(weights, folder: Path) -> None:
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackDynamicallyQuantizedPartitioner,
        XnnpackPartitioner,
    )
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from executorch.exir import to_edge_transform_and_lower
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    def attention(query, key, value, *_, **__):
        scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
        return torch.softmax(scores, dim=-1) @ value

    # ExecuTorch decomposes PyTorch's own attention with guards for rows without keys, which XNNPACK
    # does not support: 28 partitions, and in int8 more than twice the time.
    torch.nn.functional.scaled_dot_product_attention = attention
    inputs = torch_inputs()
    for precision in PRECISIONS:
        model = torch_encoder(weights)
        partitioners = [XnnpackPartitioner()]
        if precision == "int8":
            quantizer = XNNPACKQuantizer().set_global(
                get_symmetric_quantization_config(is_per_channel=True, is_dynamic=True)
            )
            model = prepare_pt2e(torch.export.export(model, inputs).module(), quantizer)
            model(*inputs)
            model = convert_pt2e(model)
            partitioners.insert(0, XnnpackDynamicallyQuantizedPartitioner())
        program = to_edge_transform_and_lower(
            torch.export.export(model, inputs), partitioner=partitioners
        ).to_executorch()
        (folder / f"ExecuTorch-{precision}.pte").write_bytes(program.buffer)


def build_litert_torch(weights, folder: Path) -> None:
    import litert_torch
    from ai_edge_quantizer import quantizer, recipe

    path = folder / "litert-torch-float32.tflite"
    litert_torch.convert(torch_encoder(weights), torch_inputs()).export(str(path))
    result = quantizer.Quantizer(str(path), recipe.dynamic_wi8_afp32()).quantize()
    result.export_model(str(folder / "litert-torch-int8.tflite"), overwrite=True)


def build_ctranslate2(weights, folder: Path) -> None:
    """An encoder whose embedding of id s is x[s], without positions: ids 0 to S - 1 are the input.

    In contrast to the others it also looks up S rows.
    """
    from ctranslate2.converters import utils
    from ctranslate2.specs import common_spec, transformer_spec

    encoder = transformer_spec.TransformerEncoderSpec(LAYERS, HEADS, pre_norm=False)
    encoder.scale_embeddings = False
    encoder.embeddings[0].weight = np.load(folder / "x.npy")[0].copy()
    encoder.position_encodings.encodings = np.zeros((LENGTH, DIM), "float32")

    def linear(spec, name):
        spec.weight = np.ascontiguousarray(weights[f"{name}.kernel"].T)
        spec.bias = weights[f"{name}.bias"]

    def norm(spec, name):
        spec.gamma, spec.beta = weights[f"{name}.gamma"], weights[f"{name}.beta"]

    for i, layer in enumerate(encoder.layer):
        projections = [common_spec.LinearSpec() for _ in range(3)]
        for projection, part in zip(projections, PARTS[:3], strict=True):
            linear(projection, f"{i}.{part}")
        utils.fuse_linear(layer.self_attention.linear[0], projections)
        linear(layer.self_attention.linear[1], f"{i}.output")
        norm(layer.self_attention.layer_norm, f"{i}.norm1")
        linear(layer.ffn.linear_0, f"{i}.inner")
        linear(layer.ffn.linear_1, f"{i}.outer")
        norm(layer.ffn.layer_norm, f"{i}.norm2")
    spec = transformer_spec.TransformerEncoderModelSpec(encoder)
    spec.register_vocabulary([str(i) for i in range(LENGTH)])
    spec.config.layer_norm_epsilon = EPSILON
    spec.config.unk_token = "0"
    spec.validate()
    spec.optimize(quantization=None)
    path = folder / "CTranslate2"
    path.mkdir(exist_ok=True)
    spec.save(str(path))


# Running: each returns a function that computes y from x, on one thread.


def run_litert(path: Path, x: np.ndarray):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=1)
    (signature,) = interpreter.get_signature_list()
    runner = interpreter.get_signature_runner(signature)
    (name,) = runner.get_input_details()
    return lambda: next(iter(runner(**{name: x}).values()))


def run_onnx(path: Path, x: np.ndarray):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    inputs = {session.get_inputs()[0].name: x}
    return lambda: session.run(None, inputs)[0]


def run_executorch(path: Path, x: np.ndarray):
    import torch
    from executorch.extension.pybindings import portable_lib

    torch.set_num_threads(1)
    portable_lib._unsafe_reset_threadpool(1)
    module = portable_lib._load_for_executorch(str(path))
    inputs = (torch.from_numpy(x),)
    return lambda: module.forward(inputs)[0].numpy()


def run_ctranslate2(path: Path, precision: str):
    import ctranslate2

    encoder = ctranslate2.Encoder(
        str(path), compute_type=precision, inter_threads=1, intra_threads=1
    )
    ids = [list(range(LENGTH))]
    return lambda: np.array(encoder.forward_batch(ids).last_hidden_state)


# By name: the function that builds the files, their suffix, and the function that runs one.
ENGINES = {
    "keras_tfm": (build_keras_tfm, ".tflite", run_litert),
    "Keras export": (build_keras_hub, ".tflite", run_litert),
    "litert-torch": (build_litert_torch, ".tflite", run_litert),
    "ONNX Runtime": (build_onnx, ".onnx", run_onnx),
    "ExecuTorch": (build_executorch, ".pte", run_executorch),
    "CTranslate2": (build_ctranslate2, "", None),
}


def build(engine: str, folder: Path) -> None:
    ENGINES[engine][0](dict(np.load(folder / "weights.npz")), folder)


def run(engine: str, precision: str, folder: Path) -> None:
    """Writes y of a first call to a file, then answers each input line with a call's seconds."""
    x = np.load(folder / "x.npy")
    _, ending, make = ENGINES[engine]
    if make is None:
        call = run_ctranslate2(folder / engine, precision)
    else:
        call = make(folder / f"{engine}-{precision}{ending}", x)
    np.save(folder / f"{engine}-{precision}-y.npy", call())
    call()
    print("ready", flush=True)
    for _ in sys.stdin:
        call()  # warm-up: another process has used the CPU caches
        seconds = []
        for _ in range(CALLS):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        print(statistics.median(seconds), flush=True)


def load(path: Path) -> None:
    """Loads a file, allocates its tensors, and calls it: seconds of the first two, megabytes."""
    from ai_edge_litert.interpreter import Interpreter

    def status(key: str) -> float:
        # Not getrusage: its peak includes that of the parent process.
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(float(x.split()[1]) for x in lines if x.startswith(key)) / 1e3

    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        before = status("VmRSS")
        start = time.perf_counter()
        interpreter = Interpreter(str(path), num_threads=1)
        interpreter.allocate_tensors()
        seconds = time.perf_counter() - start
        for name in interpreter.get_signature_list():
            runner = interpreter.get_signature_runner(name)
            details = runner.get_input_details()
            runner(**{k: np.ones(d["shape"], d["dtype"]) for k, d in details.items()})
        peak = status("VmHWM")
    print(json.dumps({"seconds": seconds, "peak": peak, "grown": peak - before}))


if __name__ == "__main__":
    command, *values = sys.argv[1:]
    values[-1] = Path(values[-1])
    {"build": build, "run": run, "load": load}[command](*values)
