"""The loop outside the file: `encode`, `prefill` and `decode`, driven token by token.

The caches are arguments of `decode`. They lie where LiteRT reads them, and what a step adds is
written into them there: nothing is copied but that.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Choose = Callable[[np.ndarray], np.ndarray]


class Buffers:
    """A signature's arguments and results, as arrays in LiteRT's own memory."""

    def __init__(self, runner: Any):
        # None of it public: the public runner copies each argument, caches and all, at each call.
        self._wrapper, self._subgraph = runner._interpreter_wrapper, runner._subgraph_index
        self._wrapper.AllocateTensors(self._subgraph)
        self.inputs = {name: self._array(index) for name, index in runner._inputs.items()}
        self._outputs = dict(runner._outputs)

    def _array(self, index: int) -> np.ndarray:
        array: np.ndarray = self._wrapper.tensor(self._wrapper, index, self._subgraph)
        return array

    def run(self) -> dict[str, np.ndarray]:
        """The results of the arguments in `inputs`, valid until the next run."""
        self._wrapper.Invoke(self._subgraph)
        return {name: self._array(index) for name, index in self._outputs.items()}


class CopiedBuffers:
    """The same for a runner that takes copies."""

    def __init__(self, runner: Callable[..., dict[str, np.ndarray]], signature: dict[str, Any]):
        self._runner = runner
        self.inputs = {
            name: np.zeros(spec["shape"], spec["dtype"])
            for name, spec in signature["inputs"].items()
        }

    def run(self) -> dict[str, np.ndarray]:
        """The results of the arguments in `inputs`."""
        return self._runner(**self.inputs)


def by_length(signatures: dict[str, dict[str, Any]], role: str) -> list[str]:
    """The signatures of a role, the shortest first."""

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
    """Yields the tokens (B,) of each step; 0 after a row's end.

    Args:
        signatures: of the manifest.
        buffers: makes the `Buffers` of a signature.
        known: arguments that stay: what `encode` made, and inputs that every step reads.
        prompt: (B, P), at least one column.
        choose: logits (B, V) -> tokens (B,).
    """
    rooms = by_length(signatures, "decode")
    settings = signatures[rooms[0]]
    target, ends = settings["target"], settings["end_id"]
    end_ids = [] if ends is None else np.atleast_1d(ends).tolist()
    cache, position = _prefilled(signatures, buffers, known, target, prompt)
    name = next(name for name in rooms if signatures[name]["room"] > position)
    at = _begin(buffers(name), known, cache)
    room = signatures[name]["room"]
    grown = [key for key in settings["outputs"] if key != "logits"]
    ended = np.zeros(len(prompt), bool)
    token = prompt[:, position : position + 1]
    while position + 1 < settings["max_length"]:
        if position == room:
            name = rooms[rooms.index(name) + 1]
            full = {key: np.array(at.inputs[key]) for key in grown}
            at = _begin(buffers(name), known, full)
            room = signatures[name]["room"]
        at.inputs[target][:] = token
        at.inputs["position"][:] = position
        results = at.run()
        for key in grown:
            _write(at.inputs[key], results[key], position)
        position += 1
        if position < prompt.shape[1]:
            token = prompt[:, position : position + 1]
            continue
        # A copy: what `choose` keeps, or runs meanwhile, must not meet LiteRT's memory.
        logits = np.array(results["logits"])
        chosen = _tokens(choose(logits), ended, logits.shape[-1])
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
    """What a prefill adds to the caches, and how many positions that is; the rest is decoded."""
    names = by_length(signatures, "prefill")
    before = prompt.shape[1] - 1
    if not names or not before:
        return {}, 0
    lengths = {name: signatures[name]["inputs"][target]["shape"][1] for name in names}
    name = next((name for name in names if lengths[name] >= before), names[-1])
    count = min(before, lengths[name])
    at = _begin(buffers(name), known, {})
    at.inputs[target][:, :count] = prompt[:, :count]
    return {key: _first(x, count) for key, x in at.run().items()}, count


def _tokens(chosen: Any, ended: np.ndarray, size: int) -> np.ndarray:
    """What a caller chose, checked: a token (B,) of each row, 0 of those that have ended."""
    tokens = np.asarray(chosen)
    if tokens.shape != ended.shape or not np.issubdtype(tokens.dtype, np.integer):
        raise TypeError(
            f"choose must return integer tokens of shape {ended.shape}, got "
            + (f"{tokens.dtype} {tokens.shape}" if tokens.ndim else type(chosen).__name__)
        )
    tokens = np.where(ended, 0, tokens)
    if tokens.min() < 0 or tokens.max() >= size:
        raise ValueError(f"choose must return tokens in 0..{size - 1}, got {tokens.tolist()}")
    return tokens


def _begin(at: Any, known: dict[str, np.ndarray], cache: dict[str, np.ndarray]) -> Any:
    """The buffers with all that is known before the first token."""
    for key, array in at.inputs.items():
        # Zeros: what was there may be no number, and no number times a weight of 0 is none.
        array[...] = known.get(key, 0)
    for key, x in cache.items():
        _write(at.inputs[key], x, 0)
    return at


def _first(x: np.ndarray, count: int) -> np.ndarray:
    """A copy of the first positions of what is added to a cache."""
    return np.array(x[:, :count] if x.ndim == 2 else x[:, :, :count])


def _write(cache: np.ndarray, x: np.ndarray, position: int) -> None:
    """Entries (B, S) and (B, G, S, K) hold positions in another axis; `x` may be all of them."""
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
