"""What a preprocessor of KerasHub says about the inputs of its model, as a file stores it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from keras_tfm.checkpoints.keras_hub.settings import HubPart
from keras_tfm.generation.interface import interface_of
from keras_tfm.generation.tokenizers.keras_hub import SAMPLES, is_of_keras_hub, set_ends
from keras_tfm.generation.tokenizers.tokenizer_forms import Form, form_of
from keras_tfm.layers.types import Arguments
from keras_tfm.optional_package import optional_package
from keras_tfm.runtime.media.image_processor import ImageProcessor
from keras_tfm.runtime.tokenizers.tokenizer import excerpt

# Keras's names of filters, as Pillow's.
_FILTERS = {x: x for x in ("nearest", "bilinear", "bicubic")} | {"lanczos3": "lanczos"}
# Tokens that end the answers of chat models, and that `generate` of KerasHub's task looks for.
_ENDS_OF_TURN = {
    "Gemma3CausalLMPreprocessor": "<end_of_turn>",
    "Gemma4CausalLMPreprocessor": "<turn|>",
}
# The longest prompt of a file, unless the caller says otherwise: all prompts are padded to it.
_PROMPT = 64


@dataclass(frozen=True)
class Preprocessing:
    """The settings of a KerasHub preprocessor, in the form that `export_tflite` takes.

    Attributes:
        tokenizer: `tokenizers.Tokenizer` or `sentencepiece.SentencePieceProcessor` with the ids of
            KerasHub's tokenizer; it puts `before` and `after` around a text. None: no texts.
        before: tuple of int, ids before each text that is not continued, such as that of [CLS].
        after: tuple of int, ids after each such text.
        start_id: int, the first token of a generated row, before the prompt; None: none.
        default_prompt: tuple of int, the first tokens of generated rows, if there are several.
        end_ids: tuple of int, tokens that end a generated row.
        pad_id: int, the padding id; None: no texts.
        source_length: int, number of tokens of a text that is read; None: none is.
        max_length: int, number of tokens of a generated row, prompt included; None: none is.
        images: `runtime.ImageProcessor`, how pictures become pixels; None: no pictures, or a rule
            that it lacks.
        sample_rate: int, samples of sound per second; None: no sound.
        notes: tuple of str, what the file does in another way than KerasHub.

    Example:

    >>> from keras_tfm.checkpoints import Preprocessing
    >>> from keras_tfm.models import llama
    >>> model = llama(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> preprocessing = Preprocessing(start_id=1, end_ids=(2,), pad_id=0, max_length=20)
    >>> preprocessing.export_arguments(model, {"max_length": 12})
    {'end_id': [2], 'start_id': 1, 'prompt_length': 6}
    """

    tokenizer: HubPart = None
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    start_id: int | None = None
    default_prompt: tuple[int, ...] = ()
    end_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    source_length: int | None = None
    max_length: int | None = None
    images: ImageProcessor | None = None
    sample_rate: int | None = None
    notes: tuple[str, ...] = field(default=(), repr=False)

    def export_arguments(self, model: keras.Model, given: Arguments) -> Arguments:
        """The arguments of `export_tflite` that the caller leaves open, for a model.

        Args:
            model: `keras.Model`, which `from_keras_hub` made.
            given: dict, the caller's arguments by name; None: left open.
        """
        inputs = interface_of(model).inputs
        head, longest = getattr(model, "head", None), model.arguments.get("max_length")
        writes = head is not None and head.kind == "language_model"
        source = [x for x in (self.source_length, longest) if x is not None]
        target = [x for x in (self.max_length, longest) if x is not None]
        found: Arguments = {}
        if any(x.takes_ids for x in inputs.values()):
            found["tokenizer"] = self.tokenizer
        if any(x.is_pixels for x in inputs.values()):
            found["images"] = self.images
        if writes and list(given.get("signatures") or ["generate"]) != ["predict"]:
            found |= self._generation(len(inputs) == 1, min(target, default=None), given)
            source = [] if len(inputs) == 1 else source
        elif writes and not self.source_length:
            source = target
        if any(x.is_open and x.audio is None for x in inputs.values()):
            found["source_length"] = min(source, default=None)
        return {k: x for k, x in found.items() if x is not None and given.get(k) is None}

    def _generation(self, alone: bool, longest: int | None, given: Arguments) -> Arguments:
        """Lengths and special tokens of generated texts.

        Args:
            alone: whether the model has no other input than the generated text.
            longest: the most tokens of a row.
            given: the caller's arguments by name.
        """
        longest = given.get("max_length") or longest
        found: Arguments = {"max_length": longest, "end_id": list(self.end_ids) or None}
        prompted = any(given.get(x) is not None for x in ("prompt_length", "default_prompt"))
        roles = given.get("signatures") or ["generate"]
        opens = "generate" in roles and not prompted and given.get("start_id") is None
        if self.default_prompt and opens:
            found |= {
                "default_prompt": list(self.default_prompt),
                "prompt_length": len(self.default_prompt),
            }
        elif given.get("default_prompt") is None:
            found["start_id"] = self.start_id
        if alone and not prompted and longest:
            found["prompt_length"] = max(1, min(_PROMPT, longest // 2))
        return found


def read_preprocessing(preprocessor: keras.Layer) -> Preprocessing:
    """Reads a preprocessor of `keras_hub.models`, and compares its ids with those of the result.

    Args:
        preprocessor: the `preprocessor` of a task. It is not changed, but built.

    Raises:
        TypeError: it is no preprocessor of KerasHub.
        ValueError: its tokenizer cannot be stored exactly, or it gives other ids than its tokenizer
            and its packer together, as one of the user's own may.

    Example:

    ```python
    preprocessing = read_preprocessing(keras_hub.models.BertTextClassifierPreprocessor(tokenizer))
    preprocessing.tokenizer.encode("The film was good").ids  # [CLS] and [SEP] around it
    ```
    """
    kinds = {cls.__name__ for cls in type(preprocessor).__mro__}
    if "Preprocessor" not in kinds or not is_of_keras_hub(preprocessor):
        raise TypeError(
            f"expected a Preprocessor of keras_hub.models, got {type(preprocessor).__name__}"
        )
    settings: Arguments = {}
    if preprocessor.image_converter is not None:
        settings |= _pictures(preprocessor.image_converter)
    if preprocessor.audio_converter is not None:
        settings["sample_rate"] = preprocessor.audio_converter.sampling_rate
    if preprocessor.tokenizer is None:
        return Preprocessing(**settings)
    result = Preprocessing(**settings, **_texts(preprocessor, kinds))
    _check_ids(preprocessor, kinds, result)
    return result


def _texts(preprocessor: keras.Layer, kinds: set[str]) -> Arguments:
    """The settings of a preprocessor of texts."""
    if not preprocessor.built:
        preprocessor.build(None)
    tokenizer = preprocessor.tokenizer
    form = form_of(type(preprocessor).__name__, tokenizer)
    settings: Arguments = {"pad_id": int(tokenizer.pad_token_id)}
    before: Sequence[int] = ()
    after: Sequence[int] = ()
    between: Sequence[int] = ()
    packer = getattr(preprocessor, "packer", None)
    _check_padding_side(preprocessor)
    if "Seq2SeqLMPreprocessor" in kinds:
        reader, writer = preprocessor.encoder_packer, preprocessor.decoder_packer
        before, after = reader.start_value or (), reader.end_value or ()
        if kinds & {"T5GemmaSeq2SeqLMPreprocessor", "T5Gemma2Seq2SeqLMPreprocessor"}:
            # Their `generate` leaves the end out, and by default the start.
            before, after = before if preprocessor.add_start_token else (), ()
        start = tuple(map(int, writer.start_value or ()))
        settings |= {"default_prompt": start} if len(start) > 1 else {"start_id": start[0]}
        settings |= {
            "end_ids": _end_ids(tokenizer, kinds),
            "source_length": preprocessor.encoder_sequence_length,
            "max_length": preprocessor.decoder_sequence_length,
        }
    elif packer is None:
        raise ValueError(
            f"{type(preprocessor).__name__} has no packer of KerasHub, which tells the ids around "
            "a text: give the tokenizer"
        )
    elif _continues(kinds):
        start = tuple(map(int, packer.start_value or ()))
        settings |= {"default_prompt": start} if len(start) > 1 else {}
        settings |= {
            "start_id": start[0] if len(start) == 1 else None,
            "end_ids": _end_ids(tokenizer, kinds),
            "max_length": preprocessor.sequence_length,
        }
    else:
        before = packer.start_value if getattr(preprocessor, "add_start_token", True) else ()
        after = packer.end_value if getattr(preprocessor, "add_end_token", True) else ()
        between = getattr(packer, "sep_value", None) or after or ()
        settings["source_length"] = preprocessor.sequence_length
    settings |= {"before": tuple(map(int, before or ())), "after": tuple(map(int, after or ()))}
    settings["tokenizer"] = _with_ends(
        form, tokenizer, settings["before"], tuple(map(int, between)), settings["after"]
    )
    return settings


def _check_padding_side(preprocessor: keras.Layer) -> None:
    """Raises ValueError if a packer pads before the text, which moves its positions."""
    for name in ("packer", "encoder_packer", "decoder_packer"):
        side = getattr(getattr(preprocessor, name, None), "padding_side", "right")
        if side != "right":
            raise ValueError(
                f"the {name} of {type(preprocessor).__name__} has padding_side={side!r}, and files "
                'have padding after a text: make it with padding_side="right"'
            )


def _continues(kinds: set[str]) -> bool:
    """Whether a preprocessor is for texts that a model continues. CLIP's is derived from these."""
    return "CausalLMPreprocessor" in kinds and "CLIPPreprocessor" not in kinds


def _end_ids(tokenizer: HubPart, kinds: set[str]) -> tuple[int, ...]:
    """The tokens at which `generate` of KerasHub stops."""
    found = [tokenizer.end_token_id, getattr(tokenizer, "end_token2_id", None)]
    for name, token in _ENDS_OF_TURN.items():
        if name in kinds and token in tokenizer.get_vocabulary():
            found.append(tokenizer.token_to_id(token))
    return tuple(dict.fromkeys(int(x) for x in found if x is not None))


def _with_ends(
    form: Form,
    tokenizer: HubPart,
    before: tuple[int, ...],
    between: tuple[int, ...],
    after: tuple[int, ...],
) -> Any:
    """The tokenizer of a stored form that puts ids around a text."""
    if form.ending == ".model":
        return _pieces_with_ends(form, tokenizer, before, after)
    package = optional_package(
        "tokenizers", "reading this preprocessor needs tokenizers", "tokenizers", extra="text"
    )
    made = package.Tokenizer.from_str(form.content.decode())
    if before or after:
        tokens = {i: tokenizer.id_to_token(i) for i in {*before, *between, *after}}

        def template(ids: tuple[int, ...], segment: int) -> list[str]:
            return [f"{tokens[i]}:{segment}" for i in ids]

        single = [*template(before, 0), "$A:0", *template(after, 0)]
        pair = [*template(before, 0), "$A:0", *template(between, 0), "$B:1", *template(after, 1)]
        made.post_processor = package.processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=[(token, i) for i, token in tokens.items()]
        )
    return made


