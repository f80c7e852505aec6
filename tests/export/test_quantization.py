"""The presets: what a file stores, how far it is from Keras, and what is refused."""

import functools
import warnings
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema
from keras import layers
from small_exports import BOTH, folder, new_path
from small_models import randomize

from keras_tfm import runtime
from keras_tfm.export import export_tflite, member
from keras_tfm.export.graph import conversion
from keras_tfm.export.quantization import kept_layers
from keras_tfm.export.quantization import presets as quantization
from keras_tfm.export.signatures.make import make_signatures
from keras_tfm.export.signatures.request import Request
from keras_tfm.generation import generate
from keras_tfm.layers import FeedForward, Mamba2, PositionalEncoding, TokenEmbedding
from keras_tfm.models import transformer
from keras_tfm.runtime import flatbuffer

# The smallest that the converter quantises is 1,024 numbers; four bits come in blocks of 32.
VOCABULARY, DIM, WIDE = 41, 32, 64
LENGTHS = {"source_length": 7, "max_length": 5, "start_id": 1}
TYPES = {code: name for name, code in vars(schema.TensorType).items() if not name.startswith("_")}

# The root of the mean squared error, relative to the logits' own. A weight is rounded, relative to
# the largest of its row, by at most 2^-12 and 1/254; errors are uniform (times 0.58), weights a
# third of the largest, and some ten products in a row add up (times 3): 5 times that, and a margin
# of 3 (measured: 0.0011 and 0.041). Below a tenth of the plain rounding nothing would be quantised.
# int4 is compared with Keras on weights that are rounded in the same way: activations are left.
ERRORS = {
    "float32": (0.0, 1e-5),
    "float16": (2e-5, 2e-3),
    "int8": (4e-4, 0.06),
    "int4": (4e-4, 0.06),
}


@functools.cache
def small():
    """A model whose tokens vary: as it is randomised, it would repeat what it reads."""
    model = transformer(VOCABULARY, dim=DIM, num_layers=1, num_heads=2, intermediate_dim=WIDE)
    for weight in randomize(model, 7).weights:
        if weight.path.endswith(("kernel", "embeddings")):
            weight.assign((2.0 if weight.path.endswith("kernel") else 0.3) * weight)
    return model


@functools.cache
def small_file(preset, keep_float=()):
    """`small` as `export_tflite` writes it; traced once, and converted once in each way."""
    with (
        mock.patch.object(member, "make_signatures", lambda request: made()),
        mock.patch.object(conversion, "write_saved_model"),
        mock.patch.object(conversion, "_rewrite"),  # of what that would have written
        mock.patch.object(tf.lite.TFLiteConverter, "from_saved_model", Once),
    ):
        options = {"end_id": 2, "keep_float": keep_float, "verify": False, **LENGTHS}
        return export_tflite(small(), new_path(), BOTH, preset, **options)


@functools.cache
def made():
    return make_signatures(Request(small(), BOTH, batch_size=1, end_id=2, **LENGTHS))


write_saved_model = conversion.write_saved_model
from_saved_model = tf.lite.TFLiteConverter.from_saved_model


@functools.cache
def saved_model():
    path = folder() / "quantization"
    write_saved_model(small(), made(), path)
    return str(path)


class Once:
    """The converter of `small`."""

    def __init__(self, path, signature_keys):
        self.target_spec, self.optimizations = SimpleNamespace(), []

    def convert(self):
        return converted(tuple(self.optimizations), tuple(self.target_spec.supported_ops))


@functools.cache
def converted(optimizations, supported_ops):
    converter = from_saved_model(saved_model(), signature_keys=list(BOTH))
    converter.optimizations = list(optimizations)
    converter.target_spec.supported_ops = list(supported_ops)
    return converter.convert()


@functools.cache
def questions(rows=8):
    """Inputs and logits of Keras; one source in two is padded."""
    rng = np.random.default_rng(0)
    inputs = {
        "source": rng.integers(1, VOCABULARY, (rows, 7)).astype("int32"),
        "target": rng.integers(1, VOCABULARY, (rows, 5)).astype("int32"),
    }
    inputs["source"][::2, 4:] = 0
    return inputs, np.asarray(small()(inputs), "float64")


