"""What Keras offers for its own layers reaches these: RematScope, LoRA, quantization."""

import contextlib
import functools

import keras
import numpy as np
import pytest
from attention_features import randomize, stepped
from blocks import decoder_block, encoder_block
from compare import assert_close, to_numpy
from execution import tensorflow_only

from keras_tfm import models
from keras_tfm.layers import (
    AttentionProbe,
    DecodingScope,
    FeedForward,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    PositionalEncoding,
    PositionEmbedding,
    RelativePositionBias,
    RotaryEmbedding,
    Routing,
    TokenEmbedding,
)

B, T, S, D, F, V = 2, 5, 7, 12, 13, 17
rng = np.random.default_rng(5)
IDS = rng.integers(0, V, (4, T)).astype("int32")
TARGETS = rng.normal(size=(4, T, D)).astype("float32")


def encoder_decoder(dropout=0.0, scope=None):
    """A model whose layers are made inside `keras.RematScope(**scope)`.

    And the model outside: it would be recomputed too, which Keras cannot do in TensorFlow's graphs.
    """
    with contextlib.nullcontext() if scope is None else keras.RematScope(**scope):
        ids, output = make_layers(dropout)
    return keras.Model(ids, output)


def make_layers(dropout):
    ids = keras.Input((T,), dtype="int32")
    x = TokenEmbedding(V, D, scale=True, mask_zero=True)(ids)
    x = PositionalEncoding(dropout=dropout)(x)
    x = PositionEmbedding(T, dropout=dropout)(x)
    position = RelativePositionBias(8, 16)
    y = encoder_block(F, 3, dropout=dropout, position=position, gated=True, drop_path=dropout)(x)
    y = decoder_block(F, 2, dropout=dropout, position=RotaryEmbedding())(x, y)
    return ids, MultiHeadCrossAttention(2, name="cross_attention")(y, x)


MODES = {
    "full": {"mode": "full"},
    "larger than a token": {"mode": "larger_than", "output_size_threshold": D},
    "larger than all": {"mode": "larger_than", "output_size_threshold": 10**9},
    "the encoder": {
        "mode": "list_of_layers",
        "layer_names": ["transformer_encoder_block", "cross_attention"],
    },
    "activations": {"mode": "activations"},
    "none": {"mode": None},
}
# Those that recompute something; the others on request.
RECOMPUTING = [
    pytest.param(
        mode, marks=[pytest.mark.slow] * (mode in ("larger than all", "none", "activations"))
    )
    for mode in MODES
]


@pytest.mark.parametrize("jit", [False, True])
def test_a_model_with_layers_of_keras_is_recomputed(jit):
    """The output of logits is a `Dense`, and the experts add a loss."""
    if jit and keras.backend.backend() == "torch":
        pytest.skip("torch.compile is not tested here")
    experts = models.Experts(Routing(3, 1, balance=0.5))
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 6, "experts": experts}
    found = []
    for scope in (contextlib.nullcontext(), keras.RematScope("full")):
        keras.utils.set_random_seed(1)
        with scope:
            model = models.llama(V, **sizes)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=jit)
        found.append(model.fit(IDS, IDS, epochs=2, verbose=0).history["loss"])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
    plain = model.evaluate(IDS, IDS, verbose=0)  # without the loss of balance
    assert found[0][1] > plain + 0.2


def losses(scope, dropout, jit=False):
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    model = encoder_decoder(dropout, scope)
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit)
    return model.fit(IDS, TARGETS, epochs=3, batch_size=2, shuffle=False, verbose=0).history["loss"]


@functools.cache
def plain_losses(dropout):
    return losses(None, dropout)


@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.slow), 0.3])
@pytest.mark.parametrize("mode", RECOMPUTING)
def test_a_model_learns_the_same_inside_a_remat_scope(mode, dropout):
    """Three steps: wrong gradients, or other dropout in the backward pass, would show."""
    # The same sums in another order, in float32, over three steps.
    np.testing.assert_allclose(losses(MODES[mode], dropout), plain_losses(dropout), rtol=1e-5)


