"""Exports of KerasHub's tasks and presets, and of folders of transformers.

They become models of this library first.

Example, with a model that is none of these:

>>> from keras_tfm.export import ExportArguments
>>> from keras_tfm.export.keras_hub import accept_keras_hub
>>> accept_keras_hub(ExportArguments)(lambda model, path: path)(None, "x.tflite")
'x.tflite'
"""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import keras

from keras_tfm.export.pipeline import Report
from keras_tfm.generation.tokenizers.keras_hub import is_of_keras_hub

M = TypeVar("M")
P = ParamSpec("P")
_NO_TEMPLATE = (
    "no chat template, as KerasHub has none: checkpoints.load_chat_template reads the one of a "
    "Hugging Face folder, and runtime.ChatTemplate makes one"
)


def accept_keras_hub(
    options: type[object],
) -> Callable[
    [Callable[Concatenate[M, P], Report]], Callable[Concatenate[M | str | Path, P], Report]
]:
    """Decorator of an export, which then takes tasks and backbones of KerasHub, and folders.

    What the caller leaves open is that of the task's preprocessor: tokenizer, start and end tokens,
    lengths, pictures. A model of a family that this library lacks is exported as it is, which works
    for "predict".

    Args:
        options: the `TypedDict` of the export's further keyword arguments.
    """

    def decorate(
        function: Callable[Concatenate[M, P], Report],
    ) -> Callable[Concatenate[M | str | Path, P], Report]:
        names = list(inspect.signature(function).parameters)
        call: Any = function

        @functools.wraps(function)
        def export(model: M | str | Path, *args: P.args, **kwargs: P.kwargs) -> Report:
            is_folder = isinstance(model, str | Path)
            if not is_folder and not (isinstance(model, keras.Model) and is_of_keras_hub(model)):
                return function(model, *args, **kwargs)  # type: ignore[arg-type]
            assert isinstance(model, keras.Model | str | Path)
            given = {**dict(zip(names[1:], args, strict=False)), **kwargs}
            made, taken, notes = _convert(model, given)
            known = {*names, *options.__annotations__}
            given |= {name: x for name, x in taken.items() if name in known}
            report: Report = call(made, **given)
            report.notes += notes
            return report

        return export

    return decorate


def _convert(
    model: keras.Model | str | Path, given: dict[str, Any]
) -> tuple[keras.Model, dict[str, Any], list[str]]:
    """The model of this library, arguments that the caller leaves open, and notes."""
    # Tables of weights that an export of another model does not need.
    from keras_tfm.checkpoints.config import Config
    from keras_tfm.checkpoints.huggingface import load_huggingface

    if not isinstance(model, keras.Model):
        folder = Path(model)
        if folder.suffix == ".keras" and not folder.is_dir():
            raise TypeError(
                "expected a functional keras.Model, or a folder of transformers or KerasHub, got "
                f"{str(model)!r}: keras_tfm.load_model loads a .keras file"
            )
        if "model_type" in Config(folder).fields:
            return load_huggingface(folder, lazy=None), {}, []
    from keras_tfm.checkpoints.keras_hub.conversion import from_keras_hub
    from keras_tfm.checkpoints.keras_hub.families import FAMILIES

    backbone = getattr(model, "backbone", model)
    if isinstance(model, keras.Model) and type(backbone).__name__ not in FAMILIES:
        return model, {}, []
    found = from_keras_hub(model)
    notes, own = list(found.notes), found.preprocessing
    if own is None:
        if found.preprocessing_error is not None and given.get("tokenizer") is None:
            raise ValueError(f"{found.preprocessing_error}; or give tokenizer=")
        return found.model, {}, notes
    taken = own.export_arguments(found.model, given)
    alone = len(found.model.inputs) == 1
    if alone and "end_id" in taken and given.get("chat_template") is None:
        notes.append(_NO_TEMPLATE)
    return found.model, taken, notes
