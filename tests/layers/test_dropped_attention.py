"""Attention with dropout of its weights: the gradients, what is stored for them, and the seeds."""

import functools
import sys

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from keras import ops

from keras_tfm.layers import MultiHeadSelfAttention, TransformerDecoderBlock, attention
from keras_tfm.layers.dropout import DrawnDropout, Dropout

BACKEND = keras.backend.backend()
on_jax = pytest.mark.skipif(BACKEND != "jax", reason="an implementation for JAX")
on_torch = pytest.mark.skipif(BACKEND != "torch", reason="an operation of PyTorch")

B, H, T, K, V = 2, 4, 7, 6, 5
RATE = 0.3
rng = np.random.default_rng(31)
KEYS = np.arange(T) < np.array([[7], [4]])
PAIRS = rng.random((B, 1, T, T)) < 0.6
PAIRS[0, 0, 3] = False  # a query that sees none
CASES = {
    "plain": {},
    "causal": {"causal": True},
    "keys": {"mask": KEYS[:, None, None], "causal": True},
    "pairs": {"mask": PAIRS},
    "bias": {"bias": rng.normal(size=(1, H, T, T)).astype("float32"), "causal": True},
    "one bias for all heads": {"bias": rng.normal(size=(B, 1, 1, T)).astype("float32")},
    "window": {"window": 3, "causal": True},
    "both sides": {"window": 2},
    "more before than after": {"window": (3, 2)},
}
# Sums of seven float32 terms of size 3, three times one after another.
FLOAT32 = 3e-6


def drawn(seed=(3, 5), rate=RATE):
    """Dropout with a fixed seed; the layer has a seed of its own, so PyTorch is seeded as well."""
    dtype = {"tensorflow": "int64", "jax": "uint32", "torch": "int64"}[BACKEND]
    return DrawnDropout(Dropout(rate, seed=1), ops.convert_to_tensor(np.array(seed, dtype)))


def gradients(function, upstream, *arrays):
    """`function(*arrays)`, and the gradients of the sum of that times `upstream`."""
    arrays = [ops.convert_to_tensor(x) for x in arrays]
    if BACKEND == "jax":
        import jax

        @jax.jit
        def run(upstream, *arrays):
            y, pull = jax.vjp(function, *arrays)
            return y, *pull(upstream)

        return run(ops.convert_to_tensor(upstream), *arrays)
    if BACKEND == "torch":
        arrays = [x.detach().requires_grad_() for x in arrays]
        y = function(*arrays)
        ops.sum(y * ops.convert_to_tensor(upstream)).backward()
        return y.detach(), *(x.grad for x in arrays)
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(arrays)
        y = function(*arrays)
        total = tf.reduce_sum(y * upstream)
    return y, *tape.gradient(total, arrays)


def arrays_of(groups, value_dim=V):
    shapes = (B, H, T, K), (B, groups, T, K), (B, groups, T, value_dim)
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


