"""The weights in a .tflite file: which operators read them, and their format."""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_tfm.runtime.manifest import import_litert

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

    graph: Any
    operator: Any
    name: str
    tensor: Any


def read(content: bytes) -> Any:
    """The file as mutable objects of the schema, for `write`."""
    schema = import_litert("schema_py_generated")
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
    for buffer in model.buffers:
        if buffer.offset > 1:  # data behind the flatbuffer, which a new flatbuffer would move
            end = buffer.offset + buffer.size
            buffer.data = np.frombuffer(content[buffer.offset : end], "uint8")
            buffer.offset = buffer.size = 0
    return model


def write(model: Any) -> bytes:
    """The bytes of a file from `read`."""
    import flatbuffers

    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def weight_uses(model: Any) -> Iterator[WeightUse]:
    """Every operator that reads a constant weight, in all subgraphs, also of loops."""
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


def float_weights(model: Any) -> dict[int, np.ndarray]:
    """The weights stored in float32, by the number of their buffer."""
    schema = import_litert("schema_py_generated")
    return {
        use.tensor.buffer: _array(model, use.tensor, "float32")
        for use in weight_uses(model)
        if use.tensor.type == schema.TensorType.FLOAT32
    }


def dequantized(model: Any, tensor: Any) -> tuple[np.ndarray, np.ndarray]:
    """An int8 weight as float32, and its scale in a shape that broadcasts."""
    scale = np.asarray(tensor.quantization.scale, "float32")
    shape = [1] * len(tensor.shape)
    if scale.size > 1:
        shape[tensor.quantization.quantizedDimension] = scale.size
    step = scale.reshape(shape)
    return _array(model, tensor, "int8").astype("float32") * step, step


def store_float(model: Any, buffer: int, values: np.ndarray) -> None:
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
            _give_float(model, use)
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            if tensor.buffer == buffer:
                tensor.type, tensor.quantization = schema.TensorType.FLOAT32, None


def _give_float(model: Any, use: WeightUse) -> None:
    """Removes the DEQUANTIZE after an operator (GATHER) that read an int8 weight."""
    schema = import_litert("schema_py_generated")
    output = use.operator.outputs[0]
    readers = [other for other in use.graph.operators if output in other.inputs]
    codes = [model.operatorCodes[reader.opcodeIndex] for reader in readers]
    numbers = [max(code.builtinCode, code.deprecatedBuiltinCode) for code in codes]
    if numbers != [schema.BuiltinOperator.DEQUANTIZE]:
        raise ValueError(
            f"keep_float: {use.tensor.name.decode()} is read by {use.name} for more than float32; "
            "leave its layer out"
        )
    use.operator.outputs = readers[0].outputs
    use.graph.operators = [other for other in use.graph.operators if other is not readers[0]]


def store_half(model: Any, buffers: Collection[int]) -> None:
    """Stores float32 weights in float16, each with a DEQUANTIZE before its readers.

    LiteRT dequantizes a constant once, and XNNPACK reads float16 weights of fully connected layers
    directly. Other constants stay float32: an epsilon of 1e-12 would become 0.
    """
    schema = import_litert("schema_py_generated")
    for buffer in buffers:
        data = np.frombuffer(bytes(model.buffers[buffer].data), "float32").astype("float16")
        model.buffers[buffer].data = _raw(data)
    code = _operator_code(model, schema.BuiltinOperator.DEQUANTIZE, version=3)
    for graph in model.subgraphs:
        wideners = []
        for index, tensor in enumerate(list(graph.tensors)):
            if tensor.buffer not in buffers:
                continue
            half = schema.TensorT()
            half.name, half.shape = tensor.name + b"/half", tensor.shape
            half.type, half.buffer = schema.TensorType.FLOAT16, tensor.buffer
            graph.tensors.append(half)
            tensor.buffer = 0  # the empty buffer: the tensor is computed
            wideners.append(_operator(schema, code, len(graph.tensors) - 1, index))
        graph.operators = [*wideners, *graph.operators]


def round_after_lookup(model: Any) -> None:
    """Makes lookups in an int8 table return float32, and adds a QUANTIZE after them.

    In full int8 the converter makes lookups that return int8, which LiteRT does not run; nor does
    it run lookups in a table with a zero point other than 0.
    """
    schema = import_litert("schema_py_generated")
    tables = [use for use in weight_uses(model) if use.name == "EMBEDDING_LOOKUP"]
    for use in {use.tensor.buffer: use for use in tables}.values():
        if use.tensor.type == schema.TensorType.INT8:
            _centre(model, use.tensor)
    lookups = {
        id(use.operator): use.graph
        for use in weight_uses(model)
        if use.name == "EMBEDDING_LOOKUP"
        and use.graph.tensors[use.operator.outputs[0]].type == schema.TensorType.INT8
    }
    code = _operator_code(model, schema.BuiltinOperator.QUANTIZE, version=1) if lookups else 0
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


def _centre(model: Any, table: Any) -> None:
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


def _operator(schema: Any, code: int, source: int, target: int) -> Any:
    operator = schema.OperatorT()
    operator.opcodeIndex, operator.inputs, operator.outputs = code, [source], [target]
    return operator


def _operator_code(model: Any, builtin: int, version: int) -> int:
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


def _array(model: Any, tensor: Any, dtype: str) -> np.ndarray:
    return np.frombuffer(bytes(model.buffers[tensor.buffer].data), dtype).reshape(tensor.shape)


def _raw(values: np.ndarray) -> np.ndarray:
    return np.frombuffer(values.tobytes(), "uint8")
