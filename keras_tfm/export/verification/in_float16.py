"""Runs a file with every value rounded to float16, in which GPUs compute by default."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from keras_tfm.export.graph.float16_norms import LARGEST
from keras_tfm.export.graph.graph_editor import GraphEditor
from keras_tfm.export.graph.schema import ModelT, OperatorT, SignatureDefT, SubGraphT, TensorT
from keras_tfm.export.verification.on_gpu import relative_error
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.inspection.random_inputs import random_inputs
from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.manifest.storage import import_litert

# Of the largest value of an output. Rounding alone reaches 0.03 in 30 layers.
_LIMIT = 0.1
# What moves values that are rounded already.
_MOVES = frozenset(
    """
    RESHAPE TRANSPOSE STRIDED_SLICE SLICE CONCATENATION GATHER EMBEDDING_LOOKUP TILE PACK UNPACK
    SPLIT DEQUANTIZE
    """.split()  # noqa: SIM905 (one name per line would take a dozen lines)
)
# What adds masks to scores before a softmax: their large numbers are meant.
_MASKS = frozenset({"ADD", "SUB", "MUL", "RESHAPE", "TRANSPOSE", "CONCATENATION", "TILE", "CAST"})


@dataclass
class Float16Check:
    """What becomes of a file's results in float16, with 11 bits and numbers up to 65504.

    Attributes:
        errors: dict of float by signature, the largest difference from float32, relative to the
            largest value of the output; infinite where a result is not finite.
        largest: float, the largest absolute value that an operator computes, except for masks and
            scores with masks.
        name: str, that of the operator, which begins with its layer's.
        overflows: list of str, in each signature the first operator that exceeds float16's range.

    Example:

    >>> from keras_tfm.export import Float16Check
    >>> print(Float16Check({"predict": 1.2e-3}, 25.0, "decoder_0/add"))
    in float16, error relative to the largest value: predict 0.001; largest value 25 of 65504
    """

    errors: dict[str, float] = field(default_factory=dict)
    largest: float = 0.0
    name: str = ""
    overflows: list[str] = field(default_factory=list)

    @property
    def warning(self) -> str | None:
        """What is wrong in float16, in one sentence; None if nothing is."""
        large = {name: x for name, x in self.errors.items() if not x <= _LIMIT}
        if not large and not self.overflows:
            return None
        errors = ", ".join(f"{name} {error:.1g}" for name, error in large.items())
        reasons = [f"error relative to the largest value: {errors}"] if large else []
        return (
            "in float16, GPUs compute this file wrongly: "
            + "; ".join([*self.overflows, *reasons])
            + ". Let the GPU delegate compute in float32"
        )

    def __str__(self) -> str:
        """One line."""
        errors = ", ".join(f"{name} {error:.1g}" for name, error in self.errors.items())
        return "; ".join(
            [
                f"in float16, error relative to the largest value: {errors}",
                f"largest value {self.largest:.5g} of {LARGEST:.0f}",
                *self.overflows,
            ]
        )


def check_in_float16(
    path: str | Path, inputs: Mapping[str, np.ndarray] | None = None
) -> Float16Check:
    """Runs a file on the CPU, with weights and the result of each operator in float16.

    GPU delegates compute in float16 by default. This is what they then store; within an operator,
    sums have float32 here, as in most of the delegate's operators (in products, some GPUs add in
    float16). It needs no GPU, and shows numbers beyond 65504, which become infinite.

    Args:
        path: str or Path, a file of `export_tflite`.
        inputs: dict of arrays by input, of the exported shapes, for all signatures that have them.
            Default: random ones.

    Returns:
        A `Float16Check`.

    Raises:
        FileNotFoundError, ValueError: as `runtime.load`, or LiteRT cannot run the inputs.

    Example:

    >>> import tempfile, keras
    >>> from keras_tfm.export import check_in_float16, export_tflite
    >>> x = keras.Input((2,), name="x")
    >>> model = keras.Model(x, keras.layers.Dense(3, name="dense")(x))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_tflite(model, folder + "/dense.tflite")
    ...     found = check_in_float16(report.path, {"x": np.array([[1e5, 0.0]], "float32")})
    >>> found.overflows
    ['predict: the input x reaches 1e+05 of 65504']
    """
    file = LoadedFile(path)
    model = flatbuffer.read(file.content())
    indices = {x.signatureKey.decode(): x.subgraphIndex for x in model.signatureDefs}
    rounded = [_Rounding(model, graph) for graph in model.subgraphs]
    module = import_litert("interpreter")
    interpreter = module.Interpreter(
        model_content=flatbuffer.write(model),
        # XNNPACK keeps its tensors to itself.
        experimental_op_resolver_type=module.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        experimental_preserve_all_tensors=True,
    )
    check = Float16Check()
    for name, signature in file.signatures.items():
        arrays = random_inputs(signature.inputs)
        arrays.update({x: y for x, y in (inputs or {}).items() if x in arrays})
        expected = file.run(name, arrays)
        found = interpreter.get_signature_runner(name)(**arrays)
        check.errors[name] = max(
            (relative_error(np.asarray(y), found[x]) for x, y in expected.items()), default=0.0
        )
        graph = rounded[indices[name]]
        overflow = ""
        # An upper limit of 1e12 may be infinite as well.
        if graph.large_constant and not check.errors[name] <= _LIMIT:
            overflow = f"{name}: {graph.large_constant}"
        for index, shown in graph.sources:
            values = np.abs(interpreter.get_tensor(index, indices[name]))
            size = float(np.max(values, initial=0.0, where=np.isfinite(values)))
            if index in graph.masks:
                continue
            if size > LARGEST:
                overflow = overflow or f"{name}: {_reaches(shown, size)}"
            if size > check.largest:
                check.largest, check.name = size, shown
        check.overflows += [overflow] if overflow else []
    return check


def _reaches(name: str, size: float) -> str:
    return f"{name} reaches {size:.2g} of {LARGEST:.0f}"


def warn_of(check: Float16Check) -> Float16Check:
    """The check, after a warning if a file is wrong in float16."""
    if check.warning is not None:
        warnings.warn(check.warning, UserWarning, stacklevel=2)
    return check


class _Rounding(GraphEditor):
    """Rounds the values of one graph of a file: a CAST to float16 and back behind each operator.

    Attributes:
        sources: list of the rounded tensors' indices and names, in the order of their operators.
        masks: set of the indices of masks, and of scores with masks.
        large_constant: str, the constant that exceeds float16's range; "" if none does.
    """

    def __init__(self, model: ModelT, graph: SubGraphT):
        self.sources: list[tuple[int, str]] = []
        super().__init__(model, graph)
        self.masks = self._find_masks()
        self.large_constant = ""
        self._round_constants()
        self._round_results()

    def _find_masks(self) -> set[int]:
        makers = {int(y): x for x in self._graph.operators for y in x.outputs}
        softmaxes = [x for x in self._graph.operators if self._kind(x) == "SOFTMAX"]
        found: set[int] = set()
        rest = [int(x.inputs[0]) for x in softmaxes]
        while rest:
            index = rest.pop()
            maker = makers.get(index)
            if index not in found and (maker is None or self._kind(maker) in _MASKS):
                found.add(index)
                rest += [] if maker is None else map(int, maker.inputs)
        return found

    def _round_constants(self) -> None:
        for index, tensor in enumerate(self._graph.tensors):
            buffer = self._model.buffers[tensor.buffer]
            if buffer.data is None or not self._is_float(tensor):
                continue
            values = np.asarray(buffer.data, "uint8").view("float32")
            size = float(np.max(np.abs(values), initial=0.0))
            if size > LARGEST and index not in self.masks:
                name = (tensor.name or b"").decode().partition(";")[0]
                self.large_constant = _reaches(f"the constant {name}", size)
            with np.errstate(over="ignore"):
                buffer.data = values.astype("float16").astype("float32").view("uint8")

    def _round_results(self) -> None:
        operators: list[OperatorT] = []
        rounded: dict[int, int] = {}
        for index, name in self._inputs().items():
            if self._is_float(self._graph.tensors[index]):
                operators += self._round(index, f"the input {name}", rounded)
        for operator in self._graph.operators:
            operator.inputs = self._replace(operator.inputs, rounded)
            operators.append(operator)
            for index in operator.outputs:
                tensor = self._graph.tensors[index]
                if self._is_float(tensor) and self._kind(operator) not in _MOVES:
                    name = (tensor.name or b"").decode().partition(";")[0]
                    operators += self._round(int(index), name, rounded)
        self._graph.operators = operators
        self._graph.outputs = self._replace(self._graph.outputs, rounded)
        for signature in self._signatures():
            for output in signature.outputs:
                output.tensorIndex = rounded.get(output.tensorIndex, output.tensorIndex)

    def _signatures(self) -> list[SignatureDefT]:
        """Those of this graph."""
        graphs = self._model.subgraphs
        return [x for x in self._model.signatureDefs if graphs[x.subgraphIndex] is self._graph]

    def _inputs(self) -> dict[int, str]:
        """The names of the signature's inputs, by tensor."""
        return {y.tensorIndex: y.name.decode() for x in self._signatures() for y in x.inputs}

    def _round(self, index: int, name: str, rounded: dict[int, int]) -> Iterator[OperatorT]:
        """The two casts behind a tensor."""
        types = self._schema.TensorType
        self.sources.append((index, name))
        for after in (types.FLOAT16, types.FLOAT32):
            source = rounded.get(index, index)
            rounded[index] = self._tensor(self._shape(index), after)
            yield self._cast(source, rounded[index])

    def _is_float(self, tensor: TensorT) -> bool:
        return bool(tensor.type == self._schema.TensorType.FLOAT32)

    @staticmethod
    def _replace(indices: Iterable[int], rounded: dict[int, int]) -> np.ndarray:
        return np.array([rounded.get(int(i), int(i)) for i in indices], "int32")