def _pieces_with_ends(
    form: Form, tokenizer: HubPart, before: tuple[int, ...], after: tuple[int, ...]
) -> Any:
    """A SentencePiece model that adds a start and an end: control tokens of the model."""
    package = optional_package(
        "sentencepiece", "reading this preprocessor needs it", "sentencepiece", extra="text"
    )
    names = [tokenizer.id_to_token(x) for x in (*before[:1], *after[:1])]
    start, end = (names[0] if before else None), (names[-1] if after else None)
    content = set_ends(form.content, start, end) if names else form.content
    options = dict(form.options) | {
        k: True for k, x in (("add_bos", before), ("add_eos", after)) if x
    }
    made = package.SentencePieceProcessor(model_proto=content, **options)
    found = (made.bos_id(),) * bool(before), (made.eos_id(),) * bool(after)
    if found != (before, after):
        raise ValueError(
            f"a SentencePiece model puts at most one control token before and after a text, "
            f"expected the ids {list(before)} and {list(after)}, of which the model has "
            f"{list(map(list, found))}"
        )
    return made


def _check_ids(preprocessor: keras.Layer, kinds: set[str], found: Preprocessing) -> None:
    """Raises unless both give the same ids for samples that are short enough."""
    if "MaskedLMPreprocessor" in kinds:  # it replaces random tokens
        return
    form = form_of("tokens", found.tokenizer)
    stored = form.read(f"tokenizer{form.ending}")
    expected = [[*_start_of(found, kinds), *stored.encode(text)] for text in SAMPLES]
    length = (found.max_length if _continues(kinds) else found.source_length) or 0
    texts = [
        (text, ids) for text, ids in zip(SAMPLES, expected, strict=True) if 0 < len(ids) <= length
    ]
    if not texts:
        return
    rows = _rows(preprocessor, kinds, [text for text, _ in texts])
    for (text, ids), row in zip(texts, rows, strict=True):
        padded = ids + [found.pad_id] * (len(row) - len(ids))
        if padded != row:
            raise ValueError(
                f"{type(preprocessor).__name__} gives the ids {row[: len(ids) + 1]} for "
                f"{excerpt(text)}, its tokenizer with the ids around a text {ids}: export the "
                "task without a preprocessor, with tokenizer="
            )


