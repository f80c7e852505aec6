"""Runs the signatures of one file with LiteRT, one call at a time."""

import copy
import hashlib
import threading
from pathlib import Path
from typing import Any

import numpy as np

from keras_tfm.runtime import adapters
from keras_tfm.runtime.checked_inputs import filled_batch, fit, is_ids, longest_row
from keras_tfm.runtime.decoding.host_loop import CopiedBuffers
from keras_tfm.runtime.litert_internals import Buffers, as_value_errors
from keras_tfm.runtime.manifest import storage as manifests
from keras_tfm.runtime.manifest.fields import by_length, of_kind
from keras_tfm.runtime.weight_cache import Runner, cached_runners

# More than the cores of any processor. XNNPACK creates all threads; a million end the process.
MAX_THREADS = 1024


class SignatureRunner:
    """Loads a file and runs its signatures on checked inputs, in chunks of the exported batch.

    Attributes:
        file: Path, absolute, or bytes: the file.
        path: Path, its name in messages.
        manifest: dict, the manifest of the file: signatures, quantization, versions.
        signatures: dict by name: the inputs and outputs with their shapes and dtypes.
        checksum: str, that of the file and its adapter.
        lock: held while a signature runs. LiteRT's interpreter is one set of buffers, so two
            threads would mix their results. Reentrant: a callback that chooses a token may run
            the same model.
        cache_user: the number of the stream that may use the caches of "decode". A new stream, or a
            run of "decode", takes the next number, and earlier streams stop with an error.
    """

    def __init__(
        self,
        file: manifests.File,
        threads: int,
        weight_cache: str | Path | None,
        adapter: str | Path | None = None,
    ):
        if isinstance(threads, bool) or not isinstance(threads, (int, np.integer)):
            raise TypeError(f"threads must be an integer of at least 1, got {threads!r}")
        if not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"threads must be in 1..{MAX_THREADS}, got {threads}")
        threads, (self.file, name) = int(threads), manifests.source_of(file)
        self.path = self.file if isinstance(self.file, Path) else name
        self.stored = manifests.read(self.file, name)
        self.manifest = self.stored.to_json()
        self.signatures: dict[str, dict[str, Any]] = self.manifest["signatures"]
        self.checksum: str = self.manifest["sha256"]
        self._adapter = None
        if adapter is not None:
            self._adapter = adapters.read(adapter, self.path, self.manifest)
        source = self.file
        if self._adapter is not None:
            source = self.content()
            both = self.checksum + self._adapter.checksum
            self.checksum = hashlib.sha256(both.encode()).hexdigest()
        if weight_cache is None:
            self._runners: dict[str, Runner] | None = self._interpreted(source, threads)
        else:
            self._runners = cached_runners(
                source, self.signatures, self.checksum, threads, weight_cache
            )
        self._source: Path | bytes | None = source  # LiteRT does not copy bytes
        self._copies = weight_cache is not None
        self.lock = threading.RLock()
        self.cache_user = 0
        self._whole: SignatureRunner | None = None

    def part(self, name: str) -> "SignatureRunner":
        """The runner of one model in a file of several; both share LiteRT's memory and the lock."""
        result = copy.copy(self)
        result.signatures = {key: x for key, x in self.signatures.items() if x.get("model") == name}
        result._whole = self
        return result

    def content(self) -> bytes:
        """The bytes of the file, with the adapter."""
        if self._adapter is None:
            return manifests.read_content(self.file)
        return adapters.patched(manifests.read_content(self.file), self.manifest, self._adapter)

    def _interpreted(self, source: Path | bytes, threads: int) -> dict[str, Runner]:
        given = (
            {"model_content": source} if isinstance(source, bytes) else {"model_path": str(source)}
        )
        interpreter = manifests.import_litert("interpreter").Interpreter(
            **given, num_threads=threads
        )
        interpreter.allocate_tensors()  # otherwise the first run logs the delegate
        return {name: interpreter.get_signature_runner(name) for name in self.signatures}

    def close(self) -> None:
        """Releases LiteRT's memory; later runs raise a ValueError. A second call does nothing."""
        if self._whole is not None:
            self._whole.close()
        with self.lock:
            self._runners = self._source = None

    @property
    def runners(self) -> dict[str, Runner]:
        """The signatures as functions of arrays.

        Raises:
            ValueError: the model was closed.
        """
        runners = self._runners if self._whole is None else self._whole._runners
        if runners is None:
            raise ValueError(f"{self.path}: the model was closed")
        return runners

    def run(self, name: str, inputs: Any) -> dict[str, np.ndarray]:
        """The outputs of signature `name`, by name, for any number of rows."""
        if name not in self.signatures:
            raise ValueError(
                f"{self.path} has no signature {name!r}, it has {list(self.signatures)}"
            )
        expected = self.signatures[name]["inputs"]
        if not isinstance(inputs, dict):
            inputs = {next(iter(expected)): inputs}
        if set(inputs) != set(expected):
            raise ValueError(f"{name} takes the inputs {list(expected)}, got {list(inputs)}")
        arrays = {key: fit(key, inputs[key], expected[key]) for key in expected}
        # All rows of a step share one position.
        shared = of_kind(self.signatures[name], "position")
        lengths = {key: len(x) for key, x in arrays.items() if key not in shared}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"all inputs must have the same number of rows, got {lengths}")
        first, rows = next(iter(lengths.items()))
        batch = expected[first]["shape"][0]
        if rows == 0:
            raise ValueError("got no rows")
        results = []
        for start in range(0, rows, batch):
            chunk = {key: arrays[key][start : start + batch] for key in lengths}
            full = {**arrays, **{key: filled_batch(array, batch) for key, array in chunk.items()}}
            with self.lock:
                if "logits" in self.signatures[name]["outputs"] and shared:
                    self.cache_user += 1  # this run overwrites the caches of a stream
                results.append(self._call(name, full))
        return {key: np.concatenate([r[key] for r in results])[:rows] for key in results[0]}

    def _call(self, name: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if "self" not in arrays:
            with as_value_errors():
                return self.runners[name](**arrays)
        buffers = self.buffers(name)  # LiteRT's runner cannot take a keyword `self`
        for key, array in arrays.items():
            buffers.inputs[key][...] = array
        return {key: np.array(x) for key, x in buffers.run().items()}

    def names(self, role: str) -> list[str]:
        """The signatures of a role, shortest first; at least one."""
        check_one(self.path, self.signatures)
        names = by_length(self.signatures, role)
        if not names:
            raise ValueError(
                f"{self.path} has no signature {role!r}, it has {list(self.signatures)}"
            )
        return names

    def choose(self, role: str, inputs: Any) -> tuple[str, Any]:
        """The shortest signature of a role that `inputs` fit, and the inputs by name."""
        names = self.names(role)
        if not isinstance(inputs, dict):
            inputs = {next(iter(self.signatures[names[0]]["inputs"])): inputs}
        for name in names:
            expected = self.signatures[name]["inputs"]
            if all(
                longest_row(x) <= expected[key]["shape"][1]
                for key, x in inputs.items()
                if key in expected and is_ids(expected[key])
            ):
                return name, inputs
        return names[-1], inputs

    def buffers(self, name: str) -> Any:
        """The arguments of a signature as arrays that keep their values between runs."""
        runner = self.runners[name]
        if self._copies:
            return CopiedBuffers(runner, self.signatures[name])
        return Buffers(runner)


def check_one(path: str | Path, signatures: dict[str, dict[str, Any]]) -> None:
    """Raises a ValueError if the signatures belong to several models of a file.

    >>> from keras_tfm.runtime.signature_runner import check_one
    >>> check_one("two.tflite", {"image": {"model": "image"}, "text": {"model": "text"}})
    Traceback (most recent call last):
    ValueError: two.tflite holds the models ['image', 'text']: choose one, such as \
runtime.load(path).models['image']
    """
    models = list(dict.fromkeys(x.get("model") for x in signatures.values()))
    if len(models) > 1:
        raise ValueError(
            f"{path} holds the models {models}: choose one, such as "
            f"runtime.load(path).models[{models[0]!r}]"
        )
