"""The augmentation of emoji.py: other colours, the same paper and the same drawing."""

import numpy as np
from compare import to_numpy
from random_ink import RandomInk

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 6, 3)).astype("uint8")


def test_white_stays_white_and_inference_changes_nothing():
    white = np.full((3, 4, 5, 3), 255, "uint8")
    layer = RandomInk(seed=1)
    np.testing.assert_array_equal(to_numpy(layer(white, training=True)), white)
    np.testing.assert_array_equal(to_numpy(layer(PIXELS)), PIXELS)


def test_without_mixing_and_tones_channels_are_at_most_permuted():
    found = to_numpy(RandomInk(0.0, 0.0, seed=2)(PIXELS.repeat(20, 0), training=True))
    changed = 0
    for x, y in zip(PIXELS.repeat(20, 0).astype("float64"), found, strict=True):
        np.testing.assert_allclose(np.sort(y, -1), np.sort(x, -1), atol=1e-3)  # of 255, float32
        changed += np.abs(x - y).max() > 1
    # Half of the pictures get one of six orders, one of which changes nothing: 42 of 100.
    assert 25 < changed < 60


def test_each_picture_has_colours_of_its_own():
    found = to_numpy(RandomInk(seed=3)(PIXELS[:1].repeat(4, 0), training=True))
    assert found.min() >= 0 and found.max() <= 255
    assert all(np.abs(found[0] - x).max() > 5 for x in found[1:])
    again = RandomInk.from_config(RandomInk(0.2, 0.1, 4).get_config())
    assert (again.mixing, again.tones, again.seed) == (0.2, 0.1, 4)
