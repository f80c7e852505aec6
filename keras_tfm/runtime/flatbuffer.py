"""Reads and writes a .tflite file as objects: weights, the operators that use them, metadata."""

import hashlib
import io
import itertools
import json
import mmap
import os
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple

import numpy as np

from keras_tfm.runtime.litert_internals import Table, field_position
from keras_tfm.runtime.manifest.manifest import Manifest
from keras_tfm.runtime.manifest.storage import IDENTIFIER, METADATA_NAME, NO_CHECKSUM, import_litert

# Equal vectors and constants of up to this many bytes are stored once.
_LONG = 1 << 20
# `without_weights` replaces constants of more bytes. Sizes, axes and scalars have fewer.
_SMALL = 1 << 16
# The largest size of the constants in a flatbuffer, in bytes: 2 GiB less 256 MiB for the graphs.
_LARGEST = (1 << 31) - (1 << 28)
_ALIGNMENT = 16
# The numbers of the fields of Buffer in LiteRT's schema.fbs.
_DATA, _OFFSET = 0, 1
# In the place of a constant that follows the packed tables.
_PLACEHOLDER = np.zeros(1, np.uint8)
# The metadata entry by which the converter marks a file with constants behind the flatbuffer.
_BUFFER_LOCATION, _OUTSIDE = b"buffer_location", b"outside flatbuffers"

Content = bytes | bytearray | memoryview | mmap.mmap

# The weight input of each operator that quantization presets apply to.
WEIGHT_INPUT = {
    "BATCH_MATMUL": 1,
    "CONV_2D": 1,
    "DEPTHWISE_CONV_2D": 1,
    "EMBEDDING_LOOKUP": 1,
    "FULLY_CONNECTED": 1,
    "GATHER": 0,
    "TRANSPOSE_CONV": 1,
}


class WeightUse(NamedTuple):
    """One operator that reads a constant weight, inside one subgraph."""

    graph: Table
    operator: Table
    name: str
    tensor: Table


class LazyBytes:
    """The bytes of a constant, computed in chunks whenever they are read.

    The data of a buffer, in the place of an array: a weight that is quantized while the file is
    written is never in memory as a whole.

    Args:
        nbytes: int, their number.
        chunks: function that returns arrays or bytes, `nbytes` bytes in all.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.runtime.flatbuffer import LazyBytes
    >>> lazy = LazyBytes(6, lambda: (np.full(1, x, "int16") for x in (1, 2, 3)))
    >>> len(lazy), np.asarray(lazy).view("int16").tolist()
    (6, [1, 2, 3])
    """

    def __init__(
        self, nbytes: int, chunks: Callable[[], Iterable[np.ndarray | bytes | memoryview]]
    ):
        self.nbytes, self._chunks = nbytes, chunks

    def __len__(self) -> int:
        """Their number."""
        return self.nbytes

    def chunks(self) -> Iterator[memoryview]:
        """The bytes, in chunks.

        Raises:
            ValueError: there are not `nbytes` bytes.
        """
        count = 0
        for chunk in self._chunks():
            if isinstance(chunk, np.ndarray):
                chunk = _raw(chunk).data
            view = memoryview(chunk).cast("B")
            count += len(view)
            yield view
        if count != self.nbytes:
            raise ValueError(f"expected a constant of {self.nbytes} bytes, got {count}")

    def __bytes__(self) -> bytes:
        """All bytes."""
        return b"".join(self.chunks())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All bytes as an array of uint8."""
        return np.frombuffer(bytes(self), np.uint8).astype(dtype or np.uint8, copy=False)


class _Constant(NamedTuple):
    """The bytes of a constant behind the packed tables, and their offset in the file."""

    number: int
    start: int
    data: Any


def read(content: Content) -> Table:
    """The file as mutable objects of the schema, for `write` and `save`.

    The data of its buffers are views of `content`.
    """
    schema = import_litert("schema_py_generated")
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
    for buffer in model.buffers:
        if buffer.offset > 1:  # behind the flatbuffer, as the converter writes files over 2 GB
            buffer.data = np.frombuffer(content, np.uint8, buffer.size, buffer.offset)
            buffer.offset = buffer.size = 0
    for graph in model.subgraphs:
        for operator in graph.operators:
            if operator.largeCustomOptionsOffset > 1:
                start, size = operator.largeCustomOptionsOffset, operator.largeCustomOptionsSize
                operator.customOptions = np.frombuffer(content, np.uint8, size, start)
                operator.largeCustomOptionsOffset = operator.largeCustomOptionsSize = 0
    model.metadata = [x for x in model.metadata or [] if x.name != _BUFFER_LOCATION]
    return model


def write(
    model: Table,
    manifest: Manifest | None = None,
    entries: Mapping[str, bytes] | None = None,
    arguments: Mapping[str, Mapping[str, str]] | None = None,
) -> bytes:
    """The bytes of the file that `save` writes."""
    file = io.BytesIO()
    _write(file, model, manifest, entries or {}, arguments or {})
    return file.getvalue()


def save(
    path: Path,
    model: Table,
    manifest: Manifest | None = None,
    entries: Mapping[str, bytes] | None = None,
    arguments: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Writes a file from `read`, one constant at a time, and flushes it to disk.

    Equal names and small vectors are stored once: every signature lists all weights again, with
    their names and, in int8, one scale and zero point per row. That is a tenth of a file with three
    signatures. Large constants and `LazyBytes` are stored once for each object.

    A flatbuffer holds at most 2 GB. In a larger file, it holds only graphs and metadata; the
    constants follow it, each at the `offset` of its buffer.

    Args:
        path: the file, which does not exist yet. After an error there is none.
        model: the file as objects; it stays as it is.
        manifest: `Manifest`, written to the metadata with the checksum of all other bytes; None:
            no manifest is added.
        entries: further metadata by name.
        arguments: new names of the arguments of signatures, by signature and current name.

    Raises:
        OSError: such as that of a full disk.
    """
    with path.open("xb") as file:
        try:
            _write(file, model, manifest, entries or {}, arguments or {})
            file.flush()
            os.fsync(file.fileno())
        except BaseException as error:
            path.unlink()
            if isinstance(error, OSError) and error.filename is None and error.errno is not None:
                raise OSError(error.errno, error.strerror, str(path)) from None
            raise


