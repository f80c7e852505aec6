"""Models of KerasHub, which cannot be stepped, and its tokenizers. KerasHub is not imported.

Example:

>>> from keras_tfm import models
>>> from keras_tfm.generation.tokenizers.keras_hub import is_of_keras_hub, keras_hub_hint
>>> model = models.gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
>>> is_of_keras_hub(model), keras_hub_hint(model)
(False, '')
"""

from typing import Any

import keras
import numpy as np

from keras_tfm.generation.tokenizers.keras_hub_word_pieces import word_piece_json
from keras_tfm.keras_internals import sublayers
from keras_tfm.runtime.tokenizers.protobuf import message_fields
from keras_tfm.runtime.tokenizers.tokenizer import Tokenizer, excerpt, read

# The backbones that `checkpoints.from_keras_hub` takes, which this package does not import:
# language models and others, as `checkpoints.keras_hub.families` has them.
LANGUAGE_MODELS = (
    "LlamaBackbone", "Llama3Backbone", "MistralBackbone", "QwenBackbone", "Qwen3Backbone",
    "GemmaBackbone", "Gemma3Backbone", "GPT2Backbone", "GPTNeoXBackbone", "Phi3Backbone",
    "SmolLM3Backbone", "T5Backbone", "BartBackbone", "WhisperBackbone", "Gemma4Backbone",
    "Qwen3_5Backbone", "T5GemmaBackbone", "T5Gemma2Backbone",
)  # fmt: skip
OTHER_BACKBONES = (
    "BertBackbone", "RobertaBackbone", "XLMRobertaBackbone", "DistilBertBackbone",
    "AlbertBackbone", "ElectraBackbone", "DebertaV3Backbone",
    "ViTBackbone", "DeiTBackbone", "DINOV2Backbone", "DINOV3Backbone", "ResNetBackbone",
    "CLIPBackbone", "SigLIPBackbone",
)  # fmt: skip


def is_of_keras_hub(layer: keras.Layer) -> bool:
    """Whether a layer's class, or one that it inherits from, is KerasHub's."""
    return any(cls.__module__.split(".")[0] == "keras_hub" for cls in type(layer).__mro__)


def refuse_keras_hub(model: keras.Model) -> None:
    """Raises for a task or backbone of KerasHub, in which no input can be stepped."""
    if is_of_keras_hub(model):
        raise ValueError(
            f"{model.name!r} is a {type(model).__name__} of KerasHub: it can be exported for "
            f"'predict', but not stepped a token at a time; {_alternative(model)}"
        )


def keras_hub_hint(model: keras.Model) -> str:
    """The end of an error about a model with layers of KerasHub; "" for other models."""
    found = next((x for x in [model, *sublayers(model)] if is_of_keras_hub(x)), None)
    if found is None:
        return ""
    return f"; it has a {type(found).__name__} of KerasHub: {_alternative(found)}"


def _alternative(layer: keras.Layer) -> str:
    """What to use instead of a task, backbone or layer of KerasHub, in words."""
    page = "see docs/from-kerashub.md"
    if not isinstance(layer, keras.Model):
        return f"keras_tfm.layers has layers that can be stepped, {page}"
    backbone = getattr(layer, "backbone", layer)
    name = type(backbone).__name__
    if name not in LANGUAGE_MODELS + OTHER_BACKBONES or not is_own_class(backbone):
        return (
            f"checkpoints.from_keras_hub has no layers for a {name}, and of language models only "
            f"for {', '.join(LANGUAGE_MODELS)}, {page}"
        )
    what = "the same weights" if is_own_class(layer) else "the weights of its backbone"
    return f"checkpoints.from_keras_hub makes a model of keras_tfm with {what}, {page}"


def is_own_class(layer: keras.Layer) -> bool:
    """Whether a class is KerasHub's, and not one that inherits from it."""
    return type(layer).__module__.split(".")[0] == "keras_hub"


# Texts that both must encode alike: scripts, composed and decomposed accents, digits, spaces, line
# ends, symbols, letters that become two in another case, words of many bytes.
SAMPLES = (
    *(
        "",
        " ",
        "a",
        "Hello, world!",
        "  two  spaces ",
        "tab\there\nline\r\nend\n",
        "\n\n a",
        "a \n",
    ),
    *("It's 3.14 o'clock; they've 10,000!", "CamelCase snake_case KEBAB-CASE", "don't DON'T I'M"),
    *("Größe STRASSE straße ǅ ﬁne Ⅳ ½ ²", "cafe\u0301 café naïve", "İstanbul Isı", "Σίσυφος ΟΔΟΣ"),
    *("Привет, мир! Ёлка", "שלום עולם", "مرحبا بالعالم ١٢٣", "नमस्ते दुनिया", "สวัสดีชาวโลก"),
    *("日本語のテキスト。", "中文，标点！", "한국어 텍스트", "㍿ ｱｲｳ ＡＢＣ", "𠀀 𝒳 😀👩‍👩‍👧 🇩🇪"),
    *("a\u00a0b\u2009c\u3000d\u200be\u00adf\ufeffg", "«quoted» „so“ ‘x’ … — –", "a\0b"),
    *("$5 #1 @x ^ ~ ` | < > = +", "[CLS] [MASK] <s> </s> <unk> <pad> <|endoftext|>", "x" * 150),
)


