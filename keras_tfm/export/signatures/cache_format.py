"""The argument `cache` of an export, checked."""

from collections.abc import Mapping, Sequence
from typing import Any

from keras_tfm.runtime.manifest.manifest import CACHES


def checked_cache(arguments: Mapping[str, Any], roles: Sequence[str]) -> str:
    """The format of the KV caches; raises ValueError where int8 does not apply.

    >>> from keras_tfm.export.signatures.cache_format import checked_cache
    >>> checked_cache({}, ["decode"]), checked_cache({"cache": "int8"}, ["decode"])
    ('float32', 'int8')
    """
    cache = str(arguments.get("cache", "float32"))
    if cache not in CACHES:
        raise ValueError(f"cache must be one of {list(CACHES)}, got {cache!r}")
    if cache == "float32":
        return cache
    if list(roles) == ["predict"]:
        raise ValueError(
            f"cache={cache!r} is for the KV caches of 'generate' and 'decode': 'predict' has none; "
            "leave it out, or export one of these signatures"
        )
    if arguments.get("accelerator") == "gpu":
        raise ValueError(
            f"cache={cache!r} is for accelerator='cpu': the graphs for a GPU delegate are in "
            "float32; leave it out"
        )
    return cache
