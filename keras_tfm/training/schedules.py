"""Learning rate schedules."""

import keras
from keras import ops

from keras_tfm.layers.types import Config, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class TransformerSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The schedule of the original Transformer: a linear warm-up, then an inverse square root.

    lr = factor D^-0.5 min(step^-0.5, step warmup_steps^-1.5), step counted from 1. "Attention Is
    All You Need" (arXiv:1706.03762), equation 3, where factor is 1. The peak, at `warmup_steps`,
    is factor / sqrt(D warmup_steps).

    Args:
        dim: int, width of the model (D).
        warmup_steps: int, number of steps until the peak.
        factor: float, multiplies the learning rate.

    Raises:
        ValueError: `dim` or `warmup_steps` is below 1.

    Example:

    >>> from keras_tfm.training import TransformerSchedule
    >>> round(float(TransformerSchedule(dim=512)(3999)), 9)  # the 4,000th step
    0.000698771
    """

    def __init__(self, dim: int, warmup_steps: int = 4000, factor: float = 1.0):
        super().__init__()
        if dim < 1 or warmup_steps < 1:
            raise ValueError(
                f"dim and warmup_steps must be at least 1, got {dim} and {warmup_steps}"
            )
        self.dim = dim
        self.warmup_steps = warmup_steps
        self.factor = factor

    def __call__(self, step: Tensor) -> Tensor:
        """The rate of a step; Keras optimizers count from 0."""
        step = ops.cast(step, "float32") + 1.0
        rate = ops.minimum(ops.rsqrt(step), step * self.warmup_steps**-1.5)
        return self.factor * self.dim**-0.5 * rate

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {"dim": self.dim, "warmup_steps": self.warmup_steps, "factor": self.factor}


@keras.saving.register_keras_serializable("keras_tfm")
class LinearSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A linear warm-up, then a linear decay, as in BERT and most fine-tuning.

    After s steps, lr = peak s / warmup_steps until the peak, then
    end + (peak - end) (total_steps - s) / (total_steps - warmup_steps), and `end` after
    `total_steps`. "BERT" (arXiv:1810.04805), appendix A.2. With end = 0 it equals
    `get_linear_schedule_with_warmup` of transformers. With a warm-up the first rate is 0.

    For a cosine decay use Keras's
    `CosineDecay(0.0, total_steps - warmup_steps, warmup_target=peak, warmup_steps=warmup_steps)`.

    Args:
        peak: float, the highest learning rate.
        total_steps: int, the step at which the learning rate reaches `end`.
        warmup_steps: int, number of steps until the peak; 0: start at the peak.
        end: float, the final learning rate.

    Raises:
        ValueError: `warmup_steps` is negative or not below `total_steps`.

    Example:

    >>> from keras_tfm.training import LinearSchedule
    >>> rate = LinearSchedule(peak=0.5, total_steps=10, warmup_steps=2)
    >>> [float(rate(step)) for step in (0, 1, 2, 6, 10, 11)]
    [0.0, 0.25, 0.5, 0.25, 0.0, 0.0]
    """

    def __init__(self, peak: float, total_steps: int, warmup_steps: int = 0, end: float = 0.0):
        super().__init__()
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                "warmup_steps must be at least 0 and fewer than total_steps, "
                f"got {warmup_steps} and {total_steps}"
            )
        self.peak = peak
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.end = end

    def __call__(self, step: Tensor) -> Tensor:
        """The rate of a step; Keras optimizers count from 0."""
        step = ops.cast(step, "float32")
        left = (self.total_steps - step) / (self.total_steps - self.warmup_steps)
        rate = self.end + (self.peak - self.end) * ops.clip(left, 0.0, 1.0)
        if self.warmup_steps:
            rate = ops.minimum(step / self.warmup_steps, 1.0) * rate
        return rate

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            "peak": self.peak,
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
            "end": self.end,
        }
