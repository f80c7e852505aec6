"""`export_tflite`: the file answers as the model does, holds what it should, or is not there."""

import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from compare import assert_close, to_numpy
from grids import first_of
from keras import layers
from small_exports import (
    BOTH,
    MAX_LENGTH,
    QUESTIONS,
    SOURCE_LENGTH,
    real,
    real_file,
    small,
    small_file,
    small_tokens,
)
from small_models import (
    SOURCE_SIZE,
    SOURCES,
    START,
    TARGET_SIZE,
    encoder_decoder,
    logits_of,
    telling_end,
    unpadded,
)

from keras_tfm import runtime
from keras_tfm.export import export_tflite, verify
from keras_tfm.export.graph import conversion
from keras_tfm.layers import MultiHeadSelfAttention, TokenEmbedding, TransformerDecoderBlock
from keras_tfm.models import transformer, with_dtype
from keras_tfm.runtime.manifest import storage as manifests

# Issue 2: TFLite float32 within 1e-5 of Keras. Logits here are of order 1.
LOGITS = 1e-5
POST_NORM = {"num_layers": 2}
PRE_NORM = {"normalize_first": True}
ENDING = {"seed": 6, "end_id": 7}
LENGTHS = {"source_length": SOURCE_LENGTH, "max_length": MAX_LENGTH, "start_id": START}


# What it answers


@pytest.mark.default
@pytest.mark.parametrize(
    ("options", "signatures"),
    first_of(
        {
            "post_norm": (POST_NORM, BOTH),
            "ending": (ENDING, ("generate",)),
            "pre_norm": (PRE_NORM, ("generate",)),
        },
        count=2,
    ),
)
def test_generate_answers_as_keras(options, signatures):
    expected = small_tokens(**options)
    assert len({tuple(row) for row in expected.tolist()}) > 5
    batch_size = 2 if options is ENDING else 1
    file = runtime.load(small_file(**options, signatures=signatures, batch_size=batch_size).path)
    tokens = file.generate(QUESTIONS).tokens
    np.testing.assert_array_equal(tokens, expected)
    assert tokens.dtype == np.int32


def test_rows_of_one_call_end_at_different_steps():
    assert telling_end(small_tokens(seed=6)) == ENDING["end_id"]
    report = small_file(**ENDING, signatures=("generate",), batch_size=2)
    assert report.signatures["generate"]["inputs"]["source"]["shape"] == [2, SOURCE_LENGTH]


@pytest.mark.default
def test_predict_answers_as_keras():
    targets = np.random.default_rng(2).integers(1, TARGET_SIZE, (len(SOURCES), MAX_LENGTH))
    targets[1, 4:] = 0
    expected = logits_of(small(**POST_NORM), SOURCES, targets)
    file = runtime.load(small_file(**POST_NORM).path)
    outputs = file.predict({"source": SOURCES, "target": targets})
    assert list(outputs) == ["output"]
    np.testing.assert_allclose(outputs["output"], expected, rtol=0.0, atol=LOGITS)


def test_shorter_inputs_are_padded():
    file = runtime.load(small_file(**POST_NORM).path)
    expected = small_tokens(**POST_NORM)[: len(SOURCES)]
    tokens = file.generate([unpadded(row) for row in SOURCES]).tokens
    np.testing.assert_array_equal(tokens, expected)
    actual = file.predict({"source": [[3, 4, 5]], "target": [[1, 7]]})["output"]
    expected = logits_of(small(**POST_NORM), [[3, 4, 5]], [[1, 7]])
    np.testing.assert_allclose(actual[:, :2], expected, rtol=0.0, atol=LOGITS)


def test_a_model_that_attends_to_padding_refuses_short_ids(tmp_path):
    """Without `mask_zero` the answers would be wrong."""
    source = keras.Input((None,), dtype="int32", name="source")
    x = MultiHeadSelfAttention(num_heads=2, head_dim=3)(TokenEmbedding(SOURCE_SIZE, 7)(source))
    model = keras.Model(source, layers.Dense(3)(x))
    export_tflite(model, tmp_path / "model.tflite", source_length=SOURCE_LENGTH)
    file, whole = runtime.load(tmp_path / "model.tflite"), np.array([[3, 4, 5, 6, 7]])
    actual = file.predict(whole)["output"]
    np.testing.assert_allclose(actual, model(whole), rtol=0.0, atol=LOGITS)
    with pytest.raises(ValueError, match="mask"):
        file.predict([[3, 4, 5]])


