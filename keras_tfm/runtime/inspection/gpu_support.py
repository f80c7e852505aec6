"""What LiteRT's GPU delegate refuses in a file, by the checks of its published source.

The source is that of ML Drift's delegate, google-ai-edge/LiteRT at commit f674577 (2026-08-21):
`NewOperationParser` and `GetOpsToReplaceWithOptions` in ml_drift_delegate/tflite/model_builder.cc,
and tflite/tools/versioning/gpu_compatibility.cc. `CompiledModel` takes a signature as a whole or
not at all. Two things that it accepts and computes wrongly are listed, too. Not every check is
repeated here: a signature without findings may still be refused, computed wrongly, or crash the
process (docs/export.md has what was tried).

Example:

>>> from keras_tfm.runtime.inspection.gpu_support import Finding
>>> print(Finding("generate", "WHILE", 1, "the operator is not supported"))
generate: WHILE (1): the operator is not supported
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from keras_tfm.runtime.litert_internals import Table
from keras_tfm.runtime.manifest.storage import File, import_litert, read, read_content, source_of

# The operators that `NewOperationParser` knows, by their names in the schema. DEQUANTIZE and
# QUANTIZE depend on an option that is on by default.
OPERATORS = frozenset(
    """
    ABS ADD ADD_N ARG_MAX ATAN2 AVERAGE_POOL_2D BATCH_MATMUL BITCAST BITWISE_XOR
    STABLEHLO_BROADCAST_IN_DIM CAST STABLEHLO_CBRT CEIL CONCATENATION CONV_2D COS CUMSUM
    DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE DIV DYNAMIC_UPDATE_SLICE EQUAL ELU EMBEDDING_LOOKUP
    EXP FLOOR FLOOR_DIV FLOOR_MOD FULLY_CONNECTED GATHER GELU GREATER GREATER_EQUAL HARD_SWISH LESS
    LESS_EQUAL LOGICAL_AND LOGICAL_NOT LOGICAL_OR LOGISTIC LOG LSTM MAXIMUM MAX_POOL_2D MEAN MINIMUM
    MIRROR_PAD MUL NEG NOT_EQUAL ONE_HOT PACK PAD PADV2 POW REDUCE_ALL REDUCE_ANY REDUCE_MAX
    REDUCE_MIN REDUCE_PROD QUANTIZE RELU RELU6 RELU_0_TO_1 RELU_N1_TO_1 LEAKY_RELU PRELU
    STABLEHLO_REMAINDER RESHAPE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR REVERSE_V2 ROUND RSQRT
    SELECT SELECT_V2 STABLEHLO_SHIFT_LEFT RIGHT_SHIFT SIGN SIN SLICE SOFTMAX SPACE_TO_DEPTH SPLIT
    SPLIT_V SQRT SQUARE SQUARED_DIFFERENCE STRIDED_SLICE SUB SUM TANH TILE TOPK_V2 TRANSPOSE
    TRANSPOSE_CONV UNPACK STABLEHLO_CLAMP STABLEHLO_COMPOSITE
    """.split()  # noqa: SIM905 (one name per line would take a hundred lines)
)
# Operators of two operands, by element, of which one may be a constant.
TWO_OPERANDS = frozenset(
    """
    ADD SUB MUL DIV FLOOR_DIV FLOOR_MOD MAXIMUM MINIMUM POW SQUARED_DIFFERENCE LESS LESS_EQUAL
    GREATER GREATER_EQUAL EQUAL NOT_EQUAL LOGICAL_AND LOGICAL_OR
    """.split()  # noqa: SIM905
)
# The highest version of an operator that the delegate takes.
VERSIONS = {
    "SELECT_V2": 1,
    **dict.fromkeys(("STRIDED_SLICE", "SUB", "EQUAL", "NOT_EQUAL"), 2),
    **dict.fromkeys(("LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"), 2),
}
_SPLITS = ("SPLIT", "SPLIT_V", "UNPACK")
# Of the indices of ONE_HOT.
ONE_HOT_AXES = 2
_MAX_AXES = 4
# FLOAT32 and FLOAT16 in the schema.
_FLOATS = (0, 1)
_FLOAT16 = 1
_BOOL = 6
_INT8 = 9
_REFUSED_TYPES = {4: "int64", 10: "float64"}


@dataclass(frozen=True)
class Finding:
    """Operators of a signature that the GPU delegate refuses or computes wrongly.

    Attributes:
        signature: str, its name; of a subgraph that is no signature, such as a loop's body, the
            subgraph's.
        operator: str, the operator's name.
        count: int, the number of nodes.
        reason: str, what the delegate requires.
    """

    signature: str
    operator: str
    count: int
    reason: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.signature}: {self.operator} ({self.count}): {self.reason}"


def check_file(path: File) -> list[Finding]:
    """The findings of a file of keras_tfm; empty if none of the checks fails.

    Raises:
        FileNotFoundError, ValueError: as `runtime.load`.
    """
    source, name = source_of(path)
    read(source, name)
    return check(read_content(source))


def check(content: bytes) -> list[Finding]:
    """The findings of the bytes of a .tflite file, by signature."""
    schema = import_litert("schema_py_generated")
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    names = {code: x for x, code in vars(schema.BuiltinOperator).items() if x[0] != "_"}
    signatures = {x.subgraphIndex: x.signatureKey.decode() for x in model.signatureDefs or []}
    found: Counter[tuple[str, str, str]] = Counter()
    for index, graph in enumerate(model.subgraphs):
        name = signatures.get(index, (graph.name or b"").decode())
        readers = [(_kind(names, model, x), {int(i) for i in x.inputs}) for x in graph.operators]
        for operator in graph.operators:
            kind = _kind(names, model, operator)
            version = model.operatorCodes[operator.opcodeIndex].version
            reason = _reason(kind, _Node(schema, model, graph, operator), version)
            if reason is None and kind in _SPLITS and _is_read_twice(operator, readers):
                reason = "an operator that reads two of its results is wrong"
            if reason is not None:
                found[name, kind, reason] += 1
    return [Finding(name, kind, n, reason) for (name, kind, reason), n in found.items()]


def _kind(names: dict[int, str], model: Table, operator: Table) -> str:
    """The name of an operator."""
    code = model.operatorCodes[operator.opcodeIndex]
    return names[max(code.builtinCode, code.deprecatedBuiltinCode)]


def _is_read_twice(operator: Table, readers: Sequence[tuple[str, set[int]]]) -> bool:
    """Whether one operator other than a product reads two results of this one."""
    results = {int(i) for i in operator.outputs}
    return any(len(results & read) > 1 for kind, read in readers if kind != "BATCH_MATMUL")


class _Node:
    """An operator and its tensors."""

    def __init__(self, schema: ModuleType, model: Table, graph: Table, operator: Table):
        self.integer = schema.TensorType.INT32
        self.options = operator.builtinOptions
        self.inputs = [graph.tensors[i] for i in operator.inputs if i >= 0]
        self.outputs = [graph.tensors[i] for i in operator.outputs if i >= 0]
        self._buffers = model.buffers

    def is_constant(self, number: int) -> bool:
        """Whether an input is a constant of the file."""
        return self._buffers[self.inputs[number].buffer].data is not None

    def is_chosen_whole(self, number: int) -> bool:
        """Whether an input has the output's shape, or is a constant of one element."""
        shape, final = (_shape(x) for x in (self.inputs[number], self.outputs[0]))
        return shape == final or (self.is_constant(number) and math.prod(shape) == 1)

    def keeps_axes(self) -> bool:
        """Whether input and output differ only in their last axis."""
        return _shape(self.inputs[0])[:-1] == _shape(self.outputs[0])[:-1]

    def skips_pixels(self) -> bool:
        """Whether a convolution reads single pixels with strides."""
        strides = max(self.options.strideH, self.options.strideW)
        return _shape(self.inputs[1])[1:3] == [1, 1] and strides > 1

    def axes(self, number: int) -> int:
        """The number of axes of an input."""
        return _axes(self.inputs[number])


