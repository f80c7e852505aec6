"""The embedding of image regions: features of a detector and the geometry of their boxes."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.arguments import as_initializer, check_sequence
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.layer_normalization import LayerNormalization
from keras_tfm.layers.types import Initializer, Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class RegionEmbedding(RematerializedLayer):
    """Embeds the regions of an image: the features of each, and where its box is.

    y = norm(v W_v + b_v + g W_g + b_g), where v are features and g is a box (x1, y1, x2, y2) with
    its area (x2 - x1)(y2 - y1): ViLBERT (arXiv:1908.02265), section 2.2. With
    `separate_norms=True`, y = (norm(v W_v + b_v) + norm'(g W_g + b_g)) / 2, where g is the box
    alone: LXMERT (arXiv:1908.07490), section 3.1.

    Args:
        dim: int, width of the output (D).
        separate_norms: bool, whether features and boxes are normalised separately and averaged.
        area: bool, whether the area is a fifth number of the geometry. Default: only without
            `separate_norms`.
        epsilon: float, epsilon of the normalisations.
        dropout: float, dropout rate of the output.
        kernel_initializer: initializer of both kernels.
        bias_initializer: initializer of both biases.

    Call arguments:
        features: float tensor (B, N, C), the features of N regions.
        boxes: float tensor (B, N, 4): left, top, right and bottom edge, as fractions of the image's
            width and height.
        features_mask: (B, N), boolean, True = region, False = padding. Default: the mask that
            `features` carries.

    Returns:
        Float tensor (B, N, D).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range; boxes that are not (B, N, 4).

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import RegionEmbedding
    >>> features, boxes = np.ones((2, 5, 7), "float32"), np.ones((2, 5, 4), "float32")
    >>> tuple(RegionEmbedding(dim=12)(features, boxes).shape)
    (2, 5, 12)
    """

    def __init__(
        self,
        dim: int,
        separate_norms: bool = False,
        area: bool | None = None,
        epsilon: float = 1e-12,
        dropout: float = 0.0,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("dim", dim)
        self.dim = dim
        self.separate_norms = separate_norms
        self.area = not separate_norms if area is None else area
        self.epsilon = epsilon
        self.dropout = dropout
        self.use_bias = True
        self.kernel_initializer = as_initializer("kernel_initializer", kernel_initializer)
        self.bias_initializer = as_initializer("bias_initializer", bias_initializer)
        self.norm = LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy, name="norm")
        if separate_norms:
            self.box_norm = LayerNormalization(
                epsilon=epsilon, dtype=self.dtype_policy, name="box_norm"
            )
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def build(self, features_shape: Shape, boxes_shape: Shape) -> None:
        """Creates both projections for features of width C."""
        check_sequence(self, "features", features_shape)
        self._check_boxes(boxes_shape)
        self.feature_projection = self._dense("feature_projection", self.dim)
        self.feature_projection.build(features_shape)
        self.box_projection = self._dense("box_projection", self.dim)
        self.box_projection.build((*boxes_shape[:-1], 5 if self.area else 4))
        shape = (*features_shape[:-1], self.dim)
        self.norm.build(shape)
        if self.separate_norms:
            self.box_norm.build(shape)
        self.built = True

    def compute_mask(self, features: Tensor, previous_mask: Tensor | None = None) -> Tensor | None:
        """The mask of the features."""
        return previous_mask[0] if isinstance(previous_mask, list | tuple) else previous_mask

    def call(
        self,
        features: Tensor,
        boxes: Tensor,
        features_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """(B, N, C), (B, N, 4) -> (B, N, D)."""
        self._check_boxes(boxes.shape)
        features, boxes = (finite_padding(x, features_mask) for x in (features, boxes))
        if self.area:
            size = boxes[..., 2:] - boxes[..., :2]
            boxes = ops.concatenate([boxes, size[..., :1] * size[..., 1:]], axis=-1)
        x, y = self.feature_projection(features), self.box_projection(boxes)
        x = (self.norm(x) + self.box_norm(y)) / 2 if self.separate_norms else self.norm(x + y)
        return self.dropout_layer(x, training=training)

    def _check_boxes(self, shape: Shape) -> None:
        if len(shape) != 3 or shape[-1] != 4:
            raise ValueError(f"{self.name}: boxes must be (B, N, 4), got shape {tuple(shape)}")

    def compute_output_shape(
        self, features_shape: Shape, boxes_shape: Shape | None = None
    ) -> Shape:
        """(B, N, D)."""
        return (*features_shape[:-1], self.dim)
