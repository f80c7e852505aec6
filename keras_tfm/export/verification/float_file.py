"""An exported file whose graph computes in float32, so that its rounded weights can be replaced."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from keras_tfm.export.graph.gpu_weights import LOOKUPS
from keras_tfm.export.graph.schema import OperatorT, SubGraphT, TensorT
from keras_tfm.export.quantization.four_bits import unpack
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.manifest.manifest import Manifest, Signature, Tensor
from keras_tfm.runtime.manifest.storage import import_litert

AnyTensor = TypeVar("AnyTensor", bound=Tensor)


class Stored(NamedTuple):
    """A weight as the file stores it: dequantised values in float32, and the quantisation step."""

    values: np.ndarray
    step: np.ndarray


class FloatFile:
    """The graph of a file without the rounding of weights and activations.

    Constants are dequantised, quantised activations and KV caches become float32, and the QUANTIZE
    and DEQUANTIZE operators are removed.

    Args:
        content: the bytes of the file.
        dither: generator, for int8 caches: values are then rounded at random places, but in the
            steps of the file. x becomes floor(x + c) - c + 1/2 with a constant c between 0 and 1
            for each place, so its error is distributed as that of rounding. Default: no rounding.

    Attributes:
        stored: the rounded weights, by the index of their buffer.
    """

    def __init__(self, content: bytes, dither: np.random.Generator | None = None):
        self._dither = dither
        self._schema = import_litert("schema_py_generated")
        self._model = flatbuffer.read(content)
        self._model.metadata = []
        self.stored: dict[int, Stored] = {}
        self._read()
        for graph in self._model.subgraphs:
            self._compute_in_float(graph)

    def write(self, manifest: Manifest, values: dict[int, np.ndarray]) -> bytes:
        """The bytes of the file with `manifest`, and with `values` as weights, by buffer."""
        for buffer in self.stored:
            raw = np.ascontiguousarray(values[buffer], "float32").tobytes()
            self._model.buffers[buffer].data = np.frombuffer(raw, "uint8")
        if manifest.cache == "int8":
            manifest = replace(manifest, signatures=_in_float(manifest.signatures))
            if self._dither is None:
                manifest = replace(manifest, cache="float32")
        return flatbuffer.write(self._model, manifest)

    def _read(self) -> None:
        """Fills `stored`. Tensors that share a buffer but not their scales get separate buffers.

        So do those that share it with constants that are not rounded: zeros in int8 are also zeros
        in int32.
        """
        twice = self._rounded_twice()
        widened = self._widened_tables()
        buffers: dict[tuple[object, ...], int] = {}
        read: list[tuple[TensorT, Stored]] = []
        used: set[int] = set()
        for graph in self._model.subgraphs:
            scales = {_scales(x) for x in graph.tensors} - {None}
            for index, tensor in enumerate(graph.tensors):
                stored = None if index in scales else self._rounded_constant(graph, tensor, widened)
                if stored is None:
                    used.add(tensor.buffer)
                else:
                    step = stored.step + twice.get(tensor.buffer, 0.0)
                    read.append((tensor, stored._replace(step=step)))
        for tensor, stored in read:
            key = (tensor.buffer, tensor.type, stored.step.shape, stored.step.tobytes())
            if key not in buffers:
                buffers[key] = tensor.buffer
                if tensor.buffer in used:
                    buffers[key] = len(self._model.buffers)
                    self._model.buffers.append(self._schema.BufferT())
                used.add(tensor.buffer)
                self.stored[buffers[key]] = stored
            tensor.buffer = buffers[key]

    def _rounded_twice(self) -> dict[int, float]:
        """The first quantisation step of the tables that `round_after_lookup` quantised again.

        Before, one scale covered all values of a table, from the smallest to the largest.
        """
        types = self._schema.TensorType
        steps = {}
        for use in flatbuffer.weight_uses(self._model):
            graph, tensor = use.graph, use.tensor
            is_full = any(
                x.type == types.INT8
                and _is_quantized(x)
                and self._model.buffers[x.buffer].data is None
                for x in graph.tensors
            )
            if use.name == "EMBEDDING_LOOKUP" and tensor.type == types.INT8 and is_full:
                values = flatbuffer.dequantize(self._model, tensor)[0]
                steps[tensor.buffer] = float(values.max() - values.min()) / 255
        return steps

    def _widened_tables(self) -> set[int]:
        """The buffers of tables in float32 that `gpu_weights` made of those in float16."""
        types = self._schema.TensorType
        tensors = [x for graph in self._model.subgraphs for x in graph.tensors]
        if not any(x.type == types.FLOAT16 for x in tensors):
            return set()
        found = set()
        for use in flatbuffer.weight_uses(self._model):
            if use.name in LOOKUPS and use.tensor.type == types.FLOAT32:
                values = np.frombuffer(
                    bytes(self._model.buffers[use.tensor.buffer].data), "float32"
                )
                with np.errstate(over="ignore"):
                    half = values.astype("float16").astype("float32")
                if np.array_equal(values, half):
                    found.add(use.tensor.buffer)
        return found

    def _rounded_constant(
        self, graph: SubGraphT, tensor: TensorT, widened: set[int]
    ) -> Stored | None:
        """The dequantised values of a rounded constant; None for any other tensor."""
        types, quantization = self._schema.TensorType, tensor.quantization
        data = self._model.buffers[tensor.buffer].data
        if data is None or not len(data):
            return None
        if tensor.type == types.FLOAT16:
            half = np.frombuffer(bytes(data), "float16").reshape(_shape(tensor))
            return Stored(half.astype("float32"), np.spacing(np.abs(half)).astype("float32"))
        if tensor.buffer in widened:
            values = np.frombuffer(bytes(data), "float32").reshape(_shape(tensor))
            return Stored(values, np.spacing(np.abs(values.astype("float16"))).astype("float32"))
        details = quantization and quantization.details
        if hasattr(details, "scales"):
            rows = graph.tensors[details.scales]
            raw = np.frombuffer(bytes(self._model.buffers[rows.buffer].data), "float16")
            step = np.repeat(raw.astype("float32"), details.blockSize).reshape(_shape(tensor))
            return Stored(unpack(self._model, tensor) * step, step)
        if not _is_quantized(tensor):
            return None
        scale = np.asarray(quantization.scale, "float32")
        zero = np.zeros(1, "int64")
        if quantization.zeroPoint is not None and len(quantization.zeroPoint):
            zero = np.asarray(quantization.zeroPoint, "int64")
        if scale.size > 1:
            along = [1] * len(tensor.shape)
            along[quantization.quantizedDimension] = -1
            scale = scale.reshape(along)
            zero = zero.reshape(along) if zero.size > 1 else zero
        if tensor.type == types.INT4:
            numbers = unpack(self._model, tensor)
        else:
            kinds = {types.INT8: "int8", types.INT16: "int16", types.INT32: "int32"}
            numbers = np.frombuffer(bytes(data), kinds[tensor.type]).reshape(_shape(tensor))
        values = (numbers.astype("float64") - zero) * scale
        return Stored(values.astype("float32"), np.broadcast_to(scale, values.shape))

    def _compute_in_float(self, graph: SubGraphT) -> None:
        types, operators = self._schema.TensorType, self._schema.BuiltinOperator
        scales = {_scales(x) for x in graph.tensors} - {None}
        for index, tensor in enumerate(graph.tensors):
            if index in scales:
                continue
            if (
                tensor.buffer in self.stored
                or tensor.type == types.FLOAT16
                or _is_quantized(tensor)
            ):
                tensor.type, tensor.quantization = types.FLOAT32, None
        same: dict[int, int] = {}
        kept = []
        for operator in graph.operators:
            operator.inputs = [same.get(int(x), int(x)) for x in operator.inputs]
            code = self._model.operatorCodes[operator.opcodeIndex]
            number = max(code.builtinCode, code.deprecatedBuiltinCode)
            if number in (operators.QUANTIZE, operators.DEQUANTIZE):
                source = operator.inputs[0]
                if number == operators.QUANTIZE and self._dither is not None:
                    source, added = self._round(graph, source)
                    kept += added
                same[int(operator.outputs[0])] = source
                continue
            if hasattr(operator.builtinOptions, "asymmetricQuantizeInputs"):
                operator.builtinOptions.asymmetricQuantizeInputs = False
            kept.append(operator)
        graph.operators = kept
        graph.outputs = [same.get(int(x), int(x)) for x in graph.outputs]
        number = self._model.subgraphs.index(graph)
        for signature in self._model.signatureDefs or ():
            for output in signature.outputs if signature.subgraphIndex == number else ():
                output.tensorIndex = same.get(output.tensorIndex, output.tensorIndex)

    def _round(self, graph: SubGraphT, source: int) -> tuple[int, list[OperatorT]]:
        """The tensor `source` rounded at random places, and the operators that compute it."""
        assert self._dither is not None
        names, shape = self._schema.BuiltinOperator, _shape(graph.tensors[source])
        places = self._dither.uniform(0.0, 1.0, shape)
        operators = []
        for name, constant in (("ADD", places), ("FLOOR", None), ("SUB", places - 0.5)):
            operator = self._schema.OperatorT()
            operator.opcodeIndex = flatbuffer.operator_code(self._model, getattr(names, name), 1)
            operator.inputs = [source]
            if constant is not None:
                options = f"{name.capitalize()}Options"
                operator.inputs.append(self._tensor(graph, shape, constant))
                operator.builtinOptions = getattr(self._schema, f"{options}T")()
                operator.builtinOptionsType = getattr(self._schema.BuiltinOptions, options)
            source = self._tensor(graph, shape)
            operator.outputs = [source]
            operators.append(operator)
        return source, operators

    def _tensor(
        self, graph: SubGraphT, shape: tuple[int, ...], values: np.ndarray | None = None
    ) -> int:
        """The index of a new float32 tensor."""
        tensor, buffer = self._schema.TensorT(), self._schema.BufferT()
        if values is not None:
            buffer.data = np.frombuffer(np.ascontiguousarray(values, "float32").tobytes(), "uint8")
        tensor.name, tensor.shape = f"dither_{len(graph.tensors)}", list(shape)
        tensor.type, tensor.buffer = self._schema.TensorType.FLOAT32, len(self._model.buffers)
        self._model.buffers.append(buffer)
        graph.tensors.append(tensor)
        return len(graph.tensors) - 1


def _in_float(signatures: Mapping[str, Signature]) -> dict[str, Signature]:
    """The manifest's signatures, with int8 arguments and results in float32."""

    def in_float(tensors: Mapping[str, AnyTensor]) -> dict[str, AnyTensor]:
        return {
            name: replace(x, dtype="float32") if x.dtype == "int8" else x
            for name, x in tensors.items()
        }

    return {
        name: replace(x, inputs=in_float(x.inputs), outputs=in_float(x.outputs))
        for name, x in signatures.items()
    }


def _shape(tensor: TensorT) -> tuple[int, ...]:
    return tuple(int(x) for x in tensor.shape) if tensor.shape is not None else ()


def _scales(tensor: TensorT) -> int | None:
    """The index of the tensor that holds a tensor's blockwise scales, or None."""
    details = tensor.quantization and tensor.quantization.details
    return details.scales if hasattr(details, "scales") else None


def _is_quantized(tensor: TensorT) -> bool:
    quantization = tensor.quantization
    if quantization is None:
        return False
    scale = quantization.scale
    return _scales(tensor) is not None or (scale is not None and len(scale) > 0)