def _shape(tensor: Table) -> list[int]:
    return [] if tensor.shape is None else [int(d) for d in tensor.shape]


def _axes(tensor: Table) -> int:
    return len(_shape(tensor))


def _batch_axes(tensor: Table) -> tuple[int, ...]:
    """The sizes of a product's first two axes, 1 for those that are missing."""
    shape = _shape(tensor)
    return (*(1,) * (_MAX_AXES - len(shape)), *shape[:-2])


def _reason(kind: str, node: _Node, version: int) -> str | None:
    """Why the delegate refuses a node or computes it wrongly; None if no check fails."""
    if kind not in OPERATORS:
        return "the operator is not supported"
    if any(_axes(x) > _MAX_AXES for x in (*node.inputs, *node.outputs)):
        return f"tensors must have at most {_MAX_AXES} axes"
    refused = [x.type for x in (*node.inputs, *node.outputs) if x.type in _REFUSED_TYPES]
    if refused:
        return f"tensors of {_REFUSED_TYPES[refused[0]]} are not supported"
    if version > VERSIONS.get(kind, version):
        return f"the version must be at most {VERSIONS[kind]}, got {version}"
    in_8_bits = len(node.inputs) > 1 and node.inputs[1].type == _INT8
    if kind == "FULLY_CONNECTED" and in_8_bits and not node.keeps_axes():
        return "with int8 weights, the result must have the axes of the input"
    if kind == "CONV_2D" and in_8_bits and node.skips_pixels():
        return "with int8 weights of one pixel, strides are wrong"
    if kind == "TOPK_V2":
        return "the result is wrong"
    if kind == "ONE_HOT" and node.axes(0) > ONE_HOT_AXES:
        return f"indices must have at most {ONE_HOT_AXES} axes, or the result is wrong"
    if kind == "TILE" and node.inputs[0].type == _BOOL:
        return "booleans are not supported"
    if kind in ("SELECT", "SELECT_V2") and not (
        node.is_chosen_whole(1) and node.is_chosen_whole(2)
    ):
        return "both values must have the shape of the result, or be constants of one element"
    if kind == "BATCH_MATMUL" and (node.options.adjX or node.options.adjY):
        return "some delegates ignore adj_x and adj_y: the result is wrong (LiteRT issue 8913)"
    if kind == "GATHER" and (node.axes(1) != 1 or node.inputs[1].type != node.integer):
        return "indices must be int32 with one axis"
    if kind == "DYNAMIC_UPDATE_SLICE" and node.is_constant(2):
        return "start indices must not be constant"
    if kind == "SLICE" and node.is_constant(0):
        return "the input must not be constant"
    if kind == "SLICE" and not (node.is_constant(1) and node.is_constant(2)):
        return "begin and size must be constant"
    if kind == "TRANSPOSE" and not node.is_constant(1):
        return "the permutation must be constant"
    if kind == "STRIDED_SLICE":
        options = node.options
        if options.ellipsisMask or options.newAxisMask or options.shrinkAxisMask:
            return "ellipsis, new-axis and shrink-axis masks are not supported"
        if node.axes(0) not in (3, 4):
            return "the input must have three or four axes"
    if kind in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN") and not node.is_constant(1):
        return "the axes must be constant"
    if kind == "BATCH_MATMUL" and node.is_constant(0):
        return "the left operand must not be a constant"
    if kind == "BATCH_MATMUL" and len({_batch_axes(x) for x in node.inputs}) > 1:
        return "operands with other batch axes are broadcast wrongly"
    if kind == "CUMSUM" and node.inputs[0].type not in _FLOATS:
        return "the input must be of floats"
    if kind == "MIRROR_PAD" and node.axes(0) < 3:
        return "the input must have three or four axes"
    if kind == "EMBEDDING_LOOKUP" and node.inputs[1].type == _FLOAT16:
        return "the table must not be of float16"
    shapes = [_shape(x) for x in node.inputs]
    constant = [node.is_constant(number) for number in range(len(node.inputs))]
    if kind in TWO_OPERANDS and has_misread_constant(shapes, constant, node.inputs[0].type):
        return "the first axis of the constant is taken for another: the result is wrong"
    return None


