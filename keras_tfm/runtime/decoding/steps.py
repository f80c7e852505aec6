"""The KV caches of a loop on the host: reads tokens with the signatures "prefill" and "decode"."""

import copy
from collections.abc import Callable, Mapping

import numpy as np

from keras_tfm.runtime.checked_inputs import pad_id_of
from keras_tfm.runtime.compiled_model import CompiledSignature
from keras_tfm.runtime.litert_internals import Buffers
from keras_tfm.runtime.manifest.manifest import Decode, Prefill, Signature, of_role
from keras_tfm.runtime.memory import clear

# Recurrent states cannot be rewound: those after the last steps are kept, and those at the ends of
# the last reads, which a chat rewinds to.
_RECENT, _ENDS = 4, 8


class Steps:
    """Reads tokens at growing positions, and keeps the KV caches that they leave.

    With `CompiledModel`, whose signatures share the buffers of KV caches, the entries are those
    buffers: nothing is copied but the new columns of a step. Longer texts take longer buffers, and
    the shorter ones are freed. Before another user overwrites them, `release` copies the columns in
    use. With `Interpreter`, where each signature has buffers of its own, entries are kept in NumPy,
    and a signature's buffers get the columns that they lack before it runs.

    Args:
        signatures: those of the manifest.
        buffers: from a signature's name to its arguments, see `LoadedFile.buffers`.
        known: the results of `encode`; without it, inputs.
        rows: int, number of rows (B): the exported batch size, or 1: one row in all of the batch.

    Attributes:
        known: the arguments that all steps share: the argument without the columns of a prefix.
        position: int, number of tokens that have been read.
        entries: dict of the cache entries by name: (B, G, S, K), (B, G, K, S) for transposed keys,
            or (B, S) for a mask. They begin with the columns of a prefix, if the model has one.
            Columns of tokens from `position` on are empty or stale.
        states: dict of the recurrent states at `position` by name, (B, ...). The arrays are
            replaced, never written to.
    """

    def __init__(
        self,
        signatures: Mapping[str, Signature],
        buffers: Callable[[str], Buffers | CompiledSignature],
        known: dict[str, np.ndarray],
        rows: int,
    ):
        self._buffers = buffers
        self._decodes = of_role(signatures, Decode)  # smallest first
        self._prefills = of_role(signatures, Prefill)
        first, *_ = self._decodes.values()
        *_, settings = self._decodes.values()
        self._target, self._max_length = settings.target, settings.max_length
        self._capacity, self._prefix = settings.capacity, settings.prefix
        (self._position_name,) = settings.of_kind("position")
        counts = {name for x in self._prefills.values() for name in x.of_kind("count")}
        self._count_name = next(iter(counts), None)
        self._axes = settings.column_axes
        self._decoder = _Loaded("", None, 0)
        self._verifying: dict[str, _Loaded] = {}
        self._shared = False  # whether another object may read the arrays in `entries`
        self._in_buffers = False  # whether they are LiteRT's
        self._columns_kept = first.capacity  # of the arrays in `entries`
        self.position = 0
        self.entries: dict[str, np.ndarray] = {
            key: np.zeros((rows, *first.inputs[key].shape[1:]), first.inputs[key].dtype)
            for key in settings.caches
        }
        self.states: dict[str, np.ndarray] = {
            key: np.zeros((rows, *first.inputs[key].shape[1:]), first.inputs[key].dtype)
            for key in settings.states
        }
        # By position.
        self._recent = {0: self.states}
        self._ends = {0: self.states}
        self.known = {key: x for key, x in known.items() if key not in self.entries}
        for key in self.entries.keys() & known.keys():
            self._columns(key, self.entries[key], -self._prefix, 0)[...] = known[key][:rows]

    @property
    def draft_length(self) -> int:
        """The number of drafted tokens that `verify` reads."""
        lengths = (x.inputs[self._target].shape[1] for x in self._prefills.values() if x.verifies)
        return next(lengths) - 1

    def read(self, tokens: np.ndarray, end: int) -> None:
        """Reads the columns `position` to `end` - 1 of tokens (B, T), in chunks where possible."""
        loaded: dict[str, _Loaded] = {}
        while self.position < end:
            name, start = self._chunk(end - self.position)
            if name is None:
                self.decode(tokens[:, self.position : self.position + 1])
                continue
            if name not in loaded:
                loaded[name] = self._begin(name)
            self._prefill(loaded[name], tokens, start, end)
        _remember(self._ends, self.position, self.states, _ENDS)

    def decode(self, token: np.ndarray) -> np.ndarray:
        """Reads a token of each row, (B, 1), at `position`: the logits (B, V) of the next one."""
        name = next(name for name, x in self._decodes.items() if x.capacity > self.position)
        if self._decoder.name != name:
            self._decoder = self._begin(name)
        buffers = self._load(self._decoder)
        buffers.inputs[self._target][...] = token
        buffers.inputs[self._position_name][...] = self.position
        results = buffers.run()
        self._keep(results, self.position, self.position + 1, buffers.inputs)
        self._decoder.columns = self.position
        # A copy: a caller may keep the logits, or run another signature, which reuses the memory.
        return np.array(results["logits"][: len(token)]).reshape(len(token), -1)

    def verify(self, tokens: np.ndarray) -> np.ndarray:
        """Reads several columns of tokens (B, T), from `position` on, in one step.

        The number of columns is that of the export, fewer at the end of a row.

        Returns:
            The logits after each of them, (B, n, V).
        """
        length, first = self.draft_length + 1, self.position
        start = min(first, self._max_length - length)
        if self.states and start < first:
            self.rewind(start)
            self.read(tokens, start)
        name = next(
            name
            for name, x in self._prefills.items()
            if x.verifies and start + length <= (x.capacity or 0)
        )
        if name not in self._verifying:
            self._verifying[name] = self._begin(name)
        buffers = self._load(self._verifying[name])
        buffers.inputs[self._target][...] = tokens[:, start : start + length]
        buffers.inputs[self._position_name][...] = start
        results = buffers.run()
        logits = np.array(results["logits"][: len(tokens), first - start :])
        self._keep(results, start, start + length)
        return logits

    def rewind(self, position: int) -> None:
        """Forgets what was read from `position` on.

        With recurrent states, also what was read after the last position before it whose states are
        known: `self.position` is less than `position` then.
        """
        if self.states and position < self.position:
            known = {**self._ends, **self._recent}
            position = max(x for x in known if x <= position)
            self.states = known[position]
            for kept in (self._ends, self._recent):
                for x in [x for x in kept if x > position]:
                    del kept[x]
        self.position = position
        for loaded in (self._decoder, *self._verifying.values()):
            loaded.columns = min(loaded.columns, position)

    def release(self) -> None:
        """Leaves LiteRT's buffers, which another user will overwrite."""
        if self._in_buffers:
            self.entries = {key: np.array(x) for key, x in self.read_entries().items()}
            self._shared, self._in_buffers = True, False  # the next write copies to a capacity
        self._decoder = _Loaded("", None, 0)
        self._verifying = {}

    def restore(
        self, entries: dict[str, np.ndarray], states: dict[str, np.ndarray], position: int
    ) -> None:
        """Continues at `position`, with the result of `read_entries` and the states there."""
        # The next write copies them to a capacity.
        self.entries, self._shared, self._in_buffers = entries, True, False
        self.position, self.states = position, states
        _remember(self._ends, position, states, _ENDS)
        self.release()

    def read_entries(self) -> dict[str, np.ndarray]:
        """The entries of the prefix and of the positions that have been read."""
        return {
            key: self._columns(key, x, -self._prefix, self.position)
            for key, x in self.entries.items()
        }

    def fork(self) -> "Steps":
        """A copy with the same entries, which are copied when one of the two writes to its own."""
        if self._in_buffers:
            self.release()
        self._shared = True
        result = copy.copy(self)
        result._ends, result._recent = dict(self._ends), dict(self._recent)
        result.release()
        return result

    def _chunk(self, count: int) -> tuple[str | None, int]:
        """The prefill that reads the next of `count` tokens, and the position where it begins.

        It begins earlier, and reads some tokens again, if it would end after the last position.
        None: there is no such prefill, and the next token takes a step.
        """
        fitting: dict[int, tuple[str, int]] = {}  # by length; of each the smallest caches
        for name, signature in self._prefills.items():
            length = signature.inputs[self._target].shape[1]
            if signature.capacity is None:  # of an older file: it has no caches to read
                if self.position == 0:
                    fitting.setdefault(length, (name, 0))
                continue
            start = min(self.position, self._max_length - length)
            if self.states and start < self.position:
                continue
            if start + length <= signature.capacity and not (self.states and signature.verifies):
                fitting.setdefault(length, (name, start))
        if not fitting:
            return None, self.position
        # A padded chunk is worth its time if at least half of it is tokens.
        full = [length for length in fitting if length <= count]
        padded = [
            length for length in fitting if length > count and (not full or length < 2 * count)
        ]
        return fitting[min(padded) if padded else max(full)]

    def _prefill(self, loaded: "_Loaded", tokens: np.ndarray, start: int, end: int) -> None:
        expected = self._prefills[loaded.name].inputs[self._target]
        end = min(end, start + expected.shape[1])
        buffers = self._load(loaded)
        buffers.inputs[self._target][...] = pad_id_of(expected)
        buffers.inputs[self._target][:, : end - start] = tokens[:, start:end]
        if self._position_name in buffers.inputs:
            buffers.inputs[self._position_name][...] = start
        if self._count_name is not None:
            buffers.inputs[self._count_name][...] = end - start
        self._keep(buffers.run(), start, end)

    def _begin(self, name: str) -> "_Loaded":
        """The buffers of a signature, ready to be loaded."""
        loaded = _Loaded(name, self._buffers(name), -self._prefix)
        self._initialize(loaded)
        return loaded

    def _initialize(self, loaded: "_Loaded") -> None:
        """Moves the entries to the buffers if they fit; writes known arguments, zeros elsewhere."""
        buffers = loaded.buffers
        assert buffers is not None
        if isinstance(buffers, CompiledSignature) and self._fit_in(loaded.name):
            self._in_buffers = True  # some of them are, if the next line is interrupted
            buffers.take_over_caches(self._move)
            self._shared, self._columns_kept = False, self._signature(loaded.name).capacity or 0
        for key, array in buffers.inputs.items():
            if key in self.known:
                array[...] = self.known[key]
            elif array.dtype.kind == "f" and self.entries.get(key) is not array:
                clear(array)  # as in `_move`
        loaded.version, loaded.columns = buffers.version, -self._prefix

    def _signature(self, name: str) -> Decode | Prefill:
        return self._decodes.get(name) or self._prefills[name]

    def _fit_in(self, name: str) -> bool:
        """Whether the caches of a signature can be the entries.

        Not those of a prefill of an older file, which reads none, nor one row in all of a batch.
        """
        inputs = self._signature(name).inputs
        return bool(self.entries) and all(
            key in inputs and inputs[key].shape[0] == len(x) for key, x in self.entries.items()
        )

    def _move(self, key: str, cache: np.ndarray) -> None:
        """Makes a cache in a signature's buffers the entry, whose columns it gets."""
        x = self.entries.get(key)
        if x is None or x is cache:  # None: it is known, such as that of cross-attention
            return
        # Stale memory may hold NaN, and NaN times an attention weight of 0 is NaN.
        clear(cache)
        columns = -self._prefix, self.position
        self._columns(key, cache, *columns)[...] = self._columns(key, x, *columns)
        self.entries = {**self.entries, key: cache}

    def _load(self, loaded: "_Loaded") -> Buffers | CompiledSignature:
        """The buffers of a signature, after writing the entries that they lack."""
        buffers = loaded.buffers
        assert buffers is not None
        if buffers.version != loaded.version:  # they were freed, and are others now
            self._initialize(loaded)
        if loaded.columns < self.position:
            for key, x in self.entries.items():
                cache = buffers.inputs.get(key)
                if cache is not None and cache is not x:
                    new = self._columns(key, x, loaded.columns, self.position)
                    self._columns(key, cache, loaded.columns, self.position)[...] = new
        for key, x in self.states.items():
            buffers.inputs[key][...] = x
        loaded.columns = self.position
        return buffers

    def _keep(
        self,
        results: dict[str, np.ndarray],
        start: int,
        end: int,
        caches: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Keeps the entries from `position` to `end`; those in `results` begin at `start`.

        They are also written to `caches`, the inputs of a signature.
        """
        self._make_writable(end)
        # Indices of the columns by axis: made once, because a model has many entries.
        places = self._prefix + self.position, self._prefix + end
        columns = {axis: _at(axis, *places) for axis in set(self._axes.values())}
        for key, x in self.entries.items():
            new, axis = results[key], self._axes[key]
            width = new.shape[axis]
            is_whole = width == self._prefix + self._capacity  # `whole_caches`
            first = -self._prefix if is_whole else start
            if (first, width) != (self.position, end - self.position):
                new = new[_at(axis, self.position - first, end - first)]
            if len(new) != len(x):
                new = new[: len(x)]
            x[columns[axis]] = new
            cache = None if caches is None else caches.get(key)
            if cache is not None and cache is not x:
                cache[columns[axis]] = new
        self._keep_states(results, start, end)
        self.position = end

    def _keep_states(self, results: dict[str, np.ndarray], start: int, end: int) -> None:
        """Takes the states that a signature returned; those that verify a draft return several."""
        before, most = self.states, _RECENT
        if not before:
            return
        new = {key: np.array(results[key][: len(x)]) for key, x in before.items()}
        after = [new]
        if any(new[key].ndim > x.ndim for key, x in before.items()):
            after = [{key: x[:, i] for key, x in new.items()} for i in range(end - start)]
            most = max(most, len(after))
        for i, states in enumerate(after, end - len(after) + 1):
            _remember(self._recent, i, states, most)
        self.states = after[-1]

    def _make_writable(self, end: int) -> None:
        """Makes the entries this object's own, with at least `end` columns."""
        if not self._shared and end <= self._columns_kept:
            return
        larger = next(x for x in self._decodes.values() if x.capacity >= end)
        self._columns_kept = larger.capacity
        for key, x in self.entries.items():
            shape = (len(x), *larger.inputs[key].shape[1:])
            self.entries = {**self.entries, key: np.zeros(shape, x.dtype)}
            old = self._columns(key, x, -self._prefix, self.position)
            self._columns(key, self.entries[key], -self._prefix, self.position)[...] = old
        self._shared = False

    def _columns(self, key: str, x: np.ndarray, start: int, end: int) -> np.ndarray:
        """A view of the columns of tokens; those of the prefix are -P to -1."""
        return x[_at(self._axes[key], self._prefix + start, self._prefix + end)]


def _remember(
    kept: dict[int, dict[str, np.ndarray]], position: int, states: dict[str, np.ndarray], most: int
) -> None:
    """Keeps the states at a position, and forgets those that were kept first, except at 0."""
    if not states:
        return
    kept.pop(position, None)
    kept[position] = states
    for x in [x for x in kept if x][:-most]:
        del kept[x]


def _at(axis: int, start: int, end: int) -> tuple[slice, ...]:
    """The index of columns along an axis."""
    return (*(slice(None),) * axis, slice(start, end))


class _Loaded:
    """The buffers of a signature, and the number of tokens whose columns are up to date.

    That number is negative as long as the columns of a prefix are missing. `version` is that of the
    buffers that it counts for.
    """

    def __init__(self, name: str, buffers: Buffers | CompiledSignature | None, columns: int):
        self.name, self.buffers, self.columns = name, buffers, columns
        self.version = -1
