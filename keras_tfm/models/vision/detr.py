"""DETR: "End-to-End Object Detection with Transformers" (arXiv:2005.12872)."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers import ImageNormalization, LayerNormalization, PositionalEncoding2D
from keras_tfm.layers.arguments import as_initializer
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.images.patch_embedding import as_pair
from keras_tfm.layers.types import Activation, Arguments, DType, Initializer, Shape, Tensor
from keras_tfm.models.derived_model import derived_model
from keras_tfm.models.encoder_decoders.encoder_decoder import Blocks
from keras_tfm.models.heads.head_base import checked_labels
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model
from keras_tfm.models.vision.resnet import IMAGENET_MEAN, IMAGENET_STD, feature_map
from keras_tfm.models.vision.resnet import SIZES as RESNET_SIZES

# Table 1 of the paper: DETR and DETR-R101. Use: detr((800, 1066), **SIZES["resnet50"]).
SIZES: dict[str, Arguments] = {
    "resnet50": {"backbone": RESNET_SIZES["50"]},
    "resnet101": {"backbone": RESNET_SIZES["101"]},
}


@builder
def detr(
    image_size: int | Sequence[int] = 800,
    num_classes: int = 91,
    num_queries: int = 100,
    dim: int = 256,
    num_layers: int = 6,
    num_decoder_layers: int | None = None,
    num_heads: int = 8,
    num_decoder_heads: int | None = None,
    intermediate_dim: int = 2048,
    decoder_intermediate_dim: int | None = None,
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    activation_dropout: float = 0.0,
    activation: Activation = "relu",
    backbone: Mapping[str, Any] | None = None,
    frozen_batch_norm: bool = True,
    auxiliary_outputs: bool = False,
    labels: Sequence[str] | None = None,
    image_mean: Sequence[float] = IMAGENET_MEAN,
    image_std: Sequence[float] = IMAGENET_STD,
    name: str = "detr",
    dtype: DType = None,
) -> Model:
    """DETR, from pixels to a set of objects, without anchors and non-maximum suppression.

    A ResNet makes a feature map, an encoder with 2-D sinusoids relates its cells, and a decoder
    without causality turns `num_queries` learned queries into as many detections, most of which are
    "no object". Train it with `training.DetectionLoss`.

    The first layer normalises the pixels, so that the model takes values from 0 to 255 in training
    and an exported file takes uint8 pixels. All images have one size, which the encoding of
    positions belongs to: resize and pad them with `runtime.ImageProcessor(size, resize="fit")`.

    Args:
        image_size: int or (height, width) of the images, in pixels.
        num_classes: int, number of classes of objects (C), without "no object".
        num_queries: int, largest number of objects in an image (N).
        dim: int, width of encoder and decoder (D), a multiple of 4.
        num_heads: int, number of attention heads (H). Must divide `dim`.
        num_decoder_heads: int, that of the decoder. Default: `num_heads`.
        intermediate_dim: int, inner width of the feed-forward networks (F).
        decoder_intermediate_dim: int, that of the decoder. Default: `intermediate_dim`.
        dropout: float, dropout rate after each sublayer.
        attention_dropout: float, dropout rate of the attention weights. Default: `dropout`.
        backbone: dict, the arguments `stem_dim`, `dims`, `depths` and `bottleneck` of `resnet`.
            Default: those of ResNet-50.
        frozen_batch_norm: bool, whether the backbone's batch normalisations are constants in
            training, too. False for training from random weights.
        auxiliary_outputs: bool, whether there are outputs of every decoder block, for auxiliary
            losses. `without_auxiliary_outputs` makes a model without them, with the same weights.
        labels: list of C class names, kept by `save_huggingface` and written to exported files.
        image_mean, image_std: list of float, mean and standard deviation of each channel, for
            values from 0 to 1. Their length is the number of channels.
        dtype: dtype or dtype policy of every layer. Default: the global policy. The last layer of
            the boxes is float32.

    Returns:
        A functional model from `pixels` (B, height, width, 3), values from 0 to 255, to a dict:
        "logits" (B, N, C + 1), the last of which is "no object", and "boxes" (B, N, 4): x of the
        centre, y of the centre, width and height, as fractions of the image's width and height.
        With `auxiliary_outputs` also "auxiliary_logits" (B, L - 1, N, C + 1) and "auxiliary_boxes"
        (B, L - 1, N, 4), of the blocks before the last one.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, `num_heads` does not divide `dim`, or there is not one
            label per class.

    Example:

    >>> from keras_tfm.models import detr
    >>> model = detr(
    ...     (64, 96), num_classes=3, num_queries=5, dim=8, num_layers=1, num_heads=2,
    ...     intermediate_dim=16,
    ...     backbone={"stem_dim": 4, "dims": (8, 8), "depths": (1, 1), "bottleneck": False},
    ... )
    >>> {name: x.shape for name, x in model.output.items()}
    {'logits': (None, 5, 4), 'boxes': (None, 5, 4)}
    """
    check_integer("num_classes", num_classes)
    check_integer("num_queries", num_queries)
    check_integer("num_layers", num_layers)
    check_integer("num_decoder_layers", num_decoder_layers, optional=True)
    labels = checked_labels(labels, num_classes)
    height, width = as_pair("image_size", image_size)
    pixels = keras.Input((height, width, len(image_mean)), name="pixels")
    x = ImageNormalization(image_mean, image_std, name="normalization")(pixels)
    x, blocks = feature_map(
        x,
        **(RESNET_SIZES["50"] if backbone is None else backbone),
        frozen_batch_norm=frozen_batch_norm,
        dtype=dtype,
    )
    x = keras.layers.Conv2D(dim, 1, dtype=dtype, name="projection")(x)
    cells = keras.layers.Reshape((-1, dim), dtype=dtype, name="cells")
    positions = PositionalEncoding2D(dtype=dtype, name="positions")(x)
    x, positions = cells(x), cells(positions)
    stacks = Blocks(
        num_layers=num_layers, num_heads=num_heads, intermediate_dim=intermediate_dim,
        num_decoder_layers=num_decoder_layers, num_decoder_heads=num_decoder_heads,
        decoder_intermediate_dim=decoder_intermediate_dim, dropout=dropout,
        attention_dropout=dropout if attention_dropout is None else attention_dropout,
        activation_dropout=activation_dropout, activation=activation, causal=False, dtype=dtype,
    )  # fmt: skip
    for block in stacks.encoders:
        x = stacks.encoder_block(block)(x, position_encoding=positions)
    normal = keras.initializers.RandomNormal(stddev=1.0)
    queries = ObjectQueries(num_queries, dim, normal, dtype=dtype, name="queries")
    y, query_positions = queries(x)
    norm = LayerNormalization(epsilon=1e-5, dtype=dtype, name="final_norm")
    steps = []
    for block in stacks.decoders:
        y = stacks.decoder_block(block)(
            y, x, position_encoding=query_positions, context_position_encoding=positions
        )
        steps.append(y)
    blocks = [*blocks, *stacks.encoders, *stacks.decoders]
    features = Marker("features", blocks=blocks, dtype=dtype)(norm(y))
    kept = {"num_classes": num_classes, "labels": labels}
    features = Marker("head", "object_detector", kept, dtype=dtype)(features)
    head = _Head(dim, num_classes, dtype)
    outputs = {"logits": head.logits(features), "boxes": head.boxes(features)}
    if auxiliary_outputs and len(steps) > 1:
        earlier = ops.stack([norm(step) for step in steps[:-1]], axis=1)
        outputs["auxiliary_logits"] = head.logits(earlier)
        outputs["auxiliary_boxes"] = head.boxes(earlier)
    return Model(pixels, outputs, name=name)


def without_auxiliary_outputs(model: keras.Model) -> Model:
    """The same model of `detr` with the outputs "logits" and "boxes" alone; weights are shared.

    Args:
        model: `keras.Model` with a dict of outputs.

    Raises:
        ValueError: the model has no such outputs.

    Example:

    >>> from keras_tfm.models import detr, without_auxiliary_outputs
    >>> model = detr(
    ...     64, num_classes=3, num_queries=5, dim=8, num_layers=2, num_heads=2,
    ...     intermediate_dim=16, auxiliary_outputs=True,
    ...     backbone={"stem_dim": 4, "dims": (8, 8), "depths": (1, 1), "bottleneck": False},
    ... )
    >>> model.output["auxiliary_boxes"].shape
    (None, 1, 5, 4)
    >>> list(without_auxiliary_outputs(model).output)
    ['logits', 'boxes']
    """
    outputs = model.output if isinstance(model.output, dict) else {}
    if not {"logits", "boxes"} <= set(outputs):
        raise ValueError(
            'expected a model with the outputs "logits" and "boxes", such as models.detr, '
            f"got {model.name!r}"
        )
    kept = {name: outputs[name] for name in ("logits", "boxes")}
    return derived_model(model, model.input, kept)


class _Head:
    """The layers that turn features (..., D) into classes and boxes."""

    def __init__(self, dim: int, num_classes: int, dtype: DType):
        self.classifier = keras.layers.Dense(num_classes + 1, dtype=dtype, name="classifier")
        self.layers = [
            keras.layers.Dense(dim, "relu", dtype=dtype, name="box_0"),
            keras.layers.Dense(dim, "relu", dtype=dtype, name="box_1"),
            keras.layers.Dense(4, dtype=dtype, name="box_2"),
            # float32: a box in float16 or bfloat16 is up to a pixel off.
            keras.layers.Activation("sigmoid", dtype="float32", name="box_sigmoid"),
        ]

    def logits(self, x: Tensor) -> Tensor:
        return self.classifier(x)

    def boxes(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@keras.saving.register_keras_serializable("keras_tfm")
class ObjectQueries(RematerializedLayer):
    """The decoder's first input, zeros, and the learned encodings that tell queries apart.

    Args:
        num_queries: int, number of queries (N).
        dim: int, their width (D).
        initializer: initializer of the encodings.

    Call arguments:
        x: float tensor (B, S, C), of which only the batch size is used.

    Returns:
        Float tensors (B, N, D), zeros, and (1, N, D), the encodings.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.models.vision.detr import ObjectQueries
    >>> zeros, encodings = ObjectQueries(5, 8)(np.zeros((2, 3, 7), "float32"))
    >>> tuple(zeros.shape), tuple(encodings.shape)
    ((2, 5, 8), (1, 5, 8))
    """

    def __init__(
        self, num_queries: int, dim: int, initializer: Initializer = "random_normal", **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.supports_masking = False  # the output has another shape
        check_integer("num_queries", num_queries)
        check_integer("dim", dim)
        self.num_queries = num_queries
        self.dim = dim
        self.initializer = as_initializer("initializer", initializer)

    def build(self, x_shape: Shape) -> None:
        """Creates the encodings."""
        self.queries = self.add_weight(
            name="queries", shape=(self.num_queries, self.dim), initializer=self.initializer
        )
        self.built = True

    def call(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, C) -> (B, N, D), (1, N, D)."""
        encodings = ops.expand_dims(ops.cast(self.queries, self.compute_dtype), 0)
        shape = (ops.shape(x)[0], self.num_queries, self.dim)
        return ops.zeros(shape, self.compute_dtype), encodings

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """(B, N, D) and (1, N, D)."""
        return (x_shape[0], self.num_queries, self.dim), (1, self.num_queries, self.dim)
