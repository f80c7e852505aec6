"""The original Transformer: "Attention Is All You Need" (arXiv:1706.03762)."""

import keras

from keras_tfm import layers
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model

# Table 3 of the paper. Use: transformer(37000, **SIZES["base"]).
SIZES: dict[str, Arguments] = {
    "base": {
        "dim": 512, "num_layers": 6, "num_heads": 8, "intermediate_dim": 2048, "dropout": 0.1,
    },
    "big": {
        "dim": 1024, "num_layers": 6, "num_heads": 16, "intermediate_dim": 4096, "dropout": 0.3,
    },
}  # fmt: skip


@builder
def transformer(
    source_vocabulary_size: int,
    target_vocabulary_size: int | None = None,
    dim: int = 512,
    num_layers: int = 6,
    num_heads: int = 8,
    intermediate_dim: int = 2048,
    dropout: float = 0.1,
    activation: Activation = "relu",
    gated: bool = False,
    position: layers.AttentionPosition | None = None,
    layer_norm_epsilon: float = 1e-5,
    normalize_first: bool = False,
    final_norm: bool | None = None,
    share_embeddings: bool | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
    num_key_value_heads: int | None = None,
    name: str = "transformer",
    dtype: DType = None,
) -> Model:
    """The original encoder-decoder Transformer, from token ids to logits.

    Id 0 is padding in both sequences. For training, pass `target[:, :-1]` as the input and
    `target[:, 1:]` as the labels.

    Args:
        source_vocabulary_size: int, number of source ids.
        target_vocabulary_size: int, number of target ids (V). Default: `source_vocabulary_size`.
        num_layers: int, number of blocks in the encoder, and in the decoder.
        num_heads: int, number of attention heads (H).
        dropout: float, dropout rate after each sublayer, of the sum of embedding and position, and
            of the attention weights.
        gated: bool, gated feed-forward networks; SwiGLU with activation "silu" (arXiv:2002.05202).
        position: `AttentionPosition`, the part of every self-attention, such as
            `RotaryEmbedding()`, used instead of adding sinusoidal positions to the embeddings.
        final_norm: bool, one more normalisation after each stack. Default: `normalize_first`. The
            paper's post-norm model has none; `torch.nn.Transformer` always has it.
        share_embeddings: bool, one table for source, target and output, as in the paper. Default:
            True if both vocabularies have the same size. Otherwise source and target have separate
            tables. The output always shares the target's table and has no bias.
        head_dim: int, width of a head's queries and keys (K). Default: D / H.
        value_dim: int, width of a head's values. Default: `head_dim`.
        num_key_value_heads: int, number of key and value heads (G). Must divide H. Default: H.

    Returns:
        A functional model from `source` (B, S) and `target` (B, T), int32, to logits (B, T, V).

    Raises:
        ValueError: an argument out of range; `share_embeddings=True` with vocabularies of different
            sizes; `num_heads` does not divide `dim` and `head_dim` is not given.

    Example:

    >>> from keras_tfm.models import transformer
    >>> model = transformer(11, 13, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> [x.name for x in model.inputs], model.output.shape
    (['source', 'target'], (None, None, 13))
    """
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1, got {num_layers}")
    if target_vocabulary_size is None:
        target_vocabulary_size = source_vocabulary_size
    if share_embeddings is None:
        share_embeddings = source_vocabulary_size == target_vocabulary_size
    if share_embeddings and source_vocabulary_size != target_vocabulary_size:
        raise ValueError(
            "share_embeddings=True needs vocabularies of the same size, got "
            f"{source_vocabulary_size} and {target_vocabulary_size}"
        )
    if final_norm is None:
        final_norm = normalize_first
    attention: Arguments = {
        "head_dim": head_dim,
        "value_dim": value_dim,
        "num_key_value_heads": num_key_value_heads,
        "dropout": dropout,
        "dtype": dtype,
    }

    def parts(causal: bool) -> Arguments:
        """The arguments shared by encoder and decoder blocks."""
        return {
            "self_attention": layers.MultiHeadSelfAttention(
                num_heads, causal=causal, position=position, name="self_attention", **attention
            ),
            "feed_forward": layers.FeedForward(
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

    def embedding(size: int, name: str) -> layers.TokenEmbedding:
        return layers.TokenEmbedding(size, dim, scale=True, mask_zero=True, dtype=dtype, name=name)

    def norm(name: str) -> keras.layers.Layer:
        return layers.LayerNormalization(epsilon=layer_norm_epsilon, dtype=dtype, name=name)

    if share_embeddings:
        source_embedding = target_embedding = embedding(source_vocabulary_size, "embedding")
    else:
        source_embedding = embedding(source_vocabulary_size, "source_embedding")
        target_embedding = embedding(target_vocabulary_size, "target_embedding")
    if position is None:
        positions = layers.PositionalEncoding(dropout=dropout, dtype=dtype, name="positions")
    else:
        positions = layers.Dropout(dropout, dtype=dtype, name="embedding_dropout")

    source = keras.Input((None,), dtype="int32", name="source")
    x = positions(source_embedding(source))
    for i in range(num_layers):
        x = layers.TransformerEncoderBlock(**parts(causal=False), name=f"encoder_{i}")(x)
    encoders = [f"encoder_{i}" for i in range(num_layers)]
    x = norm("encoder_norm")(x) if final_norm else x
    context = Marker("encoded", embedding=source_embedding.name, blocks=encoders, dtype=dtype)(x)

    target = keras.Input((None,), dtype="int32", name="target")
    x = positions(target_embedding(target))
    for i in range(num_layers):
        x = layers.TransformerDecoderBlock(
            **parts(causal=True),
            cross_attention=layers.MultiHeadCrossAttention(
                num_heads, name="cross_attention", **attention
            ),
            name=f"decoder_{i}",
        )(x, context)
    x = norm("decoder_norm")(x) if final_norm else x
    blocks = [*encoders, *(f"decoder_{i}" for i in range(num_layers))]
    x = Marker("features", embedding=target_embedding.name, blocks=blocks, dtype=dtype)(x)
    x = Marker("head", "language_model", dtype=dtype)(x)
    logits = target_embedding(x, reverse=True)
    return Model({"source": source, "target": target}, logits, name=name)