def without_weights(model: Table) -> bytes:
    """The bytes of a file whose large constants are other numbers, which share one place.

    For what depends on the graphs alone: LiteRT loads it, and it is about as large as one weight.
    """
    schema = import_litert("schema_py_generated")
    metadata = {entry.buffer for entry in model.metadata or []}
    large = {
        number: buffer.data
        for number, buffer in enumerate(model.buffers)
        if buffer.data is not None and len(buffer.data) > _SMALL and number not in metadata
    }
    if not large:
        return write(model)
    try:
        for number, data in large.items():
            buffer = model.buffers[number]
            buffer.data, buffer.offset, buffer.size = None, 2, len(data)
        content = bytearray(write(model))
    finally:
        for number, data in large.items():
            buffer = model.buffers[number]
            buffer.data, buffer.offset, buffer.size = data, 0, 0
    content += bytes(-len(content) % _ALIGNMENT)
    table = schema.Model.GetRootAsModel(content, 0)
    for number in large:
        place = field_position(table.Buffers(number), _OFFSET)
        struct.pack_into("<Q", content, place, len(content))
    file, size = io.BytesIO(), len(content) + max(map(len, large.values()))
    file.write(content)
    # XNNPACK wants positive scales; in float16 these are 1.
    chunk = np.full(1 << 19, 1.0, "float16").tobytes()
    while file.tell() < size:
        file.write(chunk[: size - file.tell()])
    return file.getvalue()


def tables(model: Table) -> bytes:
    """The file without the bytes of its constants, of which each buffer has the size."""
    return bytes(_lay_out(model, 0)[0])


