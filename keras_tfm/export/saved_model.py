"""Writes a SavedModel, which TensorFlow Serving runs and the TFLite converter reads."""

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import keras

from keras_tfm import atomic_files
from keras_tfm.export.graph.conversion import write_saved_model
from keras_tfm.export.signatures.make import make_signatures
from keras_tfm.export.signatures.request import (
    GenerationArguments,
    Request,
    check_keywords,
    without_mask_warnings,
)
from keras_tfm.export.signatures.text import TEXT, add_text_signatures, check_tokenizers
from keras_tfm.generation.interface import interface_of
from keras_tfm.version import __version__

# TensorFlow reserves the folder `assets.extra` of a SavedModel for other programs.
_MARK = Path("assets.extra", "keras_tfm.json")


@without_mask_warnings()
def export_saved_model(
    model: keras.Model,
    path: str | Path,
    signatures: Sequence[str] | None = None,
    *,
    tokenizer: object = None,
    detokenizer: object = None,
    overwrite: bool = False,
    **arguments: Unpack[GenerationArguments],
) -> Path:
    """Writes a SavedModel that TensorFlow loads without keras_tfm or Keras. Any batch, any length.

    The first signature is also stored as `serve`, Keras's name, and as `serving_default`, which
    TensorFlow Serving calls by default.

    With a `tokenizer`, "generate_text" and "predict_text" take strings: the tokenizer and its
    vocabulary are inside the SavedModel. A tokenizer of plain TensorFlow operations
    (`keras.layers.TextVectorization`, `keras.layers.StringLookup`) runs wherever TensorFlow does.
    One that uses tensorflow-text, as keras-hub's do, needs `import tensorflow_text` before the
    SavedModel is loaded.

    Args:
        model: functional `keras.Model`.
        path: str or Path, a folder. An earlier export there is replaced once the new one is
            complete, and its mode kept; where `path` is a symbolic link, the folder that it points
            to is replaced.
        signatures: list of str, the signatures to write, by default "generate" with a `start_id`,
            otherwise "predict"; with a tokenizer, also the text signature of the same name.
            "predict": one full pass. "generate": ids in, tokens out, with the decoding loop and the
            KV caches inside. "generate_text": strings in, "text" (B,) out; needs a tokenizer.
            "predict_text": strings in, outputs as of "predict"; needs a tokenizer.
        tokenizer: Keras layer (or a `tf.Module`) from strings (B,) to ids, ragged or (B, S), for
            every input of ids; or a dictionary of tokenizers by input. Ragged rows are padded with
            the input's padding id, which the model must mask. The ids are the model's input
            unchanged: special tokens in the source are the tokenizer's task. "generate_text"
            generates from `start_id`.
        detokenizer: Keras layer from ragged ids, without the start and the end token, to strings
            (B,), or to words, which are joined by spaces; by default the `detokenize` of the
            tokenizer (with several, of that of `target`).
        overwrite: bool, whether to replace a SavedModel at `path` that is not an earlier export.
        arguments: `max_length`, `start_id`, `end_id`, `target` and `strategy`, documented in
            `GenerationArguments`.

    Returns:
        `path`.

    Raises:
        ValueError: an argument is out of range, the model cannot be stepped, or the tokenizer has
            more ids than the model's embedding.
        TypeError: an argument is unknown; the error lists the known ones.
        FileExistsError: `path` is neither an earlier export nor an empty folder.
        FileNotFoundError, PermissionError: `path` cannot be written.

    After an error nothing is written, and an earlier SavedModel is unchanged.

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
    check_keywords(export_saved_model, arguments, GenerationArguments)
    path = Path(path)
    check_folder(path, overwrite)
    model = interface_of(model).model
    if signatures is None:
        signatures = ["predict" if arguments.get("start_id") is None else "generate"]
        if tokenizer is not None:
            signatures += [name + TEXT for name in signatures]
    tokenizers = check_tokenizers(model, signatures, tokenizer, detokenizer)
    made = make_signatures(
        Request(
            model,
            list(dict.fromkeys(name.removesuffix(TEXT) for name in signatures)),
            static=False,
            **arguments,
        )
    )
    made = add_text_signatures(
        model, made, signatures, tokenizers, detokenizer, arguments.get("target")
    )
    with atomic_files.temporary_folder(atomic_files.real(path).parent) as folder:
        new, resources = folder / "new", [*tokenizers.values(), detokenizer]
        write_saved_model(model, made, new, signatures[0], resources)
        replace_folder(new, path, overwrite)
    return path


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
