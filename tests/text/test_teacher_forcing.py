"""The target shifted by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_tfm.text import teacher_forcing

TARGETS = st.lists(st.lists(st.integers(0, 99), min_size=2, max_size=6), min_size=1, max_size=9)


@given(TARGETS)
def test_without_the_last_and_without_the_first(targets):
    inputs, labels = teacher_forcing(targets, targets)
    assert [x.tolist() for x in inputs["source"]] == targets
    assert [x.tolist() for x in inputs["target"]] == [x[:-1] for x in targets]
    assert [x.tolist() for x in labels] == [x[1:] for x in targets]


def test_a_decoder_alone_and_other_names():
    inputs, labels = teacher_forcing(None, [[1, 7, 2]], names=("-", "ids"))
    assert list(inputs) == ["ids"]
    assert (inputs["ids"][0].tolist(), labels[0].tolist()) == ([1, 7], [7, 2])
    inputs, _ = teacher_forcing([[3]], [[1, 2]], names=("text", "answer"))
    assert list(inputs) == ["text", "answer"]


def test_refused():
    with pytest.raises(ValueError, match=r"at least two tokens, .* got \[1\] in row 1"):
        teacher_forcing(None, [[1, 2], [1]])
    with pytest.raises(ValueError, match="the same number of rows, got 1 and 2"):
        teacher_forcing([[1]], [[1, 2], [1, 2]])
    with pytest.raises(TypeError, match="float64"):
        teacher_forcing(None, [np.array([1.0, 2.0])])
