"""Rewrites the int8 KV caches of a converted file with operators that XNNPACK runs fast.

The converter rounds with ROUND and CAST, and reads a cache with CAST, none of which XNNPACK
delegates between int8 and float32. Here they become QUANTIZE and DEQUANTIZE with the scale 1, which
compute the same. XNNPACK multiplies float32 queries with the int8 keys of a DEQUANTIZE directly, if
nothing else reads it and the product does not transpose it (`adj_y`). Other runtimes dequantise.
"""

from keras_tfm.export.graph.schema import ModelT, OperatorT, SubGraphT, TensorT
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.manifest.storage import import_litert


def use_int8_operators(model: ModelT) -> None:
    """Replaces the casts of a file by QUANTIZE and DEQUANTIZE.

    Args:
        model: a file from `flatbuffer.read`, whose int8 tensors without scales are KV caches.
    """
    for graph in model.subgraphs:
        _rewrite(model, graph)


def _rewrite(model: ModelT, graph: SubGraphT) -> None:
    schema = import_litert("schema_py_generated")
    types, operators = schema.TensorType, schema.BuiltinOperator
    makers: dict[int, OperatorT] = {}
    readers: dict[int, int] = {}
    for operator in graph.operators:
        makers |= dict.fromkeys(map(int, operator.outputs), operator)
        for x in operator.inputs:
            readers[int(x)] = readers.get(int(x), 0) + 1
    for x in graph.outputs:
        readers[int(x)] = readers.get(int(x), 0) + 1

    def kind(operator: OperatorT) -> int:
        code = model.operatorCodes[operator.opcodeIndex]
        return int(max(code.builtinCode, code.deprecatedBuiltinCode))

    removed = set()
    for operator in graph.operators:
        if kind(operator) != operators.CAST:
            continue
        source, result = int(operator.inputs[0]), int(operator.outputs[0])
        before, after = graph.tensors[source].type, graph.tensors[result].type
        if (before, after) == (types.INT8, types.FLOAT32):
            _become(model, operator, operators.DEQUANTIZE, version=2)
        elif (before, after) == (types.FLOAT32, types.INT8):
            rounding = makers.get(source)
            if rounding is None or kind(rounding) != operators.ROUND:
                continue  # a cast that cuts decimals off
            operator.inputs = [int(rounding.inputs[0])]
            _become(model, operator, operators.QUANTIZE, version=1)
            if readers[source] == 1:
                removed.add(id(rounding))
    graph.operators = [x for x in graph.operators if id(x) not in removed]
    for tensor in graph.tensors:
        if tensor.type == types.INT8 and not _has_scale(tensor):
            tensor.quantization = schema.QuantizationParametersT()
            tensor.quantization.scale, tensor.quantization.zeroPoint = [1.0], [0]


def _become(model: ModelT, operator: OperatorT, builtin: int, version: int) -> None:
    operator.opcodeIndex = flatbuffer.operator_code(model, builtin, version)
    operator.builtinOptions, operator.builtinOptionsType = None, 0


def _has_scale(tensor: TensorT) -> bool:
    quantization = tensor.quantization
    return (
        quantization is not None and quantization.scale is not None and len(quantization.scale) > 0
    )
