"""Rows of different lengths in one array."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_tfm.text import Rows

ROWS = st.lists(st.lists(st.integers(1, 99), max_size=7), min_size=1, max_size=9)


def test_by_hand():
    rows = Rows.of([[5, 6, 7], [], np.array([8], "int64")])
    assert rows.values.tolist() == [5, 6, 7, 8]
    assert rows.values.dtype == np.int32
    assert rows.starts.tolist() == [0, 3, 3, 4]
    assert len(rows) == 3
    assert [row.tolist() for row in rows] == [[5, 6, 7], [], [8]]
    assert rows[-1].tolist() == [8]
    assert rows.to_padded([2, 0, 0], 4, pad_id=-1).tolist() == [
        [8, -1, -1, -1],
        [5, 6, 7, -1],
        [5, 6, 7, -1],
    ]


@given(ROWS)
def test_padded_and_back(rows):
    made = Rows.of(rows)
    padded = made.to_padded(range(len(rows)), length=8)
    assert [row.tolist() for row in Rows.of_padded(padded)] == rows
    assert Rows.of(made) is made


def test_only_padding_at_the_end_is_cut():
    rows = Rows.of_padded(np.array([[9, 3, 9, 9], [9, 9, 9, 9], [1, 2, 3, 4]]), pad_id=9)
    assert [row.tolist() for row in rows] == [[9, 3], [], [1, 2, 3, 4]]


def test_no_rows():
    assert len(Rows.of([])) == 0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1], [0.5]], r"row 1 of shape \(1,\) and float64"),
        ([[[1, 2]]], r"row 0 of shape \(1, 2\) and int64"),
        ([3], r"row 0 of shape \(\)"),
        (["ab"], "row 0 of shape"),
        ([[True]], "bool"),
    ],
)
def test_what_is_no_row_of_integers(rows, message):
    with pytest.raises(TypeError, match=message):
        Rows.of(rows)


def test_too_long_for_its_place():
    with pytest.raises(ValueError, match=r"row 0 has 3 tokens, the length is 2"):
        Rows.of([[1, 2, 3]]).to_padded([0], 2)


def test_a_row_that_is_not_there():
    with pytest.raises(IndexError, match=r"row 1 is out of range for 1 rows"):
        Rows.of([[1]])[1]


def test_a_padded_array_of_another_rank():
    with pytest.raises(ValueError, match=r"\(R, T\), got \(3,\)"):
        Rows.of_padded(np.zeros(3, int))


def test_integers_of_more_than_32_bits():
    with pytest.raises(ValueError, match="integers of 32 bits, got 2147483648 in row 1"):
        Rows.of([[1], [3, 2**31], []])


def test_a_padded_array_without_columns():
    assert Rows.of_padded(np.zeros((3, 0), int)).lengths.tolist() == [0, 0, 0]
