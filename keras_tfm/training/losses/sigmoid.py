"""The sigmoid loss of pairs, such as images and their texts."""

import keras
from keras import ops

from keras_tfm.arguments import check_number
from keras_tfm.distributed.replicas import gather_rows
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.types import Config, DType, Tensor
from keras_tfm.training.losses.contrastive import ContrastiveLoss
from keras_tfm.training.losses.token_losses import Tensors, row_values


@keras.saving.register_keras_serializable("keras_tfm")
class SigmoidLoss(ContrastiveLoss):
    """The loss of SigLIP: for each image and each text, whether they belong together.

    With unit vectors v_i of images, t_j of texts, the scale s, the bias b, and z_ij = 1 for a pair
    and -1 for any other two,

        loss = -1/B sum_i sum_j log sigmoid(z_ij (s v_i . t_j + b)):

    "Sigmoid Loss for Language Image Pre-Training" (arXiv:2303.15343), algorithm 1. Without a
    softmax over the batch, small batches do well, too. Computed in float32. Compile a
    `keras_tfm.Model` with it, such as one of `models.siglip`; in everything else as
    `ContrastiveLoss`, under `tf.distribute`, too.

    Args:
        temperature: float, 1 / s for a model without the output "scale".
        bias: float, b for a model without the output "bias".
        name, dtype: as in `keras.losses.Loss`.

    Call arguments:
        y_true: (B,) or (B, 1), integers, optional. Rows with the same number match each other.
            Default: each row matches itself alone.
        y_pred: dict of "image_embedding" (B, E) and "text_embedding" (B, E), vectors of length 1,
            and "scale" and "bias", both (B, 1) and optional.
        sample_weight: (B,) or (B, 1), weight of each row. That of an image and a text is the mean
            of their rows' weights. Default: 1 for every row. A row of weight 0 has zeros for values
            that are NaN or infinite.

    Raises:
        TypeError: a temperature or bias that is not a number.
        ValueError: the temperature is not positive; `y_pred` lacks an entry; the vectors of images
            and texts have different widths or numbers of rows; labels or weights are not one for
            each row.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.training import SigmoidLoss
    >>> vectors = np.eye(3, dtype="float32")
    >>> outputs = {"image_embedding": vectors, "text_embedding": vectors}
    >>> # log(1 + exp(-2 + 1)) + 2 log(1 + exp(-1))
    >>> round(float(SigmoidLoss(temperature=0.5, bias=-1.0)(None, outputs)), 4)
    0.9398
    """

    def __init__(
        self,
        temperature: float = 0.1,
        bias: float = -10.0,
        name: str = "sigmoid_loss",
        dtype: DType = None,
    ):
        super().__init__(temperature, name=name, dtype=dtype)
        check_number("bias", bias)
        self.bias = bias

    def sums_and_counts(
        self,
        y_true: Tensors,
        y_pred: Tensors,
        sample_weight: Tensor | None = None,
    ) -> list[tuple[Tensor, Tensor]]:
        """The sum of the loss over this replica's images, and the sum of their weights."""
        images, texts, scale = self._outputs(y_pred)
        bias = y_pred.get("bias")
        bias = self.bias if bias is None else ops.cast(bias, "float32")
        rows = ops.shape(images)[0]
        weight = ops.ones((rows,), "float32")
        if sample_weight is not None:
            weight = row_values("sample_weight", sample_weight, rows, "float32")
            counts = ops.not_equal(weight, 0.0)
            images, texts = finite_padding(images, counts), finite_padding(texts, counts)
        (all_texts, before), (weights, _) = gather_rows(texts), gather_rows(weight)
        if y_true is None:
            same = ops.one_hot(ops.arange(rows) + before, ops.shape(all_texts)[0])
        else:
            own = row_values("y_true", y_true, rows)
            others, _ = gather_rows(own)
            same = ops.cast(
                ops.equal(ops.expand_dims(own, 1), ops.expand_dims(others, 0)), "float32"
            )
        logits = scale * ops.matmul(images, ops.transpose(all_texts)) + bias
        loss = ops.softplus((1.0 - 2.0 * same) * logits)
        pairs = (ops.expand_dims(weight, 1) + ops.expand_dims(weights, 0)) / 2
        return [(ops.sum(pairs * loss), ops.sum(weight))]

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "bias": self.bias}
