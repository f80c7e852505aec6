"""The encoder-decoder that BART, mBART, Pegasus, Marian and M2M-100 share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import ops

from keras_tfm import layers
from keras_tfm.layers.types import Activation, Arguments, DType, Initializer, Tensor
from keras_tfm.models.identity import Marker
from keras_tfm.models.model import Model


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """The blocks of an encoder and a decoder, by the arguments of the builder, see `bart`.

    Attributes:
        normalize_first: bool, pre-norm blocks.
        causal: bool, whether the decoder's self-attention is causal.
        use_bias: as in `MultiHeadSelfAttention`.
        initializer: initializer of the kernels.
    """

    num_layers: int
    num_heads: int
    intermediate_dim: int
    num_decoder_layers: int | None
    num_decoder_heads: int | None
    decoder_intermediate_dim: int | None
    dropout: float
    attention_dropout: float
    activation_dropout: float
    activation: Activation
    dtype: DType
    normalize_first: bool = False
    causal: bool = True
    use_bias: bool | Sequence[str] = True
    initializer: Initializer = "glorot_uniform"

    @property
    def encoders(self) -> list[str]:
        """The names of the encoder's blocks."""
        return [f"encoder_{i}" for i in range(self.num_layers)]

    @property
    def decoders(self) -> list[str]:
        """The names of the decoder's blocks."""
        return [f"decoder_{i}" for i in range(self.num_decoder_layers or self.num_layers)]

    def encoder_block(self, name: str) -> layers.TransformerEncoderBlock:
        """One block of the encoder."""
        return layers.TransformerEncoderBlock(
            self_attention=self._self_attention(self.num_heads, causal=False),
            feed_forward=self._feed_forward(self.intermediate_dim),
            dropout=self.dropout,
            normalize_first=self.normalize_first,
            dtype=self.dtype,
            name=name,
        )

    def decoder_block(self, name: str) -> layers.TransformerDecoderBlock:
        """One block of the decoder."""
        heads = self.num_decoder_heads or self.num_heads
        return layers.TransformerDecoderBlock(
            self_attention=self._self_attention(heads, causal=self.causal),
            feed_forward=self._feed_forward(self.decoder_intermediate_dim or self.intermediate_dim),
            cross_attention=layers.MultiHeadCrossAttention(
                heads, name="cross_attention", **self._attention()
            ),
            causal=self.causal,
            dropout=self.dropout,
            normalize_first=self.normalize_first,
            dtype=self.dtype,
            name=name,
        )

    def _self_attention(self, heads: int, causal: bool) -> layers.MultiHeadSelfAttention:
        return layers.MultiHeadSelfAttention(
            heads, causal=causal, name="self_attention", **self._attention()
        )

    def _attention(self) -> Arguments:
        return {
            "dropout": self.attention_dropout,
            "use_bias": self.use_bias,
            "kernel_initializer": self.initializer,
            "dtype": self.dtype,
        }

    def _feed_forward(self, width: int) -> layers.FeedForward:
        return layers.FeedForward(
            width,
            activation=self.activation,
            dropout=self.activation_dropout,
            kernel_initializer=self.initializer,
            dtype=self.dtype,
            name="feed_forward",
        )


@dataclass(frozen=True)
class EncoderDecoderArguments:
    """The arguments of `bart` and its relatives, with BART's defaults."""

    vocabulary_size: int
    dim: int = 1024
    num_layers: int = 12
    num_heads: int = 16
    intermediate_dim: int = 4096
    num_decoder_layers: int | None = None
    num_decoder_heads: int | None = None
    decoder_intermediate_dim: int | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation: Activation = "gelu"
    scale_embedding: bool = False
    max_length: int = 1024
    output_bias: bool = True
    pad_id: int = 1
    start_id: int | None = 2
    end_id: int | Sequence[int] = 2
    forced_first_id: int | None = None
    forced_last_id: int | Sequence[int] | None = 2
    name: str = "bart"
    dtype: DType = None

    def build(
        self,
        normalize_first: bool = False,
        learned_positions: bool = False,
        embedding_norm: bool = False,
        target_vocabulary_size: int | None = None,
        sinusoids: Mapping[str, Any] | None = None,
    ) -> Model:
        """The model; see `EncoderDecoder` for the arguments.

        It has no part of `end_id` and the forced tokens, which are recorded.
        """
        parts = EncoderDecoder(
            vocabulary_size=self.vocabulary_size, dim=self.dim, num_layers=self.num_layers,
            num_heads=self.num_heads, intermediate_dim=self.intermediate_dim,
            num_decoder_layers=self.num_decoder_layers, num_decoder_heads=self.num_decoder_heads,
            decoder_intermediate_dim=self.decoder_intermediate_dim, dropout=self.dropout,
            attention_dropout=self.attention_dropout, activation_dropout=self.activation_dropout,
            activation=self.activation, scale_embedding=self.scale_embedding,
            max_length=self.max_length, output_bias=self.output_bias, pad_id=self.pad_id,
            start_id=self.start_id, normalize_first=normalize_first,
            learned_positions=learned_positions, embedding_norm=embedding_norm,
            target_vocabulary_size=target_vocabulary_size, sinusoids=sinusoids or {},
            dtype=self.dtype,
        )  # fmt: skip
        return parts.build(self.name)