def test_any_litert_runs_it():
    """Without the manifest, as a telephone's application does."""
    runner = Interpreter(small_file(**POST_NORM).path).get_signature_runner("generate")
    tokens = runner(source=QUESTIONS[:1])["tokens"]
    np.testing.assert_array_equal(tokens, small_tokens(**POST_NORM)[:1])


def test_int8_is_near_float32():
    """Weights are rounded to 1/254 of a row's largest, activations too: some 1 % in all."""
    rng = np.random.default_rng(4)
    sources = rng.integers(1, 3000, (4, SOURCE_LENGTH))
    targets = rng.integers(1, 3000, (4, MAX_LENGTH))
    expected = np.asarray(real()({"source": sources, "target": targets}), "float64")
    file = runtime.load(real_file("int8", BOTH).path)
    actual = file.predict({"source": sources, "target": targets})["output"]
    error = np.sqrt(np.mean((actual - expected) ** 2) / np.mean(expected**2))
    assert 1e-4 < error < 0.03  # 0.014 measured; below 1e-4 nothing would be quantised


# What it holds


def read(report):
    return schema.Model.GetRootAsModel(Path(report.path).read_bytes(), 0)


def buffer_sizes(report):
    model = read(report)
    return [model.Buffers(i).DataLength() for i in range(model.BuffersLength())]


def test_the_loop_and_the_caches_are_inside():
    graphs = {graph.name: graph.operators for graph in small_file(**POST_NORM).subgraphs}
    assert graphs["generate"]["WHILE"] == 1
    body = graphs["while_body"]
    # Keys and values of two layers, the padding mask that they share, the tokens.
    assert body["DYNAMIC_UPDATE_SLICE"] == 2 * 2 + 1 + 1
    # A decoder layer: fused query-key-value, output; query, output; two of the network. A head.
    assert body["FULLY_CONNECTED"] == 2 * 6 + 1
    assert body["EMBEDDING_LOOKUP"] == 1
    # Outside: an encoder layer's four, and keys and values of a context. No decoder.
    assert graphs["generate"]["FULLY_CONNECTED"] == 2 * 4 + 2 * 2
    assert graphs["generate"]["EMBEDDING_LOOKUP"] == 1


@pytest.mark.parametrize("quantization", ["float32", "int8"])
def test_no_flex_and_no_custom_operators(quantization):
    report = real_file(quantization)
    model = read(report)
    codes = [model.OperatorCodes(i) for i in range(model.OperatorCodesLength())]
    assert codes
    assert all(code.CustomCode() is None for code in codes)
    assert all(code.BuiltinCode() != schema.BuiltinOperator.CUSTOM for code in codes)
    assert report.custom_operators == []


def test_int8_is_a_quarter():
    """Of the weights; with what both files hold besides, some 100 kB, less than 0.30."""
    assert real_file("int8").bytes <= 0.30 * real_file("float32").bytes


@pytest.mark.parametrize(("quantization", "width"), [("float32", 4), ("int8", 1)])
def test_the_tied_table_is_stored_once(quantization, width):
    """It is the source's embedding, the target's and the output's."""
    sizes = buffer_sizes(real_file(quantization))
    assert [size for size in sizes if size >= 3000 * 128] == [3000 * 128 * width]


def test_two_signatures_share_the_weights():
    """Each of four blocks has two kernels of 7 x 17 in its network, and nothing else is so large
    but the kernels of attention, 7 x 22 and less."""
    assert buffer_sizes(small_file(**POST_NORM)).count(7 * 17 * 4) == 4 * 2


