"""The decoder-only model that GPT, Llama and Gemma share: embedding, blocks, logits."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm import layers
from keras_tfm.layers.recurrent.token_mixer import TokenMixer
from keras_tfm.layers.types import Activation, DType, Tensor
from keras_tfm.models.decoders.experts import Experts
from keras_tfm.models.identity import Marker
from keras_tfm.models.model import Model


def initializer() -> keras.initializers.Initializer:
    """The initializer of every kernel and embedding, as in the GPT papers."""
    return keras.initializers.RandomNormal(stddev=0.02)


@dataclass(frozen=True, kw_only=True)
class CausalDecoder:
    """The parts of a language model, by the arguments of its builder, see `gpt`.

    Attributes:
        name: str, the model's name.
        embedding_dim: int, width of the embeddings and of the features (E). Default: `dim`.
        scale_embedding: bool or float, see `scale` of `TokenEmbedding`.
        logits_scaling: float, logits are divided by it.
        soft_cap: float, logits become soft_cap tanh(logits / soft_cap). Default: as they are.
        output_size: int, number of logits without `tie_output`. Default: `vocabulary_size`.
        output_bias: bool, whether the logits have a bias.
    """

    vocabulary_size: int
    dim: int
    num_layers: int
    name: str
    dtype: DType
    tie_output: bool = True
    windows: int | Sequence[int | None] | None = None
    pad_id: int | None = None
    embedding_dim: int | None = None
    scale_embedding: bool | float = False
    logits_scaling: float = 1.0
    soft_cap: float | None = None
    output_size: int | None = None
    output_bias: bool = False

    def build(
        self,
        block: Callable[[int, int | None], keras.layers.Layer],
        positions: Callable[[Tensor], Tensor] | None = None,
        norm: keras.layers.Layer | None = None,
        stack: Callable[[Tensor, Tensor, list[keras.layers.Layer]], Tensor] | None = None,
        others: Mapping[str, Tensor] | None = None,
        transform: Callable[[Tensor], Tensor] | None = None,
    ) -> Model:
        """The model from `tokens` to logits.

        Args:
            block: function that returns block i: `block(i, window)`, with its entry of `windows`.
            positions: layer or function that adds positions to the embedded tokens, or normalises
                them or drops some of them.
            norm: normalisation after the last block.
            stack: function of the token ids, the embedded tokens and the blocks that returns the
                result of the last block. Default: each block is given the result of the one before.
            others: the other inputs by name, which `stack` reads; the tokens are then `target`.
            transform: function of the features that returns what the logits are computed from.
                Default: the features.
        """
        if self.num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {self.num_layers}")
        windows = each_window(self.windows, self.num_layers)
        tokens = keras.Input((None,), dtype="int32", name="target" if others else "tokens")
        embedding = layers.TokenEmbedding(
            self.vocabulary_size,
            self.embedding_dim or self.dim,
            scale=self.scale_embedding,
            mask_id=self.pad_id,
            padding="ends",
            embeddings_initializer=initializer(),
            dtype=self.dtype,
            name="embedding",
        )
        x = self._project(embedding(tokens), self.dim, "embedding_projection")
        if positions is not None:
            x = positions(x)
        blocks = [block(i, window) for i, window in enumerate(windows)]
        if stack is not None:
            x = stack(tokens, x, blocks)
        else:
            for layer in blocks:
                x = layer(x)
        if norm is not None:
            x = norm(x)
        x = self._project(x, self.embedding_dim or self.dim, "features_projection")
        names = [layer.name for layer in blocks]
        x = Marker("features", embedding="embedding", blocks=names, dtype=self.dtype)(x)
        x = Marker("head", "language_model", dtype=self.dtype)(x)
        if transform is not None:
            x = transform(x)
        if self.tie_output:
            logits = embedding(x, reverse=True)
        else:
            logits = keras.layers.Dense(
                self.output_size or self.vocabulary_size,
                use_bias=False,
                kernel_initializer=initializer(),
                dtype=self.dtype,
                name="output",
            )(x)
        if self.output_bias:
            logits = layers.OutputBias(dtype=self.dtype, name="output_bias")(logits)
        if self.logits_scaling != 1.0:
            logits = logits / self.logits_scaling
        if self.soft_cap is not None:
            logits = self.soft_cap * ops.tanh(logits / self.soft_cap)
        inputs = {**others, "target": tokens} if others else tokens
        return Model(inputs, logits, name=self.name)

    def _project(self, x: Tensor, dim: int, name: str) -> Tensor:
        """(..., X) -> (..., dim), by a dense layer without bias if X is another width."""
        if self.embedding_dim in (None, self.dim):
            return x
        return keras.layers.Dense(
            dim, use_bias=False, kernel_initializer=initializer(), dtype=self.dtype, name=name
        )(x)


@dataclass(frozen=True, kw_only=True)
class RotaryDecoder(CausalDecoder):
    """The parts of a language model with rotary positions and gated networks, see `llama`."""

    num_heads: int
    intermediate_dim: int
    num_key_value_heads: int | None
    activation: Activation
    rms_norm_epsilon: float
    attention_bias: bool | Collection[str]
    attention_dropout: float
    head_dim: int | None = None
    feed_forward_bias: bool = False
    gated: bool = True
    gate_scale: float = 1.0
    causal: bool = True
    experts: Experts | None = None

    def __post_init__(self) -> None:
        if not self.causal and self.pad_id is None:
            raise ValueError(
                "pad_id is required with causal=False, since tokens would attend to padding after "
                "them: -1 if it is no id of the vocabulary, got None"
            )

    def norm(self, name: str, **options: Any) -> layers.RMSNormalization:
        """An RMS normalisation."""
        return layers.RMSNormalization(
            epsilon=self.rms_norm_epsilon, dtype=self.dtype, name=name, **options
        )

    def head_norms(self, axis: int | tuple[int, ...] = -1) -> dict[str, layers.RMSNormalization]:
        """The arguments `query_norm` and `key_norm` of attention; see there for `axis`."""
        return {name: self.norm(name, axis=axis) for name in ("query_norm", "key_norm")}

    def block(
        self,
        i: int,
        window: int | None,
        position: layers.RotaryEmbedding | None,
        residual: layers.Residual | dict[str, layers.Residual],
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        intermediate_dim: int | None = None,
        mixer: TokenMixer | None = None,
        **attention: Any,
    ) -> layers.TransformerDecoderBlock:
        """Block i.

        Args:
            i: int, number of the block.
            window: int, attend only to positions less than that far away. None: no window.
            position: the rotary positions. None: no positions.
            residual: the residual connection of each sublayer.
            num_key_value_heads, head_dim, intermediate_dim: those of this block, if they differ
                from the other blocks'.
            mixer: layer in place of attention; `window` and `position` are None then.
            attention: further arguments of `MultiHeadSelfAttention`.
        """
        self_attention = mixer or layers.MultiHeadSelfAttention(
            self.num_heads,
            causal=self.causal,
            window=window,
            head_dim=head_dim or self.head_dim,
            num_key_value_heads=num_key_value_heads or self.num_key_value_heads,
            dropout=self.attention_dropout,
            use_bias=self.attention_bias,
            position=position,
            kernel_initializer=initializer(),
            dtype=self.dtype,
            name="self_attention",
            **attention,
        )
        return layers.TransformerDecoderBlock(
            self_attention=self_attention,
            cross_attention=False,
            feed_forward=self._feed_forward(i, intermediate_dim or self.intermediate_dim),
            causal=self.causal,
            residual=residual,
            dtype=self.dtype,
            name=f"decoder_{i}",
        )

    def _feed_forward(
        self, i: int, intermediate_dim: int
    ) -> layers.FeedForward | layers.MixtureOfExperts:
        """The feed-forward network of block i, or its experts."""
        has_experts, experts = self.has_experts[i], self.experts
        if experts is None or not has_experts:
            return self._network("feed_forward", intermediate_dim)
        shared = None
        if experts.shared_dim is not None:
            shared = self._network("shared_expert", experts.shared_dim)
        return layers.MixtureOfExperts(
            self._network("expert", experts.intermediate_dim or intermediate_dim),
            experts.routing,
            shared=shared,
            shared_gate=experts.shared_gate,
            kernel_initializer=initializer(),
            dtype=self.dtype,
            name="feed_forward",
        )

    @cached_property
    def has_experts(self) -> list[bool]:
        """Whether each block has experts."""
        if not isinstance(self.experts, Experts | None):
            raise TypeError(f"experts must be a models.Experts, got {self.experts!r}")
        blocks = self.experts.blocks if self.experts else None
        return each_flag("experts.blocks", blocks, self.num_layers, interval=1)

    def _network(self, name: str, intermediate_dim: int) -> layers.FeedForward:
        return layers.FeedForward(
            intermediate_dim,
            activation=self.activation,
            gated=self.gated,
            use_bias=self.feed_forward_bias,
            gate_scale=self.gate_scale,
            kernel_initializer=initializer(),
            dtype=self.dtype,
            name=name,
        )


def each_window(windows: int | Sequence[int | None] | None, num_layers: int) -> list[int | None]:
    """The window of each block, from one for all or a list."""
    if windows is None or isinstance(windows, int):
        return [windows] * num_layers
    if len(windows) != num_layers:
        raise ValueError(
            f"windows must have one entry for each of {num_layers} blocks, got {list(windows)}"
        )
    return list(windows)


def each_flag(
    name: str, flags: Sequence[bool] | None, num_layers: int, interval: int
) -> list[bool]:
    """Whether each block has something: every `interval`th, the last of each group, if None."""
    if flags is None:
        return [(i + 1) % interval == 0 for i in range(num_layers)]
    found = list(flags) if isinstance(flags, Iterable) else flags
    if (
        not isinstance(found, list)
        or len(found) != num_layers
        or not all(isinstance(flag, bool | np.bool_) for flag in found)
    ):
        raise ValueError(f"{name} must have one bool for each of {num_layers} blocks, got {found}")
    return [bool(flag) for flag in found]
