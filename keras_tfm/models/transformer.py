"""The original Transformer: "Attention Is All You Need" (arXiv:1706.03762)."""

from typing import Any

import keras

from keras_tfm.layers import (
    AttentionPosition,
    Dropout,
    FeedForward,
    LayerNormalization,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    PositionalEncoding,
    TokenEmbedding,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
)
from keras_tfm.models.identity import EncodedMarker, FeaturesMarker, HeadMarker
from keras_tfm.models.model import Model

# Table 3 of the paper. transformer(37000, **SIZES["base"]).
SIZES: dict[str, dict[str, Any]] = {
    "base": {
        "dim": 512, "num_layers": 6, "num_heads": 8, "intermediate_dim": 2048, "dropout": 0.1,
    },
    "big": {
        "dim": 1024, "num_layers": 6, "num_heads": 16, "intermediate_dim": 4096, "dropout": 0.3,
    },
}  # fmt: skip


def transformer(
    source_vocabulary_size: int,
    target_vocabulary_size: int | None = None,
    dim: int = 512,
    num_layers: int = 6,
    num_heads: int = 8,
    intermediate_dim: int = 2048,
    dropout: float = 0.1,
    activation: Any = "relu",
    gated: bool = False,
    position: AttentionPosition | None = None,
    layer_norm_epsilon: float = 1e-5,
    normalize_first: bool = False,
    final_norm: bool | None = None,
    share_embeddings: bool | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
    num_key_value_heads: int | None = None,
    name: str = "transformer",
    dtype: Any = None,
) -> Model:
    """An encoder-decoder Transformer, from token ids to logits.

    Id 0 is padding in both sequences. The decoder sees the target shifted: train it on
    `target[:, :-1]` to predict `target[:, 1:]`.

    Args:
        source_vocabulary_size: number of source ids.
        target_vocabulary_size: number of target ids; as the source's by default.
        dim: D.
        num_layers: blocks in the encoder, and as many in the decoder.
        num_heads: H.
        intermediate_dim: F.
        dropout: rate after each sublayer, after the sum of embedding and position, and of the
            attention weights.
        activation: of the feed-forward networks.
        gated: whether they have a gate; with activation "silu" SwiGLU (arXiv:2002.05202).
        position: a part of every self-attention, `RotaryEmbedding()` for instance, in the place of
            the sinusoids that are added to the embeddings.
        layer_norm_epsilon: of every normalisation.
        normalize_first: pre-norm blocks.
        final_norm: one more normalisation after each stack; as `normalize_first` by default
            (the paper's post-norm model has none, `torch.nn.Transformer` always has them).
        share_embeddings: one table for source, target and output, as in the paper; by default
            where both vocabularies have one size. Otherwise source and target have a table each.
            The output is tied to the target's in both cases and has no bias.
        head_dim, value_dim, num_key_value_heads: as in `MultiHeadSelfAttention`.
        name: the model's name.
        dtype: a dtype or dtype policy for every layer.

    Returns:
        A functional model of `source` (B, S) and `target` (B, T), int32, which gives logits
        (B, T, V).

    Example:

    >>> from keras_tfm.models import transformer
    >>> model = transformer(11, 13, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> [x.name for x in model.inputs], model.output.shape
    (['source', 'target'], (None, None, 13))
    """
    arguments = dict(locals())
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1, got {num_layers}")
    if target_vocabulary_size is None:
        target_vocabulary_size = source_vocabulary_size
    if share_embeddings is None:
        share_embeddings = source_vocabulary_size == target_vocabulary_size
    if share_embeddings and source_vocabulary_size != target_vocabulary_size:
        raise ValueError(
            f"share_embeddings=True needs vocabularies of one size, got {source_vocabulary_size} "
            f"and {target_vocabulary_size}"
        )
    if final_norm is None:
        final_norm = normalize_first
    attention: dict[str, Any] = {
        "head_dim": head_dim,
        "value_dim": value_dim,
        "num_key_value_heads": num_key_value_heads,
        "dropout": dropout,
        "dtype": dtype,
    }

    def parts(causal: bool) -> dict[str, Any]:
        """The parts that the blocks of both stacks have."""
        return {
            "self_attention": MultiHeadSelfAttention(
                num_heads, causal=causal, position=position, name="self_attention", **attention
            ),
            "feed_forward": FeedForward(
                intermediate_dim,
                activation=activation,
                gated=gated,
                dtype=dtype,
                name="feed_forward",
            ),
            "dropout": dropout,
            "layer_norm_epsilon": layer_norm_epsilon,
            "normalize_first": normalize_first,
            "dtype": dtype,
        }

    def embedding(size: int, name: str) -> TokenEmbedding:
        return TokenEmbedding(size, dim, scale=True, mask_zero=True, dtype=dtype, name=name)

    def norm(name: str) -> keras.layers.Layer:
        return LayerNormalization(epsilon=layer_norm_epsilon, dtype=dtype, name=name)

    if share_embeddings:
        source_embedding = target_embedding = embedding(source_vocabulary_size, "embedding")
    else:
        source_embedding = embedding(source_vocabulary_size, "source_embedding")
        target_embedding = embedding(target_vocabulary_size, "target_embedding")
    if position is None:
        positions = PositionalEncoding(dropout=dropout, dtype=dtype, name="positions")
    else:
        positions = Dropout(dropout, dtype=dtype, name="embedding_dropout")

    source = keras.Input((None,), dtype="int32", name="source")
    x = positions(source_embedding(source))
    for i in range(num_layers):
        x = TransformerEncoderBlock(**parts(causal=False), name=f"encoder_{i}")(x)
    encoders = [f"encoder_{i}" for i in range(num_layers)]
    context = EncodedMarker(
        "transformer",
        arguments,
        source_embedding.name,
        encoders,
        dtype=dtype,
        name="encoded_marker",
    )(norm("encoder_norm")(x) if final_norm else x)

    target = keras.Input((None,), dtype="int32", name="target")
    x = positions(target_embedding(target))
    for i in range(num_layers):
        x = TransformerDecoderBlock(
            **parts(causal=True),
            cross_attention=MultiHeadCrossAttention(num_heads, name="cross_attention", **attention),
            name=f"decoder_{i}",
        )(x, context)
    x = FeaturesMarker(
        "transformer",
        arguments,
        target_embedding.name,
        [*encoders, *(f"decoder_{i}" for i in range(num_layers))],
        dtype=dtype,
        name="features_marker",
    )(norm("decoder_norm")(x) if final_norm else x)
    x = HeadMarker("language_model", dtype=dtype, name="head_marker")(x)
    logits = target_embedding(x, reverse=True)
    return Model({"source": source, "target": target}, logits, name=name)
