"""Filters, methods, tests and functions that a Jinja program may use, and no others.

They are those of Jinja and of `transformers` that chat templates use. The first argument of each is
the meter, the second the value. A result is counted before it is made where it may be larger than
the arguments.
"""

import datetime
import json
import math
import re
from collections.abc import Callable
from functools import partial

from keras_tfm.checkpoints.tokenizers.jinja.meter import (
    UNITS,
    Meter,
    Namespace,
    TemplateError,
    Undefined,
    Value,
    integer,
)
from keras_tfm.checkpoints.tokenizers.jinja.operators import OPERATORS, braces, percent

# Those of markupsafe; the first one first, as the others contain it.
_ESCAPES = {"&": "&amp;", ">": "&gt;", "<": "&lt;", "'": "&#39;", '"': "&#34;"}


def _replace(meter: Meter, x: Value, old: Value, new: Value, count: Value = None) -> str:
    x, old, new = meter.string(x), meter.string(old), meter.string(new)
    most = -1 if count is None else integer(count)
    meter.read(x)
    meter.text(len(x) + x.count(old) * len(new))
    return str(x.replace(old, new, most))


def _join(meter: Meter, x: Value, separator: Value = "", attribute: Value = None) -> str:
    values = elements(meter, x)
    if attribute is not None:
        values = [attribute_of(meter, one, attribute) for one in values]
    texts, separator = [meter.string(one) for one in values], meter.string(separator)
    meter.text(sum(map(len, texts)) + len(separator) * len(texts))
    return str(separator.join(texts))


def elements(meter: Meter, x: Value) -> list[Value]:
    """What a loop goes through."""
    if not isinstance(x, str | list | tuple | dict | Undefined):
        raise TemplateError(f"{_kind(x)} cannot be gone through")
    meter.charge(1 + len(x))
    return list(x)


def _kind(x: Value) -> str:
    return f"a value of the kind {type(x).__name__.lower()}"


def attribute_of(meter: Meter, x: Value, name: Value) -> Value:
    """`x.name` in a filter: of an element of a list, or of an object."""
    for part in name.split(".") if isinstance(name, str) else [name]:
        x = item(meter, x, int(part) if isinstance(part, str) and part.isdecimal() else part)
    return x


def item(meter: Meter, x: Value, key: Value) -> Value:
    """`x[key]`, or undefined."""
    if isinstance(x, Undefined):
        raise TemplateError(f"{x.name} is undefined")
    if isinstance(x, Namespace):
        return x.values.get(key, Undefined(str(key)))
    if isinstance(key, list | dict) or not isinstance(x, str | list | tuple | dict):
        return Undefined(str(key)[:40])
    meter.charge(meter.size(key))
    try:
        return x[key]
    except (LookupError, TypeError):
        return Undefined(str(key)[:40])


def _indent(
    meter: Meter, x: Value, width: Value = 4, first: bool = False, blank: bool = False
) -> str:
    x = meter.string(x)
    prefix = width if isinstance(width, str) else " " * integer(width, 1000)
    lines = (x + "\n").splitlines()
    meter.text(len(x) + len(lines) * len(prefix))
    own = [prefix + line if blank or line else line for line in lines[1:]]
    return "\n".join([(prefix if first else "") + lines[0], *own])


def _escape(meter: Meter, x: Value) -> str:
    x = meter.string(x)
    meter.text(5 * len(x))
    for character, name in _ESCAPES.items():
        x = x.replace(character, name)
    return str(x)


def _title(meter: Meter, x: Value) -> str:
    """A capital after a space, a hyphen and an opening bracket, and not after an apostrophe."""
    x = meter.string(x)
    meter.text(3 * len(x))
    words = re.split(r"([-\s({\[<]+)", x)
    return "".join(word[:1].upper() + word[1:].lower() for word in words)


def _count_words(meter: Meter, x: Value) -> int:
    x = meter.string(x)
    meter.read(x)
    return len(re.findall(r"\w+", x))


def _center(meter: Meter, x: Value, width: Value = 80) -> str:
    meter.text(max(len(meter.string(x)), integer(width)))
    return meter.string(x).center(width)


