"""Operators of a Jinja program, and formats: counted before they are computed; and its tests."""

import operator
import re
import string
from collections.abc import Callable

from keras_tfm.checkpoints.tokenizers.jinja.meter import (
    BITS,
    Meter,
    TemplateError,
    Undefined,
    Value,
    integer,
)


def _add(meter: Meter, x: Value, y: Value) -> Value:
    if isinstance(x, str) and isinstance(y, str):
        meter.text(len(x) + len(y))
    elif isinstance(x, list | tuple):
        meter.read(x, y)
    return meter.keep(x + y)


def _multiply(meter: Meter, x: Value, y: Value) -> Value:
    for one, count in ((x, y), (y, x)):
        if isinstance(one, str | list | tuple) and isinstance(count, int):
            times = max(0, integer(count))
            if isinstance(one, str):
                meter.text(len(one) * times)
            else:
                meter.charge(meter.size(one) * times)
    return meter.keep(x * y)


def _power(meter: Meter, x: Value, y: Value) -> Value:
    if isinstance(x, int) and isinstance(y, int) and x.bit_length() * abs(y) > BITS:
        raise TemplateError(f"it makes an integer of more than {BITS} bits")
    return meter.keep(x**y)


def _remainder(meter: Meter, x: Value, y: Value) -> Value:
    if isinstance(x, str):
        return percent(meter, x, *(y if isinstance(y, tuple) else (y,)))
    return x % y


def percent(meter: Meter, x: str, /, *values: Value, **names: Value) -> str:
    """`x % values`, with widths of at most three digits."""
    if re.search(r"\*|\d{4}", x):
        raise TemplateError("it formats a text with a width of more than 3 digits")
    given: Value = names or values
    if len(values) == 1 and isinstance(values[0], dict):
        given = values[0]
    _charge_format(meter, x, [*(given.values() if isinstance(given, dict) else given)])
    return str(meter.keep(x % given))


def braces(meter: Meter, x: str, /, *values: Value, **names: Value) -> str:
    """`x.format(...)`, without attributes and with widths of at most three digits."""
    for _, field, form, _ in string.Formatter().parse(x):
        if not re.fullmatch(r"\w*", field or "") or re.search(r"[{}]|\d{4}", form or ""):
            raise TemplateError("it formats a text with attributes, or a width over 3 digits")
    _charge_format(meter, x, [*values, *names.values()])
    return str(meter.keep(x.format(*values, **names)))


def _charge_format(meter: Meter, x: str, values: list[Value]) -> None:
    """Each field may write the largest value, or 999 characters."""
    meter.read(x, *values)
    fields = x.count("%") + x.count("{")
    longest = max((len(meter.string(one)) for one in values), default=0)
    meter.text(len(x) + fields * max(999, 10 * longest))  # 10: of an escape such as \\U0001f600


OPERATORS: dict[str, Callable[[Meter, Value, Value], Value]] = {
    "Add": _add,
    "Sub": lambda meter, x, y: meter.keep(x - y),
    "Mul": _multiply,
    "Div": lambda meter, x, y: x / y,
    "FloorDiv": lambda meter, x, y: x // y,
    "Mod": _remainder,
    "Pow": _power,
}
COMPARISONS: dict[str, Callable[[Value, Value], Value]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda x, y: x in y,
    "notin": lambda x, y: x not in y,
}
TESTS: dict[str, Callable[..., Value]] = {
    "defined": lambda x: not isinstance(x, Undefined),
    "undefined": lambda x: isinstance(x, Undefined),
    "none": lambda x: x is None,
    "string": lambda x: isinstance(x, str),
    "mapping": lambda x: isinstance(x, dict),
    "sequence": lambda x: isinstance(x, str | list | tuple | dict | Undefined),
    "iterable": lambda x: isinstance(x, str | list | tuple | dict | Undefined),
    "number": lambda x: isinstance(x, int | float),
    "integer": lambda x: isinstance(x, int) and not isinstance(x, bool),
    "float": lambda x: isinstance(x, float),
    "boolean": lambda x: isinstance(x, bool),
    "true": lambda x: x is True,
    "false": lambda x: x is False,
    "odd": lambda x: x % 2 == 1,
    "even": lambda x: x % 2 == 0,
    "divisibleby": lambda x, y: x % y == 0,
    "sameas": lambda x, y: x is y,
    "lower": lambda x: str(x).islower(),
    "upper": lambda x: str(x).isupper(),
    "callable": lambda x: False,
    **dict.fromkeys(("eq", "equalto", "=="), operator.eq),
    **dict.fromkeys(("ne", "!="), operator.ne),
    **dict.fromkeys(("lt", "lessthan", "<"), operator.lt),
    **dict.fromkeys(("gt", "greaterthan", ">"), operator.gt),
    **dict.fromkeys(("le", "<="), operator.le),
    **dict.fromkeys(("ge", ">="), operator.ge),
    "in": lambda x, y: x in y,
}
