"""The layers of Evoformer beside NumPy float64, openfold's results, and one another."""

from pathlib import Path

import keras
import numpy as np
import openfold_weights
import pytest
import reference_evoformer as reference
from compare import assert_close, to_numpy
from execution import gradients, tensorflow_only
from keras_weights import randomize

from keras_tfm.layers import (
    MSABlock,
    MSAColumnAttention,
    MSAGlobalAttention,
    MSARowAttention,
    OuterProductMean,
    PairBlock,
    PairEmbedding,
    TriangleAttention,
    TriangleMultiplication,
)
from keras_tfm.layers.multi_head_attention import blockwise

# Float32 rounds at 6e-8; sums of up to 64 terms, ten sublayers in a block.
FLOAT32 = 1e-5
B, S, N, D, E, H = 2, 5, 7, 10, 6, 2
rng = np.random.default_rng(11)
X = rng.normal(size=(B, S, N, D)).astype("float32")
Z = rng.normal(size=(B, N, N, E)).astype("float32")
# A short sequence; padded residues and a padded row.
MASK = np.ones((B, S, N), bool)
MASK[0, 3, 4:] = False
MASK[1, :, 5:], MASK[1, 4:] = False, False
PAIRS = MASK[:, 0, :, None] & MASK[:, 0, None, :]
BLOCK = {"num_heads": H, "head_dim": 3, "transition_factor": 2}
PAIR_BLOCK = {
    "num_heads": 3,
    "head_dim": 5,
    "outer_dim": 4,
    "hidden_dim": 8,
    "transition_factor": 2,
}


def made(layer, *inputs):
    layer(*inputs)
    return randomize(layer)


def weights_of(layer):
    return {x.path.split("/", 1)[1]: to_numpy(x) for x in layer.weights}


def each(function, *arrays):
    """`function` of each example, in float64."""
    arrays = [x if x.dtype == bool else x.astype("float64") for x in arrays]
    return np.stack([function(*parts) for parts in zip(*arrays, strict=True)])


def test_row_attention():
    layer = made(MSARowAttention(H, head_dim=3), X, Z)
    w = weights_of(layer)
    expected = each(lambda *a: reference.row_attention(*a[:2], w, H, a[2]), X, Z, MASK)
    assert_close(layer(X, Z, mask=MASK), expected, FLOAT32)


@pytest.mark.parametrize("extra", [False, True], ids=["each", "global"])
def test_column_attention(extra):
    layer = made((MSAGlobalAttention if extra else MSAColumnAttention)(H, head_dim=3), X)
    function = reference.global_attention if extra else reference.column_attention
    expected = each(lambda x, mask: function(x, weights_of(layer), H, mask), X, MASK)
    assert_close(layer(X, mask=MASK), expected, FLOAT32)


def test_outer_product_mean():
    layer = made(OuterProductMean(E, hidden_dim=3), X)
    w = weights_of(layer)
    expected = each(lambda x, mask: reference.outer_product_mean(x, w, mask), X, MASK)
    assert_close(layer(X, mask=MASK), expected, FLOAT32)
    full = each(lambda x, mask: reference.outer_product_mean(x, w, mask), X, MASK | True)
    assert_close(layer(X), full, FLOAT32)


@pytest.mark.parametrize("incoming", [False, True])
def test_triangle_multiplication(incoming):
    layer = made(TriangleMultiplication(hidden_dim=8, incoming=incoming), Z)
    w = weights_of(layer)
    expected = each(
        lambda z, mask: reference.triangle_multiplication(z, w, mask, incoming), Z, PAIRS
    )
    assert_close(layer(Z, mask=PAIRS), expected, FLOAT32)


@pytest.mark.parametrize("ending", [False, True])
def test_triangle_attention(ending):
    layer = made(TriangleAttention(3, head_dim=5, ending=ending), Z)
    w = weights_of(layer)
    expected = each(lambda z, mask: reference.triangle_attention(z, w, 3, mask, ending), Z, PAIRS)
    assert_close(layer(Z, mask=PAIRS), expected, FLOAT32)


@pytest.mark.parametrize("extra", [False, True], ids=["block", "extra"])
def test_blocks(extra):
    layer = made(MSABlock(**BLOCK, global_attention=extra), X, Z)
    w = weights_of(layer)
    expected = each(lambda *a: reference.msa_block(*a[:2], w, H, a[2], extra), X, Z, MASK)
    assert_close(layer(X, Z, mask=MASK), expected, FLOAT32)


