"""Packages that only some functions need: imported late, with an error that says what to install.

The command in the error names packages of PyPI with the versions that the installed keras-tfm asks
for. It works whatever keras-tfm was installed from: a clone, a wheel, or a copied folder, which has
no metadata and thus no versions.

Example:

>>> from keras_tfm.optional_package import optional_package
>>> optional_package("json.decoder", "JSON needs json", "json", extra="text").__name__
'json.decoder'
"""

import importlib
import re
from typing import Any


def optional_package(
    module: str, need: str, *packages: str, extra: str, dependencies: bool = True
) -> Any:
    """Imports a module of a package that keras-tfm does not require.

    Args:
        module: str, its full name.
        need, *packages, extra, dependencies: as in `missing_package`.

    Raises:
        ModuleNotFoundError: the package is missing; the message says how to install it. A missing
            module of another package, which this one imports, keeps Python's message.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        missing = missing_package(
            need, *packages, extra=extra, name=error.name, dependencies=dependencies
        )
        raise missing from None


def missing_package(
    need: str, *packages: str, extra: str, name: str | None, dependencies: bool = True
) -> ModuleNotFoundError:
    """The error of a missing package.

    Args:
        need: str, what needs which package: the start of the message.
        *packages: str, the names on PyPI of what must be installed.
        extra: str, the extra of keras-tfm that has them.
        name: str, the module that was not found, where it is known.
        dependencies: bool, whether the packages need what they depend on.

    >>> from keras_tfm.optional_package import missing_package
    >>> print(missing_package("tea needs a pot", "a-pot", extra="tea", name="pot"))
    tea needs a pot: pip install a-pot (the extra "tea" of keras-tfm)
    """
    command = install_command(*packages, dependencies=dependencies)
    return ModuleNotFoundError(f'{need}: {command} (the extra "{extra}" of keras-tfm)', name=name)


def install_command(*packages: str, dependencies: bool = True) -> str:
    """The command that installs packages, in the versions that keras-tfm asks for."""
    versions = _versions()
    arguments = []
    for package in packages:
        version = versions.get(_normalized_name(package), "")
        arguments.append(f'"{package}{version}"' if version else package)
    return " ".join(["pip install", *["--no-deps"] * (not dependencies), *arguments])


def _versions() -> dict[str, str]:
    """The versions that the metadata of keras-tfm asks for, by package; {} without metadata."""
    import importlib.metadata  # only in errors: it takes 20 ms

    try:
        requirements = importlib.metadata.requires("keras-tfm") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    # pillow>=11; extra == 'images'
    found = (re.match(r"([\w.-]+)(?:\[[^]]*\])?([^;]*)", x) for x in requirements)
    return {_normalized_name(x[1]): re.sub(r"[\s()]", "", x[2]) for x in found if x}


def _normalized_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
