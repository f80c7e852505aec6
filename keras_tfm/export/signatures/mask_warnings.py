"""Leaves out Keras's warning of a lost mask, which building the model has shown.

Example:

>>> import warnings
>>> from keras_tfm.export.signatures.mask_warnings import without_mask_warnings
>>> with without_mask_warnings():
...     warnings.warn("Layer 'x' (of type X) was passed an input with a mask attached to it.")
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# Keras 3.15's text. It warns at each call, and an export calls a layer dozens of times.
_WARNING = r"Layer .* was passed an input with a mask attached to it\."


@contextmanager
def without_mask_warnings() -> Iterator[None]:
    """Calls of layers inside do not warn of masks; it is also a decorator."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", _WARNING, UserWarning)
        yield
