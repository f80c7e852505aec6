"""Loads the model that a command names: a .keras or .gguf file, or a folder."""

import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from keras_tfm.cli.console import messages, refuse, typer, work

if TYPE_CHECKING:
    import keras

    from keras_tfm.export.checkpoints import Checkpoint

ModelPath = Annotated[
    Path,
    typer.Argument(
        help="A .keras file, loaded in safe mode, a folder of Hugging Face transformers or "
        "sentence-transformers, a .gguf file, or a preset of KerasHub."
    ),
]
Architecture = Annotated[
    str | None,
    typer.Option(help="Of a folder: the model class; by default that of config.json."),
]
Peft = Annotated[
    Path | None,
    typer.Option(help="Of a folder: LoRA adapters that PEFT saved for it, which are merged."),
]
Custom = Annotated[
    list[str] | None,
    typer.Option(
        help="A custom class that the model uses: module:Class; repeatable. The module is "
        "imported, which runs its code."
    ),
]
# Keras's error for a class or a function that is not registered, with the module that had it.
_UNKNOWN = re.compile(r"Could not locate (class|function) '([^']+)'")
_MODULE = re.compile(r"Full object config: {'module': '([\w.]+)'")


def is_checkpoint(path: Path) -> bool:
    """Whether a path is one for `load_folder`: a folder or a GGUF file."""
    return path.is_dir() or path.suffix == ".gguf"


def load_folder(path: Path, custom: list[str] | None, **options: Any) -> "Checkpoint":
    """The model of a folder or GGUF file; prints what differs from it.

    Args:
        path: the folder or file.
        custom: the values of --custom.
        options: see `keras_tfm.export.checkpoints.load_checkpoint`.
    """
    refuse({"custom": custom}, "it is for a .keras file, not for a folder")
    with work("loading TensorFlow"):
        from keras_tfm.checkpoints.keras_hub.source import is_preset
        from keras_tfm.export.checkpoints import load_checkpoint
    if is_preset(path):
        given = {name: options.get(name) for name in ("architecture", "peft")}
        refuse(given, "it is for a folder of transformers")
    with work(f"reading {path}"):
        found = load_checkpoint(path, **options)
    for note in found.notes:
        messages.print(f"{path}: {note}", soft_wrap=True)
    return found


def load_model(path: Path, custom: list[str] | None, **options: Any) -> "keras.Model":
    """The model of a .keras file, with the classes of --custom, or of a folder.

    Args:
        path: the file or folder.
        custom: the values of --custom.
        options: for a folder, see `load_folder`.
    """
    if is_checkpoint(path):
        return load_folder(path, custom, **options).model
    if path.is_file():
        of_folders = {name: options.get(name) for name in ("architecture", "segments", "peft")}
        refuse(of_folders, "it is for a folder of transformers, not for a .keras file")
    with work("loading TensorFlow"):
        import keras

        import keras_tfm
    classes = dict(_custom_class(text) for text in custom or ())
    try:
        with work(f"loading {path.name}"), keras.saving.custom_object_scope(classes):
            return keras_tfm.load_model(path, compile=False)
    except TypeError as error:
        found = _UNKNOWN.search(str(error))
        if found is None:
            raise
        raise ValueError(_missing(path, found[1], found[2], str(error))) from None


def _missing(path: Path, kind: str, name: str, message: str) -> str:
    """An error that names the option for a class of the user's."""
    module = _MODULE.search(message)
    origin = "module" if module is None or module[1] in ("builtins", "__main__") else module[1]
    return (
        f"{path} was made with the {kind} {name!r}, which is not a part of Keras or keras_tfm: "
        f"name it with --custom {origin}:{name.split('>')[-1]}, where {origin} is a module that "
        "Python can import here"
    )


def _custom_class(text: str) -> tuple[str, type]:
    """The name and the class of "module:Class"; the module may be in the current folder."""
    module_name, _, name = text.partition(":")
    hint = "'--custom'"
    if not module_name or not name:
        raise typer.BadParameter(f"expected module:Class, got {text!r}", param_hint=hint)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module itself imports a missing package
        raise typer.BadParameter(f"there is no module {module_name!r}", param_hint=hint) from None
    if not callable(getattr(module, name, None)):
        raise typer.BadParameter(
            f"the module {module_name!r} has no class {name!r}", param_hint=hint
        )
    return name, getattr(module, name)
