"""An exported file whose graph computes in float32, so that its rounded weights can be replaced."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from keras_tfm.export.graph.gpu_weights import LOOKUPS
from keras_tfm.export.graph.schema import OperatorT, SubGraphT, TensorT
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.flatbuffer import Content, LazyBytes
from keras_tfm.runtime.manifest.manifest import Manifest, Signature, Tensor
from keras_tfm.runtime.manifest.storage import import_litert

AnyTensor = TypeVar("AnyTensor", bound=Tensor)


# Of a weight's first axis, or an array of positions for each axis.
Index = slice | tuple[np.ndarray, ...]
# The number of values of a weight that are in memory at once.
_BLOCK = 1 << 21


class Stored:
    """A weight as the file stores it, dequantised where it is read.

    Args:
        shape: its shape; leading axes of size 1 are dropped.
        read: function of an index that returns the values there, dequantised to float32, and their
            quantisation steps.

    Attributes:
        shape: tuple of int, at least one axis.
    """

    def __init__(
        self, shape: tuple[int, ...], read: Callable[[Index], tuple[np.ndarray, np.ndarray]]
    ):
        self.shape, self.read = _without_ones(shape), read

    @classmethod
    def of(cls, values: np.ndarray, step: np.ndarray) -> "Stored":
        """A weight with these dequantised values, and a step that broadcasts to them."""
        shape = _without_ones(values.shape)
        values, step = values.reshape(shape), np.broadcast_to(step, values.shape).reshape(shape)
        return cls(shape, lambda index: (values[index], step[index]))

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    @property
    def values(self) -> np.ndarray:
        """All values."""
        return self.read(slice(None))[0]

    @property
    def step(self) -> np.ndarray:
        """The quantisation step of each value."""
        return self.read(slice(None))[1]

    @functools.cached_property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest value, or zero."""
        blocks = [(x.min(initial=0.0), x.max(initial=0.0)) for _, x, _ in self.blocks(1)]
        return float(min(x for x, _ in blocks)), float(max(x for _, x in blocks))

    def blocks(self, width: int) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """The weight as a matrix of this width, a few rows at a time: rows, values, steps."""
        inner = self.size // self.shape[0] if self.size else 1
        unit = math.lcm(inner, width) // inner
        count = max(1, _BLOCK // (unit * inner)) * unit
        for start in range(0, self.shape[0], count):
            values, step = self.read(slice(start, start + count))
            first = start * inner // width
            values = values.reshape(-1, width)
            yield slice(first, first + len(values)), values, step.reshape(-1, width)


class FloatFile:
    """The graph of a file without the rounding of weights and activations.

    Constants are dequantised, quantised activations and KV caches become float32, and the QUANTIZE
    and DEQUANTIZE operators are removed.

    Args:
        content: the bytes of the file, or its memory map.
        dither: generator, for int8 caches: values are then rounded at random places, but in the
            steps of the file. x becomes floor(x + c) - c + 1/2 with a constant c between 0 and 1
            for each place, so its error is distributed as that of rounding. Default: no rounding.

    Attributes:
        stored: the rounded weights, by the index of their buffer.
    """

    def __init__(self, content: Content, dither: np.random.Generator | None = None):
        self._dither = dither
        self._schema = import_litert("schema_py_generated")
        self._model = flatbuffer.read(content)
        self._model.metadata = []
        self.stored: dict[int, Stored] = {}
        self._read()
        for graph in self._model.subgraphs:
            self._compute_in_float(graph)

    def save(
        self,
        path: Path,
        manifest: Manifest,
        values: Mapping[int, Callable[[], Iterable[np.ndarray]]],
    ) -> None:
        """Writes the file with `manifest`, and with the chunks of `values` as weights, by buffer.

        Chunks are arrays of float32, in the order of the file.
        """
        for buffer, stored in self.stored.items():
            self._model.buffers[buffer].data = LazyBytes(4 * stored.size, values[buffer])
        if manifest.cache == "int8":
            manifest = replace(manifest, signatures=_in_float(manifest.signatures))
            if self._dither is None:
                manifest = replace(manifest, cache="float32")
        flatbuffer.save(path, self._model, manifest)

    def _read(self) -> None:
        """Fills `stored`. Tensors that share a buffer but not their scales get separate buffers.

        So do those that share it with constants that are not rounded: zeros in int8 are also zeros
        in int32.
        """
        twice = self._rounded_twice()
        widened = self._widened_tables()
        buffers: dict[tuple[object, ...], int] = {}
        read: list[tuple[TensorT, tuple[object, ...], Stored]] = []
        used: set[int] = set()
        for graph in self._model.subgraphs:
            scales = {_scales(x) for x in graph.tensors} - {None}
            for index, tensor in enumerate(graph.tensors):
                found = None
                if index not in scales:
                    more = twice.get(tensor.buffer, 0.0)
                    found = self._rounded_constant(graph, tensor, widened, more)
                if found is None:
                    used.add(tensor.buffer)
                else:
                    read.append((tensor, *found))
        for tensor, scale, stored in read:
            key = (tensor.buffer, tensor.type, *scale)
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
                data = np.asarray(self._model.buffers[use.tensor.buffer].data, "uint8")
                values = data.view("float32")
                parts = (values[i : i + _BLOCK] for i in range(0, len(values), _BLOCK))
                with np.errstate(over="ignore"):
                    if all(np.array_equal(x, x.astype("float16").astype("float32")) for x in parts):
                        found.add(use.tensor.buffer)
        return found

    def _rounded_constant(
        self, graph: SubGraphT, tensor: TensorT, widened: set[int], more: float
    ) -> tuple[tuple[object, ...], Stored] | None:
        """A rounded constant, after what tells its scales; None for any other tensor.

        `more`: added to its steps.
        """
        types, quantization = self._schema.TensorType, tensor.quantization
        data = self._model.buffers[tensor.buffer].data
        if data is None or not len(data):
            return None
        shape, data = _without_ones(_shape(tensor)), np.asarray(data, "uint8")
        if tensor.type == types.FLOAT16 or tensor.buffer in widened:
            kept = data.view("float16" if tensor.type == types.FLOAT16 else "float32")
            kept = kept.reshape(shape)

            def read_half(index: Index) -> tuple[np.ndarray, np.ndarray]:
                half = kept[index].astype("float16")
                return half.astype("float32"), np.spacing(np.abs(half)).astype("float32")

            return (), Stored(shape, read_half)
        details = quantization and quantization.details
        if hasattr(details, "scales"):
            rows = graph.tensors[details.scales]
            scales = np.asarray(self._model.buffers[rows.buffer].data, "uint8").view("float16")
            key: tuple[object, ...] = (rows.buffer, details.blockSize)
            scale = scales.astype("float32").reshape(*shape[:-1], -1)
            return key, Stored(shape, _reader(data, "int4", shape, scale, details.blockSize))
        if not _is_quantized(tensor):
            return None
        scale = np.asarray(quantization.scale, "float32")
        zero = np.zeros(1, "int64")
        if quantization.zeroPoint is not None and len(quantization.zeroPoint):
            zero = np.asarray(quantization.zeroPoint, "int64")
        key = (scale.tobytes(), zero.tobytes(), quantization.quantizedDimension)
        if scale.size > 1:
            along = [1] * len(tensor.shape)
            along[quantization.quantizedDimension] = -1
            dropped = len(along) - len(shape)
            scale = scale.reshape(along[dropped:])
            zero = zero.reshape(along[dropped:]) if zero.size > 1 else zero
        kinds = {types.INT4: "int4", types.INT8: "int8", types.INT16: "int16", types.INT32: "int32"}
        return key, Stored(shape, _reader(data, kinds[tensor.type], shape, scale, 1, zero, more))

    def _compute_in_float(self, graph: SubGraphT) -> None:
        types, operators = self._schema.TensorType, self._schema.BuiltinOperator
        scales = {_scales(x) for x in graph.tensors} - {None}
        halves = self._own_halves(graph)
        for index, tensor in enumerate(graph.tensors):
            if index in scales or index in halves:
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

    def _own_halves(self, graph: SubGraphT) -> set[int]:
        """The tensors in float16 that the model has, not a quantised weight.

        They are the inputs of a signature, what is cast to float16, and what is computed from them.
        """
        types, operators = self._schema.TensorType, self._schema.BuiltinOperator

        def halves(tensors: Iterable[int]) -> set[int]:
            return {int(x) for x in tensors if graph.tensors[int(x)].type == types.FLOAT16}

        number = self._model.subgraphs.index(graph)
        is_called = any(x.subgraphIndex == number for x in self._model.signatureDefs or ())
        found = halves(graph.inputs) if is_called else set()
        for operator in graph.operators:
            code = self._model.operatorCodes[operator.opcodeIndex]
            is_cast = max(code.builtinCode, code.deprecatedBuiltinCode) == operators.CAST
            if is_cast or not found.isdisjoint(map(int, operator.inputs)):
                found |= halves(operator.outputs)
        return found

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


def _reader(
    data: np.ndarray,
    kind: str,
    shape: tuple[int, ...],
    scale: np.ndarray,
    block: int = 1,
    zero: np.ndarray | None = None,
    more: float = 0.0,
) -> Callable[[Index], tuple[np.ndarray, np.ndarray]]:
    """What reads integers, dequantised, and their steps.

    Args:
        data: the bytes.
        kind: the integers' type.
        shape: their shape.
        scale, zero: arrays that broadcast to it.
        block: int, the number of values of the last axis that share a scale.
        more: float, added to the steps.
    """
    if kind == "int4":  # a byte holds the first of two values in its low bits
        if shape[-1] % 2:
            low_first = np.stack([data << 4, data & 240], axis=-1).view("int8") >> 4
            numbers, packed = low_first.ravel()[: math.prod(shape)].reshape(shape), False
        else:
            numbers, packed = data.reshape(*shape[:-1], -1), True
    else:
        numbers, packed = data.view(kind).reshape(shape), False
    exact = "float32" if numbers.itemsize == 1 else "float64"
    per_block = (*shape[:-1], shape[-1] // block) if block > 1 else shape
    scale = np.broadcast_to(scale, per_block)
    zeros = None if zero is None or not np.any(zero) else np.broadcast_to(zero, shape)

    def read(index: Index) -> tuple[np.ndarray, np.ndarray]:
        if isinstance(index, slice):
            found, step = numbers[index], scale[index]
            if packed:
                halves = np.stack([found << 4, found & 240], axis=-1).view("int8") >> 4
                found = halves.reshape(*found.shape[:-1], -1)
            if block > 1:
                step = np.repeat(step, block, axis=-1)
        else:
            *outer, last = index
            step = scale[(*outer, last // block)]
            if packed:
                found = numbers[(*outer, last // 2)]
                found = np.where(last % 2, found & 240, found << 4).astype("uint8")
                found = found.view("int8") >> 4
            else:
                found = numbers[index]
        values = found.astype(exact)
        if zeros is not None:
            values -= zeros[index]
        return (values * step).astype("float32"), step + np.float32(more) if more else step

    return read


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without leading axes of size 1, but with at least one axis."""
    first = next((i for i, n in enumerate(shape) if n != 1), len(shape) - 1)
    return shape[first:] or (1,)


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
