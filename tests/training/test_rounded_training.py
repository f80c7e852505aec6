"""Training with products of 10 bits (TF32) and of 7 (bfloat16), as on GPUs and TPUs."""

import functools
from contextlib import nullcontext

import keras
import numpy as np
import pytest
from rounded_products import rounded_products

from keras_tfm import models, training

pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="PyTorch computes float32 products in float32"
)
BUILDERS = {
    "gpt": lambda: models.gpt(23, 16, 2, 2, 32, dropout=0.0, max_length=11, pad_id=0),
    "llama": lambda: models.llama(23, 16, 2, 2, 32),
}


@functools.cache
def losses(builder, bits):
    """Twelve steps on sequences that count, with padding."""
    with rounded_products(bits) if bits else nullcontext():
        keras.utils.set_random_seed(0)
        model = BUILDERS[builder]()
        loss = training.LabelSmoothedCrossEntropy(label_smoothing=0.0)
        model.compile(keras.optimizers.Adam(0.01), loss)
        starts = np.random.default_rng(0).integers(1, 12, (96, 1))
        ids = (starts + np.arange(12)).astype("int32")
        ids[::3, 7:] = 0
        history = model.fit(ids[:, :-1], ids[:, 1:], batch_size=32, epochs=4, verbose=0)
        return np.array(history.history["loss"])


# Measured: at most 1.3e-4 and 5.7e-4. With 3 bits, 2e-3 to 3.4e-3.
@pytest.mark.parametrize(
    ("bits", "tolerance"), [pytest.param(10, 4e-4, marks=pytest.mark.slow), (7, 1.5e-3)]
)
@pytest.mark.parametrize(
    "builder", [pytest.param(x, marks=[pytest.mark.slow] * (x != "llama")) for x in BUILDERS]
)
def test_losses_are_those_of_float32(builder, bits, tolerance):
    exact, rounded = losses(builder, None), losses(builder, bits)
    assert exact[-1] < 0.8 * exact[0]  # it learns
    assert np.any(rounded != exact)  # products are rounded
    np.testing.assert_allclose(rounded, exact, rtol=tolerance)
