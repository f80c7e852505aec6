"""SmolVLM and SmolVLM2 (arXiv:2504.05299), Idefics3 (2408.12637): image tokens in the text."""

from collections.abc import Collection, Mapping, Sequence

import keras

from keras_tfm import layers
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Activation, Arguments, DType, Tensor
from keras_tfm.models.decoders.causal_decoder import RotaryDecoder, initializer
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model
from keras_tfm.models.vision.image_tokens import SO400M, encode_images, place_features
from keras_tfm.models.vision.siglip_encoders import MEAN, STD

# Section 2 of the SmolVLM paper: SigLIP-B/16 with SmolLM2-135M and -360M, SigLIP-SO400M with
# SmolLM2-1.7B; its pixel shuffle of 4, 4 and 3. Images of 512 and 384 pixels: the blog posts on
# SmolVLM-256M and on SmolVLM (hf.co/blog/smolervlm, hf.co/blog/smolvlm), which has the number of
# positions and, as "273k", their base, in full in the configuration. That of SmolVLM2-500M, which
# was compared, has an output of its own. Use: smolvlm(49280, **SIZES["256m"]).
SIZES: dict[str, Arguments] = {
    "256m": {
        "dim": 576, "num_layers": 30, "num_heads": 9, "num_key_value_heads": 3,
        "intermediate_dim": 1536,
    },
    "500m": {
        "dim": 960, "num_layers": 32, "num_heads": 15, "num_key_value_heads": 5,
        "intermediate_dim": 2560,
    },
    "2.2b": {
        "dim": 2048, "num_layers": 24, "num_heads": 32, "intermediate_dim": 8192,
        "rope_theta": 273768.0, "max_length": 16384, "image_size": 384, "patch_size": 14,
        "scale_factor": 3, "image": SO400M,
    },
}  # fmt: skip


@builder
def smolvlm(
    vocabulary_size: int,
    dim: int = 576,
    num_layers: int = 30,
    num_heads: int = 9,
    intermediate_dim: int = 1536,
    num_key_value_heads: int | None = None,
    head_dim: int | None = None,
    activation: Activation = "silu",
    rms_norm_epsilon: float = 1e-5,
    rope_theta: float = 100000.0,
    rope_scaling: RotaryScaling | None = None,
    attention_bias: bool | Collection[str] = False,
    feed_forward_bias: bool = False,
    attention_dropout: float = 0.0,
    tie_output: bool = False,
    max_length: int = 8192,
    pad_id: int | None = None,
    image_id: int = 49190,
    num_images: int | None = None,
    image_size: int | Sequence[int] = 512,
    patch_size: int | Sequence[int] = 16,
    scale_factor: int = 4,
    image: Mapping[str, object] | None = None,
    image_mean: Sequence[float] = MEAN,
    image_std: Sequence[float] = STD,
    idefics3: bool = False,
    name: str = "smolvlm",
    dtype: DType = None,
) -> Model:
    """A vision-language model: from images and a text with their places to logits.

    SigLIP's encoder makes features of the patches of each image, `layers.PixelShuffle` joins
    `scale_factor`^2 of them, a dense layer projects them (L features an image), and
    `layers.ReplacePlaceholders` puts them where the text has the token `image_id`, in the order of
    the images. A decoder of Llama's kind continues the text. The image encoder does not see the
    text: it runs once for a text, and not at each step.

    With `num_images`, a row has several images, such as the tiles of a large picture and the whole.
    It has the token L times for each of its first images; those after them are padding, of any
    values. A row without the token is text alone.

    Args:
        image_id: int, id of the placeholder token `<image>`.
        num_images: int, number of images of each row (N). Default: one, without an axis for it.
        image_size: int or (height, width) of each image, in pixels: a square number of patches.
        scale_factor: int, patches that are joined in each direction.
        image: dict, arguments of the image encoder, "dim", "num_layers", "num_heads",
            "intermediate_dim", "activation", "layer_norm_epsilon" and "attention_dropout". Default:
            those of SigLIP's base size.
        idefics3: bool, whether the model is saved as Idefics3, which computes the same.

    Returns:
        A functional model from a dict of `pixels` (B, height, width, C), or with `num_images`
        (B, N, height, width, C), values from 0 to 255, and `target` (B, T), int32, to logits
        (B, T, V).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or one of `image` that is unknown.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.models import smolvlm
    >>> tower = {"dim": 6, "num_layers": 1, "num_heads": 2, "intermediate_dim": 7}
    >>> model = smolvlm(
    ...     11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, image_id=9,
    ...     num_images=2, image_size=8, patch_size=2, scale_factor=2, image=tower,
    ... )
    >>> pixels = np.zeros((1, 2, 8, 8, 3), "uint8")  # two images, each of four features
    >>> target = np.array([[1, *[9] * 8, 3, 4]])
    >>> model({"pixels": pixels, "target": target}).shape
    TensorShape([1, 11, 11])
    """
    pixels, x, _ = encode_images(
        image, num_images, dtype, image_size=image_size, patch_size=patch_size, position_size=None,
        image_mean=image_mean, image_std=image_std,
    )  # fmt: skip
    x = layers.PixelShuffle(scale_factor, dtype=dtype, name="pixel_shuffle")(x)
    x = keras.layers.Dense(
        dim, use_bias=False, kernel_initializer=initializer(), dtype=dtype, name="connector"
    )(x)
    place = place_features(x, image_id, num_images, vocabulary_size, dtype)
    decoder = RotaryDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, num_key_value_heads=num_key_value_heads,
        head_dim=head_dim, activation=activation, rms_norm_epsilon=rms_norm_epsilon,
        attention_bias=attention_bias, feed_forward_bias=feed_forward_bias,
        attention_dropout=attention_dropout, tie_output=tie_output, pad_id=pad_id, name=name,
        dtype=dtype,
    )  # fmt: skip

    def block(i: int, window: int | None) -> keras.layers.Layer:
        position = layers.RotaryEmbedding(rope_theta, scaling=rope_scaling, dtype=dtype)
        residual = layers.Residual(input_norm=decoder.norm("norm"), dtype=dtype)
        return decoder.block(i, window, position, residual)

    def stack(tokens: Tensor, x: Tensor, blocks: list[keras.layers.Layer]) -> Tensor:
        x = place(tokens, x)
        for layer in blocks:
            x = layer(x)
        return x

    return decoder.build(
        block, norm=decoder.norm("decoder_norm"), stack=stack, others={"pixels": pixels}
    )
