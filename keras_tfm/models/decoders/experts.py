"""The sizes of a language model's experts: mixtures in place of its feed-forward networks."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import keras

from keras_tfm.arguments import check_integer
from keras_tfm.layers.types import Config


@keras.saving.register_keras_serializable("keras_tfm")
@dataclass(frozen=True, kw_only=True)
class Experts:
    """The experts of a language model, an argument of its builder.

    The feed-forward network of a block becomes a `layers.MixtureOfExperts`, whose experts have the
    activation, the gate and the biases of the model's other feed-forward networks.

    Args:
        num_experts: int, number of experts of a block (E).
        top_k: int, number of experts that each token is given to.
        intermediate_dim: int, inner width of an expert. Default: that of the model.
        blocks: list of bool, whether each block has experts. Default: every block has.
        shared_dim: int, inner width of an expert of every token. Default: there is none.
        shared_gate, scores, normalize, scale, selection_bias, balance: as in the layer.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range.

    Example:

    >>> from keras_tfm import models
    >>> experts = models.Experts(num_experts=4, top_k=2)
    >>> model = models.llama(
    ...     11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, experts=experts
    ... )
    >>> model.get_layer("decoder_0").feed_forward.num_experts
    4
    """

    num_experts: int
    top_k: int
    intermediate_dim: int | None = None
    blocks: Sequence[bool] | None = None
    shared_dim: int | None = None
    shared_gate: bool = False
    scores: str = "softmax"
    normalize: bool = True
    scale: float = 1.0
    selection_bias: bool = False
    balance: float = 0.0

    def __post_init__(self) -> None:
        check_integer("intermediate_dim", self.intermediate_dim, optional=True)
        check_integer("shared_dim", self.shared_dim, optional=True)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: Config) -> "Experts":
        """Creates the object from its `get_config()`."""
        return cls(**config)
