"""A file of another model: the error says how the two differ."""

import keras
import pytest
from keras import layers
from small_exports import new_path, small_file

from keras_tfm.export import export_tflite, verify
from keras_tfm.export.verification.verify import VerificationError, check_pair, other_arguments
from keras_tfm.models import bert, gpt, transformer
from keras_tfm.runtime.loaded_file import LoadedFile

SIZES = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16}


def dense(size=3, name="x", width=4):
    x = keras.Input((width,), name=name)
    return keras.Model(x, layers.Dense(size)(x), name="dense")


@pytest.fixture(scope="module")
def dense_path():
    return export_tflite(dense(), new_path(), verify=False).path


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (dense(name="y"), r"the model has the inputs \['y'\], the file \['x'\]$"),
        (dense(width=5), r"'x' has the shape \(None, 5\) in the model, \(1, 4\) in the file$"),
        (
            dense(size=2),
            r"the model has the outputs {'output': \(None, 2\)}, the file {'output': \(1, 3\)}$",
        ),
    ],
    ids=["name", "shape", "output"],
)
def test_inputs_and_outputs(dense_path, model, message):
    with pytest.raises(ValueError, match=f"^{dense_path} is not an export of dense: {message}"):
        verify(model, dense_path)


def test_vocabularies_and_a_missing_target():
    path = small_file().path
    with pytest.raises(ValueError, match="'source' has 13 ids in the model, 11 in the file"):
        verify(transformer(13, **SIZES), path)
    with pytest.raises(ValueError, match="the model has no input 'source', 'target'"):
        verify(dense(), path)


def test_arguments_of_the_builder():
    model = bert(20, **SIZES)
    path = export_tflite(model, new_path(), source_length=5, verify=False).path
    deeper = bert(20, **{**SIZES, "num_layers": 2})
    with pytest.raises(
        VerificationError, match=r"different arguments: num_layers \(2 in the model, 1 in the file"
    ):
        verify(deeper, path)
    file = LoadedFile(path)
    check_pair(model, file)
    assert other_arguments(model, file) == ""
    assert other_arguments(gpt(20, **SIZES), file) == "the model is a gpt, the file a bert"
    assert other_arguments(dense(), file) == ""  # nothing is known of it


def test_a_layer_whose_shape_is_another_when_it_is_called_is_named():
    """In inference, Keras's `RandomCrop` resizes a batch that `compute_output_shape` crops."""
    x = keras.Input((10, 12, 3), name="x")
    model = keras.Model(x, layers.RandomCrop(6, 6, name="crop")(x), name="cropped")
    message = (
        r"^cropped cannot be compared: layer 'crop' returns the shape \(1, 10, 12, 3\), but when "
        r"the model was built, Keras computed \(None, 6, 6, 3\)$"
    )
    with pytest.raises(ValueError, match=message):
        export_tflite(model, new_path())


def test_an_output_without_rows_is_named():
    x = keras.Input((2, 3), name="x")
    model = keras.Model(x, keras.ops.reshape(x, (-1, 3)), name="flat")
    message = r"^flat cannot be compared: output 'output' has the shape \(2, 3\) for inputs of 1 r"
    with pytest.raises(ValueError, match=message):
        export_tflite(model, new_path())
    total = keras.Model(x, keras.ops.sum(x), name="total")
    message = r"^output 'output' of total has the shape \(\), whose first axis is not that of"
    for checks in (True, False):
        with pytest.raises(ValueError, match=message):
            export_tflite(total, new_path(), verify=checks)


@pytest.mark.parametrize(
    "output", [{"a": [0, 1]}, {"a": {"b": 0}, "c": 1}], ids=["list", "dictionary"]
)
def test_nested_outputs_are_refused_before_conversion(output):
    x = keras.Input((4,), name="x")
    parts = [layers.Dense(2)(x), layers.Dense(3)(x)]
    model = keras.Model(x, keras.tree.map_structure(lambda i: parts[i], output))
    with pytest.raises(ValueError, match="a signature has no nested outputs, but 'a' of") as caught:
        export_tflite(model, new_path())
    assert "\n" not in str(caught.value)
