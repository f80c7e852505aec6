"""`export_saved_model`: TensorFlow serves it without this library; a failure leaves what was."""

import os
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from small_exports import BOTH, MAX_LENGTH, QUESTIONS, small, small_tokens
from small_models import SOURCES, START, TARGET_SIZE, encoder_decoder, logits_of

from keras_tfm.export import export_saved_model, saved_model
from keras_tfm.layers import MultiHeadSelfAttention


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "model"
    lengths = {"max_length": MAX_LENGTH, "start_id": START, "end_id": 7}
    return export_saved_model(small(seed=6), path, BOTH, **lengths)


@pytest.fixture(scope="module")
def expected():
    tokens = small_tokens(seed=6, end_id=7)
    assert (tokens[:, 1:] == 7).any()  # some rows end
    return tokens


@pytest.fixture(scope="module")
def served(folder):
    return tf.saved_model.load(str(folder))


def test_any_batch_and_length(served, expected):
    generate = served.signatures["generate"]
    np.testing.assert_array_equal(generate(source=tf.constant(QUESTIONS))["tokens"], expected)
    for row in (0, 1):
        longer = np.pad(QUESTIONS[row : row + 1], ((0, 0), (0, 8)))
        tokens = generate(source=tf.constant(longer))["tokens"]
        np.testing.assert_array_equal(tokens, expected[row : row + 1])
    tokens = generate(source=tf.constant(QUESTIONS[1:2, :3]))["tokens"]
    np.testing.assert_array_equal(tokens, expected[1:2])


def test_predict_answers_as_keras(served):
    targets = np.random.default_rng(0).integers(1, TARGET_SIZE, (4, 6)).astype("int32")
    outputs = served.signatures["predict"](source=tf.constant(SOURCES), target=tf.constant(targets))
    # The same operations: only their order may differ, and logits are of order 1.
    expected = logits_of(small(seed=6), SOURCES, targets)
    np.testing.assert_allclose(outputs["output"], expected, rtol=0.0, atol=1e-6)


def test_ids_out_of_range_are_an_error(served):
    with pytest.raises(tf.errors.InvalidArgumentError, match="99 is not in"):
        served.signatures["generate"](source=tf.constant([[3, 99]]))


def test_the_first_signature_is_served_by_default(served, expected):
    assert set(served.signatures) == {*BOTH, "serve", "serving_default"}
    for name in ("serve", "serving_default"):
        tokens = served.signatures[name](source=tf.constant(QUESTIONS))["tokens"]
        np.testing.assert_array_equal(tokens, expected)


def test_graphs_and_weights_are_written_once(folder):
    library = graph_library(folder)
    # Two functions, and a wrapper of three nodes for each of the four names.
    assert len([f for f in library if len(f.node_def) > 250]) == 3  # generate's loop is one
    wrappers = [f for f in library if "signature_wrapper" in f.signature.name]
    assert [len(f.node_def) for f in wrappers] == [3, 3, 3, 3]
    written = tf.train.list_variables(str(folder / "variables" / "variables"))
    sizes = sorted(int(np.prod(shape)) for name, shape in written if "VARIABLE_VALUE" in name)
    assert sizes == sorted(int(np.prod(weight.shape)) for weight in small(seed=6).weights)


def graph_library(folder):
    """The functions of a SavedModel."""
    from tensorflow.core.protobuf import saved_model_pb2

    message = saved_model_pb2.SavedModel()
    message.ParseFromString((folder / "saved_model.pb").read_bytes())
    return message.meta_graphs[0].graph_def.library.function


