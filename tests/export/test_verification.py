"""`verify`: a file that answers otherwise is seen, whichever signature it is, and none is left."""

import dataclasses
import functools
import json
from pathlib import Path

import keras
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from blocks import decoder_block
from keras import layers, ops
from small_exports import MAX_LENGTH, SOURCE_LENGTH, new_path, small
from small_models import (
    BLOCK,
    DIM,
    SOURCES,
    START,
    TARGET_SIZE,
    decoder_only,
    embed,
    randomize,
)

from keras_tfm.export import VerificationError, export_tflite, verify
from keras_tfm.export.verification.comparison import ModelOutputs
from keras_tfm.generation import Beam
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.manifest import storage as manifests

LENGTHS = {"source_length": SOURCE_LENGTH, "max_length": MAX_LENGTH, "start_id": START}
ROLES = ["predict", "generate", "encode", "prefill", "decode"]
NAMES = ["predict", "generate", "encode_5", "prefill_3", "decode"]
# What float32 rounds; the library allows 1e-4.
FLOAT32 = 1e-5


@functools.cache
def whole_file():
    """Every role; no source is too short for a prompt."""
    return export_tflite(small(), new_path(), ROLES, **LENGTHS, prompt_length=3)


@functools.cache
def lengths_file():
    """Of several lengths, not yet verified."""
    return export_tflite(
        small(),
        new_path(),
        ["predict", "encode", "prefill", "decode"],
        verify=False,
        **{**LENGTHS, "source_length": [3, 5], "prompt_length": [2, 4]},
    )


def dense_model(units=3, seed=0):
    keras.utils.set_random_seed(seed)
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(units)(x), name="dense")


def wide_model():
    """The smallest that the converter quantises has 1,024 weights."""
    keras.utils.set_random_seed(0)
    x = keras.Input((37,), name="x")
    return keras.Model(x, layers.Dense(41)(x), name="wide")


@functools.cache
def dense():
    model = dense_model()
    return model, export_tflite(model, new_path(), verify=False).path


# What is reported


def test_every_signature_is_verified_before_the_file_is_there():
    verification = whole_file().verification
    assert [x.signature for x in verification.checks] == NAMES
    assert verification.path == whole_file().path
    assert verification.quantization == "float32"
    for check in verification.checks:
        assert check.tolerance == check.graph_tolerance == 1e-4
        assert check.rows >= 2
        assert 0 <= check.relative_error < FLOAT32
        assert 0 <= check.mean_error <= check.max_error < FLOAT32
        assert check.top_1 == 1.0
        assert check.ms > 0
    errors = {x.signature: x.max_error for x in verification.checks}
    assert errors["predict"] > 0  # sums are taken in another order: nothing is compared with itself
    assert errors["decode"] > 0
    assert verification.failures == []


def test_a_table_for_people():
    text = str(whole_file())
    assert str(whole_file().verification) in text
    lines = str(whole_file().verification).splitlines()
    assert [line.split()[0] for line in lines[1:]] == NAMES
    assert lines[0].split()[:5] == ["against", "Keras", "rows", "max", "error"]
    assert all("100.0 %" in line for line in lines[1:])


def test_asdict_is_json():
    verification = whole_file().verification
    content = json.loads(json.dumps(whole_file().asdict()))["verification"]
    assert content == verification.asdict() == dataclasses.asdict(verification)
    assert [x["signature"] for x in content["checks"]] == NAMES


@pytest.mark.slow
def test_every_length_has_its_check():
    verification = verify(small(), lengths_file().path)
    names = ["predict_3", "predict_5", "encode_3", "encode_5", "prefill_2", "prefill_4", "decode"]
    assert [x.signature for x in verification.checks] == names
    assert max(x.relative_error for x in verification.checks) < FLOAT32


