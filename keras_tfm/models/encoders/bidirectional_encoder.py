"""The encoder that BERT and its successors share: embeddings, post-norm blocks, pooler."""

from dataclasses import dataclass
from typing import Any

import keras

from keras_tfm import layers
from keras_tfm.layers.types import Arguments, Tensor
from keras_tfm.models.heads.head_base import token
from keras_tfm.models.identity import Marker
from keras_tfm.models.model import Model
from keras_tfm.models.shared_arguments import EncoderArguments


@dataclass(frozen=True, kw_only=True)
class BidirectionalEncoder(EncoderArguments):
    """The parts of an encoder, by the arguments of its builder, see `bert`.

    Attributes:
        embedding_dim: int, width of the embeddings (E). Default: `dim`.
        num_segments: int, number of segments, 0 for no segments.
        segments: bool, whether the model has the input `segments`.
        pad_id: int, id of padding tokens.
        position_offset: int, row of the position table for the first position.
    """

    vocabulary_size: int
    max_length: int
    embedding_dim: int | None = None
    num_segments: int = 0
    segments: bool = False
    pad_id: int = 0
    position_offset: int = 0

    def build(
        self, name: str, shared_block: bool = False, pooler: bool = False, **attention: Any
    ) -> Model:
        """The model: features (B, T, D), or with a pooler "features" and "pooled".

        Args:
            name: str, the model's name.
            shared_block: bool, whether all blocks share the weights of one, as in ALBERT.
            pooler: bool, whether there is an output "pooled".
            attention: further arguments of each block's `MultiHeadSelfAttention`.
        """
        inputs, x = self.embed()
        x = self.normalize(x)
        if shared_block or self.embedding_dim not in (None, self.dim):
            x = self.project(x)
        names = ["encoder"] if shared_block else [f"encoder_{i}" for i in range(self.num_layers)]
        blocks = [self.block(name, **attention) for name in names]
        for i in range(self.num_layers):
            x = blocks[i % len(blocks)](x)
        x = Marker("features", embedding="embedding", blocks=names, dtype=self.dtype)(x)
        if not pooler:
            return Model(inputs, x, name=name)
        return Model(inputs, {"features": x, "pooled": self.pool(x)}, name=name)

    def embed(self, positions: bool = True) -> tuple[dict[str, Tensor], Tensor]:
        """The inputs by name, ids (B, T), and the sum of their embeddings (B, T, E).

        Args:
            positions: bool, whether learned absolute positions are added.
        """
        if self.num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {self.num_layers}")
        tokens = keras.Input((None,), dtype="int32", name="tokens")
        inputs = {"tokens": tokens}
        x = self.embed_tokens(tokens)
        if self.segments:
            inputs["segments"] = keras.Input((None,), dtype="int32", name="segments")
        if self.num_segments:
            table = layers.SegmentEmbedding(
                self.num_segments, dtype=self.dtype, name="segment_embedding"
            )
            x = table(x, inputs.get("segments"))
        if positions:
            x = layers.PositionEmbedding(
                self.max_length, offset=self.position_offset, dtype=self.dtype, name="positions"
            )(x)
        return inputs, x

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Ids (B, T) -> vectors (B, T, E), to which segments and positions are added."""
        return layers.TokenEmbedding(
            self.vocabulary_size,
            self.embedding_dim or self.dim,
            mask_id=self.pad_id,
            padding="ends",
            embeddings_initializer=initializer(),
            dtype=self.dtype,
            name="embedding",
        )(tokens)

    def normalize(self, x: Tensor) -> Tensor:
        """Layer normalisation and dropout of the embeddings: (B, T, E) -> the same."""
        x = layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, dtype=self.dtype, name="embedding_norm"
        )(x)
        return layers.Dropout(self.dropout, dtype=self.dtype, name="embedding_dropout")(x)

    def project(self, x: Tensor, use_bias: bool = True) -> Tensor:
        """(B, T, E) -> (B, T, D)."""
        return keras.layers.Dense(
            self.dim,
            use_bias=use_bias,
            kernel_initializer=initializer(),
            dtype=self.dtype,
            name="embedding_projection",
        )(x)

    def block(
        self, name: str, feed_forward: layers.FeedForward | None = None, **attention: Any
    ) -> layers.TransformerEncoderBlock:
        """One post-norm block.

        Args:
            name: str, name of the block.
            feed_forward: its feed-forward network, if it is another than BERT's.
            attention: further arguments of its `MultiHeadSelfAttention`.
        """
        network: Arguments = {"feed_forward": feed_forward}
        if feed_forward is None:
            network = {"intermediate_dim": self.intermediate_dim, "activation": self.activation}
        self_attention = layers.MultiHeadSelfAttention(
            self.num_heads,
            dropout=self.attention_rate,
            kernel_initializer=initializer(),
            dtype=self.dtype,
            name="self_attention",
            **attention,
        )
        return layers.TransformerEncoderBlock(
            **network,
            self_attention=self_attention,
            dropout=self.dropout,
            layer_norm_epsilon=self.layer_norm_epsilon,
            kernel_initializer=initializer(),
            dtype=self.dtype,
            name=name,
        )

    def pool(self, x: Tensor) -> Tensor:
        """A dense layer with tanh on the first token: (B, T, D) -> (B, D)."""
        dense = keras.layers.Dense(
            self.dim,
            activation="tanh",
            kernel_initializer=initializer(),
            dtype=self.dtype,
            name="pooler",
        )
        return Marker("pooled", dtype=self.dtype)(dense(token(x, 0)))


def initializer() -> keras.initializers.Initializer:
    """BERT's initializer of every kernel."""
    return keras.initializers.TruncatedNormal(stddev=0.02)
