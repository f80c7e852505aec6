"""Random inputs of a signature, for measuring and comparing it."""

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from keras_tfm.runtime.manifest.manifest import Input

# The standard deviation of random audio, whose samples are between -1 and 1.
_LOUDNESS = 0.1
_IS_MASK = re.compile(r"(^|_)masks?(_|$)")
# The share of True in a random mask.
_VISIBLE = 0.75


class Numbers(NamedTuple):
    """The distribution of an input of numbers: normal, and cut off.

    Attributes:
        mean, deviation: arrays that broadcast to a row of the input.
        least, most: float, the range of possible values.
    """

    mean: float | np.ndarray = 0.0
    deviation: float | np.ndarray = 1.0
    least: float = -np.inf
    most: float = np.inf


def random_inputs(
    inputs: Mapping[str, Input], seed: int = 0, numbers: Mapping[str, Numbers] | None = None
) -> dict[str, np.ndarray]:
    """A random array for each input of a signature, of the exported shape.

    - Ids come from the vocabulary in the manifest, without the pad id; the last one is the end
      token where the model returns its features.
    - After a row's first id stand the placeholders of its features, if the model has some.
    - Masks, which are bools and inputs of a name such as "attention_mask", are True for three of
      four positions, and for the first of each axis, so that no row is masked as a whole.
    - Other integers without a vocabulary are 0 or 1; those of 8 bits, such as an image's, take any
      value.
    - Floats are normally distributed; audio has a standard deviation of 0.1.

    Args:
        inputs: those of a signature of the manifest.
        seed: int, for other values.
        numbers: the distribution of inputs by name, where it is known.

    >>> from functools import partial
    >>> from keras_tfm.runtime.inspection.random_inputs import Numbers, random_inputs
    >>> from keras_tfm.runtime.manifest.manifest import Input
    >>> row = partial(Input, kind="input", padded=False)
    >>> source = row(shape=[1, 4], dtype="int32", vocabulary_size=7, pad_id=0)
    >>> ids = random_inputs({"source": source})["source"]
    >>> ids.shape, bool(ids.min() >= 1), bool(ids.max() < 7)
    ((1, 4), True, True)
    >>> pressure = row(shape=[1, 400], dtype="float32")
    >>> known = {"pressure": Numbers(1e5, 800.0)}
    >>> made = random_inputs({"pressure": pressure}, numbers=known)["pressure"]
    >>> int(made.mean().round(-3)), int(made.std().round(-2))
    (100000, 800)
    """
    generator = np.random.default_rng(seed)
    arrays = {}
    for name, x in inputs.items():
        shape, dtype = tuple(x.shape), np.dtype(x.dtype)
        known = (numbers or {}).get(name)
        if dtype.kind == "b" or is_mask(name, x.vocabulary_size):
            arrays[name] = _mask(generator, shape).astype(dtype)
        elif known is not None:
            values = generator.normal(known.mean, known.deviation, shape)
            values = np.clip(values, known.least, known.most)
            if dtype.kind in "iu":
                limits = np.iinfo(dtype)
                values = np.clip(np.rint(values), limits.min, limits.max)
            arrays[name] = values.astype(dtype)
        elif dtype.kind in "iu":
            ids = _integers(generator, x, shape, dtype).astype(dtype)
            arrays[name] = insert_placeholders(ids, x)
            if x.end_id is not None:
                arrays[name][:, -1] = x.end_id
        else:
            deviation = _LOUDNESS if x.is_audio else 1.0
            arrays[name] = generator.normal(scale=deviation, size=shape).astype(dtype)
    return arrays


def insert_placeholders(rows: np.ndarray, known: Input) -> np.ndarray:
    """Random ids (..., T) with the placeholders of a model behind the first id, and nowhere else.

    A row has the placeholders of as many pictures as fit into it; with `sees_later`, before the
    last id.

    >>> import numpy as np
    >>> from keras_tfm.runtime.inspection.random_inputs import insert_placeholders
    >>> from keras_tfm.runtime.manifest.manifest import Input
    >>> known = {"kind": "input", "padded": False, "placeholder_id": 9, "placeholders": 2}
    >>> known = Input(shape=[1, 4], dtype="int32", **known)
    >>> insert_placeholders(np.array([[3, 4, 5, 9]]), known).tolist()
    [[3, 9, 9, 8]]
    """
    token_id, count = known.placeholder_id, known.placeholders
    if token_id is None or count is None:
        return rows
    others = [x for x in (token_id - 1, token_id + 1, token_id + 2) if x not in (-1, known.pad_id)]
    rows = np.where(rows == token_id, others[0], rows).astype(rows.dtype)
    group = known.placeholder_group or count
    count = min(count, (rows.shape[-1] - 1 - known.sees_later) // group * group)
    rows[..., 1 : 1 + max(count, 0)] = token_id
    return rows


def is_mask(name: str, vocabulary_size: int | None) -> bool:
    """Whether an input without a vocabulary is called a mask, as in `transformers`.

    >>> from keras_tfm.runtime.inspection.random_inputs import is_mask
    >>> is_mask("attention_mask", None), is_mask("masked_image", None)
    (True, False)
    """
    return _IS_MASK.search(name.lower()) is not None and vocabulary_size is None


def _mask(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    mask = generator.uniform(size=shape) < _VISIBLE
    for axis in range(1, len(shape)):
        if shape[axis] > 1:
            mask[(slice(None),) * axis + (0,)] = True
    return mask


def _integers(
    generator: np.random.Generator, x: Input, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    size, pad_id = x.vocabulary_size, 0 if x.pad_id is None else x.pad_id
    if size is None:
        whole = dtype.itemsize == 1
        low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max + 1) if whole else (0, 2)
        return generator.integers(low, high, shape)
    if size == 1:
        return np.zeros(shape, dtype)
    if pad_id < 0:
        return generator.integers(0, size, shape)
    ids = generator.integers(0, size - 1, shape)
    return ids + (ids >= pad_id)  # skips the pad id
