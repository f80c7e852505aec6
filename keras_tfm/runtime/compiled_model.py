"""A file in LiteRT's `CompiledModel`, whose signatures share their packed weights and KV caches.

XNNPACK copies each weight matrix into the order that its kernels read: once for each signature,
unless it is given a cache of packed weights. In Python only `CompiledModel` takes one, since
`Interpreter` creates its delegate itself, without options.
"""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_tfm.runtime.litert_internals import as_value_errors, host_memory
from keras_tfm.runtime.manifest.manifest import Input, Signature, Tensor
from keras_tfm.runtime.manifest.storage import import_litert
from keras_tfm.runtime.memory import drop_pages, return_freed_memory

# The dtypes that LiteRT's TensorBuffer supports.
DTYPES = ("float32", "float16", "int32", "int8", "uint8", "bool")
# The path by which XNNPACK's delegate knows a cache in memory, which ends with the model.
IN_MEMORY = ":memory"
# The number of freed bytes after which memory is returned to the system, which takes a millisecond.
_RETURNED = 4 << 20


class CompiledSignature:
    """A signature as a function of arrays by name; it has the interface of `Buffers`, too.

    Its buffers are created at the first use: the caches of a length that is never reached take no
    memory.

    Attributes:
        version: int, another number after the buffers of `inputs` were replaced.
    """

    def __init__(self, model: Any, name: str, signature: Signature, caches: "_Caches"):
        """`caches`: the buffers of KV caches, which all signatures of the model use."""
        self._model, self._name, self._signature, self._caches = model, name, signature, caches
        self._has_run, self.version = False, 0
        caches.users.append(self)

    @functools.cached_property
    def _input_arrays(self) -> dict[str, "_Array"]:
        return {key: self._input(key, x) for key, x in self._signature.inputs.items()}

    def _input(self, key: str, x: Input) -> "_Array":
        place, arrays = _place(key, x), self._caches.arrays
        if place in arrays:
            return arrays[place]
        result = self._create(key, x)
        if x.kind == "cache":
            arrays[place] = result
        return result

    def take_over_caches(self, copy: Callable[[str, np.ndarray], None]) -> None:
        """Frees the KV caches of other lengths, each as soon as the new one of its name is filled.

        So never more than one entry is in memory twice. The others are created again at their next
        use. Arrays of `inputs` that somebody holds stay valid, and are no inputs any more.

        Args:
            copy: function of the name of a cache and its array, which writes to the array.
        """
        own, arrays = self._cache_places(), self._caches.arrays
        others = {x for x in arrays if x[0] in own and x != own[x[0]]}
        for user in self._caches.users:
            if others.intersection(user._cache_places().values()):
                user._forget_buffers()
        freed = 0
        for key in own:
            copy(key, self._input(key, self._signature.inputs[key]).array)
            for place in [x for x in others if x[0] == key]:
                freed += arrays.pop(place).array.nbytes
            if freed >= _RETURNED:
                return_freed_memory()
                freed = 0
        if others:
            return_freed_memory()
            if self._caches.file is not None:
                # Each row of an embedding that was looked up is in memory with the pages around it.
                drop_pages(self._caches.file)

    def _forget_buffers(self) -> None:
        """Drops the buffers, except those of `__call__`; the next use creates them again."""
        self.version += 1
        for name in ("inputs", "_input_arrays", "_output_arrays"):
            vars(self).pop(name, None)

    def _cache_places(self) -> dict[str, Any]:
        inputs = self._signature.inputs
        return {key: _place(key, x) for key, x in inputs.items() if x.kind == "cache"}

    @functools.cached_property
    def _copied_inputs(self) -> dict[str, "_Array"]:
        """Those of `__call__`, which leaves the caches of the steps as they are."""
        return {key: self._create(key, x) for key, x in self._signature.inputs.items()}

    @functools.cached_property
    def _output_arrays(self) -> dict[str, "_Array"]:
        create = functools.partial(self._model.create_output_buffer_by_name, self._name)
        return {key: _Array(create(key), x) for key, x in self._signature.outputs.items()}

    @functools.cached_property
    def inputs(self) -> dict[str, np.ndarray]:
        """The inputs by name. Writing to an array sets the input of the next `run`."""
        return {key: x.array for key, x in self._input_arrays.items()}

    def run(self) -> dict[str, np.ndarray]:
        """Runs the signature. The outputs by name, valid until the next run."""
        return self._run(self._input_arrays)

    def __call__(self, **arrays: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs by name, as copies."""
        for key, array in arrays.items():
            self._copied_inputs[key].array[...] = array
        return {key: np.array(x) for key, x in self._run(self._copied_inputs).items()}

    def _create(self, key: str, x: Input) -> "_Array":
        return _Array(self._model.create_input_buffer_by_name(self._name, key), x)

    def _run(self, given: dict[str, "_Array"]) -> dict[str, np.ndarray]:
        for x in given.values():
            x.write()
        inputs = {key: x.buffer for key, x in given.items()}
        outputs = {key: x.buffer for key, x in self._output_arrays.items()}
        with as_value_errors():
            self._model.run_by_name(self._name, inputs, outputs)
        if not self._has_run:  # LiteRT has planned its memory, and freed what that took
            self._has_run = True
            return_freed_memory()
        for x in self._output_arrays.values():
            x.read()
        return {key: x.array for key, x in self._output_arrays.items()}


class _Caches:
    """The buffers of KV caches by name, shape and dtype, and the signatures that use them.

    `file`: the file of the model; None: it is in memory.
    """

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.arrays: dict[Any, _Array] = {}
        self.users: list[CompiledSignature] = []


def _place(key: str, x: Input) -> tuple[str, tuple[int, ...], str]:
    return key, tuple(x.shape), x.dtype


class _Array:
    """A buffer of LiteRT and its memory as an array, or a copy where LiteRT does not give it."""

    def __init__(self, buffer: Any, tensor: Tensor):
        self.buffer, dtype = buffer, np.dtype(tensor.dtype)
        found = host_memory(buffer, int(np.prod(tensor.shape, dtype=int)) * dtype.itemsize)
        self._copies = found is None
        if found is None:
            self.array = np.zeros(tensor.shape, dtype)
        else:
            self.array = np.frombuffer(found, dtype).reshape(tensor.shape)

    def write(self) -> None:
        """Before a run, of an input."""
        if self._copies:
            self.buffer.write(self.array)

    def read(self) -> None:
        """After a run, of an output."""
        if self._copies:
            flat = self.buffer.read(self.array.size, self.array.dtype)
            self.array[...] = flat.reshape(self.array.shape)


def unsupported_dtype(signatures: Mapping[str, Signature]) -> tuple[str, str, str] | None:
    """The signature, tensor and dtype that `CompiledModel` cannot pass; None if there is none."""
    for name, signature in signatures.items():
        for key, x in [*signature.inputs.items(), *signature.outputs.items()]:
            if x.dtype not in DTYPES:
                return name, key, x.dtype
    return None


def compile_file(source: Path | bytes, threads: int, cache: Path | str | None) -> Any:
    """LiteRT's `CompiledModel` of a file, with a cache of packed weights: a file or `IN_MEMORY`."""
    options = import_litert("options")
    cpu = options.CpuOptions(
        num_threads=threads, xnnpack_weight_cache_path="" if cache is None else str(cache)
    )
    kind = import_litert("compiled_model").CompiledModel
    given = {"environment": _environment(), "options": options.Options(cpu_options=cpu)}
    if isinstance(source, bytes):
        return kind.from_buffer(source, **given)
    model = kind.from_file(str(source), **given)
    drop_pages(source)  # XNNPACK reads its packed copies of the matrices from now on
    return model


def signatures_of(
    model: Any, signatures: Mapping[str, Signature], source: Path | bytes
) -> dict[str, CompiledSignature]:
    """The signatures of the compiled model of a file, by name; they share buffers of KV caches."""
    caches = _Caches(source if isinstance(source, Path) else None)
    return {name: CompiledSignature(model, name, x, caches) for name, x in signatures.items()}


@functools.cache
def _environment() -> Any:
    """LiteRT's environment, shared by all models: creating one loads accelerator libraries."""
    return import_litert("environment").Environment.create()
