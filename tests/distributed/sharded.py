"""Small models on one device and divided between 8 virtual ones by `keras.distribution`, on JAX."""

import functools

import keras
import numpy as np
import pytest

from keras_tfm import generation, models, training

IS_JAX = keras.backend.backend() == "jax"
DEVICES = len(keras.distribution.list_devices()) if IS_JAX else 0
WITH_8_DEVICES = pytest.mark.skipif(
    DEVICES != 8,
    reason="KERAS_BACKEND=jax XLA_FLAGS=--xla_force_host_platform_device_count=8",
)

VOCABULARY, LENGTH = 32, 6
SMALL = {"dim": 16, "num_layers": 1, "num_heads": 4, "intermediate_dim": 32}


def mesh(batch=2, axis_names=("batch", "model")):
    return keras.distribution.DeviceMesh((batch, 8 // batch), axis_names)


@functools.cache
def distribution(kind, build):
    """One device; batches divided between 8; or batches between 2 and weights between 4."""
    if kind == "one device":
        return keras.distribution.DataParallel(devices=["cpu:0"])
    if kind == "data":
        return keras.distribution.DataParallel()
    return keras.distribution.ModelParallel(layout_map=training.layout_map(build, mesh()))


# Models and training


def bert():
    encoder = models.bert(VOCABULARY, **SMALL, dropout=0.0, max_length=LENGTH)
    return models.sequence_classifier(encoder, 4)


def llama(**options):
    return models.llama(VOCABULARY, **SMALL, num_key_value_heads=2, max_length=16, **options)


def mamba2():
    sizes = {"dim": 16, "num_layers": 1, "num_heads": 4, "head_dim": 4, "state_dim": 3}
    return models.mamba2(VOCABULARY, **sizes)


def t5():
    return models.t5(VOCABULARY, **SMALL, dropout=0.0, gated=True, num_buckets=8)


def vit():
    return models.image_classifier(models.vit((8, 8), 4, **SMALL, dropout=0.0), 4)


IDS = np.random.default_rng(0).integers(1, VOCABULARY, (8, LENGTH)).astype("int32")
IDS[3, 2:] = 0
CLASSES = np.arange(8) % 4
PICTURES = np.random.default_rng(0).normal(size=(8, 8, 8, 3)).astype("float32")
DATA = {
    bert: ({"tokens": IDS, "segments": 0 * IDS}, CLASSES),
    llama: (IDS, IDS),
    mamba2: (IDS, IDS),
    t5: ({"source": IDS, "target": IDS}, IDS),
    vit: (PICTURES, CLASSES),
}


@functools.cache
def trained(build, kind):
    """The model after three steps, and the loss of each."""
    with distribution(kind, build).scope():
        keras.utils.set_random_seed(0)
        model = build()
        logits = len(model.output.shape) == 3
        loss = (
            training.LabelSmoothedCrossEntropy()
            if logits
            else keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
        x, y = DATA[build]
        history = model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
        return model, history.history["loss"]


# Generation

PROMPTS = [[3, 4, 5], [6, 7], [8], [9, 3], [4], [5], [6, 6, 6], [7]]


def generated(build, kind, strategy=None):
    model, _ = trained(build, kind)
    start = {"start_id": 1} if build is t5 else {}
    inputs = {"source": IDS} if build is t5 else PROMPTS
    with distribution(kind, build).scope():
        return generation.generate(model, inputs, max_length=10, strategy=strategy, **start)


def check_generated(build, kind, strategy=None):
    """Tokens and scores are those of one device."""
    expected = generated(build, "one device", strategy)
    found = generated(build, kind, strategy)
    assert found.tokens.tolist() == expected.tokens.tolist()
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)
    assert len(set(found.tokens[:, -5:].ravel().tolist())) > 2
