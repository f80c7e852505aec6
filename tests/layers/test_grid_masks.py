"""DALL-E's masks and positions beside NumPy, written from the paper's figures by row and column."""

import keras
import numpy as np
import pytest
import reference
from attention_features import stepped
from compare import assert_close, to_numpy
from execution import MODES, compiled
from keras import ops
from keras_weights import randomize, self_attention

from keras_tfm.layers import (
    ColumnMask,
    ConvolutionMask,
    DecodingScope,
    GridMask,
    GridPositionEmbedding,
    MultiHeadSelfAttention,
    RowMask,
)

# Float32 rounds at 6e-8; the same sums in another order.
FLOAT32 = 1e-5
N, HEIGHT, WIDTH, B, D = 3, 3, 5, 2, 14
T = N + HEIGHT * WIDTH
MASKS = {
    "row": lambda: RowMask(N, (HEIGHT, WIDTH)),
    "column": lambda: ColumnMask(N, (HEIGHT, WIDTH)),
    "convolution": lambda: ConvolutionMask(N, (HEIGHT, WIDTH), kernel_size=3),
}
every_mask = pytest.mark.parametrize("kind", MASKS)
X = np.random.default_rng(11).normal(size=(B, T, D)).astype("float32")


def sees(kind, query, key):
    """Whether a position sees another: figure 11 (a), (b) and (d) of arXiv:2102.12092."""
    if key > query:
        return False
    if key < N:
        return True
    (row, column), (i, j) = divmod(query - N, WIDTH), divmod(key - N, WIDTH)
    if kind == "row":  # its own row, and of the row above what is not left of it
        return i == row or (i == row - 1 and j >= column)
    if kind == "column":
        return j == column
    # A square of 3 x 3, with the ends of a row joined to its neighbours.
    places = {(row + a) * WIDTH + column + b for a in (-1, 0) for b in (-1, 0, 1)}
    return key - N in places


def pairs(kind):
    return np.array([[sees(kind, t, s) for s in range(T)] for t in range(T)])


def attention(kind):
    layer = MultiHeadSelfAttention(7, causal=True, position=MASKS[kind]())
    layer(X)
    return randomize(layer)


@every_mask
def test_attention_is_that_of_the_figure(kind):
    """In float64: masked attention of the reference, which knows nothing of places."""
    layer = attention(kind)
    weights = {name: to_numpy(x) for name, x in self_attention(layer).items()}
    expected = reference.multi_head_attention(
        X.astype("float64"), X.astype("float64"), weights, 7, pairs(kind)[None]
    )
    assert_close(layer(X), expected, FLOAT32)
    # A mask of causality alone would be seen.
    assert not np.array_equal(pairs(kind), np.tril(np.ones((T, T), bool)))


@every_mask
@pytest.mark.parametrize("mode", MODES)
def test_steps_see_the_same_mask(kind, mode):
    """Chunks that begin in the text and within a row, and steps whose position is a tensor."""
    layer = attention(kind)
    expected = layer(X)
    if mode == "eager":
        chunks = stepped(lambda start, end: layer(X[:, start:end]), [2, 4, 1, 1, 7, 3])
        assert_close(chunks, expected, FLOAT32)

    def step(cache, x, position):
        with DecodingScope(cache, position=position, length=T) as scope:
            y = layer(x)
        return y, scope.cache

    with DecodingScope(length=T) as scope:
        outputs = [to_numpy(layer(X[:, :5]))]
    run, cache = compiled(mode, step), scope.cache
    for p in range(5, T):
        y, cache = run(cache, ops.convert_to_tensor(X[:, p : p + 1]), ops.convert_to_tensor(p))
        outputs.append(to_numpy(y))
    assert_close(np.concatenate(outputs, axis=1), expected, FLOAT32)


@every_mask
def test_left_padding_moves_no_cell(kind):
    """The second row begins two columns later: its cells see what they see without padding."""
    layer = attention(kind)
    padded = np.concatenate([np.full((1, 2, D), 9.0, "float32"), X[1:]], axis=1)
    both = np.concatenate([np.pad(X[:1], ((0, 0), (0, 2), (0, 0))), padded])
    outputs, cache, start = [], None, 0
    for n in (4, 1, 6, T - 9):
        with DecodingScope(
            cache, position=start, length=T + 2, padding=np.array([0, 2], "int32")
        ) as scope:
            outputs.append(to_numpy(layer(both[:, start : start + n])))
        cache, start = scope.cache, start + n
    found = np.concatenate(outputs, axis=1)
    expected = to_numpy(layer(X))
    assert_close(found[0, :T], expected[0], FLOAT32)
    assert_close(found[1, 2:], expected[1], FLOAT32)


def test_positions_that_are_given_count():
    """Cells in another order, each at its own place."""
    layer, order = attention("column"), np.array([*range(N), *range(N, T, 2), *range(N + 1, T, 2)])
    given = np.broadcast_to(order, (B, T)).astype("int32")
    found = layer(X[:, order], positions=given)
    weights = {name: to_numpy(x) for name, x in self_attention(layer).items()}
    seen = pairs("column")[order][:, order] | (
        (order[:, None] >= N) & (order >= N) & (order > order[:, None])
    )
    x = X[:, order].astype("float64")
    mask = seen & np.tril(np.ones((T, T), bool))
    assert_close(found, reference.multi_head_attention(x, x, weights, 7, mask[None]), FLOAT32)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: RowMask(-1, 3), ValueError, "text_length must be at least 0, got -1"),
        (lambda: ColumnMask(2, (3, 0)), ValueError, "grid must be at least 1, got 0"),
        (
            lambda: ConvolutionMask(2, (9, 4), 5),
            ValueError,
            r"kernel_size must be odd and at most the width of the grid \(4\), got 5",
        ),
        (lambda: ConvolutionMask(2, 4, 2), ValueError, "must be odd .* got 2"),
        (lambda: GridPositionEmbedding(2.0, 4), TypeError, "text_length must be an integer"),
    ],
)
def test_what_is_out_of_range_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_mask_without_a_rule_is_an_error():
    layer = MultiHeadSelfAttention(2, causal=True, position=GridMask(1, 2))
    with pytest.raises(NotImplementedError, match=r"GridMask does not define visible\(\)"):
        layer(np.ones((1, 3, 4), "float32"))


def test_positions_are_those_of_the_figure():
    """A vector a position of the text, a row's plus a column's for a cell; also in steps."""
    layer = GridPositionEmbedding(N, (HEIGHT, WIDTH), initializer=keras.initializers.HeNormal(1))
    expected = to_numpy(X)
    layer(X)
    text, rows, columns = (to_numpy(layer.tables[x]) for x in ("text", "rows", "columns"))
    assert np.abs(rows[:3] - columns[:3]).min() > 1e-6  # other numbers in each table
    expected[:, :N] += text
    for cell in range(HEIGHT * WIDTH):
        i, j = divmod(cell, WIDTH)
        expected[:, N + cell] += rows[i] + columns[j]
    assert_close(layer(X), expected, 1e-6)
    chunks = stepped(lambda start, end: layer(X[:, start:end]), [2, 4, 1, 1, 7, 3])
    assert_close(chunks, expected, 1e-6)
    with pytest.raises(ValueError, match="got 19 positions, the table holds max_length=18"):
        layer(np.zeros((1, T + 1, D), "float32"))
