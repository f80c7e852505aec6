"""Mixtures of experts: against a loop over tokens in NumPy, in steps, training and files."""

import keras
import numpy as np
import pytest
import reference
from compare import assert_close, to_numpy
from keras_weights import built, randomize

from keras_tfm import layers
from keras_tfm.generation import SteppedModel
from keras_tfm.layers import FeedForward, MixtureOfExperts, Routing, TransformerEncoderBlock
from keras_tfm.layers.target import TARGETS, export_target

B, T, D, F, E = 2, 5, 7, 11, 6
# Float32 rounds at 6e-8 and a sum has 11 terms of size 1.
FLOAT32 = 1e-5
OPTIONS = {
    "softmax": {},
    "not normalized": {"normalize": False, "scale": 2.5},
    "subtracted": {"scale": -1.5},
    "sigmoid": {"scores": "sigmoid", "selection_bias": True, "scale": 0.7},
    "sigmoid, not normalized": {"scores": "sigmoid", "normalize": False},
    "bias": {"use_bias": True},
    "shared": {"shared": FeedForward(5, "relu")},
    "shared, gated": {"shared": FeedForward(5, "relu"), "shared_gate": True},
    "one": {"top_k": 1},
    "all": {"top_k": E},
}


def mixture(top_k=2, num_experts=E, shared=None, shared_gate=False, name=None, **options):
    routing = Routing(num_experts, top_k, **options)
    expert = FeedForward(F, "relu")
    return MixtureOfExperts(expert, routing, shared, shared_gate=shared_gate, name=name)


def network(layer):
    return {
        f"{name}{suffix}": to_numpy(x).astype("float64")
        for name, dense in (("inner", layer.inner), ("outer", layer.outer))
        for suffix, x in (("", dense.kernel), ("_bias", dense.bias))
    }


def expected(layer, x):
    """One token at a time: the experts of the largest scores, by a sort."""
    kernel = to_numpy(layer.router.kernel).astype("float64")
    bias = to_numpy(layer.router.bias) if layer.routing.use_bias else 0.0
    result = np.zeros(x.shape)
    for place in np.ndindex(x.shape[:-1]):
        token = x[place].astype("float64")
        logits = token @ kernel + bias
        scores = np.exp(logits) / np.sum(np.exp(logits))
        if layer.routing.scores == "sigmoid":
            scores = 1 / (1 + np.exp(-logits))
        ranked = scores + (to_numpy(layer.bias) if layer.routing.selection_bias else 0.0)
        chosen = np.argsort(-ranked)[: layer.routing.top_k]
        weights = scores[chosen]
        if layer.routing.normalize:
            weights = weights / (
                np.sum(weights) + (1e-6 if layer.routing.scores == "sigmoid" else 0)
            )
        for weight, i in zip(weights * layer.routing.scale, chosen, strict=True):
            result[place] += weight * reference.feed_forward(token, network(layer.experts[i]))
        if layer.shared is not None:
            y = reference.feed_forward(token, network(layer.shared))
            gate = 1.0
            if layer.shared_gate:
                gate = 1 / (1 + np.exp(-token @ to_numpy(layer.gate.kernel)))
            result[place] += gate * y
    return result


@pytest.fixture
def x():
    return np.random.default_rng(7).normal(size=(B, T, D)).astype("float32")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_equals_the_reference_for_a_sequence_and_for_a_step(x, options, target):
    layer = built(mixture(**options), (B, T, D))
    wanted = expected(layer, x)
    with export_target(target):
        assert_close(layer(x), wanted, FLOAT32)
        assert_close(layer(x, training=True), wanted, FLOAT32)
        assert_close(layer(x[:, :1]), wanted[:, :1], FLOAT32)


