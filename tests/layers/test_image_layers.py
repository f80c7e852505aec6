"""Layers for pictures, against NumPy in float64 and PyTorch's interpolation."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from keras_weights import built, randomize

from keras_tfm.layers import (
    ImageNormalization,
    MultiHeadSelfAttention,
    PatchEmbedding,
    PositionEmbedding2D,
    PrefixTokens,
    RotaryEmbedding2D,
)
from keras_tfm.layers.positions.attention_position import Span
from keras_tfm.layers.positions.position_embedding_2d import bicubic, bilinear

B, H, W, C, D = 2, 11, 8, 3, 5
rng = np.random.default_rng(5)
PIXELS = rng.normal(size=(B, H, W, C)).astype("float32")


# Patches


@pytest.mark.parametrize("size", [3, (2, 4), (11, 8)])
def test_a_patch_is_a_product_with_its_pixels(size):
    layer = built(PatchEmbedding(D, size), PIXELS.shape)
    kernel, bias = (to_numpy(x) for x in layer.weights)
    high, wide = layer.patch_size
    rows = [
        [
            np.tensordot(PIXELS[:, i : i + high, j : j + wide].astype("float64"), kernel, 3) + bias
            for j in range(0, W - wide + 1, wide)
        ]
        for i in range(0, H - high + 1, high)
    ]
    assert_close(layer(PIXELS), np.moveaxis(np.array(rows), 2, 0), 1e-6)


def test_overlapping_patches_and_padding():
    """Stride 2 of patches of 3, with zeros around: ceil(11 / 2) rows, ceil(8 / 2) columns."""
    layer = built(PatchEmbedding(D, 3, stride=2, padding="same"), PIXELS.shape)
    kernel, bias = (to_numpy(x) for x in layer.weights)
    # Rows: 6 patches span 13 pixels, two more than there are: one at each side. Columns: 9, one
    # more: at the right.
    padded = np.pad(PIXELS.astype("float64"), ((0, 0), (1, 1), (0, 1), (0, 0)))
    expected = [
        [np.tensordot(padded[:, i : i + 3, j : j + 3], kernel, 3) + bias for j in range(0, 7, 2)]
        for i in range(0, 11, 2)
    ]
    assert_close(layer(PIXELS), np.moveaxis(np.array(expected), 2, 0), 1e-6)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((B, 2, 8, C), r"at least as large as a patch, \(3, 3\), got height and width \(2, 8\)"),
        ((B, 8, C), r"pixels must have shape \(B, H, W, C\) with C known, got \(2, 8, 3\)"),
    ],
)
def test_impossible_pictures(shape, message):
    with pytest.raises(ValueError, match=message):
        PatchEmbedding(D, 3)(np.zeros(shape, "float32"))


def test_bad_arguments_of_patches():
    with pytest.raises(ValueError, match="padding must be one of"):
        PatchEmbedding(D, 3, padding="full")
    with pytest.raises(ValueError, match="patch_size must be at least 1, got 0"):
        PatchEmbedding(D, (3, 0))
    with pytest.raises(TypeError, match="patch_size must be an integer"):
        PatchEmbedding(D, (3, 3, 3))


# Pixels


def test_pixels_of_any_dtype_are_normalised_in_float32():
    pixels = rng.integers(0, 256, (B, H, W, C)).astype("uint8")
    mean, std = np.array([0.1, 0.5, 0.9]), np.array([0.2, 0.3, 0.4])
    expected = (pixels / 255 - mean) / std
    for policy in ("float32", "mixed_bfloat16", "mixed_float16"):
        keras.config.set_dtype_policy(policy)
        try:
            layer = ImageNormalization(list(mean), list(std))
        finally:
            keras.config.set_dtype_policy("float32")
        for dtype in ("uint8", "int32", "float32"):
            y = layer(pixels.astype(dtype))
            assert keras.backend.standardize_dtype(y.dtype) == "float32"
            assert_close(y, expected, 1e-6)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([0.5], [0.5, 0.5]), ValueError, "one value per channel, got 1 and 2 values"),
        (([0.5], [0.0]), ValueError, r"std\[0\] must be positive, got 0.0"),
        ((["a"], [1.0]), TypeError, r"mean\[0\] must be a number, got 'a'"),
    ],
)
def test_bad_statistics(arguments, error, message):
    with pytest.raises(error, match=message):
        ImageNormalization(*arguments)


def test_channels_come_last():
    with pytest.raises(ValueError, match=r"must have shape \(B, H, W, 3\), channels last, got"):
        ImageNormalization()(np.zeros((1, 3, 8, 8), "float32"))


# Tokens before the patches


def test_tokens_stand_before_the_patches_row_by_row():
    grid = rng.normal(size=(B, 2, 3, D)).astype("float32")
    layer = built(PrefixTokens(2), grid.shape)
    expected = np.concatenate(
        [np.tile(to_numpy(layer.tokens), (B, 1, 1)), grid.reshape(B, 6, D)], axis=1
    )
    assert_close(layer(grid), expected, 0.0)


def test_registers_stand_behind_the_class_token():
    x = rng.normal(size=(B, 4, D)).astype("float32")
    layer = built(PrefixTokens(3, index=1), x.shape)
    expected = np.insert(x, [1, 1, 1], to_numpy(layer.tokens), axis=1)
    assert_close(layer(x), expected, 0.0)
    with pytest.raises(ValueError, match="index=1 is beyond a sequence of 0"):
        layer(x[:, :0])


def test_the_mask_grows_with_the_sequence():
    x = keras.layers.Masking(0.0)(np.array([[[1.0, 1], [0, 0]], [[0, 0], [1, 1]]], "float32"))
    y = PrefixTokens(2, index=1)(x)
    expected = [[True, True, True, False], [False, True, True, True]]
    np.testing.assert_array_equal(to_numpy(y._keras_mask), expected)


# Positions of a grid


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("sizes", [(7, 7), (7, 9), (7, 3), (14, 37), (5, 1), (1, 4), (16, 7)])
def test_interpolation_is_pytorch_s(sizes, antialias):
    torch = pytest.importorskip("torch")
    # Three columns: PyTorch 2.13 does not resample the rows of a single one with `antialias`.
    values = rng.normal(size=(1, 2, sizes[0], 3))
    expected = torch.nn.functional.interpolate(
        torch.tensor(values), (sizes[1], 3), mode="bicubic", antialias=antialias
    ).numpy()
    assert_close(bicubic(*sizes, antialias) @ values, expected, 1e-12)


@pytest.mark.parametrize("sizes", [(7, 12), (12, 5), (5, 1)])
@pytest.mark.parametrize("antialias", [False, True])
def test_bilinear_interpolation_is_that_of_pytorch(sizes, antialias):
    torch = pytest.importorskip("torch")
    values = rng.normal(size=(1, 2, sizes[0], 3))
    expected = torch.nn.functional.interpolate(
        torch.tensor(values), (sizes[1], 3), mode="bilinear", antialias=antialias
    ).numpy()
    assert_close(bilinear(*sizes, antialias) @ values, expected, 1e-12)


def test_equal_sizes_are_not_changed():
    for antialias in (False, True):
        np.testing.assert_array_equal(bicubic(6, 6, antialias), np.eye(6))
        np.testing.assert_array_equal(bilinear(6, 6, antialias), np.eye(6))


def test_constants_stay_constants():
    """Weights add up to 1, at the borders too."""
    for antialias in (False, True):
        assert_close(bicubic(7, 12, antialias).sum(1), np.ones(12), 1e-12)


def test_positions_of_another_grid():
    layer = built(PositionEmbedding2D((3, 4), prefix=2), (B, 14, D))
    table = to_numpy(layer.positions)
    x = rng.normal(size=(B, 2 + 5 * 2, D)).astype("float32")
    cells = np.einsum("ab,cd,bdk->ack", bicubic(3, 5), bicubic(4, 2), table[2:].reshape(3, 4, D))
    expected = x + np.concatenate([table[:2], cells.reshape(-1, D)])
    assert_close(layer(x, np.zeros((B, 5, 2, 1), "float32")), expected, 1e-6)
    layer.interpolation, layer.antialias = "bilinear", True
    rows, columns = bilinear(3, 5, True), bilinear(4, 2, True)
    cells = np.einsum("ab,cd,bdk->ack", rows, columns, table[2:].reshape(3, 4, D))
    expected = x + np.concatenate([table[:2], cells.reshape(-1, D)])
    assert_close(layer(x, np.zeros((B, 5, 2, 1), "float32")), expected, 1e-6)
    with pytest.raises(ValueError, match="interpolation must be one of"):
        PositionEmbedding2D(3, interpolation="nearest")
    same = rng.normal(size=(B, 14, D)).astype("float32")
    assert_close(layer(same), same + table, 1e-7)
    assert_close(layer(same, np.zeros((B, 3, 4, 1), "float32")), same + table, 1e-7)


def test_a_grid_that_does_not_fit_its_sequence():
    layer = PositionEmbedding2D((3, 4), prefix=1)
    with pytest.raises(ValueError, match=r"expected 1 tokens and 3 \* 4 cells, 13 in all, got 12"):
        layer(np.zeros((B, 12, D), "float32"))
    x, patches = keras.Input((None, D)), keras.Input((None, 4, D))
    model = keras.Model([x, patches], layer(x, patches))
    assert model([np.zeros((B, 9, D)), np.zeros((B, 2, 4, D))]).shape == (B, 9, D)


def turned(x, row, column, wavelength):
    """One head's vector (K,) at a cell, from the definition with complex numbers."""
    half, quarter = len(x) // 2, len(x) // 4
    frequencies = wavelength ** (-np.arange(quarter) / quarter)
    angles = np.concatenate([row * frequencies, column * frequencies])
    z = (x[:half] + 1j * x[half:]) * np.exp(1j * angles)
    return np.concatenate([z.real, z.imag])


