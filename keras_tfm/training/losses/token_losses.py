"""Losses over token ids."""

from typing import TypeAlias

import keras
from keras import ops

from keras_tfm.keras_internals import are_probabilities, get_mask, set_mask
from keras_tfm.layers.types import Config, DType, Shape, Size, Tensor

# One tensor, or several by name.
Tensors: TypeAlias = Tensor | dict[str, Tensor]


@keras.saving.register_keras_serializable("keras_tfm")
class LabelSmoothedCrossEntropy(keras.losses.Loss):
    """Cross-entropy of token ids and logits, with label smoothing, padding ignored.

    loss = -sum_v q(v) log softmax(logits)(v), q = y (1 - a) + a / V: "Rethinking the Inception
    Architecture" (arXiv:1512.00567), section 7, with a = 0.1 in "Attention Is All You Need"
    (arXiv:1706.03762), where it worsens perplexity and improves accuracy and BLEU. Computed in
    float32. The mean is over the labels that are not ignored; if all are ignored, the loss is 0.

    Args:
        label_smoothing: float, a, at least 0 and below 1.
        ignore_class: int, a label that is ignored. None: no label is. It may be outside 0 to V - 1,
            other labels may not.
        reduction: str, as in `keras.losses.Loss`. Default: the weighted mean,
            sum(weight loss) / sum(weight), where ignored labels have weight 0.
        name, dtype: as in `keras.losses.Loss`.

    Call arguments:
        y_true: (B, T) or (B, T, 1), integers, labels; or (B,) or (B, 1), one for each row.
        y_pred: (B, T, V), float, logits; or (B, V).
        sample_weight: (B,), (B, 1), (B, T) or (B, T, 1), weight of each label. Default: 1.

    Raises:
        ValueError: `label_smoothing` is out of range; labels or weights do not have these shapes.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.training import LabelSmoothedCrossEntropy
    >>> loss = LabelSmoothedCrossEntropy(label_smoothing=0.1)
    >>> labels = np.array([[2, 0]])  # the second is padding
    >>> round(float(loss(labels, np.zeros((1, 2, 5), "float32"))), 4)  # log 5
    1.6094
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        ignore_class: int | None = 0,
        reduction: str | None = "mean_with_sample_weight",
        name: str = "label_smoothed_cross_entropy",
        dtype: DType = None,
    ):
        # Keras converts labels to this dtype; half precision would round ids above 256.
        dtype = keras.backend.result_type(dtype or keras.config.floatx(), "float32")
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}")
        self.label_smoothing = label_smoothing
        self.ignore_class = ignore_class

    def __call__(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
        """The loss, weighted by `sample_weight`; ignored labels have weight 0."""
        y_true = labels_of(self.name, y_true, y_pred)
        weights = label_weights(y_true, self.ignore_class, sample_weight)
        if any(x is not None for x in (self.ignore_class, sample_weight, get_mask(y_pred))):
            y_pred = counted_logits(y_pred, weights)
        return super().__call__(y_true, y_pred, weights)

    def count(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """The divisor of the mean: the sum of the weights of unmasked labels."""
        mask = get_mask(y_pred)
        y_true = labels_of(self.name, y_true, y_pred)
        if self.reduction == "mean_with_sample_weight":
            weights = label_weights(y_true, self.ignore_class, sample_weight)
        else:
            weights = ops.ones_like(y_true, dtype="float32")
        return ops.sum(weights if mask is None else weights * ops.cast(mask, weights.dtype))

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """The loss of each label: (B, T)."""
        if are_probabilities(y_pred):
            raise ValueError(
                f"{self.name} needs logits, got probabilities: remove the softmax or sigmoid at "
                "the end of the model"
            )
        labels = ops.cast(labels_of(self.name, y_true, y_pred), "int32")
        log_probabilities = ops.log_softmax(ops.cast(y_pred, "float32"), axis=-1)
        if self.ignore_class is not None:
            labels = ops.where(ops.equal(labels, self.ignore_class), 0, labels)
        # Negative labels must stay out of range: take_along_axis would count them from the end.
        labels = ops.where(ops.less(labels, 0), ops.shape(y_pred)[-1], labels)
        likelihood = ops.squeeze(
            ops.take_along_axis(log_probabilities, ops.expand_dims(labels, -1), axis=-1), -1
        )
        a = self.label_smoothing
        return -(1.0 - a) * likelihood - a * ops.mean(log_probabilities, axis=-1)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "label_smoothing": self.label_smoothing,
            "ignore_class": self.ignore_class,
        }


def counted_logits(y_pred: Tensor, weights: Tensor) -> Tensor:
    """The logits of labels that count, zeros for the others: 0 * NaN is NaN, in gradients too.

    Args:
        y_pred: (B, T, V), with or without a Keras mask, which the result has too.
        weights: (B, T), float32. Labels of weight 0 do not count, nor do masked ones.
    """
    if are_probabilities(y_pred):  # which `call` refuses
        return y_pred
    mask, counts = get_mask(y_pred), ops.not_equal(weights, 0.0)
    if mask is not None:
        counts = ops.logical_and(counts, ops.cast(mask, "bool"))
    result = ops.where(ops.expand_dims(counts, -1), y_pred, 0.0)
    set_mask(result, mask)
    return result


def zero_uncounted(x: Tensor, weight: Tensor) -> Tensor:
    """The outputs of a model with zeros in rows of weight 0: 0 * NaN is NaN, in gradients too.

    Args:
        x: (B, ...), float.
        weight: (B,) or (B, 1), float32.
    """
    counts = ops.not_equal(weight, 0.0)
    return ops.where(ops.reshape(counts, (-1,) + (1,) * (len(x.shape) - 1)), x, 0.0)


def labels_of(name: str, y_true: Tensor, y_pred: Tensor) -> Tensor:
    """The labels of logits, without a trailing axis of 1, as in Keras's sparse cross-entropy.

    Args:
        name: str, the name of the loss or metric, for errors.
        y_true: (B, T) or (B, T, 1).
        y_pred: (B, T, V), logits.

    Returns:
        (B, T).

    Raises:
        ValueError: the labels have another shape.
    """
    y_true = ops.convert_to_tensor(y_true)
    shape, wanted = tuple(y_true.shape), tuple(y_pred.shape)[:-1]
    if len(shape) == len(wanted) + 1 and shape[-1] == 1:
        y_true, shape = ops.squeeze(y_true, -1), shape[:-1]
    if not fits(shape, wanted):
        raise ValueError(
            f"{name}: logits of shape {tuple(y_pred.shape)} need labels of shape {wanted}, one "
            f"integer for each vector of logits, got {tuple(shape)}"
        )
    return y_true


def fits(shape: Shape, wanted: Shape, ones: bool = False) -> bool:
    """Whether the sizes agree where they are known; with `ones`, or are 1 after the first."""
    return len(shape) == len(wanted) and all(
        None in (a, b) or a == b or (ones and i > 0 and a == 1)
        for i, (a, b) in enumerate(zip(shape, wanted, strict=True))
    )


def row_values(what: str, x: Tensor, rows: Size, dtype: str | None = None) -> Tensor:
    """A number for each row, (B,) or (B, 1) -> (B,).

    Args:
        what: str, what it is, for errors.
        x: the numbers.
        rows: int or scalar tensor, B.
        dtype: str, dtype of the result. None: that of integers, which are not narrowed; int32 of
            other numbers.

    Raises:
        ValueError: `x` has another shape.
    """
    x = ops.convert_to_tensor(x)
    if dtype is None:
        own = keras.backend.standardize_dtype(x.dtype)
        dtype = own if "int" in own else "int32"
    x = ops.cast(x, dtype)
    first = rows if isinstance(rows, int) else None
    if not (fits(tuple(x.shape), (first,)) or fits(tuple(x.shape), (first, 1))):
        expected = "B" if first is None else first
        raise ValueError(
            f"{what} must have shape ({expected},) or ({expected}, 1), got {tuple(x.shape)}"
        )
    return ops.reshape(x, (-1,))


def label_weights(y_true: Tensor, ignore_class: int | None, sample_weight: Tensor | None) -> Tensor:
    """The weight of each label: 0 where it is `ignore_class`, else 1, times `sample_weight`.

    Args:
        y_true: (B, T).
        ignore_class: int, a label. None: no label has weight 0.
        sample_weight: see `times_weights`.

    Returns:
        (B, T), float32.
    """
    weights = ops.ones_like(y_true, dtype="float32")
    if ignore_class is not None:
        weights = ops.cast(ops.not_equal(ops.cast(y_true, "int32"), ignore_class), "float32")
    return times_weights(weights, sample_weight)


def times_weights(weights: Tensor, sample_weight: Tensor | None) -> Tensor:
    """`weights` (B, T) times sample weights (B,), (B, 1), (B, T) or (B, T, 1), if any.

    Raises:
        ValueError: `sample_weight` has another shape.
    """
    if sample_weight is None:
        return weights
    sample_weight = ops.cast(sample_weight, "float32")
    given, wanted = tuple(sample_weight.shape), tuple(weights.shape)
    if not given:
        return weights * sample_weight
    shape = given[:-1] if len(given) == len(wanted) + 1 and given[-1] == 1 else given
    if len(shape) < len(given):
        sample_weight = ops.squeeze(sample_weight, -1)
    for _ in range(len(wanted) - len(shape)):  # of rows
        sample_weight, shape = ops.expand_dims(sample_weight, -1), (*shape, 1)
    if not fits(shape, wanted, ones=True):
        raise ValueError(
            f"labels of shape {wanted} need a sample_weight of shape {wanted[:1]} or {wanted}, "
            f"got {given}"
        )
    return weights * sample_weight
