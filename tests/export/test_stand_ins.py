"""Files whose weights never passed through the converter hold what they held when they did."""

from collections import Counter

import keras
import numpy as np
import pytest
from small_exports import new_path
from small_models import randomize

from keras_tfm import models
from keras_tfm.export import export_tflite, verify
from keras_tfm.export.graph import stand_ins
from keras_tfm.layers import FeedForward, TokenEmbedding, TransformerDecoderBlock
from keras_tfm.models import enable_lora
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.manifest.storage import import_litert

SIZE = {"dim": 64, "num_layers": 2, "num_heads": 2, "intermediate_dim": 96}
STEPS = {"signatures": ["decode"], "prompt_length": 4, "max_length": 9, "end_id": 2}


def scaled():
    """The same square kernel in two orientations, a product by 1/8 after one, and a tied table."""
    ids = keras.Input((6,), dtype="int32", name="ids")
    table, dense = TokenEmbedding(67, 64, scale=True), keras.layers.Dense(64, use_bias=False)
    x = dense(table(ids)) * 0.125
    x = keras.layers.EinsumDense("btd,ed->bte", (6, 64), name="turned")(keras.ops.relu(x))
    return keras.Model(ids, table(x, reverse=True) * 0.3)


def convolutions():
    """Kernels of four axes, of which two are multiplied by a normalisation after them."""
    x = image = keras.Input((9, 9, 3), name="image")
    for width in (16, 24):
        x = keras.layers.Conv2D(width, 3, use_bias=False)(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    x = keras.layers.DepthwiseConv2D(3)(x)
    return keras.Model(image, keras.layers.Dense(33)(keras.layers.Flatten()(x)))


def parts():
    """A kernel read in parts by a layer that is not ours, and one by a layer that is."""
    x = keras.Input((5, 64), name="x")
    y = FeedForward(96, gated=True, activation="silu")(x)
    return keras.Model(x, First(40)(y))


class First(keras.layers.Layer):
    """Products with the first columns of a kernel, and with the last."""

    def __init__(self, width):
        super().__init__()
        self.width = width

    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1], 2 * self.width))

    def call(self, x):
        return (x @ self.kernel[:, : self.width]) + (x @ self.kernel[:, self.width :])


def masked():
    """Infinite numbers: one, those of a small mask, and those of two of more than 65,536 values."""
    x = keras.Input((300, 64), name="x")
    causal = np.where(np.tri(300, dtype=bool), 0, -np.inf).astype("float32")
    scores = keras.layers.Dense(300)(x) + causal
    scores = keras.ops.minimum(scores, np.full((300, 300), np.inf, "float32"))
    y = keras.ops.softmax(scores) @ x
    y = keras.ops.where(keras.ops.isfinite(y), y, np.inf)
    y = y + np.where(np.arange(64) == 7, -np.inf, 0).astype("float32")
    return keras.Model(x, keras.ops.softmax(y))


def averaged():
    """Constants of one number, as large as the kernels: in a graph, captured, or computed by it."""
    x = keras.Input((64,), name="x")
    y = keras.layers.Dense(64)(x)
    for number in (1 / 64, 1.0, 1.5, -3.0, 0.0):
        y = keras.ops.relu(keras.ops.matmul(y, np.full((64, 64), number, "float32")) + y)
    return keras.Model(x, keras.layers.Dense(64)(Sum()(y)))


class Sum(keras.layers.Layer):
    """Sums of all columns, by a product with a tensor that the layer made before; and means."""

    def __init__(self):
        super().__init__()
        self.ones = keras.ops.full((64, 64), 0.3)

    def call(self, x):
        sums = keras.ops.matmul(x, self.ones)
        return sums + keras.ops.matmul(x, keras.ops.ones((64, 64)) * 0.7 / 64)


def averaged_in_a_loop():
    """Means, by a matrix as large as the kernels that the loop alone computes.

    Queries are divided by 4: by another number, the converter rounds scales to another last bit.
    """
    source, ids = (keras.Input((None,), dtype="int32", name=name) for name in ("source", "target"))
    context, x = (TokenEmbedding(67, 64)(y) for y in (source, ids))
    for _ in range(2):
        x = TransformerDecoderBlock(96, 4)(x, context)
    return keras.Model([source, ids], keras.layers.Dense(67)(Means()(x)))


class Means(keras.layers.Layer):
    """A product with a matrix of one number, which the graph computes."""

    def call(self, x):
        return x + keras.ops.matmul(x, keras.ops.ones((64, 64)) * 0.7 / 64)


def with_adapters():
    model = models.llama(131, **SIZE, num_key_value_heads=1)
    enable_lora(model, rank=2)
    return model


def wide():
    """Kernels and a table of more than 65,536 values, which the converter makes FILL."""
    size = {"dim": 256, "num_layers": 2, "num_heads": 2, "intermediate_dim": 288}
    return models.llama(300, **size, num_key_value_heads=1, tie_output=True)


