"""Tokenizers of any kind as bytes, which the runtime's tokenizers are made of."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras

from keras_tfm.generation.interface import interface_of
from keras_tfm.generation.tokenizers.keras_hub import convert
from keras_tfm.runtime.tokenizers.tokenizer import Tokenizer, read


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

    def read(self, entry: str) -> Tokenizer:
        """The tokenizer, with the name of its entry for errors."""
        return read(entry, self.content, dict(self.options))


def by_input(model: keras.Model, tokenizer: Any) -> dict[str, Any]:
    """The tokenizer of each input of ids.

    Args:
        model: functional model.
        tokenizer: one tokenizer for all inputs of ids, or a dictionary by input; optional. One
            tokenizer does not apply to inputs that are derived from the tokens, such as segments.
    """
    inputs = interface_of(model).inputs
    names = [name for name, x in inputs.items() if x.takes_ids]
    if tokenizer is None:
        return {}
    if not isinstance(tokenizer, dict):
        if not names:
            raise ValueError(f"{model.name} has no input of ids (B, S) for a tokenizer")
        own = [name for name in names if not inputs[name].follows_tokens]
        return dict.fromkeys(own, tokenizer)
    if not tokenizer or not set(tokenizer) <= set(names):
        raise ValueError(
            f"tokenizers are for the inputs of ids (B, S) {names}, got {list(tokenizer)}"
        )
    return dict(tokenizer)


def check_tokenizer(
    model: keras.Model,
    name: str,
    tokenizer: Tokenizer,
    start_id: int | None,
    end_ids: Sequence[int],
) -> None:
    """Raises unless the embedding has every id, and the tokenizer the start and end tokens."""
    size = interface_of(model).inputs[name].vocabulary_size or tokenizer.size
    if tokenizer.size > size:
        raise ValueError(
            f"the tokenizer of input {name!r} has {tokenizer.size} ids, "
            f"but the model's embedding takes {size}"
        )
    start = [] if start_id is None else [start_id]
    for argument, ids in (("start_id", start), ("end_id", end_ids)):
        for one in ids:
            if one >= tokenizer.size:
                raise ValueError(
                    f"{argument} {one} is not in the tokenizer of input {name!r}, "
                    f"which has the ids 0..{tokenizer.size - 1}"
                )


def form_of(name: str, tokenizer: Any) -> Form:
    """The stored form of a tokenizer of any kind."""
    if isinstance(tokenizer, (str, Path)):
        path = Path(tokenizer)
        if not path.is_file():
            raise FileNotFoundError(f"no such tokenizer file: {path}")
        content = path.read_bytes()
        return _json(name, content) if path.suffix == ".json" else _pieces(path, content)
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
        ending, content, options = convert(tokenizer)
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


def _pieces(path: Path, content: bytes) -> Form:
    """A file of SentencePiece, whatever its suffix."""
    form = Form(".model", content)
    try:
        form.read("tokenizer.model")
    except ValueError as error:
        raise ValueError(f"{path} is no tokenizer: {error}") from None
    return form


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
