"""DINO against its arithmetic in NumPy, step by step; random crops against Pillow."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import saving, tensorflow_only

from keras_tfm import layers, models, training

SIZES = {"dim": 12, "num_layers": 1, "num_heads": 3, "intermediate_dim": 16}
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 24, 20, 3)).astype("uint8")


def dino(**options):
    keras.utils.set_random_seed(0)
    given = {"num_local_crops": 2, "num_prototypes": 20, "hidden_dim": 16, "bottleneck_dim": 8}
    given |= options
    local = layers.RandomResizedCrop(8, (0.1, 0.4)) if given["num_local_crops"] else None
    backbone = models.vit(None, 4, position_size=16, **SIZES)
    return training.DINO(backbone, layers.RandomResizedCrop(16, (0.4, 1.0)), local, **given)


def test_a_backbone_of_one_size_may_give_all_tokens_side_by_side():
    tokens = models.vit(16, 4, **SIZES)
    backbone = models.Model(tokens.input, keras.layers.Flatten()(tokens.output))
    crop = layers.RandomResizedCrop(16, (0.4, 1.0))
    model = training.DINO(backbone, crop, num_local_crops=0, num_prototypes=20, hidden_dim=16)
    assert model(PIXELS, training=True)["student"][0].shape == (6, 20)
    pixels = PIXELS[:, :16, :16]
    features = to_numpy(tokens(pixels)).reshape(6, 17 * 12)
    assert_close(model.predict(pixels, verbose=0), features, 1e-5)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_the_loss_is_the_paper_s():
    model, rng = dino(student_temperature=0.3), np.random.default_rng(1)
    student = [rng.normal(size=(3, 5)).astype("float32") for _ in range(4)]
    teacher = [softmax(rng.normal(size=(3, 5))).astype("float32") for _ in range(2)]
    pairs = [(i, j) for i in range(2) for j in range(4) if i != j]
    expected = np.mean(
        [
            -(teacher[i] * np.log(softmax(student[j].astype("float64") / 0.3))).sum(-1).mean()
            for i, j in pairs
        ]
    )
    found = model.compute_loss(y_pred={"student": student, "teacher": teacher})
    assert_close(found, expected, 1e-6)


def test_targets_are_centred_and_sharpened_and_the_centre_moves():
    model = dino(teacher_temperature=0.5, center_momentum=0.8)
    model.center.assign(np.random.default_rng(2).normal(size=20))
    centre = to_numpy(model.center)
    crops = [PIXELS[:3, :16, :16].astype("float32"), PIXELS[3:, :16, :16].astype("float32")]
    vectors = to_numpy(model.teacher(np.concatenate(crops), training=False))
    kernel = to_numpy(model.teacher_prototypes)
    logits = vectors @ (kernel / np.linalg.norm(kernel, axis=0))
    found = model._targets(crops)
    assert_close(found[0], softmax((logits[:3] - centre) / 0.5), 1e-5)
    assert_close(found[1], softmax((logits[3:] - centre) / 0.5), 1e-5)
    assert_close(model.center, 0.8 * centre + 0.2 * logits.mean(0), 1e-5)


def test_sinkhorn_knopp_gives_each_prototype_its_share():
    """Against the reference's form of it: exp, sums over rows and over columns, three times."""
    model = dino(teacher_temperature=0.03, centering="sinkhorn_knopp")
    crops = [PIXELS[:3, :16, :16].astype("float32"), PIXELS[3:, :16, :16].astype("float32")]
    vectors = to_numpy(model.teacher(np.concatenate(crops), training=False)).astype("float64")
    kernel = to_numpy(model.teacher_prototypes).astype("float64")
    q = np.exp((vectors @ (kernel / np.linalg.norm(kernel, axis=0))) / 0.03)
    for _ in range(3):
        q /= q.sum(0, keepdims=True) * q.shape[1]
        q /= q.sum(1, keepdims=True) * q.shape[0]
    found = np.concatenate([to_numpy(x) for x in model._targets(crops)])
    # Logits of some 30 in float32, and the exponential of their error.
    assert_close(found, q * len(q), 1e-4)
    assert_close(found.sum(1), np.ones(len(q)), 1e-5)
    assert np.abs(found.sum(0) - len(q) / 20).max() < 0.5 * np.abs(found - 1 / 20).sum(0).max()
    np.testing.assert_array_equal(to_numpy(model.center), np.zeros(20))


