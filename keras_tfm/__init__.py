"""Transformer layers for Keras: composed once, then trained, stepped and exported.

The public names are below. Each subpackage is imported when it is first used, so that
`import keras_tfm` costs nothing and `keras_tfm.runtime` never loads Keras or TensorFlow.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_tfm.version import __version__

if TYPE_CHECKING:
    from keras_tfm import (
        checkpoints,
        export,
        generation,
        layers,
        models,
        runtime,
        text,
        training,
        web,
    )
    from keras_tfm.models import Model

__all__ = [
    "Model",
    "__version__",
    "checkpoints",
    "export",
    "generation",
    "layers",
    "load_model",
    "models",
    "runtime",
    "text",
    "training",
    "web",
]


def load_model(path: Any, compile: bool = True) -> Any:
    """Loads a `.keras` file of a model made of these layers: `keras.models.load_model`, safe mode.

    Keras finds a class only once its module was imported; this imports all of keras_tfm's first.

    Raises:
        FileNotFoundError: there is no such file.
        IsADirectoryError: it is a folder, such as `checkpoints.load_huggingface` loads.
        ValueError: it is no `.keras` file, or was cut off.

    >>> import tempfile
    >>> import keras_tfm
    >>> model = keras_tfm.models.transformer(11, dim=8, num_layers=1, num_heads=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(folder + "/model.keras")
    ...     keras_tfm.load_model(folder + "/model.keras").count_params() == model.count_params()
    True
    """
    import zipfile

    # Keras says of a file that was cut off that it was not found; and it takes seconds to import.
    if Path(path).is_dir():
        raise IsADirectoryError(
            f"{path} is a folder, expected a .keras file: checkpoints.load_huggingface and "
            "load_sentence_transformer load folders"
        )
    if not Path(path).is_file():
        raise FileNotFoundError(f"no such file: {path}")
    if not zipfile.is_zipfile(path):
        size = Path(path).stat().st_size
        raise ValueError(f"{path} is no .keras file, or was cut off: {size:,} bytes, no archive")

    import keras

    for name in ("layers", "models", "training"):
        importlib.import_module(f"keras_tfm.{name}")
    return keras.models.load_model(path, compile=compile)


def __getattr__(name: str) -> Any:
    if name == "Model":
        return importlib.import_module("keras_tfm.models").Model
    if name in __all__:
        return importlib.import_module(f"keras_tfm.{name}")
    raise AttributeError(f"module 'keras_tfm' has no attribute {name!r}; it has {__all__}")


def __dir__() -> list[str]:
    return list(__all__)
