"""Checks a caller's inputs and converts them to the shape and dtype of a signature.

Rows of ids (B, S) that are shorter than the exported length are padded; a padding id that is a
token is passed as `REAL_PAD`. What an input takes is in its `Input` of the manifest.

Example:

>>> from keras_tfm.runtime.checked_inputs import fit
>>> from keras_tfm.runtime.manifest.manifest import Input
>>> ids = Input(shape=[1, 4], dtype="int32", kind="input", padded=True, pad_id=0)
>>> fit("ids", [[3, 4]], ids).tolist()
[[3, 4, 0, 0]]
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard, cast

import numpy as np
import numpy.typing as npt

from keras_tfm.runtime.decoding.special_ids import (
    REAL_PAD,
    TokenRows,
    check_last_tokens,
    check_placeholders,
    unpadded_prompts,
    with_real_pads,
)
from keras_tfm.runtime.manifest.manifest import Decode, Input

# Rows of one input, and the inputs of a model: those of the first, or of several by name.
Values = npt.ArrayLike | Sequence[npt.ArrayLike] | Sequence[Sequence[npt.ArrayLike]]
Inputs = Values | Mapping[str, Values]
# The largest sample of audio that is read as a float. Resampling and mixing exceed 1 by a little.
LOUDEST = 8.0


def fit(name: str, values: Values, expected: Input) -> np.ndarray:
    """`values` as an array (N, ...) of the shape and dtype that the file expects."""
    shape, dtype = tuple(expected.shape), np.dtype(expected.dtype)
    if expected.is_audio:
        return _audio(name, values, expected)
    if expected.mask_of is not None and not expected.is_ids:
        values = _padded_masks(values, shape[1])
    if dtype.kind in "iu":
        array = _integers(name, values, expected)
    else:
        array = _array(name, values)
        if dtype.kind == "b" and array.dtype.kind not in "biu":
            raise TypeError(f"{name} must be bool, True = attend, got {array.dtype}")
        try:
            array = array.astype(dtype)
        except (TypeError, ValueError):  # texts, None
            raise TypeError(f"{name} must be numbers, got {array.dtype}") from None
        if array.ndim == len(shape) - 1:
            array = array[np.newaxis]
    if array.ndim != len(shape) or array.shape[1:] != shape[1:]:
        raise ValueError(f"{name} must have shape {_shape(shape)}, got {array.shape}")
    return array.astype(dtype)


def _integers(name: str, values: Values, expected: Input) -> np.ndarray:
    """Integers in range; rows of ids shorter than the exported length are padded on the right."""
    arrays, pad_id = integer_rows(name, values, expected), expected.pad_id
    if pad_id is None:
        return np.stack(arrays)
    length = expected.shape[1]
    if expected.padding is not None:
        arrays = [with_real_pads(array, pad_id, expected.padding) for array in arrays]
    if expected.needs_token:
        for i, array in enumerate(arrays):
            if not (array != pad_id).any():
                raise ValueError(
                    f"{name}: row {i} is empty or only padding (id {pad_id}): the model would "
                    "return NaN"
                )
    if expected.end_id is not None:
        for i, array in enumerate(arrays):
            if not (array == expected.end_id).any():
                raise ValueError(
                    f"{name}: row {i} has no end token (id {expected.end_id}), whose features "
                    "the model returns"
                )
    lengths = {len(array) for array in arrays}
    if max(lengths) > length:
        raise ValueError(
            f"{name} has {max(lengths)} ids, but the file was exported for at most {length}"
        )
    if lengths - {length} and not expected.padded:
        raise ValueError(
            f"{name} must have shape (B, {length}), got rows of {sorted(lengths)} ids; "
            "padding would change the outputs: the model does not mask it in every layer"
        )
    result = np.full((len(arrays), length), pad_id, expected.dtype)
    for i, array in enumerate(arrays):
        result[i, : len(array)] = array
    return result


def _padded_masks(values: Values, length: int) -> Values:
    """Rows of a mask, shorter ones padded with 0: after them there is no token."""
    if not _is_sequence(values):
        return values
    rows = [x for x in values if _is_sequence(x)]
    rows = rows if len(rows) == len(values) else [values]
    return [[*row, *[0] * (length - len(row))] for row in rows]


def integer_rows(name: str, values: Values, expected: Input) -> list[np.ndarray]:
    """Rows of integers in the range that the input takes; rows of ids may have any length."""
    shape = expected.shape
    if expected.is_pixels:
        return _pictures(name, values, tuple(shape[1:]))
    if not _is_sequence(values):
        raise TypeError(f"{name} must be rows of ids, got {type(values).__name__}")
    if not len(values):
        raise ValueError(f"{name}: got no rows")
    rows = [values] if len(shape) > 1 and not _is_sequence(values[0]) else values
    arrays = [_array(name, row) for row in rows]
    # An id for padding that is no token, or the padding id as a token.
    own = {expected.pad_id, None if expected.padding is None else REAL_PAD}
    for array in arrays:
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise TypeError(f"{name} must be integer ids, got {_other_than_ids(array)}")
        wrong = array.ndim != 1 if expected.is_ids else array.shape != tuple(shape[1:])
        if wrong:
            raise ValueError(f"{name} must have shape {_shape(shape)}, got a row of {array.shape}")
    # Before the cast: 2**32 + 3 would become 3 in 32 bits.
    limits, size = np.iinfo(expected.dtype), expected.vocabulary_size
    low, size = (int(limits.min), int(limits.max) + 1) if size is None else (0, size)
    known = [array[~np.isin(array, [x for x in own if x is not None])] for array in arrays]
    found = [bound for x in known if x.size for bound in (int(x.min()), int(x.max()))]
    if found and (min(found) < low or max(found) >= size):
        raise ValueError(
            f"{name}: ids must be in {low}..{size - 1}, got {min(found)}..{max(found)}"
        )
    return arrays


def _other_than_ids(array: np.ndarray) -> str:
    """What an array that is not of integers holds, for a message."""
    if array.dtype.kind not in "OUS":
        return str(array.dtype)
    values = array.ravel().tolist()
    if any(isinstance(x, str | bytes) for x in values):
        return "text"
    others = [x for x in values if not isinstance(x, int)]
    if others:
        return type(others[0]).__name__
    return f"{max(values, key=abs)}, which no 64 bits hold"


def separate_rows(name: str, values: Values, expected: Input | None) -> list[np.ndarray]:
    """The rows of an input as a list; a single row may come without its batch axis."""
    if expected is not None and expected.is_ids:
        return integer_rows(name, values, expected)
    if expected is not None and expected.is_audio:
        return list(fit(name, values, expected))
    array = _array(name, values)
    alone = expected is not None and array.ndim == len(expected.shape) - 1
    return [array] if alone or not array.ndim else list(array)


def prompt_input(decode: Decode) -> Input:
    """The input of a whole prompt for `decode`, whose own input is a single token."""
    token = decode.inputs[decode.target]
    return replace(token, shape=[token.shape[0], decode.max_length - 1])


def check_prompt_length(count: int, max_length: int) -> None:
    """Raises unless a prompt of `count` tokens leaves a position for a new one."""
    if not 0 < count < max_length:
        raise ValueError(
            "a prompt must have at least one token and fewer than max_length "
            f"({max_length}), got {count}"
        )


def prompt_rows(
    name: str, values: Values, expected: Input, start_id: int | None
) -> list[np.ndarray]:
    """Prompts, each (P,), without trailing padding ids; see `unpadded_prompts`.

    Placeholders are counted, see `check_placeholders`; with `sees_later`, none is the last token.
    """
    rows = unpadded_prompts(
        name,
        integer_rows(name, values, expected),
        pad_id_of(expected),
        start_id,
        expected.padded,
        not isinstance(values, list | tuple),
        isinstance(values, TokenRows),
    )
    check_placeholders(
        name,
        rows,
        expected.placeholder_id,
        expected.placeholders,
        expected.placeholder_group,
    )
    if expected.sees_later:
        check_last_tokens(name, rows, expected.placeholder_id)
    return rows


def left_padded(
    name: str, values: Values, expected: Input, start_id: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Prompts (B, N), padded on the left, and the number of padding ids per row (B,), int32."""
    rows, length = prompt_rows(name, values, expected, start_id), expected.shape[1]
    if not all(map(len, rows)):
        raise ValueError(f"{name}: a prompt must have at least one token, got 0")
    if max(map(len, rows)) > length:
        raise ValueError(
            f"{name}: a prompt must have 1 to {length} tokens, as the file was exported, "
            f"got {sorted({len(row) for row in rows})}"
        )
    padding = np.array([length - len(row) for row in rows], "int32")
    pairs = zip(rows, padding, strict=True)
    value = pad_id_of(expected)
    return np.stack([np.pad(row, (n, 0), constant_values=value) for row, n in pairs]), padding