def test_a_very_sharp_teacher_stays_finite():
    """exp(1 / 0.005) is beyond float32."""
    model = dino(teacher_temperature=0.005, centering="sinkhorn_knopp")
    crops = [PIXELS[:3, :16, :16].astype("float32"), PIXELS[3:, :16, :16].astype("float32")]
    found = np.concatenate([to_numpy(x) for x in model._targets(crops)])
    assert_close(found.sum(1), np.ones(len(found)), 1e-5)


@pytest.mark.slow
@tensorflow_only
def test_a_head_with_batch_normalisation_learns_and_its_teacher_has_averages():
    model = dino(head_batch_norm=True, centering="sinkhorn_knopp")
    norms = [x for x in model.teacher.layers if isinstance(x, keras.layers.BatchNormalization)]
    assert [x.name for x in norms] == ["head_norm_0", "head_norm_1"]
    before = [to_numpy(x.moving_variance) for x in norms]
    model.compile(keras.optimizers.AdamW(1e-2))
    loss = model.fit(PIXELS, epochs=12, verbose=0).history["loss"]
    assert np.mean(loss[-3:]) < np.mean(loss[:3])
    assert all(np.any(to_numpy(x.moving_variance) != y) for x, y in zip(norms, before, strict=True))


@tensorflow_only
def test_the_teacher_is_the_average_of_the_student():
    """Of the weights after each step: the last one's is added when the next begins."""
    model = dino(teacher_momentum=0.7)
    model.compile(keras.optimizers.Adam(0.01))
    averages, momentum = [to_numpy(x) for x in model.student.trainable_weights], 0.7
    for _ in range(3):
        now = [to_numpy(x) for x in model.student.trainable_weights]
        averages = [momentum * a + (1 - momentum) * b for a, b in zip(averages, now, strict=True)]
        model.train_on_batch(PIXELS)
        names = {x.path.split("/", 1)[-1] for x in model.student.trainable_weights}
        found = [x for x in model.teacher.weights if x.path.split("/", 1)[-1] in names]
        for mine, average in zip(found, averages, strict=True):
            assert_close(mine, average, 1e-5)
    assert int(model.step) == 3
    moved = zip(model.student.trainable_weights, averages, strict=True)
    assert all(np.abs(to_numpy(x) - average).max() > 1e-4 for x, average in moved)


@tensorflow_only
def test_prototypes_wait():
    model = dino(frozen_steps=1)
    model.compile(keras.optimizers.Adam(0.01))
    before = to_numpy(model.prototypes)
    model.train_on_batch(PIXELS)
    np.testing.assert_array_equal(to_numpy(model.prototypes), before)
    model.train_on_batch(PIXELS)
    assert np.abs(to_numpy(model.prototypes) - before).max() > 1e-3


@tensorflow_only
def test_schedules_are_read_at_each_step():
    """Momentum 1 keeps the teacher, momentum 0 copies the student."""
    steps = keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [1.0, 0.0, 1.0])
    model = dino(teacher_momentum=steps, num_local_crops=0)
    model.compile(keras.optimizers.Adam(0.01))
    expected = {0: [to_numpy(x) for x in model.teacher.weights]}
    for step in range(3):
        model.train_on_batch(PIXELS)
        # The average is taken when a step begins: of the student after the step before.
        found = [to_numpy(x) for x in model.teacher.weights]
        for x, wanted in zip(found, expected[min(step, 1)], strict=True):
            np.testing.assert_array_equal(x, wanted)
        if step == 0:
            expected[1] = [to_numpy(x) for x in model.student.weights]
    assert any(np.any(a != b) for a, b in zip(*expected.values(), strict=True))


