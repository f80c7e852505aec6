"""The symmetric contrastive loss of pairs, such as images and their texts."""

from collections.abc import Mapping

import keras
from keras import ops

from keras_tfm.arguments import check_positive
from keras_tfm.distributed.replicas import gather_rows
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.types import Config, DType, Tensor
from keras_tfm.training.losses.all_outputs import LossOfAllOutputs
from keras_tfm.training.losses.token_losses import Tensors, row_values

OUTPUTS = ("image_embedding", "text_embedding")


@keras.saving.register_keras_serializable("keras_tfm")
class ContrastiveLoss(LossOfAllOutputs):
    """The loss of CLIP: each image should find its text among all texts of the batch, and back.

    With unit vectors v_i of images, t_i of texts and the scale s, the inverse of the temperature,

        loss = -1/2 mean_i(log softmax_j(s v_i . t_j)_i + log softmax_j(s t_i . v_j)_i):

    "Learning Transferable Visual Models From Natural Language Supervision" (arXiv:2103.00020),
    figure 3. Computed in float32. It sees all outputs of a model at once: compile a
    `keras_tfm.Model` with it, such as one of `models.clip`, and call `fit` on a dict of inputs. No
    labels are needed: row i of the images belongs to row i of the texts.

    Under `tf.distribute`, the rows of all replicas are compared, and steps are those of one device
    with the whole batch. A part of a batch has fewer negatives than the batch, so
    `gradient_accumulation_steps` must be 1.

    Args:
        temperature: float, 1 / s for a model without the output "scale".
        name, dtype: as in `keras.losses.Loss`.

    Call arguments:
        y_true: (B,) or (B, 1), integers, optional. Rows with the same number match each other, as
            several names of the same thing do: they are positives, with equal shares, instead of
            negatives (arXiv:2204.03610, equation 3). Default: each row matches itself alone.
        y_pred: dict of "image_embedding" (B, E) and "text_embedding" (B, E), vectors of length 1,
            and "scale" (B, 1), optional.
        sample_weight: (B,) or (B, 1), weight of each pair's two terms. Default: 1 for every pair. A
            pair of weight 0 is still among the others' negatives, with zeros for values that are
            NaN or infinite.

    Raises:
        TypeError: a temperature that is not a number.
        ValueError: the temperature is not positive; `y_pred` lacks an entry; the vectors of images
            and texts have different widths or numbers of rows; labels or weights are not one for
            each row.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.training import ContrastiveLoss
    >>> vectors = np.eye(3, dtype="float32")
    >>> outputs = {"image_embedding": vectors, "text_embedding": vectors}
    >>> round(float(ContrastiveLoss(temperature=0.5)(None, outputs)), 4)  # log(1 + 2 exp(-2))
    0.2395
    """

    # For `keras_tfm.Model`: it needs the whole batch at once.
    compares_rows = True

    def __init__(
        self, temperature: float = 0.07, name: str = "contrastive_loss", dtype: DType = None
    ):
        super().__init__(name, dtype)
        check_positive("temperature", temperature)
        self.temperature = temperature

    def sums_and_counts(
        self,
        y_true: Tensors,
        y_pred: Tensors,
        sample_weight: Tensor | None = None,
    ) -> list[tuple[Tensor, Tensor]]:
        """The sum of the loss over this replica's rows, and the sum of their weights."""
        images, texts, scale = self._outputs(y_pred)
        rows = ops.shape(images)[0]
        weight = ops.ones((rows,), "float32")
        if sample_weight is not None:
            weight = row_values("sample_weight", sample_weight, rows, "float32")
            counts = ops.not_equal(weight, 0.0)
            images, texts = finite_padding(images, counts), finite_padding(texts, counts)
        (all_images, before), (all_texts, _) = gather_rows(images), gather_rows(texts)
        if y_true is None:
            targets = ops.one_hot(ops.arange(rows) + before, ops.shape(all_images)[0])
        else:
            own = row_values("y_true", y_true, rows)
            others, _ = gather_rows(own)
            same = ops.equal(ops.expand_dims(own, 1), ops.expand_dims(others, 0))
            targets = ops.cast(same, "float32")
            targets = targets / ops.maximum(ops.sum(targets, axis=1, keepdims=True), 1.0)
        loss = _cross_entropy(targets, scale * ops.matmul(images, ops.transpose(all_texts)))
        loss += _cross_entropy(targets, scale * ops.matmul(texts, ops.transpose(all_images)))
        return [(ops.sum(weight * loss) / 2, ops.sum(weight))]

    def _outputs(self, y_pred: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        """The vectors of images and texts, and the scale, float32."""
        if not isinstance(y_pred, Mapping) or not set(OUTPUTS) <= set(y_pred):
            found = list(y_pred) if isinstance(y_pred, Mapping) else type(y_pred).__name__
            raise ValueError(
                f"{self.name}: y_pred must be a dictionary with {list(OUTPUTS)}, got {found}: give "
                "it to a keras_tfm.Model with these outputs, such as models.clip"
            )
        images, texts = (ops.cast(y_pred[name], "float32") for name in OUTPUTS)
        pairs = zip(images.shape, texts.shape, strict=False)
        if (
            len(images.shape) != 2
            or len(texts.shape) != 2
            or any(a != b for a, b in pairs if None not in (a, b))
        ):
            raise ValueError(
                f"{self.name}: image_embedding and text_embedding must have the same shape (B, E), "
                f"got {tuple(images.shape)} and {tuple(texts.shape)}"
            )
        scale = y_pred.get("scale")
        return images, texts, 1 / self.temperature if scale is None else ops.cast(scale, "float32")

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "temperature": self.temperature}


def _cross_entropy(targets: Tensor, logits: Tensor) -> Tensor:
    """The cross-entropy of each row: (B, N), (B, N) -> (B,)."""
    return -ops.sum(targets * ops.log_softmax(logits, axis=-1), axis=-1)
