"""A loaded file: what it takes, what it refuses, never a wrong answer in silence."""

import keras
import numpy as np
import pytest
from keras import layers, ops
from small_exports import (
    MAX_LENGTH,
    QUESTIONS,
    SOURCE_LENGTH,
    folder,
    new_path,
    small,
    small_file,
    small_tokens,
)
from small_models import SOURCES, START, TARGET_SIZE, unpadded

from keras_tfm import runtime
from keras_tfm.export import export_tflite
from keras_tfm.layers import TokenEmbedding


@pytest.fixture(scope="module")
def model():
    return runtime.load(small_file(num_layers=2).path)


@pytest.fixture(scope="module")
def expected():
    return small_tokens(num_layers=2)


@pytest.fixture(scope="module")
def pairs():
    """A file that takes two rows a call."""
    return runtime.load(small_file(seed=6, end_id=7, signatures=("generate",), batch_size=2).path)


# What it takes


@pytest.mark.parametrize(
    "inputs",
    [
        [8, 9, 10],
        [[8, 9, 10]],
        ((8, 9, 10),),
        [np.array([8, 9, 10])],
        np.array([8, 9, 10]),
        np.array([[8, 9, 10, 0, 0]], "uint8"),
        np.array([[8, 9, 10]], "int64"),
        np.array([[8, 9, 10]], "uint64"),
        {"source": [[8, 9, 10]]},
    ],
    ids=["row", "rows", "tuple", "arrays", "1-D", "uint8", "int64", "uint64", "by_name"],
)
def test_one_row_in_many_forms(model, expected, inputs):
    tokens = model.generate(inputs).tokens
    np.testing.assert_array_equal(tokens, expected[1:2])
    assert tokens.dtype == np.int32


def test_rows_of_unequal_length(model, expected):
    rows = [unpadded(row) for row in SOURCES]
    assert len({len(row) for row in rows}) > 2
    np.testing.assert_array_equal(model.generate(rows).tokens, expected[: len(rows)])


def test_rows_do_not_see_one_another(model, expected):
    """Caches are made anew each time."""
    for i in (3, 1, 3):
        np.testing.assert_array_equal(model.generate(QUESTIONS[i]).tokens[0], expected[i])


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
def test_any_number_of_rows_with_two_a_call(pairs, rows):
    tokens = pairs.generate(QUESTIONS[:rows]).tokens
    np.testing.assert_array_equal(tokens, small_tokens(seed=6, end_id=7)[:rows])


@pytest.mark.parametrize("threads", [1, 2, np.int64(2)])
def test_threads_change_nothing(expected, threads):
    model = runtime.load(small_file(num_layers=2).path, threads=threads)
    np.testing.assert_array_equal(model.generate(QUESTIONS[:3]).tokens, expected[:3])


def test_inputs_are_left_as_they_are(model):
    array = QUESTIONS[:2].copy()
    model.generate(array)
    np.testing.assert_array_equal(array, QUESTIONS[:2])


def test_results_are_the_callers(model, expected):
    """Not a view of the interpreter's memory, which the next call would change."""
    first = model.generate(QUESTIONS[0]).tokens
    model.generate(QUESTIONS[1])
    np.testing.assert_array_equal(first, expected[:1])
    first[:] = 0
    np.testing.assert_array_equal(model.generate(QUESTIONS[0]).tokens, expected[:1])


def test_an_empty_row_is_padding_alone(model):
    assert model.generate([[]]).tokens.tolist() == model.generate([[0]]).tokens.tolist()


def test_signatures_are_described(model):
    assert model.signatures == model.manifest["signatures"]
    assert model.signatures["generate"]["inputs"]["source"]["shape"] == [1, SOURCE_LENGTH]
    assert model.path.name == small_file(num_layers=2).path.rsplit("/")[-1]


def test_inputs_by_name_in_any_order(model):
    source, target = [[3, 4]], [[1, 2]]
    one = model.predict({"source": source, "target": target})["output"]
    other = model.predict({"target": target, "source": source})["output"]
    assert one.shape == (1, MAX_LENGTH, TARGET_SIZE)
    np.testing.assert_array_equal(one, other)


