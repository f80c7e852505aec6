"""Norms, their places, what scales or drops a sublayer, gates: blocks against the reference."""

import keras
import numpy as np
import pytest
import reference
import reference_positions as rp
from attention_features import built, expected_self_attention, randomize
from blocks import ORDERS as NORM_PLACES
from blocks import decoder_block, encoder_block, head_norms, residual_of
from compare import assert_close, to_numpy
from execution import GRAPHS, execute, gradients, saving, tensorflow_only
from keras import ops
from keras_weights import cross_attention, dense

from keras_tfm.layers import (
    FeedForward,
    MultiHeadSelfAttention,
    RMSNormalization,
    TokenEmbedding,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
)
from keras_tfm.layers.residual import Residual

# Float32 rounds at 6e-8; two or three sublayers of sums of up to 60 terms, and their norms.
FLOAT32 = 1e-5
# Bfloat16 rounds at 4e-3, some ten times in a row, of values of both signs.
BFLOAT16 = 3e-2

B, T, S, D, C, F = 2, 5, 3, 6, 11, 13
EPSILON = 1e-3
ORDERS = {
    "post": {},
    "pre": {"normalize_first": True},
    "sandwich": {"normalize_first": True, "sandwich_norm": True},
}
every_order = pytest.mark.parametrize("order", ORDERS)
NORMS = "layer_norm", "rms_norm"
every_norm = pytest.mark.parametrize("norm", NORMS)
ACTIVATIONS = {
    "relu": (reference.relu, "relu"),
    "gelu": (reference.gelu, lambda x: ops.gelu(x, approximate=False)),
    "silu": (rp.silu, "silu"),
    "sigmoid": (rp.sigmoid, "sigmoid"),
    "linear": (lambda x: x, None),
}


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def x(rng):
    return rng.normal(size=(B, T, D)).astype("float32")


def norm_of(layer):
    """A norm of Keras as a function of float64."""
    if isinstance(layer, keras.layers.RMSNormalization):
        return lambda y: rp.rms_norm(y, to_numpy(layer.scale), EPSILON)
    return lambda y: reference.layer_norm(y, to_numpy(layer.gamma), to_numpy(layer.beta), EPSILON)


def feed_forward_of(layer, activation, gated):
    weights = dense(layer.outer, "outer")
    if not gated:
        weights |= dense(layer.inner, "inner")
        return lambda y: reference.feed_forward(y, weights, activation)
    for name, array in dense(layer.inner, "inner").items():
        halves = np.split(array, 2, axis=-1)
        weights |= {name.replace("inner", "gate"): halves[0], name: halves[1]}
    return lambda y: rp.gated_feed_forward(y, weights, activation)


def expected_block(block, x, context, order, norm, activation, gated, scale=1.0):
    """What a built block without dropout should return."""
    kind = keras.layers.RMSNormalization if norm == "rms_norm" else keras.layers.LayerNormalization

    def apply(residual, y, sublayer):
        layer = residual.sum_norm if order == "post" else residual.input_norm
        assert isinstance(layer, kind)
        output_norm = norm_of(residual.output_norm) if order == "sandwich" else None
        factors = to_numpy(residual.scale) if residual.layer_scale is not None else 1.0
        return rp.residual(y, sublayer, order, norm_of(layer), output_norm, scale, factors)

    causal = isinstance(block, TransformerDecoderBlock)

    def attend(y):
        return expected_self_attention(block.self_attention, y, num_heads=2, causal=causal)

    def attend_to_context(y):
        weights = cross_attention(block.cross_attention)
        return reference.multi_head_attention(y, context, weights, 2)

    y = apply(block.self_attention_residual, x.astype("float64"), attend)
    if context is not None:
        y = apply(block.cross_attention_residual, y, attend_to_context)
    feed = feed_forward_of(block.feed_forward, activation, gated)
    return apply(block.feed_forward_residual, y, feed)


def block_and_inputs(kind, rng, x, **options):
    options = {"layer_norm_epsilon": EPSILON, **options}
    if kind == "encoder":
        return built(encoder_block(F, 2, **options), x.shape), [x]
    if kind == "decoder only":
        block = decoder_block(F, 2, cross_attention=False, **options)
        return built(block, x.shape), [x]
    context = rng.normal(size=(B, S, C)).astype("float32")
    return built(decoder_block(F, 2, **options), x.shape, context.shape), [x, context]