def _write(
    file: IO[bytes],
    model: Table,
    manifest: Manifest | None,
    entries: Mapping[str, bytes],
    arguments: Mapping[str, Mapping[str, str]],
) -> None:
    added = {name.encode(): data for name, data in entries.items()}
    if manifest is not None:
        unsigned = replace(manifest, sha256=NO_CHECKSUM).to_json()
        added[METADATA_NAME] = json.dumps(unsigned, ensure_ascii=True).encode()
    with _rename(model, arguments), _add_metadata(model, added):
        packed, constants = _lay_out(model, _LARGEST)
        digest, end = hashlib.sha256(), 0
        for _, start, data in [_Constant(-1, 0, packed), *constants]:
            for chunk in itertools.chain([bytes(start - end)], _chunks(data)):
                digest.update(chunk)
                file.write(chunk)
            end = start + len(data)
        if manifest is not None:
            # The manifest is the last buffer that was added.
            last = len(model.buffers) - 1
            raw = added[METADATA_NAME].replace(NO_CHECKSUM.encode(), digest.hexdigest().encode())
            file.seek(next(x.start for x in constants if x.number == last))
            file.write(raw)


def _chunks(data: Any) -> Iterable[Any]:
    if isinstance(data, LazyBytes):
        return data.chunks()
    if isinstance(data, bytes | bytearray):
        return [data]
    return [np.ascontiguousarray(data, np.uint8).data]


def _lay_out(model: Table, largest: int) -> tuple[bytearray, list[_Constant]]:
    """The packed tables of a file, and the constants that follow them.

    Up to `largest` bytes, the constants are part of the flatbuffer: vectors, which tables may refer
    to wherever they are. More are behind it.
    """
    schema = import_litert("schema_py_generated")
    datas = [buffer.data for buffer in model.buffers]
    sizes = [0 if data is None else len(data) for data in datas]
    is_inside = sum(sizes) <= largest
    metadata = {entry.buffer for entry in model.metadata or []}
    # Metadata first: the offsets of vectors have 32 bits.
    numbers = sorted((x for x, size in enumerate(sizes) if size), key=lambda x: x not in metadata)
    behind = set() if is_inside else {*numbers} - metadata
    try:
        for number in numbers:
            buffer = model.buffers[number]
            if number in behind:  # the offsets 0 and 1 mean that a buffer is inside
                buffer.data, buffer.offset, buffer.size = None, 2, sizes[number]
            else:
                buffer.data = _PLACEHOLDER
        with _add_metadata(model, {} if is_inside else {_BUFFER_LOCATION: _OUTSIDE}):
            packed = _pack(model)
    finally:
        for number in numbers:
            buffer = model.buffers[number]
            buffer.data, buffer.offset, buffer.size = datas[number], 0, 0
    table = schema.Model.GetRootAsModel(packed, 0)
    constants: list[_Constant] = []
    starts: dict[object, int] = {}
    end = len(packed)
    for number in numbers:
        data, size = datas[number], sizes[number]
        key: object = id(data)
        if is_inside and size <= _LONG and not isinstance(data, LazyBytes):
            key = hashlib.sha256(bytes(data)).digest()
        # In a flatbuffer, the length of a vector precedes it.
        length = b"" if number in behind else struct.pack("<I", size)
        if (start := starts.get(key)) is None:
            start = end + len(length) + -(end + len(length)) % _ALIGNMENT
            starts[key], end = start, start + size
            constants += [_Constant(-1, start - 4, length)] if length else []
            constants.append(_Constant(number, start, data))
        if number in behind:
            place = field_position(table.Buffers(number), _OFFSET)
            struct.pack_into("<Q", packed, place, start)
        else:  # the distance of the vector from the field
            place = field_position(table.Buffers(number), _DATA)
            struct.pack_into("<I", packed, place, start - 4 - place)
    return packed, constants


def _pack(model: Table) -> bytearray:
    """The bytes of one flatbuffer."""
    import flatbuffers

    class Builder(flatbuffers.Builder):
        def __init__(self) -> None:
            super().__init__(1 << 20)
            self.written: dict[tuple[str, bytes], int] = {}

        def CreateString(self, s: Any, *arguments: Any) -> int:
            if s not in self.written:
                self.written[s] = super().CreateString(s, *arguments)
            return self.written[s]

        def CreateNumpyVector(self, x: np.ndarray) -> int:
            if x.nbytes > _LONG:  # a dictionary would keep it in memory
                return super().CreateNumpyVector(x)
            key = (x.dtype.str, x.tobytes())
            if key not in self.written:
                self.written[key] = super().CreateNumpyVector(x)
            return self.written[key]

    builder = Builder()
    builder.Finish(model.Pack(builder), file_identifier=IDENTIFIER)
    return bytearray(builder.Output())


