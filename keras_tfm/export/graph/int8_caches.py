"""Rewrites the int8 KV caches of a converted file with operators that XNNPACK runs fast.

The converter rounds with ROUND and CAST, and reads a cache with CAST, none of which XNNPACK
delegates between int8 and float32. Here they become QUANTIZE and DEQUANTIZE with the scale 1, which
compute the same. Each DEQUANTIZE stands right before its reader. The converter puts all of them
first, where operators that XNNPACK does not run would separate them from their products: all caches
would be in memory in float32 at once.

XNNPACK multiplies float32 queries with the int8 keys of a DEQUANTIZE directly, if nothing else
reads it, and the product does not transpose it (`adj_y`). It then keeps a scale for each number of
the cache, four bytes, in every signature. Large caches, and those of a prefill, are therefore read
in parts, each dequantized into memory that all parts share. Other runtimes dequantise, too.
"""

from collections import Counter
from math import prod

from keras_tfm.export.graph.graph_editor import GraphEditor
from keras_tfm.export.graph.schema import ModelT, OperatorT, SubGraphT, TensorT
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.manifest.storage import import_litert

# The size of a cache, in numbers, and the number of queries up to which XNNPACK reads it directly.
# With more queries, dequantizing takes little of a product's time.
_LARGEST_DIRECT, _MOST_QUERIES = 1 << 18, 8
# The numbers of a part of a larger one. In float32 and packed, it fits a processor's caches.
_PART = 1 << 20


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

    removed, readings = set(), []
    for operator in graph.operators:
        if kind(operator) != operators.CAST:
            continue
        source, result = int(operator.inputs[0]), int(operator.outputs[0])
        before, after = graph.tensors[source].type, graph.tensors[result].type
        if (before, after) == (types.INT8, types.FLOAT32):
            _become(model, operator, operators.DEQUANTIZE, version=2)
            readings.append(operator)
        elif (before, after) == (types.FLOAT32, types.INT8):
            rounding = makers.get(source)
            if rounding is None or kind(rounding) != operators.ROUND:
                continue  # a cast that cuts decimals off
            operator.inputs = [int(rounding.inputs[0])]
            _become(model, operator, operators.QUANTIZE, version=1)
            if readers[source] == 1:
                removed.add(id(rounding))
    graph.operators = [x for x in graph.operators if id(x) not in removed]
    _move_to_readers(graph, readings)
    _Parts(model, graph).replace_products()
    for tensor in graph.tensors:
        if tensor.type == types.INT8 and not _has_scale(tensor):
            tensor.quantization = schema.QuantizationParametersT()
            tensor.quantization.scale, tensor.quantization.zeroPoint = [1.0], [0]


def _move_to_readers(graph: SubGraphT, moved: list[OperatorT]) -> None:
    """Puts each of the operators right before the first one that reads its result."""
    waiting = {int(x.outputs[0]): x for x in moved}
    identities = set(map(id, moved))
    rest = [x for x in graph.operators if id(x) not in identities]
    graph.operators = []
    for operator in rest:
        for x in operator.inputs:
            if int(x) in waiting:
                graph.operators.append(waiting.pop(int(x)))
        graph.operators.append(operator)
    graph.operators += waiting.values()  # a result of the graph


