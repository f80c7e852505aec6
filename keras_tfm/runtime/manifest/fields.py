"""Questions about signatures in JSON."""

import math
from typing import Any


def is_rounded(manifest: dict[str, Any]) -> bool:
    """Whether a file's weights or KV caches are rounded."""
    return bool(manifest["quantization"] != "float32" or manifest.get("cache") == "int8")


def of_kind(signature: dict[str, Any], kind: str) -> list[str]:
    """The names of a signature's arguments of a kind of `KINDS`."""
    return [name for name, spec in signature["inputs"].items() if spec["kind"] == kind]


def column_axes(decode: dict[str, Any]) -> dict[str, int]:
    """The axis of positions of each growing cache entry of a "decode" signature.

    >>> specs = {name: {"shape": [1, 2, 64, 32]} for name in ("cache_0_key", "cache_0_value")}
    >>> column_axes({"outputs": specs, "transposed": ["cache_0_key"]})
    {'cache_0_key': 3, 'cache_0_value': 2}
    """
    transposed = decode.get("transposed", ())
    return {
        name: 3 if name in transposed else 1 if len(spec["shape"]) == 2 else 2
        for name, spec in decode["outputs"].items()
        if name != "logits"
    }


def by_length(signatures: dict[str, dict[str, Any]], role: str) -> list[str]:
    """The signatures of a role, shortest first.

    >>> from keras_tfm.runtime.manifest.fields import by_length
    >>> signatures = {
    ...     f"decode_{n}": {"role": "decode", "inputs": {"cache": {"shape": [1, 2, n, 4]}}}
    ...     for n in (512, 128)
    ... }
    >>> by_length(signatures, "decode")
    ['decode_128', 'decode_512']
    """

    def size(name: str) -> int:
        inputs = signatures[name]["inputs"].values()
        return sum(math.prod(spec["shape"]) for spec in inputs)

    names = (name for name, signature in signatures.items() if signature["role"] == role)
    return sorted(names, key=size)
