"""A family of checkpoints: its table, tensor names, configuration and architectures."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import keras
import numpy as np

from keras_tfm.checkpoints.config import Arguments, Config, Fields
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Entry, Row, entries
from keras_tfm.models import Model
from keras_tfm.models.encoder_decoders.shifted_source import has_decoder


@dataclass(frozen=True)
class Architecture:
    """A model class of `transformers`, and the head that it has.

    Attributes:
        make: function of the builder's model and the configuration that returns the model.
            Default: it is the builder's model.
        kind: str, `model.head.kind`. Default: a model without a head.
        arguments: dict, the `model.head.arguments` that tell architectures with the same kind of
            head apart.
        prefixes: prefixes of the tensors that only models with this head have.
        decoder: bool, whether an encoder-decoder with this head has its decoder. Default: either.
        prefix: str, the prefix of names in the files of this class. Default: none without a head,
            else `Names.prefix`.
    """

    make: Callable[[keras.Model, Config], keras.Model] = lambda model, config: model
    kind: str | None = None
    arguments: Arguments = field(default_factory=dict)
    prefixes: tuple[str, ...] = ()
    decoder: bool | None = None
    prefix: str | None = None

    def is_of(self, model: Model) -> bool:
        """Whether the model has this head."""
        if self.decoder is not None and has_decoder(model) is not self.decoder:
            return False
        head = model.head
        if head is None:
            return self.kind is None
        given = {name: head.arguments.get(name) for name in self.arguments}
        return bool(head.kind == self.kind and given == dict(self.arguments))


@dataclass(frozen=True)
class Family:
    """How checkpoints of one `model_type` are read and written.

    Attributes:
        model_type: str, the `model_type` in `config.json`.
        builder: function of `keras_tfm.models`; its name is `model.family`.
        table: function of a model that returns the table, with a row for every tensor.
        arguments: function of a configuration and the tensors' names that returns the builder's
            arguments.
        fields: function of a model and its architecture's name that returns the fields of
            `config.json`.
        architectures: dict of `Architecture` by name.
        is_of: function of a model of the builder that tells whether it is of this `model_type`.
        names: `Names`, how the names in the files differ from those in the table.
        constants: function of a model that returns the tensors that are not weights here, because
            the configuration determines their values. They are saved, and compared when loaded.
        preprocessor: function of a model that returns the fields of `preprocessor_config.json`, for
            models of audio, or None.
        tokenizer: function of a model that returns the fields of the tokenizer's files, by file,
            for models that know their tokens.
        aliases: dict from the names that `transformers` has for fields of `config.json`
            (`attribute_map`) to the fields. If a file has both, it reads the alias.
        unused: function of a model that returns the tensors of `transformers` on which the model's
            outputs do not depend, and which it does not have. They are ignored when loaded, and
            saved with these values.
        has_own_blocks: bool, whether `arguments` reads `per_layer_config`: fields of single blocks.
        not_saved: names of the builder's arguments that `config.json` cannot have. Default: what
            the input is, of models of images and audio.
    """

    model_type: str
    builder: Callable[..., keras.Model]
    table: Callable[[Model], tuple[Row, ...]]
    arguments: Callable[[Config, Named], Arguments]
    fields: Callable[[Model, str], Fields]
    architectures: Mapping[str, Architecture]
    is_of: Callable[[Model], bool] = lambda model: True
    names: Names = field(default_factory=Names)
    constants: Callable[[Model], dict[str, np.ndarray]] = lambda model: {}
    preprocessor: Callable[[Model], Fields | None] = lambda model: None
    tokenizer: Callable[[Model], dict[str, Fields]] = lambda model: {}
    unused: Callable[[Model], dict[str, np.ndarray]] = lambda model: {}
    aliases: Mapping[str, str] = field(default_factory=dict)
    has_own_blocks: bool = False
    not_saved: tuple[str, ...] = ("image_size", "audio")

    @property
    def base(self) -> str:
        """The architecture without a head and without a prefix of its own; "" without one."""
        without = (n for n, x in self.architectures.items() if x.kind is None and x.prefix is None)
        return next(without, "")

    def entries(self, model: Model) -> list[Entry]:
        """An entry for each weight of a model."""
        return entries(self.table(model), model, self.model_type)

    def architecture_of(self, model: Model) -> str:
        """The name of a model's architecture."""
        for name, architecture in self.architectures.items():
            if architecture.is_of(model):
                return name
        kinds = list(dict.fromkeys(x.kind for x in self.architectures.values()))
        if model.head is not None and model.head.kind in kinds:
            part = ""
            if any(x.decoder is not None for x in self.architectures.values()):
                part = f"a model {'with' if has_decoder(model) else 'without'} decoder and "
            raise ValueError(
                f"{model.name}: a {self.model_type} checkpoint with the head {model.head.kind!r} "
                f"must be one of {list(self.architectures)}, got {part}{model.head}"
            )
        raise ValueError(
            f"{model.name}: the head of a {self.model_type} checkpoint must be one of {kinds}, "
            f"got {model.head}"
        )

    def prefix_of(self, architecture: str) -> str:
        """The prefix of names outside the head in files of an architecture."""
        own = self.architectures[architecture]
        if own.prefix is not None:
            return own.prefix
        return "" if own.kind is None else self.names.prefix

    def leave_out_other_heads(
        self, named: Named, name: str, model: Model, entries: Iterable[Entry]
    ) -> bool:
        """Removes the tensors of a pooler and of heads that only other architectures have.

        A folder may name a smaller class than it has tensors for, and any class may be asked for:
        `transformers` ignores the rest, too.

        Args:
            named: the tensors of a folder.
            name: the architecture to load.
            model: its model.
            entries: those of the model.

        Returns:
            Whether a head is among them.
        """
        read = {tensor for entry in entries for tensor in entry.tensors}
        own = self.architectures[name]
        language = own.kind is not None and "language" in own.kind
        known = {"pooler."} | {prefix for x in self.architectures.values() for prefix in x.prefixes}
        prefixes = tuple(known.difference(own.prefixes))
        heads = {x for row in self.table(model) if row.head for x in row.tensors}
        others = [
            x
            for x in named.own
            if x not in read and (x.startswith(prefixes) or (not language and x in heads))
        ]
        named.leave_out(others)
        return not all(x.startswith("pooler.") for x in others)

    def architecture_in(self, named: Named) -> str | None:
        """The architecture that has exactly the head tensors in the files, or None."""
        known = {prefix for x in self.architectures.values() for prefix in x.prefixes}
        present = {prefix for prefix in known if named.begins(prefix)}
        for name, architecture in self.architectures.items():
            if present == set(architecture.prefixes):
                return name
        return None
