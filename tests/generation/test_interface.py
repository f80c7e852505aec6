"""The inputs of a model: their names, the one that is stepped, the ids they take."""

import keras
import numpy as np
import pytest
from keras import layers
from small_models import (
    SOURCE_SIZE,
    SOURCES,
    START,
    TARGET_SIZE,
    brute_force,
    encoder_decoder,
    unpadded,
)

from keras_tfm.generation import Generator
from keras_tfm.generation.interface import interface_of
from keras_tfm.layers import (
    SegmentEmbedding,
    TokenEmbedding,
    TransformerDecoderBlock,
)


def vocabulary_sizes(model):
    inputs = interface_of(model).inputs.values()
    return {x.name: x.vocabulary_size for x in inputs if x.vocabulary_size is not None}


STRUCTURES = {
    "dict": dict,
    "dict in another order": lambda inputs: dict(reversed(inputs.items())),
    "list": lambda inputs: list(inputs.values()),
    "list in another order": lambda inputs: list(reversed(inputs.values())),
    "tuple": lambda inputs: tuple(inputs.values()),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(x, marks=[pytest.mark.slow] * (x in ("dict", "list"))) for x in STRUCTURES
    ],
)
def model(request):
    return encoder_decoder(structure=STRUCTURES[request.param])


def test_each_name_has_its_own_vocabulary(model):
    assert vocabulary_sizes(model) == {"source": SOURCE_SIZE, "target": TARGET_SIZE}


def test_each_name_has_its_own_tensor(model):
    inputs = interface_of(model).inputs
    assert all(x.spec.name == name for name, x in inputs.items())
    assert set(inputs) == {"source", "target"}


def test_a_model_generates_whatever_its_structure(model):
    prompt = [START, 12]  # 12 is in the target's vocabulary alone
    expected = brute_force(encoder_decoder(), unpadded(SOURCES[0]), prompt, 5)[0]
    inputs = {"source": SOURCES[:1], "target": [prompt]}
    assert Generator(model, 5)(inputs).tokens.tolist() == [expected]


def test_call_model_takes_names(model):
    inputs = {"target": np.array([[1, 12, 3]]), "source": SOURCES[:1]}
    expected = encoder_decoder()(inputs)
    np.testing.assert_array_equal(interface_of(model).call(inputs), expected)


@pytest.mark.parametrize("structure", [lambda x: x, lambda x: [x], lambda x: {"ids": x}])
def test_a_model_of_one_input(structure):
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = TokenEmbedding(TARGET_SIZE, 7)(ids)
    model = keras.Model(structure(ids), layers.Dense(TARGET_SIZE)(x))
    assert interface_of(model).names == ["ids"]
    assert interface_of(model).find_target() == "ids"
    assert vocabulary_sizes(model) == {"ids": TARGET_SIZE}
    assert Generator(model, 5)(np.array([[3, 4]])).tokens[:, :2].tolist() == [[3, 4]]


def two_inputs(names):
    inputs = [keras.Input((None,), dtype="int32", name=name) for name in names]
    return keras.Model(inputs, layers.Add()([TokenEmbedding(5, 3)(x) for x in inputs]))


def test_the_target_by_default():
    assert interface_of(two_inputs(["source", "target"])).find_target() == "target"
    assert interface_of(two_inputs(["a", "b"])).find_target("b") == "b"
    with pytest.raises(ValueError, match=r"no input 'target' to step, its inputs are \['a', 'b'\]"):
        interface_of(two_inputs(["a", "b"])).find_target()
    with pytest.raises(ValueError, match=r"no input 'c' to step"):
        interface_of(two_inputs(["a", "b"])).find_target("c")


class Subclassed(keras.Model):
    def call(self, x):
        return x


@pytest.mark.parametrize(
    "model", [Subclassed(), keras.Sequential([layers.Dense(3)]), layers.Dense(3), None]
)
def test_only_functional_models(model):
    with pytest.raises(TypeError, match=r"expected a functional keras.Model .* got "):
        interface_of(model)


def test_a_subclassed_model_is_called_in_a_functional_one():
    with pytest.raises(TypeError, match=r"got Subclassed .* give keras\.Model\(x, model\(x\)\) of"):
        interface_of(Subclassed())


