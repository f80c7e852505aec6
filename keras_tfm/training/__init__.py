"""Training: Keras losses, metrics, schedules and callbacks for `model.compile` and `fit`."""

from keras_tfm.training.generation_scores import GenerationScores
from keras_tfm.training.losses import LabelSmoothedCrossEntropy
from keras_tfm.training.metrics import MaskedAccuracy
from keras_tfm.training.perplexity import Perplexity
from keras_tfm.training.schedules import LinearSchedule, TransformerSchedule
from keras_tfm.training.tensorboard import TensorBoard
from keras_tfm.training.terminate_on_nan import TerminateOnNaN
from keras_tfm.training.weight_decay import exclude_from_weight_decay

__all__ = [
    "GenerationScores",
    "LabelSmoothedCrossEntropy",
    "LinearSchedule",
    "MaskedAccuracy",
    "Perplexity",
    "TensorBoard",
    "TerminateOnNaN",
    "TransformerSchedule",
    "exclude_from_weight_decay",
]
