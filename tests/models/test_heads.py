"""Heads on models; what they compute is compared in tests/checkpoints/test_parity.py."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy

import keras_tfm
from keras_tfm import models

SMALL = {"dim": 6, "num_layers": 2, "num_heads": 2, "intermediate_dim": 11}
TOKENS = np.array([[2, 5, 6, 3, 0], [2, 7, 3, 0, 0]])
SEGMENTS = np.array([[0, 0, 1, 1, 0], [0, 0, 0, 0, 0]])
INPUTS = {"tokens": TOKENS, "segments": SEGMENTS}
HEADS = {
    "masked": (models.masked_language_model, {}, (2, 5, 13)),
    "next": (models.next_sentence, {}, (2, 2)),
    "sequence": (models.sequence_classifier, {"num_classes": 3}, (2, 3)),
    "token": (models.token_classifier, {"num_classes": 4}, (2, 5, 4)),
}


@pytest.mark.parametrize(
    "name", ["masked", *(pytest.param(x, marks=pytest.mark.slow) for x in HEADS if x != "masked")]
)
def test_a_head_shares_the_model_s_layers_and_learns(name):
    make, options, shape = HEADS[name]
    bert = models.bert(13, **SMALL, dropout=0.0)
    model = make(bert, **options)
    assert isinstance(model, keras_tfm.Model)
    assert model.get_layer("encoder_1") is bert.get_layer("encoder_1")
    assert model(INPUTS).shape == shape
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.05), loss)
    labels = np.random.default_rng(0).integers(0, 2, shape[:-1])
    losses = model.fit(INPUTS, labels, epochs=3, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


def test_logits_of_chosen_positions_alone_and_their_gradients():
    """As many logits as there are positions, the same numbers, and the same step of training."""
    bert = models.bert(13, **SMALL, dropout=0.0)
    whole, some = (models.masked_language_model(bert, True, positions=x) for x in (False, True))
    chosen = np.array([[1, 3], [2, 0]])
    inputs = {**INPUTS, "mask_positions": chosen}
    for layer in some.layers:
        layer.set_weights(whole.get_layer(layer.name).get_weights() if layer.weights else [])
    expected, got = whole(INPUTS), some(inputs)
    assert got["tokens"].shape == (2, 2, 13)
    assert_close(
        got["tokens"], np.take_along_axis(to_numpy(expected["tokens"]), chosen[..., None], 1), 1e-6
    )
    assert_close(got["next_sentence"], expected["next_sentence"], 1e-6)

    labels, weights = np.array([[5, 3], [3, 0]]), np.array([[1, 1], [1, 0]], "float32")
    all_labels, all_weights = np.zeros((2, 5), int), np.zeros((2, 5), "float32")
    for row in range(2):
        for place, label, weight in zip(chosen[row], labels[row], weights[row], strict=True):
            if weight:
                all_labels[row, place], all_weights[row, place] = label, weight
    before, after = bert.get_weights(), []
    for model, x, y, weight in (
        (whole, INPUTS, all_labels, all_weights),
        (some, inputs, labels, weights),
    ):
        model = keras_tfm.Model(model.input, model.output["tokens"])
        bert.set_weights(before)
        loss = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        )
        model.compile(keras.optimizers.SGD(0.5), loss)
        model.train_on_batch(x, y, sample_weight=weight)
        after.append(bert.get_weights())
    for one, other in zip(*after, strict=True):
        assert_close(one, other, 1e-6)
    assert all(
        np.abs(one - other).max() > 0 for one, other in zip(after[0][:8], before, strict=False)
    )


def test_a_token_classifier_s_loss_skips_padding():
    model = models.token_classifier(models.bert(13, **SMALL), 4)
    np.testing.assert_array_equal(model(INPUTS)._keras_mask, TOKENS != 0)


def test_padding_and_its_segment_change_nothing():
    model = models.question_answering(models.bert(13, **SMALL))
    longer = {name: np.pad(x, ((0, 0), (0, 3)), constant_values=0) for name, x in INPUTS.items()}
    longer["segments"][:, 5:] = 1
    for name, y in model(longer).items():
        assert_close(
            to_numpy(y)[:, :5][TOKENS != 0], to_numpy(model(INPUTS)[name])[TOKENS != 0], 1e-6
        )


def test_half_precision_reaches_the_head():
    model = models.sequence_classifier(models.bert(13, **SMALL, dtype="mixed_bfloat16"), 3)
    assert {layer.compute_dtype for layer in model.layers if layer.weights} == {"bfloat16"}


@pytest.mark.parametrize("make", [make for make, *_ in HEADS.values()], ids=HEADS)
def test_a_model_without_blocks_is_refused(make):
    x = keras.Input((3,))
    options = next(options for other, options, _ in HEADS.values() if other is make)
    with pytest.raises(ValueError, match=r"expected a model of keras_tfm\.models, .* 'plain' has"):
        make(keras.Model(x, keras.layers.Dense(2)(x), name="plain"), **options)


@pytest.mark.parametrize("builder", [models.bert, models.gpt, models.gemma, models.t5])
def test_a_model_has_a_layer_at_least(builder):
    with pytest.raises(ValueError, match="num_layers must be at least 1, got 0"):
        builder(13, num_layers=0)


def test_t5_sees_its_first_token_although_it_is_the_padding():
    """Hidden, it would not matter what it is embedded as; in the source it must not."""
    model = models.t5(13, **{**SMALL, "num_layers": 1})
    source = np.array([[3, 1, 0, 0], [3, 1, 0, 0]])
    target = np.array([[0, 4, 5], [6, 4, 5]])
    before = to_numpy(model({"source": source, "target": target}))
    table = model.get_layer("embedding").embeddings
    values = to_numpy(table)
    values[0] = -values[0]
    table.assign(values)
    after = to_numpy(model({"source": source, "target": target}))
    assert np.max(np.abs(after[0, 2, 1:] - before[0, 2, 1:])) > 1e-4
    np.testing.assert_array_equal(after[1, :, 1:], before[1, :, 1:])


DECODERS = {"gpt": models.gpt, "llama": models.llama, "gemma": models.gemma}


@pytest.mark.parametrize("family", DECODERS)
def test_a_classifier_of_a_decoder_reads_the_last_token(family):
    model = models.sequence_classifier(DECODERS[family](13, **{**SMALL, "dim": 8}, pad_id=12), 3)
    assert model.head.arguments["pooling"] == "last"
    assert "pooler" not in [layer.name for layer in model.layers]
    ids = np.array([[2, 5, 6, 12, 12], [2, 5, 6, 3, 12], [2, 5, 6, 3, 4]])
    features = to_numpy(models.backbone(model)(ids))
    kernel = to_numpy(model.get_layer("classifier").kernel)
    last = np.stack([features[0, 2], features[1, 3], features[2, 4]])
    assert_close(model(ids), last @ kernel, 1e-6)
    assert_close(model(ids[:1, :3]), to_numpy(model(ids))[:1], 1e-6)


def test_pooling_of_a_classifier_is_chosen():
    model = models.sequence_classifier(models.gpt(13, **SMALL), 3, pooling="first")
    assert model.get_layer("pooler").units == 6
    model = models.sequence_classifier(models.bert(13, **SMALL, segments=False), 3, pooling="last")
    features = to_numpy(models.backbone(model)({"tokens": TOKENS}))
    expected = features[[0, 1], [3, 2]] @ to_numpy(model.get_layer("classifier").kernel)
    assert_close(model({"tokens": TOKENS}), expected, 1e-6)
    with pytest.raises(ValueError, match="pooling must be 'first', 'last' or 'mean', got 'max'"):
        models.sequence_classifier(models.gpt(13, **SMALL), 3, pooling="max")


def test_a_classifier_of_the_mean_leaves_padding_out():
    model = models.sequence_classifier(models.gpt(13, **SMALL, pad_id=12), 3, pooling="mean")
    ids = np.array([[2, 5, 6, 12, 12], [2, 5, 6, 3, 4]])
    features = to_numpy(models.backbone(model)(ids)).astype("float64")
    expected = np.stack([features[0, :3].mean(0), features[1].mean(0)])
    assert model.get_layer("classifier").bias is None
    assert_close(model(ids), expected @ to_numpy(model.get_layer("classifier").kernel), 1e-6)
