"""An encoder of images and a decoder of text: TrOCR (arXiv:2109.10282), and captions by GPT-2."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm import layers
from keras_tfm.arguments import check_integer
from keras_tfm.layers.types import Activation, Arguments, DType, Tensor
from keras_tfm.models.decoders.causal_decoder import CausalDecoder, initializer
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model
from keras_tfm.models.vision.vit import SIZES as VIT_SIZES
from keras_tfm.models.vision.vit import PixelEncoder

# Sections 3 and 4 of the TrOCR paper: encoders of DeiT's small, and BEiT's base and large size,
# decoders of MiniLM's and RoBERTa large's size, images of 384 x 384; the other arguments: the
# configurations of the checkpoints. trocr-large-printed, and trocr-base-stage1 and -large-stage1,
# have `learned_positions=False` and no `embedding_norm`, an output of their own and ReLU.
# Use: vision_encoder_decoder(50265, **SIZES["base"]), of "small" with 64044 ids.
SIZES: dict[str, Arguments] = {
    "small": {
        "dim": 256, "num_layers": 6, "num_heads": 8, "intermediate_dim": 1024, "tie_output": False,
        "activation": "relu", "scale_embedding": True,
        "image": {**VIT_SIZES["small"], "distillation_token": True},
    },
    "base": {"image": {**VIT_SIZES["base"], "attention_bias": False}},
    "large": {"image": {**VIT_SIZES["large"], "attention_bias": False}},
}  # fmt: skip


@builder
def vision_encoder_decoder(
    vocabulary_size: int,
    dim: int = 1024,
    num_layers: int = 12,
    num_heads: int = 16,
    intermediate_dim: int = 4096,
    image_size: int | Sequence[int] = 384,
    patch_size: int | Sequence[int] = 16,
    position_size: int | Sequence[int] | None = None,
    image: Mapping[str, Any] | None = None,
    image_mean: Sequence[float] = (0.5, 0.5, 0.5),
    image_std: Sequence[float] = (0.5, 0.5, 0.5),
    image_projection: bool = False,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    activation_dropout: float = 0.0,
    embedding_dropout: float | None = None,
    activation: Activation = "gelu",
    layer_norm_epsilon: float = 1e-5,
    normalize_first: bool = False,
    embedding_norm: bool = True,
    scale_embedding: bool = False,
    learned_positions: bool = True,
    position_offset: int = 2,
    num_segments: int = 0,
    head_activation: Activation | None = None,
    tie_output: bool = True,
    max_length: int = 512,
    pad_id: int = 1,
    start_id: int | None = 2,
    end_id: int | Sequence[int] | None = 2,
    name: str = "vision_encoder_decoder",
    dtype: DType = None,
) -> Model:
    """A model from an image to text: an encoder of `vit` and a decoder with cross-attention.

    The defaults are those of TrOCR, which reads lines of text: a decoder as that of `bart`. With
    `normalize_first`, no `embedding_norm` and `position_offset=0` the decoder is GPT-2's, as in
    models that describe pictures, whose cross-attention has one projection for keys and values.
    With `num_segments` and `head_activation` it is BERT's, or RoBERTa's. The encoder runs once for
    an image, and not at each step.

    Args:
        dim, num_layers, num_heads, intermediate_dim: int, sizes of the decoder: its width (D), and
            its blocks, attention heads (H) and inner width (F).
        position_size: int or (height, width), image size to which the encoder's position table
            belongs; for other images it is interpolated. Default: `image_size`.
        image: dict, arguments of the encoder: "dim", "num_layers", "num_heads",
            "intermediate_dim", "dropout", "attention_dropout", "activation", "attention_bias",
            "layer_norm_epsilon" and "distillation_token"; see `vit`. Default: ViT's base size.
        image_projection: bool, whether a dense layer projects the encoder's features to `dim`.
            Default: cross-attention reads features of any width.
        attention_dropout: float, dropout rate of the attention weights.
        embedding_norm: bool, whether the sum of embedding and position is normalised.
        scale_embedding: bool, whether embedded tokens are multiplied by sqrt(D).
        learned_positions: bool, a table of positions (True), or sinusoids, sines first.
        position_offset: int, row of the position table for the first token, or its sinusoid.
        num_segments: int, number of segments in a table whose first row is added to all tokens. 0:
            no table.
        head_activation: str or function, activation of a dense layer behind the last block, which a
            normalisation follows, as in BERT's head; logits then have a bias. None: no such layer.
        max_length: int, maximum number of tokens.
        pad_id: int, id of padding tokens, behind the end of a text.
        start_id: int, the token with which a text starts.
        end_id: int or list of int, the token at which a text ends.

    The last two do not change the model. They are kept in `model.arguments`, and loaded and saved
    with a checkpoint.

    Returns:
        A functional model from a dict of `pixels` (B, height, width, C), values from 0 to 255, and
        `target` (B, T), int32, to logits (B, T, V).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or one of `image` that is unknown.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import vision_encoder_decoder
    >>> encoder = {"dim": 6, "num_layers": 1, "num_heads": 2, "intermediate_dim": 7}
    >>> model = vision_encoder_decoder(
    ...     11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, image_size=8, patch_size=4,
    ...     image=encoder, max_length=7,
    ... )
    >>> pictures = {"pixels": np.zeros((3, 8, 8, 3), "uint8")}
    >>> generate(model, pictures, max_length=5, start_id=2, end_id=2).tokens.shape
    (3, 5)
    """
    check_integer("num_segments", num_segments, minimum=0)
    if not learned_positions and (dim < 4 or dim % 2):
        raise ValueError(f"dim must be even and at least 4, as sines and cosines are, got {dim}")
    encoder = PixelEncoder(
        image_size=image_size, patch_size=patch_size, position_size=position_size,
        image_mean=image_mean, image_std=image_std, dtype=dtype, prefix="image_",
        **image_encoder_arguments(image),
    )  # fmt: skip
    pixels, context, _ = encoder.encode()
    context = layers.LayerNormalization(
        epsilon=encoder.layer_norm_epsilon, dtype=dtype, name="image_final_norm"
    )(context)
    if image_projection:
        context = keras.layers.Dense(
            dim, kernel_initializer=initializer(), dtype=dtype, name="image_projection"
        )(context)

    def norm(name: str) -> layers.LayerNormalization:
        return layers.LayerNormalization(epsilon=layer_norm_epsilon, dtype=dtype, name=name)

    def embed(x: Tensor) -> Tensor:
        """Adds segments and positions to embedded tokens."""
        # An operation drops the padding mask: the start token may be the padding id.
        x = ops.copy(x)
        if num_segments:
            x = layers.SegmentEmbedding(num_segments, dtype=dtype, name="segment_embedding")(x)
        if learned_positions:
            positions: keras.Layer = layers.PositionEmbedding(
                max_length, offset=position_offset, dtype=dtype, name="positions"
            )
        else:
            # w^(-2i/D) = 10000^(-i/(D/2 - 1)), as in `m2m_100`.
            positions = layers.PositionalEncoding(
                10000.0 ** (dim / (dim - 2)), interleaved=False, offset=position_offset,
                dtype=dtype, name="positions",
            )  # fmt: skip
        x = positions(x)
        if embedding_norm:
            x = norm("embedding_norm")(x)
        rate = dropout if embedding_dropout is None else embedding_dropout
        return layers.Dropout(rate, dtype=dtype, name="embedding_dropout")(x)

    def block(i: int, window: int | None) -> layers.TransformerDecoderBlock:
        attention: Arguments = {
            "dropout": attention_dropout, "kernel_initializer": initializer(), "dtype": dtype,
        }  # fmt: skip
        return layers.TransformerDecoderBlock(
            self_attention=layers.MultiHeadSelfAttention(
                num_heads, causal=True, name="self_attention", **attention
            ),
            cross_attention=layers.MultiHeadCrossAttention(
                num_heads, fused_key_value=normalize_first, name="cross_attention", **attention
            ),
            feed_forward=layers.FeedForward(
                intermediate_dim, activation=activation, dropout=activation_dropout,
                kernel_initializer=initializer(), dtype=dtype, name="feed_forward",
            ),
            dropout=dropout,
            layer_norm_epsilon=layer_norm_epsilon,
            normalize_first=normalize_first,
            dtype=dtype,
            name=f"decoder_{i}",
        )  # fmt: skip

    def stack(tokens: Tensor, x: Tensor, blocks: list[keras.layers.Layer]) -> Tensor:
        for layer in blocks:
            x = layer(x, context)
        return x

    def transform(x: Tensor) -> Tensor:
        x = keras.layers.Dense(
            dim, activation=head_activation, kernel_initializer=initializer(), dtype=dtype,
            name="transform",
        )(x)  # fmt: skip
        return norm("transform_norm")(x)

    decoder = CausalDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, tie_output=tie_output,
        scale_embedding=scale_embedding, pad_id=pad_id, name=name, dtype=dtype,
        output_bias=head_activation is not None,
    )  # fmt: skip
    return decoder.build(
        block,
        embed,
        norm("decoder_norm") if normalize_first else None,
        stack,
        {"pixels": pixels},
        None if head_activation is None else transform,
    )


def image_encoder_arguments(given: Mapping[str, Any] | None) -> Arguments:
    """The arguments of the encoder, with the defaults of ViT's base size."""
    known: Arguments = {
        **VIT_SIZES["base"], "dropout": 0.0, "attention_dropout": 0.0, "activation": "gelu",
        "attention_bias": True, "layer_norm_epsilon": 1e-12, "distillation_token": False,
    }  # fmt: skip
    wrong = [name for name in given or {} if name not in known]
    if wrong:
        raise ValueError(f"image= must have arguments among {list(known)}, got {wrong[0]!r}")
    return {**known, **(given or {})}