def reference(kept, upstream, query, key, value, mask=None, bias=None, causal=False, window=None):
    """Attention and its gradients in float64, where `kept` are the weights that dropout keeps."""
    groups = key.shape[1]
    query, key, value, upstream = (x.astype("float64") for x in (query, key, value, upstream))
    key, value = (np.repeat(x, H // groups, axis=1) for x in (key, value))
    distances = np.arange(T) - np.arange(T)[:, None]
    seen = np.ones((B, H, T, T), bool) if mask is None else np.broadcast_to(mask, (B, H, T, T))
    seen = seen & (distances <= 0) if causal else seen
    if window is not None:
        before, after = window if isinstance(window, tuple) else (window, window)
        seen = seen & (-before < distances) & (distances < after)
    scores = query @ key.swapaxes(2, 3) / np.sqrt(K) + (0 if bias is None else bias)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True)) * seen
    weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-30)
    factor = kept / (1 - RATE)
    of_weights = factor * (upstream @ value.swapaxes(2, 3))
    of_scores = weights * (of_weights - np.sum(weights * of_weights, axis=-1, keepdims=True))

    def grouped(x):
        return x.reshape(B, groups, H // groups, *x.shape[2:]).sum(axis=2)

    of_query = of_scores @ key / np.sqrt(K)
    of_key = grouped(of_scores.swapaxes(2, 3) @ query) / np.sqrt(K)
    of_value = grouped((factor * weights).swapaxes(2, 3) @ upstream)
    result = [(factor * weights) @ value, of_query, of_key, of_value]
    if bias is not None:
        axes = tuple(i for i, size in enumerate(bias.shape) if size == 1)
        result.append(of_scores.sum(axis=axes, keepdims=True))
    return result


def kept_weights(dropout, query, key, call):
    """Which attention weights dropout keeps: the results for values that are a unit matrix."""
    value = np.broadcast_to(np.eye(T, dtype="float32"), (B, key.shape[1], T, T))
    run = functools.partial(attention, dropout=dropout, **call)
    if BACKEND == "jax":
        import jax

        run = jax.jit(run)
    return to_numpy(run(query, key, value)) != 0


@pytest.mark.parametrize("rows", [256, 3], ids=["whole", "blocks"])
@pytest.mark.parametrize(
    ("call", "groups"),
    [(call, (4, 2, 1)[i % 3]) for i, call in enumerate(CASES.values())],
    ids=CASES,
)
def test_values_and_gradients_are_those_of_a_reference(monkeypatch, call, groups, rows):
    if BACKEND == "jax":
        monkeypatch.setattr("keras_tfm.layers.jax.dropped_attention.ROWS", rows)
    elif rows == 3:
        pytest.skip("blocks within the operation are JAX's")
    dropout, arrays = drawn(), arrays_of(groups)
    upstream = rng.normal(size=(B, H, T, V)).astype("float32")
    kept = kept_weights(dropout, *arrays[:2], call)
    expected = reference(kept, upstream, *arrays, **call)
    if "bias" in call:
        arrays.append(call["bias"])

    def run(query, key, value, *bias):
        given = {**call, "bias": bias[0]} if bias else call
        return attention(query, key, value, dropout=dropout, **given)

    for actual, wanted in zip(gradients(run, upstream, *arrays), expected, strict=True):
        assert_close(actual, wanted, FLOAT32)


@pytest.mark.parametrize("call", [CASES["plain"], CASES["keys"]], ids=["plain", "keys"])
def test_the_fused_operation_drops_what_its_twin_drops(call):
    """The plain path, which a function that is no `DrawnDropout` takes."""
    dropout, arrays = drawn(), arrays_of(2)
    fused = attention(*arrays, dropout=dropout, **call)
    plain = attention(*arrays, dropout=lambda weights: dropout(weights), **call)
    assert_close(fused, to_numpy(plain), FLOAT32)


def test_seeds_and_the_rate():
    query = np.zeros((8, 4, 64, 3), "float32")
    value = np.broadcast_to(np.eye(64, dtype="float32"), (8, 4, 64, 64))

    def kept(seed):
        return to_numpy(attention(query, query, value, dropout=drawn(seed))) != 0

    first, again, other = kept((3, 5)), kept((3, 5)), kept((3, 6))
    np.testing.assert_array_equal(first, again)
    # 131,072 draws: a deviation of sqrt(0.3 0.7 / n) = 1.3e-3, of correlations 2.8e-3.
    for x in (first, other):
        assert abs(x.mean() - (1 - RATE)) < 5e-3
    assert abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 1.1e-2
    heads = np.corrcoef(first.swapaxes(0, 1).reshape(4, -1))[np.triu_indices(4, 1)]
    assert np.abs(heads).max() < 2.2e-2  # a quarter of the draws


def test_each_step_of_a_layer_drops_other_weights():
    layers = [MultiHeadSelfAttention(2, dropout=0.5) for _ in range(2)]
    x = rng.normal(size=(2, 9, 8)).astype("float32")
    results = []
    for layer in layers:
        keras.utils.set_random_seed(7)
        layer.dropout_layer.seed_generator.state.assign(np.array([7, 0]))
        layer.build(x.shape)
        results.append([to_numpy(layer(x, training=True)) for _ in range(2)])
    (a, b), _ = results
    assert np.abs(a - b).max() > 1e-3
    np.testing.assert_array_equal(results[0], results[1])


@on_jax
@pytest.mark.parametrize("length", [64, 2048], ids=["short", "long"])
def test_no_scores_and_no_masks_are_stored_for_the_backward_pass(length):
    """Neither by attention nor by the other dropouts of a block: activations and seeds are."""
    import jax

    # A ReLU would store where it is 0.
    block = TransformerDecoderBlock(8, 2, cross_attention=False, dropout=0.1, activation="tanh")
    block.build((1, length, 4))
    x = jax.ShapeDtypeStruct((1, length, 4), "float32")

    def stored(x):
        return jax.tree.leaves(jax.vjp(lambda x: block(x, training=True), x)[1])

    leaves = jax.eval_shape(stored, x)
    assert len(leaves) > 10
    assert max(leaf.size for leaf in leaves) <= length * 3 * 8  # queries, keys and values
    assert not [leaf for leaf in leaves if leaf.dtype == bool and leaf.size > 1]


@on_jax
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_dropout_takes_no_memory(dropout):
    """Of the compiled program: XLA does not keep the bits of the forward pass either."""
    import jax

    length, heads = 256, 4
    blocks = [
        TransformerDecoderBlock(32, heads, cross_attention=False, dropout=dropout, name=f"b{i}")
        for i in range(4)
    ]
    for block in blocks:
        block.build((1, length, 16))

    def loss(x, count):
        for block in blocks[:count]:
            x = block(x, training=True)
        return ops.sum(x)

    def needed(count):
        step = jax.jit(jax.grad(lambda x: loss(x, count)))
        compiled = step.lower(jax.ShapeDtypeStruct((1, length, 16), "float32")).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    scores = heads * length**2 * 4
    of_three = needed(4) - needed(1)
    if dropout:  # less than a quarter of the scores of a layer
        assert of_three / 3 < scores / 4
    else:  # without dropout XLA's own attention stores them
        assert of_three / 3 > scores


@on_torch
@pytest.mark.parametrize("seed", [None, 3])
def test_one_operation_of_pytorch_with_dropout(monkeypatch, seed):
    import torch

    seen = []
    original = torch.nn.functional.scaled_dot_product_attention

    def recorded(*arguments, **options):
        seen.append(arguments[4])
        return original(*arguments, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", recorded)
    layer = MultiHeadSelfAttention(2, dropout=0.25)
    layer.dropout_layer.seed = seed
    x = rng.normal(size=(2, 9, 8)).astype("float32")
    layer.build(x.shape)
    before = torch.get_rng_state()
    layer(x, training=True)
    layer(x, training=False)
    assert seen == [0.25, 0.0]
    # With a seed PyTorch's generator is as before; without, it continues.
    assert torch.equal(before, torch.get_rng_state()) == (seed is not None)


@on_torch
@pytest.mark.parametrize("seed", [None, 3])
def test_recomputed_blocks_drop_the_same(monkeypatch, seed):
    """The gradient in blocks is that of the values: a difference of the loss in one direction."""
    import torch

    blockwise = sys.modules["keras_tfm.layers.multi_head_attention.blockwise"]
    monkeypatch.setattr(blockwise, "FEW", 1)
    monkeypatch.setattr(blockwise, "BLOCK", 3)
    layer = MultiHeadSelfAttention(2, causal=True, dropout=0.5)
    layer.dropout_layer.seed = seed
    x, step = (torch.tensor(rng.normal(size=(1, 8, 6)), dtype=torch.float32) for _ in range(2))
    layer.build(x.shape)

    def loss(x):
        torch.manual_seed(11)
        layer.dropout_layer.seed_generator.state.assign(np.array([7, 0]))
        return torch.sum(torch.sin(layer(x, training=True)))

    loss(x.requires_grad_()).backward()
    with torch.no_grad():
        slope = (loss(x + 0.01 * step) - loss(x - 0.01 * step)) / 0.02
    # A central difference: an error of 1e-4, and float32 rounds the loss at 1e-6 / 0.02. With other
    # masks it would be another function's.
    assert abs(float(slope - torch.sum(x.grad * step))) < 5e-3