# The order of norm, sublayer and sum


@pytest.mark.parametrize("kind", ["encoder", "decoder", "decoder only"])
@every_order
@every_norm
@pytest.mark.parametrize("gated", [False, True], ids=["", "gated"])
@pytest.mark.parametrize(
    "scales", [{}, {"residual_scale": 1.7, "layer_scale": 0.3}], ids=["", "scaled"]
)
def test_equals_the_float64_reference(rng, x, kind, order, norm, gated, scales):
    options = {"norm": norm, "gated": gated, "activation": "silu", **scales, **ORDERS[order]}
    block, inputs = block_and_inputs(kind, rng, x, **options)
    context = inputs[1] if len(inputs) > 1 else None
    scale = scales.get("residual_scale", 1.0)
    expected = expected_block(block, x, context, order, norm, rp.silu, gated, scale)
    assert_close(block(*inputs), expected, FLOAT32)


@pytest.mark.parametrize(
    ("order", "norm", "mode"),
    [
        *((order, norm, "graph") for order in ORDERS for norm in NORMS),
        ("post", "layer_norm", "xla"),
        ("sandwich", "rms_norm", "xla"),
    ],
)
@tensorflow_only
def test_graph_and_xla_agree(rng, x, order, norm, mode):
    options = {"norm": norm, "gated": True, "activation": "silu", **ORDERS[order]}
    block, inputs = block_and_inputs("decoder", rng, x, **options, layer_scale=0.3)
    expected = expected_block(block, *inputs, order, norm, rp.silu, True)
    assert_close(execute(mode, block, *inputs), expected, FLOAT32)


@every_order
@every_norm
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_equals_the_float64_reference(rng, x, order, norm, dtype):
    options = {"norm": norm, "gated": True, "activation": "silu", **ORDERS[order]}
    block, inputs = block_and_inputs("encoder", rng, x, dtype=dtype, **options, layer_scale=0.3)
    expected = expected_block(block, x, None, order, norm, rp.silu, True)
    y = block(*inputs)
    assert keras.backend.standardize_dtype(y.dtype) == dtype.removeprefix("mixed_")
    assert_close(y, expected, BFLOAT16 if "bf" in dtype else BFLOAT16 / 8)


@pytest.mark.parametrize("dtype", ["float16", "mixed_float16"])
@every_order
def test_rms_norms_of_300_in_float16_are_right(rng, x, order, dtype):
    """Squares of 300 are beyond float16's 65,504."""
    options = {"norm": "rms_norm", "dtype": dtype, **ORDERS[order]}
    block, inputs = block_and_inputs("encoder", rng, 300 * x, **options)
    expected = expected_block(block, inputs[0], None, order, "rms_norm", reference.relu, False)
    # Float16 rounds at 5e-4, ten times in a row.
    assert_close(block(*inputs), expected, 5e-3)


IDS = np.array([[3, 4, 5, 0, 6], [7, 8, 0, 0, 0]])


@pytest.mark.parametrize("kind", ["encoder", "decoder", "decoder only"])
@every_order
@every_norm
def test_the_implicit_mask_passes_through_every_norm(rng, x, kind, order, norm):
    """Keras warns, and drops the mask, where a layer on the way does not support masking."""
    block, inputs = block_and_inputs(kind, rng, x, norm=norm, **ORDERS[order])
    x = TokenEmbedding(11, D, mask_zero=True)(IDS)
    plain = to_numpy(x).astype("float32")
    actual = block(x, *inputs[1:])
    np.testing.assert_array_equal(actual._keras_mask, IDS != 0)
    assert_close(actual, block(plain, *inputs[1:], mask=IDS != 0), 0.0)
    assert np.any(to_numpy(actual) != to_numpy(block(plain, *inputs[1:])))


