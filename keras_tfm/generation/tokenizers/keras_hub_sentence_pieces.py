"""SentencePiece models with KerasHub's ids and ends: changed in their bytes, so no text changes.

Example:

>>> from keras_tfm.generation.tokenizers.keras_hub_sentence_pieces import set_ends
>>> set_ends(bytes([10, 3, 10, 1, 97]), "[CLS]", None)
b'\\n\\x03\\n\\x01a\\x12\\x08\\xf2\\x02\\x05[CLS]'
"""

from typing import Any

from keras_tfm.runtime.tokenizers.protobuf import message_fields

# Fields of `ModelProto`, of a piece and of `TrainerSpec`; types of pieces.
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
    """A model that `add_bos` and `add_eos` give these control tokens."""
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
