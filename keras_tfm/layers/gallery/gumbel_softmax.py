"""The Gumbel-softmax: a sample of a category with a gradient."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_positive
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.dropout import DrawnSeed, draw_seed
from keras_tfm.layers.types import Config, Shape, Tensor

# The least uniform number that is drawn: the logarithm of 0 would be infinite.
_LEAST = 1e-7


@keras.saving.register_keras_serializable("keras_tfm")
class GumbelSoftmax(RematerializedLayer):
    """Samples a category from logits such that the logits get a gradient.

    In training y = softmax((x + g) / tau) with g_i = -log(-log u_i), u_i uniform in (0, 1):
    "Categorical Reparameterization with Gumbel-Softmax" (arXiv:1611.01144). The smaller the
    temperature tau, the nearer y is to one category. With `straight_through`, y is the one-hot
    vector of the largest (x + g), with the gradient of the softmax. In inference, y is the one-hot
    vector of the largest logit. Computed in float32, cast last.

    Args:
        temperature: float, initial tau. The attribute `temperature` is a variable, which
            `training.Annealing` lowers during training.
        straight_through: bool, whether training uses one-hot vectors, too.
        seed: int, seed of the random numbers.

    Call arguments:
        logits: float tensor (..., V).

    Returns:
        Float tensor (..., V); the values of a category add up to 1.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: a temperature that is not positive.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import GumbelSoftmax
    >>> GumbelSoftmax()(np.array([[0.1, 2.0, 0.3]], "float32")).numpy().tolist()
    [[0.0, 1.0, 0.0]]
    """

    def __init__(
        self,
        temperature: float = 1.0,
        straight_through: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_positive("temperature", temperature)
        self.initial_temperature = temperature
        self.straight_through = straight_through
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, logits_shape: Shape) -> None:
        """Creates the variable of the temperature."""
        self.temperature = self.add_weight(
            name="temperature",
            shape=(),
            initializer=keras.initializers.Constant(self.initial_temperature),
            dtype="float32",
            trainable=False,
            autocast=False,
            aggregation="only_first_replica",
        )
        self.built = True

    def call(self, logits: Tensor, training: bool | None = None) -> Tensor:
        """(..., V) -> (..., V)."""
        wide = ops.cast(logits, "float32")
        if not training:
            return self._one_hot(wide)
        seed = DrawnSeed(draw_seed(self.seed_generator))
        uniform = keras.random.uniform(ops.shape(wide), _LEAST, 1.0, dtype="float32", seed=seed)
        noisy = wide - ops.log(-ops.log(uniform))
        soft = ops.softmax(noisy / ops.convert_to_tensor(self.temperature), axis=-1)
        if not self.straight_through:
            return ops.cast(soft, self.compute_dtype)
        return self._one_hot(noisy) + ops.cast(soft - ops.stop_gradient(soft), self.compute_dtype)

    def _one_hot(self, logits: Tensor) -> Tensor:
        # Not ops.argmax: on TensorFlow it has bitwise operations, which LiteRT lacks.
        chosen = ops.squeeze(ops.top_k(logits, 1)[1], axis=-1)
        return ops.one_hot(chosen, logits.shape[-1], dtype=self.compute_dtype)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "temperature": self.initial_temperature,
            "straight_through": self.straight_through,
            "seed": self.seed,
        }
