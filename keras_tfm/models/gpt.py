"""GPT: "Improving Language Understanding by Generative Pre-Training", and its successors."""

from typing import Any

import keras

from keras_tfm.layers import (
    LayerNormalization,
    MultiHeadSelfAttention,
    PositionEmbedding,
    TokenEmbedding,
    TransformerDecoderBlock,
    gelu_tanh,
)
from keras_tfm.models.identity import FeaturesMarker, HeadMarker
from keras_tfm.models.model import Model

_GPT2: dict[str, Any] = {"max_length": 1024}
_GPT3: dict[str, Any] = {"max_length": 2048}

# "gpt1": Radford et al. 2018, section 4.1. "gpt2...": table 2 of "Language Models are Unsupervised
# Multitask Learners" (Radford et al. 2019), whose heads have 64 channels. "gpt3...": table 2.1 of
# "Language Models are Few-Shot Learners" (arXiv:2005.14165), with dense attention in all layers. In
# two rows of that table the heads times their width are not D; the parameter counts of the table
# match "xl" with 16 heads (the table has D 2048, 24 heads of 128) and "13b" with D 5120 (the table
# has D 5140, 40 heads of 128). Use: gpt(50257, **SIZES["gpt2"]).
SIZES: dict[str, dict[str, Any]] = {
    "gpt1": {
        "dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072,
        "max_length": 512, "normalize_first": False,
    },
    "gpt2": {"dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072, **_GPT2},
    "gpt2-medium": {
        "dim": 1024, "num_layers": 24, "num_heads": 16, "intermediate_dim": 4096, **_GPT2,
    },
    "gpt2-large": {
        "dim": 1280, "num_layers": 36, "num_heads": 20, "intermediate_dim": 5120, **_GPT2,
    },
    "gpt2-xl": {"dim": 1600, "num_layers": 48, "num_heads": 25, "intermediate_dim": 6400, **_GPT2},
    "gpt3-small": {
        "dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072, **_GPT3,
    },
    "gpt3-medium": {
        "dim": 1024, "num_layers": 24, "num_heads": 16, "intermediate_dim": 4096, **_GPT3,
    },
    "gpt3-large": {
        "dim": 1536, "num_layers": 24, "num_heads": 16, "intermediate_dim": 6144, **_GPT3,
    },
    "gpt3-xl": {"dim": 2048, "num_layers": 24, "num_heads": 16, "intermediate_dim": 8192, **_GPT3},
    "gpt3-2.7b": {
        "dim": 2560, "num_layers": 32, "num_heads": 32, "intermediate_dim": 10240, **_GPT3,
    },
    "gpt3-6.7b": {
        "dim": 4096, "num_layers": 32, "num_heads": 32, "intermediate_dim": 16384, **_GPT3,
    },
    "gpt3-13b": {
        "dim": 5120, "num_layers": 40, "num_heads": 40, "intermediate_dim": 20480, **_GPT3,
    },
    "gpt3-175b": {
        "dim": 12288, "num_layers": 96, "num_heads": 96, "intermediate_dim": 49152, **_GPT3,
    },
}  # fmt: skip


def gpt(
    vocabulary_size: int,
    dim: int = 768,
    num_layers: int = 12,
    num_heads: int = 12,
    intermediate_dim: int = 3072,
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    embedding_dropout: float | None = None,
    activation: Any = gelu_tanh,
    layer_norm_epsilon: float = 1e-5,
    normalize_first: bool = True,
    max_length: int = 1024,
    tie_output: bool = True,
    scale_scores: bool = True,
    scale_scores_by_layer: bool = False,
    name: str = "gpt",
    dtype: Any = None,
) -> Model:
    """GPT, a decoder-only language model: from token ids to logits of the next token.

    No id is padding: with causal attention, padding after a text does not change the text's logits.
    Pre-norm blocks followed by one more normalisation give GPT-2 and GPT-3, post-norm blocks the
    first GPT.

    Args:
        vocabulary_size: int, number of token ids (V).
        dim: int, width of the model (D).
        num_layers: int, number of blocks.
        num_heads: int, number of attention heads (H). Must divide `dim`.
        intermediate_dim: int, inner width of the feed-forward networks (F).
        dropout: float, dropout rate after each sublayer.
        attention_dropout: float, dropout rate of the attention weights. Default: `dropout`.
        embedding_dropout: float, dropout rate of the sum of token and position embedding. Default:
            `dropout`.
        activation: str or function, activation of the feed-forward networks.
        layer_norm_epsilon: float, epsilon of every normalisation.
        normalize_first: bool, pre-norm blocks (True) or post-norm blocks (False).
        max_length: int, maximum number of positions.
        tie_output: bool, whether the output layer shares the table of the token embedding.
        scale_scores: bool, whether attention scores are divided by sqrt(K).
        scale_scores_by_layer: bool, whether the scores of block i (from 0) are also divided by
            i + 1.
        name: str, the model's name.
        dtype: dtype or dtype policy of every layer. Default: the global policy.

    Returns:
        A functional model from `tokens` (B, T), int32, to logits (B, T, V).

    Raises:
        ValueError: an argument out of range, or `num_heads` does not divide `dim`.

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import gpt
    >>> model = gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=7)
    >>> generate(model, [[3, 4, 5]], max_length=6).tokens.shape
    (1, 6)
    """
    arguments = dict(locals())
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1, got {num_layers}")
    initializer = keras.initializers.RandomNormal(stddev=0.02)
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    embedding = TokenEmbedding(
        vocabulary_size, dim, embeddings_initializer=initializer, dtype=dtype, name="embedding"
    )
    x = PositionEmbedding(
        max_length,
        dropout=dropout if embedding_dropout is None else embedding_dropout,
        dtype=dtype,
        name="positions",
    )(embedding(tokens))
    for i in range(num_layers):
        scale = None if scale_scores else 1.0
        if scale_scores_by_layer:
            scale = ((dim // num_heads) ** -0.5 if scale is None else scale) / (i + 1)
        attention = MultiHeadSelfAttention(
            num_heads,
            causal=True,
            dropout=dropout if attention_dropout is None else attention_dropout,
            scale=scale,
            kernel_initializer=initializer,
            dtype=dtype,
            name="self_attention",
        )
        x = TransformerDecoderBlock(
            intermediate_dim,
            self_attention=attention,
            cross_attention=False,
            dropout=dropout,
            activation=activation,
            layer_norm_epsilon=layer_norm_epsilon,
            normalize_first=normalize_first,
            kernel_initializer=initializer,
            dtype=dtype,
            name=f"decoder_{i}",
        )(x)
    if normalize_first:
        x = LayerNormalization(epsilon=layer_norm_epsilon, dtype=dtype, name="decoder_norm")(x)
    x = FeaturesMarker(
        "gpt",
        arguments,
        embedding="embedding",
        blocks=[f"decoder_{i}" for i in range(num_layers)],
        dtype=dtype,
        name="features_marker",
    )(x)
    x = HeadMarker("language_model", dtype=dtype, name="head_marker")(x)
    if tie_output:
        logits = embedding(x, reverse=True)
    else:
        logits = keras.layers.Dense(
            vocabulary_size,
            use_bias=False,
            kernel_initializer=initializer,
            dtype=dtype,
            name="output",
        )(x)
    return Model(tokens, logits, name=name)