def test_tensorflow_alone_serves_it(folder, expected, tmp_path):
    """In a process where neither this library nor Keras can be imported."""
    np.save(tmp_path / "questions.npy", QUESTIONS)
    script = f"""
        import sys
        sys.modules["keras_tfm"] = sys.modules["keras"] = None
        import numpy as np, tensorflow as tf
        served = tf.saved_model.load({str(folder)!r})
        questions = tf.constant(np.load("questions.npy"))
        np.save("tokens.npy", served.signatures["generate"](source=questions)["tokens"])
        source, target = tf.constant([[3, 4]]), tf.constant([[1, 2, 5]])
        np.save("logits.npy", served.signatures["predict"](source=source, target=target)["output"])
        assert sys.modules["keras_tfm"] is sys.modules["keras"] is None
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=120,
    )
    np.testing.assert_array_equal(np.load(tmp_path / "tokens.npy"), expected)
    logits = logits_of(small(seed=6), [[3, 4]], [[1, 2, 5]])
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), logits, rtol=0.0, atol=1e-6)


# Failures


def dense_model(units=3):
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(units)(x), name="dense")


def units_of(path):
    outputs = tf.saved_model.load(str(path)).signatures["predict"](x=tf.zeros((1, 4)))
    return outputs["output"].shape[-1]


@pytest.fixture
def path(tmp_path):
    """Of an earlier model, which is as it was afterwards, with nothing beside it."""
    path = export_saved_model(dense_model(3), tmp_path / "model")
    yield path
    assert list(tmp_path.iterdir()) == [path]
    assert units_of(path) == 3


def test_an_earlier_model_is_replaced(tmp_path):
    path = tmp_path / "model"
    export_saved_model(dense_model(3), path)
    assert export_saved_model(dense_model(5), path) == path
    assert units_of(path) == 5
    assert list(tmp_path.iterdir()) == [path]


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "model").mkdir()
    assert units_of(export_saved_model(dense_model(5), str(tmp_path / "model"))) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"signatures": ["encore"]}, "signatures must be among"),
        ({"signatures": ["decode"]}, "a SavedModel has the signatures 'predict' and 'generate'"),
        ({"signatures": ["generate"]}, "'generate' needs max_length, got None"),
        ({"signatures": ["generate"], "max_length": 5}, "needs a start_id"),
        ({"start_id": 13, "max_length": 5}, r"start_id must be in 0\.\.12, got 13"),
        ({"start_id": 1, "max_length": 5, "end_id": 99}, r"end_id must be in 0\.\.12, got 99"),
    ],
)
def test_bad_arguments(path, options, message):
    with pytest.raises(ValueError, match=message):
        export_saved_model(small(), path, **options)


def test_a_model_that_cannot_be_stepped(path):
    def head(x):
        x = MultiHeadSelfAttention(num_heads=2, head_dim=3, name="mixer")(x)
        return layers.Dense(TARGET_SIZE)(x)

    with pytest.raises(ValueError, match=r"small cannot be stepped: .* layer 'mixer'"):
        export_saved_model(encoder_decoder(head=head), path, max_length=5, start_id=1)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails(path, monkeypatch, error):
    def fail(model, signatures, target, *_):
        target.mkdir()
        (target / "saved_model.pb").write_bytes(b"half")
        raise error

    monkeypatch.setattr(saved_model, "write_saved_model", fail)
    with pytest.raises(type(error)):
        export_saved_model(dense_model(5), path)


def test_a_full_disk_is_an_os_error(path, monkeypatch):
    def save(*arguments, **options):
        reason = "{{function_node a}} /tmp/b; No space left on device [Op:SaveV2]"
        raise tf.errors.ResourceExhaustedError(None, None, reason)

    monkeypatch.setattr(tf.saved_model, "save", save)
    with pytest.raises(OSError, match=r"cannot write .*: /tmp/b; No space left on device$"):
        export_saved_model(dense_model(5), path)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rename_that_fails(path, monkeypatch, failing):
    """The earlier model is moved away, then the new one to its place."""
    rename, calls = os.replace, []

    def replace(*arguments):
        calls.append(arguments)
        if len(calls) == failing + 1:
            raise OSError(5, "Input/output error")
        rename(*arguments)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="Input/output error"):
        export_saved_model(dense_model(5), path)
    monkeypatch.undo()


def test_what_is_no_saved_model_is_left_alone(tmp_path):
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    file.write_text("as many")
    for path in (folder, file):
        with pytest.raises(FileExistsError, match=f"{path.name}: .* is not a SavedModel"):
            export_saved_model(dense_model(), path)
    assert (folder / "thesis.txt").read_text() == "years of work"
    assert file.read_text() == "as many"
    assert sorted(tmp_path.iterdir()) == [file, folder]


def test_a_parent_that_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cannot write .*: there is no folder .*missing"):
        export_saved_model(dense_model(), tmp_path / "missing" / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_writable(path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # as `chmod a-w`, which root overrides
    with pytest.raises(PermissionError, match="is not writable"):
        export_saved_model(dense_model(5), path)
