"""Transforms between a checkpoint's tensors and a weight: both ways, by hand."""

import numpy as np
import pytest

from keras_tfm.checkpoints.transforms import (
    ConvolutionKernel,
    Joined,
    Offset,
    Reshaped,
    Same,
    Transposed,
)

RNG = np.random.default_rng(0)


def random(*shape):
    return RNG.normal(size=shape).astype("float32")


# Transform, the weight's shape, the tensors' shapes.
CASES = {
    "same": (Same(), (3, 5), [(3, 5)]),
    "transposed": (Transposed(), (3, 5), [(5, 3)]),
    "permuted": (Transposed((2, 0, 1)), (7, 3, 5), [(3, 5, 7)]),
    "conv1d": (ConvolutionKernel(), (3, 5, 7), [(7, 5, 3)]),
    "conv2d": (ConvolutionKernel(), (2, 3, 5, 7), [(7, 5, 2, 3)]),
    "conv3d": (ConvolutionKernel(), (2, 3, 4, 5, 7), [(7, 5, 2, 3, 4)]),
    "leading axis": (Reshaped((1, -1, 5), (-1, 5)), (3, 5), [(1, 3, 5)]),
    "flat": (Reshaped((1, 1, -1), (-1,)), (5,), [(1, 1, 5)]),
    "heads": (Reshaped((-1, 5), (2, 3, 5)), (2, 3, 5), [(6, 5)]),
    "one and": (Offset(1.0), (5,), [(5,)]),
    "joined": (Joined(3), (5, 6), [(5, 2)] * 3),
    "unequal": (Joined((6, 2, 3)), (5, 11), [(5, 6), (5, 2), (5, 3)]),
    "unequal bias": (Joined((6, 2, 3)), (11,), [(6,), (2,), (3,)]),
    "unequal kernels": (
        Joined((6, 2, 3), each=Transposed()), (5, 11), [(6, 5), (2, 5), (3, 5)],
    ),
    "along rows": (Joined((1, 2), axis=0), (3, 5), [(1, 5), (2, 5)]),
}  # fmt: skip
every_transform = pytest.mark.parametrize(
    ("transform", "weight", "tensors"), CASES.values(), ids=CASES
)


@every_transform
def test_shapes(transform, weight, tensors):
    assert transform.shapes(weight) == tuple(tensors)
    assert transform.load([random(*shape) for shape in tensors]).shape == weight
    assert [x.shape for x in transform.save(random(*weight))] == tensors


@every_transform
def test_saving_inverts_loading(transform, weight, tensors):
    value = random(*weight)
    # An offset rounds twice.
    np.testing.assert_allclose(transform.load(transform.save(value)), value, rtol=0, atol=3e-7)
    arrays = [random(*shape) for shape in tensors]
    for array, again in zip(arrays, transform.save(transform.load(arrays)), strict=True):
        np.testing.assert_allclose(again, array, rtol=0, atol=3e-7)


def test_unequal_parts_are_side_by_side():
    query, key, value = (np.full((width, 2), i, "float32") for i, width in enumerate((4, 2, 1)))
    kernel = Joined((4, 2, 1), each=Transposed()).load([query, key, value])
    np.testing.assert_array_equal(kernel, [[0, 0, 0, 0, 1, 1, 2]] * 2)


def test_a_square_matrix_is_transposed_too():
    matrix = np.array([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(Transposed().load([matrix]), [[1.0, 3.0], [2.0, 4.0]])


def test_a_square_convolution_kernel_by_its_elements():
    """Every axis has two elements, so that no shape says which is which."""
    tensor = random(2, 2, 2, 2)
    kernel = ConvolutionKernel().load([tensor])
    for o, i, y, x in np.ndindex(2, 2, 2, 2):
        assert kernel[y, x, i, o] == tensor[o, i, y, x]
    assert np.abs(kernel - tensor.T).max() > 0.1  # of the same shape, and wrong


def test_permuted_axes_by_their_elements():
    tensor = random(2, 3, 5)
    weight = Transposed((2, 0, 1)).load([tensor])
    for a, b, c in np.ndindex(2, 3, 5):
        assert weight[c, a, b] == tensor[a, b, c]


def test_offsets():
    np.testing.assert_array_equal(Offset(1.0).load([np.array([-1.0, 0.5])]), [0.0, 1.5])
    np.testing.assert_array_equal(Offset(1.0).save(np.array([0.0, 1.5]))[0], [-1.0, 0.5])
    assert Offset(1.0).load([np.zeros(2, "float32")]).dtype == "float32"


@pytest.mark.parametrize(
    ("transform", "shape", "message"),
    [
        (Transposed(), (2, 2, 3, 5), "expects 2 axes, got 4"),
        (Transposed(), (5,), "expects 2 axes, got 1"),
        (Transposed((0, 2, 1)), (3, 5), "expects 3 axes, got 2"),
        (ConvolutionKernel(), (3, 5), r"expects a kernel of 3 to 5 axes, got shape \(3, 5\)"),
        (Joined((6, 2)), (5, 9), "expects parts that add up to the axis, got width 9"),
        (Joined(2), (5, 9), "expects parts that add up to the axis, got width 9"),
        (Reshaped((1, -1, 4), (-1, 5)), (3, 5), r"a weight of shape \(-1, 5\), got \(3, 5\)"),
        (Reshaped((1, -1, 5), (-1, 5)), (3, 4), r"a weight of shape \(-1, 5\), got \(3, 4\)"),
        (Reshaped((1, 5), (-1,)), (6,), r"a weight of shape \(-1,\), got \(6,\)"),
    ],
    ids=str,
)
def test_weights_that_do_not_fit(transform, shape, message):
    with pytest.raises(ValueError, match=message) as error:
        transform.shapes(shape)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("transform", "count"), [(Same(), 1), (Joined(3), 3), (Joined((1, 1)), 2)])
def test_another_number_of_tensors_is_refused(transform, count):
    with pytest.raises(ValueError, match=f"expects {count} tensors?, got 4"):
        transform.load([np.zeros((2, 2))] * 4)
