"""Features before the tokens: concatenation, masks, and steps that equal the full pass."""

import keras
import numpy as np
import pytest
from blocks import head_norms
from compare import assert_close, to_numpy
from small_models import randomize

from keras_tfm import layers
from keras_tfm.layers import ConcatenatePrefix, DecodingScope, RemovePrefix

B, P, T, D, V = 3, 5, 7, 8, 11
rng = np.random.default_rng(41)
PREFIX = rng.normal(size=(B, P, D)).astype("float32")
X = rng.normal(size=(B, T, D)).astype("float32")
IDS = rng.integers(1, V, (B, T)).astype("int32")
POSITIONS = {
    "none": None,
    "rotary": layers.RotaryEmbedding,
    "rotary, queries scaled": lambda: layers.RotaryEmbedding(
        scaling=layers.YaRNScaling(2.0, 3), query_beta=0.9
    ),
    "alibi": layers.ALiBi,
    "t5": lambda: layers.RelativePositionBias(8, 6),
    "shaw": lambda: layers.RelativePositionEmbedding(3),
}


def decoder(position=None, table=False, mask_zero=True, **attention):
    """Two causal blocks over a prefix and tokens, from (B, P, D) and ids (B, T) to (B, T, D)."""
    prefix = keras.Input((P, D), name="prefix")
    ids = keras.Input((None,), dtype="int32", name="target")
    x = layers.TokenEmbedding(V, D, mask_zero=mask_zero)(ids)
    x = ConcatenatePrefix()([prefix, x])
    if table:
        x = layers.PositionEmbedding(P + T)(x)
    for _ in range(2):
        part = layers.MultiHeadSelfAttention(
            2, causal=True, position=position and position(), **attention
        )
        x = layers.TransformerDecoderBlock(
            self_attention=part, feed_forward=layers.FeedForward(13), cross_attention=False
        )(x)
    x = RemovePrefix()([prefix, x])
    return randomize(keras.Model({"prefix": prefix, "target": ids}, x), seed=3)


def stepped(model, prefix, ids, cuts, padding=None, **scope_options):
    """The outputs of steps that end before the columns `cuts`, concatenated."""
    cache, outputs, start = None, [], 0
    for end in cuts:
        with DecodingScope(
            cache, position=start, length=ids.shape[1], padding=padding, **scope_options
        ) as scope:
            outputs.append(to_numpy(model({"prefix": prefix, "target": ids[:, start:end]})))
        cache, start = scope.cache, end
    return np.concatenate(outputs, axis=1), cache


def test_the_prefix_stands_before_the_tokens():
    y = ConcatenatePrefix()([PREFIX, X])
    assert_close(y, np.concatenate([PREFIX, X], 1), 0.0)
    assert_close(RemovePrefix()([PREFIX, y]), X, 0.0)


@pytest.mark.parametrize("masked", ["tokens", "prefix", "both"])
def test_masks_are_concatenated(masked):
    real, real_prefix = np.arange(T) + np.zeros((B, 1)) < 4, np.arange(P) + np.zeros((B, 1)) > 1
    x, prefix = X, PREFIX
    if masked != "prefix":
        x = keras.layers.Masking(99.0)(np.where(real[..., None], X, 99.0))
    if masked != "tokens":
        prefix = keras.layers.Masking(99.0)(np.where(real_prefix[..., None], PREFIX, 99.0))
    y = ConcatenatePrefix()([prefix, x])
    expected = [
        np.ones((B, P), bool) if masked == "tokens" else real_prefix,
        np.ones((B, T), bool) if masked == "prefix" else real,
    ]
    np.testing.assert_array_equal(to_numpy(y._keras_mask), np.concatenate(expected, 1))
    z = RemovePrefix()([prefix, y])
    np.testing.assert_array_equal(to_numpy(z._keras_mask), expected[1])


@pytest.mark.parametrize(
    ("position", "cuts"), [*((name, (1, 2, 4, 5, 7)) for name in POSITIONS), ("rotary", (3, 4, 7))]
)
def test_steps_equal_the_full_pass(position, cuts):
    model = decoder(POSITIONS[position], table=position == "none")
    whole = model({"prefix": PREFIX, "target": IDS})
    steps, cache = stepped(model, PREFIX, IDS, cuts)
    # Activations of order 1: float32 rounds each of two blocks by some 1e-7.
    assert_close(steps, whole, 1e-5)
    assert [entry["key"].shape[2] for entry in cache.values()] == [P + T] * 2


@pytest.mark.parametrize(
    "options",
    [
        {"window": 3},
        {"num_key_value_heads": 1, "mask_zero": False},
        {"position": layers.RotaryEmbedding, **head_norms()},
    ],
    ids=["window", "grouped", "norms"],
)
def test_steps_with_options_of_attention(options):
    model = decoder(**options)
    whole = model({"prefix": PREFIX, "target": IDS})
    for scope_options in ({"xla": True}, {"write_first": True}):
        steps, _ = stepped(model, PREFIX, IDS, (2, 3, 7), **scope_options)
        assert_close(steps, whole, 1e-5)