@contextmanager
def _add_metadata(model: Table, added: Mapping[bytes, bytes]) -> Iterator[None]:
    """Adds metadata entries with their buffers, while the file is written."""
    schema = import_litert("schema_py_generated")
    metadata, count = model.metadata, len(model.buffers)
    model.metadata = list(metadata or [])
    for name, data in added.items():
        entry, buffer = schema.MetadataT(), schema.BufferT()
        entry.name, entry.buffer = name, len(model.buffers)
        buffer.data = np.frombuffer(data, np.uint8)
        model.buffers.append(buffer)
        model.metadata.append(entry)
    try:
        yield
    finally:
        model.metadata = metadata
        del model.buffers[count:]


@contextmanager
def _rename(model: Table, arguments: Mapping[str, Mapping[str, str]]) -> Iterator[None]:
    """Renames arguments of signatures while the file is written."""
    renamed = []
    for signature in model.signatureDefs or []:
        names = arguments.get(signature.signatureKey.decode(), {})
        for argument in signature.inputs:
            renamed.append((argument, argument.name))
            argument.name = names.get(argument.name.decode(), argument.name)
    try:
        yield
    finally:
        for argument, name in renamed:
            argument.name = name


def weight_uses(model: Table) -> Iterator[WeightUse]:
    """Every operator that reads a constant weight, in all subgraphs, including those of loops."""
    schema = import_litert("schema_py_generated")
    inputs = {getattr(schema.BuiltinOperator, name): name for name in WEIGHT_INPUT}
    for graph in model.subgraphs:
        for operator in graph.operators:
            code = model.operatorCodes[operator.opcodeIndex]
            name = inputs.get(max(code.builtinCode, code.deprecatedBuiltinCode))
            if name is None:
                continue
            tensor = graph.tensors[operator.inputs[WEIGHT_INPUT[name]]]
            if model.buffers[tensor.buffer].data is not None:
                yield WeightUse(graph, operator, name, tensor)


def called_subgraphs(operator: Table) -> dict[tuple[str, str], int]:
    """The subgraphs that an operator calls, as the body of a WHILE, by field and option."""
    return {
        (field, key): number
        for field in ("builtinOptions", "builtinOptions2")
        for key, number in getattr(getattr(operator, field), "__dict__", {}).items()
        if "subgraph" in key.lower() and isinstance(number, int)
    }


def reachable(model: Table, graphs: Iterable[int]) -> set[int]:
    """These subgraphs and all that they call."""
    found, waiting = set[int](), list(graphs)
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += (
                x for y in model.subgraphs[number].operators for x in called_subgraphs(y).values()
            )
    return found


def merge(models: Sequence[Table]) -> Table:
    """One file with the signatures of several, each converted on its own: the first, changed.

    A graph gets the name of its signature, as in a file of several signatures that the converter
    writes.
    """
    if len(models) > 1:
        for model in models:
            for signature in model.signatureDefs:
                model.subgraphs[signature.subgraphIndex].name = signature.signatureKey
    result, *others = models
    for model in others:
        codes = [_shared_code(result, code) for code in model.operatorCodes]
        graphs, buffers = len(result.subgraphs), len(result.buffers)
        for graph in model.subgraphs:
            for tensor in graph.tensors:
                tensor.buffer += buffers if tensor.buffer else 0  # 0 is the empty buffer
            for operator in graph.operators:
                operator.opcodeIndex = codes[operator.opcodeIndex]
                for (field, key), number in called_subgraphs(operator).items():
                    setattr(getattr(operator, field), key, number + graphs)
        for signature in model.signatureDefs:
            signature.subgraphIndex += graphs
        result.subgraphs += model.subgraphs
        result.buffers += model.buffers
        result.signatureDefs += model.signatureDefs
    return result


def _shared_code(model: Table, code: Table) -> int:
    """The index of an operator code in a model, added if it is missing."""
    for index, known in enumerate(model.operatorCodes):
        if vars(known) == vars(code):
            return index
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1