def test_a_step_runs_the_experts_that_its_tokens_chose(x, monkeypatch):
    """Eagerly, a branch that is not taken calls nothing."""
    if keras.backend.backend() != "tensorflow":
        pytest.skip("other backends trace both branches, or run them eagerly in another way")
    layer = built(mixture(), (B, T, D))
    ran = []
    for i, expert in enumerate(layer.experts):
        call = expert.call
        monkeypatch.setattr(
            expert, "call", lambda *a, i=i, call=call, **k: ran.append(i) or call(*a, **k)
        )
    chosen = np.flatnonzero(np.any(to_numpy(layer.route(x[:, :1])), axis=(0, 1)))
    assert 2 <= len(chosen) < E
    layer(x[:, :1])
    assert ran == chosen.tolist()
    ran.clear()
    layer(x)
    assert ran == list(range(E))


def test_a_token_of_nan_changes_no_other_and_is_not_hidden(x):
    layer = built(mixture(), (B, T, D))
    wanted = to_numpy(layer(x[:, :1]))
    x[0] = np.nan
    found = to_numpy(layer(x[:, :1]))
    assert_close(found[1], wanted[1], FLOAT32)
    assert np.all(np.isnan(found[0]))


@pytest.mark.parametrize("dtype", ["float16", "mixed_float16"])
def test_an_expert_that_overflows_for_tokens_of_others(dtype):
    """0 times infinity is NaN, in the outputs and in the gradients."""
    layer = MixtureOfExperts(FeedForward(F, "relu"), Routing(E, 1), dtype=dtype)
    inputs = keras.Input((T + 3, D), dtype="float16")
    model = keras.Model(inputs, layer(inputs))
    x = np.full((B, T + 3, D), 0.5, "float16")
    chosen = int(np.argmax(to_numpy(layer.route(x))[0, 0]))
    for expert in layer.experts[:chosen] + layer.experts[chosen + 1 :]:
        for kernel in (expert.inner.kernel, expert.outer.kernel):
            kernel.assign(np.full(kernel.shape, 20000.0))
    assert_close(layer(x), to_numpy(layer.experts[chosen](x)), FLOAT32)
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
    model.fit(x, np.zeros_like(x), verbose=0)
    assert all(np.all(np.isfinite(to_numpy(weight))) for weight in model.weights)


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
@pytest.mark.parametrize("inputs", [[], [keras.Input((None, D))]], ids=["without", "with Input"])
def test_experts_that_are_models(x, inputs, dtype):
    """Their layers keep their policies, and each expert its own weights."""
    expert = keras.Sequential([*inputs, keras.layers.Dense(F, "relu"), keras.layers.Dense(D)])
    layer = MixtureOfExperts(expert, Routing(E, 2), shared=expert, dtype=dtype)
    y = layer(x)
    assert keras.backend.standardize_dtype(y.dtype) == layer.compute_dtype
    assert len(layer.weights) == 1 + (E + 1) * 4
    # A step of float16 rounds at 1e-3.
    assert_close(layer(x[:, :1]), to_numpy(y)[:, :1], FLOAT32 if dtype == "float32" else 4e-3)


def test_weights_of_a_token_are_those_of_its_experts(x):
    layer = built(mixture(top_k=3), (B, T, D))
    weights = to_numpy(layer.route(x))
    assert weights.shape == (B, T, E)
    np.testing.assert_array_equal(np.sum(weights > 0, axis=-1), 3)
    np.testing.assert_allclose(np.sum(weights, axis=-1), 1.0, atol=1e-6)


def test_a_bias_of_the_selection_changes_only_the_choice(x):
    layer = built(mixture(scores="sigmoid", selection_bias=True, normalize=False), (B, T, D))
    layer.bias.assign([9.0, 9.0, 0, 0, 0, 0])
    weights = to_numpy(layer.route(x))
    scores = 1 / (1 + np.exp(-x @ to_numpy(layer.router.kernel)))
    assert_close(weights[..., :2], scores[..., :2], FLOAT32)
    assert not np.any(weights[..., 2:])
    assert all(weight is not layer.bias for weight in layer.trainable_weights)