def test_verification_may_be_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("keras_tfm.export.tflite.verify_file", lambda *_: pytest.fail("verified"))
    report = export_tflite(dense_model(), tmp_path / "model.tflite", verify=False)
    assert report.verification is None
    assert report.asdict()["verification"] is None


def test_numbers_are_those_of_the_definition():
    """Ones everywhere in Keras, 1.5 of four numbers in eight in the file."""
    x = keras.Input((4,), name="x")
    model = keras.Model(x, layers.Dense(2, kernel_initializer="zeros")(x), name="dense")
    layer = model.layers[-1]
    layer.bias.assign([1.5, 1.0])
    path = export_tflite(model, new_path(), verify=False).path
    layer.bias.assign([1.0, 1.0])
    check = verify(model, path, tolerance=1.0).checks[0]
    assert check.max_error == 0.5
    assert check.mean_error == 0.25
    assert check.relative_error == pytest.approx(0.125**0.5)
    assert check.top_1 == 1.0  # of equal numbers the first one


@pytest.mark.parametrize(("quantization", "coarsest"), [("float16", 0.01), ("int8", 0.2)])
def test_a_tolerance_comes_from_the_rounding_of_the_weights(quantization, coarsest):
    report = export_tflite(wide_model(), new_path(), quantization=quantization)
    (check,) = report.verification.checks
    assert 10 * FLOAT32 < check.relative_error < check.tolerance < coarsest
    assert check.graph_error < FLOAT32
    assert check.graph_tolerance == 1e-4  # each stored number is the model's, rounded


def cancelling_model(quarter=0.25):
    """Large features that nearly cancel: two orders of summation differ by more than 1e-4."""
    x = keras.Input((600,), name="x")
    wide = layers.Dense(64, name="wide")(x)
    model = keras.Model(x, layers.Dense(48, name="out")(wide), name="cancelling")
    rng = np.random.default_rng(0)
    kernel = rng.normal(0, 1, (64, 48))
    offset = np.full(64, 2e2)
    model.get_layer("wide").set_weights([rng.normal(0, 0.02, (600, 64)), offset])
    model.get_layer("out").set_weights([kernel * quarter, -offset @ kernel * quarter])
    return model


@pytest.mark.parametrize("quantization", ["float32", "float16"])
def test_rounding_in_float32_is_not_an_error_of_the_file(quantization):
    model = cancelling_model()
    report = export_tflite(model, new_path(), quantization=quantization, verify=False)
    # Given, because the offset would be read as the mean of raw inputs, which cancel it.
    rows = {"x": np.random.default_rng(1).normal(size=(4, 600)).astype("float32")}
    (check,) = verify(model, report.path, rows).checks
    assert 1e-4 < check.graph_error < check.graph_tolerance <= 1e-3
    with pytest.raises(VerificationError):
        verify(cancelling_model(0.251), report.path, rows)
    if quantization == "float32":
        with pytest.raises(VerificationError, match=r"at most 0\.0001,"):
            verify(model, report.path, rows, tolerance=1e-4)


def network(*sizes, activation=None, seed=0):
    """Dense layers: (inputs, hidden..., outputs)."""
    keras.utils.set_random_seed(seed)
    x = y = keras.Input(sizes[:1], name="x")
    for size in sizes[1:-1]:
        y = layers.Dense(size, activation="relu")(y)
    return keras.Model(x, layers.Dense(sizes[-1], activation=activation)(y), name="network")


REGRESSION, BINARY = (32, 64, 64, 1), (20, 32, 1)