def pad_id_of(expected: Input) -> int:
    """The padding id of an input of ids."""
    assert expected.pad_id is not None
    return expected.pad_id


def filled_batch(array: np.ndarray, batch: int) -> np.ndarray:
    """A smaller last chunk, padded to `batch` rows by repeating its last row."""
    missing = batch - len(array)
    return array if missing == 0 else np.concatenate([array, np.repeat(array[-1:], missing, 0)])


def _pictures(name: str, values: Values, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Pictures of the exported size; one may come without its batch axis."""
    array = _array(name, values)
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{name} must be the pixels of pictures, uint8 {('B', *shape)}, got {array.dtype}: "
            "predict_images reads files and pictures of any size"
        )
    if array.shape == shape:
        array = array[np.newaxis]
    if array.shape[1:] != shape or not len(array):
        raise ValueError(
            f"{name} must have shape {_shape((0, *shape))}, got {array.shape}: predict_images "
            "resizes pictures"
        )
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > 255:
        raise ValueError(f"{name}: pixels must be in 0..255, got {low}..{high}")
    return list(array)


def samples_of(name: str, values: Values) -> np.ndarray:
    """One waveform (samples,) as float32 from -1 to 1; int16 is divided by 32768.

    Raises:
        TypeError: integers of another kind.
        ValueError: no samples, another rank, NaN or infinity, or samples far beyond 1.

    >>> import numpy as np
    >>> from keras_tfm.runtime.checked_inputs import samples_of
    >>> samples_of("audio", np.array([16384, -32768], "int16")).tolist()
    [0.5, -1.0]
    """
    array = _array(name, values)
    if array.ndim != 1:
        raise ValueError(f"{name} must have shape (samples,), got {array.shape}")
    if not len(array):
        raise ValueError(f"{name} has no samples")
    if array.dtype == np.int16:
        return array.astype("float32") / np.float32(32768)
    if array.dtype.kind != "f":
        raise TypeError(f"{name} must be floats from -1 to 1, or int16, got {array.dtype}")
    wrong = np.flatnonzero(~np.isfinite(array))
    if len(wrong):
        raise ValueError(
            f"{name} must be finite, got {array[wrong[0]]} as sample {wrong[0]} and "
            f"{len(wrong)} such samples in all"
        )
    largest = float(np.abs(array).max())
    if largest > LOUDEST:
        raise ValueError(
            f"{name} must have samples from -1 to 1, got {largest:g}: divide those of 16 bits by "
            "32768"
        )
    return array.astype("float32")


def _audio(name: str, values: Values, expected: Input) -> np.ndarray:
    """Waveforms (B, samples), padded with silence if the model pads, too."""
    length, rate = expected.shape[1], expected.sample_rate
    assert rate is not None
    rows = [values]
    if _is_sequence(values) and len(values) and np.ndim(values[0]):
        rows = [*values]
    arrays = [samples_of(name, row) for row in rows]
    result = np.zeros((len(arrays), length), expected.dtype)
    for row, array in zip(result, arrays, strict=True):
        check_duration(name, len(array), length, rate)
        shortest = expected.shortest
        if shortest is not None and len(array) < shortest:
            raise ValueError(
                f"{name} has {len(array)} samples, {len(array) / rate:.3f} seconds, but the model "
                f"needs at least {shortest}, {shortest / rate:.3f} seconds"
            )
        if len(array) < length and not expected.padded:
            raise ValueError(f"{name} must have {length} samples, got {len(array)}")
        row[: len(array)] = array
    return result


def check_duration(name: str, count: int, length: int, rate: int) -> None:
    """Raises a ValueError if audio of `count` samples at `rate` is longer than a file takes."""
    if count > length:
        raise ValueError(
            f"{name} has {count} samples, {count / rate:.2f} seconds, but the file takes at most "
            f"{length}, {length / rate:.2f} seconds: cut it, best at a pause"
        )


def longest_row(values: Values) -> int:
    """The length of the longest row of ids or samples; 0 for what `fit` refuses."""
    if not _is_sequence(values) or not len(values):
        return 0
    if not _is_sequence(values[0]):
        return len(values)
    return max(len(row) if _is_sequence(row) else 0 for row in values)


def _array(name: str, values: Values) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError:  # NumPy's message is about its internals
        raise ValueError(f"{name} must be an array, got rows of different shapes") from None


def _is_sequence(values: Values) -> TypeGuard[Sequence[npt.ArrayLike]]:
    return isinstance(values, (list, tuple)) or np.ndim(cast("npt.ArrayLike", values)) > 0


def _shape(shape: Sequence[int]) -> str:
    """A shape with an open batch size, for an error."""
    return f"({', '.join(['B', *map(str, shape[1:])])})"
