"""Reads and writes a .tflite file as objects: weights, the operators that use them, metadata."""

import hashlib
import json
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from keras_tfm.runtime import adapters
from keras_tfm.runtime.litert_internals import Table, field_position
from keras_tfm.runtime.manifest.manifest import Manifest
from keras_tfm.runtime.manifest.storage import IDENTIFIER, METADATA_NAME, NO_CHECKSUM, import_litert

# Vectors of more bytes are not deduplicated.
_LONG = 1 << 20
# The largest size of the constants in a flatbuffer, in bytes: 2 GiB less 256 MiB for the graphs.
_LARGEST = (1 << 31) - (1 << 28)
_ALIGNMENT = 16
# The number of the field `offset` of Buffer in LiteRT's schema.fbs.
_OFFSET = 1
# The metadata entry by which the converter marks a file with constants behind the flatbuffer.
_BUFFER_LOCATION, _OUTSIDE = b"buffer_location", b"outside flatbuffers"

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


def read(content: bytes) -> Table:
    """The file as mutable objects of the schema, for `write`."""
    schema = import_litert("schema_py_generated")
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
    for buffer in model.buffers:
        if buffer.offset > 1:  # behind the flatbuffer, as the converter writes files over 2 GB
            buffer.data = _behind(content, buffer.offset, buffer.size)
            buffer.offset = buffer.size = 0
    for graph in model.subgraphs:
        for operator in graph.operators:
            if operator.largeCustomOptionsOffset > 1:
                operator.customOptions = _behind(
                    content, operator.largeCustomOptionsOffset, operator.largeCustomOptionsSize
                )
                operator.largeCustomOptionsOffset = operator.largeCustomOptionsSize = 0
    model.metadata = [x for x in model.metadata or [] if x.name != _BUFFER_LOCATION]
    return model


def _behind(content: bytes, start: int, size: int) -> np.ndarray:
    return np.frombuffer(content, np.uint8, size, start)


def write(model: Table, separate: Collection[int] = ()) -> bytes:
    """The bytes of a file from `read`; equal names and small vectors are stored once.

    `separate`: the indices of buffers that share their bytes with no other, even if equal.

    Every signature lists all weights again, with their names and, in int8, one scale and zero point
    per row: without this, a tenth of a file with three signatures.

    A flatbuffer holds at most 2 GB. In a larger file, it holds only graphs and metadata; the
    constants follow it, each at the `offset` of its buffer.
    """
    sizes = [0 if buffer.data is None else len(buffer.data) for buffer in model.buffers]
    if sum(sizes) <= _LARGEST:
        return _pack(model, separate)
    schema = import_litert("schema_py_generated")
    inside = {0, *(entry.buffer for entry in model.metadata or [])}
    behind = [number for number, size in enumerate(sizes) if size and number not in inside]
    constants = [np.asarray(model.buffers[number].data, np.uint8) for number in behind]
    for number in behind:
        # 0 and 1 mean that a buffer is inside.
        buffer = model.buffers[number]
        buffer.data, buffer.offset, buffer.size = None, 2, sizes[number]
    metadata, count = model.metadata, len(model.buffers)
    model.metadata = [*(metadata or []), _entry(model, _BUFFER_LOCATION, _OUTSIDE)]
    packed = bytearray(_pack(model))
    # As it was: the model may be written again.
    model.metadata, model.buffers = metadata, model.buffers[:count]
    for number, constant in zip(behind, constants, strict=True):
        buffer = model.buffers[number]
        buffer.data, buffer.offset, buffer.size = constant, 0, 0
    table = schema.Model.GetRootAsModel(packed, 0)
    parts: list[bytes | bytearray | memoryview] = [packed]
    end = len(packed)
    for number, constant in zip(behind, constants, strict=True):
        padding = -end % _ALIGNMENT
        place = field_position(table.Buffers(number), _OFFSET)
        struct.pack_into("<Q", packed, place, end + padding)
        parts += [bytes(padding), constant.data]
        end += padding + len(constant)
    return b"".join(parts)


