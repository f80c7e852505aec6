"""Layers of the target, the first sequence of an alignment, in `models.evoformer`."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers import LayerNormalization
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.gallery.gated_attention import normal
from keras_tfm.layers.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class TargetSequence(keras.layers.Layer):
    """The first sequence of an alignment: (B, S, ...) -> (B, ...).

    A layer, since Keras's `RematScope` cannot call the operator of an index.

    >>> import numpy as np
    >>> from keras_tfm.models.gallery.evoformer_parts import TargetSequence
    >>> np.array(TargetSequence()(np.array([[[3, 4], [5, 6]]]))).tolist()
    [[3, 4]]
    """

    def __init__(self, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True

    def compute_mask(self, x: Tensor, previous_mask: Any = None) -> Tensor | None:
        """The mask of the first sequence."""
        return None if previous_mask is None else previous_mask[:, 0]

    def call(self, x: Tensor) -> Tensor:
        """(B, S, ...) -> (B, ...)."""
        return x[:, 0]

    def compute_output_spec(self, x: Tensor) -> keras.KerasTensor:
        """Without the second axis, in the dtype of the input."""
        return keras.KerasTensor((x.shape[0], *x.shape[2:]), dtype=x.dtype)

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """Without the second axis."""
        return (x_shape[0], *x_shape[2:])


@keras.saving.register_keras_serializable("keras_tfm")
class RecycledTarget(RematerializedLayer):
    """Adds the normalised features of the last run's target to the first sequence.

    Args:
        epsilon: float, epsilon of the normalisation.

    Call arguments:
        x: float tensor (B, S, N, D).
        row: float tensor (B, N, D).

    Returns:
        Float tensor (B, S, N, D).

    Example:

    >>> import numpy as np
    >>> from keras_tfm.models.gallery.evoformer_parts import RecycledTarget
    >>> x, row = np.zeros((1, 2, 1, 2), "float32"), np.array([[[3.0, 5.0]]], "float32")
    >>> np.round(RecycledTarget()(x, row), 2).tolist()
    [[[[-1.0, 1.0]], [[0.0, 0.0]]]]
    """

    def __init__(self, epsilon: float = 1e-5, **kwargs: Any):
        super().__init__(**kwargs)
        self.epsilon = epsilon
        self.norm = LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy, name="norm")

    def build(self, x_shape: Shape, row_shape: Shape) -> None:
        """Creates the normalisation's weights."""
        self.norm.build(row_shape)
        self.built = True

    def call(self, x: Tensor, row: Tensor, training: bool | None = None) -> Tensor:
        """(B, S, N, D), (B, N, D) -> (B, S, N, D)."""
        added = ops.expand_dims(self.norm(row, training=training), 1)
        return ops.concatenate([x[:, :1] + added, x[:, 1:]], axis=1)


@keras.saving.register_keras_serializable("keras_tfm")
class TargetFeatures(RematerializedLayer):
    """Projects the features of the first sequence, the target, and carries its padding mask.

    Args:
        dim: int, width of the output (C).

    Call arguments:
        tokens: (B, S, N), integers, 0 = padding.
        x: float tensor (B, S, N, D).

    Returns:
        Float tensor (B, N, C).

    Example:

    >>> import numpy as np
    >>> from keras_tfm.models.gallery.evoformer_parts import TargetFeatures
    >>> tokens, x = np.array([[[3, 4, 0]] * 2]), np.ones((1, 2, 3, 8), "float32")
    >>> features = TargetFeatures(dim=5)(tokens, x)
    >>> tuple(features.shape), np.array(features._keras_mask).tolist()
    ((1, 3, 5), [[True, True, False]])
    """

    def __init__(self, dim: int, **kwargs: Any):
        super().__init__(**kwargs)
        check_integer("dim", dim)
        self.dim = dim
        self.use_bias = True
        self.kernel_initializer = normal()
        self.bias_initializer = keras.initializers.Zeros()

    def build(self, tokens_shape: Shape, x_shape: Shape) -> None:
        """Creates the projection for features of width D."""
        self.projection = self._dense("projection", self.dim)
        self.projection.build((x_shape[0], *x_shape[2:]))
        self.built = True

    def compute_mask(self, tokens: Tensor, previous_mask: Any = None) -> Tensor:
        """(B, N), True = residue."""
        return ops.not_equal(tokens[:, 0], 0)

    def call(self, tokens: Tensor, x: Tensor, training: bool | None = None) -> Tensor:
        """(B, S, N), (B, S, N, D) -> (B, N, C)."""
        return self.projection(x[:, 0], training=training)

    def compute_output_shape(self, tokens_shape: Shape, x_shape: Shape) -> Shape:
        """(B, N, C)."""
        return (x_shape[0], x_shape[2], self.dim)