CASES = {
    "llama": (lambda: models.llama(131, **SIZE, num_key_value_heads=1, tie_output=True), STEPS),
    "biases and norms of queries": (
        lambda: models.llama(
            131, **SIZE, num_key_value_heads=1, attention_bias=True, query_key_norm=True
        ),
        STEPS,
    ),
    "layer norms": (lambda: models.gpt(131, **SIZE, max_length=16), STEPS),
    "norms after": (lambda: models.bert(131, **SIZE, max_length=16), {"source_length": 8}),
    "encoder and decoder": (
        lambda: models.t5(131, **{**SIZE, "num_layers": 1}),
        {"signatures": ["generate"], "source_length": 5, "max_length": 7, "start_id": 0},
    ),
    "loop": (wide, {**STEPS, "signatures": ["generate"]}),
    "adapters": (with_adapters, STEPS),
    "scaled": (scaled, {}),
    "convolutions": (convolutions, {}),
    "parts": (parts, {}),
    "infinities": (masked, {}),
    "constants of one number": (averaged, {}),
    "constants in a loop": (
        averaged_in_a_loop,
        {"signatures": ["generate"], "source_length": 5, "max_length": 9, "start_id": 1},
    ),
}
# The converter makes other constants of a square kernel that is not ours, and of kernels that a
# normalization multiplies or of which a layer reads parts.
CONVERTED_TWICE = {"scaled", "convolutions", "parts"}
# Both presets of integers, and a model of each kind of weights; the others in the slow tier.
QUICK = {
    *(("layer norms", "int8"), ("scaled", "int4"), ("convolutions", "int8")),
    *(("infinities", "float32"), ("constants of one number", "int8")),
    ("constants in a loop", "int8"),
}


def contents(path):
    """Of each graph, the kinds of operators and the constants that they read, as bytes."""
    model, schema = flatbuffer.read(path.read_bytes()), import_litert("schema_py_generated")
    graphs = []
    for graph in model.subgraphs:
        used = {int(i) for operator in graph.operators for i in operator.inputs}
        constants = Counter()
        for index in used - {-1}:
            tensor = graph.tensors[index]
            data = model.buffers[tensor.buffer].data
            if data is not None and tensor.type != schema.TensorType.FLOAT32:
                scale = tensor.quantization and tensor.quantization.scale
                scale = None if scale is None else np.asarray(scale).tobytes()
                constants[tuple(np.ravel(tensor.shape)), tensor.type, bytes(data), scale] += 1
        codes = [model.operatorCodes[x.opcodeIndex] for x in graph.operators]
        kinds = [max(x.builtinCode, x.deprecatedBuiltinCode) for x in codes]
        graphs.append((kinds, constants))
    return graphs


def floats(path):
    """The constants in float32 of each graph, in the order of their sums."""
    model, schema = flatbuffer.read(path.read_bytes()), import_litert("schema_py_generated")
    graphs = []
    for graph in model.subgraphs:
        used = {int(i) for operator in graph.operators for i in operator.inputs} - {-1}
        tensors = [graph.tensors[i] for i in used]
        arrays = [
            np.asarray(model.buffers[x.buffer].data).view("float32")
            for x in tensors
            if x.type == schema.TensorType.FLOAT32 and model.buffers[x.buffer].data is not None
        ]
        graphs.append(sorted(arrays, key=lambda x: (x.size, float(np.abs(x).sum(dtype="float64")))))
    return graphs


@pytest.mark.parametrize(
    ("name", "quantization"),
    [
        pytest.param(name, q, marks=() if (name, q) in QUICK else pytest.mark.slow)
        for name in CASES
        for q in ("float32", "float16", "int8", "int4")
    ],
)
def test_the_file_is_that_of_converted_weights(name, quantization, monkeypatch, caplog):
    build, arguments = CASES[name]
    model = randomize(build(), 3)
    paths = []
    for smallest in (1 << 40, 1000):
        monkeypatch.setattr(stand_ins, "SMALLEST", smallest)
        paths.append(new_path())
        with caplog.at_level("INFO", "keras_tfm.export.graph.conversion"):
            export_tflite(model, paths[-1], quantization=quantization, verify=False, **arguments)
    assert ("converting again" in caplog.text) == (name in CONVERTED_TWICE)
    graphs = [contents(path) for path in paths]
    if name == "constants in a loop":
        graphs = [[(sorted(kinds), constants) for kinds, constants in x] for x in graphs]
    assert graphs[1] == graphs[0]
    for found, wanted in zip(floats(paths[1]), floats(paths[0]), strict=True):
        for x, y in zip(found, wanted, strict=True):
            # A bias to which W b was added: another order of the sum.
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5 * np.abs(y).max(initial=0.0))
    verify(model, paths[1])


def test_signs_of_large_weights_are_not_in_a_loop_too(monkeypatch, caplog):
    """The graph around it does not need them, so square weights are converted as they are."""
    monkeypatch.setattr(stand_ins, "SMALLEST", 1000)
    monkeypatch.setattr(stand_ins, "_LARGEST_SIGNED_TWICE", 1000)
    build, arguments = CASES["constants in a loop"]
    with caplog.at_level("INFO", "keras_tfm.export.graph.conversion"):
        export_tflite(randomize(build(), 0), new_path(), **arguments)
    assert "converting again" in caplog.text


def test_weights_that_cannot_be_placed_are_converted(monkeypatch, caplog):
    monkeypatch.setattr(stand_ins, "SMALLEST", 1000)
    model = randomize(parts(), 0)
    with caplog.at_level("INFO", "keras_tfm.export.graph.conversion"):
        export_tflite(model, new_path())
    (message,) = [x.message for x in caplog.records if "converting again" in x.message]
    assert message.count("first") == 1 and "inner" not in message


def test_a_layer_with_state_keeps_it(monkeypatch):
    """Variables that a graph changes are read and written as without stand-ins."""

    class Count(keras.layers.Layer):
        def build(self, shape):
            self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, x):
            self.count.assign(self.count + 1.0)
            return x * 1.0

    monkeypatch.setattr(stand_ins, "SMALLEST", 1000)
    x = keras.Input((64,))
    model = keras.Model(x, keras.layers.Dense(64)(Count()(x)))
    scope = stand_ins.StandIns(model)
    with scope.tracing():
        model(np.ones((1, 64), "float32"))
        assert float(model.layers[1].count.value) == 1.0