def test_pair_block():
    layer = made(PairBlock(**PAIR_BLOCK), Z, X)
    w = weights_of(layer)
    expected = each(lambda *a: reference.pair_block(*a[:2], w, 3, a[2]), Z, X, MASK)
    assert_close(layer(Z, X, mask=MASK), expected, FLOAT32)


@pytest.mark.parametrize("kind", ["block", "extra"])
def test_a_block_equals_openfold(kind):
    """What `parity/make_openfold_fixture.py` found, computed in float64, where nothing is padding.

    The issue asks for 1e-4; float32 through ten sublayers rounds well below it.
    """
    with np.load(Path(__file__).parents[1] / "parity" / "openfold.npz") as arrays:
        given = dict(arrays)
    state = {key.split("/", 1)[1]: x for key, x in given.items() if key.startswith(f"{kind}/")}
    m, z, mask = given["m"], given["z"], given["mask"]
    rows = MSABlock(**BLOCK, global_attention=kind == "extra")
    pairs = PairBlock(**PAIR_BLOCK)
    rows.build(m.shape, z.shape)
    pairs.build(z.shape, m.shape)
    openfold_weights.msa_block(rows, state)
    openfold_weights.pair_block(pairs, state)
    x = rows(m, z, mask=mask)
    found = pairs(z, x, mask=mask)
    seen = mask[:, 0, :, None] & mask[:, 0, None, :]
    assert_close(to_numpy(x)[mask], given[f"{kind}_m"][mask], FLOAT32)
    assert_close(to_numpy(found)[seen], given[f"{kind}_z"][seen], FLOAT32)


def test_pair_embedding_by_hand():
    layer = PairEmbedding(vocabulary_size=11, dim=3, max_distance=2)
    tokens = np.array([[4, 9, 10, 2]])
    made(layer, tokens)
    left, right = to_numpy(layer.left.embeddings), to_numpy(layer.right.embeddings)
    table = to_numpy(layer.positions)
    for index in (None, np.array([[3, 4, 8, 9]])):
        found = to_numpy(layer(tokens) if index is None else layer(tokens, index))
        where = np.arange(4) if index is None else index[0]
        for i in range(4):
            for j in range(4):
                bin = min(max(where[i] - where[j], -2), 2) + 2
                expected = left[tokens[0, i]] + right[tokens[0, j]] + table[bin]
                # Two sums of three numbers near 1.
                np.testing.assert_allclose(found[0, i, j], expected, atol=1e-6)


def test_a_new_block_is_the_identity():
    """The output projections are zeros (supplement 1.11.4)."""
    x = MSABlock(**BLOCK)(X, Z)
    np.testing.assert_array_equal(to_numpy(x), X)
    np.testing.assert_array_equal(to_numpy(PairBlock(**PAIR_BLOCK)(Z, X)), Z)


def test_the_order_of_sequences_changes_only_that_of_the_result():
    rows, pairs = made(MSABlock(**BLOCK), X, Z), made(PairBlock(**PAIR_BLOCK), Z, X)
    order = np.array([0, 3, 1, 4, 2])
    x, permuted = rows(X, Z, mask=MASK), rows(X[:, order], Z, mask=MASK[:, order])
    assert_close(permuted, to_numpy(x)[:, order], FLOAT32)
    assert np.abs(to_numpy(permuted) - to_numpy(x)).max() > 0.1
    z = pairs(Z, to_numpy(x).astype("float32"), mask=MASK)
    again = pairs(Z, to_numpy(permuted).astype("float32"), mask=MASK[:, order])
    assert_close(again, z, FLOAT32)


@pytest.mark.parametrize("extra", [False, True], ids=["block", "extra"])
def test_padding_of_residues_and_of_sequences_changes_nothing(extra):
    """Whatever stands in the padding: here, large numbers."""
    rows = made(MSABlock(**BLOCK, global_attention=extra), X, Z)
    pairs = made(PairBlock(**PAIR_BLOCK), Z, X)
    x = rows(X, Z)
    z = pairs(Z, x)
    more = [(0, 0), (0, 2), (0, 3)]
    wide = np.pad(X, [*more, (0, 0)], constant_values=50.0)
    wide_pairs = np.pad(Z, [(0, 0), (0, 3), (0, 3), (0, 0)], constant_values=-50.0)
    mask = np.pad(np.ones((B, S, N), bool), more)
    padded = rows(wide, wide_pairs, mask=mask)
    assert_close(to_numpy(padded)[:, :S, :N], x, FLOAT32)
    assert_close(to_numpy(pairs(wide_pairs, padded, mask=mask))[:, :N, :N], z, FLOAT32)


