"""Reads protocol buffers, the format of SentencePiece models, without their schema."""

from collections.abc import Iterator
from typing import Any


def message_fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message, with their numbers: bytes, or integers.

    Raises:
        ValueError: the message is damaged.

    >>> from keras_tfm.runtime.tokenizers.protobuf import message_fields
    >>> list(message_fields(bytes([10, 2, 97, 98, 16, 5])))
    [(1, b'ab'), (2, 5)]
    """
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            if position >= len(content) or shift > 63:
                raise ValueError("the file is damaged: a number has no end")
            byte = content[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
            shift += 7

    while position < len(content):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            if kind != 2:
                raise ValueError(f"unknown wire type {kind}")
            size = varint()
        if position + size > len(content):
            raise ValueError("the file is truncated")
        yield key >> 3, content[position : position + size]
        position += size
