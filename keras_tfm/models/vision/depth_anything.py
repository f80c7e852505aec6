"""Depth Anything (arXiv:2401.10891) and Depth Anything v2 (arXiv:2406.09414)."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer, check_positive
from keras_tfm.layers import LayerNormalization
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.images.patch_embedding import as_pair, height_and_width
from keras_tfm.layers.types import Activation, Arguments, DType, Shape, Size, Tensor
from keras_tfm.models.features import block_numbers
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model
from keras_tfm.models.vision.vit import SIZES as VIT_SIZES
from keras_tfm.models.vision.vit import PixelEncoder

# Version 2: `model_configs` and `intermediate_layer_idx` of the authors' code
# (https://github.com/DepthAnything/Depth-Anything-V2). depth_anything(518, **SIZES["small"]).
SIZES: dict[str, Arguments] = {
    "small": {**VIT_SIZES["small"], "reassemble_dims": (48, 96, 192, 384), "fusion_dim": 64},
    "base": {**VIT_SIZES["base"], "reassemble_dims": (96, 192, 384, 768), "fusion_dim": 128},
    "large": {
        **VIT_SIZES["large"], "features_of": (4, 11, 17, 23),
        "reassemble_dims": (256, 512, 1024, 1024), "fusion_dim": 256,
    },
}  # fmt: skip


@builder
def depth_anything(
    image_size: int | Sequence[int] | None = 518,
    patch_size: int = 14,
    dim: int = 384,
    num_layers: int = 12,
    num_heads: int = 6,
    intermediate_dim: int = 1536,
    features_of: Sequence[int] = (2, 5, 8, 11),
    reassemble_dims: Sequence[int] = (48, 96, 192, 384),
    fusion_dim: int = 64,
    head_dim: int = 32,
    metric: bool = False,
    max_depth: float = 1.0,
    dropout: float = 0.0,
    attention_dropout: float | None = None,
    drop_path: float = 0.0,
    activation: Activation = "gelu",
    gated: bool = False,
    layer_norm_epsilon: float = 1e-6,
    layer_scale: float = 1.0,
    attention_bias: bool = True,
    position_size: int | Sequence[int] | None = 518,
    image_mean: Sequence[float] = (0.485, 0.456, 0.406),
    image_std: Sequence[float] = (0.229, 0.224, 0.225),
    name: str = "depth_anything",
    dtype: DType = None,
) -> Model:
    """Depth Anything, from pixels to a map of depths: DINOv2 with the head of DPT.

    The features of four blocks of DINOv2 become maps at 4, 2, 1 and 1/2 times the resolution of the
    patches (DPT, arXiv:2103.13413), which are fused from the coarsest to the finest. Convolutions
    then compute the depth of each pixel.

    Args:
        features_of: list of int, four numbers of blocks, from 0, in increasing order.
        reassemble_dims: list of four int, channels of the maps of these blocks.
        fusion_dim: int, channels of the maps when they are fused.
        head_dim: int, channels before the last convolution.
        metric: bool, whether the result is a depth in metres, `max_depth` times a sigmoid. Default:
            an inverse depth up to a factor and a shift, at least 0.
        max_depth: float, factor of the result: 20 of indoor models, 80 of outdoor models.
        drop_path, gated, layer_scale, attention_bias, position_size: as in `vit`.

    Returns:
        A functional model from `pixels` (B, height, width, C), values from 0 to 255, to depths
        (B, p (height // p), p (width // p)), p the patch size. Sizes are usually multiples of p.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, an image smaller than a patch, or `num_heads` does not
            divide `dim`.

    Example:

    >>> from keras_tfm.models import depth_anything
    >>> model = depth_anything(
    ...     (28, 42), dim=12, num_layers=4, num_heads=2, intermediate_dim=24, position_size=28,
    ...     features_of=range(4), reassemble_dims=(4, 4, 6, 6), fusion_dim=4, head_dim=3,
    ... )
    >>> model.output.shape
    (None, 28, 42)
    """
    check_positive("max_depth", max_depth)
    numbers = block_numbers(features_of, num_layers)
    if len(numbers) != 4 or len(reassemble_dims) != 4 or sorted(set(numbers)) != numbers:
        raise ValueError(
            "features_of must be four blocks in increasing order, each with one of "
            f"reassemble_dims, got {list(features_of)} and {list(reassemble_dims)}"
        )
    for key, value in (("fusion_dim", fusion_dim), ("head_dim", head_dim)):
        check_integer(key, value)
    as_pair("patch_size", patch_size)
    parts = PixelEncoder(
        image_size=image_size, patch_size=patch_size, dim=dim, num_layers=num_layers,
        num_heads=num_heads, intermediate_dim=intermediate_dim, dropout=dropout,
        attention_dropout=attention_dropout, drop_path=drop_path, activation=activation,
        gated=gated, layer_norm_epsilon=layer_norm_epsilon, layer_scale=layer_scale,
        attention_bias=attention_bias, position_size=position_size, image_mean=image_mean,
        image_std=image_std, dtype=dtype,
    )  # fmt: skip
    pixels, patches, outputs, names = parts.encode_blocks()
    norm = LayerNormalization(epsilon=layer_norm_epsilon, dtype=dtype, name="final_norm")
    features = [norm(outputs[i]) for i in numbers]
    features[-1] = Marker("features", blocks=names, dtype=dtype)(features[-1])
    neck = _Neck(fusion_dim, dtype)
    maps = [
        neck.reassemble(i, Grid(dtype=dtype, name=f"grid_{i}")(x, patches), channels)
        for i, (x, channels) in enumerate(zip(features, reassemble_dims, strict=True))
    ]
    x = neck.fuse(maps)
    x = Marker("head", "depth_estimator", dtype=dtype)(x)
    x = _convolution("depth_0", fusion_dim // 2, dtype)(x)
    x = AlignedResize(patch_size, dtype=dtype, name="resize_depth")(x, patches)
    x = ops.relu(_convolution("depth_1", head_dim, dtype)(x))
    x = _convolution("depth_2", 1, dtype, window=1)(x)[..., 0]
    x = ops.sigmoid(x) if metric else ops.relu(x)
    return Model(pixels, x if max_depth == 1.0 else x * max_depth, name=name)


class _Neck:
    """The layers between the features of blocks and one map.

    Args:
        dim: int, channels when maps are fused.
        dtype: of the layers.
    """

    def __init__(self, dim: int, dtype: DType):
        self.dim = dim
        self.dtype = dtype

    def reassemble(self, i: int, x: Tensor, channels: int) -> Tensor:
        """A block's features in a grid, resized by 4, 2, 1 or 1/2: (B, H', W', fusion dim)."""
        check_integer("reassemble_dims", channels)
        x = _convolution(f"reassemble_{i}", channels, self.dtype, window=1)(x)
        if i < 2:
            factor = (4, 2)[i]
            x = keras.layers.Conv2DTranspose(
                channels, factor, strides=factor, data_format="channels_last", dtype=self.dtype,
                name=f"resize_{i}",
            )(x)  # fmt: skip
        elif i == 3:
            # "same" of Keras may pad the end alone; PyTorch pads both sides.
            x = keras.layers.ZeroPadding2D(1, dtype=self.dtype, name=f"padding_{i}")(x)
            x = _convolution(f"resize_{i}", channels, self.dtype, stride=2)(x)
        return _convolution(f"neck_{i}", self.dim, self.dtype, use_bias=False)(x)

    def fuse(self, maps: list[Tensor]) -> Tensor:
        """Maps from fine to coarse -> a map twice as fine as the first."""
        x = maps[-1]
        for i, finer in enumerate([*maps[-2::-1], None]):
            if i:
                x = x + self._residual(f"fusion_{i}_residual_0", maps[-1 - i])
            x = self._residual(f"fusion_{i}_residual_1", x)
            scale = 2 if finer is None else 1
            resize = AlignedResize(scale, dtype=self.dtype, name=f"fusion_{i}_resize")
            x = resize(x, x if finer is None else finer)
            x = _convolution(f"fusion_{i}_projection", self.dim, self.dtype, window=1)(x)
        return x

    def _residual(self, name: str, x: Tensor) -> Tensor:
        y = _convolution(f"{name}_0", self.dim, self.dtype)(ops.relu(x))
        return x + _convolution(f"{name}_1", self.dim, self.dtype)(ops.relu(y))


def _convolution(
    name: str, channels: int, dtype: DType, window: int = 3, stride: int = 1, use_bias: bool = True
) -> keras.layers.Conv2D:
    """A convolution; with a stride, its input has to be padded."""
    return keras.layers.Conv2D(
        channels,
        window,
        strides=stride,
        padding="same" if stride == 1 else "valid",
        data_format="channels_last",
        use_bias=use_bias,
        dtype=dtype,
        name=name,
    )


@keras.saving.register_keras_serializable("keras_tfm")
class Grid(RematerializedLayer):
    """The features of patches as a map: (B, 1 + H W, D) -> (B, H, W, D), without the class token.

    Call arguments:
        x: (B, 1 + H W, D), features.
        patches: (B, H, W, ...), of which the sizes are read.

    >>> import numpy as np
    >>> from keras_tfm.models.vision.depth_anything import Grid
    >>> Grid()(np.ones((1, 7, 4), "float32"), np.ones((1, 2, 3, 4), "float32")).shape
    TensorShape([1, 2, 3, 4])
    """

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = False  # the output has another shape

    def call(self, x: Tensor, patches: Tensor) -> Tensor:
        """(B, 1 + H W, D) -> (B, H, W, D)."""
        return ops.reshape(x[:, 1:], (-1, *height_and_width(patches), x.shape[-1]))

    def compute_output_shape(self, x_shape: Shape, patches_shape: Shape) -> Shape:
        """The shape of the map."""
        return (*patches_shape[:3], x_shape[-1])


@keras.saving.register_keras_serializable("keras_tfm")
class AlignedResize(RematerializedLayer):
    """Bilinear resizing in which the corners keep their values, to the size of another map.

    As `torch.nn.functional.interpolate(mode="bilinear", align_corners=True)`.

    Args:
        scale: int, size of the result in units of the other map's size.

    Call arguments:
        x: float tensor (B, H, W, C).
        other: (B, H', W', ...), of which the sizes are read.

    Returns:
        Float tensor (B, scale H', scale W', C).

    >>> import numpy as np
    >>> from keras_tfm.models.vision.depth_anything import AlignedResize
    >>> x = np.array([[[[0.0], [2.0]]]], "float32")
    >>> AlignedResize()(x, np.zeros((1, 1, 3, 1), "float32"))[0, 0, :, 0].numpy().tolist()
    [0.0, 1.0, 2.0]
    """

    def __init__(self, scale: int = 1, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = False  # the output has another shape
        check_integer("scale", scale)
        self.scale = scale

    def call(self, x: Tensor, other: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, scale H', scale W', C)."""
        height, width = (self.scale * size for size in height_and_width(other))
        if keras.backend.backend() == "tensorflow":
            from keras_tfm.layers.tensorflow.aligned_resize import resize_aligned

            return resize_aligned(x, height, width)
        return resize_by_products(x, height, width)

    def compute_output_shape(self, x_shape: Shape, other_shape: Shape) -> Shape:
        """The shape of the result."""
        sizes = (None if size is None else self.scale * size for size in other_shape[1:3])
        return (x_shape[0], *sizes, x_shape[-1])


def resize_by_products(x: Tensor, height: Size, width: Size) -> Tensor:
    """What `AlignedResize` computes, on every backend: two products with constant matrices."""
    _, old_height, old_width, channels = tuple(x.shape)
    y = ops.cast(x, "float32")
    y = ops.reshape(y, (-1, old_height, old_width * channels))
    y = ops.reshape(ops.matmul(_weights(old_height, height), y), (-1, old_width, channels))
    y = ops.matmul(_weights(old_width, width), y)
    return ops.cast(ops.reshape(y, (-1, height, width, channels)), x.dtype)


def _weights(size: int, new_size: int) -> np.ndarray:
    """The matrix (new_size, size) that interpolates `size` values."""
    at = np.arange(new_size) * ((size - 1) / max(new_size - 1, 1))
    distances = np.abs(at[:, None] - np.arange(size))
    return np.maximum(0.0, 1.0 - distances).astype("float32")