def _to_json(
    meter: Meter,
    x: Value,
    ensure_ascii: bool = False,
    indent: Value = None,
    separators: Value = None,
    sort_keys: bool = False,
) -> str:
    """As `transformers` defines it: without HTML's escapes, and with options in this order."""
    width = integer(len(indent) if isinstance(indent, str) else indent or 0, 16)
    integer(len("".join(separators or ())), 16)
    meter.charge(meter.size(x) * (1 + width))
    text = json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return str(meter.keep(text))


def _default(meter: Meter, x: Value, default_value: Value = "", boolean: bool = False) -> Value:
    return default_value if isinstance(x, Undefined) or (boolean and not x) else x


def _fold(x: Value, case_sensitive: bool) -> Value:
    """What Jinja compares: by default, texts in small letters."""
    return x.lower() if isinstance(x, str) and not case_sensitive else x


def _sort(
    meter: Meter,
    x: Value,
    reverse: bool = False,
    case_sensitive: bool = False,
    attribute: Value = None,
) -> list[Value]:
    several = attribute.split(",") if isinstance(attribute, str) else [attribute]

    def key(one: Value) -> Value:
        if attribute is None:
            return _fold(one, case_sensitive)
        found = [attribute_of(meter, one, name) for name in several]
        meter.read(*found)
        return [_fold(x, case_sensitive) for x in found]

    meter.read(x, x, x)
    return sorted(elements(meter, x), key=key, reverse=bool(reverse))


def _ordered_pairs(
    meter: Meter, x: Value, case_sensitive: bool = False, by: str = "key", reverse: bool = False
) -> list[Value]:
    if by not in ("key", "value"):
        raise TemplateError(f"dictsort sorts by 'key' or 'value', got {str(by)[:40]!r}")
    place = 0 if by == "key" else 1
    return _sort(meter, _pairs(meter, x), reverse, case_sensitive, place)


def _extreme(
    largest: bool, meter: Meter, x: Value, case_sensitive: bool = False, attribute: Value = None
) -> Value:
    """The first of the largest or least elements."""
    ordered = _sort(meter, x, largest, case_sensitive, attribute)
    return ordered[0] if ordered else Undefined("the largest" if largest else "the least")


def _pairs(meter: Meter, x: Value) -> list[Value]:
    if isinstance(x, Undefined):
        return []
    if not isinstance(x, dict):
        raise TypeError("items are those of a mapping")
    return [meter.keep(pair) for pair in x.items()]


def _batch(meter: Meter, x: Value, count: Value, fill: Value = None) -> list[Value]:
    values, count = elements(meter, x), max(1, integer(count, 1000))
    parts = [values[i : i + count] for i in range(0, len(values), count)]
    if parts and fill is not None:
        parts[-1] += [fill] * (count - len(parts[-1]))
    return [meter.keep(part) for part in parts]


def _unique(
    meter: Meter, x: Value, case_sensitive: bool = False, attribute: Value = None
) -> list[Value]:
    kept: list[Value] = []
    keys: list[Value] = []
    for one in elements(meter, x):
        key = one if attribute is None else attribute_of(meter, one, attribute)
        key = _fold(key, case_sensitive)
        meter.read(key, *keys)
        if key not in keys:
            kept.append(one)
            keys.append(key)
    return kept


def _round(meter: Meter, x: Value, precision: Value = 0, method: str = "common") -> float:
    if method == "common":
        return round(x, integer(precision, 20))
    if method not in ("ceil", "floor"):
        raise TemplateError(f"round has the methods common, ceil and floor, got {method!r:.40}")
    scale = 10 ** integer(precision, 20)
    return float(getattr(math, method)(x * scale) / scale)


def _number(kind: type, meter: Meter, x: Value, default: Value = 0, base: Value = 10) -> Value:
    """A number, or the default where `x` is none."""
    try:
        if kind is int and isinstance(x, str):
            try:
                return int(x, base)
            except ValueError:
                return int(float(x))
        return kind(x)
    except (ValueError, TypeError, OverflowError):
        return default


def _total(meter: Meter, x: Value, attribute: Value = None, start: Value = 0) -> Value:
    for one in elements(meter, x):
        one = one if attribute is None else attribute_of(meter, one, attribute)
        start = OPERATORS["Add"](meter, start, one)
    return start


