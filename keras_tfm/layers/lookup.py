"""Embedding lookup."""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers.target import current_target

Tensor = Any


def lookup(table: Tensor, ids: Tensor) -> Tensor:
    """Looks up rows of `table` (V, D) by integer `ids` of any shape: (*ids.shape, D)."""
    if keras.backend.backend() != "tensorflow":
        return ops.take(table, ids, axis=0)
    from keras_tfm.layers.tensorflow.gather import gather, named_gather

    return named_gather(table, ids) if current_target().is_edge else gather(table, ids)
