"""One vector for a sequence: the mean, maximum, first or last token of its features."""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers.arguments import check_sequence
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.multi_head_attention.masks import as_boolean
from keras_tfm.layers.types import Shape, Tensor

MODES = ("mean", "max", "first", "last", "mean_sqrt_length", "weighted_mean")


@keras.saving.register_keras_serializable("keras_tfm")
class SequencePooling(RematerializedLayer):
    """Pools a padded sequence (B, T, D) into one vector (B, D) per row.

    With m_t = 1 for real tokens and 0 for padding, "mean" is

        y = sum_t(m_t x_t) / sum_t(m_t)

    as in Sentence-BERT (arXiv:1908.10084). A row of padding only gives zeros, not NaN.

    Args:
        mode: str, how tokens are combined. "mean"; "max", the maximum of each channel; "first", the
            first column, which is [CLS] in BERT; "last", the last real token; "mean_sqrt_length",
            the sum divided by the square root of the number of tokens; "weighted_mean", the mean
            with weights 1, 2, 3, ... for decoder-only models (SGPT, arXiv:2202.08904).

    Call arguments:
        inputs: (B, T, D), floating point.
        mask: (B, T), boolean, True for real tokens. Default: the Keras mask of `inputs`; without
            one, every token counts.

    Returns:
        (B, D), in the compute dtype. Sums are computed in float32.

    Raises:
        ValueError: unknown mode; inputs that are not (B, T, D).
        TypeError: a mask that is not boolean or integer.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import SequencePooling
    >>> x = np.array([[[1.0, 5.0], [3.0, 1.0], [100.0, 100.0]]], "float32")
    >>> mask = np.array([[True, True, False]])
    >>> np.asarray(SequencePooling("mean")(x, mask=mask)).tolist()
    [[2.0, 3.0]]
    """

    def __init__(self, mode: str = "mean", **kwargs: Any):
        super().__init__(**kwargs)
        if mode not in MODES:
            raise ValueError(f"mode must be one of {list(MODES)}, got {mode!r}")
        self.mode = mode

    def build(self, inputs_shape: Shape, mask_shape: Shape | None = None) -> None:
        """Checks the shape; there are no weights."""
        check_sequence(self, "inputs", inputs_shape)
        self.built = True

    def compute_mask(self, inputs: Tensor, mask: Tensor | None = None) -> None:
        """None: the result has no time axis."""
        return

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, D), (B, T) -> (B, D)."""
        if self.mode == "first":
            return inputs[:, 0]
        x = ops.cast(inputs, "float32")
        real = None
        if mask is not None:
            mask = as_boolean(mask, "mask")
            real = ops.cast(mask, "float32")
            x = finite_padding(x, mask)  # 0 * NaN is NaN
        if self.mode == "max":
            return ops.cast(_maximum(x, real), inputs.dtype)
        if real is None:
            real = ops.ones_like(x[:, :, 0])
        weights = self._weights(real)
        return ops.cast(ops.squeeze(ops.expand_dims(weights, 1) @ x, 1), inputs.dtype)

    def _weights(self, real: Tensor) -> Tensor:
        """(B, T), 1.0 for real tokens -> the weight of each token."""
        counted = ops.cumsum(real, axis=1)
        if self.mode == "last":
            total = ops.sum(real, axis=1, keepdims=True)
            return real * ops.cast(ops.equal(counted, total), "float32")
        if self.mode == "weighted_mean":
            real = real * counted
        total = ops.maximum(ops.sum(real, axis=1, keepdims=True), 1.0)
        return real / (ops.sqrt(total) if self.mode == "mean_sqrt_length" else total)

    def compute_output_shape(self, inputs_shape: Shape, mask_shape: Shape | None = None) -> Shape:
        """(B, D)."""
        return (inputs_shape[0], inputs_shape[-1])


def _maximum(x: Tensor, real: Tensor | None) -> Tensor:
    """The maximum over real tokens; zeros for a row without any."""
    if real is None:
        return ops.max(x, axis=1)
    real = ops.expand_dims(real, -1)
    # Additive, since LiteRT's XNNPACK has no select: 1e30 is far below float32's limit of 3e38.
    return ops.max(x * real - (1.0 - real) * 1e30, axis=1) * ops.max(real, axis=1)
