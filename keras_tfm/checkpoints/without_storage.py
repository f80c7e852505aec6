"""Models that have shapes and no numbers."""

from collections.abc import Iterator
from contextlib import contextmanager

import keras
from keras.src.backend.common import global_state

_WAITING = "uninitialized_variables"


@contextmanager
def without_storage() -> Iterator[None]:
    """Models built inside have weights of known shapes, for which no memory is taken.

    They can be counted and compared, and neither called nor trained.

    >>> from keras_tfm.checkpoints.without_storage import without_storage
    >>> from keras_tfm.models import gpt
    >>> from keras_tfm.models.gpt import SIZES
    >>> with without_storage():
    ...     model = gpt(50257, **SIZES["gpt2-xl"])
    >>> model.count_params()
    1557611200
    """
    # Not public: Keras keeps such variables, to fill them when any stateless scope is closed.
    before = list(global_state.get_global_attribute(_WAITING, []))
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    finally:
        global_state.set_global_attribute(_WAITING, before)
