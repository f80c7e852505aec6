"""`resize_vocabulary`: old ids keep their logits, new ones have the mean, the rest is copied."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from keras_weights import randomize

from keras_tfm import models
from keras_tfm.models.quantization.state import (
    TrainedQuantization,
    quantization_of,
    quantization_settings,
    set_quantization,
)
from keras_tfm.models.resize import position_tables, resize_positions

SMALL = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 11}
IDS = np.array([[3, 4, 5, 6], [6, 7, 8, 2]], "int32")
BOTH = {"source": IDS, "target": IDS}
TOKENS = {"tokens": IDS}
SEGMENTS = {"tokens": IDS, "segments": 0 * IDS}
MODELS = {
    "tied": (lambda: models.gpt(13, **SMALL, max_length=7), IDS),
    "untied": (lambda: models.llama(13, **SMALL), IDS),
    "classes": (lambda: models.sequence_classifier(models.gpt(13, **SMALL, max_length=7), 3), IDS),
    "bias": (
        lambda: models.masked_language_model(models.bert(13, **SMALL, max_length=7)),
        SEGMENTS,
    ),
    "relative": (lambda: models.deberta(13, **SMALL, max_length=7, num_buckets=4), TOKENS),
    "encoder-decoder": (lambda: models.bart(13, **SMALL, max_length=7), BOTH),
    "two tables": (lambda: models.marian(13, **SMALL, target_vocabulary_size=11, pad_id=1), BOTH),
    "relative, untied": (lambda: models.t5(13, **SMALL, tie_output=False), BOTH),
    "text encoder": (
        lambda: models.clip_text(13, **SMALL, projection_dim=5, max_length=7, end_id=2),
        IDS,
    ),
}


def run(model, inputs):
    outputs = model(inputs, training=False)
    return [to_numpy(x) for x in keras.tree.flatten(outputs)]


@pytest.mark.parametrize("name", MODELS)
def test_old_ids_give_what_they_gave(name):
    build, inputs = MODELS[name]
    model = randomize(build())
    larger = models.resize_vocabulary(model, 17)
    assert larger.arguments["vocabulary_size"] == 17
    assert {**larger.arguments, "vocabulary_size": 13} == model.arguments
    assert (larger.family, larger.head) == (model.family, model.head)
    for x, y in zip(run(model, inputs), run(larger, inputs), strict=True):
        assert_close(y[..., : x.shape[-1]], x, 1e-5)
    smaller = models.resize_vocabulary(larger, 13)
    for a, b in zip(model.weights, smaller.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))


def test_new_rows_are_the_mean_of_the_old_ones():
    for name in ("tied", "untied", "bias"):
        build, inputs = MODELS[name]
        model = randomize(build())
        larger = models.resize_vocabulary(model, 15)
        table, old = (to_numpy(x.get_layer("embedding").embeddings) for x in (larger, model))
        np.testing.assert_array_equal(table[:13], old)
        assert_close(table[13:], np.tile(old.mean(0), (2, 1)), 1e-6)
        before, after = run(model, inputs)[0], run(larger, inputs)[0]
        # Logits are linear in the rows, so a new id has the mean logit.
        assert_close(after[..., 13], before.mean(-1), 1e-5)


def test_both_sizes_of_two_tables():
    model = randomize(MODELS["two tables"][0]())
    larger = models.resize_vocabulary(model, 17, target_vocabulary_size=14)
    assert larger.get_layer("source_embedding").embeddings.shape == (17, 8)
    assert larger.get_layer("target_embedding").embeddings.shape == (14, 8)
    x, y = run(model, BOTH)[0], run(larger, BOTH)[0]
    assert (x.shape[-1], y.shape[-1]) == (11, 14)
    assert_close(y[..., :11], x, 1e-5)


@pytest.mark.parametrize(("quantization", "more"), [("int4", 0), ("int8", 2)])
def test_rounding_is_kept(quantization, more):
    """With adapters, too. Tables of 31 ids are too small for int8, those of 35 are not."""
    model = randomize(models.llama(31, **{**SMALL, "dim": 32}))
    models.enable_quantization(model, quantization, keep_float=["outer"], activations=True)
    models.enable_lora(model, rank=2)
    for weight in model.trainable_weights:
        weight.assign(keras.random.normal(weight.shape, stddev=0.1, seed=1))
    larger = models.resize_vocabulary(model, 35)
    smaller = models.resize_vocabulary(larger, 31)
    for copy, added in ((larger, more), (smaller, 0)):
        assert quantization_settings(copy) == quantization_settings(model)
        assert len(quantization_of(copy).weights) == len(quantization_of(model).weights) + added
        if not added:
            assert_close(to_numpy(copy(IDS))[..., :31], to_numpy(model(IDS)), 1e-5)


@pytest.mark.parametrize("bits", [8, 4])
def test_published_scales_are_kept(bits):
    """The scales of old ids stay; offsets, too, and those of new ids are 0."""
    model = randomize(models.gpt(13, **{**SMALL, "dim": 32}, max_length=7))
    state = TrainedQuantization(model, "int4", keep_int8=[model.embedding.name] * (bits == 8))
    scales = np.full((13,) if bits == 8 else (13, 1), 0.25, "float32" if bits == 8 else "float16")
    offsets = None if bits == 8 else np.full((13, 1), 0.125, "float32")
    state.publish({0: state.weights[0].grid._replace(scales=scales, offsets=offsets)})
    set_quantization(model, state)
    larger = models.resize_vocabulary(model, 15)
    assert_close(to_numpy(larger(IDS))[..., :13], to_numpy(model(IDS)), 1e-5)
    variable, grid = quantization_of(larger).weights[0]
    np.testing.assert_array_equal(grid.scales[:13], scales)
    table = to_numpy(variable)
    step = np.abs(table[13:]).max(axis=1) / (127 if bits == 8 else 7)
    rounded = to_numpy(grid.straight_through(variable))
    assert np.all(np.abs(rounded - table)[13:] < 0.51 * step[:, None])
    smaller = models.resize_vocabulary(larger, 13)
    np.testing.assert_array_equal(to_numpy(smaller(IDS)), to_numpy(model(IDS)))


def test_adapters_and_what_trains_are_kept():
    model = randomize(MODELS["untied"][0]())
    models.enable_lora(model, 2)
    model.get_layer("output").enable_lora(2)
    rng = np.random.default_rng(0)
    for variable in model.variables:
        if variable.name.startswith("lora"):
            variable.assign(rng.normal(size=variable.shape))
    larger = models.resize_vocabulary(model, 17)
    assert_close(run(larger, IDS)[0][..., :13], run(model, IDS)[0], 1e-5)
    trained = [[x.name for x in one.trainable_weights] for one in (model, larger)]
    assert trained[0] == trained[1] and "lora_kernel_a" in trained[0]


@pytest.mark.parametrize(
    ("make", "size", "message"),
    [
        (lambda: models.vit(8, 4, **SMALL), 17, "a vocabulary of texts, got 'vit', of models.vit$"),
        (lambda: models.image_gpt(13, **SMALL), 17, "a vocabulary of texts, got 'image_gpt'"),
        (lambda: models.gpt(13, **SMALL, pad_id=12), 12, "vocabulary_size must exceed pad_id, 12$"),
        (lambda: models.gpt(13, **SMALL), 0, "vocabulary_size must be at least 1, got 0$"),
        (lambda: models.clip_text(13, **SMALL, end_id=None), 17, "a model with an end_id"),
        (
            lambda: keras.Model(x := keras.Input((3,)), keras.layers.Dense(2)(x), name="own"),
            17,
            "got 'own', composed by hand$",
        ),
    ],
)
def test_what_cannot_be_resized_is_named(make, size, message):
    with pytest.raises(ValueError, match=message) as error:
        models.resize_vocabulary(make(), size)
    assert "\n" not in str(error.value)


def test_a_target_without_a_table_has_no_size():
    with pytest.raises(ValueError, match=r"target_vocabulary_size must be None.* got 14"):
        models.resize_vocabulary(MODELS["encoder-decoder"][0](), 17, target_vocabulary_size=14)


@pytest.mark.parametrize("name", ["tied", "bias", "encoder-decoder", "text encoder", "relative"])
def test_texts_of_the_old_length_give_what_they_gave(name):
    build, inputs = MODELS[name]
    model = randomize(build())
    longer = resize_positions(model, 9)
    assert longer.arguments["max_length"] == 9
    for x, y in zip(run(model, inputs), run(longer, inputs), strict=True):
        assert_close(y, x, 1e-5)
    for layer in position_tables(longer):
        assert not np.any(to_numpy(layer.positions)[-2:])
