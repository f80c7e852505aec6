"""Reads and checks the fields of a `config.json`.

Example:

>>> import tempfile
>>> from pathlib import Path
>>> from keras_tfm.checkpoints.config import Config
>>> with tempfile.TemporaryDirectory() as folder:
...     _ = Path(folder, "config.json").write_text('{"num_hidden_layers": 6}')
...     Config(Path(folder)).integer("num_hidden_layers", 12)
6
"""

import copy
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeVar

import keras

from keras_tfm.checkpoints.tensors import read_json
from keras_tfm.layers import gelu_tanh, quick_gelu, squared_relu

# The fields of a JSON file, and the arguments of a builder.
Fields: TypeAlias = dict[str, Any]
Arguments: TypeAlias = dict[str, Any]
Activation: TypeAlias = Callable[[Any], Any]
# The type of a default: a field is None only where its default is.
Integer = TypeVar("Integer", int, None)
Number = TypeVar("Number", float, None)
Text = TypeVar("Text", str, None)

# The names of supported activations in transformers.
ACTIVATIONS: dict[str, Activation] = {
    "gelu": keras.activations.gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "quick_gelu": quick_gelu,
    "gelu_python": keras.activations.gelu,
    "relu": keras.activations.relu,
    "relu2": squared_relu,
    "silu": keras.activations.silu,
    "swish": keras.activations.silu,
    "tanh": keras.activations.tanh,
    "sigmoid": keras.activations.sigmoid,
}


class Config:
    """The fields of a `config.json`.

    Args:
        folder: the folder that contains it.

    Raises:
        FileNotFoundError: the folder or the file does not exist.
        ValueError: the file is not JSON, or does not hold a dictionary.
    """

    def __init__(self, folder: Path):
        self.file = folder / "config.json"
        if not folder.is_dir():
            raise FileNotFoundError(f"no such folder: {folder}")
        if not self.file.is_file():
            raise FileNotFoundError(f"{folder} has no config.json")
        self.fields: Fields = read_json(self.file)

    @classmethod
    def of(cls, file: Path, fields: Fields) -> "Config":
        """The same fields from another file, which errors name."""
        config = cls.__new__(cls)
        config.file, config.fields = file, fields
        return config

    def integer(
        self, name: str, default: Integer, minimum: int = 1, maximum: int = 2**31 - 1
    ) -> int | Integer:
        """Reads an integer; None if the field is null or missing and the default is None."""
        value = self._value(name, default)
        if value is None and default is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            self.refuse(name, value, f"an integer from {minimum} to {maximum}")
        return value

    def ids(self, name: str, default: int | None, size: int) -> int | list[int] | None:
        """Reads an id of a vocabulary of `size`, or a list of ids; null means the default."""
        value = self.fields.get(name)
        value = default if value is None else value
        ids = value if isinstance(value, list) and value else [value]
        if value is not None and not all(type(x) is int and 0 <= x < size for x in ids):
            self.refuse(name, value, f"an id from 0 to {size - 1}, or a list of them")
        return value

    def number(
        self, name: str, default: Number, maximum: float = math.inf, minimum: float = 0
    ) -> float | Number:
        """Reads a number; None as in `integer`."""
        value = self._value(name, default)
        if value is None and default is None:
            return None
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not minimum <= value <= maximum or not math.isfinite(value):
            self.refuse(name, value, f"a number from {minimum} to {maximum}")
        return value

    def size(self, name: str, default: int) -> int | tuple[int, int]:
        """Reads a height and width: an integer for both, or a list of two, returned as a tuple."""
        value = self._value(name, default)
        sizes = value if isinstance(value, list) and len(value) == 2 else [value]
        if not all(type(x) is int and x > 0 for x in sizes):
            self.refuse(name, value, "a positive integer, or a list of two")
        return tuple(sizes) if isinstance(value, list) else value

    def integers(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """Reads a list of positive integers."""
        value = self._value(name, list(default))
        if (
            not isinstance(value, list)
            or not value
            or not all(type(x) is int and x > 0 for x in value)
        ):
            self.refuse(name, value, "a list of positive integers")
        return tuple(value)

    def part(self, name: str) -> "Config":
        """The fields of a dictionary inside this one, such as `backbone_config`."""
        value = self._value(name, {})
        if not isinstance(value, dict):
            self.refuse(name, value, "a dictionary")
        part = copy.copy(self)
        part.fields = value
        return part

    def flag(self, name: str, default: bool) -> bool:
        """Reads a boolean."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            self.refuse(name, value, "true or false")
        return bool(value)

    def text(self, name: str, default: Text) -> str | Text:
        """Reads a string; None as in `integer`."""
        value = self._value(name, default)
        if value is None:
            return default
        if not isinstance(value, str):
            self.refuse(name, value, "a string")
        return value

    def activation(
        self, name: str, default: str, known: Mapping[str, Activation] = ACTIVATIONS
    ) -> Activation:
        """Reads the name of an activation and returns the activation."""
        value = self.text(name, default)
        if value not in known:
            self.refuse(name, value, f"one of {list(known)}")
        return known[value]

    def only(self, **allowed: object) -> None:
        """Raises if a field has an unsupported value.

        Args:
            allowed: by field, its only supported value.
        """
        for name, value in allowed.items():
            found = self.fields.get(name)
            if found is not None and found != value:
                self.refuse(name, found, repr(value))

    def rename(self, aliases: Mapping[str, str]) -> None:
        """Gives fields the values that the file has for them under another name.

        Args:
            aliases: dict from the other name to the field.
        """
        for alias, name in aliases.items():
            if self.fields.get(alias) is not None:
                self.fields[name] = self.fields[alias]

    def refuse(self, name: str, value: object, expected: str) -> NoReturn:
        """Raises a ValueError that names the field."""
        raise ValueError(f"{self.file}: {name} must be {expected}, got {value!r}")

    @property
    def generation_fields(self) -> Fields | None:
        """The fields of `generation_config.json`; None without it, and for a GGUF file."""
        file = self.file.with_name("generation_config.json")
        if self.file.name != "config.json":
            return None
        return dict(read_json(file)) if file.is_file() else None

    @property
    def num_labels(self) -> int:
        """The number of classes of a classifier."""
        labels = self.labels
        return int(self.integer("num_labels", 2)) if labels is None else len(labels)

    @property
    def labels(self) -> list[str] | None:
        """The names of a classifier's classes, by their ids."""
        names = self.fields.get("id2label")
        if names is None:
            return None
        ids = [str(i) for i in range(len(names))] if isinstance(names, dict) else []
        if not ids or set(ids) != set(names) or not all(isinstance(x, str) for x in names.values()):
            self.refuse("id2label", names, "a dictionary from the ids 0, 1, ... to labels")
        return [names[i] for i in ids]

    def _value(self, name: str, default: object) -> Any:
        value = self.fields.get(name)
        return default if value is None else value


def dropout_rate(given: Arguments, rate: float | None) -> float:
    """A dropout rate among a builder's arguments, or a head's: None means the model's own."""
    return given["dropout"] if rate is None else rate


def activation_name(activation: Activation | str | None) -> str:
    """The name of an activation in transformers.

    Args:
        activation: a function or a name, as in the builders.

    Raises:
        ValueError: transformers has no name for it.
    """
    activation = keras.activations.get(activation)
    for name, known in ACTIVATIONS.items():
        if known is activation:
            return name
    shown = getattr(activation, "__name__", activation)
    raise ValueError(f"activation must be one of {list(ACTIVATIONS)} to be saved, got {shown}")
