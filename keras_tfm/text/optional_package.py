"""Imports packages of the extra `text` when they are needed.

Example:

>>> from keras_tfm.text.optional_package import optional_package
>>> optional_package("json").__name__
'json'
"""

import importlib
from typing import Any


def optional_package(name: str) -> Any:
    """The module `name`.

    Raises:
        ModuleNotFoundError: it is missing; the message names the extra to install.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0] and error.name != name:
            raise
        raise ModuleNotFoundError(
            f'training this vocabulary needs {name}: pip install "keras-tfm[text]"', name=name
        ) from None