@dataclass(frozen=True, kw_only=True)
class EncoderDecoder(Blocks):
    """The parts of a model, by the arguments of its builder, see `bart`.

    Attributes:
        learned_positions: bool, learned positions (True), or sinusoids, sines first.
        sinusoids: dict, more arguments of `PositionalEncoding`.
        embedding_norm: bool, whether the sum of embedding and position is normalised.
        pad_id, start_id: int, see `bart`. The model records these, not None as given to `marian`.
    """

    vocabulary_size: int
    dim: int
    scale_embedding: bool
    max_length: int
    output_bias: bool
    pad_id: int
    start_id: int | None
    target_vocabulary_size: int | None = None
    learned_positions: bool = False
    embedding_norm: bool = False
    sinusoids: Mapping[str, Any] = field(default_factory=dict)
    initializer: Initializer = field(
        default_factory=lambda: keras.initializers.RandomNormal(stddev=0.02)
    )

    def build(self, name: str) -> Model:
        """The model from `source` and `target` to logits; pre-norm stacks end in a norm."""
        if self.num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {self.num_layers}")
        recorded = {"pad_id": self.pad_id, "start_id": self.start_id}
        if self.target_vocabulary_size is None:
            tables = (self._embedding(self.vocabulary_size, "embedding"),) * 2
        else:
            tables = (
                self._embedding(self.vocabulary_size, "source_embedding"),
                self._embedding(self.target_vocabulary_size, "target_embedding"),
            )
        source = keras.Input((None,), dtype="int32", name="source")
        target = keras.Input((None,), dtype="int32", name="target")
        x = self._with_positions(tables[0](source), "encoder")
        for block in self.encoders:
            x = self.encoder_block(block)(x)
        x = self._norm(x, "encoder_norm") if self.normalize_first else x
        kept: Arguments = {"arguments": recorded, "dtype": self.dtype}
        context = Marker("encoded", embedding=tables[0].name, blocks=self.encoders, **kept)(x)

        # An operation drops the padding mask: the start token may be the padding id.
        x = self._with_positions(ops.copy(tables[1](target)), "decoder")
        for block in self.decoders:
            x = self.decoder_block(block)(x, context)
        x = self._norm(x, "decoder_norm") if self.normalize_first else x
        blocks = [*self.encoders, *self.decoders]
        x = Marker("features", embedding=tables[1].name, blocks=blocks, **kept)(x)
        x = Marker("head", "language_model", dtype=self.dtype)(x)
        x = tables[1](x, reverse=True)
        if self.output_bias:  # a buffer in the checkpoints: not trained
            x = layers.OutputBias(trainable=False, dtype=self.dtype, name="output_bias")(x)
        return Model({"source": source, "target": target}, x, name=name)

    def _embedding(self, size: int, name: str) -> layers.TokenEmbedding:
        return layers.TokenEmbedding(
            size,
            self.dim,
            scale=self.scale_embedding,
            mask_id=self.pad_id,
            padding="ends",
            embeddings_initializer=self.initializer,
            dtype=self.dtype,
            name=name,
        )

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return layers.LayerNormalization(epsilon=1e-5, dtype=self.dtype, name=name)(x)

    def _with_positions(self, x: Tensor, stack: str) -> Tensor:
        """Adds positions to embedded tokens."""
        options: Arguments = {"dtype": self.dtype, "name": f"{stack}_positions"}
        if self.learned_positions:
            x = layers.PositionEmbedding(
                self.max_length, initializer=self.initializer, offset=2, **options
            )(x)
        else:
            x = layers.PositionalEncoding(interleaved=False, **self.sinusoids, **options)(x)
        if self.embedding_norm:
            x = self._norm(x, f"{stack}_embedding_norm")
        return layers.Dropout(self.dropout, dtype=self.dtype, name=f"{stack}_dropout")(x)