@tensorflow_only
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
@every_order
@every_norm
def test_inputs_get_the_gradients_of_the_reference(rng, x, kind, order, norm):
    """Against central differences of the float64 reference, along one direction an input."""
    options = {"norm": norm, "gated": True, "activation": "silu", **ORDERS[order]}
    block, inputs = block_and_inputs(kind, rng, x, **options, residual_scale=1.3)
    weighting = rng.normal(size=x.shape)

    def expected(*inputs):
        context = inputs[1] if len(inputs) > 1 else None
        y = expected_block(block, inputs[0], context, order, norm, rp.silu, True, 1.3)
        return np.sum(weighting * y)

    def loss(*inputs):
        return ops.sum(weighting.astype("float32") * block(*inputs))

    _, of_inputs = gradients(loss, [], *inputs)
    wide = [value.astype("float64") for value in inputs]
    for i, gradient in enumerate(of_inputs):
        direction = rng.normal(size=inputs[i].shape)
        high, low = (
            expected(*(v + step * direction if i == j else v for j, v in enumerate(wide)))
            for step in (1e-5, -1e-5)
        )
        # Float32 gradients are sums of some 100 products, rounded at 6e-8 each.
        assert_close(np.sum(to_numpy(gradient) * direction), (high - low) / 2e-5, 5e-5)


@tensorflow_only
def test_every_learned_factor_gets_a_gradient(x):
    block = built(
        encoder_block(
            F, 2, norm="rms_norm", normalize_first=True, sandwich_norm=True, layer_scale=0.1,
            gated=True, **head_norms(),
        ),
        x.shape,
    )  # fmt: skip
    names = {weight.path.split("/", 1)[1] for weight in block.trainable_weights}
    residuals = ("self_attention_residual", "feed_forward_residual")
    for residual in residuals:
        assert {f"{residual}/{n}" for n in ("scale", "norm/scale", "output_norm/scale")} <= names
    of_weights, _ = gradients(lambda: ops.sum(block(x) ** 3), block.trainable_variables)
    for weight, gradient in zip(block.trainable_variables, of_weights, strict=True):
        assert np.any(to_numpy(gradient) != 0.0), weight.path


def test_deepnorm_by_hand():
    """A sublayer of zeros: post-norm of a x is the norm of x, where epsilon is small beside it."""
    x = np.array([[[1.0, 3.0]]], "float32")
    layer = residual_of("post", residual_scale=100.0, epsilon=1e-6)
    layer.build(x.shape)
    y = layer(x, sublayer=lambda y: y)
    # 101 x has mean 202 and deviation 101: -1 and 1. Epsilon is 1e-10 of the variance.
    assert_close(y, [[[-1.0, 1.0]]], 1e-6)
    pre = residual_of("pre", residual_scale=100.0, epsilon=1e-6)
    pre.build(x.shape)
    # 100 x + norm(x) = (100 - 1, 300 + 1); epsilon is 1e-6 of the variance, 5e-7 of the result.
    assert_close(pre(x, sublayer=lambda y: y), [[[99.0, 301.0]]], 1e-6)


def test_layer_scale_starts_at_its_value_and_scales_the_sublayer_alone(x):
    layer = residual_of("pre", layer_scale=0.25)
    layer.build(x.shape)
    np.testing.assert_array_equal(to_numpy(layer.scale), np.full(D, 0.25))
    y = layer(x, sublayer=ops.ones_like)
    np.testing.assert_array_equal(to_numpy(y), (x + np.float32(0.25)).astype("float64"))
    assert residual_of("pre").layer_scale is None
    none = residual_of("pre")
    none.build(x.shape)
    assert not hasattr(none, "scale")


@pytest.mark.parametrize("value", [0.0, 1e-6])
def test_a_layer_scale_of_almost_nothing_is_the_identity(rng, x, value):
    block = encoder_block(F, 2, normalize_first=True, layer_scale=value)
    block.build(x.shape)
    # Twice 1e-6 of a sublayer's output of some 3.
    assert_close(block(x), x, 1e-5)


# Dropped sublayers

MANY = 2000


@pytest.fixture
def rows():
    return np.random.default_rng(1).normal(size=(MANY, 2, 3)).astype("float32")


