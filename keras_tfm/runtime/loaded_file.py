"""A loaded file: runs its signatures with LiteRT, one call at a time. Tasks are built on it."""

import copy
import functools
import hashlib
import mmap
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from keras_tfm.runtime import adapters
from keras_tfm.runtime.checked_inputs import Inputs, Values, filled_batch, fit, longest_row
from keras_tfm.runtime.compiled_model import (
    IN_MEMORY,
    CompiledSignature,
    compile_file,
    signatures_of,
    unsupported_dtype,
)
from keras_tfm.runtime.huge_pages import memory_file, packed_weights_in_huge_pages
from keras_tfm.runtime.litert_internals import Buffers, as_value_errors
from keras_tfm.runtime.manifest import storage
from keras_tfm.runtime.manifest.manifest import (
    NUMBERS,
    AnySignature,
    Generate,
    Predict,
    Signature,
    of_role,
)
from keras_tfm.runtime.memory import return_freed_memory
from keras_tfm.runtime.tokenizers.tokenizer import Tokenizer
from keras_tfm.runtime.tokenizers.tokenizer import read as read_tokenizer
from keras_tfm.runtime.weight_cache import cached_runners

# A signature as a function of its inputs by name.
Runner = Callable[..., dict[str, np.ndarray]]
# From this size on, signatures share their packed weights. Below, `CompiledModel` gains little and
# writes some twenty lines to standard error.
SHARED_BYTES = 32 << 20
# More than the cores of any processor. XNNPACK creates all threads; a million end the process.
MAX_THREADS = 1024


