"""Groups of attention: tokens that see each other, also later ones, in a causal layer."""

import numpy as np
import pytest
from compare import assert_close, to_numpy

from keras_tfm import layers

X = np.random.default_rng(0).normal(size=(2, 7, 12)).astype("float32")
GROUPS = np.array([[0, 1, 1, 1, 0, 2, 2], [3, 3, 0, 0, 0, 0, 0]], "int32")


def seen(window):
    """By hand: of each row and query, which keys."""
    query, key = np.arange(7)[:, None], np.arange(7)[None]
    same = (GROUPS[:, :, None] == GROUPS[:, None]) & (GROUPS[:, :, None] > 0)
    mask = (key <= query) | same
    return mask if window is None else mask & (key > query - window)


@pytest.mark.parametrize("window", [None, 2])
def test_tokens_of_a_group_see_each_other(window):
    layer = layers.MultiHeadSelfAttention(
        3, causal=True, window=window, position=layers.RotaryEmbedding()
    )
    plain = layers.MultiHeadSelfAttention(3, position=layers.RotaryEmbedding())
    found = layer(X, groups=GROUPS)
    plain.build(X.shape)
    plain.set_weights(layer.get_weights())
    assert_close(to_numpy(found), to_numpy(plain(X, attention_mask=seen(window))), 1e-5)
    with_mask = layer(X, mask=np.arange(7) < [[7], [5]], groups=GROUPS)
    expected = plain(X, mask=np.arange(7) < [[7], [5]], attention_mask=seen(window))
    assert_close(to_numpy(with_mask), to_numpy(expected), 1e-5)


@pytest.mark.parametrize("window", [None, 3])
def test_a_group_in_one_of_several_steps(window):
    """The second row is padded on the left, by two columns; hypotheses have no groups."""
    block = layers.TransformerDecoderBlock(
        16, self_attention=layers.MultiHeadSelfAttention(3, causal=True, window=window),
        cross_attention=False,
    )  # fmt: skip
    padding, groups = np.array([0, 2], "int32"), np.where(GROUPS == 3, 0, GROUPS)
    groups[1, 3:5] = 1
    mask = np.arange(7) >= padding[:, None]
    whole, cache, parts = to_numpy(block(X, mask=mask, token_groups=groups)), None, []
    for start, end in ((0, 1), (1, 5), (5, 7)):
        with layers.DecodingScope(cache, position=start, length=7, padding=padding) as scope:
            parts.append(to_numpy(block(X[:, start:end], token_groups=groups[:, start:end])))
        cache = scope.cache
    found = np.concatenate(parts, axis=1)
    assert_close(found[mask], whole[mask], 1e-5)


def test_groups_that_are_refused():
    with pytest.raises(ValueError, match="groups need causal=True"):
        layers.MultiHeadSelfAttention(3)(X, groups=GROUPS)
    with pytest.raises(ValueError, match="a position part that only rotates"):
        layers.MultiHeadSelfAttention(3, causal=True, position=layers.ALiBi())(X, groups=GROUPS)
    layer = layers.MultiHeadSelfAttention(3, causal=True)
    with pytest.raises(ValueError, match=r"groups must have shape \(B, T\) = \(2, 7\), got \(2, 6"):
        layer(X, groups=GROUPS[:, 1:])
    with pytest.raises(TypeError, match="groups must be integers, got float32"):
        layer(X, groups=GROUPS.astype("float32"))
    with layers.DecodingScope(length=7) as scope:
        layer(X[:, :2])
    with (
        layers.DecodingScope(scope.cache, position=2, length=7, write_first=True),
        pytest.raises(ValueError, match="need a DecodingScope with write_first=False"),
    ):
        layer(X[:, 2:], groups=GROUPS[:, 2:])
