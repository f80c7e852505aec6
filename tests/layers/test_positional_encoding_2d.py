import math

import keras
import numpy as np
import pytest
from compare import assert_close
from execution import MODES, execute

from keras_tfm.layers import PositionalEncoding2D

B, H, W, C, D = 2, 3, 5, 7, 12
X = np.zeros((B, H, W, C), "float32")
# Float32 rounds at 6e-8; the angles go up to 2 pi.
CONSTANT, COMPUTED = 1e-7, 2e-6


def expected_at(row, column, height, width, dim=D, wavelength=10000.0, scale=2 * math.pi):
    """One cell's encoding, in float64, term by term."""
    result = []
    for place, size in ((row, height), (column, width)):
        angle = (place + 1) / (size + 1e-6) * scale
        for i in range(dim // 4):
            frequency = wavelength ** (-4 * i / dim)
            result += [math.sin(angle * frequency), math.cos(angle * frequency)]
    return result


def expected(height=H, width=W, **options):
    return np.array(
        [[expected_at(i, j, height, width, **options) for j in range(width)] for i in range(height)]
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "options", [{}, {"max_wavelength": 20.0}, {"scale": 1.0, "max_wavelength": 500}]
)
def test_by_hand(mode, options):
    layer = PositionalEncoding2D(D, **options)
    names = {"max_wavelength": "wavelength"}
    wanted = expected(**{names.get(name, name): x for name, x in options.items()})
    assert_close(execute(mode, layer, X), wanted[np.newaxis], CONSTANT)


@pytest.mark.parametrize("mode", MODES)
def test_of_images_with_padding(mode):
    """The encoding of each image is that of the image without its padding."""
    mask = np.zeros((B, H, W), bool)
    mask[0, :2, :4] = mask[1] = True
    encoding = np.array(execute(mode, lambda x, m: PositionalEncoding2D(D)(x, mask=m), X, mask))
    assert encoding.shape == (B, H, W, D)
    assert_close(encoding[0, :2, :4], expected(2, 4), COMPUTED)
    assert_close(encoding[1], expected(), COMPUTED)
    assert np.all(np.isfinite(encoding))


def test_of_a_size_that_is_not_known():
    x = keras.Input((None, None, C))
    model = keras.Model(x, PositionalEncoding2D(D)(x))
    assert model.output.shape == (1, None, None, D)
    for height, width in ((3, 5), (1, 1), (17, 2)):
        found = model.predict(np.zeros((1, height, width, C)), verbose=0)
        assert_close(found, expected(height, width)[np.newaxis], COMPUTED)


def test_width_is_that_of_the_input():
    found = PositionalEncoding2D()(np.zeros((1, 2, 3, 8)))
    assert_close(found, expected(2, 3, dim=8)[np.newaxis], CONSTANT)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_rounds_once(dtype):
    encoding = PositionalEncoding2D(D, dtype=dtype)(X)
    assert keras.backend.standardize_dtype(encoding.dtype) == dtype
    rounded = keras.ops.cast(keras.ops.convert_to_tensor(expected().astype("float32")), dtype)
    assert_close(encoding[0], rounded, 0.0)


def test_it_is_made_again_from_its_configuration():
    layer = PositionalEncoding2D(D, max_wavelength=30.0, scale=3.0)
    again = PositionalEncoding2D.from_config(layer.get_config())
    assert_close(again(X), layer(X), 0.0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dim": 0}, ValueError, "dim must be at least 1, got 0"),
        ({"dim": 2.0}, TypeError, "dim must be an integer, got 2.0"),
        ({"scale": 0}, ValueError, "scale must be positive, got 0"),
        ({"max_wavelength": -1}, ValueError, "max_wavelength must be positive, got -1"),
    ],
)
def test_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        PositionalEncoding2D(**options)


def test_bad_inputs():
    with pytest.raises(ValueError, match=r"x must have shape \(B, H, W, C\), got \(2, 15, 8\)"):
        PositionalEncoding2D(name="p")(np.zeros((2, 15, 8)))
    with pytest.raises(ValueError, match="dim must be a multiple of 4, got 7"):
        PositionalEncoding2D(name="p")(X)
