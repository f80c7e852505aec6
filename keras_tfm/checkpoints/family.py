"""A family of checkpoints: its table, its names, its configuration, its architectures."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

from keras_tfm.checkpoints.config import Config
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Entry, Row, entries
from keras_tfm.models import Model


@dataclass(frozen=True)
class Architecture:
    """A class of `transformers`: which head it has.

    Attributes:
        make: the model, from the builder's model and the configuration.
        kind: `model.head.kind`; None where the model has no head.
        arguments: those of `model.head.arguments` by which architectures with one kind of head
            differ.
        prefixes: how the names of the tensors begin that only models with this head have.
    """

    make: Callable[[keras.Model, Config], keras.Model]
    kind: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ()

    def is_of(self, model: Model) -> bool:
        """Whether the model has this head."""
        head = model.head
        if head is None:
            return self.kind is None
        given = {name: head.arguments.get(name) for name in self.arguments}
        return bool(head.kind == self.kind and given == dict(self.arguments))


@dataclass(frozen=True)
class Family:
    """How checkpoints of one `model_type` are read and written.

    Attributes:
        model_type: in `config.json`.
        builder: of `keras_tfm.models`; its name is `model.family`.
        table: a row for every tensor, for a model.
        arguments: the builder's arguments, from a configuration and from the tensors' names.
        fields: the fields of `config.json`, from a model and its architecture's name.
        architectures: by name.
        is_of: whether a model of the builder is of this type.
        names: how the names in the files differ from those in the table.
        base: the architecture whose tensors' names have no prefix.
    """

    model_type: str
    builder: Callable[..., keras.Model]
    table: Callable[[Model], tuple[Row, ...]]
    arguments: Callable[[Config, Named], dict[str, Any]]
    fields: Callable[[Model, str], dict[str, Any]]
    architectures: Mapping[str, Architecture]
    is_of: Callable[[Model], bool] = lambda model: True
    names: Names = field(default_factory=Names)
    base: str = ""

    def entries(self, model: Model) -> list[Entry]:
        """An entry for each weight of a model."""
        return entries(self.table(model), model, self.model_type)

    def architecture_of(self, model: Model) -> str:
        """The name of a model's architecture."""
        for name, architecture in self.architectures.items():
            if architecture.is_of(model):
                return name
        kinds = list(dict.fromkeys(x.kind for x in self.architectures.values()))
        raise ValueError(
            f"{model.name}: the head of a {self.model_type} checkpoint must be one of {kinds}, "
            f"got {model.head}"
        )

    def architecture_in(self, named: Named) -> str | None:
        """The architecture whose heads' tensors are all in the files, and no others."""
        known = {prefix for x in self.architectures.values() for prefix in x.prefixes}
        present = {prefix for prefix in known if named.begins(prefix)}
        for name, architecture in self.architectures.items():
            if present == set(architecture.prefixes):
                return name
        return None
