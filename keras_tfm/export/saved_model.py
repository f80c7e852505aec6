"""SavedModel: what TensorFlow Serving runs, and what the TFLite converter reads."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import keras
import tensorflow as tf

from keras_tfm.export.signatures import Request, Signature, make_signatures
from keras_tfm.generation.strategies import Strategy
from keras_tfm.runtime import native_log


def export_saved_model(
    model: keras.Model,
    path: str | Path,
    signatures: Sequence[str] | None = None,
    *,
    max_length: int | None = None,
    start_id: int | None = None,
    end_id: int | Sequence[int] | None = None,
    target: str | None = None,
    strategy: Strategy | None = None,
) -> Path:
    """Writes a SavedModel that TensorFlow loads without keras_tfm. Any batch, any length.

    Args:
        model: functional.
        path: a folder; an earlier SavedModel there is replaced once the new one is complete.
        signatures: of "generate" (ids in, ids out, the loop and the caches inside) and "predict"
            (one full pass); by default "generate" where `start_id` is given, otherwise "predict".
        max_length: the most tokens a row gets, start token included ("generate").
        start_id: the token every row begins with ("generate").
        end_id: the token that ends a row; None never stops early.
        target: the input that is stepped; "target", or the only one, by default.
        strategy: how "generate" chooses tokens; `generation.Greedy()` by default.

    Returns:
        `path`.

    Raises:
        ValueError: an argument is out of range, the model cannot be stepped, or `path` holds
            something else. Nothing is written then.

    Example:

    >>> import tempfile, numpy as np, tensorflow as tf
    >>> from keras_tfm.export import export_saved_model
    >>> from keras_tfm.models import transformer
    >>> model = transformer(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = export_saved_model(model, folder + "/served", max_length=5, start_id=1)
    ...     served = tf.saved_model.load(str(path))
    ...     tokens = served.signatures["generate"](source=tf.constant([[3, 4, 5]]))["tokens"]
    >>> tokens.shape.as_list()
    [1, 5]
    """
    path = Path(path)
    check_writable(path)
    if path.exists() and not (path / "saved_model.pb").is_file() and any(_entries(path)):
        raise ValueError(f"{path} exists and is not a SavedModel: it is left as it is")
    made = make_signatures(
        Request(
            model,
            signatures,
            max_length=max_length,
            start_id=start_id,
            end_id=end_id,
            target=target,
            strategy=strategy,
            static=False,
        )
    )
    with _beside(path) as folder:
        write_saved_model(model, made, folder / "new")
        earlier = path.exists()
        if earlier:
            os.replace(path, folder / "old")
        try:
            os.replace(folder / "new", path)
        except BaseException:
            if earlier:
                os.replace(folder / "old", path)
            raise
    return path


def write_saved_model(model: keras.Model, signatures: Sequence[Signature], path: Path) -> None:
    """Traces the signatures and writes them."""
    archive = keras.export.ExportArchive()
    archive.track(model)
    for signature in signatures:
        function = tf.function(signature.function, autograph=False)
        # Traced here: the archive cannot trace a function that takes its inputs by name.
        function.get_concrete_function(**signature.inputs)
        archive.add_endpoint(signature.name, function)
    with native_log.captured():
        archive.write_out(str(path), verbose=False)


def check_writable(path: Path) -> None:
    """Raises unless a file or folder can be made at `path`."""
    parent = path.absolute().parent
    if not parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {parent}")
    if not os.access(parent, os.W_OK):
        raise PermissionError(f"cannot write {path}: the folder {parent} is not writable")


def _entries(path: Path) -> Iterator[Path]:
    return path.iterdir() if path.is_dir() else iter([path])


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A temporary folder on the same file system, so that a rename completes the work."""
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.absolute().parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