def test_the_loss_of_balance(x):
    """E sum f p: `top_k` for equal use of the experts, E where all tokens choose the same one."""
    layer = built(mixture(top_k=1, balance=0.5), (B, T, D))
    layer(x)
    assert not layer.losses
    layer.router.kernel.assign(np.zeros((D, E)))
    layer(x, training=True)  # equal scores: the first expert for all, with a mean score of 1 / E
    assert_close(layer.losses[0], 0.5, FLOAT32)
    kernel = np.zeros((D, E))
    kernel[0, 3] = 1000.0
    layer.router.kernel.assign(kernel)
    layer(np.ones((B, T, D), "float32"), training=True)
    assert_close(layer.losses[0], 0.5 * E, FLOAT32)


def test_experts_and_router_learn(x):
    """With the loss of balance, in a graph, and under recomputation."""
    inputs = keras.Input((T, D))
    block = TransformerEncoderBlock(
        num_heads=1, feed_forward=mixture(balance=0.1, name="feed_forward")
    )
    model = keras.Model(inputs, block(inputs))
    randomize(model)
    before = [to_numpy(w) for w in model.trainable_weights]
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(x, np.zeros_like(x), epochs=1, verbose=0)
    chosen = np.any(to_numpy(block.feed_forward.route(block.self_attention(x))), axis=(0, 1))
    assert chosen.sum() > 2
    changed = {
        w.path: not np.array_equal(to_numpy(w), old)
        for w, old in zip(model.trainable_weights, before, strict=True)
    }
    assert changed[block.feed_forward.router.kernel.path]
    assert sum(changed[x.inner.kernel.path] for x in block.feed_forward.experts) > 2


def test_each_expert_begins_with_its_own_weights():
    layer = mixture()
    layer.build((None, None, D))
    kernels = [to_numpy(expert.inner.kernel) for expert in layer.experts]
    assert all(not np.array_equal(kernels[0], other) for other in kernels[1:])


def test_a_stepped_model_equals_its_full_pass(x):
    inputs = keras.Input((None,), dtype="int32")
    y = layers.TokenEmbedding(13, D + 1)(inputs)
    block = layers.TransformerDecoderBlock(
        num_heads=2,
        causal=True,
        cross_attention=False,
        feed_forward=mixture(shared=FeedForward(3)),
        normalize_first=True,
    )
    model = randomize(keras.Model(inputs, block(y)))
    ids = np.random.default_rng(0).integers(0, 13, (B, T))
    full = to_numpy(model(ids))
    stepped = SteppedModel(model)
    with layers.DecodingScope(length=T) as scope:
        outputs = [to_numpy(stepped.step({}, ids[:, :2]))]
    for i in range(2, T):
        with layers.DecodingScope(scope.cache, position=i, length=T) as scope:
            outputs.append(to_numpy(stepped.step({}, ids[:, i : i + 1])))
    assert_close(np.concatenate(outputs, axis=1), full, FLOAT32)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"top_k": 7}, ValueError, r"top_k must be at most num_experts \(6\), got 7"),
        ({"top_k": 0}, ValueError, "top_k must be at least 1, got 0"),
        ({"num_experts": 2.0}, TypeError, "num_experts must be an integer, got 2.0"),
        ({"scores": "relu"}, ValueError, "scores must be one of"),
        ({"scale": "x"}, TypeError, "scale must be a number, got 'x'"),
        ({"balance": -1.0}, ValueError, "balance must not be negative, got -1.0"),
        ({"shared_gate": True}, ValueError, "shared_gate must be False without shared"),
        ({"shared": 3}, TypeError, r"shared must be a layer such as FeedForward\(64\), got 3"),
    ],
)
def test_wrong_arguments(options, error, message):
    with pytest.raises(error, match=message):
        mixture(**options)


def test_an_expert_of_another_width():
    layer = MixtureOfExperts(keras.layers.Dense(3), Routing(2, 1), name="experts")
    with pytest.raises(ValueError, match="experts: expert_0 must return the shape of its input"):
        layer.build((None, 5, D))
    with pytest.raises(TypeError, match="expert must be a layer such as"):
        MixtureOfExperts("relu", Routing(2, 1))
    with pytest.raises(TypeError, match="routing must be a Routing, got 2"):
        MixtureOfExperts(FeedForward(F), 2)
