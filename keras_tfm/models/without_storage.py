"""Builds models without memory for their weights."""

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

import keras

from keras_tfm.keras_internals import (
    in_memory,
    initialize,
    is_initialized,
    set_uninitialized_variables,
    sublayers,
    uninitialized_variables,
)

# Weights of fewer values take memory even if the others do not.
_LARGE = 1 << 16
# A model of fewer weights is in memory as a whole.
_MANY = 100_000_000


def is_large(weight: keras.Variable) -> bool:
    """Whether a weight may stay where it is stored, and be read each time it is used."""
    return math.prod(weight.shape) >= _LARGE


def has_many_weights(model: keras.Layer) -> bool:
    """Whether its large weights better stay where they are stored.

    >>> from keras_tfm.models import bert
    >>> from keras_tfm.models.without_storage import has_many_weights
    >>> has_many_weights(bert(11, dim=8, num_layers=1, num_heads=2))
    False
    """
    return model.count_params() > _MANY


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


def allocate(model: keras.Layer, excluded: Iterable[keras.Variable] = ()) -> None:
    """Gives the variables of a model that have no storage yet those of their initializers.

    Args:
        model: a model, or another layer.
        excluded: variables that stay as they are.

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
    ignored = {id(variable) for variable in excluded}
    for variable in model.variables:
        if not is_initialized(variable) and id(variable) not in ignored:
            initialize(variable)
    for layer in (model, *sublayers(model)):
        # On PyTorch, Keras makes the parameters of a module when this is read.
        getattr(layer, "torch_params", None)


def allocate_if_missing(model: keras.Model) -> None:
    """`allocate`, of a model whose weights are to be changed and may have no storage yet."""
    if not all(map(is_initialized, model.variables)):
        allocate(model)


def with_largest_weight(model: keras.Layer) -> AbstractContextManager[None]:
    """The context in which the largest weight is in memory, also of a model loaded lazily.

    It is the embedding, as a rule, which a model reads both for its tokens and for its logits.
    """
    return in_memory(sorted(model.variables, key=lambda x: math.prod(x.shape))[-1:])
