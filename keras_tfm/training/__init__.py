"""Training: Keras losses, metrics and schedules for `model.compile`; strategies; exact resuming."""

from keras_tfm.training.losses import LabelSmoothedCrossEntropy
from keras_tfm.training.metrics import MaskedAccuracy
from keras_tfm.training.resume import Resume
from keras_tfm.training.schedules import TransformerSchedule
from keras_tfm.training.strategies import distribution, is_chief

__all__ = [
    "LabelSmoothedCrossEntropy",
    "MaskedAccuracy",
    "Resume",
    "TransformerSchedule",
    "distribution",
    "is_chief",
]
