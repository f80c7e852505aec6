"""Transforms between the tensors of a checkpoint and a weight of a model.

Transforms have no state, so rows of a table can share them. Each has three methods: `shapes` gives
the tensors' shapes for a weight's shape, `load` converts the tensors to the weight, and `save`
converts the weight to the tensors. `load(save(x))` is x.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Transform:
    """The base class; without overrides, one tensor is one weight, unchanged.

    Transforms of one tensor override `_shape`, `_load` and `_save`.
    """

    def shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """The shapes of the tensors for a weight of `shape`."""
        return (self._shape(shape),)

    def load(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Converts the tensors to the weight."""
        if len(arrays) != 1:
            raise ValueError(f"{self} expects 1 tensor, got {len(arrays)}")
        return self._load(arrays[0])

    def save(self, value: np.ndarray) -> tuple[np.ndarray, ...]:
        """Converts the weight to the tensors."""
        return (self._save(value),)

    def _shape(self, shape: Shape) -> Shape:
        return shape

    def _load(self, array: np.ndarray) -> np.ndarray:
        return array

    def _save(self, value: np.ndarray) -> np.ndarray:
        return value


@dataclass(frozen=True)
class Same(Transform):
    """One tensor, unchanged.

    >>> from keras_tfm.checkpoints.transforms import Same
    >>> Same().shapes((3, 5))
    ((3, 5),)
    """


@dataclass(frozen=True)
class Transposed(Transform):
    """A matrix (out, in) as a kernel (in, out), or any tensor with its axes permuted.

    Without `axes` it supports matrices only: reversing the axes of a convolution kernel with a
    square window would give the right shape but the wrong kernel. Use `ConvolutionKernel` for them.

    Args:
        axes: for each axis of the weight, the axis of the tensor, as in `numpy.transpose`.

    >>> import numpy as np
    >>> from keras_tfm.checkpoints.transforms import Transposed
    >>> Transposed().load([np.array([[1, 2], [3, 4]])]).tolist()
    [[1, 3], [2, 4]]
    """

    axes: tuple[int, ...] | None = None

    def _permutation(self, rank: int) -> tuple[int, ...]:
        axes = (1, 0) if self.axes is None else self.axes
        if sorted(axes) != list(range(rank)):
            raise ValueError(f"{self} expects {len(axes)} axes, got {rank}")
        return axes

    def _shape(self, shape: Shape) -> Shape:
        return tuple(shape[i] for i in np.argsort(self._permutation(len(shape))))

    def _load(self, array: np.ndarray) -> np.ndarray:
        return array.transpose(self._permutation(array.ndim))

    def _save(self, value: np.ndarray) -> np.ndarray:
        return value.transpose(np.argsort(self._permutation(value.ndim)))


@dataclass(frozen=True)
class ConvolutionKernel(Transform):
    """PyTorch's kernel (out, in, *window) as Keras's (*window, in, out), for 1 to 3 dimensions.

    >>> from keras_tfm.checkpoints.transforms import ConvolutionKernel
    >>> ConvolutionKernel().shapes((16, 16, 3, 768))
    ((768, 3, 16, 16),)
    """

    def _shape(self, shape: Shape) -> Shape:
        if not 3 <= len(shape) <= 5:
            raise ValueError(f"{self} expects a kernel of 3 to 5 axes, got shape {shape}")
        return (shape[-1], shape[-2], *shape[:-2])

    def _load(self, array: np.ndarray) -> np.ndarray:
        return np.moveaxis(array, (0, 1), (-1, -2))

    def _save(self, value: np.ndarray) -> np.ndarray:
        return np.moveaxis(value, (-1, -2), (0, 1))


