"""One step of causal attention reads from top to bottom: few files, none entered twice."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from attention_features import built
from compare import assert_close, to_numpy

import keras_tfm.layers
from keras_tfm.layers import DecodingScope, MultiHeadSelfAttention

LAYERS = Path(keras_tfm.layers.__file__).parent
B, T, D = 2, 5, 6


class Files:
    """Which files of `keras_tfm.layers` a call enters, and from which others."""

    def __init__(self):
        self.entered = []
        self.back = []
        self._stack = []

    def __call__(self, frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if LAYERS not in path.parents:
            return
        name = path.relative_to(LAYERS).as_posix()
        if event == "call":
            if name not in self.entered:
                self.entered.append(name)
            # The functions of one file may call each other; not through another one.
            if name in self._stack and self._stack[-1] != name:
                function = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                self.back.append(f"{' > '.join(self._stack)} > {name} ({function})")
            self._stack.append(name)
        elif event == "return" and self._stack:
            self._stack.pop()


def files_of(function):
    """What `function()` returns, and the files."""
    files = Files()
    before = sys.getprofile()
    sys.setprofile(files)
    try:
        result = function()
    finally:
        sys.setprofile(before)
    return result, files


@pytest.fixture
def x():
    return np.random.default_rng(3).normal(size=(B, T, D)).astype("float32")


def test_a_step_crosses_few_files_and_never_calls_back(x):
    layer = built(MultiHeadSelfAttention(2, causal=True), x.shape)
    whole = to_numpy(layer(x))
    with DecodingScope(length=T) as scope:
        layer(x[:, : T - 1])
    cache = scope.cache

    with DecodingScope(cache, position=T - 1, length=T):
        y, files = files_of(lambda: layer(x[:, T - 1 :]))
    assert_close(y, whole[:, T - 1 :], 1e-5)  # sums in another order
    assert files.entered[0] == "multi_head_self_attention.py"
    assert "stepped_attention.py" in files.entered
    assert "attention.py" not in files.entered
    assert len(files.entered) <= 8, files.entered
    assert not files.back, "\n".join(files.back)


def test_a_call_back_is_found():
    """So that the test above can fail."""
    files = Files()
    for event, name in (
        ("call", "attention.py"), ("call", "attention.py"), ("call", "masks.py"),
        ("call", "attention.py"), ("return", "attention.py"), ("return", "masks.py"),
        ("return", "attention.py"), ("call", "masks.py"), ("return", "masks.py"),
    ):  # fmt: skip
        code = compile("0", str(LAYERS / name), "eval")
        files(SimpleNamespace(f_code=code, f_lineno=1), event, None)
    assert files.entered == ["attention.py", "masks.py"]
    (back,) = files.back
    assert back.startswith("attention.py > attention.py > masks.py > attention.py (")
