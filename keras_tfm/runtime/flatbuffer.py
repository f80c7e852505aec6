"""The weights inside a .tflite file: which operators read them, and how they are stored."""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_tfm.runtime.manifest import import_litert

# The input that holds the weights, of the operators whose weights a preset stores in fewer bits.
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
    """The file as the schema's objects, which may be changed and given to `write`."""
    schema = import_litert("schema_py_generated")
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
    for buffer in model.buffers:
        if buffer.offset > 1:  # the data lie behind the schema's part, where a new part moves them
            end = buffer.offset + buffer.size
            buffer.data = np.frombuffer(content[buffer.offset : end], "uint8")
            buffer.offset = buffer.size = 0
    return model


def write(model: Any) -> bytes:
    """The bytes of what `read` gave."""
    import flatbuffers

    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def weight_uses(model: Any) -> Iterator[WeightUse]:
    """Every operator that reads a constant weight, of every subgraph, loops' bodies included."""
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
    """An int8 weight as float32, and the step it was rounded to, of a shape that broadcasts."""
    scale = np.asarray(tensor.quantization.scale, "float32")
    shape = [1] * len(tensor.shape)
    if scale.size > 1:
        shape[tensor.quantization.quantizedDimension] = scale.size
    step = scale.reshape(shape)
    return _array(model, tensor, "int8").astype("float32") * step, step


def store_float(model: Any, buffer: int, values: np.ndarray) -> None:
    """Stores `values` in float32 where an int8 weight was, for all operators that read it.

    Raises:
        ValueError: an operator goes on in int8 with what it took from the weight.
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
    """Takes away the operator that dequantises what another (GATHER) took from an int8 weight."""
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
    """Stores float32 weights in float16, with an operator before what reads them that widens them.

    LiteRT widens a constant once, and XNNPACK reads those of fully connected layers as they are.
    Constants that are no weights stay: an epsilon of 1e-12 would be 0.
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
            tensor.buffer = 0  # the schema's empty buffer: the tensor is computed
            wideners.append(_operator(schema, code, len(graph.tensors) - 1, index))
        graph.operators = [*wideners, *graph.operators]


def round_after_lookup(model: Any) -> None:
    """Has lookups of an int8 table give float32, rounded by an operator of its own behind them.

    The converter's full int8 makes lookups give int8, which LiteRT refuses to run; and it has no
    lookup in a table whose zero is not 0.
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
    """Stores the int8 table (V, D) with a step for each row and 0 for zero."""
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
    """The number under which operators of this kind and version are listed, made if need be."""
    schema = import_litert("schema_py_generated")
    for index, code in enumerate(model.operatorCodes):
        if max(code.builtinCode, code.deprecatedBuiltinCode) == builtin and code.version >= version:
            return index
    code = schema.OperatorCodeT()
    # Readers of before 2020 know codes up to 127 by the deprecated field.
    code.builtinCode, code.deprecatedBuiltinCode = builtin, min(builtin, 127)
    code.version = version
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1


def _array(model: Any, tensor: Any, dtype: str) -> np.ndarray:
    return np.frombuffer(bytes(model.buffers[tensor.buffer].data), dtype).reshape(tensor.shape)


def _raw(values: np.ndarray) -> np.ndarray:
    return np.frombuffer(values.tobytes(), "uint8")
