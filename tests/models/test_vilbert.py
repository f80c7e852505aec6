"""ViLBERT beside its arithmetic in NumPy float64: odd sizes, noise on every weight, masks."""

import re

import keras
import keras_weights as read
import numpy as np
import pytest
import reference_vilbert as reference
from compare import assert_close, to_numpy
from execution import tensorflow_only

from keras_tfm import models, text, training

# Float32 rounds at 6e-8; nine blocks, sums of up to 22 terms. Found: up to 1e-6.
FLOAT32 = 1e-5
SMALL = {
    "dim": 10, "num_layers": 3, "num_heads": 5, "intermediate_dim": 11, "visual_dim": 14,
    "num_visual_layers": 2, "num_visual_heads": 2, "visual_intermediate_dim": 22,
    "co_attention_dim": 9, "num_co_attention_heads": 3, "text_schedule": (1, 2),
    "visual_schedule": (0, 1), "dropout": 0.0, "max_length": 13, "num_segments": 3,
    "region_dim": 5, "num_regions": None, "region_mask": True,
}  # fmt: skip
RNG = np.random.default_rng(5)
TOKENS = RNG.integers(1, 31, (3, 11)).astype("int32")
TOKENS[1, 6:], TOKENS[2, 1:] = 0, 0
MASK = np.ones((3, 8), "int32")
MASK[0, 5:], MASK[2, 1:] = 0, 0
INPUTS = {
    "tokens": TOKENS,
    "segments": RNG.integers(0, 3, TOKENS.shape).astype("int32"),
    "region_features": RNG.normal(size=(3, 8, 5)).astype("float32"),
    "region_boxes": RNG.uniform(size=(3, 8, 4)).astype("float32"),
    "region_mask": MASK,
}


def weights_of(model):
    layers = {layer.name: layer for layer in model.layers}

    def blocks(name):
        return [
            read.block(layers[key]) for key in sorted(layers) if re.fullmatch(rf"{name}_\d", key)
        ]

    regions = layers["region_embedding"]
    found = {
        "tokens": to_numpy(layers["embedding"].embeddings),
        "segments": to_numpy(layers["segment_embedding"].segments),
        "positions": to_numpy(layers["positions"].positions),
        "embedding_norm": read.norm(layers["embedding_norm"]),
        "regions": {
            **read.norm(regions.norm),
            **read.dense(regions.feature_projection, "feature"),
            **read.dense(regions.box_projection, "box"),
        },
        "text": blocks("encoder"),
        "visual": blocks("visual_encoder"),
        "co_text": blocks("co_text"),
        "co_visual": blocks("co_visual"),
        "poolers": {
            **read.dense(layers["text_pooler"], "text"),
            **read.dense(layers["visual_pooler"], "visual"),
        },
    }
    for name in ("transform", "region_transform", "region_classes", "matching"):
        if name in layers:
            found |= read.dense(layers[name], name)
    for name in ("transform_norm", "region_transform_norm"):
        if name in layers:
            found[name] = read.norm(layers[name])
    if "output_bias" in layers:
        found["output_bias"] = to_numpy(layers["output_bias"].bias)
    return found