class LoadedFile:
    """A file in LiteRT's memory; runs signatures on checked inputs, in chunks of the batch size.

    Args:
        file, threads, weight_cache, adapter: as in `runtime.load`.
        xnnpack: bool, whether XNNPACK runs the file, with copies of the weights in the order that
            its kernels read. Otherwise LiteRT's own, slower kernels read them where they are.

    Attributes:
        source: Path, absolute, or bytes: the file.
        path: Path, its name in messages.
        manifest: `Manifest`, of one model if this is a part of a file of several.
        signatures: dict of `Signature` by name.
        threads, xnnpack: the arguments.
        checksum: str, that of the file and its adapter.
        lock: held while a signature runs. LiteRT's interpreter is one set of buffers, so two
            threads would mix their results. Reentrant: a callback that chooses a token may run
            the same model.
    """

    def __init__(
        self,
        file: storage.File,
        threads: int = 1,
        weight_cache: str | Path | None = None,
        adapter: str | Path | None = None,
        xnnpack: bool = True,
    ):
        if isinstance(threads, bool) or not isinstance(threads, (int, np.integer)):
            raise TypeError(f"threads must be an integer of at least 1, got {threads!r}")
        if not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"threads must be in 1..{MAX_THREADS}, got {threads}")
        threads, (self.source, name) = int(threads), storage.source_of(file)
        # A pickle is read where another folder may be the current one.
        paths = [x and Path(x).absolute() for x in (weight_cache, adapter)]
        self._arguments = (self.source, threads, *paths, xnnpack)
        self.path = self.source if isinstance(self.source, Path) else name
        self.manifest = storage.read(self.source, name)
        self.signatures = self.manifest.signatures
        self.threads, self.xnnpack = threads, xnnpack
        self.checksum = self.manifest.sha256
        self._adapter = None
        if adapter is not None:
            self._adapter = adapters.read(adapter, self.path, self.manifest.adapters)
        source = storage.loadable(self.source)
        if self._adapter is not None:
            source = self.content()
            both = self.checksum + self._adapter.checksum
            self.checksum = hashlib.sha256(both.encode()).hexdigest()
        if weight_cache is not None:
            runners: Mapping[str, Runner] = cached_runners(
                source, self.signatures, self.checksum, threads, weight_cache
            )
        else:
            runners = load_signatures(source, threads, self.signatures, xnnpack)
        self._memory = _Memory(runners, source)
        self.lock = threading.RLock()
        self._part_of: tuple[LoadedFile, str] | None = None

    @functools.cached_property
    def models(self) -> dict[str, "LoadedFile"]:
        """The models of a file of several; they share LiteRT's memory and the lock."""
        return {name: self.part(name) for name in self.manifest.models}

    def part(self, name: str) -> "LoadedFile":
        """One model of a file of several."""
        result = copy.copy(self)
        for key in ("models", "tokenizers"):
            vars(result).pop(key, None)  # cached, of the whole file
        result.manifest, result._part_of = self.manifest.part(name), (self, name)
        result.signatures = result.manifest.signatures
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds the path, or the bytes, and loads the file again.

        Its `checksum` tells whether another file is there by then.
        """
        _ = self.runners  # raises if the file was closed
        if self._part_of is not None:
            return LoadedFile.part, self._part_of
        return _load_again, (self.checksum, *self._arguments)

    def content(self) -> bytes:
        """The bytes of the file, with the adapter."""
        content = storage.read_content(self.source)
        if self._adapter is None or self.manifest.adapters is None:
            return content
        return adapters.patch(content, self.manifest.adapters, self._adapter)

    def map_content(self) -> bytes | mmap.mmap:
        """`content`, in memory only as far as it is read, if the file has no adapter."""
        return storage.map_content(self.source) if self._adapter is None else self.content()

    def close(self) -> None:
        """Releases LiteRT's memory; later runs raise a ValueError. A second call does nothing."""
        with self.lock:
            self._memory.runners = self._memory.source = None

    @property
    def runners(self) -> Mapping[str, Runner]:
        """The signatures as functions of arrays.

        Raises:
            ValueError: the file was closed.
        """
        if self._memory.runners is None:
            raise ValueError(f"{self.path}: the model was closed")
        return self._memory.runners

    @functools.cached_property
    def tokenizers(self) -> dict[str, Tokenizer]:
        """The tokenizers in the file, by input."""
        entries, options = self.manifest.tokenizers, self.manifest.tokenizer_options
        contents = storage.read_entries(self.source, self.manifest.sha256, entries.values())
        read = {x: read_tokenizer(x, content, options.get(x)) for x, content in contents.items()}
        return {name: read[entry] for name, entry in entries.items()}

    def run(self, name: str, inputs: Inputs) -> dict[str, np.ndarray]:
        """The outputs of signature `name`, by name, for any number of rows."""
        if name not in self.signatures:
            raise ValueError(
                f"{self.path} has no signature {name!r}, it has {list(self.signatures)}"
            )
        signature = self.signatures[name]
        expected = signature.inputs
        if not isinstance(inputs, Mapping):
            inputs = {next(iter(expected)): inputs}
        if set(inputs) != set(expected):
            raise ValueError(f"{name} takes the inputs {list(expected)}, got {list(inputs)}")
        arrays = {key: fit(key, inputs[key], expected[key]) for key in expected}
        if isinstance(signature, Generate):
            for key, array in arrays.items():
                # The loop would write padding.
                if array.dtype.kind == "f" and np.isnan(array).any():
                    raise ValueError(f"{key} must be numbers, got NaN")
        # All rows of a step share one position, and all those of a prefill one count.
        shared = [name for kind in NUMBERS for name in signature.of_kind(kind)]
        lengths = {key: len(x) for key, x in arrays.items() if key not in shared}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"all inputs must have the same number of rows, got {lengths}")
        first, rows = next(iter(lengths.items()))
        batch = expected[first].shape[0]
        if rows == 0:
            raise ValueError("got no rows")
        whole = [key for key, x in signature.outputs.items() if list(x.shape[:1]) != [batch]]
        if isinstance(signature, Predict) and whole:
            if rows != batch:
                raise ValueError(
                    f"{name} takes {batch} rows at once, got {rows}: its output {whole[0]!r} of "
                    f"shape {tuple(signature.outputs[whole[0]].shape)} has no axis of rows"
                )
            with self.lock:
                return self._call(name, arrays)
        results = []
        for start in range(0, rows, batch):
            chunk = {key: arrays[key][start : start + batch] for key in lengths}
            full = {**arrays, **{key: filled_batch(array, batch) for key, array in chunk.items()}}
            with self.lock:
                if "logits" in signature.outputs and shared:
                    self.take_caches(None)  # this run overwrites the caches of a stream
                results.append(self._call(name, full))
        return {key: np.concatenate([r[key] for r in results])[:rows] for key in results[0]}

    def predict(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """The outputs of one full pass, by name, from the shortest signature that fits."""
        return self.run(*self.choose(Predict, inputs))

    def _call(self, name: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if "self" not in arrays:
            with as_value_errors():
                return self.runners[name](**arrays)
        buffers = self.buffers(name)  # LiteRT's runner cannot take a keyword `self`
        for key, array in arrays.items():
            buffers.inputs[key][...] = array
        return {key: np.array(x) for key, x in buffers.run().items()}

    def check_single(self) -> None:
        """Raises a ValueError if the file holds several models, of which none was chosen."""
        models = list(dict.fromkeys(x.model for x in self.signatures.values()))
        if len(models) > 1:
            raise ValueError(
                f"{self.path} holds the models {models}: choose one, such as "
                f"runtime.load(path).models[{models[0]!r}]"
            )

    def of_role(self, role: type[AnySignature]) -> dict[str, AnySignature]:
        """The signatures of a role, such as `Decode`, shortest first; at least one."""
        self.check_single()
        found = of_role(self.signatures, role)
        if not found:
            raise ValueError(
                f"{self.path} has no signature {role.role!r}, it has {list(self.signatures)}"
            )
        return found

    def choose(self, role: type[Signature], inputs: Inputs) -> tuple[str, Mapping[str, Values]]:
        """The shortest signature of a role that `inputs` fit, and the inputs by name."""
        found = self.of_role(role)
        if not isinstance(inputs, Mapping):
            first, names = next(iter(found)), list(next(iter(found.values())).inputs)
            if role is Predict and len(names) > 1:
                raise ValueError(
                    f"{first} takes the inputs {names}: give a dictionary of them, "
                    f"got {type(inputs).__name__}"
                )
            inputs = {names[0]: inputs}
        for name, signature in found.items():
            expected = signature.inputs
            if all(
                longest_row(x) <= expected[key].shape[1]
                for key, x in inputs.items()
                if key in expected and (expected[key].is_ids or expected[key].is_audio)
            ):
                return name, inputs
        return list(found)[-1], inputs

    def take_caches(self, user: "CacheUser | None") -> None:
        """Makes `user` the only one whose KV caches are in LiteRT's buffers.

        The one before is told to leave. Call it with `lock` held.
        """
        before = self._memory.cache_user()
        if before is not None and before is not user:
            before.release()
        self._memory.cache_user = (lambda: None) if user is None else weakref.ref(user)

    def has_caches(self, user: "CacheUser") -> bool:
        """Whether `user` was the last to take the caches."""
        return self._memory.cache_user() is user

    def buffers(self, name: str) -> Buffers | CompiledSignature:
        """The arguments of a signature as arrays that keep their values between runs."""
        runner = self.runners[name]
        return runner if isinstance(runner, CompiledSignature) else Buffers(runner)


class CacheUser(Protocol):
    """Something that reads and writes KV caches in LiteRT's buffers over several calls."""

    def release(self) -> None:
        """Copies what is needed from LiteRT's buffers, which another user will overwrite."""


class _Memory:
    """What the models of a file share.

    Attributes:
        runners: the functions of the signatures; None after `close`.
        source: the file, or its bytes, which LiteRT reads; None after `close`.
        cache_user: weak reference to the object whose KV caches are in LiteRT's buffers.
    """

    def __init__(self, runners: Mapping[str, Runner], source: Path | bytes):
        self.runners: Mapping[str, Runner] | None = runners
        self.source: Path | bytes | None = source
        self.cache_user: Callable[[], CacheUser | None] = lambda: None


def load_signatures(
    source: Path | bytes, threads: int, signatures: Mapping[str, Signature], xnnpack: bool = True
) -> Mapping[str, Runner]:
    """The signatures of a .tflite file as functions; arguments as of `LoadedFile`."""
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    if xnnpack and size >= SHARED_BYTES and unsupported_dtype(signatures) is None:
        with memory_file() as cache, packed_weights_in_huge_pages():
            if cache is not None:
                # XNNPACK packs each weight in a buffer as large as the largest of them, which it
                # keeps as long as the model lives. A model that finds all packed has no buffer.
                compile_file(source, threads, cache)
            model = compile_file(source, threads, cache or IN_MEMORY)
        return_freed_memory()
        return signatures_of(model, signatures, source)
    given = {"model_content": source} if isinstance(source, bytes) else {"model_path": str(source)}
    module = storage.import_litert("interpreter")
    kinds = module.OpResolverType
    kernels = kinds.AUTO if xnnpack else kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = module.Interpreter(
        **given, num_threads=threads, experimental_op_resolver_type=kernels
    )
    interpreter.allocate_tensors()  # otherwise the first run logs the delegate
    return {name: interpreter.get_signature_runner(name) for name in signatures}


def _load_again(checksum: str, *arguments: Any) -> LoadedFile:
    """What a pickle holds; raises a ValueError if the file or its adapter is another one by now."""
    file = LoadedFile(*arguments)
    if file.checksum != checksum:
        raise ValueError(
            f"{file.path}, or its adapter, was replaced by another file after it had been loaded: "
            "load it again before pickling"
        )
    return file
