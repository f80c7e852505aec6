"""A feed-forward network of several experts, of which each token is routed to a few."""

from dataclasses import asdict, dataclass
from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer, check_not_negative, check_number
from keras_tfm.layers.arguments import as_initializer, check_sequence, serialize_part
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Config, Initializer, Shape, Tensor

# Added to the sum that the weights of "sigmoid" are divided by, as in LFM2.
_EPSILON = 1e-6
_SCORES = ("softmax", "sigmoid")


@keras.saving.register_keras_serializable("keras_tfm")
@dataclass(frozen=True)
class Routing:
    """How a router chooses the experts of a token, and how it weights them.

    The scores of a token x are s = softmax(x W), and the experts are those of the `top_k` largest.
    Their weights are w_e = s_e, with `normalize` divided by the sum of the chosen scores: the
    router of Mixtral (arXiv:2401.04088). With `scores="sigmoid"` and `selection_bias` it is that of
    DeepSeek-V3 (arXiv:2412.19437).

    Args:
        num_experts: int, number of experts (E).
        top_k: int, number of experts that each token is routed to.
        scores: str, "softmax" or "sigmoid" of the router's logits.
        normalize: bool, whether the weights of a token's experts add up to 1.
        scale: float, factor of the weights.
        use_bias: bool, whether the router's logits have a bias.
        selection_bias: bool, whether the experts are chosen by their scores plus a bias (E,), which
            does not change their weights and has no gradient: it is read from a checkpoint.
        balance: float, factor of the load-balancing loss in training, E sum of f_e p_e, where f_e
            is the fraction of the tokens that are routed to expert e, and p_e its mean softmax
            score: "Switch Transformers" (arXiv:2101.03961), equation 4. The sum is `top_k` if all
            experts are used equally. Padding counts as tokens.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range.

    Example:

    >>> from keras_tfm.layers import Routing
    >>> Routing(num_experts=8, top_k=9)
    Traceback (most recent call last):
    ValueError: top_k must be at most num_experts (8), got 9
    """

    num_experts: int
    top_k: int
    scores: str = "softmax"
    normalize: bool = True
    scale: float = 1.0
    use_bias: bool = False
    selection_bias: bool = False
    balance: float = 0.0

    def __post_init__(self) -> None:
        check_integer("num_experts", self.num_experts)
        check_integer("top_k", self.top_k)
        if self.top_k > self.num_experts:
            raise ValueError(
                f"top_k must be at most num_experts ({self.num_experts}), got {self.top_k}"
            )
        if self.scores not in _SCORES:
            raise ValueError(f"scores must be one of {list(_SCORES)}, got {self.scores!r}")
        check_number("scale", self.scale)
        check_not_negative("balance", self.balance)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: Config) -> "Routing":
        """Creates the object from its `get_config()`."""
        return cls(**config)


def as_routing(value: object) -> Routing:
    """Returns the `Routing` for an object or its configuration.

    >>> from keras_tfm.layers.mixture_of_experts import as_routing
    >>> as_routing(8)
    Traceback (most recent call last):
    TypeError: routing must be a Routing, got 8
    """
    if isinstance(value, dict):
        value = keras.saving.deserialize_keras_object(value)
    if not isinstance(value, Routing):
        raise TypeError(f"routing must be a Routing, got {value!r}")
    return value


