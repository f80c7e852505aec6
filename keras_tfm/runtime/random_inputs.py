"""Inputs that a signature takes, for measuring it."""

from typing import Any

import numpy as np


def random_inputs(signature: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """An array for each input of a signature of the manifest, of its whole shape.

    Ids are drawn from the vocabulary that the manifest gives, without 0, which may be padding;
    where it gives none they are 0 or 1, but bytes are of any value, as of an image. Numbers are
    normal, and masks are True throughout.

    >>> from keras_tfm.runtime.random_inputs import random_inputs
    >>> source = {"shape": [1, 4], "dtype": "int32", "vocabulary_size": 7}
    >>> ids = random_inputs({"inputs": {"source": source}})["source"]
    >>> ids.shape, bool(ids.min() >= 1), bool(ids.max() < 7)
    ((1, 4), True, True)
    """
    generator = np.random.default_rng(seed)
    arrays = {}
    for name, spec in signature["inputs"].items():
        shape, dtype = tuple(spec["shape"]), np.dtype(spec["dtype"])
        if dtype.kind in "iu":
            size = spec.get("vocabulary_size")
            low, high = (0, 2) if size is None else (min(1, size - 1), size)
            if size is None and dtype.itemsize == 1:
                low, high = np.iinfo(dtype).min, np.iinfo(dtype).max + 1
            arrays[name] = generator.integers(low, high, shape).astype(dtype)
        elif dtype.kind == "b":
            arrays[name] = np.ones(shape, dtype)
        else:
            arrays[name] = generator.normal(size=shape).astype(dtype)
    return arrays
