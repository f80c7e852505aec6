"""The decoding loop on the host: `encode`, `prefill` and `decode`, driven token by token.

The KV caches are arguments of `decode`. They stay in LiteRT's memory, and each step writes only its
new entries there: no cache is copied.

Example:

>>> from keras_tfm.runtime.host_loop import by_length
>>> signatures = {
...     f"decode_{n}": {"role": "decode", "inputs": {"cache": {"shape": [1, 2, n, 4]}}}
...     for n in (512, 128)
... }
>>> by_length(signatures, "decode")
['decode_128', 'decode_512']
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_tfm.runtime.manifest_fields import of_kind

Choose = Callable[[np.ndarray], np.ndarray]


class CopiedBuffers:
    """The interface of `litert_internals.Buffers` for a runner that copies its arguments."""

    def __init__(self, runner: Callable[..., dict[str, np.ndarray]], signature: dict[str, Any]):
        self._runner = runner
        self.inputs = {
            name: np.zeros(spec["shape"], spec["dtype"])
            for name, spec in signature["inputs"].items()
        }

    def run(self) -> dict[str, np.ndarray]:
        """The results for the arguments in `inputs`."""
        return self._runner(**self.inputs)


def by_length(signatures: dict[str, dict[str, Any]], role: str) -> list[str]:
    """The signatures of a role, shortest first."""

    def size(name: str) -> int:
        inputs = signatures[name]["inputs"].values()
        return sum(int(np.prod(spec["shape"], dtype=int)) for spec in inputs)

    names = (name for name, signature in signatures.items() if signature["role"] == role)
    return sorted(names, key=size)


def step(
    signatures: dict[str, dict[str, Any]],
    buffers: Callable[[str], Any],
    known: dict[str, np.ndarray],
    prompt: np.ndarray,
    choose: Choose,
) -> Iterator[np.ndarray]:
    """Yields the tokens (B,) of each step; the target's pad id for rows that have ended.

    Args:
        signatures: dict, the signatures in the manifest.
        buffers: from a signature's name to its `litert_internals.Buffers` or `CopiedBuffers`.
        known: the arguments that all steps share: the results of `encode`; without it, inputs.
        prompt: (B, P), at least one column.
        choose: logits (B, V) -> tokens (B,).
    """
    decoders = by_length(signatures, "decode")
    settings = signatures[decoders[0]]
    target, ends, pad_id = settings["target"], settings["end_id"], settings["pad_id"]
    (position_name,) = of_kind(settings, "position")
    end_ids = [] if ends is None else np.atleast_1d(ends).tolist()
    cache, position = _prefilled(signatures, buffers, known, target, prompt)
    name = next(name for name in decoders if signatures[name]["capacity"] > position)
    decoder = _initialized(buffers(name), known, cache)
    capacity = signatures[name]["capacity"]
    growing = [key for key in settings["outputs"] if key != "logits"]
    ended = np.zeros(len(prompt), bool)
    token = prompt[:, position : position + 1]
    while position + 1 < settings["max_length"]:
        if position == capacity:
            name = decoders[decoders.index(name) + 1]
            full = {key: np.array(decoder.inputs[key]) for key in growing}
            decoder = _initialized(buffers(name), known, full)
            capacity = signatures[name]["capacity"]
        decoder.inputs[target][:] = token
        decoder.inputs[position_name][:] = position
        results = decoder.run()
        for key in growing:
            _write(decoder.inputs[key], results[key], position)
        position += 1
        if position < prompt.shape[1]:
            token = prompt[:, position : position + 1]
            continue
        # A copy: `choose` may keep the logits, or run another signature, which reuses the memory.
        logits = np.array(results["logits"])
        chosen = _tokens(choose(logits), ended, logits.shape[-1], pad_id)
        yield chosen.astype("int32")
        ended |= np.isin(chosen, end_ids)
        if ended.all():
            return
        token = chosen[:, np.newaxis]


def _prefilled(
    signatures: dict[str, dict[str, Any]],
    buffers: Callable[[str], Any],
    known: dict[str, np.ndarray],
    target: str,
    prompt: np.ndarray,
) -> tuple[dict[str, np.ndarray], int]:
    """The cache entries of a prefill, and the number of its positions; steps read the others."""
    names = by_length(signatures, "prefill")
    before = prompt.shape[1] - 1
    if not names or not before:
        return {}, 0
    lengths = {name: signatures[name]["inputs"][target]["shape"][1] for name in names}
    name = next((name for name in names if lengths[name] >= before), names[-1])
    count = min(before, lengths[name])
    prefill = _initialized(buffers(name), known, {})
    prefill.inputs[target][:] = signatures[name]["inputs"][target]["pad_id"]
    prefill.inputs[target][:, :count] = prompt[:, :count]
    return {key: _first(x, count) for key, x in prefill.run().items()}, count


def _tokens(chosen: Any, ended: np.ndarray, size: int, pad_id: int) -> np.ndarray:
    """The chosen tokens (B,), checked; `pad_id` for rows that have ended."""
    tokens = np.asarray(chosen)
    if tokens.shape != ended.shape or not np.issubdtype(tokens.dtype, np.integer):
        raise TypeError(
            f"choose must return integer tokens of shape {ended.shape}, got "
            + (f"{tokens.dtype} {tokens.shape}" if tokens.ndim else type(chosen).__name__)
        )
    checked = tokens[~ended]
    if checked.min() < 0 or checked.max() >= size:
        raise ValueError(f"choose must return tokens in 0..{size - 1}, got {checked.tolist()}")
    return np.where(ended, pad_id, tokens)


def _initialized(buffers: Any, known: dict[str, np.ndarray], cache: dict[str, np.ndarray]) -> Any:
    """The buffers, with the known arguments and cache entries written, and zeros elsewhere."""
    for key, array in buffers.inputs.items():
        # Zeros: stale memory may hold NaN, and NaN times an attention weight of 0 is NaN.
        array[...] = known.get(key, 0)
    for key, x in cache.items():
        _write(buffers.inputs[key], x, 0)
    return buffers


def _first(x: np.ndarray, count: int) -> np.ndarray:
    """A copy of the first `count` positions of new cache entries."""
    return np.array(x[:, :count] if x.ndim == 2 else x[:, :, :count])


def _write(cache: np.ndarray, x: np.ndarray, position: int) -> None:
    """Writes entries (B, S) or (B, G, S, K) from `position` on; `x` may be a whole cache."""
    if x.shape == cache.shape:
        cache[...] = x
    elif x.ndim == 2:
        cache[:, position : position + x.shape[1]] = x
    else:
        cache[:, :, position : position + x.shape[2]] = x


def prompt_of(rows: Sequence[np.ndarray], name: str) -> np.ndarray:
    """Prompts of one length as an array (B, P), int32."""
    lengths = {len(row) for row in rows}
    if len(lengths) != 1:
        raise ValueError(
            f"{name}: prompts that are stepped together must have one length, got {sorted(lengths)}"
        )
    return np.stack(rows).astype("int32")
