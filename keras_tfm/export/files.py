"""What an export may replace, and the marks of earlier exports.

Example:

>>> from pathlib import Path
>>> from keras_tfm.export.files import check_file
>>> check_file(Path("/"), overwrite=True)
Traceback (most recent call last):
IsADirectoryError: cannot write /: it is a folder
"""

import json
import os
import stat
from pathlib import Path

from keras_tfm import atomic_files
from keras_tfm.runtime.manifest.storage import is_export
from keras_tfm.version import __version__

# TensorFlow reserves the folder `assets.extra` of a SavedModel for other programs.
_MARK = Path("assets.extra", "keras_tfm.json")


def check_file(path: Path, overwrite: bool) -> None:
    """Raises unless a .tflite or .litertlm file may be written to `path`.

    `path` may be an earlier export, an empty file (`tempfile` creates those), or missing.
    `overwrite` allows any other file, but never a folder, a device, a FIFO or a socket.
    """
    atomic_files.check_target(path)
    if not path.exists():
        return
    if not (overwrite or path.stat().st_size == 0 or is_export(path)):
        raise FileExistsError(
            f"cannot write {path}: it exists and is not an export of keras_tfm; "
            "overwrite=True replaces it"
        )


def check_folder(path: Path, overwrite: bool) -> None:
    """Raises unless a SavedModel may be written to `path`.

    `path` may be an earlier export, an empty folder, or missing. `overwrite` allows any other
    SavedModel, but no other folder and no file.
    """
    atomic_files.check_parent(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / "saved_model.pb").is_file():
        raise FileExistsError(f"cannot write {path}: it exists and is not a SavedModel")
    if not (overwrite or (path / _MARK).is_file()):
        raise FileExistsError(
            f"cannot write {path}: keras_tfm did not write the SavedModel there; "
            "overwrite=True replaces it"
        )


def replace_file(new: Path, path: Path, overwrite: bool) -> None:
    """Renames `new` to `path` atomically. Keeps the mode of an earlier file, and links to it."""
    check_file(path, overwrite)  # again: it may have changed during the verification
    atomic_files.replace(new, path)


def replace_folder(new: Path, path: Path, overwrite: bool) -> None:
    """Renames `new` to `path`, after moving an earlier folder next to `new`."""
    extra = (new / _MARK).parent
    extra.mkdir()
    for folder in (new, *(path for path in new.iterdir() if path.is_dir())):
        folder.chmod(stat.S_IMODE(extra.stat().st_mode))  # the umask's; TensorFlow makes 0o755
    (new / _MARK).write_text(json.dumps({"keras_tfm": __version__}) + "\n", encoding="utf-8")
    check_folder(path, overwrite)
    target, old = atomic_files.real(path), new.with_name("old")
    earlier = target.exists()
    if earlier:
        atomic_files.keep_mode(new, target)
        os.replace(target, old)
    try:
        os.replace(new, target)
    except BaseException:
        if earlier:
            os.replace(old, target)
        raise
