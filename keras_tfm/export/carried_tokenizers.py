"""Stores tokenizers in a .tflite file, each in its own metadata entry."""

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
    """A tokenizer as bytes.

    Attributes:
        ending: the suffix of its entry's name, ".json" or ".model".
        content: the bytes.
        options: the options that the bytes do not include, as pairs of name and value.
    """

    ending: str
    content: bytes
    options: tuple[tuple[str, bool], ...] = ()


@dataclass
class Carried:
    """The tokenizers to store in a file.

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
        tokenizer: one for all inputs of ids, or a dictionary by input, or None.
        detokenizer: tokenizer, or path of its file: that of the stepped input; by default
            `tokenizer`.

    Raises:
        TypeError: a tokenizer's kind cannot be stored in a file.
        ValueError: a tokenizer is damaged, cannot be stored exactly, has more ids than the model,
            or lacks the start or end token; or an argument does not apply.
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
            raise ValueError(
                "a detokenizer is for generated text, got one with only the signature 'predict'"
            )
        return result
    target = request.target
    if detokenizer is None and result and target not in result:
        detokenizer = next(iter(result.values()))
    if detokenizer is not None:
        own = result.get(target) if isinstance(tokenizer, dict) or names == [target] else None
        if own is not None and own is not detokenizer:
            raise ValueError(
                f"the tokenizer of the stepped input {target!r} is also the detokenizer: give "
                "one of them, got two different ones"
            )
        result[target] = detokenizer
    return result


def _check(request: Request, name: str, tokenizer: Tokenizer) -> None:
    """Raises unless the embedding has every id, and the tokenizer the start and end tokens."""
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
    """The stored form of a tokenizer of any kind."""
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
        "sentencepiece.SentencePieceProcessor, or the path of such a file, since a .tflite file "
        f"stores no code, got {type(tokenizer).__name__}"
    )


def _of_keras_hub(name: str, tokenizer: Any) -> Form:
    try:
        ending, content, options = converted(tokenizer)
    except ValueError as error:
        raise ValueError(
            f"the tokenizer of input {name!r}, {type(tokenizer).__name__}, cannot be stored: "
            f"{error}"
        ) from None
    return Form(ending, content, _on(options))


def _of_tokenizers(name: str, tokenizer: Any) -> Form:
    try:
        text = tokenizer.to_str()
    except Exception as error:  # errors from Rust have no narrower type
        raise ValueError(
            f"the tokenizer of input {name!r} cannot be stored: {error} (it has a part in Python, "
            "and a .tflite file stores no code)"
        ) from None
    return _json(name, text.encode())


def _json(name: str, content: bytes) -> Form:
    """The stored form, without truncation, padding and merge dropout, which are for training."""
    try:
        settings = json.loads(content)
        model = settings["model"]
        chance = model.get("dropout")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"the tokenizer of input {name!r} is not a tokenizer.json of Hugging Face tokenizers "
            f"({type(error).__name__}: {error})"
        ) from None
    if chance or settings.get("truncation") or settings.get("padding"):
        settings["truncation"] = settings["padding"] = None
        if chance:
            model["dropout"] = None
        content = json.dumps(settings, ensure_ascii=False, separators=(",", ":")).encode()
    return Form(".json", content)


def _of_sentencepiece(name: str, tokenizer: Any) -> Form:
    # Private attributes: there are no public ones.
    options = {"add_bos": tokenizer._add_bos, "add_eos": tokenizer._add_eos}
    if tokenizer._reverse:
        raise ValueError(
            f"the tokenizer of input {name!r} must not reverse ids, got one with reverse=True"
        )
    return Form(".model", tokenizer.serialized_model_proto(), _on(options))


def _on(options: dict[str, bool]) -> tuple[tuple[str, bool], ...]:
    """The options that are True; the manifest stores only these."""
    return tuple((key, True) for key, on in options.items() if on)