def test_an_input_of_strings_is_named():
    words = keras.Input((4,), dtype="string", name="words")
    ids = layers.StringLookup(vocabulary=["a", "b"])(words)
    model = keras.Model(words, layers.Embedding(7, 4)(ids), name="reader")
    message = "^input 'words' of reader takes strings, but exported files and generation take "
    with pytest.raises(TypeError, match=message + "numbers: .* the ids that they return$") as error:
        interface_of(model)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("output", "shape"),
    [
        (lambda x: keras.ops.sum(x), r"\(\)"),
        (lambda x: keras.ops.sum(x, axis=0, keepdims=True), r"\(1, 2\)"),
        (lambda x: keras.ops.transpose(x), r"\(2, None\)"),
    ],
    ids=["number", "sum", "transposed"],
)
def test_an_output_without_rows_is_named(output, shape):
    x = keras.Input((2,), name="x")
    model = keras.Model(x, {"good": x * 2, "bad": output(x)}, name="sums")
    with pytest.raises(ValueError, match=f"^output 'bad' of sums has the shape {shape}, whose"):
        interface_of(model).check_output_rows()


def test_outputs_of_a_fixed_batch_have_its_rows():
    x = keras.Input((2,), batch_size=3, name="x")
    interface_of(keras.Model(x, keras.ops.reshape(x, (3, 1, 2)))).check_output_rows()
    with pytest.raises(ValueError, match=r"output 'output' of .* has the shape \(2, 3\)"):
        interface_of(keras.Model(x, keras.ops.transpose(x))).check_output_rows()


# Vocabularies. What they rest on, `_inbound_nodes`, is not public: these tests guard it.


def ids(name):
    return keras.Input((None,), dtype="int32", name=name)


def test_a_shared_embedding_counts_for_both_inputs():
    source, target, embedding = ids("source"), ids("target"), TokenEmbedding(11, 7)
    x = layers.Add()([embedding(source), embedding(target)])
    model = keras.Model([source, target], embedding(x, reverse=True))
    assert vocabulary_sizes(model) == {"source": 11, "target": 11}


def test_an_embedding_shared_with_another_model_counts_where_it_is_used():
    embedding = TokenEmbedding(11, 7)
    other = ids("other")
    keras.Model(other, embedding(other))
    source = ids("source")
    assert vocabulary_sizes(keras.Model(source, embedding(source))) == {"source": 11}


@pytest.mark.parametrize("sizes", [(11, 5), (5, 11)])
def test_two_embeddings_of_one_input_allow_what_both_have(sizes):
    source = ids("source")
    x = layers.Concatenate()([TokenEmbedding(size, 7)(source) for size in sizes])
    assert vocabulary_sizes(keras.Model(source, x)) == {"source": 5}


def test_keras_embeddings_count():
    source = ids("source")
    assert vocabulary_sizes(keras.Model(source, layers.Embedding(11, 7)(source))) == {"source": 11}


def test_what_is_not_looked_up_has_no_vocabulary():
    source, features = ids("source"), keras.Input((None, 7), name="features")
    x = layers.Add()([TokenEmbedding(11, 7)(source), features])
    assert vocabulary_sizes(keras.Model([source, features], x)) == {"source": 11}


# Keras's own saving makes NumPy arrays of variables.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_model_that_was_saved_and_loaded(tmp_path):
    model = encoder_decoder()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert interface_of(loaded).names == ["source", "target"]
    assert vocabulary_sizes(loaded) == {"source": SOURCE_SIZE, "target": TARGET_SIZE}


def test_segments_of_a_source_have_a_number():
    """Stepping is checked with random ids, which must be segments that exist."""
    names = ("source", "segments", "target")
    ids = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    embedding = TokenEmbedding(11, 8)
    context = SegmentEmbedding(2)(embedding(ids["source"]), ids["segments"])
    x = TransformerDecoderBlock(5, 2)(embedding(ids["target"]), context)
    model = keras.Model(ids, embedding(x, reverse=True))
    assert vocabulary_sizes(model) == {"source": 11, "segments": 2, "target": 11}
    sources = {"source": [[3, 4, 5]], "segments": [[0, 0, 1]]}
    assert Generator(model, 5, start_id=1)(sources).tokens.shape == (1, 5)
    with pytest.raises(ValueError, match=r"segments: ids must be in 0\.\.1, got 0\.\.2"):
        Generator(model, 5, start_id=1)({**sources, "segments": [[0, 1, 2]]})


@pytest.mark.filterwarnings("ignore:.*was passed an input with a mask:UserWarning")
def test_a_nested_model_that_is_called_with_a_mask():
    inner = keras.Input((None, 6))
    inside = keras.Model(inner, layers.MultiHeadAttention(2, 3)(inner, inner))
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    mask = keras.Input((None,), dtype="bool", name="mask")
    x = inside(layers.Embedding(13, 6)(tokens), mask=mask)
    inputs = interface_of(keras.Model([tokens, mask], x)).inputs
    assert [(x.name, x.vocabulary_size) for x in inputs.values()] == [
        ("tokens", 13),
        ("mask", None),
    ]