def test_two_signatures_share_the_weights_in_int8():
    """The second graph itself is some 100 kB of 1 MB; another table would be 400."""
    sizes = buffer_sizes(real_file("int8", BOTH))
    assert [size for size in sizes if size >= 3000 * 128] == [3000 * 128]
    assert real_file("int8", BOTH).bytes <= 1.15 * real_file("int8").bytes


def test_the_manifest_tells_what_it_is():
    report = small_file(**POST_NORM)
    manifest = manifests.read(report.path).to_json()
    assert manifest["keras"] == keras.__version__
    assert manifest["tensorflow"] == tf.__version__
    assert manifest["quantization"] == "float32"
    assert manifest["signatures"] == report.signatures
    generate, predict = (manifest["signatures"][name] for name in BOTH)
    settings = {"max_length": MAX_LENGTH, "start_id": START, "end_id": None, "pad_id": 0}
    assert generate.items() >= settings.items()
    source = {"shape": [1, SOURCE_LENGTH], "dtype": "int32", "vocabulary_size": SOURCE_SIZE}
    target = {"shape": [1, MAX_LENGTH], "dtype": "int32", "vocabulary_size": TARGET_SIZE}
    assert generate["inputs"]["source"].items() >= source.items()
    assert predict["inputs"]["source"].items() >= source.items()
    assert predict["inputs"]["target"].items() >= target.items()
    assert generate["outputs"] == {"tokens": {"shape": [1, MAX_LENGTH], "dtype": "int32"}}
    logits = {"shape": [1, MAX_LENGTH, TARGET_SIZE], "dtype": "float32"}
    assert predict["outputs"] == {"output": logits}


def test_the_manifest_has_what_the_model_knows_of_itself(tmp_path):
    """What made it, in half precision as well; of a model composed by hand nothing."""
    from keras_tfm.layers import RotaryEmbedding
    from keras_tfm.models import bert, sequence_classifier

    options = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16}
    model = sequence_classifier(bert(11, **options, segments=False), num_classes=3)
    export_tflite(with_dtype(model, "mixed_bfloat16"), tmp_path / "bert.tflite", source_length=5)
    told = runtime.load(tmp_path / "bert.tflite").manifest["model"]
    assert (told["family"], told["head"]["kind"]) == ("bert", "sequence_classifier")
    assert {key: told["arguments"][key] for key in options} == options
    assert told["head"]["arguments"]["num_classes"] == 3

    # An argument may be a layer: as Keras serializes it.
    model = transformer(11, **options, position=RotaryEmbedding(max_wavelength=500.0))
    export_tflite(model, tmp_path / "rotary.tflite", source_length=5, max_length=4, start_id=1)
    position = runtime.load(tmp_path / "rotary.tflite").manifest["model"]["arguments"]["position"]
    assert keras.saving.deserialize_keras_object(position).max_wavelength == 500.0

    export_tflite(dense_model(), tmp_path / "dense.tflite")
    assert runtime.load(tmp_path / "dense.tflite").manifest["model"] is None


@pytest.mark.parametrize(
    ("everywhere", "dtype"),
    [
        (True, "mixed_float16"),
        pytest.param(False, "mixed_bfloat16", marks=pytest.mark.slow),
        pytest.param(False, "mixed_float16", marks=pytest.mark.slow),
        pytest.param(True, "mixed_bfloat16", marks=pytest.mark.slow),
    ],
)
def test_mixed_precision_is_exported_in_float32(tmp_path, dtype, everywhere):
    """Trained on an accelerator, shipped to a telephone: the weights are float32's."""
    before = keras.config.dtype_policy()
    if everywhere:
        keras.config.set_dtype_policy(dtype)
    try:
        model = encoder_decoder(dtype=None if everywhere else dtype)
        report = export_tflite(model, tmp_path / "model.tflite", **LENGTHS)
        assert verify(model, report.path).checks[0].relative_error < 1e-4
    finally:
        keras.config.set_dtype_policy(before)
    tokens = runtime.load(report.path).generate(QUESTIONS).tokens
    np.testing.assert_array_equal(tokens, small_tokens())
    assert model.get_layer("head").compute_dtype == dtype.removeprefix("mixed_")
    names = set(encoder_decoder().get_layer("encoder_0").path.split("/"))
    assert names & {path.split("/")[0] for path in report.layers}


