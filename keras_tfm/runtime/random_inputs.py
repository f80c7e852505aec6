"""Random inputs of a signature, for measuring and comparing it."""

from typing import Any

import numpy as np


def random_inputs(signature: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """A random array for each input of a signature of the manifest, of the exported shape.

    Ids come from the vocabulary in the manifest, without the pad id. Without a vocabulary, integers
    are 0 or 1; those of 8 bits, such as an image's, take any value. Floats are normally
    distributed, and masks are all True.

    >>> from keras_tfm.runtime.random_inputs import random_inputs
    >>> source = {"shape": [1, 4], "dtype": "int32", "vocabulary_size": 7, "pad_id": 0}
    >>> ids = random_inputs({"inputs": {"source": source}})["source"]
    >>> ids.shape, bool(ids.min() >= 1), bool(ids.max() < 7)
    ((1, 4), True, True)
    """
    generator = np.random.default_rng(seed)
    arrays = {}
    for name, spec in signature["inputs"].items():
        shape, dtype = tuple(spec["shape"]), np.dtype(spec["dtype"])
        if dtype.kind in "iu":
            arrays[name] = _integers(generator, spec, shape, dtype).astype(dtype)
        elif dtype.kind == "b":
            arrays[name] = np.ones(shape, dtype)
        else:
            arrays[name] = generator.normal(size=shape).astype(dtype)
    return arrays


def _integers(
    generator: np.random.Generator, spec: dict[str, Any], shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    size, pad_id = spec.get("vocabulary_size"), spec.get("pad_id", 0)
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
