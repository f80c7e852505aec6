"""Training: losses, metrics, learning rate schedules, callbacks and distribution strategies."""

from keras_tfm.training.annealing import Annealing
from keras_tfm.training.detection.detection_loss import DetectionLoss
from keras_tfm.training.detection.matching import hungarian_matching
from keras_tfm.training.detection.mean_average_precision import MeanAveragePrecision
from keras_tfm.training.generation_scores import GenerationScores
from keras_tfm.training.layer_decay import layer_decay
from keras_tfm.training.layout_map import layout_map
from keras_tfm.training.losses.contrastive import ContrastiveLoss
from keras_tfm.training.losses.dino import DINO
from keras_tfm.training.losses.discrete_vae import DiscreteVAELoss
from keras_tfm.training.losses.draft_loss import DraftLoss
from keras_tfm.training.losses.region_divergence import RegionKLDivergence
from keras_tfm.training.losses.sigmoid import SigmoidLoss
from keras_tfm.training.losses.token_losses import LabelSmoothedCrossEntropy
from keras_tfm.training.metrics import MaskedAccuracy, Perplexity
from keras_tfm.training.resuming.resume import Resume
from keras_tfm.training.schedules import LinearSchedule, TransformerSchedule
from keras_tfm.training.strategies import distribution, is_chief
from keras_tfm.training.tensorboard import TensorBoard
from keras_tfm.training.terminate_on_nan import TerminateOnNaN
from keras_tfm.training.weight_decay import exclude_from_weight_decay

__all__ = [
    "DINO",
    "Annealing",
    "ContrastiveLoss",
    "DetectionLoss",
    "DiscreteVAELoss",
    "DraftLoss",
    "GenerationScores",
    "LabelSmoothedCrossEntropy",
    "LinearSchedule",
    "MaskedAccuracy",
    "MeanAveragePrecision",
    "Perplexity",
    "RegionKLDivergence",
    "Resume",
    "SigmoidLoss",
    "TensorBoard",
    "TerminateOnNaN",
    "TransformerSchedule",
    "distribution",
    "exclude_from_weight_decay",
    "hungarian_matching",
    "is_chief",
    "layer_decay",
    "layout_map",
]