class FloatWeights(Mapping[int, np.ndarray]):
    """The weights of a file that are stored in float32, by the index of their buffer.

    Each is read when it is looked up.
    """

    def __init__(self, model: Table):
        types = import_litert("schema_py_generated").TensorType
        uses = [use for use in weight_uses(model) if use.tensor.type == types.FLOAT32]
        self._data = {x.tensor.buffer: model.buffers[x.tensor.buffer].data for x in uses}
        self._shapes = {x.tensor.buffer: x.tensor.shape for x in uses}

    def __getitem__(self, buffer: int) -> np.ndarray:
        """The weight of a buffer, as it was when this object was made."""
        data = np.asarray(self._data[buffer], np.uint8)
        return data.view("float32").reshape(self._shapes[buffer])

    def __contains__(self, buffer: object) -> bool:
        """Whether a buffer is such a weight; it is not read."""
        return buffer in self._data

    def __iter__(self) -> Iterator[int]:
        """The indices of the buffers."""
        return iter(self._data)

    def __len__(self) -> int:
        """Their number."""
        return len(self._data)


def float_weights(model: Table) -> FloatWeights:
    """The weights stored in float32, by the index of their buffer."""
    return FloatWeights(model)


def dequantize(model: Table, tensor: Table) -> tuple[np.ndarray, np.ndarray]:
    """An int8 weight as float32, and its scale in a shape that broadcasts."""
    scale = np.asarray(tensor.quantization.scale, "float32")
    shape = [1] * len(tensor.shape)
    if scale.size > 1:
        shape[tensor.quantization.quantizedDimension] = scale.size
    step = scale.reshape(shape)
    return _array(model, tensor, "int8").astype("float32") * step, step


def store_float(model: Table, buffer: int, values: np.ndarray) -> None:
    """Replaces an int8 weight by float32 `values`, for all operators that read it.

    Raises:
        ValueError: an operator passes the weight on in int8.
    """
    schema = import_litert("schema_py_generated")
    model.buffers[buffer].data = _raw(values.astype("float32"))
    for use in weight_uses(model):
        if use.tensor.buffer != buffer:
            continue
        if hasattr(use.operator.builtinOptions, "asymmetricQuantizeInputs"):
            use.operator.builtinOptions.asymmetricQuantizeInputs = False
        if use.graph.tensors[use.operator.outputs[0]].type == schema.TensorType.INT8:
            _remove_dequantize(model, use)
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            if tensor.buffer == buffer:
                tensor.type, tensor.quantization = schema.TensorType.FLOAT32, None


def _remove_dequantize(model: Table, use: WeightUse) -> None:
    """Removes the DEQUANTIZE after an operator (GATHER) that read an int8 weight."""
    schema = import_litert("schema_py_generated")
    output = use.operator.outputs[0]
    readers = [other for other in use.graph.operators if output in other.inputs]
    codes = [model.operatorCodes[reader.opcodeIndex] for reader in readers]
    numbers = [max(code.builtinCode, code.deprecatedBuiltinCode) for code in codes]
    if numbers != [schema.BuiltinOperator.DEQUANTIZE]:
        raise ValueError(
            f"keep_float: the result of {use.name} of {use.tensor.name.decode()} is also used in "
            "int8; leave its layer out"
        )
    use.operator.outputs = readers[0].outputs
    use.graph.operators = [other for other in use.graph.operators if other is not readers[0]]


