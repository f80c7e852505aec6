"""ResNet v1.5: "Deep Residual Learning for Image Recognition" (arXiv:1512.03385)."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers import ImageNormalization
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.images.patch_embedding import as_pair
from keras_tfm.layers.types import Arguments, DType, Shape, Tensor
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model

# Table 1 of the paper. Use: resnet(224, **SIZES["50"]).
SIZES: dict[str, Arguments] = {
    "18": {"dims": (64, 128, 256, 512), "depths": (2, 2, 2, 2), "bottleneck": False},
    "34": {"dims": (64, 128, 256, 512), "depths": (3, 4, 6, 3), "bottleneck": False},
    "50": {"dims": (256, 512, 1024, 2048), "depths": (3, 4, 6, 3), "bottleneck": True},
    "101": {"dims": (256, 512, 1024, 2048), "depths": (3, 4, 23, 3), "bottleneck": True},
    "152": {"dims": (256, 512, 1024, 2048), "depths": (3, 8, 36, 3), "bottleneck": True},
}
# Mean and standard deviation of ImageNet's pixels, the usual ones for ResNets.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@builder
def resnet(
    image_size: int | Sequence[int] | None = 224,
    stem_dim: int = 64,
    dims: Sequence[int] = (256, 512, 1024, 2048),
    depths: Sequence[int] = (3, 4, 6, 3),
    bottleneck: bool = True,
    frozen_batch_norm: bool = False,
    image_mean: Sequence[float] = IMAGENET_MEAN,
    image_std: Sequence[float] = IMAGENET_STD,
    name: str = "resnet",
    dtype: DType = None,
) -> Model:
    """A ResNet, from pixels to a feature map, without a head.

    Version 1.5, as in PyTorch: in a bottleneck block, the 3 x 3 convolution has the stride. In
    version 1, which `keras.applications` has, it is the first convolution. Add a head with
    `image_classifier`. The first layer normalises the pixels, so that the model takes values from 0
    to 255 in training and an exported file takes uint8 pixels.

    Args:
        stem_dim: int, channels of the first convolution.
        dims: list of int, channels of each stage. Every stage but the first halves the size.
        depths: list of int, number of blocks of each stage.
        bottleneck: bool, whether a block has three convolutions, with a quarter of the channels in
            the middle one; otherwise two.
        frozen_batch_norm: bool, whether batch normalisations are constants in training, too, as in
            DETR: they use their moving statistics, and nothing in them is trained.

    Returns:
        A functional model from `pixels` (B, height, width, C), values from 0 to 255, to features
        (B, H', W', D), the last stage's output. Sizes are halved, rounded up, once in the first
        convolution, once in its pooling and once in each stage but the first: 1/32 in all.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or `dims` and `depths` of different lengths.

    Example:

    >>> from keras_tfm.models import image_classifier, resnet
    >>> model = resnet(64, stem_dim=4, dims=(8, 12), depths=(1, 2), bottleneck=False)
    >>> model.output.shape
    (None, 8, 8, 12)
    >>> image_classifier(model, num_classes=5).output.shape
    (None, 5)
    """
    size = (None, None) if image_size is None else as_pair("image_size", image_size)
    pixels = keras.Input((*size, len(image_mean)), name="pixels")
    x = ImageNormalization(image_mean, image_std, name="normalization")(pixels)
    x, blocks = feature_map(x, stem_dim, dims, depths, bottleneck, frozen_batch_norm, dtype)
    x = Marker("features", blocks=blocks, dtype=dtype)(x)
    return Model(pixels, x, name=name)


def feature_map(
    x: Tensor,
    stem_dim: int = 64,
    dims: Sequence[int] = (256, 512, 1024, 2048),
    depths: Sequence[int] = (3, 4, 6, 3),
    bottleneck: bool = True,
    frozen_batch_norm: bool = False,
    dtype: DType = None,
) -> tuple[Tensor, list[str]]:
    """The layers of `resnet` between normalised pixels and features, and the names of the blocks.

    Args:
        x: symbolic tensor (B, H, W, C).
        stem_dim, dims, depths, bottleneck, frozen_batch_norm, dtype: as in `resnet`.
    """
    check_integer("stem_dim", stem_dim)
    if len(dims) != len(depths) or not dims:
        raise ValueError(
            "dims and depths must have one value per stage, "
            f"got {len(dims)} and {len(depths)} values"
        )
    for what, values in (("dims", dims), ("depths", depths)):
        for value in values:
            check_integer(what, value)
    x = keras.layers.ZeroPadding2D(3, dtype=dtype, name="stem_padding")(x)
    x = _convolution("stem", stem_dim, 7, 2, dtype)(x)
    x = _norm("stem_norm", frozen_batch_norm, dtype)(x)
    x = keras.layers.ReLU(dtype=dtype, name="stem_activation")(x)
    # Zeros serve as well as -inf: nothing is below zero here.
    x = keras.layers.ZeroPadding2D(1, dtype=dtype, name="pool_padding")(x)
    x = keras.layers.MaxPooling2D(3, 2, dtype=dtype, name="pool")(x)
    names = []
    for stage, (dim, depth) in enumerate(zip(dims, depths, strict=True)):
        for i in range(depth):
            names.append(f"stage_{stage}_block_{i}")
            stride = 2 if stage and not i else 1
            x = ResNetBlock(
                dim, stride, bottleneck, frozen_batch_norm, dtype=dtype, name=names[-1]
            )(x)
    return x, names


@keras.saving.register_keras_serializable("keras_tfm")
class ResNetBlock(RematerializedLayer):
    """Convolutions with batch normalisations in a residual connection: y = ReLU(f(x) + g(x)).

    g is the identity, or a 1 x 1 convolution where the number of channels or the size changes.

    Args:
        dim: int, channels of the output.
        stride: int, stride of the block.
        bottleneck: bool, convolutions of windows 1, 3 and 1 rather than 3 and 3.
        frozen_batch_norm: bool, as in `resnet`.

    Call arguments:
        x: float tensor (B, H, W, C).

    Returns:
        Float tensor (B, ceil(H / stride), ceil(W / stride), dim).

    Example:

    >>> import numpy as np
    >>> from keras_tfm.models.vision.resnet import ResNetBlock
    >>> tuple(ResNetBlock(8, stride=2)(np.zeros((1, 5, 7, 3), "float32")).shape)
    (1, 3, 4, 8)
    """

    def __init__(
        self,
        dim: int,
        stride: int = 1,
        bottleneck: bool = True,
        frozen_batch_norm: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.supports_masking = False  # the output has another shape
        check_integer("dim", dim)
        check_integer("stride", stride)
        if bottleneck and dim % 4:
            raise ValueError(f"dims of bottleneck blocks must be multiples of 4, got {dim}")
        self.dim = dim
        self.stride = stride
        self.bottleneck = bottleneck
        self.frozen_batch_norm = frozen_batch_norm
        windows = (1, 3, 1) if bottleneck else (3, 3)
        widths = (dim // 4, dim // 4, dim) if bottleneck else (dim, dim)
        at = 1 if bottleneck else 0  # the convolution that has the stride
        self.convolutions = [
            _convolution(
                f"convolution_{i}", width, window, stride if i == at else 1, self.dtype_policy
            )
            for i, (width, window) in enumerate(zip(widths, windows, strict=True))
        ]
        self.norms = [self._norm(f"norm_{i}") for i in range(len(windows))]
        self.shortcut: Any = None
        self.shortcut_norm: Any = None

    def build(self, x_shape: Shape) -> None:
        """Creates the weights for C channels."""
        x_shape = (None, None, None, x_shape[-1])  # Keras would check it without the padding
        if x_shape[-1] != self.dim or self.stride != 1:
            self.shortcut = _convolution("shortcut", self.dim, 1, self.stride, self.dtype_policy)
            self.shortcut_norm = self._norm("shortcut_norm")
            self.shortcut.build(x_shape)
            self.shortcut_norm.build(self.shortcut.compute_output_shape(x_shape))
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            convolution.build(x_shape)
            x_shape = (*x_shape[:-1], convolution.filters)
            norm.build(x_shape)
        self.built = True

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        """(B, H, W, C) -> (B, H', W', dim)."""
        y = x
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            y = norm(convolution(_pad(y, convolution)), training=training)
            y = ops.relu(y) if i < len(self.norms) - 1 else y
        if self.shortcut is not None:
            x = self.shortcut_norm(self.shortcut(x), training=training)
        return ops.relu(y + x)

    def rematerialized_call(self, layer_call: Any, *args: Any, **kwargs: Any) -> Any:
        """`layer_call`: recomputing would update the moving statistics twice."""
        return layer_call

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """(B, H', W', dim)."""
        sizes = (None if x is None else -(-x // self.stride) for x in x_shape[1:3])
        return (x_shape[0], *sizes, self.dim)

    def _norm(self, name: str) -> keras.layers.Layer:
        return _norm(name, self.frozen_batch_norm, self.dtype_policy)


def _convolution(
    name: str, dim: int, window: int, stride: int, dtype: DType
) -> keras.layers.Conv2D:
    """A convolution without bias; with a stride, its input has to be padded."""
    return keras.layers.Conv2D(
        dim,
        window,
        strides=stride,
        # With a stride, "same" of Keras may pad the end alone; PyTorch pads both sides alike.
        padding="same" if stride == 1 else "valid",
        data_format="channels_last",
        use_bias=False,
        kernel_initializer=keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal"),
        dtype=dtype,
        name=name,
    )


def _pad(x: Tensor, convolution: keras.layers.Conv2D) -> Tensor:
    """The input of a convolution, padded as in PyTorch."""
    margin = convolution.kernel_size[0] // 2
    if convolution.padding == "same" or margin == 0:
        return x
    return ops.pad(x, ((0, 0), (margin, margin), (margin, margin), (0, 0)))


def _norm(name: str, frozen: bool, dtype: DType) -> keras.layers.BatchNormalization:
    # Keras's `momentum` is 1 - PyTorch's.
    return keras.layers.BatchNormalization(
        momentum=0.9, epsilon=1e-5, trainable=not frozen, dtype=dtype, name=name
    )
