"""Flash attention on a GPU, as far as a CPU can show it.

JAX: programs lowered for CUDA hold cuDNN's calls, forward and backward, and the same calls computed
by XLA give what plain attention gives. PyTorch: the calls of `scaled_dot_product_attention`.
"""

import itertools
import json
import logging
import re
import sys

import keras
import numpy as np
import pytest
from attention_features import built
from compare import assert_close, to_numpy
from keras import ops

from keras_tfm.layers import ALiBi, MultiHeadSelfAttention, RelativePositionBias, attention
from keras_tfm.layers.multi_head_attention.attention import stores_no_scores

BACKEND = keras.backend.backend()
on_jax = pytest.mark.skipif(BACKEND != "jax", reason="cuDNN is called by JAX")
on_torch = pytest.mark.skipif(BACKEND != "torch", reason="an operation of PyTorch")
# The module; the package's attribute is the function.
ATTENTION = sys.modules["keras_tfm.layers.multi_head_attention.attention"]

if BACKEND == "jax":
    import jax
    import jax.numpy as jnp
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    from keras_tfm.layers.jax import flash_attention as flash

# Odd lengths and a width that is no multiple of 8: all are padded for cuDNN.
B, H, T, S, K = 3, 4, 7, 5, 6
rng = np.random.default_rng(29)
RIGHT = np.arange(T) < np.array([[7], [4], [0]])
LEFT, HOLES = RIGHT[:, ::-1].copy(), rng.random((B, T)) < 0.6
PAIRS = rng.random((B, 1, T, T)) < 0.6
BIAS = rng.normal(size=(1, H, T, T)).astype("float32")
PADDINGS = {"right": RIGHT, "left": LEFT, "holes": HOLES}
CASES = {
    **{name: {"mask": keys[:, None, None]} for name, keys in PADDINGS.items()},
    **{
        f"causal, {name}": {"mask": keys[:, None, None], "causal": True}
        for name, keys in PADDINGS.items()
    },
    "one row for all": {"mask": RIGHT[1]},
    "pairs": {"mask": PAIRS},
    "causal and pairs": {"mask": PAIRS, "causal": True},
    "bias": {"bias": BIAS},
    "causal and bias": {"bias": BIAS, "causal": True},
    "bias and right": {"bias": BIAS, "mask": RIGHT[:, None, None]},
    "causal, bias and right": {"bias": BIAS, "mask": RIGHT[:, None, None], "causal": True},
    "causal, bias and left": {"bias": BIAS, "mask": LEFT[:, None, None], "causal": True},
    "causal window": {"causal": True, "window": 3},
    "window": {"window": 3},
    "more before than after": {"window": (3, 2)},
    "causal window and right": {"causal": True, "window": 3, "mask": RIGHT[:, None, None]},
    "causal window and bias": {"causal": True, "window": 3, "bias": BIAS},
}


@pytest.fixture
def on_gpu(monkeypatch):
    """JAX takes this machine for one with a Hopper GPU and cuDNN 9.10, up to the compilation."""
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(cudnn, "is_cuda_compute_capability_equal", lambda capability: False)
    monkeypatch.setattr(flash, "platform", lambda: "gpu")
    monkeypatch.setattr(flash, "compile_for_gpu", lowered)
    flash.is_accepted.cache_clear()
    yield
    flash.is_accepted.cache_clear()


def lowered(traced):
    return traced.lower(lowering_platforms=("cuda",))


def program(function, *inputs):
    """The StableHLO of a function and its gradients, for CUDA."""

    def loss(*inputs):
        return jnp.sum(jnp.square(function(*inputs).astype("float32")))

    return lowered(jax.jit(jax.value_and_grad(loss)).trace(*inputs)).as_text()


def calls(text):
    """cuDNN's calls in a program: their names, and whether they are padded or causal."""
    found = []
    for line in text.splitlines():
        name = re.search(r"@__cudnn\$fmha(\w+)\(", line)
        if name:
            config = re.search(r'backend_config = "((?:[^"\\]|\\.)*)"', line)[1]
            config = json.loads(config.replace("\\22", '"'))["cudnn_fmha_backend_config"]
            found.append((name[1], config["mask_type"], config["sliding_window_length"]))
    return found


