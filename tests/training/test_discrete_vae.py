"""The loss of the discrete VAE beside float64, its training, and the annealed temperature."""

import keras
import numpy as np
import pytest
from compare import assert_close
from execution import gradients, tensorflow_only

from keras_tfm import models, training

SIZES = {"dim": 8, "num_groups": 2, "num_blocks": 1, "code_dim": 6}


def expected(logits, distribution, x, beta, weights):
    """Section A.3 of arXiv:2102.12092, image by image, in float64."""
    total = count = 0.0
    for image in range(len(x)):
        channels = x.shape[-1]
        m, b = distribution[image, ..., :channels], np.exp(distribution[image, ..., channels:])
        p = x[image]
        density = np.exp(-np.abs(np.log(p / (1 - p)) - m) / b) / (2 * b * p * (1 - p))
        q = np.exp(logits[image]) / np.exp(logits[image]).sum(-1, keepdims=True)
        divergence = (q * np.log(q * q.shape[-1])).sum()
        total += weights[image] * (beta * divergence - np.log(density).sum())
        count += weights[image] * p.size
    return total / count


@pytest.mark.parametrize("weights", [None, [0.5, 0.0, 2.0]])
def test_the_loss_is_the_negative_bound(weights):
    rng = np.random.default_rng(5)
    outputs = {
        "logits": 2 * rng.normal(size=(3, 2, 5, 7)),
        "distribution": rng.normal(size=(3, 4, 10, 6)),
        "normalized": rng.uniform(0.1, 0.9, size=(3, 4, 10, 3)),
    }
    loss = training.DiscreteVAELoss(kl_weight=3.0)
    given = {name: x.astype("float32") for name, x in outputs.items()}
    sample_weight = None if weights is None else np.array(weights, "float32")
    wanted = expected(*outputs.values(), 3.0, weights or [1.0] * 3)
    # Float32 rounds at 6e-8; a few hundred terms of both signs.
    assert_close(loss(None, given, sample_weight), wanted, 1e-5)
    assert training.DiscreteVAELoss.from_config(loss.get_config()).kl_weight == 3.0


@tensorflow_only
def test_nan_in_an_image_of_weight_0_does_not_count():
    rng = np.random.default_rng(5)
    outputs = {
        "logits": rng.normal(size=(3, 2, 5, 7)).astype("float32"),
        "distribution": rng.normal(size=(3, 4, 10, 6)).astype("float32"),
        "normalized": rng.uniform(0.1, 0.9, size=(3, 4, 10, 3)).astype("float32"),
    }
    weight = np.array([0.5, 0.0, 2.0], "float32")

    def of(*tensors):
        given = dict(zip(outputs, tensors, strict=True))
        return training.DiscreteVAELoss()(None, given, weight)

    keep = weight[:, None, None, None] != 0
    spoiled = [np.where(keep, x, np.float32(np.nan)) for x in outputs.values()]
    assert_close(of(*spoiled), of(*outputs.values()), 1e-6)
    (_, expected), (_, found) = (gradients(of, [], *x) for x in (outputs.values(), spoiled))
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, 1e-6)


@pytest.mark.parametrize(
    ("y_pred", "message"),
    [
        (np.zeros((1, 2)), "y_pred must be a dictionary with .* got ndarray"),
        ({"logits": 0}, r"must be a dictionary with .* got \['logits'\]"),
        (
            {
                "logits": np.zeros((1, 1, 1, 5)),
                "distribution": np.zeros((1, 2, 2, 3)),
                "normalized": np.zeros((1, 2, 2, 3)),
            },
            "distribution must have twice the channels of normalized, 3",
        ),
    ],
)
def test_other_outputs_are_refused(y_pred, message):
    with pytest.raises(ValueError, match=message):
        training.DiscreteVAELoss()(None, y_pred)
    with pytest.raises(ValueError, match="kl_weight must not be negative, got -1"):
        training.DiscreteVAELoss(-1.0)


@pytest.mark.slow
@tensorflow_only
def test_it_learns_to_reconstruct_with_codes():
    """Pictures of one of six colours, where the mean colour would be far off."""
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(2)
    colours = rng.integers(0, 256, (6, 3))
    pixels = np.repeat(np.repeat(colours[rng.integers(6, size=240)][:, None, None], 4, 1), 4, 2)
    model = models.dvae(4, 16, **SIZES)
    model.compile(keras.optimizers.Adam(0.01), training.DiscreteVAELoss(0.01), jit_compile=False)
    temperature = model.get_layer("gumbel_softmax").temperature
    values = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            values.append(float(temperature.value))

    annealing = training.Annealing(temperature, lambda step: max(0.2, 1.0 - 0.01 * step))
    model.fit(pixels, epochs=25, batch_size=60, verbose=0, callbacks=[annealing, Watch()])
    np.testing.assert_allclose(values, np.maximum(0.2, 1.0 - 0.01 * np.arange(100)), rtol=1e-6)
    parts = models.dvae_parts(model)
    codes = np.asarray(parts["encoder"](pixels)).argmax(-1).reshape(240, -1)
    found = np.asarray(parts["decoder"](codes.astype("int32")))
    error = np.mean((found - pixels) ** 2)
    # A decoder that ignores its codes has the error of the mean colour. Found: 0.32 of it.
    assert error < 0.5 * np.mean((pixels.mean(0) - pixels) ** 2)


def test_annealing_needs_a_variable_and_a_schedule():
    with pytest.raises(TypeError, match=r"variable must be a keras.Variable, got 1.0"):
        training.Annealing(1.0, lambda step: step)
    with pytest.raises(TypeError, match=r"schedule must be a function of the step, got 0.5"):
        training.Annealing(keras.Variable(1.0), 0.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: models.dvae((10, 8), 5, **{**SIZES, "num_groups": 3}), "multiples of 4, .* 3"),
        (lambda: models.dvae(8, 5, **{**SIZES, "dim": 2}), "dim must be at least 4, got 2"),
        (lambda: models.dvae_parts(models.dvae_encoder(8, 5, 4, 2, 1)), "a model of models.dvae"),
        (
            lambda: models.dalle(11, 4, 2, 2, 8, 3, 2, 9, masks=["row", "column"], kernel_size=1),
            "masks must be one of .* for each of 3 blocks",
        ),
        (
            lambda: models.dalle(11, 4, 2, 2, 8, 1, 2, 9, masks=["rows"], kernel_size=1),
            r"masks must be one of .* got \['rows'\]",
        ),
        (lambda: models.dalle(11, 4, 0, 2), "text_length must be at least 1, got 0"),
    ],
)
def test_models_refuse_what_does_not_fit(make, message):
    with pytest.raises(ValueError, match=message):
        make()