def test_outputs_that_rounding_loses_are_a_warning(tmp_path):
    """The small difference of two almost equal products: 4 bits leave little of it."""
    x = keras.Input((64,), name="x")
    first, second = (layers.Dense(64, use_bias=False) for _ in range(2))
    model = keras.Model(x, first(x) - second(x))
    kernel = np.random.default_rng(0).normal(size=(2, 64, 64)).astype("float32")
    first.set_weights([kernel[0]])
    second.set_weights([kernel[0] + 0.2 * kernel[1]])
    rows = {"x": np.random.default_rng(1).normal(size=(9, 64)).astype("float32")}
    export_tflite(model, tmp_path / "int8.tflite", quantization="int8", verify_inputs=rows)
    with pytest.warns(UserWarning, match=r"int4 changes the outputs of 'predict' by \d\d % of"):
        report = export_tflite(
            model, tmp_path / "int4.tflite", quantization="int4", verify_inputs=rows
        )
    assert 0.5 < report.verification.checks[0].relative_error < 1


@pytest.mark.filterwarnings("ignore:the rounding of")
@pytest.mark.parametrize(
    ("sizes", "activation", "quantization", "seed"),
    [
        (REGRESSION, None, "int8", 44),
        (BINARY, "sigmoid", "int4", 13),
        (REGRESSION, None, "float16", 55),
    ],
    ids=["int8", "int4", "float16"],
)
def test_few_outputs_have_a_tolerance_that_is_no_chance(sizes, activation, quantization, seed):
    """Of one random rounding on two numbers, five times the error was too little."""
    model = network(*sizes, activation=activation, seed=seed)
    (check,) = export_tflite(model, new_path(), quantization=quantization).verification.checks
    assert check.rows == 64
    assert check.relative_error < check.tolerance / 2


@pytest.mark.filterwarnings("ignore:the rounding of")
@pytest.mark.parametrize("weight", [0, 1])
def test_one_wrong_weight_behind_few_outputs_is_noticed(weight):
    model = network(*REGRESSION)
    path = Path(export_tflite(model, new_path(), quantization="int8", verify=False).path)
    manifest, file = manifests.read(path), flatbuffer.read(path.read_bytes())
    file.metadata = []
    rounded = [x.tensor.quantization for x in flatbuffer.weight_uses(file)]
    settings = [x for x in rounded if x is not None and x.scale is not None][weight]
    settings.scale = [1.03 * x for x in settings.scale]
    changed = new_path()
    changed.write_bytes(flatbuffer.write(file, manifest))
    with pytest.raises(VerificationError, match="network: predict: "):
        verify(model, changed)


# What is noticed


def test_a_file_of_another_models_weights():
    other = small(seed=3)
    with pytest.raises(VerificationError, match=r"^the file differs from small: ") as caught:
        verify(other, whole_file().path)
    message, failed = str(caught.value), caught.value.verification.failures
    assert len(failed) == len(NAMES)
    for name, sentence in zip(NAMES, failed, strict=True):
        assert sentence.startswith(f"{name}: expected a relative error of at most 0.0001, got ")
        assert sentence in message
    assert "\n" not in message and "beside other rows" not in message


def tampered(report, graphs):
    """A copy of a file in which some graphs have other biases than the rest."""
    manifest = manifests.read(report.path)
    model = flatbuffer.read(Path(report.path).read_bytes())
    model.metadata = []
    changed = set()
    for graph in model.subgraphs:
        for tensor in graph.tensors if graph.name.decode() in graphs else ():
            data = model.buffers[tensor.buffer].data
            if data is None or len(tensor.shape) != 1 or tensor.type != schema.TensorType.FLOAT32:
                continue
            buffer = schema.BufferT()
            values = np.frombuffer(bytes(data), "float32")
            buffer.data = (values + np.linspace(0.0, 1.0, values.size, dtype="float32")).view(
                "uint8"
            )
            tensor.buffer = len(model.buffers)
            model.buffers.append(buffer)
            changed.add(graph.name.decode())
    assert changed == set(graphs)
    path = new_path()
    path.write_bytes(flatbuffer.write(model, manifest))
    return path


