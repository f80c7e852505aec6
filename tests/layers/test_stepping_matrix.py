"""Fault 19: a token at a time equals all at once, for every pair of what a block has."""

import numpy as np
import pytest
from attention_features import POSITIONS, built, randomize, stepped
from blocks import decoder_block, head_norms
from compare import assert_close, to_numpy
from execution import compiled, tensorflow_only
from keras import Input, Model, ops

from keras_tfm.layers import (
    DecodingScope,
    PositionalEncoding,
    PositionEmbedding,
)

# Float32 rounds at 6e-8; the same sums in another order, through two blocks.
FLOAT32 = 1e-5

B, T, S, D = 2, 7, 3, 12
LEFT = np.array([[True] * T, [False, False] + [True] * 5])
RIGHT = np.array([[True] * T, [True] * 3 + [False] * 4])
# Other scalings and Shaw's keys alone are stepped in the tests of their own.
ELSEWHERE = "rotary, linear", "Shaw, keys only"
PARTS = {name: part for name, part in POSITIONS.items() if name not in ELSEWHERE}
# What is added to the input.
ADDED = {
    "sinusoidal": PositionalEncoding,
    "learned": lambda: PositionEmbedding(T),
}
ORDERS = {
    "post": {},
    "pre, rms": {"normalize_first": True, "norm": "rms_norm"},
    "sandwich": {"normalize_first": True, "sandwich_norm": True},
}
HEADS = {
    "plain": {"num_heads": 2},
    "grouped": {"num_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "value_dim": 5},
    "one key head": {"num_heads": 2, "num_key_value_heads": 1, **head_norms()},
}
every_position = pytest.mark.parametrize("position", [*PARTS, *ADDED])
# Each order with each kind of heads, each of both with and without a window.
BLOCKS = [
    (order, heads, (None, 3)[(i + j) % 2])
    for i, order in enumerate(ORDERS)
    for j, heads in enumerate(HEADS)
]
every_block = pytest.mark.parametrize(("order", "heads", "window"), BLOCKS)


@pytest.fixture
def x():
    return np.random.default_rng(7).normal(size=(B, T, D)).astype("float32")


def decoder(position, order, heads, window, depth=1, **options):
    """A function of (x, mask) with random weights."""
    added = [ADDED[position]()] if position in ADDED else []
    blocks = []
    for _ in range(depth):
        part = POSITIONS[position]() if position in POSITIONS else None
        blocks.append(
            decoder_block(
                5, cross_attention=False, position=part, window=window,
                **ORDERS[order], **HEADS[heads], **options,
            )
        )  # fmt: skip
    for seed, layer in enumerate([*added, *blocks]):
        built(layer, (B, T, D), seed=seed)

    def call(x, mask=None):
        for layer in added:
            x = layer(x)
        for block in blocks:
            x = block(x, mask=mask)
        return x

    return call


@every_position
@every_block
def test_stepped_equals_full(x, position, order, heads, window):
    call = decoder(position, order, heads, window)
    actual = stepped(lambda start, end: call(x[:, start:end]), [3, 1, 3])
    assert_close(actual, call(x), FLOAT32)


@every_position
@pytest.mark.parametrize("mask", [LEFT, RIGHT], ids=["left", "right"])
def test_stepped_equals_full_with_padding(x, position, mask):
    call = decoder(position, "post", "grouped", window=3, depth=2)
    actual = stepped(
        lambda start, end: call(x[:, start:end], mask[:, start:end]), [1, 1, 2, 3], T + 3
    )
    assert_close(actual, call(x, mask), FLOAT32)


@pytest.mark.parametrize(
    ("position", "mode"),
    [
        *((position, "eager") for position in (*PARTS, *ADDED)),
        *(pytest.param(position, "graph", marks=tensorflow_only) for position in (*PARTS, *ADDED)),
        *(pytest.param(position, "xla", marks=tensorflow_only) for position in ("rotary", "Shaw")),
    ],
)
def test_stepped_equals_full_at_a_position_that_is_a_tensor(x, position, mode):
    call = decoder(position, "pre, rms", "grouped", 3, soft_cap=2.0)

    def step(cache, x, position):
        with DecodingScope(cache, position=position, length=T) as scope:
            y = call(x)
        return y, scope.cache

    with DecodingScope(length=T) as scope:
        outputs = [to_numpy(call(x[:, :4]))]
    step, cache = compiled(mode, step), scope.cache
    for p in range(4, T):
        arguments = (ops.convert_to_tensor(a) for a in (x[:, p : p + 1], np.int32(p)))
        y, cache = step(cache, *arguments)
        outputs.append(to_numpy(y))
    assert_close(np.concatenate(outputs, axis=1), call(x), FLOAT32)


@every_position
def test_stepped_equals_full_beside_a_context(x, position):
    """With cross-attention, and an encoder that has the same position and a longer input."""
    context = np.random.default_rng(8).normal(size=(B, T + 4, D)).astype("float32")
    options = {"norm": "rms_norm", "normalize_first": True, "gated": True, "activation": "silu"}
    part = POSITIONS[position]() if position in POSITIONS else None
    added = ADDED[position]() if position in ADDED else None
    source, target = Input((None, D)), Input((None, D))
    block = decoder_block(5, 2, position=part, **options)
    y = target if added is None else added(target)
    model = randomize(Model([source, target], block(y, source)))
    actual = stepped(lambda start, end: model([context, x[:, start:end]]), [2, 1, 4])
    assert_close(actual, model([context, x]), FLOAT32)


@every_position
def test_a_position_does_change_the_result(x, position):
    """So that none of the above compares what has no position at all.

    A single causal layer sees what is before the last token as a set.
    """
    call = decoder(position, "pre, rms", "plain", None)
    swapped = x[:, [0, 1, 2, 3, 5, 4, 6]]
    moved = np.abs(to_numpy(call(swapped))[:, -1] - to_numpy(call(x))[:, -1]).max()
    assert (moved > 1e-3) == (position != "none")