@pytest.mark.default
def test_export_leaves_training_alone(tmp_path):
    """A step, an export, a step: the weights of two steps."""
    rng = np.random.default_rng(5)
    sources = rng.integers(1, SOURCE_SIZE, (7, 5))
    targets = rng.integers(1, TARGET_SIZE, (7, 4))

    def two_steps(between):
        keras.utils.set_random_seed(3)
        model = encoder_decoder()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, run_eagerly=True)
        inputs = {"source": sources, "target": targets[:, :-1]}
        model.fit(inputs, targets[:, 1:], verbose=0)
        before = model.get_weights()
        between(model)
        for weight, expected in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(weight, expected)
        model.fit(inputs, targets[:, 1:], verbose=0)
        return model.get_weights()

    path = tmp_path / "model.tflite"
    exported = two_steps(lambda model: export_tflite(model, path, **LENGTHS))
    for weight, expected in zip(exported, two_steps(lambda model: None), strict=True):
        # Sums may be taken in another order from run to run.
        np.testing.assert_allclose(weight, expected, rtol=0.0, atol=1e-6)


# Models of other kinds


def dense_model():
    """The smallest to convert: half a second."""
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(3)(x), name="dense")


def test_a_model_without_tokens(tmp_path):
    model = dense_model()
    report = export_tflite(model, tmp_path / "model.tflite")
    assert list(report.signatures) == ["predict"]
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    actual = runtime.load(report.path).predict(x)["output"]
    np.testing.assert_allclose(actual, model(x), rtol=0.0, atol=LOGITS)


@pytest.mark.parametrize(
    ("outputs", "names"),
    [
        (lambda a, b: {"a": a, "b": b}, ["a", "b"]),
        (lambda a, b: {"b": b, "a": a}, ["a", "b"]),
        (lambda a, b: [a, b], ["one", "two"]),
    ],
)
def test_several_outputs_keep_their_names(tmp_path, outputs, names):
    x = keras.Input((4,), name="x")
    a, b = layers.Dense(3, name="one")(x), layers.Dense(5, name="two")(x)
    model = keras.Model(x, outputs(a, b))
    export_tflite(model, tmp_path / "model.tflite")
    row = np.array([[1.0, -2.0, 3.0, 0.5]], "float32")
    actual = runtime.load(tmp_path / "model.tflite").predict(row)
    assert [*actual] == names
    for name, layer in zip(names, ("one", "two"), strict=True):
        assert_close(actual[name], row @ to_numpy(model.get_layer(layer).kernel), 1e-6)


def test_no_output_is_lost(tmp_path):
    """Three outputs of one layer have one name."""
    x, y = keras.Input((4,), name="x"), keras.Input((4,), name="y")
    dense = layers.Dense(3, name="dense")
    model = keras.Model([x, y], [dense(x), dense(y), dense(layers.Add()([x, y]))])
    export_tflite(model, tmp_path / "model.tflite")
    inputs = {"x": np.zeros((1, 4)), "y": np.ones((1, 4))}
    assert len(runtime.load(tmp_path / "model.tflite").predict(inputs)) == 3


def test_inputs_in_another_order_than_the_alphabets(tmp_path):
    text = keras.Input((None,), dtype="int32", name="text")
    kind = keras.Input((1,), dtype="int32", name="kind")
    x = layers.Add()([TokenEmbedding(11, 7)(text), TokenEmbedding(5, 7)(kind)])
    model = keras.Model({"text": text, "kind": kind}, layers.Dense(3)(x))
    report = export_tflite(model, tmp_path / "model.tflite", source_length=4)
    inputs = report.signatures["predict"]["inputs"]
    assert (inputs["text"]["shape"], inputs["text"]["vocabulary_size"]) == ([1, 4], 11)
    assert (inputs["kind"]["shape"], inputs["kind"]["vocabulary_size"]) == ([1, 1], 5)
    arrays = {"text": np.array([[10, 9, 8, 7]]), "kind": np.array([[4]])}
    actual = runtime.load(report.path).predict(arrays)["output"]
    np.testing.assert_allclose(actual, model(arrays), rtol=0.0, atol=LOGITS)


