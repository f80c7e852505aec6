"""Stores tokenizers in a .tflite file, each in its own metadata entry."""

from dataclasses import dataclass, field
from typing import Any

from keras_tfm.export.signatures.request import Request
from keras_tfm.generation.tokenizers.tokenizer_forms import Form, by_input, check_tokenizer, form_of


@dataclass
class Carried:
    """The tokenizers to store in a file.

    Attributes:
        entries: the bytes of each tokenizer, by the name of its metadata entry.
        names: the entry's name, by input.
        options: the options of its tokenizer, by entry.
    """

    entries: dict[str, bytes] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


def carry(request: Request, tokenizer: Any, detokenizer: Any) -> Carried:
    """The tokenizers of an export, checked against the model.

    Args:
        request: the export.
        tokenizer: one for all inputs of ids, or a dictionary by input; optional.
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
            made[id(given)] = form_of(name, given)
        forms[name] = made[id(given)]
    entries: dict[Form, str] = {}
    for name, form in forms.items():
        shared = len(set(forms.values())) == 1
        entries.setdefault(form, ("" if shared else f"{name}_") + f"tokenizer{form.ending}")
    for name, form in forms.items():
        steps = request.roles != ["predict"] and name == request.target
        start_id, end_ids = (request.start_id, request.end_ids) if steps else (None, ())
        check_tokenizer(request.model, name, form.read(entries[form]), start_id, end_ids)
    return Carried(
        {entry: form.content for form, entry in entries.items()},
        {name: entries[form] for name, form in forms.items()},
        {entry: dict(form.options) for form, entry in entries.items() if form.options},
    )


def _by_input(request: Request, tokenizer: Any, detokenizer: Any) -> dict[str, Any]:
    result = by_input(request.model, tokenizer)
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
        alone = isinstance(tokenizer, dict) or list(result) == [target]
        own = result.get(target) if alone else None
        if own is not None and own is not detokenizer:
            raise ValueError(
                f"the tokenizer of the stepped input {target!r} is also the detokenizer: give "
                "one of them, got two different ones"
            )
        result[target] = detokenizer
    return result
