"""Which keys a decoding step sees, beside loops over rows, queries and columns."""

import itertools

import numpy as np
import pytest
from keras import ops

from keras_tfm.layers.decoding.visibility import Branches, visible, visible_context
from keras_tfm.layers.positions.attention_position import Positions, Span

ROWS, CAPACITY, START = 3, 7, 4
CACHED = np.array([[1, 1, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0, 1], [1, 1, 1, 1, 0, 1, 1]], bool)
NEW = np.array([[1, 1], [1, 0], [0, 1]], bool)
PADDING = np.array([0, 2, 5], "int32")


def expected(length, window, cached_mask, mask, padding, written):
    """(ROWS, length, CAPACITY + N): the definition, one score at a time."""
    columns = CAPACITY if written else CAPACITY + length
    result = np.zeros((ROWS, length, columns), bool)
    for row, query, column in np.ndindex(result.shape):
        here = START + query
        own_step = column - CAPACITY  # the number of a new key, if not negative
        position = column if own_step < 0 else START + own_step
        if own_step < 0:
            seen = position <= here if written else position < START
            real = cached_mask is None or cached_mask[row, column]
        else:
            seen = own_step <= query
            real = mask is None or mask[row, own_step]
        near = window is None or here - position < window
        padded = padding is not None and position < padding[row]
        result[row, query, column] = seen and real and near and not padded
    return result


CASES = list(
    itertools.product(
        (1, 2), (None, 3), (None, CACHED), (None, NEW), (None, PADDING), (False, True)
    )
)


@pytest.mark.parametrize("own", [False, True])
def test_a_step_sees_earlier_keys_within_its_window_that_are_no_padding(own):
    compared = 0
    for length, window, cached_mask, mask, padding, written in CASES:
        if own and (length > 1 or written):
            continue
        new = None if mask is None else mask[:, :length]
        found = visible(
            Span(START, length), CAPACITY, window, None, cached_mask,
            None if written else new, padding, own, -1e9, written,
        )  # fmt: skip
        assert found.own == own and found.write_first == written
        wanted = expected(length, window, cached_mask, new, padding, written)
        one_row = cached_mask is None and padding is None and (written or mask is None)
        shape = (1 if one_row else ROWS, *wanted.shape[1:])
        seen = ops.convert_to_numpy(found.mask)
        assert seen.shape == shape
        np.testing.assert_array_equal(np.broadcast_to(seen, wanted.shape), wanted)
        penalty = ops.convert_to_numpy(found.penalty)
        np.testing.assert_array_equal(penalty, np.where(seen, 0.0, -1e9)[:, None])
        # Without `some`, the TFLite converter fails for several tokens: see `visible`.
        real = cached_mask is None if written else length == 1 and mask is None
        assert (found.some is None) == (real and padding is None)
        some = np.ones((ROWS, 1, length, 1))
        if found.some is not None:
            some = np.broadcast_to(ops.convert_to_numpy(found.some), some.shape)
        np.testing.assert_array_equal(some[:, 0, :, 0], wanted.any(-1))
        compared += 1
    assert compared == (16 if own else 64)


def test_rows_that_differ_in_a_cache_of_one_column():
    cached = np.array([[True], [False], [True]])
    found = visible(Span(1, 1), 1, None, None, cached, None, None, False, -1e9)
    wanted = np.concatenate([cached, np.ones((3, 1), bool)], axis=1)[:, None]
    np.testing.assert_array_equal(ops.convert_to_numpy(found.mask), wanted)


@pytest.mark.parametrize("rows", [1, 2])
def test_rows_that_differ_only_in_the_cache_or_only_in_the_step(rows):
    masks = np.array([[True, False], [False, True]])[:rows]
    cached = visible(Span(2, 1), 2, None, None, masks, None, None, False, -1e9)
    wanted = np.concatenate([masks, np.ones((rows, 1), bool)], axis=1)[:, None]
    np.testing.assert_array_equal(ops.convert_to_numpy(cached.mask), wanted)
    new = visible(Span(2, 1), 2, None, None, None, masks[:, 1:], None, False, -1e9)
    wanted = np.concatenate([np.ones((rows, 2), bool), masks[:, 1:]], axis=1)[:, None]
    np.testing.assert_array_equal(ops.convert_to_numpy(new.mask), wanted)


def test_a_context_is_all_in_the_cache():
    mask = np.array([[[True, False, True]], [[False, False, False]]])
    for given in (None, mask):
        seen = visible_context(given, Positions(Span(0, 1), np.arange(3)), -1e9)
        assert (seen.own, seen.write_first) == (False, True)
    np.testing.assert_array_equal(ops.convert_to_numpy(seen.some)[:, 0, 0, 0], [1, 0])


def test_hypotheses_see_their_ancestors_and_all_of_a_prefix():
    ancestors = np.array([[[1, 0, 1], [0, 1, 0]], [[1, 1, 0], [1, 0, 1]]], bool)
    branches = Branches(ancestors, np.array([0, 0, 1], "int32"), 3)
    assert branches.after(0) is branches
    after = branches.after(2)
    wanted = np.concatenate([np.ones((2, 2, 2), bool), ancestors], axis=-1)
    np.testing.assert_array_equal(ops.convert_to_numpy(after.ancestors), wanted)
    np.testing.assert_array_equal(ops.convert_to_numpy(after.positions), [0, 1, 2, 2, 3])
    assert after.column == 5
    found = visible(Span(4, 2), 5, None, after, None, None, None, True, -1e9)
    own = np.ones((2, 2, 1), bool)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(found.mask), np.concatenate([wanted, own], axis=-1)
    )
    # A row of padding: none of its hypotheses sees itself.
    real = np.array([[True], [False]])
    found = visible(Span(4, 2), 5, None, after, None, real, None, True, -1e9)
    own = np.broadcast_to(real[:, None], (2, 2, 1))
    np.testing.assert_array_equal(
        ops.convert_to_numpy(found.mask), np.concatenate([wanted, own], axis=-1)
    )
