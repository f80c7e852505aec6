import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from keras import ops
from small_models import SOURCES, START, AddStyle, decoder_only, encoder_decoder

from keras_tfm import layers
from keras_tfm.generation import Generator, SteppedModel
from keras_tfm.layers import DecodingScope

# Float32 rounds at 6e-8; a few layers of sums.
FLOAT32 = 1e-5
TARGET = np.array([[1, 3, 5, 2, 7], [1, 12, 4, 4, 9], [1, 2, 2, 6, 8], [1, 3, 3, 3, 3]], "int32")


class Counting(keras.layers.Layer):
    """Counts its calls: those of values on PyTorch, those that are traced elsewhere."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.calls = 0

    def call(self, inputs):
        self.calls += 1
        return inputs


def counted():
    """An encoder-decoder, and the layers that count the calls of encoder and decoder."""
    of_source, of_target = Counting(name="of_source"), Counting(name="of_target")
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    embedding = layers.TokenEmbedding(13, 8, mask_zero=True)
    context = layers.TransformerEncoderBlock(16, 2)(of_source(embedding(source)))
    x = layers.TransformerDecoderBlock(16, 2)(of_target(embedding(target)), context)
    model = keras.Model({"source": source, "target": target}, keras.layers.Dense(13)(x))
    return model, of_source, of_target


def steps(stepped, inputs, tokens, **options):
    """The outputs of single steps, side by side."""
    encoded, cache, outputs = stepped.encode(inputs), None, []
    for i in range(tokens.shape[1]):
        with DecodingScope(cache, position=i, length=tokens.shape[1]) as scope:
            outputs.append(to_numpy(stepped.step(encoded, tokens[:, i : i + 1], **options)))
        cache = scope.cache
    return np.concatenate(outputs, axis=1)


@pytest.mark.parametrize("normalize_first", [False, True])
def test_steps_are_the_full_pass(normalize_first):
    model = encoder_decoder(normalize_first, num_layers=2)
    whole = to_numpy(model({"source": SOURCES, "target": TARGET}, training=False))
    found = steps(SteppedModel(model), {"source": SOURCES}, TARGET)
    assert_close(found, whole, FLOAT32)


def test_a_model_of_one_input_encodes_nothing():
    stepped = SteppedModel(decoder_only())
    assert stepped.encode({}) == {} and not stepped.encoding


def test_the_encoder_is_called_once_for_a_generation():
    """On PyTorch, which runs as it goes, as well."""
    model, of_source, of_target = counted()
    generator = Generator(model, max_length=7, start_id=START)  # the stepping check calls both
    of_source.calls = of_target.calls = 0
    generator({"source": SOURCES})
    assert of_source.calls == 1
    if keras.backend.backend() == "torch":
        assert of_target.calls == 7  # the first step shows the caches, then six tokens
    else:
        assert of_target.calls >= 2  # what is counted is tracing


def test_nested_models_are_taken_apart():
    """A whole encoder-decoder as one layer of another model."""
    inner, of_source, of_target = counted()
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    outer = keras.Model([source, target], 2.0 * inner({"source": source, "target": target}))
    stepped = SteppedModel(outer)
    assert of_source.name in [call.node.operation.name for call in stepped.encoding]
    assert of_target.name in [call.node.operation.name for call in stepped.stepping]
    whole = to_numpy(outer([SOURCES, TARGET], training=False))
    assert_close(steps(stepped, {"source": SOURCES}, TARGET), whole, FLOAT32)


def test_what_a_step_reads_beside_attention_is_encoded_once():
    """A vector of the source that is added to every token's features."""
    of_source = Counting()
    source = keras.Input((6,), name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    vector = keras.layers.Dense(8)(of_source(source))
    x = layers.TokenEmbedding(13, 8)(target) + ops.expand_dims(vector, 1)
    x = layers.TransformerDecoderBlock(16, 2, cross_attention=False)(x)
    model = keras.Model({"source": source, "target": target}, keras.layers.Dense(13)(x))
    pictures = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
    whole = to_numpy(model({"source": pictures, "target": TARGET}, training=False))
    of_source.calls = 0
    found = steps(SteppedModel(model), {"source": pictures}, TARGET)
    assert_close(found, whole, FLOAT32)
    assert of_source.calls == 1


def test_an_encoded_value_that_is_an_input_has_its_name():
    stepped = SteppedModel(encoder_decoder())
    names = stepped.encode({"source": SOURCES})
    assert names and all(stepped.input_name(name) is None for name in names)
    style = keras.Input((8,), name="style")
    target = keras.Input((None,), dtype="int32", name="target")
    x = AddStyle()(layers.TokenEmbedding(13, 8)(target), style)
    x = layers.TransformerDecoderBlock(16, 2, cross_attention=False)(x)
    stepped = SteppedModel(keras.Model([style, target], keras.layers.Dense(13)(x)))
    (name,) = stepped.encode({"style": np.zeros((1, 8), "float32")})
    assert stepped.input_name(name) == "style"


def test_a_target_that_is_not_there():
    with pytest.raises(ValueError, match=r"no input 'sauce' to step, its inputs are \['source'"):
        SteppedModel(encoder_decoder(), "sauce")


def test_encode_takes_inputs_by_name():
    stepped = SteppedModel(encoder_decoder())
    with pytest.raises(ValueError, match=r"small expects the inputs \['source', 'target'\], got"):
        stepped.encode({})
    expected = stepped.encode({"source": SOURCES})
    with pytest.warns(UserWarning, match="ignored: 'attention_mask'"):
        found = stepped.encode({"attention_mask": SOURCES, "source": SOURCES})
    assert found.keys() == expected.keys()


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "layer"])
def test_probabilities_are_refused(activation):
    ids = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.TokenEmbedding(13, 6)(ids)
    if activation == "layer":
        y = keras.layers.Softmax(name="last")(keras.layers.Dense(13)(x))
    else:
        y = keras.layers.Dense(13, activation=activation, name="last")(x)
    name = "softmax" if activation == "layer" else activation
    message = f"needs a model that returns logits, got probabilities: 'last', .* ends in {name}"
    with pytest.raises(ValueError, match=message):
        SteppedModel(keras.Model(ids, y))


class Halved(keras.Model):
    """A functional model whose own `call` does more than its graph."""

    def __init__(self):
        tokens = keras.Input((None,), dtype="int32", name="tokens")
        super().__init__(tokens, keras.layers.Dense(7)(keras.layers.Embedding(7, 5)(tokens)))

    def call(self, inputs, training=None, mask=None):
        return 0.5 * super().call(inputs, training=training, mask=mask)


def test_a_call_beside_the_graph_is_refused_unless_a_model_calls_it():
    model = Halved()
    with pytest.raises(TypeError, match="Halved has a call method of its own, and the steps"):
        SteppedModel(model)
    x, tokens = keras.Input((None,), dtype="int32"), np.array([[3, 4, 5]], "int32")
    found = steps(SteppedModel(keras.Model(x, model(x))), {}, tokens)
    assert_close(found, to_numpy(model(tokens)), FLOAT32)
