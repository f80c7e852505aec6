"""The names of tensors in a checkpoint's files: prefixes, copies, old names, buffers.

Example:

>>> from keras_tfm.checkpoints.names import Named, Names
>>> Named({"bert.pooler.weight": None}, Names(prefix="bert.")).own
{'pooler.weight': 'bert.pooler.weight'}
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from keras_tfm.checkpoints.rows import Entry
from keras_tfm.checkpoints.tensors import FLOATS, AnyTensors

# How many tensors an error lists.
_LISTED = 40
# Numbers up to 1 that were rounded to bfloat16.
CONSTANT_TOLERANCE = 4e-3


@dataclass(frozen=True)
class Names:
    """How the tensor names in the files differ from those in a family's table.

    Attributes:
        prefix: str, prefix of the names in files of a model with a head.
        aliases: dict from a tensor's second name to its name in the table. The files may have
            either or both.
        ignored: patterns of names that are not weights.
        renamed: dict from the pattern of an old name to its replacement.
        transposed: str, pattern of the names of matrices that are (in, out) in the files, as those
            of the class `Conv1D` of `transformers` are.
        stacked: str, pattern of the names of tensors in the files whose parts along the first axis
            are tensors "name[0]", "name[1]" ... of the table: those of all experts.
        modules: dict from the pattern of a name in the files to that in the module of
            `transformers` 5, where it has another.
    """

    prefix: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    transposed: str = ""
    stacked: str = ""
    modules: Mapping[str, str] = field(default_factory=dict)

    def in_table(self, name: str) -> str:
        """The name in the table of a tensor in the files."""
        known = name.removeprefix(self.prefix)
        for old, new in self.renamed.items():
            known = re.sub(old, new, known)
        return known

    def in_module(self, name: str) -> str:
        """The name in a model of `transformers` of a tensor in the files."""
        for pattern, new in self.modules.items():
            name = re.sub(pattern, new, name)
        return name


class Named:
    """The tensors of a folder, by their names in a family's table.

    Prefixes are removed, old names are replaced, and buffers are left out.

    Attributes:
        own: dict from the name in the table to the name in the files.
        prefixed: bool, whether the names in the files have the prefix.
    """

    def __init__(self, tensors: AnyTensors, names: Names):
        self.tensors, self.names = tensors, names
        self.prefixed = any(name.startswith(names.prefix) for name in tensors)
        self.own: dict[str, str] = {}
        for name in tensors:
            known = names.in_table(name)
            if any(re.fullmatch(pattern, known) for pattern in names.ignored):
                continue
            if known in self.own:
                raise ValueError(
                    f"{tensors[name].file}: {self.own[known]} and {name} are the same tensor"
                )
            self.own[known] = name

    def same(self, alias: str, name: str) -> bool:
        """Whether the files have both tensors and they are equal."""
        if alias not in self.own or name not in self.own:
            return False
        a, b = (self.tensors[self.own[x]] for x in (alias, name))
        return a.shape == b.shape and np.array_equal(self.array(alias), self.array(name))

    def merge_aliases(self, kept: set[str]) -> None:
        """Removes second names of tensors, if the model has only one tensor for both names.

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

    def take_constants(self, constants: Mapping[str, np.ndarray]) -> None:
        """Removes the tensors with known values.

        Args:
            constants: dict from a tensor's name to its value.

        Raises:
            ValueError: a tensor in the files has another value.
        """
        for name, value in constants.items():
            if name not in self.own:
                continue
            found = self.array(name).astype("float32")
            if found.shape != value.shape or not np.allclose(found, value, 0, CONSTANT_TOLERANCE):
                raise ValueError(
                    f"{self.tensors[self.own[name]].file}: expected {self.own[name]} to have the "
                    f"shape {value.shape} and its constant values, got other values of shape "
                    f"{found.shape}"
                )
            del self.own[name]

    def leave_out(self, names: Iterable[str]) -> None:
        """Removes tensors that the model does not have."""
        for name in names:
            self.own.pop(name, None)

    def array(self, name: str) -> np.ndarray:
        """The values of a tensor, in the dtype of the file."""
        return self.tensors.array(self.own[name])

    def read(self, entry: Entry) -> np.ndarray:
        """The value of a weight, in the weight's dtype."""
        return entry.load(self.array(name) for name in entry.tensors)

    def begins(self, prefix: str) -> bool:
        """Whether the name of any tensor begins with `prefix`."""
        return any(name.startswith(prefix) for name in self.own)

    def name_in_files(self, name: str, head: bool) -> str:
        """A name of the table in the form that these files use."""
        return ("" if head or not self.prefixed else self.names.prefix) + name

    def check(self, model: str, entries: Iterable[Entry], hint: str = "") -> None:
        """Raises unless the tensors in the files match the entries.

        Args:
            model: str, name of the architecture, for the message.
            entries: an `Entry` for every weight.
            hint: str, end of the message.

        Raises:
            ValueError: lists the tensors that are missing or unexpected, or have another shape or
                an unsupported dtype.
        """
        expected = {name: entry for entry in entries for name in entry.tensors}
        self.merge_aliases(set(expected))
        found = {name: self.tensors[own] for name, own in self.own.items()}
        missing = [
            f"{self.name_in_files(name, entry.head)} {entry.shapes[name]}"
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
            f"{title}: {_list_of(names)}"
            for title, names in (
                ("missing in the files", missing),
                ("only in the files", surplus),
                ("of another shape", other),
                (f"of a dtype other than {', '.join(FLOATS)}", kinds),
            )
            if names
        ]
        if parts:
            raise ValueError(f"the tensors do not match {model}; {'; '.join(parts)}{hint}")


def _list_of(names: list[str]) -> str:
    """The first names; a model with experts may lack thousands."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
