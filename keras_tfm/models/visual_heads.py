"""Task heads of models of texts and image regions."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_tfm.arguments import check_integer
from keras_tfm.layers import LayerNormalization
from keras_tfm.models.head_base import HeadBase, checked_labels
from keras_tfm.models.model import Model


def visual_question_answering(
    model: keras.Model,
    num_answers: int,
    labels: Sequence[str] | None = None,
    layer_norm_epsilon: float | None = None,
    features: Any = None,
    kernel_initializer: Any = None,
    dtype: Any = None,
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
        features, kernel_initializer, dtype: see `keras_tfm.models.heads`.

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
    base = HeadBase(model, features, kernel_initializer, dtype)
    x = base.mark("visual_question_answering", locals(), base.pooled())
    x = base.dense(2 * x.shape[-1], "answer_inner", "gelu")(x)
    epsilon = base.argument("layer_norm_epsilon", layer_norm_epsilon, 1e-12)
    x = LayerNormalization(epsilon=epsilon, dtype=base.dtype, name="answer_norm")(x)
    return Model(model.input, base.dense(num_answers, "answer")(x), name=model.name)