@pytest.mark.parametrize("name", ["source-ids", "source.ids", "_source", "source ids", "quelle_ä"])
def test_any_name_of_an_input_is_kept(tmp_path, name):
    x = keras.Input((4,), name=name)
    model = keras.Model(x, layers.Dense(3)(x))
    report = export_tflite(model, tmp_path / "model.tflite")
    actual = runtime.load(report.path).predict({name: np.ones((1, 4), "float32")})["output"]
    np.testing.assert_allclose(actual, model(np.ones((1, 4))), rtol=0.0, atol=LOGITS)


# What is refused, and what is left then: nothing


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Of an earlier export, which is as it was afterwards; no temporary file is left anywhere."""
    path = tmp_path / "out" / "model.tflite"
    path.parent.mkdir()
    earlier = Path(small_file().path).read_bytes()
    path.write_bytes(earlier)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    yield path
    monkeypatch.undo()
    assert list(path.parent.iterdir()) == [path]
    assert path.read_bytes() == earlier
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"quantization": "int5"},
            r"quantization must be one of \['float32', 'float16', .*\], got 'int5'",
        ),
        ({"source_length": None}, r"input 'source' has shape .* give source_length"),
        ({"source_length": 0}, r"source_length must be at least 1, got 0"),
        ({"max_length": None}, r"'generate' needs max_length, got None"),
        ({"max_length": 1}, r"max_length must be at least 2"),
        ({"start_id": None, "signatures": ["generate"]}, r"needs a start_id"),
        ({"start_id": 13}, r"start_id must be in 0\.\.12, got 13"),
        ({"start_id": -1}, r"start_id must be in 0\.\.12, got -1"),
        ({"end_id": 13}, r"end_id must be in 0\.\.12, got 13"),
        ({"batch_size": 0}, r"batch_size must be at least 1, got 0"),
        ({"tolerance": -1}, "tolerance must not be negative, got -1"),
        ({"tolerance": float("nan")}, "tolerance must be finite, got nan"),
        ({"signatures": ["encore"]}, r"signatures must be among .*, got \['encore'\]"),
        ({"signatures": "predict"}, r"signatures must be among .*, got the string 'predict'"),
        ({"signatures": []}, r"signatures must be among"),
        ({"signatures": ["predict", "predict"]}, r"predict"),
        ({"target": "sauce"}, r"no input 'sauce' to step"),
        ({"target": "source"}, r"small cannot be stepped|input 'source'"),
    ],
)
def test_bad_arguments(path, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        export_tflite(small(), path, **{**LENGTHS, **options})
    assert "\n" not in str(caught.value)


def test_pictures_of_any_size(path):
    pictures = keras.Input((None, None, 3), name="pictures")
    model = keras.Model(pictures, keras.layers.GlobalAveragePooling2D()(pictures))
    shape = r"input 'pictures' has shape \(None, None, None, 3\)"
    with pytest.raises(ValueError, match=rf"{shape}: build the model with its sizes"):
        export_tflite(model, path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": None}, "batch_size must be an integer, got None"),
        ({"custom_operators": "yes"}, "custom_operators must be a bool, got 'yes'"),
        ({"tolerance": "x"}, "tolerance must be a number, got 'x'"),
    ],
)
def test_arguments_of_other_types(path, options, message):
    with pytest.raises(TypeError, match=message):
        export_tflite(small(), path, **{**LENGTHS, **options})


def test_nan_in_a_source(tmp_path):
    """The loop in the file has no error: it would write padding."""
    features = keras.Input((3, 4), name="features")
    target = keras.Input((None,), dtype="int32", name="target")
    x = TokenEmbedding(9, 8)(target)
    x = TransformerDecoderBlock(8, 2)(x, layers.Dense(8)(features))
    model = keras.Model({"features": features, "target": target}, layers.Dense(9)(x))
    options = {"max_length": 5, "start_id": 1, "end_id": 2, "verify": False}
    file = runtime.load(export_tflite(model, tmp_path / "x.tflite", ["generate"], **options).path)
    source = np.zeros((1, 3, 4), "float32")
    assert file.generate(source).tokens.shape == (1, 5)
    source[0, 1, 2] = np.nan
    with pytest.raises(ValueError, match="features must be numbers, got NaN"):
        file.generate(source)


def test_a_model_that_cannot_be_stepped(path):
    def head(x):
        x = MultiHeadSelfAttention(num_heads=2, head_dim=3, name="mixer")(x)
        return layers.Dense(TARGET_SIZE)(x)

    with pytest.raises(ValueError, match=r"small cannot be stepped: .* layer 'mixer'"):
        export_tflite(encoder_decoder(head=head), path, **LENGTHS)


def test_a_model_of_its_target_alone(path):
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    model = keras.Model(tokens, layers.Dense(13)(TokenEmbedding(13, 7)(tokens)), name="model")
    with pytest.raises(ValueError, match="model has no input but 'tokens'"):
        export_tflite(model, path, max_length=5, start_id=1)


def test_a_model_that_is_not_functional(path):
    with pytest.raises(TypeError, match=r"expected a functional keras.Model .* got Sequential"):
        export_tflite(keras.Sequential([layers.Dense(3)]), path)


class Text(layers.Layer):
    """Through strings and back, which LiteRT cannot."""

    def call(self, x):
        return tf.strings.to_number(tf.strings.as_string(x))


class Outer(layers.Layer):
    """Has a layer that LiteRT cannot run."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = Text(name="text_2")

    def call(self, x):
        return 2.0 * self.inner(x)


