"""LFM2-VL (arXiv:2511.23404): SigLIP 2 NaFlex, and its features inside the text of an LFM2."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_tfm import layers
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Activation, Arguments, DType, Tensor
from keras_tfm.models.decoders.causal_decoder import initializer
from keras_tfm.models.decoders.lfm2 import SIZES as TEXT_SIZES
from keras_tfm.models.decoders.lfm2 import Lfm2Decoder
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model
from keras_tfm.models.vision.image_tokens import encode_images, patch_grid, place_features
from keras_tfm.models.vision.siglip_encoders import MEAN, STD

# The configuration on the Hugging Face hub. Use: lfm2_vl(65536, **SIZES["450m"]).
SIZES: dict[str, Arguments] = {"450m": TEXT_SIZES["350m"]}


@builder
def lfm2_vl(
    vocabulary_size: int,
    dim: int = 1024,
    num_layers: int = 16,
    num_heads: int = 16,
    intermediate_dim: int = 4608,
    num_key_value_heads: int | None = None,
    attends: Sequence[bool] | None = None,
    kernel_size: int = 3,
    convolution_bias: bool = False,
    rms_norm_epsilon: float = 1e-5,
    rope_theta: float = 1000000.0,
    rope_scaling: RotaryScaling | None = None,
    tie_output: bool = True,
    max_length: int = 128000,
    pad_id: int | None = None,
    image_id: int = 396,
    num_images: int | None = None,
    image_size: int | Sequence[int] = 512,
    patch_size: int | Sequence[int] = 16,
    position_size: int | Sequence[int] = 256,
    downsample_factor: int = 2,
    projector_dim: int = 2560,
    projector_activation: Activation = "gelu",
    projector_norm: bool = True,
    projector_bias: bool = True,
    image: Mapping[str, Any] | None = None,
    image_mean: Sequence[float] = MEAN,
    image_std: Sequence[float] = STD,
    name: str = "lfm2_vl",
    dtype: DType = None,
) -> Model:
    """LFM2-VL, a vision-language model: from images and a text with their places to logits.

    SigLIP 2's encoder of images of any shape (NaFlex) makes features of the patches of each image.
    `layers.PixelShuffle` joins `downsample_factor`^2 of them, two dense layers project them (L
    features an image), and `layers.ReplacePlaceholders` puts them where the text has the token
    `image_id`, in the order of the images. The decoder is that of `lfm2`.

    A model has images of one shape. With `num_images`, a row has several. It has the token L times
    for each of its first images; those after them are padding, of any values. A row without the
    token is text alone.

    Args:
        attends: list of bool, whether each block has attention, as of `lfm2`.
        kernel_size: int, number of tokens that a convolution reads.
        convolution_bias: bool, whether the convolutions and their projections add a bias.
        image_id: int, id of the placeholder token `<image>`.
        num_images: int, number of images of each row (N). Default: one, without an axis for it.
        image_size: int or (height, width) of each image, in pixels.
        position_size: int or (height, width), image size to which the position table belongs; for
            other images it is interpolated.
        downsample_factor: int, patches that are joined in each direction, which must divide the
            rows and columns of patches.
        projector_dim: int, width between the two dense layers.
        projector_activation: str or function, activation between them.
        projector_norm: bool, whether the joined features are normalised first.
        projector_bias: bool, whether the two dense layers add a bias.
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
    >>> from keras_tfm.models import lfm2_vl
    >>> tower = {"dim": 6, "num_layers": 1, "num_heads": 2, "intermediate_dim": 7}
    >>> model = lfm2_vl(
    ...     11, dim=8, num_layers=3, num_heads=2, intermediate_dim=16, image_id=9, image=tower,
    ...     image_size=(8, 12), patch_size=2, position_size=8, projector_dim=5,
    ... )
    >>> pixels = np.zeros((1, 8, 12, 3), "uint8")  # an image of six features
    >>> model({"pixels": pixels, "target": np.array([[1, *[9] * 6, 3]])}).shape
    TensorShape([1, 8, 11])
    """
    _, columns = patch_grid(image_size, patch_size, "downsample_factor", downsample_factor)
    pixels, x, _ = encode_images(
        image, num_images, dtype, image_size=image_size, patch_size=patch_size,
        position_size=position_size, image_mean=image_mean, image_std=image_std, antialias=True,
        interpolation="bilinear",
    )  # fmt: skip
    x = layers.PixelShuffle(downsample_factor, columns, dtype=dtype, name="pixel_shuffle")(x)
    if projector_norm:
        x = layers.LayerNormalization(epsilon=1e-5, dtype=dtype, name="projector_norm")(x)
    for width, activation, layer in (
        (projector_dim, projector_activation, "projector"),
        (dim, None, "connector"),
    ):
        x = keras.layers.Dense(
            width, activation, projector_bias, kernel_initializer=initializer(), dtype=dtype,
            name=layer,
        )(x)  # fmt: skip
    place = place_features(x, image_id, num_images, vocabulary_size, dtype)
    decoder = Lfm2Decoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, num_key_value_heads=num_key_value_heads,
        activation="silu", rms_norm_epsilon=rms_norm_epsilon, attention_bias=False,
        attention_dropout=0.0, tie_output=tie_output, pad_id=pad_id, name=name, dtype=dtype,
        attends=attends, kernel_size=kernel_size, convolution_bias=convolution_bias,
        rope_theta=rope_theta, rope_scaling=rope_scaling,
    )  # fmt: skip

    def stack(tokens: Tensor, x: Tensor, blocks: list[keras.layers.Layer]) -> Tensor:
        x = place(tokens, x)
        for layer in blocks:
            x = layer(x)
        return x

    return decoder.build(
        decoder.lfm2_block,
        norm=decoder.norm("decoder_norm"),
        stack=stack,
        others={"pixels": pixels},
    )