# What it refuses


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ([[11]], ValueError, r"^source: ids must be in 0\.\.10, got "),
        ([[3, -1]], ValueError, r"^source: ids must be in 0\.\.10, got -1\.\."),
        # 3 in 32 bits
        ([[2**32 + 3]], ValueError, r"^source: ids must be in 0\.\.10, got .*4294967299"),
        (np.array([[2**32 + 3]]), ValueError, r"^source: ids must be in 0\.\.10"),
        (np.array([[-(2**32) + 3]]), ValueError, r"^source: ids must be in 0\.\.10"),
        (np.array([[2**63]], "uint64"), ValueError, r"^source: ids must be in 0\.\.10"),
        ([[1] * 6], ValueError, r"source has 6 ids, but the file was exported for at most 5"),
        ([[1], [1] * 9], ValueError, r"source has 9 ids"),
        ([[3.0]], TypeError, r"source must be integer ids, got float64"),
        ([[3], [4.5]], TypeError, r"source must be integer ids, got float64"),
        ([[True]], TypeError, r"source must be integer ids, got bool"),
        (["drei"], TypeError, r"source must be integer ids, got text"),
        ("drei", TypeError, r"source must be .*ids, got (<U4|str)"),
        ([[None]], TypeError, r"source must be integer ids, got NoneType"),
        (
            [[3, 2**70]],
            TypeError,
            r"source must be integer ids, got 11805.*, which no 64 bits hold",
        ),
        ([[3, None]], TypeError, "source must be integer ids, got NoneType"),
        ([[2**70]], TypeError, r"source must be integer ids, got 11805.*, which no 64 bits hold"),
        ([[1, 2], 3], ValueError, r"^source must have shape \(B, 5\), got a row of \(\)"),
        ([3, [1, 2]], ValueError, r"^source must be an array, got rows of different shapes"),
        ([], ValueError, r"got no rows"),
        (np.zeros((0, 5), "int32"), ValueError, r"got no rows"),
        (np.ones((1, 1, 5), "int32"), ValueError, r"source must have shape \(B, 5"),
        ({"sauce": [[3]]}, ValueError, r"generate takes the inputs \['source'\], got \['sauce'\]"),
        ({}, ValueError, r"generate takes the inputs \['source'\], got \[\]"),
        ({"source": [[3]], "target": [[1]]}, ValueError, r"generate takes the inputs"),
    ],
)
def test_bad_inputs(model, inputs, error, message):
    with pytest.raises(error, match=message) as caught:
        model.generate(inputs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("inputs", [3, None, np.array(3), object()])
def test_no_sequence_at_all(model, inputs):
    with pytest.raises(TypeError, match="source"):
        model.generate(inputs)


def test_it_works_after_an_error(model, expected):
    with pytest.raises(ValueError, match="ids must be"):
        model.generate([[11]])
    np.testing.assert_array_equal(model.generate(QUESTIONS[:1]).tokens, expected[:1])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([[3]], r"predict takes the inputs \['source', 'target'\]: give a dictionary .*, got list"),
        ({"source": [[3], [4]], "target": [[1]]}, r"same number of rows, got .*2.*1"),
        ({"source": [[3]], "target": [[13]]}, r"^target: ids must be in 0\.\.12, got "),
        ({"source": [[3]], "target": [[1] * 10]}, r"target has 10 ids, but .* at most 9"),
    ],
)
def test_bad_inputs_of_two(model, inputs, message):
    with pytest.raises(ValueError, match=message):
        model.predict(inputs)


def test_a_signature_that_is_not_there(pairs):
    with pytest.raises(ValueError, match=r"has no signature 'predict', it has \['generate'\]"):
        pairs.predict(QUESTIONS)


@pytest.mark.parametrize("threads", [0, -1, 1025, 10**6, 2**40])
def test_threads_must_be_in_range(threads):
    """XNNPACK creates every thread: a million of them would end the process."""
    with pytest.raises(ValueError, match=rf"^threads must be in 1\.\.1024, got {threads}$"):
        runtime.load(small_file(num_layers=2).path, threads=threads)


