"""Vision Transformers: ViT (arXiv:2010.11929), DeiT (2012.12877), DINO (2104.14294), 2 and 3."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_tfm import layers
from keras_tfm.arguments import check_integer, check_positive, check_rate
from keras_tfm.layers.images.patch_embedding import as_pair
from keras_tfm.layers.types import Activation, Arguments, DType, Shape, Tensor
from keras_tfm.models.heads.head_base import token
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model
from keras_tfm.models.shared_arguments import EncoderArguments

# "base", "large", "huge": table 1 of the ViT paper; "tiny" and "small": table 1 of DeiT, table 1 of
# DINO; "giant": table 17 of DINOv2 (arXiv:2304.07193). Use: vit(224, 16, **SIZES["small"]).
SIZES: dict[str, Arguments] = {
    "tiny": {"dim": 192, "num_layers": 12, "num_heads": 3, "intermediate_dim": 768},
    "small": {"dim": 384, "num_layers": 12, "num_heads": 6, "intermediate_dim": 1536},
    "base": {"dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072},
    "large": {"dim": 1024, "num_layers": 24, "num_heads": 16, "intermediate_dim": 4096},
    "huge": {"dim": 1280, "num_layers": 32, "num_heads": 16, "intermediate_dim": 5120},
    "giant": {
        "dim": 1536, "num_layers": 40, "num_heads": 24, "intermediate_dim": 4096,
        "gated": True, "activation": "silu",
    },
}  # fmt: skip


@builder
def vit(
    image_size: int | Sequence[int] | None = 224,
    patch_size: int | Sequence[int] = 16,
    dim: int = 768,
    num_layers: int = 12,
    num_heads: int = 12,
    intermediate_dim: int = 3072,
    dropout: float = 0.0,
    attention_dropout: float | None = None,
    drop_path: float = 0.0,
    activation: Activation = "gelu",
    gated: bool = False,
    layer_norm_epsilon: float = 1e-6,
    layer_scale: float | None = None,
    attention_bias: bool | Sequence[str] = True,
    distillation_token: bool = False,
    num_registers: int = 0,
    position_size: int | Sequence[int] | None = None,
    antialias: bool = False,
    max_wavelength: float | None = None,
    pooler: bool = False,
    image_mean: Sequence[float] = (0.5, 0.5, 0.5),
    image_std: Sequence[float] = (0.5, 0.5, 0.5),
    name: str = "vit",
    dtype: DType = None,
) -> Model:
    """A Vision Transformer, from pixels to features, without a head.

    Patches are embedded, a class token is put first, learned positions are added, and pre-norm
    blocks follow. Add a head with `image_classifier`. With `distillation_token` it is DeiT; with
    `layer_scale` it is DINOv2, whose registers (arXiv:2309.16588) stand behind the class token;
    with `max_wavelength` too, it is DINOv3 (arXiv:2508.10104), in which each block rotates queries
    and keys by the place of their patch (`RotaryEmbedding2D`). The models of DINO are plain ViTs.

    The first layer normalises the pixels, so that the model takes values from 0 to 255 in training
    and an exported file takes uint8 pixels.

    Args:
        drop_path: float, rate at which the last block's sublayers are skipped in training; it grows
            linearly from 0 in the first block (stochastic depth, arXiv:1603.09382).
        gated: bool, whether the feed-forward networks are gated, with "silu" SwiGLU.
        layer_scale: float, initial value of a learned scale of each sublayer's output
            (arXiv:2103.17239). Default: no such scale.
        attention_bias: bool, whether queries, keys and values have a bias, or a list of those that
            have one, of "query", "key" and "value".
        distillation_token: bool, whether a second token follows the class token.
        num_registers: int, number of tokens without a position behind the class token.
        position_size: int or (height, width), image size to which the position table belongs; for
            other images it is interpolated. Default: `image_size`. Required if that is None.
        antialias: bool, whether the position table is interpolated with a low-pass filter, as in
            DINOv2 with registers.
        max_wavelength: float, longest wavelength of rotary positions, divided by 2 pi, 100 in
            DINOv3; `image_size` must be known. Default: a table of positions.
        pooler: bool, whether there is an output "pooled".

    Returns:
        A functional model from `pixels` (B, height, width, C), values from 0 to 255, to features
        (B, P + N, D): P = 1 class token, and a distillation token or registers if there are any,
        then N patches row by row. With a pooler to a dict of "features" and "pooled" (B, D): a
        dense layer with tanh on the class token.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, an image smaller than a patch, `num_heads` does not
            divide `dim`, or arguments of a table of positions beside `max_wavelength`.

    Example:

    >>> from keras_tfm.models import image_classifier, vit
    >>> model = vit(32, 8, dim=12, num_layers=1, num_heads=3, intermediate_dim=16)
    >>> model.output.shape
    (None, 17, 12)
    >>> image_classifier(model, num_classes=5).output.shape
    (None, 5)
    """
    check_integer("num_layers", num_layers)
    check_integer("num_registers", num_registers, minimum=0)
    check_rate("drop_path", drop_path)
    parts = PixelEncoder(
        image_size=image_size, patch_size=patch_size, dim=dim, num_layers=num_layers,
        num_heads=num_heads, intermediate_dim=intermediate_dim, dropout=dropout,
        attention_dropout=attention_dropout, drop_path=drop_path, activation=activation,
        gated=gated, layer_norm_epsilon=layer_norm_epsilon, layer_scale=layer_scale,
        attention_bias=attention_bias, distillation_token=distillation_token,
        num_registers=num_registers, position_size=position_size, antialias=antialias,
        max_wavelength=max_wavelength,
        image_mean=image_mean, image_std=image_std, dtype=dtype,
    )  # fmt: skip
    pixels, x, names = parts.encode()
    x = layers.LayerNormalization(epsilon=layer_norm_epsilon, dtype=dtype, name="final_norm")(x)
    x = Marker("features", blocks=names, dtype=dtype)(x)
    if not pooler:
        return Model(pixels, x, name=name)
    dense = keras.layers.Dense(
        dim, activation="tanh", kernel_initializer=_initializer(), dtype=dtype, name="pooler"
    )
    pooled = Marker("pooled", dtype=dtype)(dense(token(x, 0)))
    return Model(pixels, {"features": x, "pooled": pooled}, name=name)


@dataclass(frozen=True, kw_only=True)
class PixelEncoder(EncoderArguments):
    """The parts of a Vision Transformer, by the arguments of `vit`.

    Attributes:
        class_token: bool, whether a class token is put before the patches.
        prefix: str, put before the names of all layers.
        patch_bias: bool, whether the patches' projection has a bias.
        embedding_norm: bool, whether a normalisation follows the embeddings.
        interpolation: str, how positions are interpolated, see `PositionEmbedding2D`.
    """

    image_size: int | Sequence[int] | None
    patch_size: int | Sequence[int]
    position_size: int | Sequence[int] | None
    image_mean: Sequence[float]
    image_std: Sequence[float]
    drop_path: float = 0.0
    gated: bool = False
    layer_scale: float | None = None
    attention_bias: bool | Sequence[str] = True
    distillation_token: bool = False
    num_registers: int = 0
    antialias: bool = False
    max_wavelength: float | None = None
    class_token: bool = True
    prefix: str = ""
    patch_bias: bool = True
    embedding_norm: bool = False
    interpolation: str = "bicubic"

    def encode(self, num_images: int | None = None) -> tuple[Tensor, Tensor, list[str]]:
        """From pixels to the features after the last block, before any normalisation.

        Args:
            num_images: int, number of images of each row: the input is (B, N, H, W, C), and the
                features are those of B N images. Default: a row is an image.

        Returns:
            The symbolic input, the symbolic features (B, P + N, D), and the names of the blocks.
        """
        pixels, _, outputs, blocks = self.encode_blocks(num_images)
        return pixels, outputs[-1], blocks

    def encode_blocks(
        self, num_images: int | None = None
    ) -> tuple[Tensor, Tensor, list[Tensor], list[str]]:
        """As `encode`, with the features after each block.

        Returns:
            The symbolic input, the patches (B, H, W, D), the features (B, P + N, D) after each
            block, and the names of the blocks.
        """
        size = (None, None) if self.image_size is None else as_pair("image_size", self.image_size)
        if self.max_wavelength is not None:
            self._check_rotary()
        grid, count = self._grid(), self.class_token + self.distillation_token
        axes = () if num_images is None else (num_images,)
        pixels = keras.Input((*axes, *size, len(self.image_mean)), name="pixels")
        normalization = layers.ImageNormalization(
            self.image_mean, self.image_std, name=f"{self.prefix}normalization"
        )
        x = normalization(pixels)
        if num_images is not None:
            x = FoldImages(name=f"{self.prefix}fold")(x)
        patches = layers.PatchEmbedding(
            self.dim,
            self.patch_size,
            use_bias=self.patch_bias,
            kernel_initializer=_initializer(),
            dtype=self.dtype,
            name=f"{self.prefix}patches",
        )(x)
        if count:
            x = self._tokens(count, 0, "prefix")(patches)
        else:
            x = keras.layers.Reshape((-1, self.dim), name=f"{self.prefix}sequence")(patches)
        if self.max_wavelength is None:
            positions = layers.PositionEmbedding2D(
                grid,
                count,
                _initializer(),
                self.dropout,
                self.antialias,
                self.interpolation,
                dtype=self.dtype,
                name=f"{self.prefix}positions",
            )
            x = positions(x, patches)
        if self.num_registers:
            x = self._tokens(self.num_registers, count, "registers")(x)
        if self.embedding_norm:
            x = self._norm(f"{self.prefix}embedding_norm")(x)
        blocks = [f"{self.prefix}encoder_{i}" for i in range(self.num_layers)]
        outputs = []
        for i, block in enumerate(blocks):
            x = self._block(block, self.drop_path * i / max(1, len(blocks) - 1))(x)
            outputs.append(x)
        return pixels, patches, outputs, blocks

    def _tokens(self, number: int, index: int, name: str) -> layers.PrefixTokens:
        return layers.PrefixTokens(
            number,
            index,
            initializer=_initializer(),
            dtype=self.dtype,
            name=f"{self.prefix}{name}",
        )

    def _norm(self, name: str) -> layers.LayerNormalization:
        return layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, dtype=self.dtype, name=name
        )

    def _grid(self) -> tuple[int, int]:
        """The rows and columns of the position table, or of the patches with rotary positions."""
        size = self.image_size if self.position_size is None else self.position_size
        if size is None:
            raise ValueError(
                "image_size=None needs position_size, the image size of the position table"
            )
        sizes = as_pair("position_size", size)
        patch = as_pair("patch_size", self.patch_size)
        if any(a < b for a, b in zip(sizes, patch, strict=True)):
            raise ValueError(f"position_size must be at least a patch, {patch}, got {sizes}")
        return sizes[0] // patch[0], sizes[1] // patch[1]

    def _check_rotary(self) -> None:
        check_positive("max_wavelength", self.max_wavelength)
        if self.image_size is None:
            raise ValueError("max_wavelength needs an image_size, got None")
        if self.antialias or self.position_size not in (None, self.image_size):
            raise ValueError(
                "max_wavelength takes the place of a position table: expected no antialias, and no "
                f"position_size other than {self.image_size}, got {self.antialias} and "
                f"{self.position_size}"
            )

    def _rotary(self) -> layers.RotaryEmbedding2D | None:
        """The rotary positions of a block."""
        if self.max_wavelength is None:
            return None
        height, width = self._grid()
        prefix = self.class_token + self.distillation_token + self.num_registers
        return layers.RotaryEmbedding2D(
            width, prefix, self.max_wavelength, height, dtype=self.dtype, name="position"
        )

    def _projection_biases(self) -> bool | list[str]:
        """The projections with a bias, in the form of `MultiHeadSelfAttention`."""
        if self.attention_bias is True:
            return True
        given = self.attention_bias or ()
        if isinstance(given, str) or not {*given} <= {"query", "key", "value"}:
            raise ValueError(
                "attention_bias must be True, False or a list of query, key and value, got "
                f"{given!r}"
            )
        return [*given, "output"]

    def _block(self, name: str, drop_path: float) -> layers.TransformerEncoderBlock:
        """One pre-norm block."""
        return layers.TransformerEncoderBlock(
            self_attention=layers.MultiHeadSelfAttention(
                self.num_heads,
                dropout=self.attention_rate,
                use_bias=self._projection_biases(),
                position=self._rotary(),
                kernel_initializer=_initializer(),
                dtype=self.dtype,
                name="self_attention",
            ),
            feed_forward=layers.FeedForward(
                self.intermediate_dim,
                activation=self.activation,
                gated=self.gated,
                kernel_initializer=_initializer(),
                dtype=self.dtype,
                name="feed_forward",
            ),
            residual=layers.Residual(
                input_norm=self._norm("norm"),
                dropout=self.dropout,
                drop_path=drop_path,
                layer_scale=self.layer_scale,
                dtype=self.dtype,
            ),
            dtype=self.dtype,
            name=name,
        )


@keras.saving.register_keras_serializable("keras_tfm")
class FoldImages(keras.layers.Layer):
    """Makes one batch of the images of all rows: (B, N, H, W, C) -> (B N, H, W, C).

    >>> import numpy as np
    >>> from keras_tfm.models.vision.vit import FoldImages
    >>> FoldImages()(np.zeros((2, 3, 4, 5, 1), "float32")).shape
    TensorShape([6, 4, 5, 1])
    """

    def __init__(self, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)

    def call(self, x: Tensor) -> Tensor:
        """(B, N, H, W, C) -> (B N, H, W, C)."""
        return ops.reshape(x, (-1, *x.shape[2:]))

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """(B N, H, W, C)."""
        batch, count = x_shape[:2]
        return (None if batch is None else batch * count, *x_shape[2:])


def _initializer() -> keras.initializers.Initializer:
    return keras.initializers.TruncatedNormal(stddev=0.02)