def _start_of(found: Preprocessing, kinds: set[str]) -> tuple[int, ...]:
    """The ids before a prompt."""
    if not _continues(kinds):
        return ()
    return found.default_prompt or (() if found.start_id is None else (found.start_id,))


def _rows(preprocessor: keras.Layer, kinds: set[str], texts: list[str]) -> list[list[int]]:
    """The ids of texts by KerasHub."""
    if "Seq2SeqLMPreprocessor" in kinds:
        rows = preprocessor.generate_preprocess(texts)["encoder_token_ids"]
    elif _continues(kinds):
        rows = preprocessor.generate_preprocess(texts)["token_ids"]
    elif "CLIPPreprocessor" in kinds:
        rows = preprocessor({"images": None, "prompts": texts})["token_ids"]
    else:
        rows = preprocessor(texts)
        rows = rows["token_ids"]
    return [[int(x) for x in row] for row in np.asarray(rows)]


def _pictures(converter: HubPart) -> Arguments:
    """How an `ImageConverter` resizes and crops; the model itself normalizes the pixels."""
    channels = max(np.size(converter.scale or 1), np.size(converter.offset or 0), 1)
    result: Arguments = {}
    size, resample = converter.image_size, _FILTERS.get(converter.interpolation)
    is_square = size is not None and size[0] == size[1]
    if size is None or resample is None or converter.pad_to_aspect_ratio:
        reason = "no size" if size is None else "a rule that ImageProcessor lacks"
    elif converter.crop_to_aspect_ratio and not is_square:
        reason = "a crop to another shape than a square"
    else:
        resize = size[0] if converter.crop_to_aspect_ratio else None
        result["images"] = ImageProcessor(size, resize, resample, channels if channels > 1 else 3)
        notes = []
        if converter.crop_to_aspect_ratio:
            notes.append(
                "pictures of another shape are resized, then cropped; the converter crops first, "
                "so their pixels differ, most in small pictures that are enlarged"
            )
        if not converter.antialias:
            notes.append(
                "pictures of another size are reduced with Pillow's filters, which average; the "
                "converter has antialias=False"
            )
        return {**result, "notes": tuple(notes)}
    result["notes"] = (f"no rule for pictures, as the converter has {reason}: give images=",)
    return result
