"""GPT: "Improving Language Understanding by Generative Pre-Training", GPT-2, 3 and Neo, OPT."""

from collections.abc import Collection, Sequence

from keras_tfm import layers
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.decoders.causal_decoder import CausalDecoder, initializer
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model


def _size(dim: int, num_layers: int, num_heads: int, max_length: int, **more: object) -> Arguments:
    sizes = {"dim": dim, "num_layers": num_layers, "num_heads": num_heads}
    return {**sizes, "intermediate_dim": 4 * dim, "max_length": max_length, **more}


_NEO: Arguments = {"scale_scores": False, "attention_bias": ["output"], "dropout": 0.0}
_OPT: Arguments = {"activation": "relu", "position_offset": 2, "embedding_dropout": 0.0}


def _opt(dim: int, num_layers: int, num_heads: int, **more: object) -> Arguments:
    return _size(dim, num_layers, num_heads, 2048, **_OPT, attention_dropout=0.0, **more)


# "gpt1": Radford et al. 2018, section 4.1. "gpt2...": table 2 of "Language Models are Unsupervised
# Multitask Learners" (Radford et al. 2019), whose heads have 64 channels. "gpt3...": table 2.1 of
# "Language Models are Few-Shot Learners" (arXiv:2005.14165), with dense attention in all layers. In
# two rows of that table the heads times their width are not D; the parameter counts of the table
# match "xl" with 16 heads (the table has D 2048, 24 heads of 128) and "13b" with D 5120 (the table
# has D 5140, 40 heads of 128). "gpt-neo...": the models' configurations on the Hugging Face hub.
# "opt...": table 1 of arXiv:2205.01068; "opt-350m" has post-norm blocks and narrower embeddings,
# as its checkpoint has. gpt(50272, **SIZES["opt-125m"]).
# Use: gpt(50257, **SIZES["gpt2"]).
SIZES: dict[str, Arguments] = {
    "gpt1": _size(768, 12, 12, 512, normalize_first=False),
    "gpt2": _size(768, 12, 12, 1024),
    "gpt2-medium": _size(1024, 24, 16, 1024),
    "gpt2-large": _size(1280, 36, 20, 1024),
    "gpt2-xl": _size(1600, 48, 25, 1024),
    "gpt3-small": _size(768, 12, 12, 2048),
    "gpt3-medium": _size(1024, 24, 16, 2048),
    "gpt3-large": _size(1536, 24, 16, 2048),
    "gpt3-xl": _size(2048, 24, 16, 2048),
    "gpt3-2.7b": _size(2560, 32, 32, 2048),
    "gpt3-6.7b": _size(4096, 32, 32, 2048),
    "gpt3-13b": _size(5120, 40, 40, 2048),
    "gpt3-175b": _size(12288, 96, 96, 2048),
    "gpt-neo-125m": _size(768, 12, 12, 2048, windows=[None, 256] * 6, **_NEO),
    "gpt-neo-1.3b": _size(2048, 24, 16, 2048, windows=[None, 256] * 12, **_NEO),
    "gpt-neo-2.7b": _size(2560, 32, 20, 2048, windows=[None, 256] * 16, **_NEO),
    "opt-125m": _opt(768, 12, 12),
    "opt-350m": _opt(1024, 24, 16, normalize_first=False, embedding_dim=512),
    "opt-1.3b": _opt(2048, 24, 32),
    "opt-2.7b": _opt(2560, 32, 32),
    "opt-6.7b": _opt(4096, 32, 32),
    "opt-13b": _opt(5120, 40, 40),
    "opt-30b": _opt(7168, 48, 56),
    "opt-66b": _opt(9216, 64, 72),
}


@builder
def gpt(
    vocabulary_size: int,
    dim: int = 768,
    num_layers: int = 12,
    num_heads: int = 12,
    intermediate_dim: int = 3072,
    embedding_dim: int | None = None,
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    embedding_dropout: float | None = None,
    activation: Activation = layers.gelu_tanh,
    layer_norm_epsilon: float = 1e-5,
    normalize_first: bool = True,
    max_length: int = 1024,
    tie_output: bool = True,
    scale_scores: bool = True,
    scale_scores_by_layer: bool = False,
    windows: int | Sequence[int | None] | None = None,
    attention_bias: bool | Collection[str] = True,
    feed_forward_bias: bool = True,
    position_offset: int = 0,
    pad_id: int | None = None,
    name: str = "gpt",
    dtype: DType = None,
) -> Model:
    """GPT, a decoder-only language model: from token ids to logits of the next token.

    With causal attention, padding after a text does not change the text's logits. Pre-norm blocks
    and one more normalisation give GPT-2 and GPT-3, post-norm blocks the first GPT. GPT-Neo has
    windows in every second block, unscaled scores, and in attention only the bias of the output.
    OPT (arXiv:2205.01068) is GPT-3 with ReLU; its model of 350M parameters has post-norm blocks,
    and narrower embeddings.

    Args:
        embedding_dim: int, width of the embeddings and of the features, which dense layers project
            to `dim` and back if it is another. Default: `dim`.
        dropout: float, dropout rate after each sublayer.
        position_offset: int, row of the position table for the first position: 2 in OPT.
        max_length: int, maximum number of positions.

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

    def block(i: int, window: int | None) -> layers.TransformerDecoderBlock:
        scale = None if scale_scores else 1.0
        if scale_scores_by_layer:
            scale = ((dim // num_heads) ** -0.5 if scale is None else scale) / (i + 1)
        attention = layers.MultiHeadSelfAttention(
            num_heads,
            causal=True,
            window=window,
            dropout=dropout if attention_dropout is None else attention_dropout,
            use_bias=attention_bias,
            scale=scale,
            kernel_initializer=initializer(),
            dtype=dtype,
            name="self_attention",
        )
        kernel_initializer = initializer()
        feed_forward = layers.FeedForward(
            intermediate_dim,
            activation=activation,
            use_bias=feed_forward_bias,
            kernel_initializer=kernel_initializer,
            dtype=dtype,
            name="feed_forward",
        )
        return layers.TransformerDecoderBlock(
            self_attention=attention,
            cross_attention=False,
            feed_forward=feed_forward,
            dropout=dropout,
            layer_norm_epsilon=layer_norm_epsilon,
            normalize_first=normalize_first,
            kernel_initializer=kernel_initializer,
            dtype=dtype,
            name=f"decoder_{i}",
        )

    rate = dropout if embedding_dropout is None else embedding_dropout
    positions = layers.PositionEmbedding(
        max_length, dropout=rate, offset=position_offset, dtype=dtype, name="positions"
    )
    norm = layers.LayerNormalization(epsilon=layer_norm_epsilon, dtype=dtype, name="decoder_norm")
    parts = CausalDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, tie_output=tie_output,
        embedding_dim=embedding_dim, windows=windows, pad_id=pad_id, name=name, dtype=dtype,
    )  # fmt: skip
    return parts.build(block, positions, norm if normalize_first else None)
