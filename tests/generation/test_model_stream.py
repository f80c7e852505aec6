"""A Keras model that reads its source in pieces gives what it gives of the whole."""

import keras
import numpy as np
import pytest
from keras_weights import randomize

from keras_tfm import generation, layers

K = keras.layers
D = 8


def source():
    return keras.Input((None, D), name="readings")


def attention(window, **arguments):
    return layers.MultiHeadSelfAttention(2, window=window, **arguments)


def encoder(x, window, **arguments):
    rotary = layers.RotaryEmbedding()
    return layers.TransformerEncoderBlock(
        11, self_attention=attention(window, position=rotary, **arguments), normalize_first=True
    )(x)


def decoder(x, window):
    return layers.TransformerDecoderBlock(
        11, cross_attention=False, self_attention=attention(window, causal=True)
    )(x)


def strided(x):
    for _ in range(2):
        x = K.Conv1D(D, 5, strides=2, padding="causal", activation="silu")(x)
    return encoder(encoder(x, (5, 3), gate="head"), (3, 2), gate=True)


def frames(x):
    x = K.Conv1D(D, 4, strides=4)(encoder(x, (5, 3)))
    return K.Conv1D(D, 3, padding="same", dilation_rate=2)(x)


def overlapping(x):
    x = encoder(K.Conv1D(D, 5, strides=2)(x), (2, 3))
    return K.MaxPooling1D(2)(x)


def recurrent(x):
    y = K.LSTM(D, return_sequences=True)(encoder(x, (4, 3)))
    return K.GRU(D, return_sequences=True)(K.Add()([y, x]))


def late_causal(x):
    x = K.ZeroPadding1D((4, 0))(encoder(x, (3, 3)))
    return keras.ops.cumsum(K.Conv1D(D, 5)(x), axis=1)


# How each is made, the delay in positions of the source, and the positions for an output.
MODELS = {
    "attention": (lambda x: encoder(encoder(x, (5, 3)), (4, 1)), 2, 1),
    "causal": (lambda x: decoder(x, 3), 0, 1),
    "both sides": (lambda x: attention(4)(x), 3, 1),
    "biases": (
        lambda x: attention((3, 4), position=layers.RelativePositionBias())(x),
        3,
        1,
    ),
    "positions": (lambda x: layers.PositionalEncoding()(encoder(x, (3, 2))), 1, 1),
    "strides": (strided, 12, 4),
    "frames": (frames, 12, 4),
    "overlapping": (overlapping, 8, 4),
    "recurrent": (recurrent, 2, 1),
    "zeros before": (late_causal, 2, 1),
}


def model_of(make):
    x = source()
    return randomize(keras.Model(x, make(x), name="encoder"))


def read(stream, values, sizes):
    """The outputs of a stream that gets values in parts of some sizes in turn."""
    parts, i, turn = [], 0, 0
    while i < len(values):
        size = sizes[turn % len(sizes)]
        parts.append(stream.append(values[i : i + size])["output"])
        i, turn = i + size, turn + 1
    return np.concatenate([*parts, stream.finish()["output"]])


def readings(length, seed=0):
    return np.random.default_rng(seed).normal(size=(length, D)).astype("float32")


@pytest.mark.parametrize("name", MODELS)
def test_pieces_give_what_the_whole_gives(name):
    make, delay, stride = MODELS[name]
    model = model_of(make)
    for piece, length in ((4, 29), (8, 35)) if name == "strides" else ((4, 29),):
        stream = generation.ModelStream(model, piece)
        assert (stream.delay, stride) == (delay, stream.stride)
        values = readings(length)
        whole = np.array(model(values[np.newaxis]))[0]
        found = read(stream, values, (3, 0, 7, 1))
        assert found.shape == whole.shape
        np.testing.assert_allclose(found, whole, atol=1e-5 * max(1, np.abs(whole).max()))


def test_a_reading_at_a_time_is_final_after_the_delay():
    stream = generation.ModelStream(model_of(lambda x: encoder(x, (5, 3))), 1)
    counts = [len(stream.append(readings(1))["output"]) for _ in range(5)]
    assert counts == [0, 0, 1, 1, 1]
    assert stream.length == 5
    assert len(stream.finish()["output"]) == 2


def test_a_source_shorter_than_a_piece():
    model = model_of(strided)
    stream = generation.ModelStream(model, 8)
    values = readings(3)
    assert len(stream.append(values)["output"]) == 0
    whole = np.array(model(values[np.newaxis]))[0]
    np.testing.assert_allclose(stream.finish()["output"], whole, atol=1e-5)


def test_several_outputs_are_equally_late():
    x = source()
    y = encoder(x, (3, 3))
    model = randomize(keras.Model(x, {"late": y, "now": K.Dense(3)(x)}))
    stream = generation.ModelStream(model, 4)
    first = stream.append(readings(8))
    assert {name: len(x) for name, x in first.items()} == {"late": 6, "now": 6}