@pytest.mark.parametrize(
    ("graphs", "named"),
    [
        (["predict"], ["predict"]),
        (["while_body"], ["generate"]),
        (["encode_5"], ["encode_5", "prefill_3", "decode"]),
        (["prefill_3"], ["prefill_3"]),
        (["decode"], ["encode_5", "prefill_3", "decode"]),
    ],
)
def test_a_signature_that_is_off_is_named(graphs, named):
    """Caches that are off are seen in the steps that read them."""
    with pytest.raises(VerificationError) as caught:
        verify(small(), tampered(whole_file(), graphs))
    failed = [sentence.split(": expected ")[0] for sentence in caught.value.verification.failures]
    assert failed == named


def test_what_was_not_tampered_with_is_right():
    verify(small(), tampered(whole_file(), []))


def test_of_several_caches_the_one_that_is_off_is_named():
    model = decoder_only(num_layers=1)
    report = export_tflite(model, new_path(), ["decode"], max_length=193)
    assert [x.signature for x in report.verification.checks] == ["decode_128", "decode_193"]
    for x in report.verification.checks:
        assert x.relative_error < FLOAT32
    with pytest.raises(VerificationError, match="from small: decode_193: expected") as caught:
        verify(model, tampered(report, ["decode_193"]))
    assert len(caught.value.verification.failures) == 1


@pytest.mark.parametrize("earlier", [False, True])
def test_beyond_the_tolerance_nothing_is_left(tmp_path, earlier):
    path = tmp_path / "model.tflite"
    if earlier:
        export_tflite(wide_model(), path, verify=False)
        before = path.read_bytes()
    message = r"predict: expected a relative error of at most 1e-06, got 0\.\d+ \(largest"
    with pytest.raises(VerificationError, match=message):
        export_tflite(wide_model(), path, quantization="int8", tolerance=1e-6)
    assert list(tmp_path.iterdir()) == [path] * earlier
    assert not earlier or path.read_bytes() == before


def test_a_model_that_computes_no_numbers_is_refused(tmp_path):
    x = keras.Input((4,), name="x")
    model = keras.Model(x, ops.log(layers.Dense(3, bias_initializer="ones")(x) - 1e3))
    with pytest.raises(VerificationError, match=r"predict: expected .*, got nan"):
        export_tflite(model, tmp_path / "model.tflite")
    assert list(tmp_path.iterdir()) == []


def test_outputs_that_depend_on_the_number_of_rows_are_named(tmp_path):
    """A score for each pair of rows, as of two encoders that were trained to match."""
    pairs = [keras.Input((3,), name=name) for name in ("text", "image")]
    texts, images = (layers.Dense(5)(x) for x in pairs)
    model = keras.Model(pairs, ops.matmul(texts, ops.transpose(images)), name="pairs")
    shapes = r"'output' of pairs has the shape \((\d+), \1\) for \1 rows together, and \(\1, 1\)"
    with pytest.raises(ValueError, match=shapes):
        export_tflite(model, tmp_path / "x.tflite")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("batch_size", [None, 4])
def test_rows_that_depend_on_other_rows_are_named(batch_size, tmp_path):
    """As of a layer that normalises by the batch."""
    x = keras.Input((3,), batch_size=batch_size, name="x")
    centered = keras.Model(x, layers.Dense(2)(x - ops.mean(x, axis=0, keepdims=True)), name="mean")
    with pytest.raises(VerificationError, match="; mean gives a row other outputs beside other"):
        export_tflite(centered, tmp_path / "x.tflite")
    assert list(tmp_path.iterdir()) == []


def test_random_outputs_are_no_dependence_on_other_rows():
    x = keras.Input((3,), name="x")
    noise = layers.Lambda(lambda x: x + keras.random.normal(ops.shape(x)), output_shape=(3,))
    outputs = ModelOutputs(keras.Model(x, noise(x)))
    outputs.of({"x": np.ones((2, 3), "float32")})
    assert not outputs.mixes_rows()