@pytest.mark.parametrize(("layer", "place"), [(Text(name="t_1"), "t_1"), (Outer(), "outer/text_2")])
def test_an_operator_that_litert_lacks_is_named_with_its_layer(tmp_path, layer, place):
    path = tmp_path / "model.tflite"
    x = keras.Input((4,), name="x")
    model = keras.Model(x, layer(layers.Dense(4)(x)), name="model")
    with pytest.raises(ValueError, match="cannot be converted") as caught:
        export_tflite(model, path)
    assert str(caught.value) == (
        "model cannot be converted: LiteRT has no "
        f"tf.AsString (in {place}), tf.StringToNumber (in {place})"
    )
    assert caught.value.__cause__ is None  # the graph, thousands of characters of it
    assert not path.exists()


def test_an_operator_that_litert_lacks_for_a_dtype_is_named_with_it(tmp_path):
    x = keras.Input((4,), dtype="int32")
    table = np.array([0.0, 0.5, 1.5])  # float64, and Keras keeps it
    model = keras.Model(x, keras.ops.take(table, x), name="model")
    with pytest.raises(ValueError, match=r"LiteRT has no tf\.GatherV2 of float64 \(in model\)$"):
        export_tflite(model, tmp_path / "model.tflite")


class BelowZeros(layers.Layer):
    """Compares truth values with an array of zeros, which the converter makes an operator on truth
    values.
    """

    def call(self, x):
        return keras.ops.cast(x > 2, "int32") < keras.ops.zeros((1, 4), "int32")


def test_an_operator_of_the_wrong_type_is_named_with_its_layer(tmp_path):
    ids = keras.Input((4,), dtype="int32", name="ids")
    model = keras.Model(ids, BelowZeros(name="below")(ids), name="model")
    message = r"model cannot be converted: 'tfl\.zeros_like' op operand .* \(in below\)$"
    with pytest.raises(ValueError, match=message):
        export_tflite(model, tmp_path / "x.tflite")