@pytest.mark.parametrize("threads", ["2", 1.5, True, None])
def test_threads_must_be_a_number(threads):
    with pytest.raises(TypeError, match=r"threads must be an integer of at least 1, got"):
        runtime.load(small_file(num_layers=2).path, threads=threads)


def test_a_weight_cache_is_a_folder(tmp_path):
    (tmp_path / "cache").write_text("here")
    with pytest.raises(NotADirectoryError, match="weight_cache must be a folder, got the file"):
        runtime.load(small_file(num_layers=2).path, weight_cache=tmp_path / "cache")


# Prompts


@pytest.fixture(scope="module", params=[START, None], ids=["start", "no start"])
def prompted(request):
    """A file that takes a source and a prompt."""
    path, options = new_path(), {"source_length": SOURCE_LENGTH, "max_length": MAX_LENGTH}
    start = {"start_id": request.param, "prompt_length": 3, "verify": False}
    export_tflite(small(num_layers=2), path, ["generate"], **options, **start)
    return runtime.load(path)


def test_without_a_prompt_the_start_token_begins(prompted, expected):
    if prompted.signatures["generate"]["start_id"] is None:
        with pytest.raises(ValueError, match=r"needs a prompt, 'target': got none and .* start"):
            prompted.generate([[3, 4, 5]])
    else:
        tokens = prompted.generate(QUESTIONS[:3]).tokens
        np.testing.assert_array_equal(tokens, expected[:3])


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ([], ValueError, "got no rows|needs a prompt"),
        ({}, ValueError, r"takes the inputs \['source', 'target'\], got \[\]"),
        ({"x": [[1]]}, ValueError, r"takes the inputs \['source', 'target'\], got \['x'\]"),
        ({"source": [[1]], "target": []}, ValueError, "target: got no rows"),
        ({"source": [[1]], "target": 3}, TypeError, "target must be rows of ids, got int"),
        ({"source": [[1]], "target": None}, TypeError, "target must be rows of ids, got NoneType"),
        ({"source": [[1]], "target": "a"}, TypeError, "target must be rows of ids, got str"),
        ({"source": [[1]], "target": [["a"]]}, TypeError, "target must be integer ids, got text"),
        (
            {"source": [[1]], "target": [[1] * 4]},
            ValueError,
            r"must have 1 to 3 .*got \[4\]",
        ),
        ({"source": [[1]], "target": [[1] * 50]}, ValueError, r"prompt must have 1 to 3 "),
        ({"source": [[1]], "target": [[1], [2]]}, ValueError, "the same number of rows, got"),
    ],
)
def test_bad_prompts(prompted, inputs, error, message):
    with pytest.raises(error, match=message):
        prompted.generate(inputs)


# Inputs of other kinds


class Cast(layers.Layer):
    """To float32, with no mask."""

    def call(self, x):
        return ops.cast(x, "float32")


def exported(model):
    path = folder() / f"{model.name}.tflite"
    export_tflite(model, path, source_length=SOURCE_LENGTH, verify=False)
    return runtime.load(path)


@pytest.fixture(scope="module")
def mean():
    """Of features (B, S, 3), over the positions that a boolean mask keeps."""
    keep = keras.Input((None,), dtype="bool", name="keep")
    x = keras.Input((None, 3), name="x")
    weights = ops.expand_dims(Cast()(keep), -1)
    return exported(keras.Model([keep, x], ops.sum(x * weights, axis=1), name="mean"))


def test_features_and_a_mask(mean):
    x = np.arange(30.0).reshape(2, 5, 3)
    keep = np.array([[True, True, False, False, False], [False, False, False, False, True]])
    actual = mean.predict({"x": x, "keep": keep})["output"]
    np.testing.assert_array_equal(actual, [x[0, :2].sum(axis=0), x[1, 4]])


def test_a_mask_of_floats_is_refused(mean):
    """0 and -1e9 as booleans mean the opposite."""
    inputs = {"x": np.ones((1, 5, 3)), "keep": np.array([[0.0, 0.0, -1e9, -1e9, -1e9]])}
    with pytest.raises(TypeError, match=r"keep.*bool.*float"):
        mean.predict(inputs)


