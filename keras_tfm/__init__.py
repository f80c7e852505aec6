"""Transformer layers for Keras: composed once, then trained, stepped and exported.

The public names are below. Each subpackage is imported when it is first used, so that
`import keras_tfm` costs nothing and `keras_tfm.runtime` never loads Keras or TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

from keras_tfm.version import __version__

if TYPE_CHECKING:
    from keras_tfm import export, generation, layers, models, runtime, training

__all__ = [
    "__version__",
    "export",
    "generation",
    "layers",
    "models",
    "runtime",
    "training",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"keras_tfm.{name}")
    raise AttributeError(f"module 'keras_tfm' has no attribute {name!r}; it has {__all__}")


def __dir__() -> list[str]:
    return list(__all__)