@pytest.mark.parametrize(
    "policy", ["mixed_bfloat16", pytest.param("bfloat16", marks=pytest.mark.slow)]
)
def test_bfloat16_stays_within_its_own_noise(policy):
    """Rounding inputs and weights to bfloat16 alone moves a float32 block about as far."""

    def run(policy, rounded):
        rows = MSABlock(**BLOCK, dtype=policy)
        pairs = PairBlock(**PAIR_BLOCK, dtype=policy)
        made(rows, X, Z), made(pairs, Z, X)
        if rounded:
            for weight in (*rows.weights, *pairs.weights):
                weight.assign(keras.ops.cast(keras.ops.cast(weight, "bfloat16"), weight.dtype))
        x, z = (
            to_numpy(keras.ops.cast(a, "bfloat16")).astype("float32") if rounded else a
            for a in (X, Z)
        )
        y = rows(x, z, mask=MASK)
        return [to_numpy(y)[MASK], to_numpy(pairs(z, y, mask=MASK))[PAIRS]]

    exact, noisy = run("float32", False), run("float32", True)
    for found, a, b in zip(run(policy, True), exact, noisy, strict=True):
        own = np.sqrt(np.mean((b - a) ** 2))
        # Some thirty roundings inside the block, where the float32 block has those of its inputs.
        assert np.sqrt(np.mean((found - a) ** 2)) < 5 * own
        assert own > 1e-3


@tensorflow_only
@pytest.mark.parametrize("layer", ["rows", "pairs"])
def test_blocks_of_memory_change_neither_values_nor_gradients(layer, monkeypatch):
    """`LARGE` made small: slices of rows, recomputed in the backward pass."""
    inputs = (X, Z) if layer == "rows" else (Z, X)
    block = made(MSABlock(**BLOCK) if layer == "rows" else PairBlock(**PAIR_BLOCK), *inputs)

    def run(*arrays):
        return keras.ops.sum(keras.ops.sin(block(*arrays, mask=MASK)))

    expected, value = gradients(run, block.weights, *inputs), to_numpy(block(*inputs, mask=MASK))
    recomputed, remat = [], keras.remat
    monkeypatch.setattr(keras, "remat", lambda f: recomputed.append(f) or remat(f))
    monkeypatch.setattr(blockwise, "LARGE", 100)
    found = gradients(run, block.weights, *inputs)
    assert len(recomputed) >= 9
    assert_close(block(*inputs, mask=MASK), value, FLOAT32)
    for a, b in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
        assert_close(a, b, FLOAT32)


@tensorflow_only
def test_dropout_is_shared_by_rows_or_columns():
    """Row-wise: all rows drop the same values. Around the ending node, all columns do."""
    pairs = PairBlock(**PAIR_BLOCK, dropout=0.5)
    for name, axis in (("starting", 1), ("ending", 2), ("outgoing", 1), ("incoming", 1)):
        kept = to_numpy(getattr(pairs, f"{name}_dropout")(np.ones_like(Z), training=True)) > 0
        np.testing.assert_array_equal(kept, np.broadcast_to(kept.any(axis, keepdims=True), Z.shape))
        assert 0.2 < kept.mean() < 0.8
        other = 3 - axis
        assert np.any(kept != kept.any(other, keepdims=True))
    rows = MSABlock(**BLOCK, dropout=0.5).row_dropout(np.ones_like(X), training=True)
    kept = to_numpy(rows) > 0
    np.testing.assert_array_equal(kept, np.broadcast_to(kept[:, :1], X.shape))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MSABlock(H)(X[0], Z), r"x must have shape \(B, S, N, D\)"),
        (lambda: MSARowAttention(H)(X, Z[:, :5, :5]), r"E known and N = 7, got \(2, 5, 5, 6\)"),
        (lambda: PairBlock(3)(Z[:, :5], X), r"pairs must have shape .* got \(2, 5, 7, 6\)"),
        (lambda: MSAColumnAttention(H)(X, mask=MASK[:, 0]), r"mask must have shape \(B, S, N\)"),
        (lambda: MSAColumnAttention(H)(X, mask=X[..., 0]), "mask must be boolean"),
        (lambda: TriangleAttention(4)(Z), r"num_heads \(4\) must divide dim \(6\)"),
        (lambda: MSAGlobalAttention(4)(X), r"num_heads \(4\) must divide dim \(10\)"),
        (lambda: OuterProductMean(0), "dim must be at least 1, got 0"),
    ],
)
def test_wrong_shapes_are_errors(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