def has_misread_constant(
    shapes: Sequence[Sequence[int]], constant: Sequence[bool], dtype: int
) -> bool:
    """Whether the delegate reads a constant operand wrongly.

    It takes the first of up to three axes for the batch in tensors, and not in constants: sums of
    shapes (T, D) and (T, D) or (T, 1), (D,) and (D,), (B, T, D) and (B, T, D) are wrong for T, D
    and B of more than 1. So are those of a constant with more axes, such as (T, D) and (1, T, D) or
    (1, 1, D), and those of integers or booleans with fewer (LiteRT pull request 9664). Of four
    axes, a constant with a batch is wrong unless the tensor has the same. Measured on LiteRT 2.3
    with all pairs of 13 shapes.

    Args:
        shapes: the shapes of the two operands.
        constant: whether each is a constant of the file.
        dtype: int, the operands' type in the schema.

    >>> from keras_tfm.runtime.inspection.gpu_support import has_misread_constant
    >>> has_misread_constant([(5, 7), (5, 7)], [False, True], dtype=0)
    True
    >>> has_misread_constant([(1, 5, 7), (1, 5, 7)], [False, True], dtype=0)
    False
    """
    if len(shapes) != 2 or constant[0] == constant[1]:
        return False
    values, other = shapes if constant[0] else shapes[::-1]
    if len(values) < len(other):
        return len(values) > 0 and dtype not in _FLOATS
    first = other[0] if len(other) else 1
    if len(other) == _MAX_AXES:
        return values[0] > 1 and values[0] != first
    return len(values) > 0 and (values[0] > 1 or (len(values) > len(other) and first > 1))