def test_ids_of_truth_values_are_looked_up(tmp_path):
    """The converter makes `kind < 0` and `0 <= kind` operators on truth values."""
    ids = keras.Input((4,), dtype="int32", name="ids")
    kinds = keras.ops.cast(ids > 2, "int32")
    rows = layers.Embedding(2, 5)(kinds)
    others = layers.Embedding(2, 5)(keras.ops.expand_dims(keras.ops.equal(ids, 3), -1))
    below, above = keras.ops.greater(0, kinds), keras.ops.less_equal(0, kinds)
    signs = keras.ops.stack([kinds < 0, kinds >= 0, below, above], axis=-1)
    results = {"rows": rows, "others": others, "signs": keras.ops.cast(signs, "int32")}
    model = keras.Model(ids, results)
    report = export_tflite(model, tmp_path / "x.tflite")
    inputs = np.array([[0, 2, 3, 7]], "int32")
    found, expected = runtime.load(report.path).predict(inputs), model(inputs)
    for name in results:
        np.testing.assert_array_equal(found[name], expected[name])
    assert found["signs"].tolist() == [[[0, 1, 0, 1]] * 4]


def test_argmax_and_signs_of_zeros(tmp_path):
    """Keras reads the sign's bit, for -0.0 < 0.0, with an operator that LiteRT lacks."""
    path = tmp_path / "model.tflite"
    x = keras.Input((5,), name="x")
    results = {
        "largest": keras.ops.argmax(x, axis=-1),
        "smallest": keras.ops.argmin(x, axis=-1),
        "sign": keras.ops.cast(keras.ops.signbit(x), "int32"),
    }
    report = export_tflite(keras.Model(x, results), path)
    assert report.custom_operators == []
    rows = np.array(
        [[-0.0, 0, -0.0, -1, -2], [0, -0.0, 3, 0, 3], [7, 0, -0.0, np.inf, -np.inf]], "float32"
    )
    found = runtime.load(path).predict(rows)
    assert found["largest"].tolist() == [1, 2, 3]
    assert found["smallest"].tolist() == [4, 1, 4]
    assert found["sign"].tolist() == [[1, 0, 1, 1, 1], [0, 1, 0, 0, 0], [0, 0, 1, 0, 1]]


def test_an_operator_that_litert_lacks_may_be_asked_for(tmp_path):
    path = tmp_path / "model.tflite"
    x = keras.Input((4,), name="x")
    report = export_tflite(keras.Model(x, Text()(x)), path, custom_operators=True)
    assert report.custom_operators == ["FlexAsString", "FlexStringToNumber"]
    assert "FlexAsString" in str(report)
    assert report.verification is None
    assert manifests.read(path).to_json()["signatures"]["predict"]["outputs"] == {
        "output": {"shape": [1, 4], "dtype": "float32"}
    }


@pytest.mark.parametrize("error", [RuntimeError("first line\nsecond line"), KeyboardInterrupt()])
def test_a_converter_that_fails(path, monkeypatch, error):
    class Converter:
        target_spec = SimpleNamespace()

        def convert(self):
            raise error

    monkeypatch.setattr(tf.lite.TFLiteConverter, "from_saved_model", lambda *_, **__: Converter())
    expected = ValueError if isinstance(error, RuntimeError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        export_tflite(dense_model(), path)
    assert str(caught.value) in ("dense cannot be converted: first line", "")


def test_a_report_that_fails(path, monkeypatch):
    """The file is not there before all is done."""

    def fail(*arguments):
        raise RuntimeError("no report")

    monkeypatch.setattr("keras_tfm.runtime.inspection.inspection.inspect_subgraphs", fail)
    with pytest.raises(RuntimeError, match="no report"):
        export_tflite(dense_model(), path)


def test_a_missing_extra_is_named_before_the_work(path, monkeypatch):
    for module in ("ai_edge_litert", "ai_edge_litert.interpreter"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(conversion, "write_saved_model", lambda *_: pytest.fail("work was done"))
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*ai-edge-litert.*extra .edge"):
        export_tflite(dense_model(), path)


def test_a_folder_in_the_way(tmp_path):
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        export_tflite(dense_model(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_parent_that_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*missing"):
        export_tflite(dense_model(), tmp_path / "missing" / "model.tflite")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*file"):
        export_tflite(dense_model(), tmp_path / "file" / "model.tflite")


def test_a_folder_that_is_not_writable(path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # as `chmod a-w`, which root overrides
    with pytest.raises(PermissionError, match=r"cannot write .*: the folder .*out is not writable"):
        export_tflite(dense_model(), path)
