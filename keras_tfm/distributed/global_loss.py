"""Losses whose mean is over the whole batch: all replicas, and all parts of an accumulation."""

import threading
from typing import Any

import keras
import tensorflow as tf
from keras import losses, ops

from keras_tfm import keras_internals, trainer_internals
from keras_tfm.distributed.joint_loss import Tensor, Tensors, joint_loss
from keras_tfm.distributed.row_of_zeros import add_row_of_zeros

CompileLoss: type[keras.losses.Loss] = trainer_internals.compile_loss_class()


class GlobalLoss(CompileLoss):
    """The compiled losses of a model, where every mean is over the whole batch.

    Keras divides each replica's loss by that replica's own count of tokens and averages the
    results: with more padding on one replica than on another, tokens silently get different
    weights. Here each loss is divided by the count of all replicas and, with gradient
    accumulation, of all parts of the batch.
    """

    def __init__(self, *args: Any, batch: "Batch | None" = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.batch = Batch() if batch is None else batch

    def build(self, y_true: Tensors, y_pred: Tensors) -> None:
        """Finds the loss of each output, and makes its mean global."""
        if joint_loss(self) is not None:
            self.built = True
            return
        super().build(y_true, y_pred)
        trainer_internals.wrap_losses(self, lambda loss: GlobalMean(loss, self.batch))

    def call(self, y_true: Tensors, y_pred: Tensors, sample_weight: Tensors = None) -> Tensor:
        """The sum of the losses of all outputs, or the one loss that takes all outputs."""
        loss = joint_loss(self)
        if loss is None:
            self.batch.calling = True
            try:
                return super().call(y_true, y_pred, sample_weight)
            finally:
                self.batch.calling = False
        self.built = True
        value = tf.zeros(())
        for i, (total, count) in enumerate(loss.sums_and_counts(y_true, y_pred, sample_weight)):
            if self.batch.share is None:
                self.batch.totals[i] = over_replicas(count)
            # Gradients are summed over replicas, and weighted by the share of the part.
            mean = tf.math.divide_no_nan(total, self.batch.totals[i])
            value += mean if self.batch.share is None else mean / self.batch.share
        return value

    @property
    def metrics(self) -> list[keras.Metric]:
        """The trackers of the losses of several outputs; for a part, weighted by its share."""
        trackers = super().metrics
        weight = self.batch.tracker_weight
        if weight is None or not self.batch.calling:
            return trackers
        return [None if x is None else _Weighted(x, weight) for x in trackers]


class _Weighted:
    """A tracker to which Keras gives a part with the weight of a whole batch."""

    def __init__(self, tracker: keras.Metric, weight: Tensor):
        self.tracker, self.weight = tracker, weight

    def update_state(self, value: Tensor, sample_weight: Tensors = None) -> None:
        """Adds the loss of a part."""
        self.tracker.update_state(value, sample_weight=self.weight)


class Batch(threading.local):
    """The current batch of a replica. Thread-local: each replica's step is traced in a thread.

    Attributes:
        share: (), float32, the share of the current part in the rows of the replica's batch, by
            which the model multiplies the loss of the part; None outside parts.
        replica_share: (), float32, the rows of this replica divided by the mean over the replicas;
            None with one replica, and outside steps.
        losses: list of the additional losses of the current forward pass; None outside steps.
            Keras stores them in the layers, where another replica's pass replaces them.
        tracker_weight: (), float32, the weight of the current part in the mean of each output's
            loss; None outside parts.
        calling: bool, whether the losses of the outputs are being called.
        totals: dict, the divisor of each loss's mean.
    """

    def __init__(self) -> None:
        self.share: Tensor | None = None
        self.replica_share: Tensor | None = None
        self.losses: list[Tensor] | None = None
        self.tracker_weight: Tensor | None = None
        self.calling = False
        self.totals: dict[object, Tensor] = {}


class GlobalMean:
    """A Keras loss times the share of this replica and part in the count of the whole batch.

    Args:
        loss: a `keras.losses.Loss`. The divisor of its mean is its method
            `count(y_true, y_pred, sample_weight)` if it has one; otherwise it follows from its
            reduction, the mask of the predictions and `ignore_class`.
        batch: the current batch.
    """

    def __init__(self, loss: losses.Loss, batch: Batch):
        self.loss = loss
        self.batch = batch

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None) -> Tensor:
        """This replica's share of the mean, times replicas; Keras divides by them.

        Inside a part, its share of the mean divided by its share of the rows.
        """
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        given = (y_true, y_pred, sample_weight)
        value = self.loss(
            *(add_row_of_zeros(given, tf.shape(y_pred)[0]) if replicas > 1 else given)
        )
        share = self.batch.share
        if self.loss.reduction in ("sum", "none", None):
            return value if share is None else value / ops.cast(share, value.dtype)
        count = tf.cast(label_count(self.loss, y_true, y_pred, sample_weight), value.dtype)
        if share is None:
            self.batch.totals[self] = over_replicas(count)
            if replicas == 1:
                return value
        weight = tf.math.divide_no_nan(count * replicas, self.batch.totals[self])
        mean = tf.math.multiply_no_nan(value, weight)  # that of no rows may be NaN
        return mean if share is None else mean / ops.cast(share, value.dtype)


def over_replicas(value: Tensor) -> Tensor:
    """The sum over all replicas."""
    replica = tf.distribute.get_replica_context()
    if replica is None:  # Keras builds metrics outside of replicas
        return value
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, value)


def label_count(
    loss: losses.Loss, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None
) -> Tensor:
    """The divisor of a Keras loss's mean: the sum of weights, or the number of labels or rows."""
    if hasattr(loss, "count"):
        return loss.count(y_true, y_pred, sample_weight)
    mask = keras_internals.get_mask(y_pred)
    ignore_class = getattr(loss, "ignore_class", None)
    if ignore_class is not None:
        valid = ops.not_equal(ops.cast(y_true, "int32"), ignore_class)
        if mask is not None:  # labels may have a trailing axis of 1
            valid = ops.logical_and(mask, ops.reshape(valid, ops.shape(mask)))
        mask = valid
    weighs = loss.reduction == "mean_with_sample_weight" and sample_weight is not None
    if mask is None:
        return ops.sum(sample_weight) if weighs else ops.shape(y_pred)[0]
    mask = ops.cast(mask, "float32")
    if weighs:
        weight = ops.cast(ops.convert_to_tensor(sample_weight), "float32")
        if len(weight.shape) > len(mask.shape):  # a trailing axis of 1, as in Keras
            mask = ops.reshape(mask, ops.shape(weight))
        elif len(weight.shape) < len(mask.shape):
            weight = ops.reshape(weight, (-1,) + (1,) * (len(mask.shape) - 1))
        mask = mask * weight
    return ops.sum(mask)