def test_infinities_that_are_the_models_are_right():
    x = keras.Input((4,), name="x")
    model = keras.Model(x, ops.log(layers.ReLU()(x)))  # of 0 where x is negative
    verification = export_tflite(model, new_path()).verification
    assert verification.checks[0].max_error < FLOAT32


# The inputs


def test_rows_that_are_given_are_all_compared():
    rows = np.random.default_rng(0).normal(size=(7, 4)).astype("float32")
    model, path = dense()
    assert verify(model, path, {"x": rows}).checks[0].rows == 7
    assert verify(model, path, {"x": rows.tolist()}).checks[0].rows == 7


def test_rows_that_are_given_are_those_compared():
    """A file that is wrong for one row of seven only."""
    x = keras.Input((4,), name="x")
    dense = layers.Dense(3)
    model = keras.Model(x, dense(layers.ReLU(threshold=5.0)(x)), name="high")
    path = export_tflite(model, new_path(), verify=False).path
    dense.kernel.assign(dense.kernel + 1.0)
    rows = np.zeros((7, 4), "float32")
    verify(model, path, {"x": rows})
    rows[6, 2] = 9.0
    with pytest.raises(VerificationError, match="predict: expected"):
        verify(model, path, {"x": rows})


def test_rows_of_several_lengths_go_where_they_fit():
    rows = [[3, 4, 5, 6, 7], [8, 9, 10], [2]]
    verification = verify(small(), lengths_file().path, {"source": rows})
    counts = {x.signature: x.rows for x in verification.checks}
    assert (counts["predict_3"], counts["predict_5"]) == (2, 3)
    assert max(x.relative_error for x in verification.checks) < FLOAT32


def test_where_no_row_fits_they_are_made():
    verification = verify(small(), lengths_file().path, {"source": SOURCES[:1]})
    counts = {x.signature: x.rows for x in verification.checks}
    assert counts["predict_3"] > counts["predict_5"] == 1


def test_prompts_may_be_given_and_be_shorter():
    inputs = {"source": [[3, 4, 5], [8, 9]], "target": [[1, 7, 12], [5]]}
    verification = verify(small(), whole_file().path, inputs)
    assert {x.signature: x.rows for x in verification.checks} == {
        "predict": 2, "generate": 2, "encode_5": 1, "prefill_3": 1, "decode": 1
    }  # fmt: skip
    assert max(x.relative_error for x in verification.checks) < FLOAT32


def test_texts_that_are_given_are_those_stepped():
    """A file that is wrong for one token of thirteen only."""
    model, other = decoder_only(num_layers=1), decoder_only(num_layers=1)
    path = export_tflite(model, new_path(), ["decode"], max_length=7, verify=False).path
    table = other.get_layer("token_embedding").embeddings
    table.assign(table + 3.0 * np.eye(TARGET_SIZE)[:, [9]])
    verify(other, path, {"tokens": [[3, 5, 4, 1, 2, 6, 7]]})
    with pytest.raises(VerificationError, match="decode: expected"):
        verify(other, path, {"tokens": [[3, 5, 4, 9, 2, 6, 7]]})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"y": [[1.0] * 4]}, r"inputs to verify with must be among .*\['x'\], got \['y'\]"),
        ({"x": [[1.0] * 4], "y": [[1]]}, r"must be among .*\['x'\], got \['x', 'y'\]"),
        ({}, r"must be among .*\['x'\], got \[\]"),
        ({"x": []}, r"the same number of rows, at least one, got \{'x': 0\}"),
        ({"x": [[1.0] * 5]}, r"input 'x' must have rows of shape \(4,\), got \(5,\)"),
        ({"x": [[1.0] * 3]}, r"input 'x' must have rows of shape \(4,\), got \(3,\)"),
        ({"x": [1.0] * 4}, r"input 'x' must have rows of shape \(4,\), got \(\)"),
    ],
)
def test_inputs_that_do_not_fit(inputs, message):
    model, path = dense()
    with pytest.raises(ValueError, match=message) as caught:
        verify(model, path, inputs)
    assert not isinstance(caught.value, VerificationError)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"position": [[0]]}, r"among .*\['source', 'target'\], got \['position'\]"),
        ({"source": [[1] * 6]}, r"'source' must have rows of shape \(5,\) or shorter, got \(6,\)"),
        ({"target": [[1] * 10]}, r"'target' must have rows of shape \(9,\) or shorter, got \(10,"),
        ({"source": [[1], [2]], "target": [[1]]}, r"the same number of rows.*: 2, 'target': 1"),
        ({"source": [[11]]}, r"source: ids must be in 0\.\.10, got 11\.\.11"),
        ({"source": [[1.5]]}, "source must be integer ids, got float64"),
    ],
)
def test_ids_that_do_not_fit(inputs, message):
    with pytest.raises((ValueError, TypeError), match=message):
        verify(small(), lengths_file().path, inputs)