def test_rotations_by_row_and_column():
    heads, head_dim, width, prefix = 2, 8, 3, 2
    x = rng.normal(size=(1, heads, prefix + 2 * width, head_dim)).astype("float32")
    part = RotaryEmbedding2D(width, prefix, max_wavelength=100.0)
    part.build_for(heads, head_dim, head_dim)
    cells = [(0, 0)] * prefix + [(i, j) for i in range(2) for j in range(width)]
    expected = np.array(
        [[turned(v, *cell, 100.0) for v, cell in zip(h, cells, strict=True)] for h in x[0]]
    )
    assert_close(part.rotate(x, Span(0, len(cells)))[0], expected, 1e-6)
    coordinates = np.array([cells], "int32")
    assert_close(part.rotate(x, keras.ops.convert_to_tensor(coordinates))[0], expected, 1e-6)


def test_rotations_relative_to_the_size_of_the_grid():
    """Centres of cells from -1 to 1 along both sides, times 2 pi (arXiv:2508.10104)."""
    heads, head_dim, height, width, prefix = 2, 8, 3, 4, 2
    x = rng.normal(size=(1, heads, prefix + height * width, head_dim)).astype("float32")
    part = RotaryEmbedding2D(width, prefix, max_wavelength=100.0, height=height)
    part.build_for(heads, head_dim, head_dim)
    rows = [2 * np.pi * (2 * (i + 0.5) / height - 1) for i in range(height)]
    columns = [2 * np.pi * (2 * (j + 0.5) / width - 1) for j in range(width)]
    cells = [(0, 0)] * prefix + [(r, c) for r in rows for c in columns]
    expected = np.array(
        [[turned(v, *cell, 100.0) for v, cell in zip(h, cells, strict=True)] for h in x[0]]
    )
    assert_close(part.rotate(x, Span(0, len(cells)))[0], expected, 1e-6)
    numbers = keras.ops.arange(len(cells))
    assert_close(part.rotate(x, numbers)[0], expected, 1e-6)
    grid = np.array([[(i, j) for i in range(height) for j in range(width)]], "int32")
    found = part.rotate(x[:, :, prefix:], keras.ops.convert_to_tensor(grid))
    assert_close(found[0], expected[:, prefix:], 1e-6)
    with pytest.raises(ValueError, match=r"at most 2 tokens and 3 \* 4 cells, got 15 tokens"):
        part.rotate(np.zeros((1, heads, 15, head_dim), "float32"), Span(0, 15))


def test_scores_depend_on_distances_in_rows_and_columns():
    """Moved by one row and two columns, a picture's attention is the same."""
    layer = MultiHeadSelfAttention(2, position=RotaryEmbedding2D(width=3))
    x = rng.normal(size=(1, 6, 8)).astype("float32")
    randomize(built(layer, x.shape))
    cells = np.array([[(i, j) for i in range(2) for j in range(3)]], "int32")
    moved = layer(x, positions=cells + np.array([1, 2], "int32"))
    assert_close(layer(x, positions=cells), layer(x), 1e-6)
    assert_close(moved, layer(x), 1e-5)


def test_heads_of_a_multiple_of_four():
    with pytest.raises(ValueError, match="head_dim must be a multiple of 4, got 6"):
        MultiHeadSelfAttention(2, position=RotaryEmbedding2D(width=3))(np.zeros((1, 6, 12)))
