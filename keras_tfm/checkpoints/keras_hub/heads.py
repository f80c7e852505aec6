"""The heads of KerasHub's tasks, as heads of `keras_tfm.models`."""

from typing import Any

import keras

from keras_tfm import models
from keras_tfm.checkpoints.keras_hub.family import HubFamily
from keras_tfm.models import Model

# The base classes of KerasHub's tasks; a Seq2SeqLM is a CausalLM, too.
KINDS = (
    "Seq2SeqLM",
    "CausalLM",
    "TextClassifier",
    "MaskedLM",
    "TextEmbedder",
    "ImageClassifier",
)
GENERATING = ("Seq2SeqLM", "CausalLM")
_POOLINGS = {"mean": "mean", "cls": "first", "max": "max", "last": "last"}


def kind_of(task: keras.Model) -> str:
    """The kind of a task, one of `KINDS`.

    Raises:
        ValueError: the task is of another kind.
    """
    names = [cls.__name__ for cls in type(task).__mro__]
    for kind in KINDS:
        if kind in names:
            return kind
    raise ValueError(
        f"the task must be a {', '.join(KINDS)} of KerasHub, got {type(task).__name__}: "
        "give its backbone"
    )


def add_head(model: Model, task: Any, kind: str | None, family: HubFamily) -> Model:
    """The model with the head of a task; without one, as it is.

    Args:
        model: the model of the family's builder.
        task: the task, or None.
        kind: str, one of `KINDS`, or None.
        family: the family of the backbone.
    """
    if kind is None or kind in GENERATING:
        return model
    given = family.head_arguments.get(kind, {})
    if kind == "TextClassifier":
        check_hidden_dim(task, model)
        return models.sequence_classifier(model, task.num_classes, task.dropout, **given)
    if kind == "MaskedLM":
        head = task.masked_lm_head
        return models.masked_language_model(
            model,
            activation=head.intermediate_activation,
            layer_norm_epsilon=head.layer_norm_epsilon,
        )
    if kind == "TextEmbedder":
        return models.sentence_embedding(model, _POOLINGS[task.pooling_mode], task.normalize)
    return models.image_classifier(model, task.num_classes, dropout=task.dropout, **given)


def check_hidden_dim(task: Any, model: Model) -> None:
    """Raises if a classifier's dense layer has another width than the model."""
    dim = model.arguments["dim"]
    if getattr(task, "hidden_dim", dim) != dim:
        raise ValueError(
            f"{type(task).__name__}: hidden_dim must be that of the backbone ({dim}), "
            f"got {task.hidden_dim}"
        )


def final_activation(task: Any, kind: str | None) -> Any:
    """The activation of a classifier's logits, or None if it changes nothing."""
    if kind not in ("TextClassifier", "ImageClassifier"):
        return None
    activation = keras.activations.get(getattr(task, "activation", None))
    return None if activation is keras.activations.linear else activation
