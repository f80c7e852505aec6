"""The number of drafted tokens that a loop on the host verifies in one step."""

from collections.abc import Mapping, Sequence
from typing import Any

from keras_tfm.arguments import check_integer


def checked_draft_length(arguments: Mapping[str, Any], roles: Sequence[str]) -> int | None:
    """The `draft_length` of an export's arguments, see `ExportArguments`; None without it.

    >>> from keras_tfm.export.signatures.draft_length import checked_draft_length
    >>> checked_draft_length({"draft_length": 3, "max_length": 9}, ["encode", "decode"])
    3
    """
    length, max_length = arguments.get("draft_length"), arguments.get("max_length")
    check_integer("draft_length", length, optional=True)
    if length is None:
        return None
    whole = arguments.get("whole_caches", False)
    if "decode" not in roles or whole:
        raise ValueError(
            "draft_length is for the signature 'decode' without whole_caches, got "
            f"{list(roles)}, whole_caches={whole}"
        )
    if max_length is not None and length > max_length - 2:
        raise ValueError(
            f"draft_length={length} does not fit max_length={max_length}: give at most "
            f"{max(1, max_length - 2)}"
        )
    return int(length)
