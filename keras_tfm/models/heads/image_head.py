"""The head for image classification."""

from collections.abc import Sequence

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers import PrefixTokens
from keras_tfm.layers.types import DType, Initializer, Tensor
from keras_tfm.models.heads.head_base import checked_labels, head_base, token
from keras_tfm.models.identity import head, identity_of
from keras_tfm.models.model import Model

POOLINGS = ("first", "mean", "first_and_mean", "distilled")


@head
def image_classifier(
    model: keras.Model,
    num_classes: int,
    pooling: str | None = None,
    dropout: float | None = None,
    labels: Sequence[str] | None = None,
    prefix: int | None = None,
    features: Tensor | str | None = None,
    kernel_initializer: Initializer | None = None,
    dtype: DType = None,
) -> Model:
    """Adds a classifier of images: logits (B, C).

    Args:
        model: functional model, such as `models.vit(...)`.
        num_classes: int, number of classes (C); 1 for regression.
        pooling: str, the input of the dense layer: "first", the class token (ViT,
            arXiv:2010.11929); "mean", the average of the patches; "first_and_mean", both
            concatenated (DINOv2, arXiv:2304.07193); "distilled", the average of two classifiers, of
            the class token and of the distillation token (DeiT, arXiv:2012.12877). Default:
            "first"; "mean" for a model without a class token, such as `siglip_image`, and for a
            feature map (B, H', W', D), such as that of `resnet`.
        dropout: float, dropout rate before the last layer. Default: the model's; 0 for
            hand-composed models.
        labels: list of C class names, kept by `save_huggingface` and written to exported files.
        prefix: int, number of tokens before the patches. Default: that of the model; 1 for
            hand-composed models.
        features, kernel_initializer, dtype: see `keras_tfm.models.heads.text_heads`.

    Raises:
        TypeError: the model is not functional.
        ValueError: unknown pooling, "distilled" for a model without a distillation token, or a
            class token of a feature map; the number of labels is not that of the classes; the model
            has no features.

    Example:

    >>> from keras_tfm.models import image_classifier, vit
    >>> model = vit(32, 8, dim=12, num_layers=1, num_heads=3, intermediate_dim=16)
    >>> image_classifier(model, num_classes=3, pooling="mean").output.shape
    (None, 3)
    """
    labels = checked_labels(labels, num_classes)
    base = head_base(model, features, kernel_initializer, dtype)
    is_map = len(base.features.shape) == 4
    check_integer("prefix", prefix, minimum=0, optional=True)
    if prefix is None:
        prefix = _prefix(model, features)
    if pooling is None:
        pooling = "mean" if is_map or not prefix else "first"
    known = ("mean",) if is_map else POOLINGS
    if pooling not in known:
        raise ValueError(
            f"pooling must be one of {list(known)} for features of {len(base.features.shape)} "
            f"axes, got {pooling!r}"
        )
    has_distillation = base.argument("distillation_token", None, False)
    if pooling == "distilled" and features is None and not has_distillation:
        raise ValueError(
            f"pooling='distilled' needs a model with a distillation token, got {model.name!r} "
            "without one"
        )
    x = base.mark(base.features, labels=labels, pooling=pooling)
    if pooling == "distilled":
        first = base.classify(token(x, 0), num_classes, dropout)
        second = base.classify(token(x, 1), num_classes, dropout, name="distillation_classifier")
        return base.with_outputs((first + second) / 2)
    if is_map:
        x = ops.mean(x, axis=(1, 2))
        return base.with_outputs(base.classify(x, num_classes, dropout))
    pooled = []
    if pooling != "mean":
        pooled.append(token(x, 0))
    if pooling != "first":
        pooled.append(ops.mean(x[:, prefix:], axis=1))
    x = ops.concatenate(pooled, axis=-1) if len(pooled) == 2 else pooled[0]
    return base.with_outputs(base.classify(x, num_classes, dropout))


def _prefix(model: keras.Model, features: Tensor | str | None) -> int:
    """The number of tokens before the patches; 1 if it is unknown."""
    if features is not None or identity_of(model).family is None:
        return 1
    return sum(x.count for x in model.layers if isinstance(x, PrefixTokens))