@pytest.mark.parametrize("position", [*POSITIONS, "rotary, then norms"])
def test_left_padding_stands_before_the_prefix(position):
    """Each row as it is alone: the prefix, then its tokens, without a gap."""
    if position == "rotary, then norms":  # whose scores depend on more than distances
        model = decoder(layers.RotaryEmbedding, rotate_first=True, **head_norms())
    else:
        model = decoder(POSITIONS[position], table=position == "none")
    padding = np.array([0, 4, 2], "int32")
    ids = np.where(np.arange(T) < padding[:, None], 0, IDS)
    steps, _ = stepped(model, PREFIX, ids, (4, 5, 7), padding=padding)
    for row, count in enumerate(padding):
        alone = {"prefix": PREFIX[row : row + 1], "target": ids[row : row + 1, count:]}
        assert_close(steps[row, count:], to_numpy(model(alone))[0], 1e-5)


def test_a_masked_prefix_is_not_seen():
    prefix = keras.layers.Masking(9.0)
    ids = keras.Input((None,), dtype="int32", name="target")
    features = keras.Input((P, D), name="prefix")
    seen = prefix(features)
    x = ConcatenatePrefix()([seen, layers.TokenEmbedding(V, D)(ids)])
    x = layers.MultiHeadSelfAttention(2, causal=True)(x)
    outputs = RemovePrefix()([seen, x])
    model = randomize(keras.Model({"prefix": features, "target": ids}, outputs), seed=5)
    short = np.where(np.arange(P)[:, None] < 3, PREFIX, 9.0)
    steps, _ = stepped(model, short, IDS, (1, 2, 7))
    assert_close(steps, model({"prefix": short, "target": IDS}), 1e-5)
    # The first three vectors alone, by the same weights.
    cut = keras.Input((3, D), name="prefix")
    y = ConcatenatePrefix()([cut, layers.TokenEmbedding(V, D)(ids)])
    y = RemovePrefix()([cut, layers.MultiHeadSelfAttention(2, causal=True)(y)])
    other = keras.Model({"prefix": cut, "target": ids}, y)
    other.set_weights(model.get_weights())
    assert_close(steps, other({"prefix": PREFIX[:, :3], "target": IDS}), 1e-5)


def test_the_prefix_moves_the_tokens():
    model = decoder(layers.RotaryEmbedding)
    first = to_numpy(model({"prefix": PREFIX, "target": IDS}))
    second = to_numpy(model({"prefix": PREFIX[::-1], "target": IDS}))
    assert np.abs(first - second)[0].max() > 0.1


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(B, P, D)], r"expected \[prefix \(B, P, D\), x \(B, T, D\)\], got shapes"),
        ([(B, P), (B, T, D)], r"expected \[prefix \(B, P, D\), x \(B, T, D\)\], got shapes"),
        ([(B, P, 4), (B, T, D)], r"must have the width of the tokens \(8\), got 4: project it"),
    ],
)
@pytest.mark.parametrize("layer", [ConcatenatePrefix, RemovePrefix])
def test_shapes_that_do_not_fit(layer, shapes, message):
    with pytest.raises(ValueError, match=message):
        layer()([np.zeros(shape, "float32") for shape in shapes])


def test_a_sequence_without_the_prefix():
    with pytest.raises(ValueError, match="a sequence of 3 has no prefix of 5"):
        RemovePrefix()([PREFIX, X[:, :3]])
    with (
        DecodingScope(length=T),
        pytest.raises(ValueError, match="a prefix of 5 positions cannot be removed: the sequence"),
    ):
        RemovePrefix()([PREFIX, X])


def test_a_row_without_a_caption_adds_nothing():
    """Only padding: the loss of the other rows, and finite gradients."""
    from keras_tfm.training import LabelSmoothedCrossEntropy

    model = decoder(layers.RotaryEmbedding)
    ids, labels = np.where(np.arange(B)[:, None] == 1, 0, [IDS, np.roll(IDS, -1, 1)])
    loss = LabelSmoothedCrossEntropy(0.1, ignore_class=0)

    def value(rows):
        features = to_numpy(model({"prefix": PREFIX[rows], "target": ids[rows]}))
        return float(loss(labels[rows], np.concatenate([features, -features[..., :3]], -1)))

    assert np.isfinite(value([0, 1, 2]))
    # Sums of 14 tokens in float32.
    assert abs(value([0, 1, 2]) - value([0, 2])) < 1e-5


@pytest.mark.parametrize("copy", ["file", "clone"])
def test_a_copy_has_the_masks_too(copy, tmp_path):
    """The operations of the masks are a part of the model's graph."""
    model = decoder(layers.RotaryEmbedding)
    if copy == "file":
        model.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
    else:
        again = keras.models.clone_model(model)
        again.set_weights(model.get_weights())
    ids = np.where(np.arange(T) < np.array([[0], [2], [1]]), 0, IDS)
    whole = to_numpy(model({"prefix": PREFIX, "target": ids}))
    assert_close(again({"prefix": PREFIX, "target": ids}), whole, 0.0)
    steps, _ = stepped(again, PREFIX, ids, (1, 3, 7))
    assert_close(steps, whole, 1e-5)
