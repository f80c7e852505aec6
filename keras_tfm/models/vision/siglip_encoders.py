"""The two encoders of SigLIP (arXiv:2303.15343): of images and of texts."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_tfm import layers
from keras_tfm.arguments import check_integer
from keras_tfm.layers.embeddings.pad_tokens import PadTokens
from keras_tfm.layers.types import Activation, DType, Tensor
from keras_tfm.models.heads.head_base import token
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model
from keras_tfm.models.vision.clip_encoders import HEAD
from keras_tfm.models.vision.vit import PixelEncoder

# Of the pixels, from 0 to 1.
MEAN = STD = (0.5, 0.5, 0.5)


@builder
def siglip_image(
    image_size: int | Sequence[int] = 224,
    patch_size: int | Sequence[int] = 16,
    dim: int = 768,
    num_layers: int = 12,
    num_heads: int = 12,
    intermediate_dim: int = 3072,
    pooling: bool = True,
    normalize: bool = False,
    dropout: float = 0.0,
    attention_dropout: float | None = None,
    activation: Activation = layers.gelu_tanh,
    layer_norm_epsilon: float = 1e-6,
    position_size: int | Sequence[int] | None = None,
    naflex: bool = False,
    image_mean: Sequence[float] = MEAN,
    image_std: Sequence[float] = STD,
    name: str = "siglip_image",
    dtype: DType = None,
) -> Model:
    """The image encoder of SigLIP: from pixels to features of patches, and one vector.

    A Vision Transformer as `vit`, without a class token; its vector is made by
    `layers.AttentionPooling`. `image_classifier` puts a classifier on the mean of the patches.

    Args:
        image_size: int or (height, width) of the images, in pixels.
        dim: int, width of the encoder and of the vector (D).
        pooling: bool, whether the model has the attention pooling.
        normalize: bool, whether the vector, divided by its Euclidean norm, is the only output.
        position_size: int or (height, width), image size to which the position table belongs; for
            other images it is interpolated. Default: `image_size`.
        naflex: bool, whether it is interpolated as in SigLIP 2's NaFlex (arXiv:2502.14786), which
            was trained on images of many shapes: bilinearly, with a low-pass filter.

    Returns:
        A functional model from `pixels` (B, height, width, C), values from 0 to 255, to a dict of
        "features" (B, N, D), of N patches row by row, and "pooled" (B, D). Without `pooling` to the
        features alone; with `normalize` to the embedding (B, D) of length 1 alone.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, `num_heads` does not divide `dim`, or `normalize`
            without `pooling`.

    Example:

    >>> from keras_tfm.models import image_classifier, siglip_image
    >>> model = siglip_image(16, 8, dim=12, num_layers=1, num_heads=3, intermediate_dim=16)
    >>> {key: x.shape for key, x in model.output.items()}
    {'features': (None, 4, 12), 'pooled': (None, 12)}
    >>> image_classifier(model, num_classes=5).output.shape
    (None, 5)
    """
    check_integer("num_layers", num_layers)
    if normalize and not pooling:
        raise ValueError("normalize=True needs pooling=True: the pooled vector is normalised")
    parts = PixelEncoder(
        image_size=image_size, patch_size=patch_size, dim=dim, num_layers=num_layers,
        num_heads=num_heads, intermediate_dim=intermediate_dim, dropout=dropout,
        attention_dropout=attention_dropout, activation=activation,
        layer_norm_epsilon=layer_norm_epsilon, position_size=position_size, image_mean=image_mean,
        image_std=image_std, dtype=dtype, prefix="image_", class_token=False, antialias=naflex,
        interpolation="bilinear" if naflex else "bicubic",
    )  # fmt: skip
    pixels, x, blocks = parts.encode()
    norm = layers.LayerNormalization(
        epsilon=layer_norm_epsilon, dtype=dtype, name="image_final_norm"
    )
    x = norm(x)
    x = Marker("features", blocks=blocks, dtype=dtype, name="siglip_image_marker")(x)
    if not pooling:
        return Model(pixels, x, name=name)
    pool = layers.AttentionPooling(
        num_heads,
        intermediate_dim,
        activation,
        parts.attention_rate,
        layer_norm_epsilon,
        dtype=dtype,
        name="image_pooling",
    )
    return Model(pixels, _output("image", x, pool, normalize, dtype), name=name)


@builder
def siglip_text(
    vocabulary_size: int = 32000,
    dim: int = 768,
    num_layers: int = 12,
    num_heads: int = 12,
    intermediate_dim: int = 3072,
    projection_dim: int | None = None,
    max_length: int = 64,
    pad_id: int = 1,
    normalize: bool = False,
    dropout: float = 0.0,
    attention_dropout: float | None = None,
    activation: Activation = layers.gelu_tanh,
    layer_norm_epsilon: float = 1e-6,
    name: str = "siglip_text",
    dtype: DType = None,
) -> Model:
    """The text encoder of SigLIP: from token ids to features of tokens, and one vector.

    Pre-norm blocks. Every text has `max_length` tokens: shorter rows are padded with `pad_id` in
    the model, and attention sees the padding as any other token. The vector is a dense layer on the
    features of the last token.

    Args:
        dim: int, width of the encoder (D).
        projection_dim: int, width of the vector (E). Default: `dim`.
        max_length: int, number of tokens of every text.
        pad_id: int, id of the padding: 1 in SigLIP, 0 in SigLIP 2.
        normalize: bool, whether the vector, divided by its Euclidean norm, is the only output.

    Returns:
        A functional model from `tokens` (B, T), int32, T up to `max_length` (S), to a dict of
        "features" (B, S, D) and "pooled" (B, E). With `normalize` to the embedding (B, E) of length
        1 alone.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, `num_heads` does not divide `dim`, or the padding is
            outside the vocabulary.

    Example:

    >>> from keras_tfm.models import siglip_text
    >>> model = siglip_text(11, 12, 1, 3, 16, projection_dim=5, max_length=7)
    >>> {key: x.shape for key, x in model.output.items()}
    {'features': (None, 7, 12), 'pooled': (None, 5)}
    """
    check_integer("vocabulary_size", vocabulary_size)
    check_integer("num_layers", num_layers)
    check_integer("projection_dim", projection_dim, optional=True)
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = PadTokens(max_length, pad_id, vocabulary_size, name="text_padding")(tokens)
    x = layers.TokenEmbedding(vocabulary_size, dim, dtype=dtype, name="text_embedding")(x)
    x = layers.PositionEmbedding(max_length, dropout=dropout, dtype=dtype, name="text_positions")(x)
    blocks = [f"text_encoder_{i}" for i in range(num_layers)]
    for block in blocks:
        attention = layers.MultiHeadSelfAttention(
            num_heads,
            dropout=dropout if attention_dropout is None else attention_dropout,
            dtype=dtype,
            name="self_attention",
        )
        x = layers.TransformerEncoderBlock(
            intermediate_dim,
            self_attention=attention,
            dropout=dropout,
            activation=activation,
            layer_norm_epsilon=layer_norm_epsilon,
            normalize_first=True,
            dtype=dtype,
            name=block,
        )(x)
    norm = layers.LayerNormalization(
        epsilon=layer_norm_epsilon, dtype=dtype, name="text_final_norm"
    )
    x = norm(x)
    x = Marker(
        "features",
        embedding="text_embedding",
        blocks=blocks,
        dtype=dtype,
        name="siglip_text_marker",
    )(x)
    projection = keras.layers.Dense(projection_dim or dim, dtype=dtype, name="text_projection")

    def pool(x: Tensor) -> Tensor:
        return projection(token(x, max_length - 1))

    return Model(tokens, _output("text", x, pool, normalize, dtype), name=name)


def _output(
    tower: str,
    features: Tensor,
    pool: Callable[[Tensor], Tensor],
    normalize: bool,
    dtype: DType,
) -> Any:
    """The embedding, or the features and the pooled vector."""
    if not normalize:
        marker = Marker("pooled", dtype=dtype, name=f"{tower}_pooled_marker")
        return {"features": features, "pooled": marker(pool(features))}
    marker = Marker("head", HEAD, dtype=dtype, name=f"{tower}_head_marker")
    # float32: products of bfloat16 vectors would be off by up to 0.01, times the scale.
    unit = keras.layers.UnitNormalization(dtype="float32", name=f"{tower}_normalize")
    return unit(pool(marker(features)))
