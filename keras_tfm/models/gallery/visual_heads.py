"""Task heads of models of texts and image regions."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_tfm.arguments import check_integer
from keras_tfm.layers import LayerNormalization
from keras_tfm.layers.types import DType, Initializer, Tensor
from keras_tfm.models.heads.head_base import HeadBase, checked_labels, head_base
from keras_tfm.models.heads.text_heads import masked_token_logits
from keras_tfm.models.identity import head, tensors_of
from keras_tfm.models.model import Model


@head
def visual_question_answering(
    model: keras.Model,
    num_answers: int,
    labels: Sequence[str] | None = None,
    layer_norm_epsilon: float | None = None,
    features: Tensor | str | None = None,
    kernel_initializer: Initializer | None = None,
    dtype: DType = None,
) -> Model:
    """Adds a classifier of questions about images: logits (B, A) of the answers.

    A dense layer of twice the width of the pooled vector with GELU, a normalisation, and a dense
    layer, as in LXMERT (arXiv:1908.07490).

    Args:
        model: functional model, such as `models.lxmert(...)`.
        num_answers: int, number of answers (A).
        labels: list of A answers.
        layer_norm_epsilon: float, epsilon of the normalisation. Default: the model's; 1e-12 for
            hand-composed models.
        features, kernel_initializer, dtype: see `keras_tfm.models.heads.text_heads`.

    Raises:
        TypeError: the model is not functional.
        ValueError: the model has no features, and they are not given; the number of labels is not
            that of the answers.

    Example:

    >>> from keras_tfm.models import lxmert, visual_question_answering
    >>> model = lxmert(11, dim=8, num_layers=1, num_visual_layers=1, num_cross_layers=1,
    ...                num_heads=2, intermediate_dim=16, region_dim=6, num_regions=5)
    >>> visual_question_answering(model, num_answers=3).output.shape
    (None, 3)
    """
    check_integer("num_answers", num_answers)
    labels = checked_labels(labels, num_answers)
    base = head_base(model, features, kernel_initializer, dtype)
    x = base.mark(base.pool(), labels=labels)
    logits = _answers(base, x, num_answers, layer_norm_epsilon)
    return base.with_outputs(logits)


def _answers(
    base: HeadBase, x: Tensor, num_answers: int, layer_norm_epsilon: float | None = None
) -> Any:
    """Logits (B, A) of a pooled vector (B, D)."""
    x = base.dense(2 * x.shape[-1], "answer_inner", "gelu")(x)
    epsilon = base.argument("layer_norm_epsilon", layer_norm_epsilon, 1e-12)
    x = LayerNormalization(epsilon=epsilon, dtype=base.dtype, name="answer_norm")(x)
    return base.dense(num_answers, "answer")(x)


@head
def image_text_pretraining(
    model: keras.Model,
    num_region_classes: int,
    num_region_attributes: int | None = None,
    region_features: bool = False,
    num_answers: int | None = None,
    kernel_initializer: Initializer | None = None,
    dtype: DType = None,
) -> Model:
    """Adds the heads of pretraining of ViLBERT (arXiv:1908.02265) and LXMERT (arXiv:1908.07490).

    The outputs are a dict of logits: "tokens" (B, T, V) of masked words, as in
    `masked_language_model`; "regions" (B, N, K) of the classes of masked regions, for
    `training.RegionKLDivergence`: a dense layer with the model's activation, a normalisation, and
    a dense layer; and "matching" (B, 2) of the pooled vector, class 1 = the text belongs to the
    image, class 0 = it does not. The other arguments add the tasks that only LXMERT has.

    Args:
        model: functional model of texts and regions, `models.vilbert(...)` or `models.lxmert(...)`.
        num_region_classes: int, number of classes of the object detector (K).
        num_region_attributes: int, number of attributes (A), for the output "attributes"
            (B, N, A). None: no such output.
        region_features: bool, whether there is an output "region_features" (B, N, C), for the
            regression of the features of masked regions.
        num_answers: int, number of answers, for the output "answers" of the head of
            `visual_question_answering`. None: no such output.
        kernel_initializer, dtype: see `keras_tfm.models.heads.text_heads`.

    Raises:
        TypeError: the model is not functional.
        ValueError: the model has no features of regions.

    Example:

    >>> from keras_tfm.models import image_text_pretraining, lxmert
    >>> model = lxmert(11, dim=8, num_layers=1, num_visual_layers=1, num_cross_layers=1,
    ...                num_heads=2, intermediate_dim=16, region_dim=6, num_regions=5)
    >>> heads = image_text_pretraining(model, num_region_classes=7)
    >>> [heads.output[x].shape for x in ("tokens", "regions", "matching")]
    [(None, None, 11), (None, 5, 7), (None, 2)]
    """
    check_integer("num_region_classes", num_region_classes)
    check_integer("num_region_attributes", num_region_attributes, optional=True)
    check_integer("num_answers", num_answers, optional=True)
    base = head_base(model, None, kernel_initializer, dtype)
    regions = tensors_of(model, "visual")
    if not regions:
        raise ValueError(
            f"expected a model of texts and regions, such as models.vilbert, got {model.name!r}"
        )
    x = base.mark(base.features)
    y = base.transform(regions[-1], regions[-1].shape[-1], "region_transform")
    outputs = {
        "tokens": masked_token_logits(base, x),
        "regions": base.dense(num_region_classes, "region_classes")(y),
        "matching": base.dense(2, "matching")(base.pool()),
    }
    if num_region_attributes:
        outputs["attributes"] = base.dense(num_region_attributes, "region_attributes")(y)
    if region_features:
        width = base.argument("region_dim", None, None)
        outputs["region_features"] = base.dense(width, "region_regression")(y)
    if num_answers:
        outputs["answers"] = _answers(base, base.pool(), num_answers)
    return base.with_outputs(outputs)
