"""MobileBERT: "a Compact Task-Agnostic BERT for Resource-Limited Devices" (arXiv:2004.02984)."""

from dataclasses import dataclass

import keras

from keras_tfm import layers
from keras_tfm.arguments import check_integer
from keras_tfm.layers.types import Activation, Arguments, DType, Tensor
from keras_tfm.models.encoders.bidirectional_encoder import BidirectionalEncoder, initializer
from keras_tfm.models.heads.head_base import token
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model

# Table 1 of the paper. mobilebert(30522, **SIZES["base"]).
SIZES: dict[str, Arguments] = {
    "base": {
        "dim": 512, "num_layers": 24, "num_heads": 4, "intermediate_dim": 512,
        "embedding_dim": 128, "bottleneck_dim": 128, "num_feed_forward": 4,
    },
}  # fmt: skip
# Two norms of `transformers` have the default of PyTorch instead of the configuration's epsilon.
_FIXED_EPSILON = 1e-5


@dataclass(frozen=True, kw_only=True)
class _Parts(BidirectionalEncoder):
    """What differs from BERT: the embedding, the norms and the blocks."""

    trigram: bool
    bottleneck_dim: int | None
    query_key_bottleneck: bool
    num_feed_forward: int
    layer_norm: bool

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Ids (B, T) -> (B, T, D)."""
        x = super().embed_tokens(tokens)
        if self.trigram:
            x = layers.ConcatenateNeighbors(dtype=self.dtype, name="trigram")(x)
        return self.project(x) if x.shape[-1] != self.dim or self.trigram else x

    def norm(self, name: str = "norm", epsilon: float | None = None) -> keras.Layer:
        """A norm, or what is in its place."""
        if not self.layer_norm:
            return layers.ElementwiseAffine(dtype=self.dtype, name=name)
        epsilon = self.layer_norm_epsilon if epsilon is None else epsilon
        return layers.LayerNormalization(epsilon=epsilon, dtype=self.dtype, name=name)

    def normalize(self, x: Tensor) -> Tensor:
        """The norm and the dropout of the embeddings: (B, T, D) -> the same."""
        x = self.norm("embedding_norm", _FIXED_EPSILON)(x)
        return layers.Dropout(self.dropout, dtype=self.dtype, name="embedding_dropout")(x)

    def mobile_block(self, name: str) -> layers.BottleneckEncoderBlock:
        """One block."""
        # With a bottleneck, dropout is at the end of the block.
        inner = self.dropout if self.bottleneck_dim is None else 0.0
        last = self.norm(epsilon=_FIXED_EPSILON)
        return layers.BottleneckEncoderBlock(
            bottleneck_dim=self.bottleneck_dim,
            query_key_bottleneck=self.query_key_bottleneck,
            num_feed_forward=self.num_feed_forward,
            norm=self.norm(),
            self_attention=layers.MultiHeadSelfAttention(
                self.num_heads,
                dropout=self.attention_rate,
                kernel_initializer=initializer(),
                dtype=self.dtype,
                name="self_attention",
            ),
            feed_forward=layers.FeedForward(
                self.intermediate_dim,
                activation=self.activation,
                kernel_initializer=initializer(),
                dtype=self.dtype,
                name="feed_forward",
            ),
            residual={
                "self_attention": layers.Residual(
                    sum_norm=self.norm(), dropout=inner, dtype=self.dtype
                ),
                "feed_forward": layers.Residual(sum_norm=last, dropout=inner, dtype=self.dtype),
            },
            stacked_residual=layers.Residual(sum_norm=self.norm(), dtype=self.dtype),
            output_residual=layers.Residual(
                sum_norm=self.norm(), dropout=self.dropout, dtype=self.dtype
            ),
            kernel_initializer=initializer(),
            dtype=self.dtype,
            name=name,
        )


@builder
def mobilebert(
    vocabulary_size: int,
    dim: int = 512,
    num_layers: int = 24,
    num_heads: int = 4,
    intermediate_dim: int = 512,
    embedding_dim: int = 128,
    trigram: bool = True,
    bottleneck_dim: int | None = 128,
    query_key_bottleneck: bool = True,
    num_feed_forward: int = 4,
    layer_norm: bool = False,
    dropout: float = 0.0,
    attention_dropout: float | None = 0.1,
    activation: Activation = "relu",
    layer_norm_epsilon: float = 1e-12,
    max_length: int = 512,
    num_segments: int = 2,
    segments: bool = True,
    pad_id: int = 0,
    pooler: bool = True,
    pooler_dense: bool = True,
    name: str = "mobilebert",
    dtype: DType = None,
) -> Model:
    """MobileBERT's encoder, from token ids to features, without a head.

    Thin and deep: blocks of `bottleneck_dim` channels between projections from and to `dim`, each
    with several feed-forward networks, and a learned scale and offset in place of each norm.

    With `trigram`, a token's vector is made of three tokens' embeddings, those of padding included:
    the last token of a text has other features with padding after it than at the end of the row, as
    in `transformers`. Pad as in training.

    Args:
        num_heads: int, number of attention heads (H). Must divide `bottleneck_dim`, or `dim`
            without a bottleneck.
        embedding_dim: int, width of the embeddings (E).
        trigram: bool, whether the embeddings of the next token, the token and the previous one are
            projected together to `dim`. False: that of the token, if its width is another.
        bottleneck_dim: int, width of attention and feed-forward networks. None: `dim`, without
            bottlenecks.
        query_key_bottleneck: bool, whether queries and keys have a bottleneck of their own, and
            values are projected from the input of the block. False: all three are projected from
            the bottleneck of the block.
        num_feed_forward: int, number of feed-forward networks in a block.
        layer_norm: bool, whether norms are layer normalisations. False: `ElementwiseAffine`, the
            paper's NoNorm.
        dropout: float, dropout rate after the embeddings and after each block.
        layer_norm_epsilon: float, epsilon of the layer normalisations, but of that of the
            embeddings and after the last feed-forward network of a block, which have 1e-5.
        pooler_dense: bool, whether the pooler is a dense layer with tanh on the first token's
            features. False: these features themselves.

    Returns:
        A functional model from `tokens` (B, T) and `segments` (B, T), int32, to a dict of
        "features" (B, T, D) and "pooled" (B, D); without a pooler to the features alone.

    Raises:
        ValueError: an argument out of range, or `num_heads` does not divide the width of attention.

    Example:

    >>> from keras_tfm.models import mobilebert, sequence_classifier
    >>> sizes = {"dim": 12, "num_heads": 2, "intermediate_dim": 16, "embedding_dim": 6}
    >>> model = mobilebert(11, num_layers=1, bottleneck_dim=8, **sizes)
    >>> sequence_classifier(model, num_classes=3).output.shape
    (None, 3)
    """
    check_integer("embedding_dim", embedding_dim)
    parts = _Parts(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, dropout=dropout, attention_dropout=attention_dropout,
        activation=activation, layer_norm_epsilon=layer_norm_epsilon, max_length=max_length,
        embedding_dim=embedding_dim, num_segments=num_segments, segments=segments, pad_id=pad_id,
        trigram=trigram, bottleneck_dim=bottleneck_dim, query_key_bottleneck=query_key_bottleneck,
        num_feed_forward=num_feed_forward, layer_norm=layer_norm, dtype=dtype,
    )  # fmt: skip
    inputs, x = parts.embed()
    x = parts.normalize(x)
    blocks = [parts.mobile_block(f"encoder_{i}") for i in range(num_layers)]
    for block in blocks:
        x = block(x)
    names = [block.name for block in blocks]
    x = Marker("features", embedding="embedding", blocks=names, dtype=dtype)(x)
    if not pooler:
        return Model(inputs, x, name=name)
    pooled = parts.pool(x) if pooler_dense else Marker("pooled", dtype=dtype)(token(x, 0))
    return Model(inputs, {"features": x, "pooled": pooled}, name=name)
