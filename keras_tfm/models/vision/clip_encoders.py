"""The two encoders of CLIP (arXiv:2103.00020): of images and of texts."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_tfm import layers
from keras_tfm.arguments import check_integer
from keras_tfm.layers.types import Activation, DType, Tensor
from keras_tfm.models.heads.head_base import token
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model
from keras_tfm.models.vision.vit import PixelEncoder

# The mean and standard deviation of the pixels in the original's training data.
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
# The kind of the head that makes embeddings.
HEAD = "embedding"


@builder
def clip_image(
    image_size: int | Sequence[int] = 224,
    patch_size: int | Sequence[int] = 32,
    dim: int = 768,
    num_layers: int = 12,
    num_heads: int = 12,
    intermediate_dim: int = 3072,
    projection_dim: int | None = 512,
    dropout: float = 0.0,
    attention_dropout: float | None = None,
    activation: Activation = layers.quick_gelu,
    layer_norm_epsilon: float = 1e-5,
    position_size: int | Sequence[int] | None = None,
    image_mean: Sequence[float] = MEAN,
    image_std: Sequence[float] = STD,
    name: str = "clip_image",
    dtype: DType = None,
) -> Model:
    """The image encoder of CLIP: from pixels to an embedding.

    A Vision Transformer as `vit`, with a normalisation after the embeddings and patches without a
    bias; the class token is normalised, projected, and divided by its Euclidean norm.

    Args:
        image_size: int or (height, width) of the images, in pixels.
        dim: int, width of the encoder (D).
        position_size: int or (height, width), image size to which the position table belongs; for
            other images it is interpolated. Default: `image_size`.

    Returns:
        A functional model from `pixels` (B, height, width, C), values from 0 to 255, to embeddings
        (B, E) of length 1. Without a projection to a dict of "features" (B, 1 + N, D), of the class
        token and N patches without a last normalisation, and "pooled" (B, D), the normalised class
        token.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or `num_heads` does not divide `dim`.

    Example:

    >>> from keras_tfm.models import clip_image
    >>> clip_image(16, 8, 12, 1, 3, 16, projection_dim=5).output.shape
    (None, 5)
    """
    check_integer("num_layers", num_layers)
    check_integer("projection_dim", projection_dim, optional=True)
    parts = PixelEncoder(
        image_size=image_size, patch_size=patch_size, dim=dim, num_layers=num_layers,
        num_heads=num_heads, intermediate_dim=intermediate_dim, dropout=dropout,
        attention_dropout=attention_dropout, activation=activation,
        layer_norm_epsilon=layer_norm_epsilon, position_size=position_size, image_mean=image_mean,
        image_std=image_std, dtype=dtype, prefix="image_", patch_bias=False, embedding_norm=True,
    )  # fmt: skip
    pixels, x, blocks = parts.encode()
    x = Marker("features", blocks=blocks, dtype=dtype, name="clip_image_marker")(x)
    norm = layers.LayerNormalization(
        epsilon=layer_norm_epsilon, dtype=dtype, name="image_final_norm"
    )
    output = _output("image", x, lambda x: norm(token(x, 0)), projection_dim, dtype)
    return Model(pixels, output, name=name)


@builder
def clip_text(
    vocabulary_size: int = 49408,
    dim: int = 512,
    num_layers: int = 12,
    num_heads: int = 8,
    intermediate_dim: int = 2048,
    projection_dim: int | None = 512,
    max_length: int = 77,
    end_id: int | None = 49407,
    dropout: float = 0.0,
    attention_dropout: float | None = None,
    activation: Activation = layers.quick_gelu,
    layer_norm_epsilon: float = 1e-5,
    name: str = "clip_text",
    dtype: DType = None,
) -> Model:
    """The text encoder of CLIP: from token ids to an embedding.

    Pre-norm blocks with causal attention; the features of the first end token are projected, and
    divided by their Euclidean norm. Any id may follow the end token: it changes nothing.

    Args:
        dim: int, width of the encoder (D).
        max_length: int, maximum number of tokens of a text, the end token included.
        end_id: int, id of the end token. None: the largest id of each row, see
            `layers.EndTokenPooling`.

    Returns:
        A functional model from `tokens` (B, T), int32, to embeddings (B, E) of length 1. Without a
        projection to a dict of "features" (B, T, D) and "pooled" (B, D), those of the end token.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, `num_heads` does not divide `dim`, or the end token is
            outside the vocabulary.

    Example:

    >>> from keras_tfm.models import clip_text
    >>> clip_text(11, 12, 1, 3, 16, projection_dim=5, max_length=7, end_id=2).output.shape
    (None, 5)
    """
    check_integer("vocabulary_size", vocabulary_size)
    check_integer("num_layers", num_layers)
    check_integer("max_length", max_length)
    check_integer("projection_dim", projection_dim, optional=True)
    if end_id is not None and end_id >= vocabulary_size:
        raise ValueError(
            f"end_id must be in the vocabulary, 0..{vocabulary_size - 1}, got {end_id}"
        )
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.TokenEmbedding(
        vocabulary_size,
        dim,
        embeddings_initializer=_initializer(),
        dtype=dtype,
        name="text_embedding",
    )(tokens)
    positions = layers.PositionEmbedding(
        max_length, _initializer(0.01), dropout, dtype=dtype, name="text_positions"
    )
    x = positions(x)
    blocks = [f"text_encoder_{i}" for i in range(num_layers)]
    for block in blocks:
        attention = layers.MultiHeadSelfAttention(
            num_heads,
            causal=True,
            dropout=dropout if attention_dropout is None else attention_dropout,
            kernel_initializer=_initializer(),
            dtype=dtype,
            name="self_attention",
        )
        x = layers.TransformerEncoderBlock(
            intermediate_dim,
            self_attention=attention,
            causal=True,
            dropout=dropout,
            activation=activation,
            layer_norm_epsilon=layer_norm_epsilon,
            normalize_first=True,
            kernel_initializer=_initializer(),
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
        name="clip_text_marker",
    )(x)
    pooling = layers.EndTokenPooling(end_id, dtype=dtype, name="text_pooling")
    output = _output("text", x, lambda x: pooling(x, tokens), projection_dim, dtype)
    return Model(tokens, output, name=name)


def _output(
    tower: str,
    features: Tensor,
    pool: Callable[[Tensor], Tensor],
    projection_dim: int | None,
    dtype: DType,
) -> Any:
    """The embedding, or the features and the pooled vector without a projection."""
    if projection_dim is None:
        marker = Marker("pooled", dtype=dtype, name=f"{tower}_pooled_marker")
        return {"features": features, "pooled": marker(pool(features))}
    kept = {"projection_dim": projection_dim}
    marker = Marker("head", HEAD, kept, dtype=dtype, name=f"{tower}_head_marker")
    projection = keras.layers.Dense(
        projection_dim,
        use_bias=False,
        kernel_initializer=_initializer(features.shape[-1] ** -0.5),
        dtype=dtype,
        name=f"{tower}_projection",
    )
    # float32: products of bfloat16 vectors would be off by up to 0.01, times the scale.
    normalize = keras.layers.UnitNormalization(dtype="float32", name=f"{tower}_normalize")
    return normalize(projection(pool(marker(features))))


def _initializer(stddev: float = 0.02) -> keras.initializers.Initializer:
    return keras.initializers.RandomNormal(stddev=stddev)