def convert(tokenizer: Any) -> tuple[str, bytes, dict[str, bool]]:
    """The suffix of the name of a tokenizer's entry, its bytes, and its options.

    Raises:
        ValueError: it cannot be stored in a form that gives the same ids.
        ModuleNotFoundError: `tokenizers` is missing.
    """
    kinds = [cls.__name__ for cls in type(tokenizer).__mro__]
    if not {"SentencePieceTokenizer", "WordPieceTokenizer", "BytePairTokenizer"} & set(kinds):
        raise ValueError(
            "only KerasHub's SentencePieceTokenizer, WordPieceTokenizer and BytePairTokenizer can "
            f"be stored exactly, not {kinds[0]}: make a tokenizers.Tokenizer, and train with that"
        )
    if tokenizer.sequence_length is not None:
        raise ValueError("it truncates rows: make it with sequence_length=None")
    if "int" not in str(tokenizer.compute_dtype):
        raise ValueError(f"it must return integer ids, got {tokenizer.compute_dtype}")
    if "SentencePieceTokenizer" in kinds:
        tokenizer._check_vocabulary()
        options = {"add_bos": tokenizer.add_bos, "add_eos": tokenizer.add_eos}
        result = ".model", sentence_piece_model(tokenizer), options
    elif "WordPieceTokenizer" in kinds:
        tokenizer._check_vocabulary()
        result = ".json", word_piece_json(tokenizer), {}
    else:
        tokenizer._check_vocabulary()
        tokenizer._maybe_initialized_tokenizers()
        result = ".json", tokenizer._tokenizer.to_str().encode(), {}
    _compare(tokenizer, read(f"tokenizer{result[0]}", *result[1:]))
    return result


def _compare(tokenizer: Any, carried: Tokenizer) -> None:
    """Raises unless both give the same ids for the samples and for random texts."""
    drawn = np.random.default_rng(0).integers(0, tokenizer.vocabulary_size(), (50, 9)).tolist()
    texts = [*SAMPLES, *(str(text) for text in tokenizer.detokenize(drawn))]
    for text, ids in zip(texts, tokenizer.tokenize(texts), strict=True):
        found, wanted = carried.encode(text), [int(i) for i in ids]
        if found != wanted:
            raise ValueError(
                f"for {excerpt(text)} it gives the ids {wanted}, its stored form {found}"
            )


# SentencePiece models are changed in their bytes, so no text changes. Fields of `ModelProto`, of a
# piece and of `TrainerSpec`; types of pieces.
_PIECE, _TRAINER = 1, 2
_TEXT, _KIND = 1, 3
_UNKNOWN_TOKEN, _START, _END, _PADDING = 45, 46, 47, 48
_UNKNOWN, _CONTROL = 2, 3


def sentence_piece_model(tokenizer: Any) -> bytes:
    """The model of a `keras_hub.tokenizers.SentencePieceTokenizer`, with its ids.

    XLM-RoBERTa's ids are moved by one: its first four tokens and its mask are none of the model's.
    """
    content: bytes = tokenizer.proto
    if not any(cls.__name__ == "XLMRobertaTokenizer" for cls in type(tokenizer).__mro__):
        return content
    fields = list(message_fields(content))
    pieces = [value for number, value in fields if number == _PIECE][3:]
    first = [_piece(x, _UNKNOWN if x == "<unk>" else _CONTROL) for x in tokenizer.special_tokens]
    result = b"".join(_field(_PIECE, x) for x in (*first, *pieces, _piece("<mask>", _CONTROL)))
    result += b"".join(_field(number, value) for number, value in fields if number != _PIECE)
    names = {_UNKNOWN_TOKEN: "<unk>", _START: "<s>", _END: "</s>", _PADDING: "<pad>"}
    return _with_names(result, names)


def set_ends(content: bytes, start: str | None, end: str | None) -> bytes:
    """A SentencePiece model that `add_bos` and `add_eos` give these control tokens.

    >>> from keras_tfm.generation.tokenizers.keras_hub import set_ends
    >>> set_ends(bytes([10, 3, 10, 1, 97]), "[CLS]", None)
    b'\\n\\x03\\n\\x01a\\x12\\x08\\xf2\\x02\\x05[CLS]'
    """
    names = {number: x for number, x in ((_START, start), (_END, end)) if x is not None}
    return _with_names(content, names)


def _with_names(content: bytes, names: dict[int, str]) -> bytes:
    """The model with other texts in its training settings: a later field of a message wins."""
    changed = b"".join(_field(number, text.encode()) for number, text in names.items())
    return content + _field(_TRAINER, changed)


def _piece(text: str, kind: int) -> bytes:
    return _field(_TEXT, text.encode()) + _varint(_KIND << 3) + _varint(kind)  # its score is 0


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*result, value])