def four_bits(rows):
    """A matrix with each 32 numbers of a row rounded to -7 to 7 times their scale, a bfloat16."""
    blocks = rows.reshape(len(rows), -1, 32)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / 7
    scale = scale.astype(ml_dtypes.bfloat16).astype("float32")
    return (np.round(blocks / scale).clip(-7, 7) * scale).reshape(rows.shape)


# The converter multiplies the gamma of a norm into the kernel that follows.
FOLDED = {
    "encoder_0/feed_forward/inner": "encoder_0/self_attention_residual",
    "decoder_0/feed_forward/inner": "decoder_0/cross_attention_residual",
    "decoder_0/cross_attention/query": "decoder_0/self_attention_residual",
    "decoder_0/cross_attention/key": "encoder_0/feed_forward_residual",
    "decoder_0/cross_attention/value": "encoder_0/feed_forward_residual",
}


@functools.cache
def of_rounded_weights():
    """Logits of Keras for `questions`, of `small` with its matrices in four bits."""
    model = keras.models.clone_model(small())
    values = {weight.path: np.asarray(weight) for weight in small().weights}
    for weight in model.weights:
        value = values[weight.path]
        if weight.path.endswith("kernel"):
            norm = FOLDED.get(weight.path.removesuffix("/kernel"))
            gamma = values[f"{norm}/norm/gamma"][:, np.newaxis] if norm else 1.0
            value = four_bits((gamma * value).T).T / gamma
        elif weight.path.endswith("embeddings"):
            value = four_bits(value)
        weight.assign(value)
    return np.asarray(model(questions()[0]), "float64")


def error_of(report):
    inputs, expected = questions()
    return relative_error(runtime.load(report.path).predict(inputs)["output"], expected)


def relative_error(actual, expected):
    return np.sqrt(np.mean((actual - expected) ** 2) / np.mean(np.square(expected)))


def read(report):
    return flatbuffer.read(Path(report.path).read_bytes())


def stored_types(report):
    """What is stored, by graph and shape; through the operator that widens float16."""
    model = read(report)
    widened = {}
    for graph in model.subgraphs:
        for operator in graph.operators:
            source = graph.tensors[operator.inputs[0]]
            if source.name.endswith(b"/half"):
                widened[id(graph.tensors[operator.outputs[0]])] = source
    found = {}
    codes = {"FULLY_CONNECTED", "EMBEDDING_LOOKUP"}
    numbers = {getattr(schema.BuiltinOperator, code) for code in codes}
    for graph in model.subgraphs:
        for operator in graph.operators:
            code = model.operatorCodes[operator.opcodeIndex]
            if max(code.builtinCode, code.deprecatedBuiltinCode) in numbers:
                tensor = graph.tensors[operator.inputs[1]]
                tensor = widened.get(id(tensor), tensor)
                assert model.buffers[tensor.buffer].data is not None
                types = found.setdefault((graph.name.decode(), tuple(tensor.shape)), set())
                types.add(TYPES[tensor.type])
    return found


