"""Builds models without memory for their weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import keras

from keras_tfm.keras_internals import (
    initialize,
    is_initialized,
    set_uninitialized_variables,
    sublayers,
    uninitialized_variables,
)


@contextmanager
def without_storage() -> Iterator[None]:
    """Models built inside have weights with shapes but without memory.

    Their parameters can be counted and their shapes compared; they cannot be called or trained
    before `allocate`.

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


def allocate(model: keras.Model) -> None:
    """Gives the variables of a model that have no storage yet those of their initializers.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.models.without_storage import allocate, without_storage
    >>> from keras_tfm.models import gpt
    >>> with without_storage():
    ...     model = gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> allocate(model)
    >>> model(np.array([[3, 4]])).shape
    TensorShape([1, 2, 11])
    """
    for variable in model.variables:
        if not is_initialized(variable):
            initialize(variable)
    for layer in (model, *sublayers(model)):
        # On PyTorch, Keras makes the parameters of a module when this is read.
        getattr(layer, "torch_params", None)