def test_ids_are_read_in_pieces():
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    model = keras.Model(tokens, decoder(layers.TokenEmbedding(13, D)(tokens), 4))
    stream, ids = generation.ModelStream(model, 2), np.arange(7) % 13
    whole = np.array(model(ids[np.newaxis]))[0]
    np.testing.assert_allclose(read(stream, ids, (3,)), whole, atol=1e-5)
    with pytest.raises(ValueError, match=r"tokens: ids must be in 0..12, got 13..13"):
        generation.ModelStream(model, 2).append([13])


def bidirectional(x):
    return K.Bidirectional(K.LSTM(4, return_sequences=True))(x)


REFUSED = {
    "bidirectional": (bidirectional, 4, "layer 'bidirectional.*' gives another result in pieces"),
    "pooling": (lambda x: K.GlobalAveragePooling1D()(x), 4, "'global_average_pooling.*' gives"),
    "backwards": (
        lambda x: K.GRU(4, return_sequences=True, go_backwards=True)(x),
        4,
        "go_backwards=True reads later tokens first",
    ),
    "last state": (lambda x: K.LSTM(4)(x), 4, "return_sequences=False has one output"),
    "no window": (lambda x: attention(None)(x), 4, r"needs a window, got window=None"),
    "causal": (lambda x: attention(None, causal=True)(x), 4, r"needs a window, got window=None"),
    "Keras": (
        lambda x: K.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True),
        4,
        "multi_head_attention.*: attention to a source that is read in pieces needs a window",
    ),
    "stride": (
        lambda x: K.Conv1D(4, 3, strides=2, padding="causal")(x),
        3,
        "a piece has 3 positions here, which its strides of 2 must divide: give pieces of a "
        "multiple of 2 positions of the source",
    ),
    "same with stride": (
        lambda x: K.Conv1D(4, 3, strides=2, padding="same")(x),
        4,
        "'causal' or 'valid', or 'same' of a Conv1D without strides, got channels_last and 'same'",
    ),
    "mask": (
        lambda x: K.LSTM(4, return_sequences=True)(K.Masking()(x)),
        4,
        "a source that is read in pieces has no padding, got a mask",
    ),
    "table": (lambda x: layers.PositionEmbedding(99)(x), 4, "may be longer than a table"),
    "ends": (
        lambda x: [K.Conv1D(4, 3)(x), x],
        4,
        "outputs: its inputs must end together, got ends that differ by 2 in positions of the "
        "source: convolve with padding 'causal'",
    ),
    "ends, at some lengths": (
        lambda x: [K.Conv1D(4, 2, strides=2, padding=y)(x) for y in ("valid", "causal")],
        4,
        "got ends that differ by 1 in",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_read_in_pieces_is_refused(name):
    make, piece, message = REFUSED[name]
    with pytest.raises(ValueError, match="encoder cannot read its source in pieces: ") as caught:
        generation.ModelStream(model_of(make), piece)
    assert caught.match(message)
    assert "\n" not in str(caught.value)


def test_a_layer_that_one_id_makes_look_at_all_of_the_source_is_refused():
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    found = keras.ops.any(keras.ops.equal(tokens, 990), axis=1, keepdims=True)
    x = layers.TokenEmbedding(1000, D)(tokens) + keras.ops.cast(found, "float32")[..., None]
    with pytest.raises(ValueError, match="cannot read its source in pieces"):
        generation.ModelStream(keras.Model(tokens, decoder(x, 4)), 2)


def test_models_of_another_interface_are_refused():
    x = source()
    for model, message in (
        (keras.Model([x, keras.Input((None, D), name="other")], x * 1), "must have one input, got"),
        (keras.Model(fixed := keras.Input((5, D)), fixed * 1), r"got the shape \(None, 5, 8\)"),
    ):
        with pytest.raises(ValueError, match=message):
            generation.ModelStream(model, 4)
    model = keras.Model(x, K.Dense(2)(x))
    for piece, error in ((0, ValueError), ("4", TypeError), (2.5, TypeError)):
        with pytest.raises(error, match="piece_length must be"):
            generation.ModelStream(model, piece)


def test_values_are_checked():
    stream = generation.ModelStream(model_of(lambda x: K.Dense(3)(x)), 4)
    with pytest.raises(ValueError, match="must have got values, got none"):
        stream.finish()
    for values in (np.ones((4, D - 1)), np.ones(D), 3.0, [[1.0], [2.0, 3.0]]):
        with pytest.raises(ValueError, match=r"readings must have shape \(T, 8\), got \("):
            stream.append(values)
    with pytest.raises(TypeError, match="readings must be numbers, got <U1"):
        stream.append(np.full((4, D), "a"))
    stream.append(readings(5))
    assert len(stream.finish()["output"]) == 1
    for use in (lambda: stream.append(readings(1)), stream.finish):
        with pytest.raises(ValueError, match="the stream has ended: begin another one"):
            use()
