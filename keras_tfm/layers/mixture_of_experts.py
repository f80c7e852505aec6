"""A feed-forward network of several experts, of which each token is sent to a few."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer, check_not_negative, check_number
from keras_tfm.layers.arguments import as_initializer, check_sequence, serialize_part
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Config, Initializer, Shape, Tensor

# Of the sum that weights of "sigmoid" are divided by, as in DeepSeek-V3 and LFM2.
_EPSILON = 1e-6
_SCORES = ("softmax", "sigmoid")
_OPTIONS = (
    "num_experts", "top_k", "shared_gate", "scores", "normalize", "scale", "selection_bias",
    "use_bias", "balance",
)  # fmt: skip


@keras.saving.register_keras_serializable("keras_tfm")
class MixtureOfExperts(RematerializedLayer):
    """Several feed-forward networks, of which each token is given to those that a router chooses.

    y = sum of w_e expert_e(x) over the `top_k` experts with the largest scores s = softmax(x W_r),
    where w_e = s_e, with `normalize` divided by the sum of the chosen scores. "Outrageously Large
    Neural Networks" (arXiv:1701.06538), with the router of Mixtral (arXiv:2401.04088); with
    `scores="sigmoid"` and `selection_bias` that of DeepSeek-V3 (arXiv:2412.19437).

    Use it as `feed_forward` of a block. No token is dropped. A sequence, as in training, is
    computed by all experts, and the outputs of those that were not chosen are multiplied by 0. A
    step of generation, in Keras and in a file, runs only the experts that its tokens chose.

    Args:
        expert: layer (..., T, D) -> (..., T, D) such as `FeedForward`, copied for each expert with
            the dtype policy of the mixture.
        num_experts: int, number of experts (E).
        top_k: int, number of experts that each token is given to.
        shared: layer (..., T, D) -> (..., T, D) whose output for each token is added to that of its
            experts. Default: none.
        shared_gate: bool, whether that output is multiplied by sigmoid(x w), as in Qwen2-MoE.
        scores: str, "softmax" or "sigmoid" of the router's logits.
        normalize: bool, whether the weights of a token's experts add up to 1.
        scale: float, factor of the weights.
        selection_bias: bool, whether the experts are chosen by their scores plus a bias (E,), which
            does not change their weights and has no gradient: it is read from a checkpoint.
        use_bias: bool, whether the router's logits have a bias.
        balance: float, factor of the auxiliary loss in training, E sum of f_e p_e, of the fraction
            f_e of the tokens that chose expert e and their mean softmax score p_e: "Switch
            Transformers" (arXiv:2101.03961), equation 4. It is `top_k` for equal use of all
            experts. Padding counts as tokens.
        kernel_initializer: initializer of the router's kernel.

    Call arguments:
        x: float tensor (..., T, D).

    Returns:
        Float tensor (..., T, D).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or an input without a sequence axis.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import FeedForward, MixtureOfExperts
    >>> layer = MixtureOfExperts(FeedForward(16, "silu", gated=True), num_experts=8, top_k=2)
    >>> tuple(layer(np.ones((2, 5, 4), "float32")).shape)
    (2, 5, 4)
    """

    def __init__(
        self,
        expert: keras.Layer | Config,
        num_experts: int,
        top_k: int,
        shared: keras.Layer | Config | None = None,
        shared_gate: bool = False,
        scores: str = "softmax",
        normalize: bool = True,
        scale: float = 1.0,
        selection_bias: bool = False,
        use_bias: bool = False,
        balance: float = 0.0,
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("num_experts", num_experts)
        check_integer("top_k", top_k)
        if top_k > num_experts:
            raise ValueError(f"top_k must be at most num_experts ({num_experts}), got {top_k}")
        if scores not in _SCORES:
            raise ValueError(f"scores must be one of {list(_SCORES)}, got {scores!r}")
        check_number("scale", scale)
        check_not_negative("balance", balance)
        if shared_gate and shared is None:
            raise ValueError("shared_gate must be False without shared")
        self.num_experts = num_experts
        self.top_k = top_k
        self.shared_gate = shared_gate
        self.scores = scores
        self.normalize = normalize
        self.scale = scale
        self.selection_bias = selection_bias
        self.use_bias = use_bias
        self.balance = balance
        self.kernel_initializer = as_initializer("kernel_initializer", kernel_initializer)
        # Configurations: Keras would track the layers themselves.
        self._expert = _configuration("expert", expert)
        self._shared = None if shared is None else _configuration("shared", shared)

    def build(self, x_shape: Shape) -> None:
        """Creates the router and the experts for inputs of width D."""
        check_sequence(self, "x", x_shape)
        self.router = self._dense("router", self.num_experts, bias_initializer="zeros")
        self.router.build(x_shape)
        if self.selection_bias:
            self.bias = self.add_weight(
                name="selection_bias", shape=(self.num_experts,), trainable=False, dtype="float32"
            )
        self.experts = [self._part(self._expert, f"expert_{i}") for i in range(self.num_experts)]
        self.shared = None if self._shared is None else self._part(self._shared, "shared_expert")
        for part in self.experts if self.shared is None else [*self.experts, self.shared]:
            part.build(x_shape)
            if tuple(part.compute_output_shape(x_shape)) != tuple(x_shape):
                raise ValueError(
                    f"{self.name}: {part.name} must return the shape of its input, {x_shape}, got "
                    f"{part.compute_output_shape(x_shape)}"
                )
        if self.shared_gate:
            self.gate = self._dense("shared_gate", 1, use_bias=False, bias_initializer="zeros")
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
            y = self.shared(x)
            if self.shared_gate:
                y = ops.sigmoid(self.gate(x)) * y
        columns = ops.split(weights, self.num_experts, axis=-1)
        chosen = ops.max(weights, axis=tuple(range(len(weights.shape) - 1))) > 0
        is_step = self._is_step(x, training)
        for i, (expert, weight) in enumerate(zip(self.experts, columns, strict=True)):

            def add(y: Tensor = y, expert: Any = expert, weight: Tensor = weight) -> Tensor:
                return y + weight * expert(x, training=training)

            y = ops.cond(chosen[i], add, lambda y=y: y) if is_step else add()
        return y

    def _is_step(self, x: Tensor, training: bool | None) -> bool:
        return (
            not training
            and x.shape[-2] is not None
            and x.shape[-2] * self.top_k < self.num_experts
            and current_target.get().name != "gpu-edge"
        )

    def route(self, x: Tensor, training: bool | None = None) -> Tensor:
        """The weight of each expert, 0 for those that a token is not given to: (..., T, E)."""
        logits = ops.cast(self.router(x), "float32")
        scores = ops.softmax(logits) if self.scores == "softmax" else ops.sigmoid(logits)
        ranked = scores + ops.cast(self.bias, "float32") if self.selection_bias else scores
        _, indices = ops.top_k(ranked, self.top_k)
        chosen = ops.sum(ops.one_hot(indices, self.num_experts, dtype="float32"), axis=-2)
        weights = scores * chosen
        if self.normalize:
            total = ops.sum(weights, axis=-1, keepdims=True)
            weights = weights / (total if self.scores == "softmax" else total + _EPSILON)
        if self.balance and training:
            axes = tuple(range(len(chosen.shape) - 1))
            shares = ops.mean(chosen, axis=axes) * ops.mean(ops.softmax(logits), axis=axes)
            self.add_loss(self.balance * self.num_experts * ops.sum(shares))
        return ops.cast(weights * self.scale, x.dtype)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        initializer = keras.initializers.serialize(self.kernel_initializer)
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in _OPTIONS},
            "expert": self._expert,
            "shared": self._shared,
            "kernel_initializer": initializer,
        }


def _configuration(name: str, part: keras.Layer | Config) -> Config:
    if isinstance(part, dict):
        part = keras.saving.deserialize_keras_object(part)
    config = serialize_part(part) if isinstance(part, keras.layers.Layer) else None
    if config is None:
        raise TypeError(f"{name} must be a layer such as FeedForward(64), got {part!r}")
    return config