def test_export_takes_them_too(tmp_path):
    path = tmp_path / "model.tflite"
    with pytest.raises(ValueError, match=r"must be among .*\['x'\], got \['y'\]"):
        export_tflite(dense_model(), path, verify_inputs={"y": [[1.0] * 4]})
    assert list(tmp_path.iterdir()) == []
    rows = {"x": np.ones((5, 4))}
    assert export_tflite(dense_model(), path, verify_inputs=rows).verification.checks[0].rows == 5


# Models and strategies of other kinds


def test_a_beam_search():
    model, options = decoder_only(num_layers=1), {"prompt_length": 2, "max_length": 5}
    report = export_tflite(model, new_path(), strategy=Beam(2), **options)
    (check,) = report.verification.checks
    assert check.relative_error < FLOAT32
    assert check.top_1 == 1.0
    with pytest.raises(VerificationError, match="generate: expected"):
        verify(model, report.path, strategy=Beam(2, length_penalty=2.0))


def test_an_end_token_hides_nothing_before_it():
    report = export_tflite(small(seed=6), new_path(), ["generate"], **LENGTHS, end_id=7)
    assert report.verification.checks[0].max_error < FLOAT32
    with pytest.raises(VerificationError, match="generate: expected"):
        verify(small(), report.path)


@pytest.mark.parametrize("end_id", [7, [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]])
def test_a_walk_meets_no_end_token(end_id):
    """Texts at random hold no end: one would stop the walk, and two have the same length."""
    report = export_tflite(small(), new_path(), ["encode", "decode"], **LENGTHS, end_id=end_id)
    for check in report.verification.checks:
        assert check.relative_error < FLOAT32


def styled():
    """A decoder whose every step reads a style (B, 3)."""
    style = keras.Input((3,), name="style")
    target = keras.Input((None,), dtype="int32", name="target")
    x = embed(target, "target", TARGET_SIZE)
    x = x + ops.expand_dims(layers.Dense(DIM)(style), 1)
    x = decoder_block(**BLOCK, cross_attention=False)(x)
    model = keras.Model({"style": style, "target": target}, layers.Dense(TARGET_SIZE)(x))
    return randomize(model, 3)


def test_an_input_that_every_step_reads():
    model = styled()
    options = {"prompt_length": 2, "max_length": 5}
    report = export_tflite(model, new_path(), ["encode", "prefill", "decode"], **options)
    assert max(x.relative_error for x in report.verification.checks) < FLOAT32
    inputs = {"style": [[0.1, -2.0, 0.5]], "target": [[3, 4, 5]]}
    for check in verify(model, report.path, inputs).checks:
        assert check.relative_error < FLOAT32


def test_a_damaged_file_is_no_other_answer(tmp_path):
    model, path = dense()
    content = bytearray(Path(path).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "model.tflite").write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        verify(model, tmp_path / "model.tflite")


