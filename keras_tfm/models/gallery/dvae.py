"""The discrete VAE of DALL-E: "Zero-Shot Text-to-Image Generation" (arXiv:2102.12092)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers import (
    CodebookEmbedding,
    GumbelSoftmax,
    ImageDenormalization,
    ImageNormalization,
)
from keras_tfm.layers.images.patch_embedding import as_pair
from keras_tfm.layers.types import Arguments, DType, Tensor
from keras_tfm.models.derived_model import derived_model
from keras_tfm.models.gallery.dvae_block import DVAEBlock, convolution
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model

# Of the released encoder and decoder. Use: dvae(**SIZES["dalle"]).
SIZES: dict[str, Arguments] = {
    "dalle": {"vocabulary_size": 8192, "dim": 256, "num_groups": 4, "num_blocks": 2},
}
# Pixels p from 0 to 1 become 0.8 p + 0.1, within (0.1, 0.9), where a logit-Laplace distribution has
# no difficulties: section A.3, with an epsilon of 0.1.
MEAN = (-0.125,) * 3
STD = (1.25,) * 3


@builder
def dvae_encoder(
    image_size: int | Sequence[int] | None = 256,
    vocabulary_size: int = 8192,
    dim: int = 256,
    num_groups: int = 4,
    num_blocks: int = 2,
    image_mean: Sequence[float] = MEAN,
    image_std: Sequence[float] = STD,
    name: str = "dvae_encoder",
    dtype: DType = None,
) -> Model:
    """The encoder of DALL-E's discrete VAE: from pixels to logits of the codes of a grid.

    A convolution of window 7, groups of residual blocks, each but the last followed by a max
    pooling of 2, and a 1 x 1 convolution. FLAVA's codebook (arXiv:2112.04482) is one: it makes the
    labels of masked image modelling. `argmax` over the last axis gives the codes.

    Args:
        vocabulary_size: int, number of codes (V).
        dim: int, channels of the first group; each further group has twice as many.
        num_groups: int, number of groups. A cell of the grid is 2^(num_groups - 1) pixels wide.
        num_blocks: int, number of residual blocks of each group.

    Returns:
        A functional model from `pixels` (B, height, width, C), values from 0 to 255, to logits
        (B, H', W', V).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range.

    Example:

    >>> from keras_tfm.models import dvae_encoder
    >>> dvae_encoder(16, 11, dim=4, num_groups=3, num_blocks=1).output.shape
    (None, 4, 4, 11)
    """
    size = (None, None) if image_size is None else as_pair("image_size", image_size)
    check_integer("dim", dim)
    check_integer("num_groups", num_groups)
    check_integer("num_blocks", num_blocks)
    check_integer("vocabulary_size", vocabulary_size)
    pixels = keras.Input((*size, len(image_mean)), name="pixels")
    normalized = ImageNormalization(image_mean, image_std, name="normalization")(pixels)
    x = convolution("encoder_input", dim, 7, dtype)(normalized)
    blocks = _blocks("encoder", num_groups, num_blocks)
    for i, block in enumerate(blocks):
        group, last = i // num_blocks, i % num_blocks == num_blocks - 1
        gain = 1 / len(blocks) ** 2
        x = DVAEBlock(dim * 2**group, (3, 3, 3, 1), gain, dtype=dtype, name=block)(x)
        if last and group < num_groups - 1:
            x = keras.layers.MaxPooling2D(2, dtype=dtype, name=f"encoder_pool_{group}")(x)
    x = keras.layers.ReLU(dtype=dtype, name="encoder_activation")(x)
    x = convolution("encoder_output", vocabulary_size, 1, dtype)(x)
    x = Marker("encoded", blocks=blocks, dtype=dtype)(x)
    return Model(pixels, x, name=name)


@builder
def dvae_decoder(
    image_size: int | Sequence[int] = 256,
    vocabulary_size: int = 8192,
    dim: int = 256,
    num_groups: int = 4,
    num_blocks: int = 2,
    code_dim: int = 128,
    image_mean: Sequence[float] = MEAN,
    image_std: Sequence[float] = STD,
    name: str = "dvae_decoder",
    dtype: DType = None,
) -> Model:
    """The decoder of DALL-E's discrete VAE: from the codes of a grid to pixels.

    A vector for each code, groups of residual blocks, each but the last followed by a doubling of
    the size, and a 1 x 1 convolution. The result is the location of each pixel's distribution.

    Args:
        image_size: int or (height, width) of the images, in pixels: multiples of a cell's width.
        vocabulary_size, num_groups, num_blocks: as in `dvae_encoder`.
        dim: int, channels of the last group; each group before has twice as many.
        image_mean, image_std, name, dtype: as in `dvae_encoder`.

    Returns:
        A functional model from `codes` (B, H' W'), int32, row by row, to pixels (B, height, width,
        C), float32, values from 0 to 255.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or a size that is no multiple of a cell's.

    Example:

    >>> from keras_tfm.models import dvae_decoder
    >>> dvae_decoder(16, 11, dim=4, num_groups=3, num_blocks=1, code_dim=6).output.shape
    (None, 16, 16, 3)
    """
    decoder = _Decoder(
        image_size=image_size, vocabulary_size=vocabulary_size, dim=dim, num_groups=num_groups,
        num_blocks=num_blocks, code_dim=code_dim, image_mean=image_mean, image_std=image_std,
        dtype=dtype,
    )  # fmt: skip
    return decoder.build(decoder.layers(), name)


@builder
def dvae(
    image_size: int | Sequence[int] = 256,
    vocabulary_size: int = 8192,
    dim: int = 256,
    num_groups: int = 4,
    num_blocks: int = 2,
    code_dim: int = 128,
    temperature: float = 1.0,
    straight_through: bool = False,
    image_mean: Sequence[float] = MEAN,
    image_std: Sequence[float] = STD,
    name: str = "dvae",
    dtype: DType = None,
) -> Model:
    """The discrete VAE of DALL-E: pixels become a grid of codes, and codes become pixels.

    The encoder of `dvae_encoder`, a Gumbel-softmax over the codes, and the decoder of
    `dvae_decoder`. Train it with `training.DiscreteVAELoss` and lower the temperature with
    `training.Annealing`. `dvae_parts` makes two models of it, which share its weights.

    With random weights all cells have nearly the same logits, and on few pictures the decoder
    learns to ignore the codes: each cell then keeps the same code. Pretrain the encoder for some
    epochs as a classifier, `dvae_parts(model)["encoder"]`, with the clusters of the cells' pixels
    (k-means, V clusters) as labels, as `learn_codes` in examples/drawing.py does.

    Args:
        image_size: int or (height, width) of the images, in pixels: multiples of a cell's width.
        vocabulary_size, dim, num_groups, num_blocks: as in `dvae_encoder`.
        temperature: float, initial temperature of the Gumbel-softmax, see `layers.GumbelSoftmax`.
        straight_through: bool, whether training decodes one code per cell instead of a mixture.
        image_mean, image_std: as in `dvae_encoder`. Normalised pixels must be within 0 and 1.
        name, dtype: as in `dvae_encoder`.

    Returns:
        A functional model from `pixels` (B, height, width, C), values from 0 to 255, to a dict of
        "logits" (B, H', W', V) of the codes, "distribution" (B, height, width, 2 C), location and
        logarithm of the scale of each normalised pixel, and "normalized" (B, height, width, C), the
        normalised pixels, float32.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or a size that is no multiple of a cell's.

    Example:

    >>> from keras_tfm.models import dvae
    >>> model = dvae(16, 11, dim=4, num_groups=3, num_blocks=1, code_dim=6)
    >>> {name: x.shape for name, x in model.output.items()}["distribution"]
    (None, 16, 16, 6)
    """
    decoder = _Decoder(
        image_size=image_size, vocabulary_size=vocabulary_size, dim=dim, num_groups=num_groups,
        num_blocks=num_blocks, code_dim=code_dim, image_mean=image_mean, image_std=image_std,
        dtype=dtype,
    )  # fmt: skip
    decoder.grid()  # raises if the size does not fit
    encoder = dvae_encoder(
        image_size=image_size, vocabulary_size=vocabulary_size, dim=dim, num_groups=num_groups,
        num_blocks=num_blocks, image_mean=image_mean, image_std=image_std, dtype=dtype,
    )  # fmt: skip
    sample = GumbelSoftmax(temperature, straight_through, dtype=dtype, name="gumbel_softmax")
    x = _run(decoder.layers(), sample(encoder.output))
    blocks = [*_blocks("encoder", num_groups, num_blocks), *decoder.blocks()]
    x = Marker("features", blocks=blocks, dtype=dtype)(x)
    normalized = encoder.get_layer("normalization").output
    outputs = {"logits": encoder.output, "distribution": x, "normalized": normalized}
    return Model(encoder.input, outputs, name=name)


def dvae_parts(model: keras.Model) -> dict[str, Model]:
    """The two models in a discrete VAE, of pixels and of codes; they share its weights.

    Args:
        model: `keras.Model` of `dvae`.

    Returns:
        A dict of two functional models: "encoder", as of `dvae_encoder`, from `pixels` to logits
        (B, H', W', V), and "decoder", as of `dvae_decoder`, from `codes` (B, H' W') to pixels.

    Raises:
        ValueError: the model is not one of `dvae`.

    Example:

    >>> from keras_tfm.models import dvae, dvae_parts
    >>> model = dvae(16, 11, dim=4, num_groups=3, num_blocks=1, code_dim=6)
    >>> {name: one.output.shape for name, one in dvae_parts(model).items()}
    {'encoder': (None, 4, 4, 11), 'decoder': (None, 16, 16, 3)}
    """
    if not isinstance(model, Model) or model.family != "dvae":
        raise ValueError(f"expected a model of models.dvae, got {getattr(model, 'name', model)!r}")
    given = {**model.arguments, "dtype": model.get_layer("features_marker").dtype_policy}
    decoder = _Decoder(**{x.name: given[x.name] for x in fields(_Decoder)})
    layers = [model.get_layer(x.name) for x in decoder.layers()]
    encoder = derived_model(model, model.input, model.output["logits"], "dvae_encoder")
    built = decoder.build(layers, "dvae_decoder")
    return {
        "encoder": encoder,
        "decoder": derived_model(model, built.input, built.output, built.name),
    }


@dataclass(frozen=True, kw_only=True)
class _Decoder:
    """The parts of the decoder, by the arguments of `dvae_decoder`."""

    image_size: int | Sequence[int]
    vocabulary_size: int
    dim: int
    num_groups: int
    num_blocks: int
    code_dim: int
    image_mean: Sequence[float]
    image_std: Sequence[float]
    dtype: DType

    def layers(self) -> list[keras.layers.Layer]:
        """From weights of codes, or codes, (B, H', W', ...) to the pixels' distribution."""
        for argument in ("dim", "num_groups", "num_blocks", "code_dim"):
            check_integer(argument, getattr(self, argument))
        layers: list[keras.layers.Layer] = [
            CodebookEmbedding(
                self.vocabulary_size, self.code_dim, dtype=self.dtype, name="codebook"
            )
        ]
        blocks = self.blocks()
        for i, name in enumerate(blocks):
            group, last = i // self.num_blocks, i % self.num_blocks == self.num_blocks - 1
            dim, gain = self.dim * 2 ** (self.num_groups - 1 - group), 1 / len(blocks) ** 2
            layers.append(DVAEBlock(dim, (1, 3, 3, 3), gain, dtype=self.dtype, name=name))
            if last and group < self.num_groups - 1:
                size = f"decoder_size_{group}"
                layers.append(keras.layers.UpSampling2D(2, dtype=self.dtype, name=size))
        layers.append(keras.layers.ReLU(dtype=self.dtype, name="decoder_activation"))
        layers.append(convolution("decoder_output", 2 * len(self.image_mean), 1, self.dtype))
        return layers

    def blocks(self) -> list[str]:
        """The names of the residual blocks."""
        return _blocks("decoder", self.num_groups, self.num_blocks)

    def grid(self) -> tuple[int, int]:
        """The number of rows and columns of codes."""
        height, width = as_pair("image_size", self.image_size)
        check_integer("num_groups", self.num_groups)
        cell = 2 ** (self.num_groups - 1)
        if height % cell or width % cell:
            raise ValueError(
                f"image_size must be multiples of {cell}, the width of a cell with "
                f"{self.num_groups} groups, got {self.image_size}"
            )
        return height // cell, width // cell

    def build(self, layers: Sequence[keras.layers.Layer], name: str) -> Model:
        """The model from codes to pixels."""
        height, width = self.grid()
        codes = keras.Input((height * width,), dtype="int32", name="codes")
        x = ops.reshape(layers[0](codes), (-1, height, width, self.code_dim))
        x = Marker(
            "features",
            "dvae_decoder",
            vars(self),
            embedding="codebook",
            blocks=self.blocks(),
            dtype=self.dtype,
            name="decoder_marker",
        )(_run(layers[1:], x))
        x = ops.sigmoid(ops.cast(x[..., : len(self.image_mean)], "float32"))
        x = ImageDenormalization(self.image_mean, self.image_std, name="denormalization")(x)
        return Model(codes, x, name=name)


def _run(layers: Sequence[keras.layers.Layer], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def _blocks(part: str, num_groups: int, num_blocks: int) -> list[str]:
    """The names of the residual blocks of encoder or decoder, in order."""
    return [f"{part}_{i}" for i in range(num_groups * num_blocks)]
