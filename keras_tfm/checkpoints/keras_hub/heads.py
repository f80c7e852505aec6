"""The heads of KerasHub's tasks, as heads of `keras_tfm.models`."""

from typing import Any

import keras

from keras_tfm import models
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


def add_head(model: Model, task: keras.Model, kind: str | None) -> Model:
    """The model with the head of a task; without one, as it is.

    Args:
        model: the model of the family's builder.
        task: the task; None for a backbone.
        kind: str, one of `KINDS`; None for a backbone.
    """
    if kind is None or kind in GENERATING:
        cap = getattr(task, "final_logit_cap", None)
        if cap is not None:  # Gemma 4's, besides that of its backbone
            raise ValueError(
                f"{type(task).__name__}: final_logit_cap must be None, got {cap!r}: the cap is the "
                "final_logit_soft_cap of the backbone"
            )
        return model
    if kind == "TextClassifier":
        check_hidden_dim(task, model)
        return models.sequence_classifier(model, task.num_classes, task.dropout)
    if kind == "MaskedLM":
        head = task.masked_lm_head
        return models.masked_language_model(
            model,
            activation=head.intermediate_activation,
            layer_norm_epsilon=head.layer_norm_epsilon,
        )
    if kind == "TextEmbedder":
        return models.sentence_embedding(model, _POOLINGS[task.pooling_mode], task.normalize)
    return _image_classifier(model, task)


def _image_classifier(model: Model, task: keras.Model) -> Model:
    """The head of an `ImageClassifier`, whose attributes may be layers."""
    given = task.get_config()
    if given.get("intermediate_dim") is not None:
        raise ValueError(
            f"{type(task).__name__}: intermediate_dim must be None, got {given['intermediate_dim']}"
        )
    pooling, prefix = given["pooling"], None
    if pooling == "gap":  # the mean of all tokens, the class token included
        pooling, prefix = "mean", 0
    known = {"token": "first", "mean": "mean", "avg": "mean"}
    if pooling not in known:
        raise ValueError(
            f"{type(task).__name__}: pooling must be 'token', 'gap' or 'avg', got {pooling!r}"
        )
    rate = given["dropout"]
    rate = rate if isinstance(rate, int | float) else task.dropout.rate
    return models.image_classifier(
        model, given["num_classes"], known[pooling], dropout=rate, prefix=prefix
    )


def check_hidden_dim(task: keras.Model, model: Model) -> None:
    """Raises if a classifier's dense layer has another width than the model."""
    dim = model.arguments["dim"]
    if getattr(task, "hidden_dim", dim) != dim:
        raise ValueError(
            f"{type(task).__name__}: hidden_dim must be that of the backbone ({dim}), "
            f"got {task.hidden_dim}"
        )


def final_activation(task: keras.Model, kind: str | None) -> Any:
    """The activation of a classifier's logits; None if it changes nothing."""
    if kind not in ("TextClassifier", "ImageClassifier"):
        return None
    activation = keras.activations.get(getattr(task, "activation", None))
    return None if activation is keras.activations.linear else activation
