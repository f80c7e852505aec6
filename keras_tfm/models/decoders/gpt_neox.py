"""GPT-NeoX (arXiv:2204.06745) and Pythia (arXiv:2304.01373)."""

from typing import Any

from keras_tfm.layers import (
    Dropout,
    FeedForward,
    LayerNormalization,
    MultiHeadSelfAttention,
    Residual,
    RotaryEmbedding,
    TransformerDecoderBlock,
)
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.decoders.causal_decoder import CausalDecoder, initializer
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model


def _size(dim: int, num_layers: int, num_heads: int) -> Arguments:
    sizes = {"dim": dim, "num_layers": num_layers, "num_heads": num_heads}
    return {**sizes, "intermediate_dim": 4 * dim}


# "20b": section 2.1 of the GPT-NeoX paper. "pythia...": table 1 of the Pythia paper, under the
# names of the released models. gpt_neox(50304, **SIZES["pythia-160m"]).
SIZES: dict[str, Arguments] = {
    "20b": _size(6144, 44, 64),
    "pythia-70m": _size(512, 6, 8),
    "pythia-160m": _size(768, 12, 12),
    "pythia-410m": _size(1024, 24, 16),
    "pythia-1b": _size(2048, 16, 8),
    "pythia-1.4b": _size(2048, 24, 16),
    "pythia-2.8b": _size(2560, 32, 32),
    "pythia-6.9b": _size(4096, 32, 32),
    "pythia-12b": _size(5120, 36, 40),
}


@builder
def gpt_neox(
    vocabulary_size: int,
    dim: int = 768,
    num_layers: int = 12,
    num_heads: int = 12,
    intermediate_dim: int = 3072,
    activation: Activation = "gelu",
    layer_norm_epsilon: float = 1e-5,
    rope_theta: float = 10000.0,
    rotary_dim: int | None = None,
    rope_scaling: Any = None,
    parallel: bool = True,
    attention_bias: bool = True,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    tie_output: bool = False,
    max_length: int = 2048,
    pad_id: int | None = None,
    name: str = "gpt_neox",
    dtype: DType = None,
) -> Model:
    """GPT-NeoX and Pythia, a decoder-only language model: from token ids to logits of the next.

    GPT-2's blocks with rotary positions of a quarter of each head, and with attention and
    feed-forward network side by side: x + attention(norm(x)) + feed_forward(norm(x)).

    Args:
        activation: str or function, activation of the feed-forward networks.
        num_heads: int, number of attention heads (H). Must divide D.
        rotary_dim: int, even, number of dimensions of a head that are rotated. Default: a quarter
            of the head.
        parallel: bool, whether both sublayers of a block read its input. Default: they do; if not,
            the second reads the output of the first.
        dropout: float, dropout rate after each sublayer and after the embeddings.
        attention_dropout: float, dropout rate of the attention weights.

    Returns:
        A functional model from `tokens` (B, T), int32, to logits (B, T, V).

    Raises:
        ValueError: an argument out of range; `num_heads` does not divide `dim`, or a quarter of a
            head is no even number and `rotary_dim` is not given.

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import gpt_neox
    >>> model = gpt_neox(11, dim=16, num_layers=1, num_heads=2, intermediate_dim=32)
    >>> generate(model, [[3, 4, 5]], max_length=6).tokens.shape
    (1, 6)
    """
    parts = CausalDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, tie_output=tie_output,
        pad_id=pad_id, name=name, dtype=dtype,
    )  # fmt: skip
    rotated = dim // num_heads // 4 if rotary_dim is None else rotary_dim

    def norm(name: str) -> LayerNormalization:
        return LayerNormalization(epsilon=layer_norm_epsilon, dtype=dtype, name=name)

    def block(i: int, window: int | None) -> TransformerDecoderBlock:
        position = RotaryEmbedding(
            rope_theta, rotary_dim=rotated, scaling=rope_scaling, dtype=dtype
        )
        return TransformerDecoderBlock(
            self_attention=MultiHeadSelfAttention(
                num_heads, causal=True, dropout=attention_dropout, use_bias=attention_bias,
                position=position, kernel_initializer=initializer(), dtype=dtype,
                name="self_attention",
            ),
            cross_attention=False,
            feed_forward=FeedForward(
                intermediate_dim, activation=activation, kernel_initializer=initializer(),
                dtype=dtype, name="feed_forward",
            ),
            residual=Residual(input_norm=norm("norm"), dropout=dropout, dtype=dtype),
            parallel=parallel,
            dtype=dtype,
            name=f"decoder_{i}",
        )  # fmt: skip

    first = Dropout(dropout, dtype=dtype, name="embedding_dropout")
    return parts.build(block, first, norm("decoder_norm"))