@saving
@tensorflow_only
def test_it_goes_into_a_file_and_goes_on(tmp_path):
    model = dino()
    model.compile(keras.optimizers.AdamW(1e-3))
    history = model.fit(PIXELS, batch_size=3, epochs=8, verbose=0).history["loss"]
    assert np.all(np.isfinite(history))
    model.save(tmp_path / "dino.keras")
    loaded = keras.saving.load_model(tmp_path / "dino.keras")
    assert_close(loaded.predict(PIXELS, verbose=0), model.predict(PIXELS, verbose=0), 1e-6)
    own = {key: x for key, x in model.get_config().items() if key != "backbone"}
    assert {key: loaded.get_config()[key] for key in own} == own
    features = to_numpy(model.backbone(PIXELS))[:, 0]
    assert_close(model.predict(PIXELS, verbose=0), features, 1e-5)
    loaded.fit(PIXELS, batch_size=3, verbose=0)
    assert int(loaded.step) == 18


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_local_crops": -1}, ValueError, "num_local_crops must be at least 0, got -1"),
        ({"student_temperature": 0}, ValueError, "student_temperature must be positive, got 0"),
        ({"teacher_momentum": 2}, ValueError, "teacher_momentum must be within 0 and 1, got 2"),
        ({"frozen_steps": 1.5}, TypeError, "frozen_steps must be an integer, got 1.5"),
        ({"centering": "none"}, ValueError, "centering must be 'mean' or 'sinkhorn_knopp', got"),
    ],
)
def test_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        dino(**options)


def test_a_loss_of_its_own():
    with pytest.raises(ValueError, match="DINO has a loss of its own"):
        dino().compile("adam", loss="mse")
    with pytest.raises(ValueError, match="gradient_accumulation_steps must be 1 for DINO"):
        dino().compile("adam", gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match="local_crop and num_local_crops go together"):
        training.DINO(models.vit(None, 4, position_size=16, **SIZES), layers.RandomResizedCrop(16))


# Random crops


@pytest.mark.parametrize("size", [(7, 9), (24, 20), (31, 25), (5, 40)])
def test_the_whole_picture_is_resized_as_by_pillow(size):
    """Bilinear with a widened filter; Pillow rounds each of two passes to 8 bits."""
    from PIL import Image

    expected = [
        np.asarray(Image.fromarray(x).resize(size[::-1], Image.Resampling.BILINEAR)) for x in PIXELS
    ]
    found = to_numpy(layers.RandomResizedCrop(size)(PIXELS, training=False))
    np.testing.assert_allclose(found, np.array(expected, "float64"), atol=1.01)


def test_crops_have_the_sizes_that_were_asked_for():
    """A picture whose values are its coordinates shows which part was cut out."""
    height, width = 40, 60
    rows, columns = np.mgrid[:height, :width].astype("float32")
    picture = np.stack([rows, columns], -1)[None].repeat(400, 0)
    layer = layers.RandomResizedCrop(8, (0.2, 0.5), (0.5, 2.0), seed=3)
    y = to_numpy(layer(picture, training=True))
    # Between the centres of the first and the last pixel of the crop lie 7/8 of it.
    high = (y[:, -2, 0, 0] - y[:, 1, 0, 0]) * 8 / 5
    wide = (y[:, 0, -2, 1] - y[:, 0, 1, 1]) * 8 / 5
    area, ratio = high * wide / (height * width), wide / high
    assert 0.19 < area.min() < 0.24 and 0.44 < area.max() < 0.51
    assert 0.5 * 0.98 < ratio.min() < 0.6 and 1.7 < ratio.max() < 2.0 * 1.02
    assert y.min() >= 0 and y[..., 0].max() <= height - 1 and y[..., 1].max() <= width - 1
    assert np.ptp(y[:, 0, 0, 0]) > 15 and np.ptp(y[:, 0, 0, 1]) > 20
    again = to_numpy(layer(picture, training=True))
    assert np.abs(again - y).max() > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": (0.5, 0.2)}, r"scale must ascend, got \(0.5, 0.2\)"),
        ({"scale": (0.5, 1.2)}, "scale must be at most 1"),
        ({"aspect_ratio": (0.0, 1.0)}, "aspect_ratio must be positive, got 0.0"),
        ({"scale": (0.5,)}, "scale must be two numbers"),
    ],
)
def test_impossible_crops(options, message):
    with pytest.raises(ValueError, match=message):
        layers.RandomResizedCrop(8, **options)
