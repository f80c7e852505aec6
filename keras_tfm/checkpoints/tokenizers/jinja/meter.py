"""Counts what a Jinja program does, and refuses more than a chat template needs.

The limits hold on all platforms and in all threads, since they are neither times nor those of a
process: steps, characters, depth, and the size of each value.
"""

from typing import Any, TypeAlias

# A value of a template, of any type, and a node of jinja2's tree.
Value: TypeAlias = Any
Node: TypeAlias = Any


# One unit of work: a step, an element of a list, or this many characters.
CHARACTERS = 100
# What all renderings of a program may take; a conversation takes some thousand units.
UNITS = 200_000
# The longest text; a chat template is some kilobytes.
LONGEST = 1_000_000
BITS = 1024  # of integers
DEPTH = 120  # of expressions and blocks that enclose each other, and of calls


class TemplateError(Exception):
    """The program does what it must not, or more than it may."""


class Undefined:
    """A variable or an attribute that does not exist: false, empty, without text."""

    def __init__(self, name: str = "a value"):
        self.name = name

    def __str__(self) -> str:
        return ""

    def __repr__(self) -> str:
        return "Undefined"  # inside a list

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Value:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Undefined)

    def __hash__(self) -> int:
        return 0


class Namespace:
    """Attributes that a program may set."""

    def __init__(self, values: dict[str, Value]):
        self.values = values


class Meter:
    """Counts work, and refuses more than the limit."""

    def __init__(self) -> None:
        self._left = UNITS
        self._sizes: dict[int, tuple[int, Value]] = {}
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth > DEPTH:
            raise TemplateError(f"it is nested more than {DEPTH} deep")

    def __exit__(self, *_: object) -> None:
        self._depth -= 1

    def charge(self, units: int = 1) -> None:
        """Counts units of work, before they are done."""
        self._left -= units
        if self._left < 0:
            raise TemplateError(f"it takes more than {UNITS:,} steps")

    def text(self, length: int) -> None:
        """Counts a text, before it is made."""
        if length > LONGEST:
            raise TemplateError(f"it makes a text of more than {LONGEST:,} characters")
        self.charge(1 + length // CHARACTERS)

    def size(self, x: Value) -> int:
        """The units of a value, of which a list has those of its elements."""
        if isinstance(x, str):
            return 1 + len(x) // CHARACTERS
        if isinstance(x, list | tuple | dict):
            if id(x) not in self._sizes:
                self.keep(x)
            return self._sizes[id(x)][0]
        return 1

    def keep(self, x: Value) -> Value:
        """A new value, counted; lists never change, so that their sizes do not."""
        if isinstance(x, str):
            self.text(len(x))
        elif isinstance(x, int) and x.bit_length() > BITS:
            raise TemplateError(f"it makes an integer of more than {BITS} bits")
        elif isinstance(x, list | tuple | dict):
            elements = [*x.keys(), *x.values()] if isinstance(x, dict) else x
            size = 1
            for element in elements:
                size += self.size(element)
                if size > UNITS:
                    raise TemplateError(f"it makes a list of more than {UNITS:,} elements")
            self.charge(size)
            self._sizes[id(x)] = (size, x)  # `x` is kept, so no other value has its id
        return x

    def read(self, *values: Value) -> None:
        """Counts values that are compared, searched or written."""
        for x in values:
            self.charge(self.size(x))

    def string(self, x: Value) -> str:
        """The text of a value."""
        if isinstance(x, str):
            return x
        self.read(x)
        return str(self.keep(str(_display_form(x))))


def _display_form(x: Value) -> Value:
    """A value as Python writes it; of objects nothing."""
    if isinstance(x, Undefined | str | int | float | list | tuple | dict | None):
        return x
    raise TemplateError(f"it writes an object of the kind {type(x).__name__.lower()}")


def integer(x: Value, most: int = LONGEST) -> int:
    """An integer argument."""
    if not isinstance(x, int) or abs(x) > most:
        raise TemplateError(f"expected an integer of at most {most:,}, got {str(x)[:40]!r}")
    return x
