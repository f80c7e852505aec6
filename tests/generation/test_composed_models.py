"""Models that nobody planned for generate as they stand: tokens and scores by full passes."""

import keras
import numpy as np
import pytest
from blocks import decoder_block
from compare import to_numpy
from keras import layers as keras_layers
from small_models import TARGET_SIZE, log_softmax, randomize

from keras_tfm.generation import Beam, Generator, Greedy
from keras_tfm.layers import (
    ConcatenatePrefix,
    MultiHeadCrossAttention,
    PositionalEncoding,
    RemovePrefix,
    RotaryEmbedding,
    TokenEmbedding,
    TransformerEncoderBlock,
)

DIM, START, END, MAX_LENGTH = 6, 1, 3, 8
# Logits of order 1 differ by 1e-6 between a full pass and steps; seven of them add up.
TOLERANCE = 2e-5
rng = np.random.default_rng(5)


def block(**options):
    return decoder_block(11, 2, head_dim=4, **options)


def target(mask_zero=True):
    ids = keras.Input((None,), dtype="int32", name="target")
    return ids, PositionalEncoding()(TokenEmbedding(TARGET_SIZE, DIM, mask_zero=mask_zero)(ids))


def captioner():
    """Image patches as the context."""
    image = keras.Input((8, 8, 3), name="image")
    patches = keras_layers.Conv2D(DIM, 4, strides=4)(keras_layers.Rescaling(0.5)(image))
    patches = TransformerEncoderBlock(7, 2)(keras_layers.Reshape((4, DIM))(patches))
    ids, x = target()
    x = block()(x, patches)
    model = keras.Model({"image": image, "target": ids}, keras_layers.Dense(TARGET_SIZE)(x))
    return model, {"image": rng.normal(size=(3, 8, 8, 3)).astype("float32")}


def prefix_captioner():
    """Image patches before the text, LLaVA's way."""
    image = keras.Input((8, 8, 3), name="image")
    patches = keras_layers.Conv2D(DIM, 4, strides=4)(keras_layers.Rescaling(0.5)(image))
    patches = TransformerEncoderBlock(7, 2)(keras_layers.Reshape((4, DIM))(patches))
    ids, x = target()
    x = ConcatenatePrefix()([patches, x])
    x = block(cross_attention=False, position=RotaryEmbedding())(x)
    x = RemovePrefix()([patches, block(cross_attention=False, window=5)(x)])
    model = keras.Model({"image": image, "target": ids}, keras_layers.Dense(TARGET_SIZE)(x))
    return model, {"image": rng.normal(size=(3, 8, 8, 3)).astype("float32")}


def albert():
    """One block three times: three caches, one set of weights."""
    ids, x = target()
    shared = block(cross_attention=False)
    for _ in range(3):
        x = shared(x)
    return keras.Model(ids, keras_layers.Dense(TARGET_SIZE)(x)), {}


def two_contexts():
    """Attends to a text and to a vector sequence, one after the other."""
    source = keras.Input((None,), dtype="int32", name="source")
    sound = keras.Input((None, 5), name="sound")
    ids, x = target()
    text = TransformerEncoderBlock(7, 2)(TokenEmbedding(9, DIM, mask_zero=True)(source))
    x = block()(x, text)
    x = keras_layers.Add()([x, MultiHeadCrossAttention(2)(x, sound)])
    x = block()(x, text)
    inputs = {"source": source, "sound": sound, "target": ids}
    model = keras.Model(inputs, keras_layers.Dense(TARGET_SIZE)(x))
    arrays = {
        "source": np.array([[3, 4, 5, 0], [8, 2, 0, 0], [1, 1, 1, 1]], "int32"),
        "sound": rng.normal(size=(3, 6, 5)).astype("float32"),
    }
    return model, arrays


def nested():
    """A model of blocks inside a model."""
    inner_input = keras.Input((None, DIM))
    x = block(cross_attention=False, position=RotaryEmbedding())(inner_input)
    inner = keras.Model(inner_input, block(cross_attention=False)(x), name="inner")
    ids, x = target(mask_zero=False)  # Keras's models drop masks, and warn
    return keras.Model(ids, keras_layers.Dense(TARGET_SIZE)(inner(inner(x)))), {}


def keras_s_own():
    """Between the blocks, Keras's layers that leave positions alone."""
    ids = keras.Input((None,), dtype="int32", name="target")
    embedding = keras_layers.ReversibleEmbedding(TARGET_SIZE, DIM)
    x = embedding(ids)
    y = keras_layers.Embedding(TARGET_SIZE, 2)(ids)
    x = keras_layers.Concatenate()([x, y])
    x = keras_layers.Dense(DIM)(keras_layers.Dropout(0.5)(x))
    x = keras_layers.LayerNormalization()(keras_layers.Rescaling(2.0)(x))
    x = block(cross_attention=False, position=RotaryEmbedding())(x)
    gate = keras_layers.Activation("sigmoid")(keras_layers.Dense(DIM)(x))
    x = keras_layers.Multiply()([x, gate])
    return keras.Model(ids, embedding(x, reverse=True)), {}


@pytest.mark.parametrize(
    "strategy",
    [pytest.param(Greedy(), marks=pytest.mark.slow), Beam(3, 0.0)],
    ids=["greedy", "beam"],
)
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(captioner, marks=pytest.mark.slow),
        prefix_captioner,
        albert,
        two_contexts,
        nested,
        pytest.param(keras_s_own, marks=pytest.mark.slow),
    ],
)
def test_a_composed_model_generates(make, strategy):
    model, inputs = make()
    randomize(model, seed=2)
    generator = Generator(model, MAX_LENGTH, START, END, strategy=strategy)
    prompts = [[START], [START, 5], [START, 7, 2]]
    result = generator({**inputs, generator.target: prompts})
    for i, (prompt, tokens) in enumerate(zip(prompts, result.tokens.tolist(), strict=True)):
        assert tokens[: len(prompt)] == prompt
        last = next((j for j in range(len(prompt), MAX_LENGTH) if tokens[j] == END), MAX_LENGTH - 1)
        assert not any(tokens[last + 1 :])
        row = np.array([tokens[: last + 1]], "int32")
        arrays = {name: array[i : i + 1] for name, array in inputs.items()}
        full = model({**arrays, "target": row} if inputs else row, training=False)
        gained = log_softmax(to_numpy(full)[0])
        places = range(len(prompt), last + 1)
        score = sum(gained[j - 1, tokens[j]] for j in places)
        assert abs(result.scores[i] - score) < TOLERANCE
        if isinstance(strategy, Greedy):
            for j in places:
                assert gained[j - 1, tokens[j]] > gained[j - 1].max() - TOLERANCE
    assert len({tuple(tokens) for tokens in result.tokens.tolist()}) > 1
