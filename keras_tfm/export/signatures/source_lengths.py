"""The lengths for which the open axes of inputs are exported: one for all, several, or by input.

Example:

>>> from keras_tfm.export.signatures.source_lengths import lengths_of
>>> lengths_of("source_length", [32, 8])
(8, 32)
"""

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_tfm.generation.model_inputs import audio_inputs, find_target, input_specs


class SourceLengths(NamedTuple):
    """The argument `source_length`, checked.

    Attributes:
        each: tuple of int, ascending: the lengths of inputs that are not in `own`.
        own: dict of int by input.
    """

    each: tuple[int, ...]
    own: dict[str, int]


def inputs_with_open_length(model: keras.Model, without: Collection[str] = ()) -> list[str]:
    """The inputs with an open axis after that of the rows, without those of `without`, in order."""
    specs = input_specs(model)
    return [name for name, x in specs.items() if None in x.shape[1:] and name not in without]


def source_lengths(
    model: keras.Model, roles: Sequence[str], arguments: Mapping[str, Any]
) -> SourceLengths:
    """The lengths of the inputs with an open axis.

    Args:
        model: functional model.
        roles: those of the signatures.
        arguments: of the export, with "source_length" and "target".

    Raises:
        ValueError: a length is out of range, or by input: an input is unknown, has no open axis, or
            is missing; or several inputs have several lengths.
    """
    given = arguments.get("source_length")
    if not isinstance(given, Mapping):
        return SourceLengths(lengths_of("source_length", given), {})
    target = () if list(roles) == ["predict"] else (find_target(model, arguments.get("target")),)
    open_ = inputs_with_open_length(model, target)
    unknown = [name for name in given if name not in open_]
    known_otherwise = [*audio_inputs(model)]
    if arguments.get("max_length") is not None and len(input_specs(model)) > 1:
        known_otherwise.append(find_target(model, arguments.get("target")))
    missing = [name for name in open_ if name not in given and name not in known_otherwise]
    if unknown or missing or not given:
        raise ValueError(
            f"source_length must have the inputs with an open length, {open_}, got {list(given)}"
        )
    known = {name: lengths_of(f"source_length of {name!r}", x) for name, x in given.items()}
    if () in known.values():
        raise ValueError(f"source_length must have a length for each input, got {dict(given)}")
    several = [name for name, x in known.items() if len(x) > 1]
    if len(several) > 1:
        raise ValueError(f"one input may have several source_lengths, got several for {several}")
    own = {name: x[0] for name, x in known.items() if name not in several}
    return SourceLengths(known[several[0]] if several else (), own)


def index(name: str, value: int | None) -> int | None:
    """Returns `value` as an int; raises unless it is positive. None stays None."""
    if value is None:
        return None
    value = integer(name, value)
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


def integer(name: str, value: Any) -> int:
    """An integer of Python or NumPy as one of Python, since the manifest is JSON."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None


def lengths_of(name: str, values: int | Sequence[int] | None) -> tuple[int, ...]:
    """The lengths as an ascending tuple; empty for None."""
    if values is None:
        return ()
    several: list[Any] = list(np.atleast_1d(np.asarray(values, object)))
    result = sorted({index(name, value) or 0 for value in several})
    if len(result) < len(several) or not result:
        raise ValueError(f"{name} must be one length or several different ones, got {values}")
    return tuple(result)
