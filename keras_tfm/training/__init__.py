"""Training: Keras losses, metrics and schedules for `model.compile`."""

from keras_tfm.training.losses import LabelSmoothedCrossEntropy
from keras_tfm.training.metrics import MaskedAccuracy
from keras_tfm.training.schedules import TransformerSchedule

__all__ = ["LabelSmoothedCrossEntropy", "MaskedAccuracy", "TransformerSchedule"]
