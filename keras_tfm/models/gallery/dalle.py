"""DALL-E: "Zero-Shot Text-to-Image Generation" (arXiv:2102.12092)."""

from collections.abc import Sequence

from keras_tfm.arguments import check_integer
from keras_tfm.layers import (
    ColumnMask,
    ConvolutionMask,
    GridMask,
    GridPositionEmbedding,
    LayerNormalization,
    MultiHeadSelfAttention,
    RowMask,
    TransformerDecoderBlock,
)
from keras_tfm.layers.images.patch_embedding import as_pair
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.decoders.causal_decoder import CausalDecoder, initializer
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model

MASKS = ("row", "column", "convolution", None)
# Section 2.2 and appendix B.1: 12 billion parameters. Use: dalle(**SIZES["dalle"]).
SIZES: dict[str, Arguments] = {
    "dalle": {"dim": 3968, "num_layers": 64, "num_heads": 62, "intermediate_dim": 15872},
}


@builder
def dalle(
    text_vocabulary_size: int = 16384,
    image_vocabulary_size: int = 8192,
    text_length: int = 256,
    grid: int | Sequence[int] = 32,
    dim: int = 3968,
    num_layers: int = 64,
    num_heads: int = 62,
    intermediate_dim: int = 15872,
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    embedding_dropout: float | None = None,
    activation: Activation = "gelu",
    layer_norm_epsilon: float = 1e-5,
    masks: Sequence[str | None] | None = None,
    kernel_size: int = 11,
    tie_output: bool = True,
    name: str = "dalle",
    dtype: DType = None,
) -> Model:
    """DALL-E, a decoder-only model of a text and the codes of an image: it draws what a text says.

    A row is one sequence: `text_length` tokens of a text, then the codes of a grid, row by row, as
    `dvae` makes them. The ids are, in this order: those of the text's tokens; a padding token for
    each position of the text, text_vocabulary_size + p at position p, which is learned and attended
    to like any token; and the codes, from text_vocabulary_size + text_length on.
    `text.CaptionedImages` makes such rows. Text attends to text before it. Codes attend to all of
    the text, and to codes before them in their row, column or neighbourhood, by block.

    Generate with prompts of `text_length` ids and `processors.SuppressTokens` of all ids but the
    codes; a prompt of padding alone is the unconditional one of `processors.Guidance`. In an
    exported file `runtime.Model.draw` does both.

    Args:
        text_vocabulary_size: int, number of the text's token ids.
        image_vocabulary_size: int, number of codes.
        text_length: int, number of positions of the text (N).
        grid: int or (height, width), number of codes.
        dropout: float, dropout rate after each sublayer.
        masks: list of str, the mask of each block: "row", "column" or "convolution"; None for
            all codes before. Default: those of the paper: column in each fourth block from the
            second on, convolution in the last, row in the others.
        kernel_size: int, odd, width of the convolution's neighbourhood.

    Returns:
        A functional model from `tokens` (B, T), int32, to logits (B, T, V) of the next token, with
        V = text_vocabulary_size + text_length + image_vocabulary_size.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, an unknown mask, or another number of masks than
            blocks.

    Example:

    >>> from keras_tfm.generation import Greedy, generate, processors
    >>> from keras_tfm.models import dalle
    >>> sizes = {"dim": 8, "num_layers": 4, "num_heads": 2, "intermediate_dim": 16}
    >>> model = dalle(11, 7, text_length=3, grid=2, kernel_size=1, **sizes)
    >>> codes_only = Greedy(processors=[processors.SuppressTokens(range(11 + 3))])
    >>> prompt = [[4, 5, 11 + 2]]  # two tokens, and the padding token of position 2
    >>> tokens = generate(model, prompt, max_length=3 + 4, strategy=codes_only).tokens
    >>> tokens.shape, bool((tokens[:, 3:] >= 14).all())
    ((1, 7), True)
    """
    check_integer("text_vocabulary_size", text_vocabulary_size)
    check_integer("image_vocabulary_size", image_vocabulary_size)
    check_integer("num_layers", num_layers)
    check_integer("text_length", text_length)
    cells = as_pair("grid", grid)
    kinds = _paper_masks(num_layers) if masks is None else list(masks)
    if len(kinds) != num_layers or any(kind not in MASKS for kind in kinds):
        raise ValueError(
            f"masks must be one of {list(MASKS)} for each of {num_layers} blocks, got {kinds}"
        )

    def mask(kind: str | None) -> GridMask | None:
        if kind == "convolution":
            return ConvolutionMask(text_length, cells, kernel_size, name="convolution_mask")
        if kind is None:
            return None
        made = {"row": RowMask, "column": ColumnMask}[kind]
        return made(text_length, cells, name=f"{kind}_mask")

    def block(i: int, _: int | None) -> TransformerDecoderBlock:
        attention = MultiHeadSelfAttention(
            num_heads,
            causal=True,
            position=mask(kinds[i]),
            dropout=dropout if attention_dropout is None else attention_dropout,
            kernel_initializer=initializer(),
            dtype=dtype,
            name="self_attention",
        )
        return TransformerDecoderBlock(
            intermediate_dim,
            self_attention=attention,
            cross_attention=False,
            dropout=dropout,
            activation=activation,
            layer_norm_epsilon=layer_norm_epsilon,
            normalize_first=True,
            kernel_initializer=initializer(),
            dtype=dtype,
            name=f"decoder_{i}",
        )

    rate = dropout if embedding_dropout is None else embedding_dropout
    positions = GridPositionEmbedding(
        text_length, cells, dropout=rate, dtype=dtype, name="positions"
    )
    norm = LayerNormalization(epsilon=layer_norm_epsilon, dtype=dtype, name="decoder_norm")
    size = text_vocabulary_size + text_length + image_vocabulary_size
    parts = CausalDecoder(
        vocabulary_size=size, dim=dim, num_layers=num_layers, tie_output=tie_output, name=name,
        dtype=dtype,
    )  # fmt: skip
    return parts.build(block, positions, norm)


def _paper_masks(num_layers: int) -> list[str | None]:
    """Row, column, row, row, and so on; the last block is convolutional."""
    kinds: list[str | None] = ["column" if i % 4 == 1 else "row" for i in range(num_layers)]
    return [*kinds[:-1], "convolution"]
