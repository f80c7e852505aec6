"""Builds models without memory for their weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import keras

from keras_tfm.keras_internals import set_uninitialized_variables, uninitialized_variables


@contextmanager
def without_storage() -> Iterator[None]:
    """Models built inside have weights with shapes but without memory.

    Their parameters can be counted and their shapes compared; they cannot be called or trained.

    Example:

    >>> from keras_tfm.models.without_storage import without_storage
    >>> from keras_tfm.models import gpt
    >>> from keras_tfm.models.decoders.gpt import SIZES
    >>> with without_storage():
    ...     model = gpt(50257, **SIZES["gpt2-xl"])
    >>> model.count_params()
    1557611200
    """
    before = uninitialized_variables()
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    finally:
        set_uninitialized_variables(before)