def store_half(model: Table, buffers: Collection[int]) -> None:
    """Stores float32 weights in float16, each with a DEQUANTIZE before its readers.

    LiteRT dequantizes a constant once, and XNNPACK reads float16 weights of fully connected layers
    directly. Other constants stay float32: an epsilon of 1e-12 would become 0.
    """
    schema = import_litert("schema_py_generated")
    for buffer in buffers:
        data = model.buffers[buffer].data
        model.buffers[buffer].data = LazyBytes(len(data) // 2, partial(_half_chunks, data))
    code = operator_code(model, schema.BuiltinOperator.DEQUANTIZE, version=3)
    for graph in model.subgraphs:
        dequantizers = []
        for index, tensor in enumerate(list(graph.tensors)):
            if tensor.buffer not in buffers:
                continue
            half = schema.TensorT()
            half.name, half.shape = tensor.name + b"/half", tensor.shape
            half.type, half.buffer = schema.TensorType.FLOAT16, tensor.buffer
            graph.tensors.append(half)
            tensor.buffer = 0  # the empty buffer: the tensor is computed
            dequantizers.append(_operator(schema, code, len(graph.tensors) - 1, index))
        graph.operators = [*dequantizers, *graph.operators]


def _half_chunks(data: Any) -> Iterator[np.ndarray]:
    for chunk in _chunks(data):
        yield np.frombuffer(chunk, "float32").astype("float16")


def round_after_lookup(model: Table) -> None:
    """Makes lookups in an int8 table return float32, and adds a QUANTIZE after them.

    In full int8, the converter makes lookups that return int8, which LiteRT does not support. Nor
    does it support a table with a zero point other than 0.
    """
    schema = import_litert("schema_py_generated")
    tables = [use for use in weight_uses(model) if use.name == "EMBEDDING_LOOKUP"]
    for use in {use.tensor.buffer: use for use in tables}.values():
        if use.tensor.type == schema.TensorType.INT8:
            _remove_zero_point(model, use.tensor)
    lookups = {
        id(use.operator): use.graph
        for use in weight_uses(model)
        if use.name == "EMBEDDING_LOOKUP"
        and use.graph.tensors[use.operator.outputs[0]].type == schema.TensorType.INT8
    }
    code = operator_code(model, schema.BuiltinOperator.QUANTIZE, version=1) if lookups else 0
    for graph in model.subgraphs:
        operators = []
        for operator in graph.operators:
            operators.append(operator)
            if id(operator) not in lookups:
                continue
            rounded = operator.outputs[0]
            rows = schema.TensorT()
            rows.name = graph.tensors[rounded].name + b"/rows"
            rows.shape, rows.type = graph.tensors[rounded].shape, schema.TensorType.FLOAT32
            graph.tensors.append(rows)
            operator.outputs = [len(graph.tensors) - 1]
            operators.append(_operator(schema, code, len(graph.tensors) - 1, rounded))
        graph.operators = operators


def _remove_zero_point(model: Table, table: Table) -> None:
    """Stores the int8 table (V, D) with one scale per row and zero point 0."""
    zero = int(np.asarray(table.quantization.zeroPoint).flat[0])
    if zero == 0:
        return
    scale = float(np.asarray(table.quantization.scale).flat[0])
    values = (_array(model, table, "int8").astype("float32") - zero) * scale
    steps = np.maximum(np.abs(values).max(axis=1), 1e-9).astype("float32") / 127
    model.buffers[table.buffer].data = _raw(np.rint(values / steps[:, np.newaxis]).astype("int8"))
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            if tensor.buffer == table.buffer:
                tensor.quantization.scale = steps
                tensor.quantization.zeroPoint = np.zeros(len(steps), "int64")
                tensor.quantization.quantizedDimension = 0
                tensor.quantization.min = tensor.quantization.max = None


def _operator(schema: ModuleType, code: int, source: int, target: int) -> Table:
    operator = schema.OperatorT()
    operator.opcodeIndex, operator.inputs, operator.outputs = code, [source], [target]
    return operator


def operator_code(model: Table, builtin: int, version: int) -> int:
    """The index of an operator code of this kind and version, added if it is missing."""
    schema = import_litert("schema_py_generated")
    for index, code in enumerate(model.operatorCodes):
        if max(code.builtinCode, code.deprecatedBuiltinCode) == builtin and code.version >= version:
            return index
    code = schema.OperatorCodeT()
    # Readers from before 2020 use the deprecated field for codes up to 127.
    code.builtinCode, code.deprecatedBuiltinCode = builtin, min(builtin, 127)
    code.version = version
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1


def is_operator(model: Table, operator: Table, name: str) -> bool:
    """Whether an operator is of the kind with this name in the schema, such as "MUL"."""
    code = model.operatorCodes[operator.opcodeIndex]
    kind = getattr(import_litert("schema_py_generated").BuiltinOperator, name)
    return bool(max(code.builtinCode, code.deprecatedBuiltinCode) == kind)


def _array(model: Table, tensor: Table, dtype: str) -> np.ndarray:
    data = np.asarray(model.buffers[tensor.buffer].data, np.uint8)
    return data.view(dtype).reshape(tensor.shape)


def _raw(values: np.ndarray) -> np.ndarray:
    """The bytes of an array, which shares its memory if it is contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