def _pack(model: Table, separate: Collection[int] = ()) -> bytes:
    """The bytes of one flatbuffer."""
    import flatbuffers

    alone = {id(model.buffers[number].data) for number in separate}

    class Builder(flatbuffers.Builder):
        def __init__(self) -> None:
            super().__init__(1 << 20)
            self.written: dict[tuple[str, bytes], int] = {}

        def CreateString(self, s: Any, *arguments: Any) -> int:
            if s not in self.written:
                self.written[s] = super().CreateString(s, *arguments)
            return self.written[s]

        def CreateNumpyVector(self, x: np.ndarray) -> int:
            # A long vector is a weight: a dictionary would keep it in memory.
            if x.nbytes > _LONG or id(x) in alone:
                return super().CreateNumpyVector(x)
            key = (x.dtype.str, x.tobytes())
            if key not in self.written:
                self.written[key] = super().CreateNumpyVector(x)
            return self.written[key]

    builder = Builder()
    builder.Finish(model.Pack(builder), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


def add_manifest(
    content: bytes,
    manifest: Manifest,
    entries: Mapping[str, bytes] | None = None,
    arguments: Mapping[str, Mapping[str, str]] | None = None,
    without_adapters: bool = False,
) -> bytes:
    """The .tflite file `content` with `manifest` and a checksum in its metadata.

    Args:
        content: the bytes of the file.
        manifest: the manifest; its checksum is computed. The buffers of its separate adapters share
            their bytes with no other.
        entries: further metadata by name; the checksum covers them, too.
        arguments: new names of the arguments of signatures, by signature and current name.
        without_adapters: bool, whether the constants of separate adapters become zeros.
    """
    raw = json.dumps(replace(manifest, sha256=NO_CHECKSUM).to_json(), ensure_ascii=True).encode()
    model = read(content)
    for signature in model.signatureDefs or []:
        names = (arguments or {}).get(signature.signatureKey.decode(), {})
        for argument in signature.inputs:
            argument.name = names.get(argument.name.decode(), argument.name)
    for name, data in {**(entries or {}), METADATA_NAME.decode(): raw}.items():
        model.metadata.append(_entry(model, name, data))
    layers = {} if manifest.adapters is None else manifest.adapters.layers
    unsigned = write(model, [number for x in layers.values() for number in (*x.a, *x.b)])
    if without_adapters:
        constants = bytearray(unsigned)
        adapters.write_constants(constants, layers, None)
        unsigned = bytes(constants)
    digest = hashlib.sha256(unsigned).hexdigest()
    start = unsigned.index(raw)
    signed = raw.replace(NO_CHECKSUM.encode(), digest.encode())
    return b"".join([unsigned[:start], signed, unsigned[start + len(raw) :]])


def _entry(model: Table, name: str | bytes, data: bytes) -> Table:
    """A new metadata entry, whose buffer is added to the model."""
    schema = import_litert("schema_py_generated")
    entry, buffer = schema.MetadataT(), schema.BufferT()
    entry.name, entry.buffer = name, len(model.buffers)
    buffer.data = np.frombuffer(data, np.uint8)
    model.buffers.append(buffer)
    return entry


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


def float_weights(model: Table) -> dict[int, np.ndarray]:
    """The weights stored in float32, by the index of their buffer."""
    schema = import_litert("schema_py_generated")
    return {
        use.tensor.buffer: _array(model, use.tensor, "float32")
        for use in weight_uses(model)
        if use.tensor.type == schema.TensorType.FLOAT32
    }


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
        data = np.frombuffer(bytes(model.buffers[buffer].data), "float32").astype("float16")
        model.buffers[buffer].data = _raw(data)
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
    return np.frombuffer(bytes(model.buffers[tensor.buffer].data), dtype).reshape(tensor.shape)


def _raw(values: np.ndarray) -> np.ndarray:
    return np.frombuffer(values.tobytes(), "uint8")