@every_order
@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_drop_path_drops_whole_rows_and_keeps_the_expectation(rows, rate, order):
    """A row has all of f(x), divided by the chance to be kept, or nothing of it."""
    keras.utils.set_random_seed(3)
    layer = residual_of(order, drop_path=rate)
    layer.build(rows.shape)
    factor = np.random.default_rng(2).normal(size=(1, 2, 3)).astype("float32")

    def call(x, training):
        return layer(x, sublayer=lambda y: ops.multiply(y, factor), training=training)

    y = to_numpy(call(rows, True))
    x = rows.astype("float64")
    norm = lambda y: reference.layer_norm(y, 1.0, 0.0, 1e-5)  # noqa: E731
    kept = rp.residual(x, lambda y: y * factor, order, norm, norm, factors=1.0 / (1.0 - rate))
    dropped = norm(x) if order == "post" else x
    is_kept = np.abs(y - kept).max(axis=(1, 2)) < FLOAT32 * np.abs(kept).max()
    is_dropped = np.abs(y - dropped).max(axis=(1, 2)) < FLOAT32 * np.abs(kept).max()
    assert np.all(is_kept ^ is_dropped)
    # Four deviations of a binomial of 2000 rows.
    assert abs(is_dropped.mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / MANY)
    still = rp.residual(x, lambda y: y * factor, order, norm, norm)
    assert_close(call(rows, False), still, FLOAT32)


def test_drop_path_draws_anew_for_each_call_and_each_sublayer(rows):
    block = encoder_block(5, 1, normalize_first=True, drop_path=0.5)
    built(block, rows.shape)
    attend, feed = block.self_attention_residual, block.feed_forward_residual

    def dropped(layer):
        y = to_numpy(layer(rows, sublayer=ops.ones_like, training=True))
        return np.all(y == rows, axis=(1, 2))

    draws = [dropped(attend), dropped(attend), dropped(feed)]
    for i, one in enumerate(draws):
        for other in draws[:i]:
            # Two independent fair coins agree half of the time; four deviations of 2000.
            assert abs(np.mean(one == other) - 0.5) < 4 * 0.5 / np.sqrt(MANY)


def test_a_block_drops_nothing_at_inference(rows):
    options = {"drop_path": 0.9, "dropout": 0.9, "feed_forward_dropout": 0.9}
    block, still = (built(encoder_block(5, 1, **o), rows.shape) for o in (options, {}))
    assert_close(block(rows), still(rows), 0.0)
    assert np.any(to_numpy(block(rows, training=True)) != to_numpy(still(rows)))


@every_order
def test_drop_path_of_everything_leaves_the_residual(x, order):
    block = encoder_block(F, 2, drop_path=1.0, **ORDERS[order])
    built(block, x.shape)
    y = x.astype("float64")
    if order == "post":
        for residual in (block.self_attention_residual, block.feed_forward_residual):
            gamma, beta = (to_numpy(v) for v in (residual.sum_norm.gamma, residual.sum_norm.beta))
            y = reference.layer_norm(y, gamma, beta, 1e-5)
    assert_close(block(x, training=True), y, FLOAT32)


@tensorflow_only
def test_rows_that_are_dropped_have_no_gradient(rows):
    layer = residual_of("pre", drop_path=0.5)
    layer.build(rows.shape)
    kernel = np.float32(2.0)
    result = []

    def loss(x, kernel):
        y = layer(x, sublayer=lambda y: kernel * ops.ones_like(y), training=True)
        result.append(to_numpy(y - x))
        return ops.sum(y)

    _, (of_x, of_kernel) = gradients(loss, [], rows, kernel)
    np.testing.assert_array_equal(of_x, np.ones(rows.shape))
    kept = np.any(result[0] != 0.0, axis=(1, 2))
    # Each kept row has 6 entries, counted twice; a sum of 12,000 of them in float32.
    assert_close(of_kernel, 12.0 * kept.sum(), 1e-6)


def test_dropout_of_a_sublayer_is_before_the_scale_and_after_the_output_norm(x):
    """Some entries of f(x) are 0, the others l norm'(f) / (1 - p)."""
    layer = residual_of("sandwich", dropout=0.5, layer_scale=0.25)
    built(layer, x.shape)
    factors = to_numpy(layer.scale)
    # Each entry is one of two values.
    y = to_numpy(layer(x, sublayer=lambda y: y**3, training=True)) - x
    normalised = [
        lambda y, n=n: reference.layer_norm(y, to_numpy(n.gamma), to_numpy(n.beta), 1e-5)
        for n in (layer.input_norm, layer.output_norm)
    ]
    whole = 2.0 * factors * normalised[1](normalised[0](x.astype("float64")) ** 3)
    is_kept, is_dropped = np.abs(y - whole) < FLOAT32, np.abs(y) < 1e-6
    assert np.all(is_kept | is_dropped)
    assert is_kept.any()
    assert is_dropped.any()


