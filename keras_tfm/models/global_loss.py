"""The mean of a loss over all replicas and all parts of a batch, whatever each of them holds."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras import losses, ops
from keras.src.backend.common.masking import get_keras_mask
from keras.src.trainers.compile_utils import CompileLoss

Tensor = Any


class GlobalLoss(CompileLoss):
    """The compiled losses of a model, where every mean is over the whole batch.

    Keras divides each replica's loss by what that replica counted and averages the results: with
    more padding on one replica than on the other, tokens weigh differently, in silence. Here each
    is divided by the count of all replicas and, where a batch is taken in parts, of all parts.
    """

    _flat_losses: Any

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.batch = Batch()

    def build(self, y_true: Any, y_pred: Any) -> None:
        """Finds the loss of each output."""
        super().build(y_true, y_pred)
        self._flat_losses = [
            entry._replace(loss=GlobalMean(entry.loss, self.batch)) for entry in self._flat_losses
        ]

    @property
    def metrics(self) -> list[Any]:
        """The means of the losses of several outputs; none is updated by counting."""
        trackers = super().metrics
        return [None] * len(trackers) if self.batch.counting else trackers

    @contextlib.contextmanager
    def in_parts(self, parts: int, count: Callable[[], Any]) -> Iterator[None]:
        """Calls within are for one part of a batch each, whose labels `count` counts.

        Args:
            parts: how many there are.
            count: calls this loss for the whole batch.
        """
        self.batch.parts, self.batch.counting = parts, True
        count()
        self.batch.counting = False
        yield
        self.batch.parts = 1


class Batch(threading.local):
    """What is known of the batch that a replica is at; each replica's step is traced in a thread.

    Attributes:
        parts: in how many it is taken.
        counting: whether the losses are called to count its labels.
        totals: by loss, what its mean is over.
    """

    def __init__(self) -> None:
        self.parts = 1
        self.counting = False
        self.totals: dict[Any, Tensor] = {}


class GlobalMean:
    """A Keras loss, times this replica's and this part's share of all that the mean is over.

    Args:
        loss: a `keras.losses.Loss`. What its mean is over is found from its reduction, the mask
            of the predictions and `ignore_class`, or asked of its method
            `count(y_true, y_pred, sample_weight)` where it has one.
        batch: what is known of the batch.
    """

    def __init__(self, loss: losses.Loss, batch: Batch):
        self.loss = loss
        self.batch = batch

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None) -> Tensor:
        """This replica's and part's summand, times parts; Keras divides it among replicas."""
        value = self.loss(y_true, y_pred, sample_weight)
        parts = self.batch.parts
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if parts == replicas == 1:
            return value
        if self.loss.reduction in ("sum", "none", None):
            return parts * value
        count = tf.cast(label_count(self.loss, y_true, y_pred, sample_weight), value.dtype)
        if parts == 1 or self.batch.counting:
            self.batch.totals[self] = over_replicas(count)
        share = tf.math.divide_no_nan(count * (replicas * parts), self.batch.totals[self])
        return value * share


def over_replicas(value: Tensor) -> Tensor:
    """The sum over all replicas."""
    replica = tf.distribute.get_replica_context()
    if replica is None:  # Keras builds a model's metrics outside of any replica
        return value
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, value)


def label_count(
    loss: losses.Loss, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None
) -> Tensor:
    """What the mean of a Keras loss is over: a sum of weights, of valid labels, or of rows."""
    if hasattr(loss, "count"):
        return loss.count(y_true, y_pred, sample_weight)
    mask = get_keras_mask(y_pred)
    ignore_class = getattr(loss, "ignore_class", None)
    if ignore_class is not None:
        valid = ops.not_equal(ops.cast(y_true, "int32"), ignore_class)
        mask = valid if mask is None else ops.logical_and(mask, valid)
    weighs = loss.reduction == "mean_with_sample_weight" and sample_weight is not None
    if mask is None:
        return ops.sum(sample_weight) if weighs else ops.shape(y_pred)[0]
    mask = ops.cast(mask, "float32")
    if weighs:
        weight = ops.cast(ops.convert_to_tensor(sample_weight), "float32")
        if len(weight.shape) != len(mask.shape):
            weight = ops.reshape(weight, (-1,) + (1,) * (len(mask.shape) - 1))
        mask = mask * weight
    return ops.sum(mask)
