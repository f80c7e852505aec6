"""The classes of `transformers` that many families have, each an `Architecture`.

`prefixes` are those of the tensors that only models with this head have; `decoder` and `prefix` are
as in `Architecture`. A dropout rate or a pooling may be a function that reads it.
"""

from collections.abc import Callable
from typing import TypeVar

from keras_tfm import models
from keras_tfm.checkpoints.config import Config
from keras_tfm.checkpoints.family import Architecture

Value = TypeVar("Value", str, float | None)
Rate = float | None | Callable[[Config], float | None]
# A function: models may have any of several poolings, which the configuration names.
Pooling = str | Callable[[Config], str]


def backbone(*prefixes: str, prefix: str | None = None) -> Architecture:
    """The model without a head, of a builder whose models have one."""
    return Architecture(
        lambda model, config: models.backbone(model), prefixes=prefixes, prefix=prefix
    )


def masked_language_model(
    *prefixes: str, activation: str | None = None, next_sentence: bool = False
) -> Architecture:
    """Logits of masked tokens, and with `next_sentence` of whether a text follows another."""
    return Architecture(
        lambda model, config: models.masked_language_model(
            model, next_sentence, activation=activation
        ),
        "masked_language_model",
        {"next_sentence": next_sentence},
        prefixes,
    )


def sequence_classifier(
    pooling: Pooling, *prefixes: str, dropout: Rate = 0.0, decoder: bool | None = None
) -> Architecture:
    """Classes of texts."""

    def make(model: models.Model, config: Config) -> models.Model:
        rate, by = _read(dropout, config), _read(pooling, config)
        return models.sequence_classifier(
            model, config.num_labels, rate, labels=config.labels, pooling=by
        )

    return Architecture(make, "sequence_classifier", _pooling_argument(pooling), prefixes, decoder)


def token_classifier(
    *prefixes: str, dropout: Rate = 0.0, decoder: bool | None = None
) -> Architecture:
    """Classes of tokens."""

    def make(model: models.Model, config: Config) -> models.Model:
        rate = _read(dropout, config)
        return models.token_classifier(model, config.num_labels, rate, labels=config.labels)

    return Architecture(make, "token_classifier", prefixes=prefixes, decoder=decoder)


def question_answering(
    *prefixes: str, decoder: bool | None = None, prefix: str | None = None
) -> Architecture:
    """Where the answer to a question starts and ends in a text."""
    return Architecture(
        lambda model, config: models.question_answering(model),
        "question_answering",
        prefixes=prefixes,
        decoder=decoder,
        prefix=prefix,
    )


def multiple_choice(pooling: Pooling, *prefixes: str, dropout: Rate) -> Architecture:
    """A score of each choice."""

    def make(model: models.Model, config: Config) -> models.Model:
        return models.multiple_choice(model, _read(dropout, config), pooling=_read(pooling, config))

    return Architecture(make, "multiple_choice", _pooling_argument(pooling), prefixes)


def image_classifier(pooling: str, *prefixes: str) -> Architecture:
    """Classes of images."""

    def make(model: models.Model, config: Config) -> models.Model:
        return models.image_classifier(
            model, config.num_labels, pooling, dropout=0.0, labels=config.labels
        )

    return Architecture(make, "image_classifier", {"pooling": pooling}, prefixes)


def _read(value: Value | Callable[[Config], Value], config: Config) -> Value:
    return value(config) if callable(value) else value


def _pooling_argument(pooling: Pooling) -> dict[str, str]:
    """The pooling by which classes with the same kind of head are told apart."""
    return {"pooling": pooling} if isinstance(pooling, str) else {}
