"""Tokenizers as a .tflite file carries them: as bytes, each in a metadata entry of its own."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from keras_tfm.export.keras_hub_tokenizers import converted
from keras_tfm.export.request import Request
from keras_tfm.generation.model_inputs import input_specs
from keras_tfm.runtime.tokenizer import Tokenizer, read


class Form(NamedTuple):
    """A tokenizer as bytes: how its entry's name ends, and options that the bytes do not have."""

    ending: str
    content: bytes
    options: tuple[tuple[str, bool], ...] = ()


@dataclass
class Carried:
    """What a file gets.

    Attributes:
        entries: the bytes of each tokenizer, by the name of its metadata entry.
        manifest: "tokenizers", the entry's name by input, and "tokenizer_options" by entry.
    """

    entries: dict[str, bytes] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)


def carry(request: Request, tokenizer: Any, detokenizer: Any) -> Carried:
    """The tokenizers of an export, checked against the model.

    Args:
        request: the export.
        tokenizer: one for all inputs of ids, or a dictionary by the input's name, or None.
        detokenizer: the stepped input's; by default the tokenizer.

    Raises:
        TypeError: something is no tokenizer that a file can carry.
        ValueError: a tokenizer is damaged, cannot be carried exactly, has more ids than the model,
            or lacks its start or its end; or an argument is out of place.
        FileNotFoundError: there is no such tokenizer file.
    """
    made: dict[int, Form] = {}
    forms: dict[str, Form] = {}
    for name, given in _by_input(request, tokenizer, detokenizer).items():
        if id(given) not in made:
            made[id(given)] = _form(name, given)
        forms[name] = made[id(given)]
    entries: dict[Form, str] = {}
    for name, form in forms.items():
        shared = len(set(forms.values())) == 1
        entries.setdefault(form, ("" if shared else f"{name}_") + f"tokenizer{form.ending}")
    for name, form in forms.items():
        _check(request, name, read(entries[form], form.content, dict(form.options)))
    result = Carried({entry: form.content for form, entry in entries.items()})
    if forms:
        result.manifest["tokenizers"] = {name: entries[form] for name, form in forms.items()}
    options = {entry: dict(form.options) for form, entry in entries.items() if form.options}
    if options:
        result.manifest["tokenizer_options"] = options
    return result


def _by_input(request: Request, tokenizer: Any, detokenizer: Any) -> dict[str, Any]:
    specs = input_specs(request.model)
    names = [name for name, x in specs.items() if "int" in x.dtype and x.ndim == 2]
    if tokenizer is None:
        result = {}
    elif isinstance(tokenizer, dict):
        result = dict(tokenizer)
        if not result or not set(result) <= set(names):
            raise ValueError(
                f"tokenizers are for the inputs of ids (B, S) {names}, got {list(result)}"
            )
    else:
        result = dict.fromkeys(names, tokenizer)
        if not result:
            raise ValueError(f"{request.model.name} has no input of ids (B, S) for a tokenizer")
    if request.roles == ["predict"]:
        if detokenizer is not None:
            raise ValueError("a detokenizer is for what is generated, and 'predict' generates none")
        return result
    target = request.target
    if detokenizer is None and result and target not in result:
        detokenizer = next(iter(result.values()))
    if detokenizer is not None:
        own = result.get(target) if isinstance(tokenizer, dict) or names == [target] else None
        if own is not None and own is not detokenizer:
            raise ValueError(
                f"what is generated goes into {target!r} again, so its tokenizer is the "
                "detokenizer: give one of them"
            )
        result[target] = detokenizer
    return result


def _check(request: Request, name: str, tokenizer: Tokenizer) -> None:
    """Raises unless the model has a place for every id, and the tokenizer the start and the end."""
    size = request.vocabulary_sizes.get(name, tokenizer.size)
    if tokenizer.size > size:
        raise ValueError(
            f"the tokenizer of input {name!r} has {tokenizer.size} ids, "
            f"but the model's embedding takes {size}"
        )
    if request.roles == ["predict"] or name != request.target:
        return
    start = [] if request.start_id is None else [request.start_id]
    for argument, ids in (("start_id", start), ("end_id", request.end_ids)):
        for one in ids:
            if one >= tokenizer.size:
                raise ValueError(
                    f"{argument} {one} is not in the tokenizer of input {name!r}, "
                    f"which has the ids 0..{tokenizer.size - 1}"
                )


def _form(name: str, tokenizer: Any) -> Form:
    """What a file carries of a tokenizer of any kind."""
    if isinstance(tokenizer, (str, Path)):
        path = Path(tokenizer)
        if not path.is_file():
            raise FileNotFoundError(f"no such tokenizer file: {path}")
        content = path.read_bytes()
        return _json(name, content) if path.suffix == ".json" else Form(".model", content)
    makers: dict[tuple[str, str], Callable[[str, Any], Form]] = {
        ("tokenizers", "Tokenizer"): _of_tokenizers,
        ("tokenizers", "BaseTokenizer"): _of_tokenizers,
        ("sentencepiece", "SentencePieceProcessor"): _of_sentencepiece,
        ("keras_hub", "Tokenizer"): _of_keras_hub,
    }
    for cls in type(tokenizer).__mro__:
        maker = makers.get((cls.__module__.split(".")[0], cls.__name__))
        if maker is not None:
            return maker(name, tokenizer)
    raise TypeError(
        f"the tokenizer of input {name!r} must be a tokenizers.Tokenizer, a "
        "sentencepiece.SentencePieceProcessor, or a path to the file of one: a .tflite file "
        f"carries no program, got {type(tokenizer).__name__}"
    )


def _of_keras_hub(name: str, tokenizer: Any) -> Form:
    try:
        ending, content, options = converted(tokenizer)
    except ValueError as error:
        raise ValueError(
            f"the tokenizer of input {name!r}, {type(tokenizer).__name__}, cannot be carried: "
            f"{error}"
        ) from None
    return Form(ending, content, _on(options))


def _of_tokenizers(name: str, tokenizer: Any) -> Form:
    try:
        text = tokenizer.to_str()
    except Exception as error:  # of Rust, and of this type
        raise ValueError(
            f"the tokenizer of input {name!r} cannot be carried: {error} (a part that is written "
            "in Python is a program, and a .tflite file carries none)"
        ) from None
    return _json(name, text.encode())


def _json(name: str, content: bytes) -> Form:
    """Without what belongs to training: cut and padded rows, merges dropped by chance."""
    try:
        settings = json.loads(content)
        model = settings["model"]
        chance = model.get("dropout")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"the tokenizer of input {name!r} is no tokenizer.json of Hugging Face tokenizers "
            f"({type(error).__name__}: {error})"
        ) from None
    if chance or settings.get("truncation") or settings.get("padding"):
        settings["truncation"] = settings["padding"] = None
        if chance:
            model["dropout"] = None
        content = json.dumps(settings, ensure_ascii=False, separators=(",", ":")).encode()
    return Form(".json", content)


def _of_sentencepiece(name: str, tokenizer: Any) -> Form:
    options = {"add_bos": tokenizer._add_bos, "add_eos": tokenizer._add_eos}  # not public
    if tokenizer._reverse:
        raise ValueError(f"the tokenizer of input {name!r} reverses ids, which no file carries")
    return Form(".model", tokenizer.serialized_model_proto(), _on(options))


def _on(options: dict[str, bool]) -> tuple[tuple[str, bool], ...]:
    """The options that are on, which are those that a manifest has."""
    return tuple((key, True) for key, on in options.items() if on)
