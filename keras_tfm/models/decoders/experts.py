"""The experts of a language model: mixtures in place of its feed-forward networks."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import keras

from keras_tfm.arguments import check_integer
from keras_tfm.layers import Routing
from keras_tfm.layers.mixture_of_experts import as_routing
from keras_tfm.layers.types import Config


@keras.saving.register_keras_serializable("keras_tfm")
@dataclass(frozen=True)
class Experts:
    """The experts of a language model, an argument of its builder.

    The feed-forward network of a block becomes a `layers.MixtureOfExperts`, whose experts have the
    activation, the gate and the biases of the model's feed-forward networks.

    Args:
        routing: `layers.Routing`, the number of experts and how those of a token are chosen.
        intermediate_dim: int, inner width of an expert. Default: that of the model.
        blocks: list of bool, whether each block has experts. Default: every block has.
        shared_dim: int, inner width of the shared expert, which every token reads. Default: there
            is none.
        shared_gate: bool, whether the output of that expert has a gate, see the layer.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range.

    Example:

    >>> from keras_tfm import layers, models
    >>> experts = models.Experts(layers.Routing(num_experts=4, top_k=2))
    >>> model = models.llama(
    ...     11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, experts=experts
    ... )
    >>> len(model.get_layer("decoder_0").feed_forward.experts)
    4
    """

    routing: Routing
    intermediate_dim: int | None = None
    blocks: Sequence[bool] | None = None
    shared_dim: int | None = None
    shared_gate: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "routing", as_routing(self.routing))
        check_integer("intermediate_dim", self.intermediate_dim, optional=True)
        check_integer("shared_dim", self.shared_dim, optional=True)
        if self.shared_gate and self.shared_dim is None:
            raise ValueError("shared_gate must be False without shared_dim")

    def get_config(self) -> Config:
        """The constructor's arguments."""
        own = {x.name: getattr(self, x.name) for x in fields(self)}
        return {**own, "routing": keras.saving.serialize_keras_object(self.routing)}

    @classmethod
    def from_config(cls, config: Config) -> "Experts":
        """Creates the object from its `get_config()`."""
        return cls(**{**config, "routing": as_routing(config["routing"])})
