"""The augmentations of emoji.py: the same drawing on the same paper, by another artist."""

import numpy as np
import pytest
from compare import to_numpy
from redrawing import RandomInk, RandomOutline, RandomShading, RandomWarp
from scipy.ndimage import map_coordinates, maximum_filter, minimum_filter

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 6, 3)).astype("uint8")


@pytest.mark.parametrize(
    ("layer", "given"),
    [
        (RandomInk, {"mixing": 0.5, "tones": 0.2}),
        (RandomOutline, {"factor": 0.9}),
        (RandomShading, {"amount": 0.4}),
        (RandomWarp, {"pixels": 2.0, "grid": 3}),
    ],
)
def test_white_stays_white_and_inference_changes_nothing(layer, given):
    white = np.full((3, 4, 5, 3), 255, "uint8")
    changed = layer(**given, seed=1)
    np.testing.assert_allclose(to_numpy(changed(white, training=True)), white, atol=1e-4)
    np.testing.assert_array_equal(to_numpy(changed(PIXELS)), PIXELS)
    again = layer.from_config(changed.get_config())
    fresh = layer(**given, seed=1)
    first, second = (to_numpy(x(PIXELS.repeat(2, 0), training=True)) for x in (fresh, again))
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - PIXELS.repeat(2, 0)).max() > 5
    assert np.abs(first[::2] - first[1::2]).max() > 5  # equal pictures differ now
    assert first.min() >= 0 and first.max() <= 255


def test_warp_samples_the_picture_at_the_moved_points():
    layer = RandomWarp(1.2, grid=3, seed=4)
    # A picture of its own coordinates shows where each point was taken from.
    rows, columns = np.meshgrid(np.arange(7.0), np.arange(6.0), indexing="ij")
    coordinates = np.stack([rows, columns, rows * 0], -1)[None]
    found = to_numpy(layer(np.concatenate([coordinates, PIXELS[:1]], -1), training=True))[0]
    assert 0.2 < np.abs(found[..., :2] - coordinates[0, ..., :2]).mean() < 2
    for i in range(3):
        expected = map_coordinates(
            PIXELS[0, ..., i].astype("float64"), found[..., :2].transpose(2, 0, 1), order=1
        )
        np.testing.assert_allclose(found[..., 3 + i], expected, atol=0.02)


def test_outlines_darken_in_proportion_to_the_range_of_a_window():
    found = to_numpy(RandomOutline(0.5, seed=2)(PIXELS.repeat(20, 0), training=True))
    plain, strengths = 0, []
    for x, y in zip(PIXELS.repeat(20, 0).astype("float64"), found, strict=True):
        if np.abs(x - y).max() < 1e-3:
            plain += 1
            continue
        window = (3, 3, 1)
        edges = (maximum_filter(x, window) - minimum_filter(x, window)).max(-1, keepdims=True)
        share = np.minimum(1.5 * edges / 255, 1)
        dark = 1 - y[x > 50] / x[x > 50]
        strength = np.median(dark / np.broadcast_to(share, x.shape)[x > 50])
        np.testing.assert_allclose(y, x * (1 - strength * share), atol=0.01)
        strengths.append(strength)
    assert 35 < plain < 65
    assert 0 < min(strengths) < 0.2 and 0.8 < max(strengths) < 1


def test_shading_changes_ink_by_one_factor_per_point():
    found = to_numpy(RandomShading(0.3, seed=5)(PIXELS, training=True))
    ink = 255.0 - PIXELS
    factor = np.where(ink > 30, (255.0 - found) / np.maximum(ink, 1), np.nan)
    inside = (found > 1e-3) & (ink > 30)
    for point in np.argwhere(inside.all(-1)):
        channels = factor[tuple(point)]
        np.testing.assert_allclose(channels, channels[0], rtol=1e-3)
    assert 0.05 < np.nanstd(np.log(factor[inside])) < 0.6


def test_without_mixing_and_tones_channels_are_at_most_permuted():
    found = to_numpy(RandomInk(0.0, 0.0, seed=2)(PIXELS.repeat(20, 0), training=True))
    changed = 0
    for x, y in zip(PIXELS.repeat(20, 0).astype("float64"), found, strict=True):
        np.testing.assert_allclose(np.sort(y, -1), np.sort(x, -1), atol=1e-3)  # of 255, float32
        changed += np.abs(x - y).max() > 1
    # Half of the pictures get one of six orders, one of which changes nothing: 42 of 100.
    assert 25 < changed < 60