# Gates


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("use_bias", [True, False], ids=["", "no bias"])
@pytest.mark.parametrize("gated", [False, True], ids=["", "gated"])
def test_feed_forward(x, name, use_bias, gated):
    """ "silu" and gated is SwiGLU, "gelu" GEGLU, "sigmoid" GLU, "linear" the bilinear one."""
    function, activation = ACTIVATIONS[name]
    layer = FeedForward(F, activation=activation, gated=gated, use_bias=use_bias)
    built(layer, x.shape)
    expected = feed_forward_of(layer, function, gated)(x)
    assert_close(layer(x), expected, FLOAT32)
    assert layer.inner.kernel.shape == (D, F * (1 + gated))
    assert layer.outer.kernel.shape == (F, D)


@pytest.mark.parametrize("mode", GRAPHS)
def test_gated_feed_forward(x, mode):
    layer = built(FeedForward(F, activation="silu", gated=True), x.shape)
    assert_close(execute(mode, layer, x), layer(x), FLOAT32)


def test_swiglu_by_hand():
    """D = F = 1, x = 2: gate 3 x = 6, other -x + 1 = -1, out 5 (6 / (1 + e^-6)) (-1) + 7."""
    layer = FeedForward(1, activation="silu", gated=True)
    layer.build((1, 1, 1))
    layer.inner.set_weights([np.array([[3.0, -1.0]]), np.array([0.0, 1.0])])
    layer.outer.set_weights([np.array([[5.0]]), np.array([7.0])])
    expected = -30.0 / (1.0 + np.exp(-6.0)) + 7.0
    # Some five roundings of 6e-8 of 30.
    assert_close(layer(np.full((1, 1, 1), 2.0, "float32")), [[[expected]]], 2e-6)


@tensorflow_only
@pytest.mark.parametrize("name", ["silu", "sigmoid", "gelu"])
def test_gradients_of_a_gated_feed_forward(rng, x, name):
    function, activation = ACTIVATIONS[name]
    layer = built(FeedForward(F, activation=activation, gated=True), x.shape)
    weighting, direction = rng.normal(size=x.shape), rng.normal(size=x.shape)

    def loss(x):
        return ops.sum(weighting.astype("float32") * layer(x))

    of_weights, (of_x,) = gradients(loss, layer.trainable_variables, x)

    def expected(step=0.0):
        forward = feed_forward_of(layer, function, True)
        return np.sum(weighting * forward(x + step * direction))

    wanted = (expected(1e-5) - expected(-1e-5)) / 2e-5
    # Float32 gradients are sums of some 100 products, rounded at 6e-8 each.
    assert_close(np.sum(to_numpy(of_x) * direction), wanted, 2e-5)
    for variable, gradient in zip(layer.trainable_variables, of_weights, strict=True):
        value, way = to_numpy(variable), rng.normal(size=variable.shape)
        way /= np.linalg.norm(way)
        sides = []
        for step in (1e-2, -1e-2):  # of float32 weights, which round at 6e-8
            variable.assign(value + step * way)
            sides.append((np.sum((to_numpy(variable) - value) * way), expected()))
        variable.assign(value)
        (a, high), (b, low) = sides
        # A central difference with steps of 1e-2 is off by 1e-4 of third derivatives.
        assert_close(np.sum(to_numpy(gradient) * way), (high - low) / (a - b), 1e-3)


@pytest.mark.parametrize("gated", [False, True], ids=["", "gated"])
def test_dropout_is_between_the_two_layers(x, gated):
    layer = built(FeedForward(F, gated=gated, dropout=0.9, use_bias=False), x.shape)
    assert np.any(to_numpy(layer(x, training=True)) != to_numpy(layer(x)))
    layer = built(FeedForward(F, gated=gated, dropout=1.0), x.shape)
    bias = np.broadcast_to(to_numpy(layer.outer.bias), x.shape)
    assert_close(layer(x, training=True), bias, 0.0)