def test_several_rows_a_call():
    model = decoder_only(num_layers=1)
    options = {"source_length": 5, "max_length": 5, "batch_size": 3}
    report = export_tflite(model, new_path(), ["predict", "decode"], **options)
    assert [x.rows for x in report.verification.checks] == [6, 6]
    assert verify(model, report.path, {"tokens": [[1, 2]] * 4}).checks[0].rows == 6


def test_logits_over_a_large_vocabulary_do_not_fill_the_memory():
    """Of SmolLM2: 256 tokens, 50 MB of logits a call."""
    from types import SimpleNamespace

    from keras_tfm.export.verification.rows import VerificationRows
    from keras_tfm.runtime.manifest.manifest import Input, Predict, Tensor

    def calls(vocabulary_size):
        tokens = Input(
            shape=[1, 256], dtype="int32", kind="input", padded=False,
            vocabulary_size=vocabulary_size,
        )  # fmt: skip
        output = Tensor(shape=[1, 256, vocabulary_size], dtype="float32")
        signature = Predict(inputs={"x": tokens}, outputs={"output": output})
        return VerificationRows(SimpleNamespace(signatures={"predict": signature}), None).calls(
            "predict"
        )

    assert calls(2) == 2
    assert calls(1000) == 6  # covers the vocabulary
    assert calls(49152) == 5 and 5 * 256 * 49152 < 1 << 26
    assert calls(1 << 20) == 2


@pytest.mark.parametrize(
    ("outputs", "weights", "batch", "expected"),
    [
        (1, 10_000, 1, 64),
        (5, 10_000, 1, 13),
        (5, 10_000, 8, 13),
        (1, 5_000_000, 1, 10),
        (1, 5_000_000, 2, 5),
        (2, 90_000_000, 1, 4),
        (1000, 90_000_000, 1, 2),
    ],
)
def test_rows_of_few_outputs_are_more_as_far_as_the_model_is_small(
    outputs, weights, batch, expected
):
    from types import SimpleNamespace

    from keras_tfm.export.verification.rows import VerificationRows
    from keras_tfm.runtime.manifest.manifest import Input, Predict, Tensor

    x = Input(shape=[batch, 9], dtype="float32", kind="input", padded=False)
    output = Tensor(shape=[1, outputs], dtype="float32")
    signature = Predict(inputs={"x": x}, outputs={"output": output})
    file = SimpleNamespace(signatures={"predict": signature})
    assert VerificationRows(file, None, weights=weights).calls("predict") == expected


def test_rows_of_one_of_several_models():
    models, path = {"narrow": dense_model(), "wide": wide_model()}, new_path()
    export_tflite(models, path, verify=False)
    rows = {"x": np.ones((5, 37), "float32")}
    assert [x.rows for x in verify(models, path, {"wide": rows}).checks][1:] == [5]
    for inputs in ("x", {"x": rows["x"]}, {"third": rows}):
        with pytest.raises(ValueError, match="inputs must be a dictionary by model"):
            verify(models, path, inputs)


def test_a_batch_normalization_in_a_convolution():
    """Its factors are recognised in the rounded weights of the file."""
    rng = np.random.default_rng(0)
    x = keras.Input((9, 9, 16), name="x")
    norm = layers.BatchNormalization(epsilon=1e-2)
    model = keras.Model(x, layers.Flatten()(norm(layers.Conv2D(24, 3, use_bias=False)(x))))
    norm.gamma.assign(rng.normal(1.0, 0.3, 24))
    norm.beta.assign(rng.normal(0.0, 0.5, 24))
    norm.moving_mean.assign(rng.normal(0.0, 0.5, 24))
    norm.moving_variance.assign(rng.uniform(0.01, 0.1, 24))
    (check,) = export_tflite(model, new_path(), quantization="int8").verification.checks
    # A weight that is not recognised adds the error of its own rounding.
    assert check.graph_tolerance == 1e-4 and check.graph_error < FLOAT32
