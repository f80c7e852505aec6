"""Checks of the two representations of an alignment: (B, S, N, D) and (B, N, N, E).

Example:

>>> from keras_tfm.layers.gallery.pair_shapes import check_pairs
>>> check_pairs("block", (2, 5, 7, 3))
Traceback (most recent call last):
ValueError: block: pairs must have shape (B, N, N, E) with E known, got (2, 5, 7, 3)
"""

from keras_tfm.layers.multi_head_attention import masks
from keras_tfm.layers.types import Shape, Size, Tensor


def check_alignment(name: str, shape: Shape) -> None:
    """Raises unless `shape` is (B, S, N, D) with a known D."""
    if len(shape) != 4 or shape[-1] is None:
        raise ValueError(f"{name}: x must have shape (B, S, N, D) with D known, got {tuple(shape)}")


def check_pairs(name: str, shape: Shape, length: Size | None = None) -> None:
    """Raises unless `shape` is (B, N, N, E) with a known E; `length` is N, if it is known."""
    fits = len(shape) == 4 and shape[-1] is not None
    if fits:
        fits = len({x for x in (shape[1], shape[2], length) if isinstance(x, int)}) < 2
    if not fits:
        wanted = "" if not isinstance(length, int) else f" and N = {length}"
        raise ValueError(
            f"{name}: pairs must have shape (B, N, N, E) with E known{wanted}, got {tuple(shape)}"
        )


def check_mask(name: str, mask: Tensor | None, x: Tensor) -> Tensor | None:
    """A mask of the first three axes of `x`, (B, R, C), boolean; None stays None."""
    if mask is None:
        return None
    mask = masks.as_boolean(mask, f"{name}: mask")
    masks.check_shape(mask, f"{name}: mask", tuple(x.shape[:-1]), "(B, S, N)")
    return mask
