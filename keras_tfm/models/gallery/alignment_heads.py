"""Task heads of models of alignments."""

from collections.abc import Sequence

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.types import DType, Initializer, Tensor
from keras_tfm.models.heads.head_base import checked_labels, head_base
from keras_tfm.models.identity import head, tensors_of
from keras_tfm.models.model import Model


@head
def masked_msa(
    model: keras.Model, kernel_initializer: Initializer | None = None, dtype: DType = None
) -> Model:
    """Adds a head that predicts masked residues of an alignment: logits (B, S, N, V).

    A dense layer: AlphaFold 2 (Jumper et al. 2021), supplement 1.9.9. `text.MaskAlignments` masks
    the inputs and makes the labels.

    Args:
        model: functional model, `models.evoformer(...)`.
        kernel_initializer, dtype: see `keras_tfm.models.heads.text_heads`.

    Raises:
        TypeError: the model is not functional.
        ValueError: the model is not one of alignments.

    Example:

    >>> from keras_tfm.models import evoformer, masked_msa
    >>> model = evoformer(dim=8, pair_dim=4, num_layers=1, num_heads=2, num_pair_heads=1)
    >>> masked_msa(model).output.shape
    (None, None, None, 24)
    """
    base = head_base(model, None, kernel_initializer, dtype)
    x = base.mark(_alignments(model, "alignment", "masked_msa"))
    vocabulary_size = base.argument("vocabulary_size", None, None)
    logits = base.dense(vocabulary_size, "masked_msa")(x)
    return base.with_outputs(logits)


@head
def pair_classifier(
    model: keras.Model,
    num_classes: int,
    labels: Sequence[str] | None = None,
    kernel_initializer: Initializer | None = None,
    dtype: DType = None,
) -> Model:
    """Adds a classifier of pairs of residues: logits (B, N, N, C), the same for (i, j) and (j, i).

    A dense layer of the pair representation plus its transpose: AlphaFold 2 (Jumper et al. 2021),
    supplement 1.9.8. With two classes, it predicts contacts; with 64 bins of distances, the
    distogram.

    Args:
        model: functional model, `models.evoformer(...)`.
        num_classes: int, number of classes of a pair (C).
        labels: list of C names.
        kernel_initializer, dtype: see `keras_tfm.models.heads.text_heads`.

    Raises:
        TypeError: the model is not functional.
        ValueError: the model is not one of alignments; the number of labels is not that of the
            classes.

    Example:

    >>> from keras_tfm.models import evoformer, pair_classifier
    >>> model = evoformer(dim=8, pair_dim=4, num_layers=1, num_heads=2, num_pair_heads=1)
    >>> pair_classifier(model, num_classes=2).output.shape
    (None, None, None, 2)
    """
    check_integer("num_classes", num_classes)
    labels = checked_labels(labels, num_classes)
    base = head_base(model, None, kernel_initializer, dtype)
    z = base.mark(_alignments(model, "pairs", "pair_classifier"), labels=labels)
    logits = base.dense(num_classes, "pair_classifier")(z)
    logits = logits + ops.transpose(logits, (0, 2, 1, 3))
    return base.with_outputs(logits)


def _alignments(model: keras.Model, role: str, function: str) -> Tensor:
    """The tensor of a model of alignments in a role."""
    found = tensors_of(model, role)
    if not found:
        raise ValueError(f"{function} needs a model of alignments, evoformer, got {model.name!r}")
    return found[-1]