# Configuration and errors


@saving
@every_order
@every_norm
def test_a_keras_file_holds_the_block(x, order, norm, tmp_path):
    options = {
        "norm": norm, "gated": True, "activation": "silu", "residual_scale": 1.3,
        "layer_scale": 0.2, "drop_path": 0.1, **head_norms(), "soft_cap": 3.0,
        "attention_scale": 0.4, "window": 3, "feed_forward_dropout": 0.2, **ORDERS[order],
    }  # fmt: skip
    block = decoder_block(F, 2, cross_attention=False, name="block", **options)
    inputs = keras.Input((T, D))
    model = keras.Model(inputs, block(inputs))
    randomize(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    again = loaded.get_layer("block")
    assert again.get_config() == block.get_config()
    # Read from the parts that were loaded: the test below says which option is whose.
    found = {
        "gated": again.feed_forward.gated,
        "activation": keras.activations.serialize(again.feed_forward.activation),
        "residual_scale": again.self_attention_residual.residual_scale,
        "layer_scale": again.self_attention_residual.layer_scale,
        "drop_path": again.feed_forward_residual.drop_path,
        "soft_cap": again.self_attention.soft_cap, "attention_scale": again.self_attention.scale,
        "window": again.self_attention.window, "feed_forward_dropout": again.feed_forward.dropout,
    }  # fmt: skip
    assert found == {name: options[name] for name in found}
    kind = keras.layers.RMSNormalization if norm == "rms_norm" else keras.layers.LayerNormalization
    for residual in (again.self_attention_residual, again.feed_forward_residual):
        norms = {
            name: getattr(residual, name) for name in ("input_norm", "output_norm", "sum_norm")
        }
        norms = {name: layer for name, layer in norms.items() if layer is not None}
        assert list(norms) == NORM_PLACES[order]
        assert all(isinstance(layer, kind) for layer in norms.values())
    for layer in (again.self_attention.query_norm, again.self_attention.key_norm):
        assert isinstance(layer, keras.layers.RMSNormalization)
    assert_close(loaded(x), model(x), 0.0)


def test_options_of_a_block_reach_its_layers():
    block = decoder_block(
        F, 4, head_dim=3, value_dim=5, num_key_value_heads=2, window=7, **head_norms(),
        soft_cap=3.0, attention_scale=0.4, attention_dropout=0.1, dropout=0.2, drop_path=0.3,
        feed_forward_dropout=0.4, residual_scale=1.5, layer_scale=0.6, gated=True, use_bias=False,
    )  # fmt: skip
    for layer in (block.self_attention, block.cross_attention):
        wanted = {
            "num_heads": 4, "head_dim": 3, "value_dim": 5, "num_key_value_heads": 2,
            "soft_cap": 3.0, "scale": 0.4, "dropout": 0.1,
            "use_bias": False,
        }  # fmt: skip
        config = layer.get_config()
        assert {name: config[name] for name in wanted} == wanted
        assert {name: config[name]["config"]["name"] for name in head_norms()} == {
            name: name for name in head_norms()
        }
    assert (block.self_attention.window, block.cross_attention.window) == (7, None)
    assert (block.self_attention.causal, block.cross_attention.causal) == (True, False)
    for name in ("self_attention", "cross_attention", "feed_forward"):
        residual = getattr(block, f"{name}_residual")
        rates = residual.dropout_layer.rate, residual.drop_path_layer.rate
        assert (*rates, residual.residual_scale, residual.layer_scale) == (0.2, 0.3, 1.5, 0.6)
    config = block.feed_forward.get_config()
    assert (config["gated"], config["dropout"], config["use_bias"]) == (True, 0.4, False)


@pytest.mark.parametrize("kind", [encoder_block, decoder_block])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sandwich_norm": True}, "sandwich_norm=True needs normalize_first=True"),
        ({"dropout": 1.5}, "dropout .*1.5"),
        ({"dropout": -0.1}, "dropout .*-0.1"),
        ({"attention_dropout": 1.5}, "dropout must be within 0 and 1, got 1.5"),
        ({"feed_forward_dropout": 1.5}, "dropout must be within 0 and 1, got 1.5"),
        ({"drop_path": -0.5}, "drop_path .*-0.5"),
        ({"layer_norm_epsilon": -1e-3}, "layer_norm_epsilon .*-0.001"),
        ({"intermediate_dim": 0}, "intermediate_dim must be at least 1, got 0"),
        ({"num_heads": 0}, "num_heads must be at least 1, got 0"),
    ],
    ids=str,
)
def test_impossible_arguments_are_refused_by_name(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**{"intermediate_dim": F, "num_heads": 2, **options})


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (TypeError, lambda: Residual("post"), r"input_norm must be a layer such as .* got 'post'"),
        (TypeError, lambda: Residual(sum_norm=len), "sum_norm must be a layer .* got <built-in"),
        (TypeError, lambda: Residual()(np.ones((1, 2, 3))), "must be called with sublayer="),
        (TypeError, lambda: MultiHeadSelfAttention(2, query_norm="rms"), "query_norm must be a la"),
    ],
    ids=["an order", "a function", "no sublayer", "a norm of queries"],
)
def test_what_is_no_norm_and_no_sublayer_is_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()


