"""The names of tensors in a checkpoint's files: prefixes, copies, old names, buffers."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from keras_tfm.checkpoints.rows import Entry
from keras_tfm.checkpoints.tensors import FLOATS, Tensors


@dataclass(frozen=True)
class Names:
    """How the names in the files differ from those in a family's table.

    Attributes:
        prefix: what stands before the names in files of a model with a head.
        aliases: by a second name of a tensor, its name in the table. The files may have either or
            both.
        ignored: patterns of names that are no weights.
        renamed: by the pattern of an old name, what replaces it.
    """

    prefix: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)


class Named:
    """The tensors of a folder, by the names in a family's table.

    Prefixes and old names are replaced and buffers left out.

    Attributes:
        own: by the table's name, the name in the files.
        prefixed: whether the names in the files have the prefix.
    """

    def __init__(self, tensors: Tensors, names: Names):
        self.tensors, self.names = tensors, names
        self.prefixed = any(name.startswith(names.prefix) for name in tensors)
        self.own: dict[str, str] = {}
        for name in tensors:
            known = name.removeprefix(names.prefix)
            for old, new in names.renamed.items():
                known = re.sub(old, new, known)
            if any(re.fullmatch(pattern, known) for pattern in names.ignored):
                continue
            if known in self.own:
                raise ValueError(
                    f"{tensors[name].file}: {self.own[known]} and {name} are the same tensor"
                )
            self.own[known] = name

    def same(self, alias: str, name: str) -> bool:
        """Whether the files have both tensors and these are equal."""
        if alias not in self.own or name not in self.own:
            return False
        a, b = (self.tensors[self.own[x]] for x in (alias, name))
        return a.shape == b.shape and np.array_equal(self.array(alias), self.array(name))

    def merge_aliases(self, kept: set[str]) -> None:
        """Keeps one of two equal tensors where the model has one.

        Args:
            kept: names of the model's tensors.
        """
        for alias, name in self.names.aliases.items():
            if alias not in self.own or alias in kept:
                continue
            if name not in self.own:
                self.own[name] = self.own.pop(alias)
            elif self.same(alias, name):
                del self.own[alias]

    def array(self, name: str) -> np.ndarray:
        """The values, float32."""
        return self.tensors.array(self.own[name])

    def begins(self, prefix: str) -> bool:
        """Whether the name of a tensor begins with `prefix`."""
        return any(name.startswith(prefix) for name in self.own)

    def shown(self, name: str, head: bool) -> str:
        """A name of the table as these files would have it."""
        return ("" if head or not self.prefixed else self.names.prefix) + name

    def check(self, model: str, entries: Iterable[Entry], hint: str = "") -> None:
        """Raises unless the tensors are those of the entries.

        Args:
            model: name of the architecture, for the message.
            entries: of every weight.
            hint: end of the message.

        Raises:
            ValueError: lists the tensors that are missing, that the model does not have, that have
                another shape, and that have a dtype that no weight has.
        """
        expected = {name: entry for entry in entries for name in entry.tensors}
        self.merge_aliases(set(expected))
        found = {name: self.tensors[own] for name, own in self.own.items()}
        missing = [
            f"{self.shown(name, entry.head)} {entry.shapes[name]}"
            for name, entry in expected.items()
            if name not in found
        ]
        surplus = [
            f"{self.own[name]} {tensor.shape}"
            for name, tensor in found.items()
            if name not in expected
        ]
        other = [
            f"{self.own[name]} (the model has {entry.shapes[name]}, the file {found[name].shape})"
            for name, entry in expected.items()
            if name in found and found[name].shape != entry.shapes[name]
        ]
        kinds = [
            f"{self.own[name]} ({tensor.dtype})"
            for name, tensor in found.items()
            if name in expected and tensor.dtype not in FLOATS
        ]
        parts = [
            f"{title}: {', '.join(names)}"
            for title, names in (
                ("missing in the files", missing),
                ("in the files alone", surplus),
                ("of another shape", other),
                (f"of a dtype that is none of {', '.join(FLOATS)}", kinds),
            )
            if names
        ]
        if parts:
            raise ValueError(f"the tensors are not those of {model}; {'; '.join(parts)}{hint}")
