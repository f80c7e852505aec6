"""Argument checks for all packages, without Keras. Errors state what was expected and received.

Example:

>>> from keras_tfm.arguments import check_integer
>>> check_integer("num_heads", 0)
Traceback (most recent call last):
ValueError: num_heads must be at least 1, got 0
"""

import math
import numbers
from pathlib import Path
from typing import Any


def check_integer(
    name: str, value: object, minimum: int | None = 1, optional: bool = False
) -> None:
    """Raises unless `value` is an integer of at least `minimum`, or None if `optional`."""
    if optional and value is None:
        return
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if minimum is not None and value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")


def check_number(name: str, value: object, optional: bool = False) -> None:
    """Raises unless `value` is a finite number, or None if `optional`."""
    if optional and value is None:
        return
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")


def check_positive(name: str, value: Any, optional: bool = False) -> None:
    """Raises unless `value` is a positive number, or None if `optional`."""
    check_number(name, value, optional)
    if value is not None and value <= 0:
        raise ValueError(f"{name} must be positive, got {value}")


def check_not_negative(name: str, value: Any) -> None:
    """Raises unless `value` is 0 or a positive number."""
    check_number(name, value)
    if value < 0:
        raise ValueError(f"{name} must not be negative, got {value}")


def check_numbers(name: str, values: Any, count: int) -> None:
    """Raises unless `values` is a list or tuple of `count` finite numbers."""
    if not isinstance(values, list | tuple) or len(values) != count:
        raise ValueError(f"{name} must have {count} numbers, got {values!r}")
    for value in values:
        check_number(name, value)


def check_rate(name: str, value: Any, optional: bool = False) -> None:
    """Raises unless `value` is a dropout rate, within 0 and 1, or None if `optional`."""
    check_number(name, value, optional)
    if value is not None and not 0 <= value <= 1:
        raise ValueError(f"{name} must be within 0 and 1, got {value}")


def check_file(path: Path, name: Path | None = None) -> None:
    """Raises unless `path` is a regular file; `name` is its name for messages.

    >>> from pathlib import Path
    >>> from keras_tfm.arguments import check_file
    >>> check_file(Path("/"))
    Traceback (most recent call last):
    IsADirectoryError: / is a folder, expected a file
    """
    name = path if name is None else name
    if path.is_dir():
        raise IsADirectoryError(f"{name} is a folder, expected a file")
    if path.exists() and not path.is_file():
        raise ValueError(f"{name} is a device, a pipe or a socket, expected a regular file")
    if not path.exists():
        raise FileNotFoundError(f"no such file: {name}")


def check_labels(labels: Any) -> None:
    """Raises unless `labels` are names of classes, each for one class.

    "N/A" may be several: COCO's lists have it for classes that are not used.

    >>> from keras_tfm.arguments import check_labels
    >>> check_labels(["cat", "dog", "cat"])
    Traceback (most recent call last):
    ValueError: labels must be different, got 'cat' for the classes 0 and 2: name them apart
    """
    if isinstance(labels, str) or not all(isinstance(x, str) for x in labels):
        raise ValueError(f"labels must be a list of texts, got {labels!r}")
    first: dict[str, int] = {}
    for i, label in enumerate(labels):
        if first.setdefault(label, i) != i and label != "N/A":
            raise ValueError(
                f"labels must be different, got {label!r} for the classes {first[label]} and {i}: "
                "name them apart"
            )
