"""The backends' fused attention: used where it computes the same, and equal to the plain path.

On TensorFlow the same calls take the plain path.
"""

import functools
import sys

import keras
import numpy as np
import pytest
import reference
from attention_features import built
from compare import assert_close, to_numpy
from keras import ops

from keras_tfm.layers import ALiBi, AttentionProbe, MultiHeadSelfAttention, attention
from keras_tfm.layers.target import export_target

BACKEND = keras.backend.backend()
# The module; the package's attribute is the function.
MODULE = sys.modules["keras_tfm.layers.multi_head_attention.attention"]
# Float32 rounds at 6e-8 and sums here have at most 13 terms, of size 1.
FLOAT32 = 1e-6
# Bfloat16 rounds at 4e-3: queries, keys, scores, weights and output once each.
BFLOAT16 = 2e-2

B, H, T, S, K = 2, 4, 7, 5, 8
rng = np.random.default_rng(17)
KEYS = rng.random((B, 1, 1, S)) < 0.6
KEYS[0, ..., 0], KEYS[1] = True, False  # all keys of the second row are masked
PAIRS = rng.random((B, H, T, S)) < 0.6
PAIRS[1, 2, 3] = False  # a query that sees none
SQUARE = rng.random((B, 1, T, T)) < 0.6
BIAS = rng.normal(size=(1, H, T, S)).astype("float32")
SQUARE_BIAS = rng.normal(size=(H, T, T)).astype("float32")
CASES = {
    "plain": {},
    "keys": {"mask": KEYS},
    "pairs": {"mask": PAIRS},
    "bias": {"bias": BIAS},
    "extra scores and bias": {"extra_scores": BIAS[:, :1], "bias": BIAS},
    "bias and keys": {"bias": BIAS, "mask": KEYS},
    "bias and pairs": {"bias": BIAS, "mask": PAIRS},
    "causal": {"causal": True},
    "causal and pairs": {"causal": True, "mask": SQUARE},
    "causal and bias": {"causal": True, "bias": SQUARE_BIAS},
    "causal, bias and pairs": {"causal": True, "bias": SQUARE_BIAS, "mask": SQUARE},
    "scale": {"scale": 0.7},
}


@pytest.fixture(autouse=True)
def named(monkeypatch):
    """JAX's operation is a function of Python: under its name in a jaxpr, on a CPU too."""
    if BACKEND != "jax":
        return
    import jax

    original = jax.nn.dot_product_attention

    def call(query, key, value, bias=None, mask=None, **options):
        def dot_product_attention(*arrays):
            q, k, v, *others = arrays
            given = iter(others)
            return original(
                q, k, v,
                bias=None if bias is None else next(given),
                mask=None if mask is None else next(given),
                **options,
            )  # fmt: skip

        arrays = [x for x in (bias, mask) if x is not None]
        return jax.jit(dot_product_attention)(query, key, value, *arrays)

    monkeypatch.setattr(jax.nn, "dot_product_attention", call)


def is_fused(function, *arrays):
    """Whether a call runs the backend's fused operation."""
    tensors = [ops.convert_to_tensor(x) for x in arrays]
    if BACKEND == "torch":
        from torch.utils._python_dispatch import TorchDispatchMode

        names = []

        class Recorded(TorchDispatchMode):
            def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
                names.append(str(operation))
                return operation(*args, **(kwargs or {}))

        with Recorded():
            function(*tensors)
        assert ("aten._softmax.default" in names) != any("_scaled_dot_product" in n for n in names)
        return "aten._softmax.default" not in names
    if BACKEND == "jax":
        import jax

        # A function of its own each time: JAX keeps the jaxpr of one that it has seen.
        jaxpr = jax.make_jaxpr(lambda *arrays: function(*arrays))(*tensors)
        return "name=dot_product_attention" in str(jaxpr)
    import tensorflow as tf

    graph = tf.function(function, autograph=False).get_concrete_function(*tensors).graph
    assert "Softmax" in [operation.type for operation in graph.get_operations()]
    return False


