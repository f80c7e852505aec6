"""Fault 54: configurations drawn at random work in every way, or are refused by name."""

import re
from functools import partial

import keras
import numpy as np
import pytest
from attention_features import stepped
from blocks import decoder_block, encoder_block, head_norms
from compare import assert_close, to_numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_tfm.layers import (
    ALiBi,
    FeedForward,
    LinearScaling,
    MultiHeadSelfAttention,
    NTKScaling,
    PositionalEncoding,
    PositionEmbedding,
    RelativePositionBias,
    RelativePositionEmbedding,
    RotaryEmbedding,
    TokenEmbedding,
    YaRNScaling,
)

B, T, S, D = 2, 5, 3, 12
# Float32 rounds at 6e-8; sums in another order, of values that unscaled residuals may make large.
TOLERANCE = 2e-5
drawn = settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

# What is no value of any argument that is a number.
NONSENSE = st.sampled_from([0, -1, 2.5, "two", float("nan"), float("inf"), [3], True, 10**9])


def optional(strategy):
    return st.one_of(st.none(), strategy)


@st.composite
def scalings(draw):
    factor = draw(st.floats(1, 8))
    return draw(
        st.sampled_from([None, LinearScaling(factor), NTKScaling(factor), YaRNScaling(factor, 16)])
    )


@st.composite
def positions(draw, head_dim):
    """What makes a part that fits heads of this width."""
    even = list(range(2, head_dim + 1, 2))
    kinds = [
        st.just(lambda: None),
        st.just(ALiBi),
        st.builds(
            partial,
            st.just(RelativePositionBias),
            st.sampled_from([4, 8, 32]),
            st.integers(17, 128),
        ),
        st.builds(partial, st.just(RelativePositionEmbedding), st.integers(1, 9), st.booleans()),
    ]
    if even:
        kinds.append(
            st.builds(
                partial,
                st.just(RotaryEmbedding),
                max_wavelength=st.floats(10, 1e6),
                rotary_dim=st.sampled_from(even),
                interleaved=st.booleans(),
                scaling=scalings(),
            )
        )
    return draw(st.one_of(*kinds))


