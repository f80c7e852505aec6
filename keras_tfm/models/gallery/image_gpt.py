"""ImageGPT: "Generative Pretraining from Pixels" (Chen et al. 2020)."""

from keras_tfm.arguments import check_integer
from keras_tfm.layers import (
    FeedForward,
    MultiHeadSelfAttention,
    PositionEmbedding,
    Residual,
    RMSNormalization,
    TransformerDecoderBlock,
    quick_gelu,
)
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.decoders.causal_decoder import CausalDecoder, initializer
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model

# Section 3.3 of the paper: iGPT-S, iGPT-M and iGPT-L. Use: image_gpt(512, **SIZES["small"]).
SIZES: dict[str, Arguments] = {
    "small": {"dim": 512, "num_layers": 24, "num_heads": 8, "intermediate_dim": 2048},
    "medium": {"dim": 1024, "num_layers": 36, "num_heads": 8, "intermediate_dim": 4096},
    "large": {"dim": 1536, "num_layers": 48, "num_heads": 16, "intermediate_dim": 6144},
}


@builder
def image_gpt(
    vocabulary_size: int = 512,
    dim: int = 512,
    num_layers: int = 24,
    num_heads: int = 8,
    intermediate_dim: int = 2048,
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    embedding_dropout: float | None = None,
    activation: Activation = quick_gelu,
    rms_norm_epsilon: float = 1e-5,
    max_length: int = 1024,
    scale_scores: bool = True,
    scale_scores_by_layer: bool = False,
    name: str = "image_gpt",
    dtype: DType = None,
) -> Model:
    """ImageGPT, a decoder-only model of the pixels of an image, row by row.

    A GPT-2 with RMS normalisations, whose output has its own weights. A token is one of
    `vocabulary_size` colours; the id after the last colour starts an image: generate with
    `start_id=vocabulary_size`. It is an input only, so the logits do not have it. The classifier of
    section 2.3, on the mean of the features, is `sequence_classifier(model, C, pooling="mean")`.

    Args:
        vocabulary_size: int, number of colours, the ids that are generated (V).
        dropout: float, dropout rate after each sublayer.
        max_length: int, number of positions: that of an image's pixels, since the last pixel is
            generated, but not read.

    Returns:
        A functional model from `tokens` (B, T), int32, 0 to V, to logits (B, T, V).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or `num_heads` does not divide `dim`.

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import image_gpt
    >>> model = image_gpt(11, 8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=6)
    >>> generate(model, [[11]], max_length=7).tokens.shape  # the start token and 6 pixels
    (1, 7)
    """
    check_integer("vocabulary_size", vocabulary_size)

    def block(i: int, _: int | None) -> TransformerDecoderBlock:
        scale = None if scale_scores else 1.0
        if scale_scores_by_layer:
            scale = ((dim // num_heads) ** -0.5 if scale is None else scale) / (i + 1)
        attention = MultiHeadSelfAttention(
            num_heads,
            causal=True,
            dropout=dropout if attention_dropout is None else attention_dropout,
            scale=scale,
            kernel_initializer=initializer(),
            dtype=dtype,
            name="self_attention",
        )
        feed_forward = FeedForward(
            intermediate_dim,
            activation=activation,
            kernel_initializer=initializer(),
            dtype=dtype,
            name="feed_forward",
        )
        return TransformerDecoderBlock(
            self_attention=attention,
            cross_attention=False,
            feed_forward=feed_forward,
            residual=Residual(
                input_norm=RMSNormalization(epsilon=rms_norm_epsilon, dtype=dtype, name="norm"),
                dropout=dropout,
                dtype=dtype,
            ),
            dtype=dtype,
            name=f"decoder_{i}",
        )

    rate = dropout if embedding_dropout is None else embedding_dropout
    positions = PositionEmbedding(max_length, dropout=rate, dtype=dtype, name="positions")
    norm = RMSNormalization(epsilon=rms_norm_epsilon, dtype=dtype, name="decoder_norm")
    parts = CausalDecoder(
        vocabulary_size=vocabulary_size + 1, output_size=vocabulary_size, tie_output=False, dim=dim,
        num_layers=num_layers, name=name, dtype=dtype,
    )  # fmt: skip
    return parts.build(block, positions, norm)