def test_features_are_not_padded(mean):
    """A float of 0 is no padding."""
    keep = np.ones((1, 5), bool)
    with pytest.raises(ValueError, match=r"x must have shape \(B, 5, 3.*got \(1, 4, 3\)"):
        mean.predict({"x": np.ones((1, 4, 3)), "keep": keep})
    with pytest.raises(ValueError, match=r"keep must have shape \(B, 5.*got \(1, 4\)"):
        mean.predict({"x": np.ones((1, 5, 3)), "keep": keep[:, :4]})


def test_features_must_be_numbers(mean):
    with pytest.raises(TypeError, match="x must be numbers, got <U1"):
        mean.predict({"x": [[["a", "b", "c"]] * 5], "keep": np.ones((1, 5), bool)})


def test_an_output_without_rows_is_not_cut():
    """Keras does not know its first axis, so that only a file without a verification has it."""
    x = keras.Input((2, 3), name="x")
    model = keras.Model(x, keras.ops.reshape(x, (-1, 3)), name="flat")
    file = runtime.load(export_tflite(model, new_path(), verify=False).path)
    rows = np.arange(12.0, dtype="float32").reshape(2, 2, 3)
    np.testing.assert_array_equal(file.predict(rows[:1])["output"], rows[0])
    message = r"predict takes 1 rows? at once, got 2: its output 'output' of shape \(2, 3\) has no"
    with pytest.raises(ValueError, match=message):
        file.predict(rows)


def test_a_number_a_row():
    """An input of shape (B,): a style, a speaker."""
    kind = keras.Input((), dtype="int32", name="kind")
    x = keras.Input((3,), name="x")
    weights = layers.Embedding(5, 3, name="table")(kind)
    model = keras.Model([kind, x], layers.Multiply()([weights, x]), name="kinds")
    model.get_layer("table").embeddings.assign(np.arange(15.0).reshape(5, 3))
    file = exported(model)
    actual = file.predict({"kind": [4, 1], "x": np.ones((2, 3))})["output"]
    np.testing.assert_array_equal(actual, [[12, 13, 14], [3, 4, 5]])
    with pytest.raises(ValueError, match=r"kind: ids must be in 0\.\.4, got "):
        file.predict({"kind": [5, 1], "x": np.ones((2, 3))})


@pytest.mark.parametrize("values", [[[1.7, 2.0, 3.0]], [[257, 2, 3]], [[-1, 2, 3]]])
def test_bytes_are_neither_rounded_nor_wrapped(values):
    x = keras.Input((3,), dtype="uint8", name="x")
    file = exported(keras.Model(x, Cast()(x), name="bytes"))
    np.testing.assert_array_equal(file.predict([[255, 2, 3]])["output"], [[255, 2, 3]])
    for inputs in (values, np.array(values)):
        with pytest.raises((TypeError, ValueError), match="x"):
            file.predict(inputs)


def test_a_row_of_fixed_length_is_not_padded():
    """It is no sequence: a model in Keras refuses it, too."""
    x = keras.Input((3,), dtype="int32", name="x")
    file = exported(keras.Model(x, Cast()(x), name="triple"))
    np.testing.assert_array_equal(file.predict([[7, 8, 9]])["output"], [[7, 8, 9]])
    with pytest.raises(ValueError, match=r"x must have shape \(B, 3"):
        file.predict([[7, 8]])


def test_ids_that_only_the_file_knows_are_an_error_too():
    """An embedding inside a nested model is not in the manifest; LiteRT has the last word."""
    inner_ids = keras.Input((None,), dtype="int32")
    inner = keras.Model(inner_ids, TokenEmbedding(11, 7)(inner_ids))
    source = keras.Input((None,), dtype="int32", name="source")
    file = exported(keras.Model(source, inner(source), name="nested"))
    assert file.predict([[10]])["output"].shape == (1, SOURCE_LENGTH, 7)
    for wrong in (11, -1, 10**6, 2**32 + 3):
        with pytest.raises((ValueError, RuntimeError)):
            file.predict([[wrong]])


def test_a_path_is_for_load():
    with pytest.raises(TypeError, match=r"call load\('model.tflite'\)"):
        runtime.Model("model.tflite")