FORWARD, BACKWARD = "Softmax", "SoftmaxBackward"
BIASED, BIASED_BACKWARD = "ScaleBiasSoftmax", "ScaleBiasSoftmaxBackward"
LAYERS = {
    "encoder": ({}, False, {(FORWARD, "NO_MASK", 0), (BACKWARD, "NO_MASK", 0)}),
    "decoder": ({"causal": True}, False, {(FORWARD, "CAUSAL", 0), (BACKWARD, "CAUSAL", 0)}),
    "padded encoder": (
        {},
        True,
        {
            (FORWARD, "PADDING", 0), (BACKWARD, "PADDING", 0),
            (BIASED, "NO_MASK", 0), (BIASED_BACKWARD, "NO_MASK", 0),
        },
    ),
    "padded decoder": (
        {"causal": True},
        True,
        {
            (FORWARD, "PADDING_CAUSAL", 0), (BACKWARD, "PADDING_CAUSAL", 0),
            (BIASED, "NO_MASK", 0), (BIASED_BACKWARD, "NO_MASK", 0),
        },
    ),
    "grouped heads": (
        {"causal": True, "num_key_value_heads": 2},
        True,
        {
            (FORWARD, "PADDING_CAUSAL", 0), (BACKWARD, "PADDING_CAUSAL", 0),
            (BIASED, "NO_MASK", 0), (BIASED_BACKWARD, "NO_MASK", 0),
        },
    ),
    "T5's positions": (
        {"position": RelativePositionBias},
        True,
        {
            (BIASED, "PADDING", 0), (BIASED_BACKWARD, "PADDING", 0),
            (BIASED, "NO_MASK", 0), (BIASED_BACKWARD, "NO_MASK", 0),
        },
    ),
    "ALiBi": (
        {"position": ALiBi, "causal": True},
        False,
        {(BIASED, "CAUSAL", 0), (BIASED_BACKWARD, "CAUSAL", 0)},
    ),
    "window": (
        {"causal": True, "window": 3},
        False,
        {(FORWARD, "CAUSAL", 3), (BACKWARD, "CAUSAL", 3)},
    ),
    "padded window": (
        {"causal": True, "window": 3},
        True,
        {(BIASED, "NO_MASK", 0), (BIASED_BACKWARD, "NO_MASK", 0)},
    ),
}  # fmt: skip


@on_jax
@pytest.mark.parametrize("length", [16, 13])
@pytest.mark.parametrize(("options", "padded", "expected"), LAYERS.values(), ids=LAYERS)
def test_the_program_of_a_layer_holds_the_fused_call(on_gpu, options, padded, expected, length):
    options = {**options}
    if "position" in options:
        options["position"] = options["position"]()
    layer = built(
        MultiHeadSelfAttention(4, head_dim=24, dtype="mixed_bfloat16", **options), (2, length, 12)
    )
    x = jax.ShapeDtypeStruct((2, length, 12), "float32")
    if padded:
        mask = jax.ShapeDtypeStruct((2, length), bool)
        text = program(lambda x, mask: layer(x, mask=mask), x, mask)
    else:
        text = program(layer, x)
    if length % 2 and not padded and not options:  # a key is added, and hidden
        expected = {(name, "PADDING", window) for name, _, window in expected}
    assert set(calls(text)) == expected
    assert "exponential" not in text  # no softmax beside it
    if "position" not in options or not padded:  # nor scores; a bias has their size with a mask
        assert not any(f"<2x4x{n}x{n}x" in text for n in (length, length + length % 2))


@on_jax
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_mask_of_pairs_is_a_bias_for_both_halves(on_gpu, dtype):
    arrays = [jax.ShapeDtypeStruct((2, 4, 16, 8), dtype)] * 3
    mask = np.tri(16, dtype=bool)[None, None].repeat(2, axis=0)
    text = program(lambda *arrays: attention(*arrays, mask=mask), *arrays)
    assert set(calls(text)) == {(BIASED, "NO_MASK", 0), (BIASED_BACKWARD, "NO_MASK", 0)}