@st.composite
def heads(draw):
    num_heads = draw(st.sampled_from([1, 2, 3, 4, 6]))
    divisors = [n for n in range(1, num_heads + 1) if num_heads % n == 0]
    head_dim = draw(optional(st.integers(1, 8)))
    return {
        "num_heads": num_heads,
        "head_dim": head_dim,
        "value_dim": draw(optional(st.integers(1, 8))),
        "num_key_value_heads": draw(optional(st.sampled_from(divisors))),
        **(head_norms() if draw(st.booleans()) else {}),
        "soft_cap": draw(optional(st.floats(0.5, 50))),
        "position": draw(positions(head_dim or D // num_heads)),
        "window": draw(optional(st.integers(1, 9))),
        "use_bias": draw(st.booleans()),
    }


@st.composite
def blocks(draw):
    first = draw(st.booleans())
    return {
        **draw(heads()),
        "intermediate_dim": draw(st.integers(1, 17)),
        "dropout": draw(st.sampled_from([0.0, 0.1, 0.9])),
        "attention_dropout": draw(optional(st.sampled_from([0.0, 0.5]))),
        "feed_forward_dropout": draw(st.sampled_from([0.0, 0.2])),
        "drop_path": draw(st.sampled_from([0.0, 0.2])),
        "activation": draw(st.sampled_from(["relu", "gelu", "silu", "tanh", None])),
        "gated": draw(st.booleans()),
        "norm": draw(st.sampled_from(["layer_norm", "rms_norm"])),
        "normalize_first": first,
        "sandwich_norm": first and draw(st.booleans()),
        "attention_scale": draw(optional(st.floats(0.01, 2))),
        "residual_scale": draw(st.sampled_from([1.0, 0.5, 2.0])),
        "layer_scale": draw(optional(st.sampled_from([1e-4, 0.1, 1.0]))),
        "layer_norm_epsilon": draw(st.sampled_from([1e-6, 1e-3])),
    }


def made(cls, options, **more):
    return cls(**{**options, "position": options["position"](), **more})


def check(layer, *inputs, steps=True):
    """Round-trips, keeps shapes, steps and learns."""
    y = layer(*inputs)
    assert y.shape == inputs[0].shape
    assert np.all(np.isfinite(to_numpy(y)))

    again = type(layer).from_config(layer.get_config())
    again(*inputs)
    again.set_weights(layer.get_weights())
    assert_close(again(*inputs), y, 0.0)

    if steps:
        x, *others = inputs
        stepwise = stepped(lambda start, end: layer(x[:, start:end], *others), [2, 1, 2])
        assert_close(stepwise, y, TOLERANCE)

    symbols = [keras.Input(x.shape[1:]) for x in inputs]
    model = keras.Model(symbols, layer(*symbols))
    before = [to_numpy(weight) for weight in model.trainable_weights]
    model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=True)
    model.fit(list(inputs), to_numpy(y) + 1, batch_size=B, verbose=0)
    after = [to_numpy(weight) for weight in model.trainable_weights]
    assert all(np.all(np.isfinite(weight)) for weight in after)
    assert any(np.any(a != b) for a, b in zip(before, after, strict=True))


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


@pytest.fixture(scope="module")
def context():
    return np.random.default_rng(1).normal(size=(B, S, 7)).astype("float32")


@pytest.mark.default
@drawn
@given(options=heads(), causal=st.booleans())
def test_self_attention(x, options, causal):
    if D % options["num_heads"] and options["head_dim"] is None:
        options["head_dim"] = 4
    check(made(MultiHeadSelfAttention, options, causal=causal), x, steps=causal)


@pytest.mark.default
@drawn
@given(options=blocks())
def test_encoder_block(x, options):
    check(made(encoder_block, options), x, steps=False)


@pytest.mark.default
@drawn
@given(options=blocks(), cross=st.booleans())
def test_decoder_block(x, context, options, cross):
    inputs = (x, context) if cross else (x,)
    check(made(decoder_block, options, cross_attention=cross), *inputs)


# One argument of a block that works is replaced by nonsense.

NUMBERS = {
    "intermediate_dim", "num_heads", "head_dim", "value_dim", "num_key_value_heads", "window",
    "dropout", "attention_dropout", "feed_forward_dropout", "drop_path", "soft_cap",
    "attention_scale", "residual_scale", "layer_scale", "layer_norm_epsilon",
}  # fmt: skip
# What the part calls it whose argument it is.
PART_NAMES = {
    "attention_dropout": "dropout", "feed_forward_dropout": "dropout", "attention_scale": "scale",
    "layer_norm_epsilon": "epsilon",
}  # fmt: skip
OTHERS = {
    "position": "rotary", "activation": "reluu",
    "kernel_initializer": "nothing", "bias_initializer": 7,
}  # fmt: skip


@settings(drawn, max_examples=150)
@given(name=st.sampled_from(sorted(NUMBERS)), value=NONSENSE, data=st.data())
def test_a_number_that_is_none_is_refused_by_name(name, value, data):
    cls = data.draw(st.sampled_from([encoder_block, decoder_block]))
    options = {"intermediate_dim": 8, "num_heads": 2, "head_dim": 3, name: value}
    # scores and residuals may be scaled by any number; any width and any rate up to 1 will do
    harmless = {
        "attention_scale": [0, -1, 2.5, 10**9], "residual_scale": [0, -1, 2.5, 10**9],
        "layer_scale": [0, -1, 2.5, 10**9], "soft_cap": [2.5, 10**9],
        "layer_norm_epsilon": [0, 2.5, 10**9], "dropout": [0], "attention_dropout": [0],
        "feed_forward_dropout": [0], "drop_path": [0], "window": [10**9],
        "intermediate_dim": [10**9], "head_dim": [10**9], "value_dim": [10**9],
        "num_heads": [10**9],
    }  # fmt: skip
    if value is not True and value in harmless.get(name, []):
        cls(**options)
        return
    own = PART_NAMES.get(name, name)
    with pytest.raises((TypeError, ValueError), match=rf"\b{re.escape(own)}\b") as error:
        cls(**options)
    assert str(value) in str(error.value) or repr(value) in str(error.value)


@pytest.mark.parametrize("cls", [encoder_block, decoder_block])
@pytest.mark.parametrize("name", OTHERS)
def test_a_part_that_is_none_is_refused_by_name(cls, name):
    with pytest.raises((TypeError, ValueError), match=name) as error:
        cls(8, 2, **{name: OTHERS[name]})
    assert str(OTHERS[name]) in str(error.value)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda v: FeedForward(v), "intermediate_dim"),
        (lambda v: TokenEmbedding(v, 4), "vocabulary_size"),
        (lambda v: TokenEmbedding(4, v), "dim"),
        (lambda v: PositionEmbedding(v), "max_length"),
        (lambda v: PositionalEncoding(v), "max_wavelength"),
        (lambda v: RotaryEmbedding(v), "max_wavelength"),
        (lambda v: RotaryEmbedding(rotary_dim=v), "rotary_dim"),
        (lambda v: LinearScaling(v), "factor"),
        (lambda v: YaRNScaling(2.0, v), "original_length"),
        (lambda v: RelativePositionBias(v), "num_buckets"),
        (lambda v: RelativePositionEmbedding(v), "max_distance"),
    ],
)
@pytest.mark.parametrize("value", [0, -1, "two", float("nan"), [3], True])
def test_parts_refuse_nonsense_by_name(make, name, value):
    with pytest.raises((TypeError, ValueError), match=name) as error:
        make(value)
    assert str(value) in str(error.value)
