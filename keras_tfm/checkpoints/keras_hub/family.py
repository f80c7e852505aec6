"""A family of KerasHub's backbones: its table of weights and its arguments."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import keras

from keras_tfm.checkpoints.config import Arguments
from keras_tfm.checkpoints.keras_hub.settings import HubPart, Settings
from keras_tfm.checkpoints.rows import Entry, Row, entries
from keras_tfm.models import Model


@dataclass(frozen=True)
class HubFamily:
    """How a backbone class of KerasHub becomes a model of a builder, and back.

    Attributes:
        backbone: str, the class in `keras_hub.models`.
        builder: function of `keras_tfm.models`.
        arguments: function of the backbone's settings that returns the builder's arguments.
        table: function of a model of the builder that returns its table, with a row for every
            weight. A row's tensors are paths of KerasHub's variables.
        inputs: dict from our inputs to those of KerasHub.
        blocks: function of a backbone that returns its blocks, in the order in which they run.
        outputs: dict from "features" and "pooled" to the keys of the backbone's outputs. Default:
            the backbone returns the features.
        pairs: function of our outputs and those of the backbone that returns what must be equal,
            instead of features and outputs.
        adjust: function of the builder's model that sets what the builder has no argument for.
        ignored: patterns of the paths of KerasHub's weights that change nothing.
        logits: function of a backbone and its features that returns the logits of its task.
        longest: function of a model that returns how many tokens it takes; None: any number.
        full_length: bool, whether the backbone takes only rows of that many tokens.
        comparable: function of a model and a backbone that returns a context manager, in which the
            backbone computes what the model does if it chooses by the length of its input.
        notes: function of a model that returns what differs from the backbone, in words.
    """

    backbone: str
    builder: Callable[..., keras.Model]
    arguments: Callable[[Settings], Arguments]
    table: Callable[[Model], tuple[Row, ...]]
    inputs: Mapping[str, str] = field(default_factory=lambda: {"tokens": "token_ids"})
    blocks: Callable[[HubPart], Sequence[HubPart]] = lambda backbone: backbone.transformer_layers
    outputs: Mapping[str, str] = field(default_factory=dict)
    pairs: Callable[[HubPart, HubPart], Iterable[tuple[str, HubPart, HubPart]]] | None = None
    adjust: Callable[[Model], None] = lambda model: None
    ignored: tuple[str, ...] = ()
    logits: Callable[[HubPart, HubPart], HubPart] = lambda backbone, x: backbone.token_embedding(
        x, reverse=True
    )
    longest: Callable[[Model], int | None] = lambda model: model.arguments.get("max_length")
    full_length: bool = False
    comparable: Callable[[Model, HubPart], AbstractContextManager[None]] = lambda model, backbone: (
        nullcontext()
    )
    notes: Callable[[Model], list[str]] = lambda model: []

    def entries(self, model: Model) -> list[Entry]:
        """An entry for each weight of a model."""
        return entries(self.table(model), model, f"KerasHub {self.backbone}")

    def make(self, settings: Settings, kind: str | None, options: Arguments) -> Model:
        """The builder's model.

        Args:
            settings: the settings of the backbone.
            kind: str, the kind of the task; None for a backbone.
            options: arguments that override those of the backbone.

        Raises:
            ValueError: a field has a value that the builder does not support.
        """
        arguments = self.arguments(settings)
        settings.check_all_read()
        if kind == "TextEmbedder" and "pad_id" in inspect.signature(self.builder).parameters:
            arguments.setdefault("pad_id", settings.pad_id_or(0))  # of a decoder-only model
        model = self.builder(**{**arguments, **options})
        self.adjust(model)
        return model