@keras.saving.register_keras_serializable("keras_tfm")
class MixtureOfExperts(RematerializedLayer):
    """Several feed-forward networks; a router sends each token to a few of them.

    y = sum of w_e expert_e(x) over the experts of a token, with weights w_e as `Routing` says.
    "Outrageously Large Neural Networks" (arXiv:1701.06538).

    Use it as `feed_forward` of a block. No token is dropped. A sequence, as in training, is
    computed by all experts, and the outputs of those that a token is not routed to are multiplied
    by 0. A step of generation, in Keras and in a file, runs only the experts of its tokens.

    Args:
        expert: layer (..., T, D) -> (..., T, D) such as `FeedForward`, copied for each expert with
            the dtype policy of the mixture. The layers of a model, such as `keras.Sequential`,
            keep their own.
        routing: `Routing`, the number of experts and how those of a token are chosen.
        shared: layer (..., T, D) -> (..., T, D), the shared expert: every token is routed to it,
            with weight 1. Default: none.
        shared_gate: bool, whether that output is multiplied by sigmoid(x w), as in Qwen2-MoE.
        kernel_initializer: initializer of the router's kernel.

    Call arguments:
        x: float tensor (..., T, D).

    Returns:
        Float tensor (..., T, D).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, an input without a sequence axis, or an expert whose
            output has another shape.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import FeedForward, MixtureOfExperts, Routing
    >>> layer = MixtureOfExperts(FeedForward(16, "silu", gated=True), Routing(8, top_k=2))
    >>> tuple(layer(np.ones((2, 5, 4), "float32")).shape)
    (2, 5, 4)
    """

    def __init__(
        self,
        expert: keras.Layer | Config,
        routing: Routing | Config,
        shared: keras.Layer | Config | None = None,
        shared_gate: bool = False,
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if shared_gate and shared is None:
            raise ValueError("shared_gate must be False without shared")
        self.routing = as_routing(routing)
        self.shared_gate = shared_gate
        self.kernel_initializer = as_initializer("kernel_initializer", kernel_initializer)
        # Configurations: Keras would track the layers themselves.
        self._expert = _configuration("expert", expert)
        self._shared = None if shared is None else _configuration("shared", shared)

    def build(self, x_shape: Shape) -> None:
        """Creates the router and the experts for inputs of width D."""
        check_sequence(self, "x", x_shape)
        count = self.routing.num_experts
        self.router = self._dense("router", count, self.routing.use_bias, bias_initializer="zeros")
        self.router.build(x_shape)
        if self.routing.selection_bias:
            self.bias = self.add_weight(
                name="selection_bias", shape=(count,), trainable=False, dtype="float32"
            )
        self.experts = [self._part(self._expert, f"expert_{i}") for i in range(count)]
        self.shared = None if self._shared is None else self._part(self._shared, "shared_expert")
        for part in self.experts if self.shared is None else [*self.experts, self.shared]:
            if not part.built:  # a model with an Input is
                part.build(x_shape)
            if tuple(part.compute_output_shape(x_shape)) != tuple(x_shape):
                raise ValueError(
                    f"{self.name}: {part.name} must return the shape of its input, {x_shape}, got "
                    f"{part.compute_output_shape(x_shape)}"
                )
        if self.shared_gate:
            self.gate = self._dense("shared_gate", 1, False, bias_initializer="zeros")
            self.gate.build(x_shape)
        self.built = True

    def _part(self, config: Config, name: str) -> keras.Layer:
        dtype = keras.saving.serialize_keras_object(self.dtype_policy)
        named = {**config, "config": {**config["config"], "name": name, "dtype": dtype}}
        return keras.saving.deserialize_keras_object(named)

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        """(..., T, D) -> (..., T, D)."""
        weights = self.route(x, training=training)
        if self.shared is None:
            y = ops.zeros_like(x)
        else:
            y = ops.cast(self.shared(x, training=training), x.dtype)
            if self.shared_gate:
                y = ops.sigmoid(self.gate(x)) * y
        columns = ops.split(weights, self.routing.num_experts, axis=-1)
        used = None
        if self._is_step(x, training):
            used = ops.any(ops.not_equal(weights, 0), axis=tuple(range(len(weights.shape) - 1)))
        for i, (expert, weight) in enumerate(zip(self.experts, columns, strict=True)):

            def add(y: Tensor = y, expert: keras.Layer = expert, weight: Tensor = weight) -> Tensor:
                own = x
                if self.compute_dtype == "float16":
                    # An expert may overflow for tokens of others, and 0 * infinity is NaN.
                    own = x * ops.cast(ops.not_equal(weight, 0), x.dtype)
                return y + weight * ops.cast(expert(own, training=training), x.dtype)

            y = add() if used is None else ops.cond(used[i], add, lambda y=y: y)
        return y

    def _is_step(self, x: Tensor, training: bool | None) -> bool:
        """Whether the tokens are fewer than it takes to use every expert: some are left out."""
        length = x.shape[-2]
        return (
            not training
            and length is not None
            and length * self.routing.top_k < self.routing.num_experts
            and current_target.get().name != "gpu-edge"  # delegates run no branches
        )

    def route(self, x: Tensor, training: bool | None = None) -> Tensor:
        """The weight of each expert, 0 for those that a token is not routed to: (..., T, E)."""
        routing = self.routing
        logits = ops.cast(self.router(x), "float32")
        scores = ops.softmax(logits) if routing.scores == "softmax" else ops.sigmoid(logits)
        ranked = scores + ops.cast(self.bias, "float32") if routing.selection_bias else scores
        _, indices = ops.top_k(ranked, routing.top_k)
        chosen = ops.sum(ops.one_hot(indices, routing.num_experts, dtype="float32"), axis=-2)
        weights = scores * chosen
        if routing.normalize:
            total = ops.sum(weights, axis=-1, keepdims=True)
            weights = weights / (total if routing.scores == "softmax" else total + _EPSILON)
        if routing.balance and training:
            axes = tuple(range(len(chosen.shape) - 1))
            shares = ops.mean(chosen, axis=axes) * ops.mean(ops.softmax(logits), axis=axes)
            self.add_loss(routing.balance * routing.num_experts * ops.sum(shares))
        return ops.cast(weights * routing.scale, x.dtype)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        initializer = keras.initializers.serialize(self.kernel_initializer)
        return {
            **super().get_config(),
            "expert": self._expert,
            "routing": keras.saving.serialize_keras_object(self.routing),
            "shared": self._shared,
            "shared_gate": self.shared_gate,
            "kernel_initializer": initializer,
        }


def _configuration(name: str, part: keras.Layer | Config) -> Config:
    if isinstance(part, dict):
        part = keras.saving.deserialize_keras_object(part)
    config = serialize_part(part) if isinstance(part, keras.layers.Layer) else None
    if config is None:
        raise TypeError(f"{name} must be a layer such as FeedForward(64), got {part!r}")
    return config
