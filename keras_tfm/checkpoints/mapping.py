"""Which tensors of a checkpoint make which weight of a model: tables, and how they are applied."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_tfm.checkpoints.config import Config
from keras_tfm.checkpoints.tensors import FLOATS, Tensors


class Row(NamedTuple):
    """One line of a family's table.

    Attributes:
        weight: the path of a weight, in which {i} stands for a block's number.
        tensors: the checkpoint's names, with {i} for the same number. Several are one weight here:
            they lie side by side along its last axis.
        transposed: whether the checkpoint has a matrix (out, in) where a kernel is (in, out).
        head: whether it belongs to a head, whose names never have the family's prefix.
    """

    weight: str
    tensors: tuple[str, ...]
    transposed: bool = False
    head: bool = False


class Entry(NamedTuple):
    """A row, for one weight of a model."""

    weight: keras.Variable
    tensors: tuple[str, ...]
    transposed: bool
    head: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Of each tensor."""
        *rest, last = self.weight.shape
        shape = (*rest, last // len(self.tensors))
        return shape[::-1] if self.transposed else shape

    def joined(self, arrays: Iterable[np.ndarray]) -> np.ndarray:
        """The weight's value from those of its tensors."""
        return np.concatenate([x.T if self.transposed else x for x in arrays], axis=-1)

    def cut(self, value: np.ndarray) -> dict[str, np.ndarray]:
        """The tensors' values from the weight's."""
        parts = np.split(value, len(self.tensors), axis=-1)
        return {
            name: np.ascontiguousarray(part.T if self.transposed else part)
            for name, part in zip(self.tensors, parts, strict=True)
        }


Head = Callable[[keras.Model, Config], keras.Model]


@dataclass(frozen=True)
class Family:
    """How the checkpoints of one kind of model are read and written.

    Attributes:
        model_type: in `config.json`.
        builder: of `keras_tfm.models`.
        table: every tensor there is, for a model.
        arguments: the builder's, of a configuration and of what the files hold.
        architectures: by name, what is made of the builder's model, and how the names of the
            tensors begin that only models with this head have.
        describe: the architecture and the configuration of a model; None where it is another's.
        prefix: what stands before the names of a model with a head.
        base: the architecture whose names have no prefix.
        aliases: names under which a tensor may stand a second time, or alone.
        ignored: patterns of names that are no weights.
        renamed: patterns of old names, and what replaces them.
    """

    model_type: str
    builder: Callable[..., keras.Model]
    table: Callable[[keras.Model], tuple[Row, ...]]
    arguments: Callable[[Config, "Named"], dict[str, Any]]
    architectures: Mapping[str, tuple[Head, tuple[str, ...]]]
    describe: Callable[[keras.Model], tuple[str, dict[str, Any]] | None]
    prefix: str = ""
    base: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    def entries(self, model: keras.Model) -> list[Entry]:
        """A row for each weight.

        Raises:
            ValueError: the checkpoints of this family have no place for a weight.
        """
        patterns = [
            (re.compile(re.escape(row.weight).replace(r"\{i\}", r"(\d+)")), row)
            for row in self.table(model)
        ]
        result = []
        for weight in model.weights:
            for pattern, row in patterns:
                found = pattern.fullmatch(weight.path)
                if found:
                    i = found[1] if found.groups() else ""
                    names = tuple(name.replace("{i}", i) for name in row.tensors)
                    result.append(Entry(weight, names, row.transposed, row.head))
                    break
            else:
                raise ValueError(
                    f"{model.name}: a {self.model_type} checkpoint has no place for the weight "
                    f"{weight.path} {tuple(weight.shape)}"
                )
        return result


class Named:
    """The tensors of a folder by the names of a family's table.

    Prefixes and old names are gone, buffers left out, and of equal tensors one is left.

    Attributes:
        own: by the table's name, the name in the files.
        prefixed: whether the files' names have the family's prefix.
    """

    def __init__(self, tensors: Tensors, family: Family):
        self.tensors, self.family = tensors, family
        self.prefixed = any(name.startswith(family.prefix) for name in tensors)
        self.own: dict[str, str] = {}
        for name in tensors:
            known = name.removeprefix(family.prefix)
            for old, new in family.renamed.items():
                known = re.sub(old, new, known)
            if any(re.fullmatch(pattern, known) for pattern in family.ignored):
                continue
            if known in self.own:
                raise ValueError(
                    f"{tensors[name].file}: {self.own[known]} and {name} are the same tensor"
                )
            self.own[known] = name

    def same(self, alias: str, name: str) -> bool:
        """Whether both are there and equal."""
        if alias not in self.own or name not in self.own:
            return False
        a, b = (self.tensors[self.own[x]] for x in (alias, name))
        return a.shape == b.shape and np.array_equal(self.array(alias), self.array(name))

    def merge_aliases(self, kept: set[str]) -> None:
        """Leaves one of each tensor that stands there twice, if the model has one only.

        Args:
            kept: the names that the model has.
        """
        for alias, name in self.family.aliases.items():
            if alias not in self.own or alias in kept:
                continue
            if name not in self.own:
                self.own[name] = self.own.pop(alias)
            elif self.same(alias, name):
                del self.own[alias]

    def array(self, name: str) -> np.ndarray:
        """The values, float32."""
        return self.tensors.array(self.own[name])

    def shown(self, name: str, head: bool) -> str:
        """A name as these files would have it."""
        return ("" if head or not self.prefixed else self.family.prefix) + name

    def check(self, model: str, entries: list[Entry]) -> None:
        """Raises unless the tensors are those of the entries: one error that lists all.

        Raises:
            ValueError: tensors that are missing, that are left over, of another shape, or of a
                dtype that is none of a weight.
        """
        expected = {name: entry for entry in entries for name in entry.tensors}
        self.merge_aliases(set(expected))
        found = {name: self.tensors[own] for name, own in self.own.items()}
        missing = [
            f"{self.shown(name, entry.head)} {entry.shape}"
            for name, entry in expected.items()
            if name not in found
        ]
        surplus = [
            f"{self.own[name]} {tensor.shape}"
            for name, tensor in found.items()
            if name not in expected
        ]
        other = [
            f"{self.own[name]} (the model has {entry.shape}, the file {found[name].shape})"
            for name, entry in expected.items()
            if name in found and found[name].shape != entry.shape
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
            raise ValueError(
                f"the tensors are not those of {model}; {'; '.join(parts)}{self._hint(model)}"
            )

    def _hint(self, model: str) -> str:
        """The architecture whose heads the files have, where it is another one."""
        fitting = self.architecture()
        if fitting is None or fitting == model:
            return ""
        return f"; they look like those of architecture={fitting!r}"

    def architecture(self) -> str | None:
        """The architecture of which all tensors of heads are there, and no others."""
        known = {head for _, heads in self.family.architectures.values() for head in heads}
        present = {head for head in known if any(own.startswith(head) for own in self.own)}
        for name, (_, heads) in self.family.architectures.items():
            if present == set(heads):
                return name
        return None
