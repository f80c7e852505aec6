"""BERT: "Pre-training of Deep Bidirectional Transformers" (arXiv:1810.04805)."""

from typing import Any

import keras

from keras_tfm.layers import (
    Dropout,
    LayerNormalization,
    MultiHeadSelfAttention,
    PositionEmbedding,
    SegmentEmbedding,
    TokenEmbedding,
    TransformerEncoderBlock,
)
from keras_tfm.models.identity import FeaturesMarker, PooledMarker
from keras_tfm.models.model import Model

# "base" and "large": section 3 of the paper; the others: table 1 of "Well-Read Students Learn
# Better" (arXiv:1908.08962), where a head has 64 channels and F is 4 D throughout.
# bert(30522, **SIZES["base"]).
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"dim": 128, "num_layers": 2, "num_heads": 2, "intermediate_dim": 512},
    "mini": {"dim": 256, "num_layers": 4, "num_heads": 4, "intermediate_dim": 1024},
    "small": {"dim": 512, "num_layers": 4, "num_heads": 8, "intermediate_dim": 2048},
    "medium": {"dim": 512, "num_layers": 8, "num_heads": 8, "intermediate_dim": 2048},
    "base": {"dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072},
    "large": {"dim": 1024, "num_layers": 24, "num_heads": 16, "intermediate_dim": 4096},
}


def bert(
    vocabulary_size: int,
    dim: int = 768,
    num_layers: int = 12,
    num_heads: int = 12,
    intermediate_dim: int = 3072,
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    activation: Any = "gelu",
    layer_norm_epsilon: float = 1e-12,
    max_length: int = 512,
    num_segments: int = 2,
    segments: bool = True,
    name: str = "bert",
    dtype: Any = None,
) -> Model:
    """BERT's encoder, from token ids to features; a head of `keras_tfm.models` makes the rest.

    Id 0 is padding. `masked_language_model`, `next_sentence`, `sequence_classifier`,
    `token_classifier` and `question_answering` put a head on it.

    Args:
        vocabulary_size: V.
        dim: D.
        num_layers: blocks.
        num_heads: H.
        intermediate_dim: F.
        dropout: rate after each sublayer and after the embeddings.
        attention_dropout: rate of the dropout of the attention weights; `dropout` by default.
        activation: of the feed-forward networks.
        layer_norm_epsilon: of every normalisation.
        max_length: how many positions the table holds.
        num_segments: how many segments the table holds.
        segments: whether the model takes the input `segments`; if not, every token is of segment 0,
            and one text at a time is read. The weights are the same.
        name: the model's name.
        dtype: a dtype or dtype policy for every layer.

    Returns:
        A functional model of `tokens` (B, T) and, if so asked, `segments` (B, T), int32, which
        gives "features" (B, T, D) and "pooled" (B, D), a dense layer with tanh over the first
        token's features.

    Example:

    >>> from keras_tfm.models import bert, sequence_classifier
    >>> model = bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> list(model.input), model.output["features"].shape
    (['tokens', 'segments'], (None, None, 8))
    >>> sequence_classifier(model, num_classes=3).output.shape
    (None, 3)
    """
    arguments = dict(locals())
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1, got {num_layers}")
    initializer = keras.initializers.TruncatedNormal(stddev=0.02)
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    inputs = {"tokens": tokens}
    x = TokenEmbedding(
        vocabulary_size,
        dim,
        mask_zero=True,
        embeddings_initializer=initializer,
        dtype=dtype,
        name="embedding",
    )(tokens)
    segment_embedding = SegmentEmbedding(num_segments, dtype=dtype, name="segment_embedding")
    if segments:
        inputs["segments"] = keras.Input((None,), dtype="int32", name="segments")
    x = segment_embedding(x, inputs.get("segments"))
    x = PositionEmbedding(max_length, dtype=dtype, name="positions")(x)
    x = LayerNormalization(epsilon=layer_norm_epsilon, dtype=dtype, name="embedding_norm")(x)
    x = Dropout(dropout, dtype=dtype, name="embedding_dropout")(x)
    for i in range(num_layers):
        attention = MultiHeadSelfAttention(
            num_heads,
            dropout=dropout if attention_dropout is None else attention_dropout,
            kernel_initializer=initializer,
            dtype=dtype,
            name="self_attention",
        )
        x = TransformerEncoderBlock(
            intermediate_dim,
            self_attention=attention,
            dropout=dropout,
            activation=activation,
            layer_norm_epsilon=layer_norm_epsilon,
            kernel_initializer=initializer,
            dtype=dtype,
            name=f"encoder_{i}",
        )(x)
    x = FeaturesMarker(
        "bert",
        arguments,
        embedding="embedding",
        blocks=[f"encoder_{i}" for i in range(num_layers)],
        dtype=dtype,
        name="features_marker",
    )(x)
    pooler = keras.layers.Dense(
        dim, activation="tanh", kernel_initializer=initializer, dtype=dtype, name="pooler"
    )
    pooled = PooledMarker(dtype=dtype, name="pooled_marker")(pooler(x[:, 0]))
    return Model(inputs, {"features": x, "pooled": pooled}, name=name)