def _end(last: bool, meter: Meter, x: Value) -> Value:
    values = elements(meter, x)
    return values[-last] if values else Undefined("the last" if last else "the first")


def _charge_search(meter: Meter, x: Value, y: Value) -> Value:
    """`x`, after the cost of a search for `y`."""
    meter.read(x, y)
    return x


def _texts(name: str) -> Callable[..., Value]:
    """A method of texts whose result is no longer than three times the text."""

    def call(meter: Meter, x: Value, *arguments: Value) -> Value:
        x = meter.string(x)
        meter.read(x, *arguments)
        return meter.keep(getattr(str, name)(x, *arguments))

    return call


def _split(name: str) -> Callable[..., Value]:
    def call(meter: Meter, x: Value, *arguments: Value, **names: Value) -> Value:
        meter.read(x, x)
        return meter.keep(getattr(str, name)(x, *arguments, **names))

    return call


_SAME = [
    "capitalize",
    "casefold",
    "count",
    "endswith",
    "find",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "istitle",
    "isupper",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "rfind",
    "rindex",
    "rpartition",
    "rstrip",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
]
TEXT_METHODS: dict[str, Callable[..., Value]] = {
    **{name: _texts(name) for name in _SAME},
    **{name: _split(name) for name in ("split", "rsplit", "splitlines")},
    "replace": _replace,
    "join": lambda meter, x, values: _join(meter, values, x),
    "format": braces,
}
MAPPING_METHODS: dict[str, Callable[..., Value]] = {
    "items": _pairs,
    "keys": lambda meter, x: elements(meter, x),
    "values": lambda meter, x: elements(meter, list(x.values())),
    "get": lambda meter, x, key, default=None: x.get(key, default),
}
LIST_METHODS: dict[str, Callable[..., Value]] = {
    "index": lambda meter, x, y: _charge_search(meter, x, y).index(y),
    "count": lambda meter, x, y: _charge_search(meter, x, y).count(y),
}
FILTERS: dict[str, Callable[..., Value]] = {
    **{name: _texts(name) for name in ("upper", "lower", "capitalize")},
    "title": _title,
    "trim": lambda meter, x, chars=None: _texts("strip")(meter, x, chars),
    "length": lambda meter, x: len(x),
    "count": lambda meter, x: len(x),
    "join": _join,
    "replace": _replace,
    "indent": _indent,
    "center": _center,
    "format": percent,
    "tojson": _to_json,
    "default": _default,
    "d": _default,
    "first": partial(_end, False),
    "last": partial(_end, True),
    "list": elements,
    "items": _pairs,
    "dictsort": _ordered_pairs,
    "string": Meter.string,
    "safe": Meter.string,
    "escape": _escape,
    "e": _escape,
    "int": partial(_number, int),
    "float": lambda meter, x, default=0.0: _number(float, meter, x, default),
    "abs": lambda meter, x: abs(x),
    "round": _round,
    "sort": _sort,
    "unique": _unique,
    "min": partial(_extreme, False),
    "max": partial(_extreme, True),
    "sum": _total,
    "reverse": lambda meter, x: x[::-1] if isinstance(x, str) else elements(meter, x)[::-1],
    "batch": _batch,
    "wordcount": _count_words,
}


def _now(meter: Meter, form: Value) -> str:
    """The date, without the widths of padding that some C libraries take."""
    form = meter.string(form)
    if len(form) > 200 or not re.fullmatch(r"(%[-#]?[A-Za-z%]|[^%])*", form):
        raise TemplateError(f"{form[:40]!r} is no format of a date")
    return datetime.datetime.now().strftime(form)


def _refuse(meter: Meter, message: Value) -> None:
    raise TemplateError(meter.string(message)[:200])


def _numbers(meter: Meter, *arguments: Value) -> Value:
    result = range(*(integer(one, 1 << 60) for one in arguments))
    meter.charge(1 + min(len(result), 2 * UNITS))
    return list(result)


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "range": _numbers,
    "dict": lambda meter, x=(), /, **names: dict(x, **names),
    "namespace": lambda meter, x=(), /, **names: Namespace(dict(x, **names)),
    "raise_exception": _refuse,
    "strftime_now": _now,
}