def test_a_norm_has_one_place():
    norm = RMSNormalization()
    with pytest.raises(ValueError, match="each norm must be another layer, got one twice"):
        Residual(input_norm=norm, output_norm=norm)
    with pytest.raises(ValueError, match="query_norm and key_norm must be two layers, got one"):
        MultiHeadSelfAttention(2, query_norm=norm, key_norm=norm)


def test_a_residual_for_each_sublayer(x):
    """ModernBERT's first block, whose attention has no norm before it."""
    residuals = {
        "self_attention": Residual(residual_scale=2.0, output_scale=0.3),
        "feed_forward": residual_of("pre"),
    }
    block = built(TransformerEncoderBlock(F, 2, residual=residuals), x.shape)
    expected = 2 * to_numpy(x) + 0.3 * to_numpy(block.self_attention(x))
    gamma, beta = (to_numpy(v) for v in block.feed_forward_residual.input_norm.weights)
    normalized = reference.layer_norm(expected, gamma, beta, 1e-5)
    expected = expected + feed_forward_of(block.feed_forward, reference.relu, False)(normalized)
    assert_close(block(x), expected, FLOAT32)
    again = TransformerEncoderBlock.from_config(block.get_config())
    assert again.get_config() == block.get_config()
    assert again.self_attention_residual.input_norm is None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["self_attention"], r"one for each sublayer, \['self_attention', 'feed_forward'\], got"),
        (["self_attention", "feed_forward", "cross_attention"], "one for each sublayer"),
    ],
    ids=["too few", "too many"],
)
def test_residuals_of_other_sublayers(names, message):
    with pytest.raises(ValueError, match=message):
        TransformerEncoderBlock(F, 2, residual={name: Residual() for name in names})


@pytest.mark.parametrize("length", [T, 1])
def test_norms_of_all_heads_together(rng, length):
    """OLMo 2's: the same as a norm of the projected queries and keys before they are split."""
    x = rng.normal(size=(B, length, D)).astype("float32")
    norms = {
        name: RMSNormalization(axis=(-2, -1), epsilon=EPSILON)
        for name in ("query_norm", "key_norm")
    }
    layer = built(
        MultiHeadSelfAttention(3, num_key_value_heads=1, head_dim=4, use_bias=False, **norms),
        x.shape,
    )
    kernel = to_numpy(layer.query_key_value.kernel)
    q, k, v = np.split(x.astype("float64") @ kernel, [12, 16], axis=-1)
    q, k = (
        rp.rms_norm(y, to_numpy(norm.scale).ravel(), EPSILON)
        for y, norm in ((q, layer.query_norm), (k, layer.key_norm))
    )
    q = q.reshape(B, length, 3, 4)
    scores = np.einsum("bthk,bsk->bhts", q, k) / 2
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    y = np.einsum("bhts,bsk->bthk", weights, v).reshape(B, length, 12)
    expected = y @ to_numpy(layer.output_projection.kernel)
    assert_close(layer(x), expected, FLOAT32)
    again = MultiHeadSelfAttention.from_config(layer.get_config())
    again.build(x.shape)
    assert again.query_norm.scale.shape == (3, 4)