class _Parts(GraphEditor):
    """Products of a graph that read caches in parts."""

    def replace_products(self) -> None:
        """Replaces each DEQUANTIZE that needs parts, and the BATCH_MATMUL that reads it."""
        graph, dequantized = self._graph, {}
        for operator in graph.operators:
            if self._kind(operator) == "DEQUANTIZE":
                dequantized[int(operator.outputs[0])] = operator
        readers = Counter(int(x) for operator in graph.operators for x in operator.inputs)
        readers.update(map(int, graph.outputs))
        replaced = set()
        for operator in graph.operators:
            made = dequantized.get(int(operator.inputs[1])) if len(operator.inputs) > 1 else None
            only = made is not None and readers[int(made.outputs[0])] == 1
            if made is not None and only and self._needs_parts(operator, int(made.inputs[0])):
                replaced.add(id(made))
                query, result = int(operator.inputs[0]), int(operator.outputs[0])
                self._product(query, int(made.inputs[0]), result)
            else:
                self._operators.append(operator)
        graph.operators = [x for x in self._operators if id(x) not in replaced]

    def _needs_parts(self, product: OperatorT, cache: int) -> bool:
        if self._kind(product) != "BATCH_MATMUL" or self._is_constant(cache):
            return False
        options, shape = product.builtinOptions, self._shape(cache)
        is_plain = not (options.adjX or options.adjY)
        *batch, rows, _ = self._shape(int(product.inputs[0]))
        is_large = prod(shape) > _LARGEST_DIRECT or rows > _MOST_QUERIES
        return is_plain and is_large and batch == shape[:-2]

    def _product(self, query: int, cache: int, result: int) -> None:
        """Appends (..., N, K) x (..., K, S), in parts of the longer axis of the cache."""
        *batch, depth, columns = self._shape(cache)
        rows, groups = self._shape(query)[-2], prod(batch)
        query = self._append_reshape(query, (groups, rows, depth))
        of_columns = columns >= depth
        length = max(columns, depth)
        # A multiple of 32, the columns that a kernel computes at once.
        width = max(32, _PART * length // (groups * depth * columns) // 32 * 32)
        parts = []
        for start in range(0, length, width):
            size = min(width, length - start)
            shape = (depth, size) if of_columns else (size, columns)
            begin = (0, start) if of_columns else (start, 0)
            part = cache
            if size < length:
                part = self._slice(cache, (*(0 for _ in batch), *begin), (*batch, *shape))
            numbers = self._append("DEQUANTIZE", [part], (*batch, *shape), version=2)
            # Between the two, a RESHAPE keeps XNNPACK from reading the cache directly.
            numbers = self._append_reshape(numbers, (groups, *shape))
            rest = query
            if not of_columns and size < length:
                rest = self._slice(query, (0, 0, start), (groups, rows, size))
            out = (groups, rows, shape[1])
            parts.append(self._append("BATCH_MATMUL", [rest, numbers], out, "BatchMatMulOptions"))
        join = self._concatenate if of_columns else self._sum
        self._operators.append(self._reshape(join(parts), self._shape(result), result))

    def _concatenate(self, parts: list[int]) -> int:
        """The parts along the last axis. XNNPACK takes up to five at once."""
        while len(parts) > 1:
            several = [parts[i : i + 4] for i in range(0, len(parts), 4)]
            parts = [x[0] if len(x) == 1 else self._concatenation(x) for x in several]
        return parts[0]

    def _concatenation(self, parts: list[int]) -> int:
        *shape, _ = self._shape(parts[0])
        columns = sum(self._shape(x)[-1] for x in parts)
        kind = "ConcatenationOptions"
        result = self._append("CONCATENATION", parts, (*shape, columns), kind)
        self._operators[-1].builtinOptions.axis = len(shape)
        return result

    def _sum(self, parts: list[int]) -> int:
        total, *rest = parts
        for part in rest:
            total = self._append("ADD", [total, part], tuple(self._shape(part)), "AddOptions")
        return total

    def _slice(self, source: int, begin: tuple[int, ...], size: tuple[int, ...]) -> int:
        inputs = [source, self._constant(begin), self._constant(size)]
        dtype = self._dtype(source)
        version = 2 if dtype == self._schema.TensorType.INT8 else 1
        return self._append("SLICE", inputs, size, "SliceOptions", version, dtype)

    def _append(
        self,
        kind: str,
        inputs: list[int],
        shape: tuple[int, ...],
        options: str | None = None,
        version: int = 1,
        dtype: int | None = None,
    ) -> int:
        """A tensor of an appended operator, float32 by default."""
        result = self._tensor(shape, self._schema.TensorType.FLOAT32 if dtype is None else dtype)
        operator = self._operator(kind, inputs, result, options)
        builtin = getattr(self._schema.BuiltinOperator, kind)
        operator.opcodeIndex = flatbuffer.operator_code(self._model, builtin, version)
        self._operators.append(operator)
        return result


def _become(model: ModelT, operator: OperatorT, builtin: int, version: int) -> None:
    operator.opcodeIndex = flatbuffer.operator_code(model, builtin, version)
    operator.builtinOptions, operator.builtinOptionsType = None, 0


def _has_scale(tensor: TensorT) -> bool:
    quantization = tensor.quantization
    return (
        quantization is not None and quantization.scale is not None and len(quantization.scale) > 0
    )
