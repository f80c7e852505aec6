"""Gemma 3 (arXiv:2503.19786) with pictures: image tokens in the text, which see each other."""

from collections.abc import Collection, Mapping, Sequence

import keras

from keras_tfm import layers
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Activation, Arguments, DType, Tensor
from keras_tfm.models.decoders.causal_decoder import initializer
from keras_tfm.models.decoders.gemma import GemmaDecoder
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model
from keras_tfm.models.vision.image_tokens import (
    SO400M,
    PlaceholderRuns,
    encode_images,
    patch_grid,
    place_features,
)
from keras_tfm.models.vision.siglip_encoders import MEAN, STD


def _size(num_layers: int, **more: int) -> Arguments:
    windows = [1024 if (i + 1) % 6 else None for i in range(num_layers)]
    rope = {"rope_scaling": layers.LinearScaling(8.0), "max_length": 131072}
    return {"num_layers": num_layers, "windows": windows, "image": SO400M, **rope, **more}


# Table 1 of the paper, and the models' configurations on the Hugging Face hub. Use:
# gemma3(262208, **SIZES["4b"]).
SIZES: dict[str, Arguments] = {
    "4b": _size(34, dim=2560, num_heads=8, num_key_value_heads=4, intermediate_dim=10240),
    "12b": _size(48, dim=3840, num_heads=16, num_key_value_heads=8, intermediate_dim=15360),
    "27b": _size(
        62, dim=5376, num_heads=32, num_key_value_heads=16, intermediate_dim=21504, head_dim=128,
        query_pre_attention_scalar=168,
    ),
}  # fmt: skip


@builder
def gemma3(
    vocabulary_size: int,
    dim: int = 2560,
    num_layers: int = 34,
    num_heads: int = 8,
    intermediate_dim: int = 10240,
    num_key_value_heads: int | None = None,
    head_dim: int = 256,
    activation: Activation = layers.gelu_tanh,
    rms_norm_epsilon: float = 1e-6,
    rope_theta: float = 1000000.0,
    rope_scaling: RotaryScaling | None = None,
    local_rope_theta: float | None = 10000.0,
    windows: int | Sequence[int | None] | None = None,
    query_pre_attention_scalar: float | None = None,
    attention_bias: bool | Collection[str] = False,
    attention_dropout: float = 0.0,
    tie_output: bool = True,
    max_length: int = 8192,
    pad_id: int | None = None,
    image_id: int = 262144,
    num_images: int | None = None,
    image_size: int | Sequence[int] = 896,
    patch_size: int | Sequence[int] = 14,
    pool_size: int = 4,
    image: Mapping[str, object] | None = None,
    image_mean: Sequence[float] = MEAN,
    image_std: Sequence[float] = STD,
    name: str = "gemma3",
    dtype: DType = None,
) -> Model:
    """Gemma 3 with pictures: from images and a text with their places to logits.

    SigLIP's encoder makes features of the patches of each image. The mean of `pool_size`^2 of them
    is normalised and projected (L features an image), and `layers.ReplacePlaceholders` puts the
    results where the text has the token `image_id`, in the order of the images. The decoder is that
    of `gemma`, in which the tokens of a picture, a run of `image_id`, see each other, also later
    ones. A picture is therefore in one step: prompts are read as a whole, and at least one token of
    the text is after the last picture.

    With `num_images`, a row has several images. It has the token L times for each of its first
    images; those after them are padding, of any values. A row without the token is text alone.

    Args:
        head_dim: int, width of a head (K).
        local_rope_theta: float, `rope_theta` of the blocks with a window, which are not scaled.
            None: `rope_theta` and `rope_scaling` apply to all blocks.
        query_pre_attention_scalar: float, scores are divided by its square root. Default: K.
        image_id: int, id of the placeholder token `<image_soft_token>`.
        num_images: int, number of images of each row (N). Default: one, without an axis for it.
        image_size: int or (height, width) of each image, in pixels.
        pool_size: int, patches that are averaged in each direction, which must divide the rows and
            columns of patches.
        image: dict, arguments of the image encoder, as of `smolvlm`.

    Returns:
        A functional model from a dict of `pixels` (B, height, width, C), or with `num_images`
        (B, N, height, width, C), values from 0 to 255, and `target` (B, T), int32, to logits
        (B, T, V).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or one of `image` that is unknown.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.models import gemma3
    >>> tower = {"dim": 6, "num_layers": 1, "num_heads": 2, "intermediate_dim": 7}
    >>> model = gemma3(
    ...     11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, head_dim=4, image_id=9,
    ...     image_size=8, patch_size=2, pool_size=2, image=tower,
    ... )
    >>> pixels = np.zeros((1, 8, 8, 3), "uint8")  # an image of four features
    >>> model({"pixels": pixels, "target": np.array([[1, *[9] * 4, 3]])}).shape
    TensorShape([1, 6, 11])
    """
    rows, columns = patch_grid(image_size, patch_size, "pool_size", pool_size)
    pixels, x, parts = encode_images(
        image, num_images, dtype, image_size=image_size, patch_size=patch_size, position_size=None,
        image_mean=image_mean, image_std=image_std,
    )  # fmt: skip
    x = keras.layers.Reshape((rows, columns, x.shape[-1]), dtype=dtype, name="patch_grid")(x)
    x = keras.layers.AveragePooling2D(
        pool_size, data_format="channels_last", dtype=dtype, name="patch_pooling"
    )(x)
    x = keras.layers.Reshape((-1, x.shape[-1]), dtype=dtype, name="pooled_patches")(x)
    x = layers.RMSNormalization(
        epsilon=parts.layer_norm_epsilon, dtype=dtype, name="connector_norm"
    )(x)
    x = keras.layers.Dense(
        dim, use_bias=False, kernel_initializer=initializer(), dtype=dtype, name="connector"
    )(x)
    place = place_features(x, image_id, num_images, vocabulary_size, dtype)
    decoder = GemmaDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, num_key_value_heads=num_key_value_heads,
        head_dim=head_dim, activation=activation, rms_norm_epsilon=rms_norm_epsilon,
        windows=windows, attention_bias=attention_bias, attention_dropout=attention_dropout,
        tie_output=tie_output, pad_id=pad_id, scale_embedding=True, name=name, dtype=dtype,
        rope_theta=rope_theta, rope_scaling=rope_scaling, local_rope_theta=local_rope_theta,
        query_pre_attention_scalar=query_pre_attention_scalar,
    )  # fmt: skip

    def stack(tokens: Tensor, x: Tensor, blocks: list[keras.layers.Layer]) -> Tensor:
        groups = PlaceholderRuns(image_id, name="pictures")(tokens)
        x = place(tokens, x)
        for layer in blocks:
            x = layer(x, token_groups=groups)
        return x

    return decoder.build(
        decoder.gemma_block,
        norm=decoder.norm("decoder_norm"),
        stack=stack,
        others={"pixels": pixels},
    )