def arrays_of(call, groups=H, value_dim=K):
    keys = T if call.get("causal") else S
    shapes = (B, H, T, K), (B, groups, keys, K), (B, groups, keys, value_dim)
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("call", CASES.values(), ids=CASES)
def test_fused_equals_plain(monkeypatch, call, groups):
    arrays = arrays_of(call, groups)
    run = functools.partial(attention, **call)
    assert is_fused(run, *arrays) == (BACKEND != "tensorflow")
    fused = to_numpy(run(*arrays))
    monkeypatch.setattr(MODULE, "is_fused", lambda *arguments: False)
    assert not is_fused(run, *arrays)
    plain = to_numpy(run(*arrays))
    assert_close(fused, plain, FLOAT32)
    mask = call.get("mask")
    if mask is not None:
        seen = mask & np.tri(T, dtype=bool) if call.get("causal") else mask
        hidden = ~np.broadcast_to(seen, (B, H, T, arrays[1].shape[2])).any(axis=-1)
        assert hidden.any()
        np.testing.assert_array_equal(fused[hidden], 0.0)


@pytest.mark.parametrize("groups", [4, 2])
def test_fused_equals_the_float64_reference(groups):
    query, key, value = arrays_of({}, groups)
    repeated = [np.repeat(x, H // groups, axis=1) for x in (key, value)]
    expected = reference.attention(query, *repeated, PAIRS)
    assert_close(attention(query, key, value, mask=PAIRS), expected, FLOAT32)


@pytest.mark.parametrize("call", [CASES["pairs"], CASES["bias and pairs"], CASES["causal"]])
def test_fused_in_bfloat16(monkeypatch, call):
    arrays = [ops.cast(x, "bfloat16") for x in arrays_of(call)]
    run = functools.partial(attention, **call)
    assert is_fused(run, *arrays) == (BACKEND != "tensorflow")
    fused = run(*arrays)
    assert keras.backend.standardize_dtype(fused.dtype) == "bfloat16"
    monkeypatch.setattr(MODULE, "is_fused", lambda *arguments: False)
    assert_close(fused, run(*arrays), BFLOAT16)


def drop(weights):
    return weights * 0.5


@pytest.mark.parametrize(
    "call",
    [
        {"soft_cap": 2.0}, {"dropout": drop},
        {"extra_values": lambda weights: ops.sum(weights, axis=-1, keepdims=True)},
    ],
    ids=["soft cap", "dropout", "extra values"],
)  # fmt: skip
def test_what_needs_scores_or_weights_is_plain(call):
    assert not is_fused(functools.partial(attention, **call), *arrays_of({}))


def test_other_cases_are_plain():
    arrays = arrays_of({})
    assert not is_fused(attention, *(x[None] for x in arrays))  # two leading axes
    with export_target("cpu-edge"):
        assert not is_fused(attention, *arrays)
    if BACKEND == "jax":  # values of another width
        assert not is_fused(attention, *arrays_of({}, value_dim=K + 3))
    # On a CPU products of float16 overflow.
    assert not is_fused(attention, *(ops.cast(x, "float16") for x in arrays))


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"position": ALiBi}, {"window": 3}])
def test_a_layer_is_fused_and_a_probed_one_is_plain(monkeypatch, options):
    options = {**options}
    if "position" in options:
        options["position"] = options["position"]()
    x = rng.normal(size=(B, T, 12)).astype("float32")
    layer = built(MultiHeadSelfAttention(H, num_key_value_heads=2, **options), x.shape)
    mask = rng.random((B, T)) < 0.7

    def run(x):
        return layer(x, mask=mask)

    assert is_fused(run, x) == (BACKEND != "tensorflow")
    fused = run(x)
    with AttentionProbe():
        assert not is_fused(run, x)
    monkeypatch.setattr(MODULE, "is_fused", lambda *arguments: False)
    assert_close(fused, run(x), 5 * FLOAT32)  # and two projections