@pytest.mark.slow
@tensorflow_only
def test_a_model_learns_the_same_inside_a_remat_scope_under_xla():
    scope = MODES["full"]
    np.testing.assert_allclose(losses(scope, 0.3, jit=True), losses(None, 0.3, jit=True), rtol=1e-4)


def count_relus(layer):
    """How often a step of training computes the activation of a network."""
    import tensorflow as tf

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(layer(x, training=True) ** 2)
        return tape.gradient(y, [v.value for v in layer.trainable_variables])

    graph = step.get_concrete_function(tf.TensorSpec((B, T, D))).graph
    return sum(operation.type == "Relu" for operation in graph.get_operations())


@tensorflow_only
@pytest.mark.parametrize("recomputed", [False, True])
def test_a_remat_scope_keeps_nothing_but_the_input(recomputed):
    """What the backward pass takes from the forward one: tensors (B, T, F) are made again."""
    with keras.RematScope() if recomputed else contextlib.nullcontext():
        layer = FeedForward(F)
    layer.build((B, T, D))
    assert count_relus(layer) == 1 + recomputed


@pytest.mark.parametrize("mode", ["full", "larger than a token"])
def test_stepping_and_the_probe_work_inside_a_remat_scope(mode):
    with keras.RematScope(**MODES[mode]):
        layer = MultiHeadSelfAttention(3, causal=True)
    x = rng.normal(size=(B, T, D)).astype("float32")
    layer(x)
    randomize(layer)
    full = layer(x)
    assert_close(stepped(lambda start, end: layer(x[:, start:end]), [2, 1, 2]), full, 1e-5)
    with AttentionProbe() as probe:
        layer(x)
    (weights,) = probe.maps.values()
    assert to_numpy(weights).shape == (B, 3, T, T)
    with DecodingScope(length=T) as scope:
        layer(x)
    assert list(scope.cache)


@tensorflow_only
def test_a_layer_made_outside_of_the_scope_stays_as_it_is():
    """Keras decides where a layer is made, not where it is called."""
    layer = FeedForward(F)
    layer.build((B, T, D))
    with keras.RematScope():
        assert count_relus(layer) == 1


# LoRA and quantization


def projections(model):
    return [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.Dense)]


def test_lora_reaches_every_projection():
    keras.utils.set_random_seed(0)
    model = encoder_decoder()
    # Encoder: q k v, out, inner, outer; decoder: six more and cross-attention's four; four at last.
    assert len(projections(model)) == 4 + 4 + 4 + 4
    model.trainable = True
    for layer in model._flatten_layers():
        if not isinstance(layer, keras.layers.Dense):
            for variable in layer._trainable_variables:
                variable.trainable = False
    # Frozen already: for a bias with a gradient PyTorch takes another kernel.
    before = to_numpy(model(IDS))
    for layer in projections(model):
        layer.enable_lora(2)
    assert_close(model(IDS), before, 0.0)  # B starts at zero
    trainable = [variable.path for variable in model.trainable_variables]
    assert all("lora" in path or path.endswith("bias") for path in trainable)
    assert sum("lora" in path for path in trainable) == 2 * 16
    kernels = [to_numpy(layer._kernel) for layer in projections(model)]
    model.compile(keras.optimizers.SGD(0.1), "mse")
    first, *_, last = model.fit(IDS, TARGETS, epochs=5, verbose=0).history["loss"]
    assert last < first
    for layer, kernel in zip(projections(model), kernels, strict=True):
        np.testing.assert_array_equal(layer._kernel, kernel)
        assert np.any(to_numpy(layer.lora_kernel_b) != 0)
    assert np.any(to_numpy(model(IDS)) != before)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.slow
def test_keras_quantization_reaches_every_projection():
    model = randomize(encoder_decoder())
    before = to_numpy(model(IDS))
    model.quantize("int8")
    assert all(layer.quantization_mode == "int8" for layer in projections(model))
    # 127 steps of the largest of a column: half a percent of each product, a dozen layers.
    assert_close(model(IDS), before, 0.1)
    assert np.any(to_numpy(model(IDS)) != before)
