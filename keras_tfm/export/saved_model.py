"""SavedModel: what TensorFlow Serving runs, and what the TFLite converter reads."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Unpack

import keras
import tensorflow as tf

from keras_tfm.export import files
from keras_tfm.export.request import GenerationArguments, Request, check_keywords
from keras_tfm.export.signatures import Signature, make_signatures
from keras_tfm.export.text_signatures import (
    TEXT,
    add_text_signatures,
    check_tokenizers,
)


def export_saved_model(
    model: keras.Model,
    path: str | Path,
    signatures: Sequence[str] | None = None,
    *,
    tokenizer: Any = None,
    detokenizer: Any = None,
    overwrite: bool = False,
    **arguments: Unpack[GenerationArguments],
) -> Path:
    """Writes a SavedModel that TensorFlow loads without keras_tfm and Keras. Any batch, any length.

    The first signature is also `serve`, as Keras calls it, and `serving_default`, which TensorFlow
    Serving asks for.

    With a `tokenizer`, "generate_text" and "predict_text" take strings: the tokenizer and its
    vocabulary are inside the SavedModel. One of plain TensorFlow operations
    (`keras.layers.TextVectorization`, `keras.layers.StringLookup`) runs wherever TensorFlow does;
    one of tensorflow-text, as those of keras-hub are, needs `import tensorflow_text` before the
    SavedModel is loaded.

    Args:
        model: functional.
        path: a folder. An earlier export there is replaced once the new one is complete, and its
            mode kept; where `path` is a symbolic link, the folder that it points to is replaced.
        signatures: of "generate" (ids in, ids out, the loop and the caches inside), "predict"
            (one full pass), and with a tokenizer "generate_text" (strings in, "text" (B,) out) and
            "predict_text" (strings in); by default "generate" where `start_id` is given, otherwise
            "predict", and with a tokenizer the same for text.
        tokenizer: a Keras layer (or a `tf.Module`) that makes of strings (B,) ids, ragged or
            (B, S), for every input of ids; or a dictionary of them by the input's name. Ragged rows
            are filled up with 0, which the model must mask (`mask_zero`). What it returns is fed as
            it is: "generate_text" begins with `start_id`, "predict_text" with what the tokenizer
            says.
        detokenizer: a layer that makes of ragged ids, without the start and the end token, strings
            (B,), or words, which are joined by spaces; by default the `detokenize` of the tokenizer
            (of `target`, where there are several).
        overwrite: whether to replace a SavedModel at `path` that is not an earlier export.
        arguments: `max_length`, `start_id`, `end_id`, `target` and `strategy`, documented in
            `GenerationArguments`.

    Returns:
        `path`.

    Raises:
        ValueError: an argument is out of range, the model cannot be stepped, or the tokenizer has
            more ids than the model's embedding.
        TypeError: an argument is unknown; the error lists the known ones.
        FileExistsError: `path` is not an earlier export, nor an empty folder.
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
    files.check_folder(path, overwrite)
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
    with files.temporary_folder(files.real(path).parent) as folder:
        new, resources = folder / "new", [*tokenizers.values(), detokenizer]
        write_saved_model(model, made, new, signatures[0], resources)
        files.replace_folder(new, path, overwrite)
    return path


def write_saved_model(
    model: keras.Model,
    signatures: Sequence[Signature],
    path: Path,
    default: str | None = None,
    resources: Iterable[Any] = (),
) -> None:
    """Traces the signatures and writes them: each graph once, each weight once.

    `keras.export.ExportArchive` writes both twice, and takes ten times as long.

    Args:
        model: the tables of its preprocessing layers are written, as the weights are.
        signatures: what is written.
        path: a folder that is not there yet.
        default: the signature that is `serve` and `serving_default` as well; None: there is none.
        resources: other layers whose tables are written.
    """
    root = tf.Module()
    concrete = {signature.name: signature.traced for signature in signatures}
    # What a module holds is written beside the functions: here what they read, and no more.
    used = [variable for function in concrete.values() for variable in function.variables]
    root.model_variables = list({id(variable): variable for variable in used}.values())
    root.tables = [
        table
        for resource in (model, *resources)
        if isinstance(resource, tf.__internal__.tracking.Trackable)
        for table in tf.train.TrackableView(resource).descendants()
        if isinstance(table, tf.saved_model.experimental.TrackableResource)
    ]
    if default is not None:
        concrete |= dict.fromkeys(("serve", "serving_default"), concrete[default])
    try:
        tf.saved_model.save(root, str(path), signatures=concrete)
    except AssertionError as error:
        if "untracked" not in str(error):
            raise
        raise ValueError(
            "a tokenizer must be a Keras layer or a tf.Module that holds its tables: "
            f"TensorFlow cannot find what one reads ({str(error).splitlines()[0][:200]})"
        ) from error