def table_sizes(report, size):
    """The sizes of buffers that could hold a table of `size` numbers, in bytes."""
    sizes = [0 if b.data is None else len(b.data) for b in read(report).buffers]
    return [n for n in sizes if n in (size // 2, size, 2 * size, 4 * size)]


# What it answers and holds


@pytest.mark.parametrize("preset", ["float32", "float16", "int8", "int4"])
def test_it_is_as_near_to_keras_as_its_weights(preset):
    low, high = ERRORS[preset]
    inputs, expected = questions()
    if preset == "int4":
        expected = of_rounded_weights()
    actual = runtime.load(small_file(preset).path).predict(inputs)["output"]
    assert low <= relative_error(actual, expected) < high
    assert small_file(preset).quantization == preset


def test_weights_of_four_bits_are_stored_exactly():
    """-7 to 7 times a power of two for each 32 numbers of a row: activations alone are rounded."""
    rng = np.random.default_rng(0)

    def weights(rows, columns):
        blocks = rng.integers(-6, 7, (rows, columns // 32, 32)).astype("float32")
        blocks[..., 5] = 7.0 * rng.choice([-1.0, 1.0], blocks.shape[:2])
        return (blocks * 2.0 ** rng.integers(-3, 4, (rows, columns // 32, 1))).reshape(rows, -1)

    ids = keras.Input((6,), dtype="int32", name="ids")
    embedding, dense = TokenEmbedding(VOCABULARY, 64), layers.Dense(37, use_bias=False)
    rows = embedding(ids)
    model = keras.Model(ids, {"rows": rows, "products": dense(rows)})
    embedding.embeddings.assign(weights(VOCABULARY, 64))
    dense.kernel.assign(weights(37, 64).T)
    values = np.arange(36).reshape(6, 6)
    actual = runtime.load(
        export_tflite(model, new_path(), quantization="int4", verify=False).path
    ).predict(values)
    np.testing.assert_array_equal(actual["rows"], model(values)["rows"])
    expected = np.asarray(model(values)["products"], "float64")
    assert relative_error(actual["products"], expected) < 0.01  # 1/254 of a row's largest


@pytest.mark.parametrize("preset", ["float32", "float16", "int8", "int4"])
def test_the_loop_runs(preset):
    inputs, _ = questions()
    tokens = runtime.load(small_file(preset).path).generate(inputs["source"]).tokens
    expected = generate(small(), inputs["source"], 5, 1, 2).tokens
    assert len({tuple(row) for row in expected.tolist()}) > 4
    if preset in ("float32", "float16"):
        np.testing.assert_array_equal(tokens, expected)
    else:  # near ties fall otherwise; by chance one token in 41 would agree
        assert np.mean(tokens[:, 1:] == expected[:, 1:]) > 0.3


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("float32", {"FLOAT32"}),
        ("float16", {"FLOAT16"}),
        ("int8", {"INT8"}),
        ("int4", {"INT4"}),
    ],
)
def test_every_weight_is_stored_as_said(preset, expected):
    types = stored_types(small_file(preset))
    assert {name for name, _ in types} == {"generate", "predict", "while_body"}
    assert set().union(*types.values()) == expected


def test_sizes_are_in_order():
    """Of a file that is mostly graph, the weights' part shrinks by 2, 4 and 7."""
    sizes = [small_file(preset).bytes for preset in ("int4", "int8", "float16", "float32")]
    assert sizes == sorted(set(sizes))
    weights = sum(int(np.prod(w.shape)) for w in small().weights if len(w.shape) == 2)
    saved = [(sizes[-1] - size) / (4 * weights) for size in sizes[:-1]]
    # One scale a row of 32 costs a quarter of what int8 saves on rows as short as these, and the
    # half floats' operators are some kilobytes.
    assert saved[0] > 0.7
    assert saved[1] > 0.45
    assert 0.2 < saved[2] <= 0.5


@pytest.mark.parametrize(
    ("preset", "width"),
    [("float32", 4), ("float16", 2), ("int8", 1), ("int4", 0.5)],
)
def test_the_tied_table_is_stored_once(preset, width):
    """It is the source's embedding, the target's and the output's, in both signatures."""
    assert table_sizes(small_file(preset), VOCABULARY * DIM) == [VOCABULARY * DIM * width]


def test_int8_is_a_quarter_of_a_real_size():
    """Scales and the graph are some 100 kB of 3 MB."""
    ids = keras.Input((5,), dtype="int32", name="ids")
    embedding = TokenEmbedding(8000, 256, scale=True)
    x = FeedForward(512)(PositionalEncoding()(embedding(ids)))
    model = keras.Model(ids, embedding(x, reverse=True))
    reports = [
        export_tflite(model, new_path(), quantization=q, verify=False) for q in ("float32", "int8")
    ]
    assert table_sizes(reports[1], 8000 * 256) == [8000 * 256]
    assert reports[1].bytes <= 0.27 * reports[0].bytes


# Layers that are kept


@pytest.mark.parametrize("preset", ["float16", "int8", "int4"])
def test_kept_layers_are_float32_and_others_are_not(preset):
    """In every graph; a query's kernel is in the file times K^-0.5."""
    kept = ("feed_forward", "decoder_0/cross_attention/query")
    types, plain = stored_types(small_file(preset, kept)), stored_types(small_file(preset))
    assert {name for name, _ in types} == {"generate", "predict", "while_body"}
    assert types.keys() == plain.keys()
    for (name, shape), found in types.items():
        if shape in ((WIDE, DIM), (DIM, WIDE)):
            assert found == {"FLOAT32"}
        elif shape == (DIM, DIM) and name != "generate":  # a query's, and others'
            assert found == {"FLOAT32"} | plain[name, shape]
        else:
            assert found == plain[name, shape]
    assert ERRORS[preset][0] < error_of(small_file(preset, kept)) < error_of(small_file(preset))


@pytest.mark.parametrize("zeros", [0.0, 0.5])
def test_a_weight_is_found_whatever_is_multiplied_into_it(zeros):
    """By a normalisation before the layer, of which a gamma may be 0, and by what follows it."""
    rng = np.random.default_rng(0)
    kernel, other = rng.normal(size=(2, 41, 37)) * (rng.random((2, 41, 37)) > zeros)
    gamma, scale = np.exp(rng.normal(size=(41, 1))), rng.normal(size=37)
    gamma[3] = 0.0
    files = [kernel, kernel.T, gamma * kernel, (gamma * kernel * scale).T, kernel * scale]
    files += [(gamma * kernel * scale)[:, a:b].T for a, b in ((0, 16), (16, 28), (28, 37))]
    files += [(kernel * scale)[:, 7:8].T]
    stored = {i: np.ascontiguousarray(x, "float32") for i, x in enumerate(files)}
    strangers = [other, other.T, gamma * other, kernel[::-1], kernel + 1e-3 * other]
    strangers += [other[:, 5:18].T, (kernel + 1e-3 * other)[:, 5:18].T, kernel[:, [5, 7, 9]].T]
    stored |= {20 + i: np.ascontiguousarray(x, "float32") for i, x in enumerate(strangers)}
    layers_ = {"dense": [kernel.astype("float32")]}
    assert sorted(kept_layers.find_buffers(stored, layers_)) == list(range(len(files)))


@pytest.mark.parametrize("option", ["keep_float", "keep_int8"])
def test_both_halves_of_a_gated_network_are_kept(option, tmp_path):
    """Its kernel is multiplied in two parts, and that of Mamba-2 in three unequal ones."""
    x = keras.Input((5, 64))
    y = FeedForward(96, activation="silu", gated=True, name="gated")(x)
    y = Mamba2(8, 16, 8, name="mamba2")(y)
    model = randomize(keras.Model(x, keras.layers.Dense(160)(y)), seed=0)
    path = tmp_path / "x.tflite"
    names = ["gated/inner", "mamba2/input_projection"]
    export_tflite(model, path, quantization="int4", verify=False, **{option: names})
    types = {}
    for use in flatbuffer.weight_uses(flatbuffer.read(path.read_bytes())):
        types.setdefault(tuple(use.tensor.shape), set()).add(use.tensor.type)
    kept = [types[rows, 64] for rows in (96, 128, 144, 8)]
    assert kept == 4 * [{"keep_float": {0}, "keep_int8": {9}}[option]]
    assert types[64, 96] == types[160, 64] == {17}


@pytest.mark.parametrize("preset", ["float16", "int8", "int4"])
@pytest.mark.slow
def test_with_all_layers_kept_nothing_is_lost(preset):
    report = small_file(preset, ("encoder_0", "decoder_0", "embedding"))
    assert set().union(*stored_types(report).values()) == {"FLOAT32"}
    assert table_sizes(report, VOCABULARY * DIM) == [VOCABULARY * DIM * 4]
    assert error_of(report) < ERRORS["float32"][1]


class Table(layers.Embedding):
    """Keras's own lookup, which becomes a GATHER."""

    @property
    def kernel(self):
        return self.embeddings


@functools.cache
def other_operators():
    """Products, convolutions and lookups that Keras's own layers make."""
    ids = keras.Input((6,), dtype="int32", name="ids")
    x = Table(43, 64, name="table")(ids)
    x = layers.EinsumDense("btd,dhk->bthk", (6, 4, 16), bias_axes="hk", name="heads")(x)
    x = layers.Conv2D(32, 3, padding="same", name="conv")(x)
    x = layers.DepthwiseConv2D(3, padding="same", depth_multiplier=4, name="depthwise")(x)
    x = layers.Reshape((6, 512))(x)
    x = layers.Dense(30, activation="relu", name="wide")(x)
    return randomize(keras.Model(ids, layers.Dense(37, name="narrow")(x), name="others"), 5)


KEPT = ((), ("heads", "conv"), ("table", "depthwise", "wide"))
PRESETS = ("float16", "int8", "int4")


@pytest.mark.parametrize(
    ("preset", "kept"),  # by default each preset and each kept layer once
    [
        pytest.param(PRESETS[i], KEPT[j], marks=[pytest.mark.slow] * (i != (j + 1) % 3))
        for i in range(3)
        for j in range(3)
    ],
)
def test_other_operators(preset, kept):
    model = other_operators()
    report = export_tflite(model, new_path(), quantization=preset, keep_float=kept)
    ids = np.random.default_rng(0).integers(0, 43, (8, 6))
    actual = runtime.load(report.path).predict(ids)["output"]
    low, high = ERRORS[preset]
    if (
        preset == "int4"
    ):  # of float weights: 1/14 of the largest, times 0.58, times 3 (0.12 measured)
        high = 0.25
    assert low <= relative_error(actual, np.asarray(model(ids), "float64")) < high
    stored = flatbuffer.float_weights(read(report))
    sizes = sorted(model.get_layer(name).kernel.numpy().size for name in kept)
    assert sorted(values.size for values in stored.values()) == sizes


# Integers throughout


@functools.cache
def representative(batch_size=2):
    rng = np.random.default_rng(1)
    shape = (24, batch_size)
    sources = rng.integers(1, VOCABULARY, (*shape, 7)).astype("int32")
    sources[::2, :, 4:] = 0
    targets = rng.integers(1, VOCABULARY, (*shape, 5)).astype("int32")
    return [{"source": s, "target": t} for s, t in zip(sources, targets, strict=True)]


@functools.cache
def full_file():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = export_tflite(
            small(),
            new_path(),
            ["predict"],
            "int8_full",
            source_length=7,
            max_length=5,
            batch_size=2,
            representative_data=iter(representative()),
            verify=False,
        )
    return report, [warning for warning in caught if warning.category is UserWarning]


def test_full_int8_is_near_keras():
    """Activations in 256 steps, of a range that rare values widen, and variances among them."""
    report, _ = full_file()
    assert 0.005 < error_of(report) < 0.3


def test_full_int8_computes_in_int8():
    report, _ = full_file()
    model = read(report)
    (graph,) = model.subgraphs
    outputs = [graph.tensors[i].type for operator in graph.operators for i in operator.outputs]
    assert outputs.count(schema.TensorType.INT8) > 0.7 * len(outputs)
    assert set().union(*stored_types(report).values()) == {"INT8"}
    assert table_sizes(report, VOCABULARY * DIM) == [VOCABULARY * DIM]


def test_full_int8_warns_that_it_is_in_pieces():
    report, caught = full_file()
    (warning,) = caught
    assert f"in {report.subgraphs[0].partitions} partitions, in float32 in" in str(warning.message)
    assert warning.filename == __file__


def test_full_int8_needs_a_bounded_mask(monkeypatch):
    """With the mask of float32 the scores that count share one step of 256."""
    bounded = error_of(full_file()[0])
    monkeypatch.setattr(quantization, "_MASKED_IN_8_BITS", -3e4)
    assert error_of(full_file.__wrapped__()[0]) > 1.5 * bounded


def test_arrays_represent_a_model_of_one_input(tmp_path):
    x = keras.Input((33,), name="x")
    model = keras.Model(x, layers.Dense(37)(x))
    data = np.random.default_rng(0).normal(size=(20, 1, 33)).astype("float32")
    path = tmp_path / "model.tflite"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # one product is not in pieces
        export_tflite(model, path, quantization="int8_full", representative_data=data)
    actual = runtime.load(path).predict(data[:, 0])["output"]
    assert 1e-4 < relative_error(actual, np.asarray(model(data[:, 0]), "float64")) < 0.03


# What is refused, before the work


def test_loops_are_not_calibrated(tmp_path):
    """TensorFlow's calibrator would end the process. In a file of several models, too."""
    x = keras.Input((4, 3), name="x")
    dense = keras.Model(x, keras.layers.Dense(2)(x), name="dense")
    recurrent = keras.Model(x, keras.layers.Bidirectional(keras.layers.GRU(2), name="both")(x))
    path, data = tmp_path / "model.tflite", np.zeros((3, 1, 4, 3), "float32")
    cases = [(recurrent, data), ({"a": dense, "b": recurrent}, {"a": data, "b": data})]
    for given, samples in cases:
        with pytest.raises(ValueError, match=r"cannot calibrate While \(in .*both.*\): use 'int8'"):
            export_tflite(given, path, quantization="int8_full", representative_data=samples)
    assert not path.exists()


def one(**changes):
    return [{**representative(1)[0], **changes}]


FULL = {"quantization": "int8_full", "signatures": ["predict"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"quantization": "int16"},
            r"one of \['float32', 'float16', 'int8', 'int8_full', 'int4'\], got 'int16'",
        ),
        ({"quantization": "float32", "keep_float": ["embedding"]}, "keep_float needs quantization"),
        (
            {**FULL, "keep_float": ["embedding"], "representative_data": one()},
            "keep_float needs quantization float16, int8 or int4, got quantization='int8_full'",
        ),
        ({"keep_float": ["embeding"]}, r"no layer 'embeding'; similar names are \['embedding'"),
        ({"keep_float": ["encoder"]}, r"no layer 'encoder'; similar names are .*'encoder_0'"),
        ({"keep_float": ["xyz"]}, r"no layer 'xyz'; it has \['cross_attention'"),
        ({"keep_float": ["norm"]}, "'norm' has no matrix among its weights"),
        (FULL, "needs representative_data: a few hundred inputs"),
        ({"representative_data": one()}, "representative_data is for quantization='int8_full'"),
        (
            {**FULL, "representative_data": []},
            "representative_data must have a few hundred inputs, got none",
        ),
        (
            {**FULL, "signatures": None, "representative_data": one()},
            r"for one signature 'predict', got signatures \['generate'\] of 1 lengths",
        ),
        (
            {**FULL, "source_length": (5, 7), "representative_data": one()},
            r"got signatures \['predict'\] of 2 lengths",
        ),
        ({**FULL, "signatures": BOTH, "representative_data": one()}, "for one signature 'predict'"),
        (
            {**FULL, "representative_data": [np.zeros((1, 7), "int32")]},
            r"representative_data\[0\] must be a dictionary of arrays by input name, "
            r"\['source', 'target'\], got ndarray",
        ),
        (
            {**FULL, "representative_data": [{"source": np.zeros((1, 7), "int32")}]},
            r"\[0\] must have the inputs \['source', 'target'\], got \['source'\]",
        ),
        (
            {**FULL, "representative_data": one(source=np.zeros((2, 7), "int32"))},
            r"\[0\]: source must have shape \(1, 7\), got \(2, 7\)",
        ),
        (
            {**FULL, "representative_data": one() + one(source=np.zeros((1, 7)))},
            r"\[1\]: source must be int32, got float64",
        ),
        (
            {**FULL, "representative_data": one(target=np.full((1, 5), 41))},
            r"target must have ids in 0\.\.40, got 41\.\.41",
        ),
    ],
)
def test_bad_arguments(tmp_path, monkeypatch, options, message):
    monkeypatch.setattr(conversion, "write_saved_model", lambda *_: pytest.fail("work was done"))
    with pytest.raises(ValueError, match=message) as caught:
        export_tflite(
            small(), tmp_path / "model.tflite", **{"quantization": "int8", **LENGTHS, **options}
        )
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def dense_model(kernel=None):
    x = keras.Input((4,), name="x")
    model = keras.Model(x, layers.Dense(3, name="dense")(x), name="small")
    if kernel is not None:
        model.get_layer("dense").kernel.assign(kernel)
    return model


def test_one_string_is_not_taken_for_its_letters(tmp_path):
    with pytest.raises(TypeError, match="a sequence of layer names, got the string 'dense'"):
        export_tflite(
            dense_model(), tmp_path / "model.tflite", quantization="int8", keep_float="dense"
        )


def test_weights_beyond_float16_are_refused_or_kept(tmp_path):
    model, path = dense_model(np.full((4, 3), 1e5)), tmp_path / "model.tflite"
    with pytest.raises(ValueError, match="at most 65504, got a weight of 100000: name"):
        export_tflite(model, path, quantization="float16")
    assert not path.exists()
    export_tflite(model, path, quantization="float16", keep_float=["dense"])
    np.testing.assert_allclose(runtime.load(path).predict(np.ones((1, 4)))["output"], 4e5)
