"""The layers of a discrete VAE: Gumbel-softmax, codebook, pixels."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import gradients, tensorflow_only
from keras import ops

from keras_tfm.layers import (
    CodebookEmbedding,
    GumbelSoftmax,
    ImageDenormalization,
    ImageNormalization,
)

LOGITS = np.log(np.array([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]], "float32"))


@pytest.mark.parametrize("straight_through", [False, True])
def test_it_samples_the_distribution_of_the_logits(straight_through):
    """The largest of logits and noise has the probabilities of the softmax, at any temperature."""
    layer = GumbelSoftmax(0.7, straight_through, seed=3)
    y = to_numpy(layer(np.tile(LOGITS, (20_000, 1, 1)), training=True))
    assert_close(y.sum(-1), np.ones(y.shape[:2]), 1e-5)
    shares = np.stack([(y.argmax(-1) == i).mean(0) for i in range(3)], -1)
    # Four standard deviations of a share among 20,000 draws are at most 0.014.
    assert_close(shares, np.exp(LOGITS), 0.014)
    assert (np.sort(y, -1)[..., -1] > 1 - 1e-6).all() == straight_through
    assert_close(layer(LOGITS), np.eye(3)[[2, 0]], 0.0)  # inference takes the largest logit


def test_the_cooler_the_nearer_to_one_category():
    layer = GumbelSoftmax(1.0, seed=5)
    largest = {}
    for temperature in (2.0, 0.5, 0.05):
        layer(LOGITS)
        layer.temperature.assign(temperature)
        y = to_numpy(layer(np.tile(LOGITS, (500, 1, 1)), training=True))
        largest[temperature] = y.max(-1).mean()
    assert largest[2.0] < 0.65 < largest[0.5] < 0.95 < largest[0.05]


@tensorflow_only
def test_one_hot_samples_have_the_gradient_of_the_softmax():
    weights = np.random.default_rng(0).normal(size=LOGITS.shape).astype("float32")
    found = []
    for straight_through in (False, True):
        layer = GumbelSoftmax(0.8, straight_through, seed=7)
        function = lambda x, layer=layer: ops.sum(layer(x, training=True) * weights)  # noqa: E731
        found.append(to_numpy(gradients(function, [], LOGITS)[1][0]))
    assert np.abs(found[0]).max() > 0.01
    assert_close(found[1], found[0], 1e-6)


def test_weights_mix_the_vectors_that_codes_look_up():
    layer = CodebookEmbedding(5, dim=3)
    codes = np.array([[4, 0, 2]])
    table = to_numpy(layer.embeddings if layer.built else (layer(codes), layer.embeddings)[1])
    assert_close(layer(codes), table[codes], 0.0)
    weights = np.random.default_rng(1).dirichlet(np.ones(5), size=(2, 3, 7)).astype("float32")
    assert_close(layer(weights), weights.astype("float64") @ table, 1e-6)
    assert layer(keras.Input((4,), dtype="int32")).shape == (None, 4, 3)
    assert layer(keras.Input((4, 5))).shape == (None, 4, 3)
    with pytest.raises(ValueError, match=r"weights must have shape \(..., 5\), got \(2, 4\)"):
        layer(np.zeros((2, 4), "float32"))
    with pytest.raises(ValueError, match=r"ids must be in 0..4, got 0..5"):
        layer(np.array([0, 5]))


def test_pixels_come_back():
    pixels = np.arange(256, dtype="uint8").reshape(1, 8, 16, 2)
    options = {"mean": [-0.125, 0.3], "std": [1.25, 0.4]}
    normal = ImageNormalization(**options)(pixels)
    # Float32 rounds at 6e-8 of 255.
    assert_close(ImageDenormalization(**options)(normal), pixels.astype("float64"), 1e-6)
    beyond = ImageDenormalization([0.5], [1.0])(np.array([[[[-9.0], [9.0]]]], "float32"))
    np.testing.assert_array_equal(np.ravel(beyond), [0.0, 255.0])


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_is_positive(temperature):
    with pytest.raises(ValueError, match="temperature must be positive"):
        GumbelSoftmax(temperature)
