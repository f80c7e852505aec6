"""Training in half precision: the same accuracy as in float32, losses and metrics in float32."""

import keras
import numpy as np
import pytest
from execution import saving, tensorflow_only

from keras_tfm import models, training
from keras_tfm.layers import PositionalEncoding, TokenEmbedding, TransformerEncoderBlock

POLICIES = ["float32", "mixed_bfloat16", "mixed_float16"]
LENGTH, IDS = 4, 8


def reverser(dtype):
    """Says a sequence backwards: what stands where is attention's to find out."""
    keras.utils.set_random_seed(3)
    ids = keras.Input((LENGTH,), dtype="int32")
    embedding = TokenEmbedding(IDS, 16, scale=True, dtype=dtype)
    x = PositionalEncoding(dtype=dtype)(embedding(ids))
    x = TransformerEncoderBlock(32, 2, normalize_first=True, dtype=dtype)(x)
    model = keras.Model(ids, embedding(x, reverse=True))
    optimizer = keras.optimizers.Adam(0.01, global_clipnorm=1.0)
    if dtype == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(
        optimizer,
        training.LabelSmoothedCrossEntropy(0.1),
        metrics=[training.MaskedAccuracy(name="accuracy"), training.Perplexity()],
    )
    return model


def data(seed, count):
    rows = np.random.default_rng(seed).integers(1, IDS, (count, LENGTH))
    return rows, rows[:, ::-1]


@tensorflow_only
@pytest.mark.parametrize(
    "dtype", [pytest.param(x, marks=[pytest.mark.slow] * (x != "mixed_float16")) for x in POLICIES]
)
def test_a_small_model_learns_to_reverse_in_every_policy(dtype):
    model = reverser(dtype)
    assert model.output.dtype == dtype.removeprefix("mixed_")
    model.fit(*data(0, 2_000), batch_size=50, epochs=4, verbose=0)
    found = model.evaluate(*data(1, 500), batch_size=500, verbose=0, return_dict=True)
    assert found["accuracy"] > 0.99  # an eighth by chance
    # Label smoothing of 0.1 makes a certain answer 1 / 0.9 or so: float16 and bfloat16 add little.
    assert found["perplexity"] < 1.3
    assert {w.dtype for w in model.weights} == {"float32"}
    if dtype == "mixed_float16":
        assert float(model.optimizer.dynamic_scale) > 1.0


@saving
def test_the_loss_is_scaled_where_a_layer_needs_it(tmp_path):
    """The model's own policy is float32: Keras would leave the gradients as they are."""
    model = models.transformer(IDS, dim=8, num_layers=1, num_heads=2, dtype="mixed_float16")
    rows, _ = data(0, 8)
    model.compile("adam", training.LabelSmoothedCrossEntropy())
    assert type(model.optimizer) is keras.optimizers.LossScaleOptimizer
    model.fit({"source": rows, "target": rows}, rows, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.LossScaleOptimizer
    assert int(loaded.optimizer.iterations) == 1
    model.compile("adam", training.LabelSmoothedCrossEntropy(), auto_scale_loss=False)
    assert not isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


@tensorflow_only
@saving
def test_a_scaled_optimizer_of_one_s_own_is_saved_and_goes_on(tmp_path):
    """The one that `compile` adds by itself is lost when the file is loaded under float32."""
    model = reverser("mixed_float16")
    model.fit(*data(0, 100), batch_size=50, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.LossScaleOptimizer
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations) == 2
    assert float(loaded.optimizer.dynamic_scale) == float(model.optimizer.dynamic_scale)
    one, two = (x.fit(*data(2, 50), verbose=0).history for x in (model, loaded))
    assert one["loss"] == pytest.approx(two["loss"], rel=1e-3)
