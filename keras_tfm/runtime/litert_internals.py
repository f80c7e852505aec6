"""Every private name of LiteRT and flatbuffers that keras_tfm uses.

Tested with ai-edge-litert 2.3; pyproject.toml excludes 2.4 until it is tested. Each function has a
test in tests/runtime/test_litert_internals.py, which fails when a name moves.
"""

import ctypes
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

# LiteRT's generated classes are untyped: an object or a table of a flatbuffer.
Table = Any


@contextmanager
def as_value_errors() -> Iterator[None]:
    """Turns LiteRT's errors while it runs, of an id outside a table for instance, into ValueErrors.

    >>> from keras_tfm.runtime.litert_internals import as_value_errors
    >>> with as_value_errors():
    ...     raise RuntimeError("gather index out of bounds")
    Traceback (most recent call last):
    ValueError: LiteRT cannot run the file on these inputs: gather index out of bounds
    """
    try:
        yield
    except RuntimeError as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise ValueError(f"LiteRT cannot run the file on these inputs: {reason[:200]}") from None


class Buffers:
    """A signature's inputs and outputs as arrays in LiteRT's own memory.

    The public signature runner copies every input and output, KV caches included, at each call.

    Attributes:
        inputs: mapping of the inputs by name. Writing to an array sets the input of the next `run`,
            after which the array may be freed memory: look it up again.
        version: int, as of `CompiledSignature`; these buffers are never replaced.
    """

    version = 0

    def __init__(self, runner: Any):
        """`runner`: as `Interpreter.get_signature_runner` returns it."""
        self._wrapper, self._subgraph = runner._interpreter_wrapper, runner._subgraph_index
        self._wrapper.AllocateTensors(self._subgraph)
        self.inputs = _Arrays(self._wrapper, self._subgraph, runner._inputs)
        self._outputs = _Arrays(self._wrapper, self._subgraph, runner._outputs)

    def run(self) -> dict[str, np.ndarray]:
        """Runs the signature. The outputs by name, valid until the next run."""
        with as_value_errors():
            self._wrapper.Invoke(self._subgraph)
        return dict(self._outputs)


class _Arrays(Mapping[str, np.ndarray]):
    """Tensors by name, each looked up when it is read, which takes a microsecond.

    A run that finds the sizes of tensors only on its way, as in a loop of a recurrent layer, moves
    all others.
    """

    def __init__(self, wrapper: Any, subgraph: int, indices: Mapping[str, int]):
        self._wrapper, self._subgraph, self._indices = wrapper, subgraph, dict(indices)

    def __getitem__(self, name: str) -> np.ndarray:
        wrapper, index = self._wrapper, self._indices[name]
        array: np.ndarray = wrapper.tensor(wrapper, index, self._subgraph)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)


def host_memory(buffer: Any, size: int) -> memoryview | None:
    """The `size` bytes of a `TensorBuffer` of `CompiledModel`, without a copy.

    The public methods copy the whole of a buffer, a KV cache for instance. None where LiteRT does
    not give the address: a buffer that is not in host memory, or LiteRT without the function.
    """
    function = _host_memory_function()
    if function is None:
        return None
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = ctypes.c_void_p()
    status = function(pointer(buffer.capsule, name(buffer.capsule)), ctypes.byref(address))
    if status or not address.value:
        return None
    memory: Any = (ctypes.c_char * size).from_address(address.value)
    memory.owner = buffer  # as long as an array of this memory lives, so does the buffer
    return memoryview(memory)


@functools.cache
def _host_memory_function() -> Any:
    """LiteRT's C function from a buffer to its address; None if it is missing."""
    package = importlib.util.find_spec("ai_edge_litert")
    if package is None or package.origin is None:
        return None
    for path in Path(package.origin).parent.glob("*LiteRt.*"):
        try:
            function = ctypes.CDLL(str(path)).LiteRtGetTensorBufferHostMemory
        except (AttributeError, OSError):
            continue
        function.restype = ctypes.c_int
        function.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]
        return function
    return None


def nodes(interpreter: Any) -> list[dict[str, Any]]:
    """The nodes of the main subgraph: "index", "op_name", "inputs" and "outputs".

    Delegated nodes stay in the list, beside one node "DELEGATE" for each partition. LiteRT has no
    public function that lists the delegated nodes.
    """
    details: list[dict[str, Any]] = interpreter._get_ops_details()
    return details


def table_position(table: Table) -> int:
    """The offset of a flatbuffer table in its buffer."""
    return int(table._tab.Pos)


def field_position(table: Table, field: int) -> int:
    """The offset in the buffer of a scalar field, by its number in the schema; 0 if absent."""
    slot = int(table._tab.Offset(4 + 2 * field))
    return table_position(table) + slot if slot else 0
