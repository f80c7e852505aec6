"""Dataclasses that are read from JSON, and written to it: each field says what it may hold.

Example:

>>> from dataclasses import dataclass
>>> from typing import Annotated
>>> from keras_tfm.runtime.manifest.records import Record, Rule
>>> Size = Annotated[int, Rule("a positive integer", lambda x: type(x) is int and x > 0)]
>>> @dataclass(frozen=True)
... class Box(Record):
...     width: Size
...     height: Size | None = None
>>> Box.from_json({"width": 3}).to_json()
{'width': 3}
>>> Box.from_json({"width": 0})
Traceback (most recent call last):
ValueError: width must be a positive integer, got 0
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Any, NamedTuple, Self, get_args, get_type_hints

# JSON values are of many types; `Record.from_json` turns them into typed fields.
Json = dict[str, Any]


class Rule(NamedTuple):
    """What a field may hold, as the annotation `Annotated[type, Rule(...)]`.

    Attributes:
        expected: str, the values in words, for errors.
        holds: whether it may hold a JSON value.
        read: from that value, and its place in the file, to the value of the field.
        write: from the value of the field to JSON.
    """

    expected: str
    holds: Callable[[Any], bool]
    read: Callable[[Any, str], Any] = lambda value, place: value
    write: Callable[[Any], Any] = lambda value: value


class Record:
    """A base class of dataclasses whose annotations have a `Rule` each.

    A field with a default may be absent from JSON, and is not written while it has that default.
    """

    @classmethod
    def from_json(cls, value: object, place: str = "") -> Self:
        """The record of a JSON object.

        Args:
            value: the object. Fields that the class does not have are ignored.
            place: str, where the object is in its file, for errors.

        Raises:
            ValueError: a field is missing, or has a value that it may not hold.
        """
        if not isinstance(value, dict):
            raise ValueError(f"{place or 'it'} must be an object, got {short_json(value)}")
        found = {}
        for name, (rule, default) in _rules(cls).items():
            full = f"{place}.{name}" if place else name
            if name in value:
                if not rule.holds(value[name]):
                    raise ValueError(
                        f"{full} must be {rule.expected}, got {short_json(value[name])}"
                    )
                found[name] = rule.read(value[name], full)
            elif default is dataclasses.MISSING:
                raise ValueError(f"{place or 'it'} lacks {name!r}, {rule.expected}")
        return cls(**found)

    def to_json(self) -> Json:
        """The record as a JSON object."""
        result = {}
        for name, (rule, default) in _rules(type(self)).items():
            value = getattr(self, name)
            if value != default:
                result[name] = rule.write(value)
        return result


_tables: dict[type, dict[str, tuple[Rule, Any]]] = {}


def _rules(cls: type[Record]) -> dict[str, tuple[Rule, Any]]:
    """The rule of each field, and its default; `MISSING` for a field that must be there."""
    if cls not in _tables:
        hints, table = get_type_hints(cls, include_extras=True), {}
        for x in dataclasses.fields(cls):  # type: ignore[arg-type]
            # Of `Annotated[int, rule]`, or of `Annotated[int, rule] | None`.
            parts = [hints[x.name], *get_args(hints[x.name])]
            rules = [rule for part in parts for rule in getattr(part, "__metadata__", ())]
            default = x.default
            if x.default_factory is not dataclasses.MISSING:
                default = x.default_factory()
            if rules:
                table[x.name] = rules[0], default
        _tables[cls] = table
    return _tables[cls]


def one(record: type[Record], expected: str = "an object", nullable: bool = False) -> Rule:
    """The rule of a field with a record, or with null if it is `nullable`."""
    return Rule(
        expected,
        lambda x: isinstance(x, dict) or (nullable and x is None),
        lambda x, place: None if x is None else record.from_json(x, place),
        lambda x: None if x is None else x.to_json(),
    )


def several(record: type[Record], expected: str, least: int = 0) -> Rule:
    """The rule of a field with records by name, at least `least` of them."""
    return Rule(
        expected,
        lambda x: isinstance(x, dict) and len(x) >= least,
        lambda x, place: {key: record.from_json(y, f"{place}.{key}") for key, y in x.items()},
        lambda x: {key: y.to_json() for key, y in x.items()},
    )


def among(names: tuple[str, ...]) -> Rule:
    """The rule of a field that holds one of these strings."""
    return Rule(f"one of {', '.join(names)}", lambda x: isinstance(x, str) and x in names)


def is_integer(x: object, least: int = 0) -> bool:
    """Whether a JSON value is an integer of at least `least`."""
    return type(x) is int and x >= least


def is_integers(x: object) -> bool:
    """Whether a JSON value is a list of integers of at least 0."""
    return isinstance(x, list) and all(is_integer(one) for one in x)


def is_names(x: object) -> bool:
    """Whether a JSON value is a list of strings."""
    return isinstance(x, list) and all(isinstance(name, str) for name in x)


def short_json(x: object) -> str:
    """A JSON value for an error, shortened."""
    try:
        text = json.dumps(x)
    except RecursionError:
        text = f"a deeply nested {type(x).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}..."
