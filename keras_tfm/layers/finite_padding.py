"""Keeps what is not finite in padding away from tokens, and from the weights' gradients."""

from keras import ops

from keras_tfm.layers.decoding.scope import DecodingScope, current_scope
from keras_tfm.layers.decoding.visibility import real_tokens
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Tensor


def finite_padding(x: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
    """`x` with zeros where a value of padding is NaN or infinite; all else stays as it is.

    A masked key has the weight 0, and the loss of a masked position the gradient 0, but 0 * NaN is
    NaN. Finite padding is kept: features of padding are the same with and without this.

    Graphs for on-device inference have `x` itself, because XNNPACK does not delegate a select. So
    do the steps of a compiled decoding loop: the tokens that it generates are not padding.

    Args:
        x: float tensor (..., T, D).
        mask: boolean tensor (..., T), True = token; optional.
        causal: bool, whether `x` is the sequence that a `DecodingScope` is stepping, which may know
            of padding at the left.

    >>> import numpy as np
    >>> from keras_tfm.layers.finite_padding import finite_padding
    >>> x = np.array([[[1.0], [np.nan], [np.nan], [3.0]]], "float32")
    >>> np.array(finite_padding(x, np.array([[True, True, False, False]]))).ravel().tolist()
    [1.0, nan, 0.0, 3.0]
    """
    scope = current_scope.get()
    if current_target.get().is_edge or (scope is not None and _generates(scope, x)):
        return x
    if causal and scope is not None and scope.padding is not None:
        length = x.shape[-2] if isinstance(x.shape[-2], int) else ops.shape(x)[-2]
        mask = real_tokens(mask, scope.columns(length), scope.padding)
    if mask is None:
        return x
    # Not `isfinite`, for which LiteRT has no operator.
    finite = ops.less(ops.abs(x), float("inf"))
    mask = ops.cast(ops.expand_dims(mask, -1), "bool")
    return ops.where(ops.logical_or(mask, finite), x, 0.0)


def _generates(scope: DecodingScope, x: Tensor) -> bool:
    """Whether a compiled loop takes this step: it has one token or several hypotheses of it."""
    is_one = x.shape[-2] == 1 or scope.branches is not None
    return is_one and not isinstance(scope.position, int)
