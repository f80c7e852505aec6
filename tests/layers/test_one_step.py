"""One decode step reads from top to bottom: few files, few crossings, none entered twice."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from attention_features import built
from compare import assert_close, to_numpy

import keras_tfm
from keras_tfm.generation import SteppedModel
from keras_tfm.layers import DecodingScope, MultiHeadSelfAttention
from keras_tfm.models import llama

PACKAGE = Path(keras_tfm.__file__).parent
B, T, D = 2, 5, 6


class Files:
    """Which files of `keras_tfm` a call enters, and from which others."""

    def __init__(self):
        self.entered = []
        self.crossings = []
        self.back = []
        self._stack = []

    def __call__(self, frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if PACKAGE not in path.parents:
            return
        name = path.relative_to(PACKAGE).as_posix()
        if event == "call":
            if self._stack and self._stack[-1] != name:
                self.crossings.append(f"{self._stack[-1]} > {name}")
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
    attention = "layers/multi_head_attention"
    assert files.entered[0] == f"{attention}/multi_head_self_attention.py"
    assert f"{attention}/stepped_attention.py" in files.entered
    assert f"{attention}/attention.py" not in files.entered
    assert len(files.entered) <= 7, files.entered
    assert not files.back, "\n".join(files.back)


@pytest.mark.default
def test_a_token_of_a_llama_crosses_few_files():
    """Each a page that somebody reads who follows a token; KerasHub's step: 11 files, 24."""
    model = llama(31, dim=8, num_layers=1, num_heads=2, num_key_value_heads=1, intermediate_dim=7)
    stepped = SteppedModel(model)
    tokens = np.array([[3, 5, 2], [7, 11, 4]], "int32")
    with DecodingScope(length=3) as scope:
        stepped.step({}, tokens[:, :2])
    cache = scope.cache

    def step():
        with DecodingScope(cache, position=2, length=3) as scope:
            logits = stepped.step({}, tokens[:, 2:])
        return logits, scope.cache

    (logits, _), files = files_of(step)
    assert_close(logits, to_numpy(model(tokens))[:, 2:], 1e-5)  # sums in another order
    assert len(files.entered) <= 16, files.entered
    assert len(files.crossings) <= 50, files.crossings


def test_a_call_back_is_found():
    """So that the test above can fail."""
    files = Files()
    for event, name in (
        ("call", "attention.py"), ("call", "attention.py"), ("call", "masks.py"),
        ("call", "attention.py"), ("return", "attention.py"), ("return", "masks.py"),
        ("return", "attention.py"), ("call", "masks.py"), ("return", "masks.py"),
    ):  # fmt: skip
        code = compile("0", str(PACKAGE / name), "eval")
        files(SimpleNamespace(f_code=code, f_lineno=1), event, None)
    assert files.entered == ["attention.py", "masks.py"]
    assert files.crossings.count("attention.py > masks.py") == 2 and len(files.crossings) == 3
    (back,) = files.back
    assert back.startswith("attention.py > attention.py > masks.py > attention.py (")