@on_jax
def test_what_cudnn_refuses_is_computed_by_xla_without_a_word(on_gpu, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    mask = np.ones((2, 1, 1, 16), bool)
    for width, dtype in ((264, "bfloat16"), (8, "float32")):  # too wide, too precise
        arrays = [jax.ShapeDtypeStruct((2, 4, 16, width), dtype)] * 3
        text = program(lambda *arrays: attention(*arrays, mask=mask), *arrays)
        assert not calls(text)
        assert "exponential" in text
    assert not [r for r in caplog.records if r.exc_info or "cudnn" in r.getMessage()]
    assert capfd.readouterr() == ("", "")


@on_jax
def test_what_the_compiler_refuses_is_computed_by_xla(on_gpu, monkeypatch):
    """JAX does not know all rules of cuDNN: here, that it had none for biases."""

    def refuse(traced):
        text = lowered(traced).as_text()
        if "ScaleBias" in text:
            raise RuntimeError("CUDNN_STATUS_NOT_SUPPORTED")

    monkeypatch.setattr(flash, "compile_for_gpu", refuse)
    arrays = [jax.ShapeDtypeStruct((2, 4, 16, 8), "bfloat16")] * 3
    keys = jax.ShapeDtypeStruct((2, 1, 1, 16), bool)
    text = program(lambda *x: attention(*x[:3], mask=x[3]), *arrays, keys)
    assert set(calls(text)) == {(FORWARD, "PADDING", 0), (BACKWARD, "PADDING", 0)}
    assert "exponential" in text  # for padding that is not at the right


@on_jax
def test_a_long_sequence_is_one_call(on_gpu):
    """No blocks, which would be recomputed: cuDNN stores no scores."""
    layer = built(MultiHeadSelfAttention(2, head_dim=8, causal=True, dtype="bfloat16"), (1, 4, 8))
    text = program(layer, jax.ShapeDtypeStruct((1, 4096, 8), "bfloat16"))
    assert calls(text) == [(FORWARD, "CAUSAL", 0), (BACKWARD, "CAUSAL", 0)]
    query = jax.ShapeDtypeStruct((64, 2, 4096, 8), "bfloat16")
    assert stores_no_scores(query, query, (None,), None, False)
    assert not stores_no_scores(query, query, ("mask",), None, False)  # 2^30 values


@on_jax
@pytest.mark.parametrize(
    ("call", "groups"), list(zip(CASES.values(), itertools.cycle([4, 2, 1]))), ids=CASES
)
def test_the_calls_for_cudnn_compute_attention(monkeypatch, call, groups):
    """Values and gradients, with XLA in place of cuDNN; both are called by the same function."""
    original = jax.nn.dot_product_attention
    seen = []

    def by_xla(*arrays, implementation, **options):
        seen.append(implementation)
        bias, query, key = options["bias"], *arrays[:2]
        if bias is not None:
            assert bias.shape[2:] == (query.shape[1], key.shape[1])
            assert not query.shape[1] % 2 and not key.shape[1] % 2
        assert query.shape[3] % 8 == 0
        return original(*arrays, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", by_xla)
    monkeypatch.setattr(flash, "is_accepted", lambda form: True)
    monkeypatch.setattr(flash, "is_available", lambda query, key: True)
    is_square = any(name in call for name in ("causal", "window", "bias", "mask"))
    keys = T if is_square else S
    shapes = (B, H, T, K), (B, groups, keys, K), (B, groups, keys, K)
    arrays = [jnp.asarray(rng.normal(size=shape), "float32") for shape in shapes]
    if "bias" in call:
        arrays.append(jnp.asarray(call["bias"]))

    def both(*arrays):
        inputs = {**call, "bias": arrays[3]} if "bias" in call else call
        y = attention(*arrays[:3], **inputs)
        return jnp.sum(jnp.sin(3 * y)), y

    def results():
        run = jax.jit(jax.grad(lambda *x: both(*x), range(len(arrays)), has_aux=True))
        gradients, y = run(*arrays)
        return y, *gradients

    fused = results()
    assert set(seen) == {"cudnn"}
    monkeypatch.setattr(ATTENTION, "is_fused", lambda *arguments: False)
    for actual, expected in zip(fused, results(), strict=True):
        assert_close(actual, to_numpy(expected), 5e-6)  # sums of seven terms, squared by the loss


@on_torch
@pytest.mark.parametrize("call", CASES.values(), ids=CASES)
def test_one_operation_of_pytorch(call):
    """The mask is not of the size of the scores, and queries and keys are not copied."""
    import torch
    from torch.overrides import TorchFunctionMode

    seen = []

    class Recorded(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is torch.nn.functional.scaled_dot_product_attention:
                seen.append((args, kwargs or {}))
            return function(*args, **(kwargs or {}))

    arrays = [ops.convert_to_tensor(rng.normal(size=(B, H, T, K)).astype("float32"))] * 3
    with Recorded():
        attention(*arrays, **call)
    (((query, key, value, mask, dropout, causal), _),) = seen
    assert query is arrays[0] and key is arrays[1] and value is arrays[2]
    only_causal = set(call) == {"causal"}
    assert causal == only_causal and dropout == 0.0
    assert (mask is None) == only_causal
    if mask is not None and "bias" not in call:
        assert mask.shape[1] == 1
