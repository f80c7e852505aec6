"""Learning rates as functions of the step."""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_tfm")
class TransformerSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The schedule of the original Transformer: a linear warm-up, then an inverse square root.

    lr = factor D^-0.5 min(step^-0.5, step warmup_steps^-1.5), step counted from 1. "Attention Is
    All You Need" (arXiv:1706.03762), equation 3, where factor is 1. The peak, at `warmup_steps`,
    is factor / sqrt(D warmup_steps).

    Args:
        dim: D, the width of the model.
        warmup_steps: steps until the peak.
        factor: multiplies the rate.

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

    def __call__(self, step: Any) -> Any:
        """The rate of a step; Keras optimizers count from 0."""
        step = ops.cast(step, "float32") + 1.0
        rate = ops.minimum(ops.rsqrt(step), step * self.warmup_steps**-1.5)
        return self.factor * self.dim**-0.5 * rate

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"dim": self.dim, "warmup_steps": self.warmup_steps, "factor": self.factor}