@pytest.mark.default
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fusion": "sum", "text_schedule": (0, 0, 3), "visual_schedule": (1, 2, 2)},
    ],
    ids=["product", "sum"],
)
def test_equals_the_float64_reference(options):
    model = models.vilbert(31, **{**SMALL, **options})
    model = read.randomize(models.image_text_pretraining(model, 7))
    bare = keras.Model(
        model.input,
        {
            "features": model.features,
            "visual_features": model.get_layer("visual_marker").output,
            "pooled": model.get_layer("pooled_marker").output,
            "text_pooled": model.get_layer("text_pooled_marker").output,
            "visual_pooled": model.get_layer("visual_pooled_marker").output,
        },
    )
    weights = weights_of(model)
    expected = reference.vilbert(INPUTS, weights, model.arguments)
    for name, x in bare(INPUTS).items():
        # Of padded positions, everything is computed but nothing promised; both agree anyway.
        assert_close(x, expected[name], FLOAT32)
    for name, x in model(INPUTS).items():
        assert_close(x, reference.heads(expected, weights)[name], FLOAT32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_schedule": (1, 4)}, "text_schedule must be of the 3 blocks of its stream, got 4"),
        ({"visual_schedule": (0, 3)}, "visual_schedule must be of the 2 blocks"),
        ({"visual_schedule": (1, 0)}, "visual_schedule must be in ascending order, got [1, 0]"),
        ({"visual_schedule": (1,)}, "an entry for each co-attention block, got 2 and 1"),
        ({"visual_schedule": (), "text_schedule": ()}, "co-attention block, got none"),
        ({"visual_schedule": (-1, 0)}, "visual_schedule must be at least 0, got -1"),
        ({"num_co_attention_heads": 4}, "(4) must divide co_attention_dim (9)"),
        ({"fusion": "mean"}, "fusion must be one of ['product', 'sum'], got 'mean'"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        models.vilbert(31, **{**SMALL, **options})


def test_a_model_of_texts_alone_gets_no_heads_of_regions():
    bert = models.bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    with pytest.raises(ValueError, match=r"expected a model of texts and regions, .* got 'bert'"):
        models.image_text_pretraining(bert, 7)


def test_the_loss_of_regions_equals_the_reference():
    targets = RNG.dirichlet(np.ones(5), (2, 3)).astype("float32")
    targets[0, 0] = [0, 1, 0, 0, 0]
    logits = (3 * RNG.normal(size=(2, 3, 5))).astype("float32")
    weights = np.array([[1, 0, 1], [0, 0, 1]], "float32")
    loss = training.RegionKLDivergence()
    flat = (targets.reshape(6, 5), logits.reshape(6, 5), weights.reshape(6))
    assert_close(loss(targets, logits, weights), reference.region_loss(*flat), 1e-6)
    everything = reference.region_loss(*flat[:2], np.ones(6))
    assert_close(loss(targets, logits), everything, 1e-6)
    assert_close(loss.count(targets, logits, weights), 3.0, 0.0)
    assert_close(loss(targets, logits, 0 * weights), 0.0, 0.0)
    spoiled = np.where(weights[..., None] == 0, np.float32(np.nan), logits)
    assert_close(loss(targets, spoiled, weights), loss(targets, logits, weights), 1e-6)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    assert again.get_config() == loss.get_config()


def test_regions_are_masked():
    batch = {
        "region_features": np.ones((200, 8, 5)),
        "region_classes": RNG.dirichlet(np.ones(3), (200, 8)),
        "region_mask": np.tile([1, 1, 1, 1, 1, 1, 0, 0], (200, 1)),
    }
    mask = text.MaskRegions(0.3)
    inputs, targets, weights = mask(batch, step=3)
    assert "region_classes" not in inputs and targets.dtype == np.float32
    np.testing.assert_array_equal(targets, batch["region_classes"].astype("float32"))
    assert not weights[:, [0, 6, 7]].any()  # the whole image, and padding
    assert weights.sum(axis=1).min() == 1
    zero = (inputs["region_features"] == 0).all(axis=-1)
    assert not zero[weights == 0].any()
    # Five regions each: 1.5 chosen on average, and one of the 17 % of rows without; of 334, 90 %.
    assert 300 < weights.sum() < 370
    assert 0.85 < zero.sum() / weights.sum() < 0.95
    np.testing.assert_array_equal(mask(batch, step=3)[2], weights)
    assert np.any(mask(batch, step=4)[2] != weights)
    with pytest.raises(ValueError, match="must have 'region_classes', got"):
        mask(inputs, step=0)
    with pytest.raises(ValueError, match=r"rate .* got 1\.5"):
        text.MaskRegions(1.5)


@pytest.mark.slow
@tensorflow_only
def test_it_learns_what_each_stream_can_only_learn_from_the_other():
    """A text names two regions' classes; a masked word or region is known from the other stream."""
    keras.utils.set_random_seed(3)
    rng, rows, kinds = np.random.default_rng(0), 512, 4
    seen = rng.integers(0, kinds, (rows, 2))
    told, fits = seen.copy(), rng.random(rows) < 0.5
    told[~fits, 1] = (told[~fits, 1] + rng.integers(1, kinds, (~fits).sum())) % kinds
    codes = rng.normal(size=(kinds, 5))
    features = np.concatenate([np.zeros((rows, 1, 5)), codes[seen]], axis=1)
    features += 0.1 * rng.normal(size=features.shape)
    boxes = np.tile([[0, 0, 1, 1], [0, 0, 0.5, 1], [0.5, 0, 1, 1]], (rows, 1, 1))
    batch = {
        "tokens": np.concatenate([np.ones((rows, 1), int), told + 3], axis=1).astype("int32"),
        "region_features": features,
        "region_boxes": boxes.astype("float32"),
        "region_classes": np.eye(kinds)[np.concatenate([seen[:, :1], seen], axis=1)],
    }
    model = models.vilbert(
        8, dim=16, num_layers=1, num_heads=2, intermediate_dim=32, visual_dim=12,
        num_visual_layers=1, num_visual_heads=2, visual_intermediate_dim=24, co_attention_dim=24,
        num_co_attention_heads=2, text_schedule=(1,), visual_schedule=(1,), dropout=0.0,
        segments=False, max_length=3, region_dim=5, num_regions=3,
    )  # fmt: skip
    model = models.image_text_pretraining(model, kinds)
    model.compile(
        keras.optimizers.Adam(3e-3),
        {
            "tokens": training.LabelSmoothedCrossEntropy(0.0),
            "regions": training.RegionKLDivergence(),
            "matching": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        },
    )
    # One word or one region of a row is hidden: words where the row is even.
    even, second = np.arange(rows) % 2 == 0, rng.integers(1, 3, rows)
    inputs, targets, chosen = text.MaskRegions(0.0, zero_share=1.0)(batch, 0)
    inputs["region_features"][even] = features[even]
    fitting = fits[:, None]
    labels = np.zeros_like(batch["tokens"])
    labels[even, second[even]] = batch["tokens"][even, second[even]]
    inputs["tokens"] = batch["tokens"].copy()
    inputs["tokens"][even, second[even]] = 2
    answers = {"tokens": labels, "regions": targets, "matching": fits.astype("int32")}
    whole = np.ones(rows, "float32")
    weights = {"tokens": fitting * (labels > 0), "regions": fitting * chosen * ~even[:, None]}
    weights = {name: x.astype("float32") for name, x in weights.items()} | {"matching": whole}
    model.fit(inputs, answers, sample_weight=weights, batch_size=64, epochs=25, verbose=0)

    def scores(inputs):
        """The fraction of right answers among hidden words and among hidden regions."""
        found = model(inputs)
        pairs = {"tokens": labels, "regions": np.argmax(targets, -1)}
        return [
            (np.argmax(to_numpy(found[name]), -1) == wanted)[weights[name] > 0].mean()
            for name, wanted in pairs.items()
        ]

    words, regions = scores(inputs)
    assert words > 0.9 and regions > 0.9
    # With the regions of another row, words can only be guessed; with other words, regions.
    other = {name: np.roll(inputs[name], 2, axis=0) for name in ("region_features", "tokens")}
    words, _ = scores(inputs | {"region_features": other["region_features"]})
    _, regions = scores(inputs | {"tokens": other["tokens"]})
    assert words < 0.5 and regions < 0.5  # a quarter by chance