@dataclass(frozen=True)
class Reshaped(Transform):
    """The same values in another shape.

    Args:
        tensor: shape in the checkpoint; one size may be -1, as in `numpy.reshape`.
        weight: shape in the model; one size may be -1 too.

    A position table (1, N, D) in the checkpoint for one of (N, D) in the model:

    >>> from keras_tfm.checkpoints.transforms import Reshaped
    >>> Reshaped((1, -1, 8), (-1, 8)).shapes((5, 8))
    ((1, 5, 8),)
    """

    tensor: Shape
    weight: Shape

    def _shape(self, shape: Shape) -> Shape:
        fits = len(shape) == len(self.weight) and all(
            size in (-1, actual) for size, actual in zip(self.weight, shape, strict=True)
        )
        total, known = math.prod(shape), math.prod(size for size in self.tensor if size != -1)
        if not fits or known == 0 or total % known or (-1 not in self.tensor and total != known):
            raise ValueError(f"{self} expects a weight of shape {self.weight}, got {shape}")
        return tuple(total // known if size == -1 else size for size in self.tensor)

    def _load(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(self.weight)

    def _save(self, value: np.ndarray) -> np.ndarray:
        return value.reshape(self.tensor)


@dataclass(frozen=True)
class Offset(Transform):
    """The weight is the tensor plus a constant, such as 1 in Gemma's norms, whose scale is 1 + w.

    The sum is float32: bfloat16 has only two decimal places near 1.

    >>> import numpy as np
    >>> from keras_tfm.checkpoints.transforms import Offset
    >>> Offset(1.0).load([np.array([0.0, 0.5], "float16")])
    array([1. , 1.5], dtype=float32)
    """

    by: float

    def _load(self, array: np.ndarray) -> np.ndarray:
        return array.astype("float32") + np.float32(self.by)

    def _save(self, value: np.ndarray) -> np.ndarray:
        return value - value.dtype.type(self.by)


@dataclass(frozen=True)
class ByHead(Transform):
    """Queries, keys and values group by group, as all queries, all keys, all values.

    The tensor is (..., G, H / G + 2, K); both have one axis for these three, the last one. With as
    many groups as heads, they are head by head.

    Args:
        num_groups: int, number of key and value heads (G).
        queries: int, number of queries of each key (H / G).
        each: `Transform` applied to the tensor before.
        order: the places of queries, keys and values in a group of the tensor.

    >>> import numpy as np
    >>> from keras_tfm.checkpoints.transforms import ByHead
    >>> ByHead(2).load([np.array(["q0", "k0", "v0", "q1", "k1", "v1"])]).tolist()
    ['q0', 'q1', 'k0', 'k1', 'v0', 'v1']
    >>> ByHead(1, queries=2).load([np.array(["q0", "q1", "k", "v"])]).tolist()
    ['q0', 'q1', 'k', 'v']
    """

    num_groups: int
    queries: int = 1
    each: Transform = field(default_factory=Same)
    order: tuple[int, int, int] = (0, 1, 2)

    def _shape(self, shape: Shape) -> Shape:
        count = self.num_groups * (self.queries + 2)
        if shape[-1] % count:
            raise ValueError(f"{self} expects {count} K outputs, got {shape[-1]}")
        return self.each.shapes(shape)[0]

    def _load(self, array: np.ndarray) -> np.ndarray:
        array = self.each.load([array])
        groups = array.reshape(*array.shape[:-1], self.num_groups, self.queries + 2, -1)
        sizes = [(self.queries, 1, 1)[self.order.index(i)] for i in range(3)]
        parts = np.split(groups, np.cumsum(sizes)[:2], axis=-2)
        flat = [parts[i].reshape(*array.shape[:-1], -1) for i in self.order]
        return np.concatenate(flat, axis=-1)

    def _save(self, value: np.ndarray) -> np.ndarray:
        width = value.shape[-1] // (self.queries + 2)
        parts = np.split(value, [width * self.queries, width * (self.queries + 1)], axis=-1)
        groups = [
            x.reshape(*value.shape[:-1], self.num_groups, count, -1)
            for x, count in zip(parts, (self.queries, 1, 1), strict=True)
        ]
        joined = np.concatenate([groups[self.order.index(i)] for i in range(3)], axis=-2)
        return self.each.save(joined.reshape(value.shape))[0]


@dataclass(frozen=True)
class ValueFirst(Transform):
    """The first layer of a gated network, whose tensor has the value before the gate.

    >>> import numpy as np
    >>> from keras_tfm.checkpoints.transforms import ValueFirst
    >>> ValueFirst().load([np.array([1, 2, 3, 4])]).tolist()
    [3, 4, 1, 2]
    """

    def _shape(self, shape: Shape) -> Shape:
        return shape[::-1]

    def _load(self, array: np.ndarray) -> np.ndarray:
        return np.roll(array.T, array.shape[0] // 2, axis=-1)

    def _save(self, value: np.ndarray) -> np.ndarray:
        return np.roll(value, value.shape[-1] // 2, axis=-1).T


@dataclass(frozen=True)
class Joined(Transform):
    """Several tensors concatenated in one weight, such as query, key and value in one kernel.

    Args:
        widths: int, number of parts of equal width, or a tuple with the width of each part in the
            weight. With grouped-query attention, keys and values are narrower than queries.
        axis: int, axis of the weight.
        each: `Transform` applied to each part before the concatenation.

    >>> from keras_tfm.checkpoints.transforms import Joined, Transposed
    >>> Joined((6, 2, 2), each=Transposed()).shapes((5, 10))
    ((6, 5), (2, 5), (2, 5))
    """

    widths: int | tuple[int, ...]
    axis: int = -1
    each: Transform = field(default_factory=Same)

    def _parts(self, width: int) -> tuple[int, ...]:
        """The widths of the parts of an axis."""
        if isinstance(self.widths, tuple):
            parts = self.widths
        else:
            parts = (width // self.widths,) * self.widths
        if sum(parts) != width:
            raise ValueError(f"{self} expects parts that add up to the axis, got width {width}")
        return parts

    def shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """The shapes of the tensors for a weight of `shape`."""
        axis = range(len(shape))[self.axis]
        return tuple(
            self.each.shapes((*shape[:axis], part, *shape[axis + 1 :]))[0]
            for part in self._parts(shape[axis])
        )

    def load(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Converts the tensors to the weight."""
        count = len(self.widths) if isinstance(self.widths, tuple) else self.widths
        if len(arrays) != count:
            raise ValueError(f"{self} expects {count} tensors, got {len(arrays)}")
        return np.concatenate([self.each.load([x]) for x in arrays], axis=self.axis)

    def save(self, value: np.ndarray) -> tuple[np.ndarray, ...]:
        """Converts the weight to the tensors."""
        ends = np.cumsum(self._parts(value.shape[self.axis]))[:-1]
        return tuple(self.each.save(x)[0] for x in np.split(value, ends, axis=self.axis))
