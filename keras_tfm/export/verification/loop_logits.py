"""The logits of every step of a greedy decoding loop in a file, which returns only tokens."""

import copy
from collections.abc import Callable, Mapping

import numpy as np

from keras_tfm.atomic_files import temporary_folder
from keras_tfm.export.graph.loop_outputs import copy_loop_outputs
from keras_tfm.export.graph.schema import OperatorT, SignatureDefT, SubGraphT, TensorMapT
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.flatbuffer import Content
from keras_tfm.runtime.loaded_file import load_signatures
from keras_tfm.runtime.manifest.manifest import Input, Predict, Tensor
from keras_tfm.runtime.manifest.storage import import_litert, loadable

# The operators between the logits and TOPK_V2 where the argmax is taken block by block.
_BLOCKING = ("RESHAPE", "REDUCE_MAX", "PAD", "PADV2", "CONCATENATION")


class LoopLogits:
    """Runs a "generate" signature in pieces, and returns the logits of each step.

    The graph is cut at its loops. Each loop's condition and body become signatures, and the body
    also returns its logits. The operators are those of the file, in the same order.

    Args:
        content: the bytes of the file, or its memory map.
        signature: the name of the signature.
        size: the number of logits of a step over all rows, B times V.
        threads: the number of threads.
        xnnpack: as of `LoadedFile`.

    Attributes:
        found: whether the loops were found: only greedy search has logits (B, V) in its loop.
    """

    def __init__(
        self, content: Content, signature: str, size: int, threads: int = 1, xnnpack: bool = True
    ):
        self._threads, self._xnnpack = threads, xnnpack
        self._schema = import_litert("schema_py_generated")
        self._model = flatbuffer.read(content)
        self._model.metadata = []
        (self._entry,) = (
            x for x in self._model.signatureDefs if x.signatureKey.decode() == signature
        )
        self._main = self._model.subgraphs[self._entry.subgraphIndex]
        # Others are those of recurrent layers, which read a prompt.
        self._loops = [x for x in self._main.operators if self._is(x, "WHILE") and self._chooses(x)]
        bodies = [self._body_of(x) for x in self._loops]
        logits = [self._logits_of(body, size) for body in bodies]
        self.found = bool(bodies) and None not in logits
        self._runners: Mapping[str, Callable[..., dict[str, np.ndarray]]] = {}
        # For each output of a piece: the index of the input that it equals, or its constant value,
        # or None if the piece computes it.
        self._known: dict[str, list[int | np.ndarray | None]] = {}
        if self.found:
            self._load(bodies, [x for x in logits if x is not None])

    def run(self, inputs: dict[str, np.ndarray], most: int | None = None) -> np.ndarray:
        """The logits (B, steps, V) for one call's inputs, in the exported shape.

        `most`: the largest number of steps.
        """
        tensors = {x.tensorIndex: inputs[x.name.decode()] for x in self._entry.inputs}
        result = []
        for number, loop in enumerate(self._loops):
            state = self._call(f"before_{number}", [tensors[i] for i in sorted(tensors)])
            while self._call(f"condition_{number}", state)[0].item():
                *state, logits = self._call(f"body_{number}", state)
                result.append(logits)
                if len(result) == most:
                    return self._stack(result)
            tensors.update(zip(map(int, loop.outputs), state, strict=True))
        return self._stack(result)

    @staticmethod
    def _stack(logits: list[np.ndarray]) -> np.ndarray:
        return np.stack([x.reshape(-1, x.shape[-1]) for x in logits], axis=1)

    def _is(self, operator: OperatorT, name: str) -> bool:
        return flatbuffer.is_operator(self._model, operator, name)

    def _body_of(self, loop: OperatorT) -> SubGraphT:
        body: SubGraphT = self._model.subgraphs[loop.builtinOptions.bodySubgraphIndex]
        return body

    def _chooses(self, loop: OperatorT) -> bool:
        """Whether a loop's body may choose tokens."""
        operators = self._body_of(loop).operators
        return any(self._is(x, name) for x in operators for name in ("TOPK_V2", "WHILE"))

    def _logits_of(self, body: SubGraphT, size: int) -> int | None:
        """The index of the logits in a loop's body: the tensor whose argmax it takes."""
        makers = {int(y): x for x in body.operators for y in x.outputs}
        first = next((x for x in body.operators if self._is(x, "TOPK_V2")), None)
        if first is None or any(self._is(x, "WHILE") for x in body.operators):
            return None
        tensor = int(first.inputs[0])
        while np.prod(body.tensors[tensor].shape) != size:
            maker = makers.get(tensor)
            if maker is None or not any(self._is(maker, name) for name in _BLOCKING):
                return None
            tensor = int(maker.inputs[0])
        while (maker := makers.get(tensor)) is not None and self._is(maker, "RESHAPE"):
            tensor = int(maker.inputs[0])  # (B, V) before it is cut into blocks
        return tensor

    def _load(self, bodies: list[SubGraphT], logits: list[int]) -> None:
        self._model.signatureDefs = []
        whole = list(self._model.subgraphs)
        known = [int(x.tensorIndex) for x in self._entry.inputs]
        for number, loop in enumerate(self._loops):
            self._add(f"before_{number}", self._main, sorted(known), list(loop.inputs))
            known += [int(x) for x in loop.outputs]
            condition = self._model.subgraphs[loop.builtinOptions.condSubgraphIndex]
            self._add(
                f"condition_{number}", condition, list(condition.inputs), list(condition.outputs)
            )
            body = bodies[number]
            self._add(f"body_{number}", body, list(body.inputs), [*body.outputs, logits[number]])
        pieces = {x.signatureKey.decode(): self._piece(x) for x in self._model.signatureDefs}
        used = flatbuffer.reachable(self._model, range(len(whole), len(self._model.subgraphs)))
        for number, graph in enumerate(whole):
            if number not in used:  # its weights would be packed, too
                # LiteRT gives XNNPACK no graph of a file whose first one is empty, and its own
                # kernels are wrong for 4 bits in blocks.
                graph.operators = [] if number else graph.operators[:1]
        copy_loop_outputs(self._model)
        with temporary_folder() as folder:
            path = folder / "pieces.tflite"
            flatbuffer.save(path, self._model)
            source = loadable(path)
            self._runners = load_signatures(source, self._threads, pieces, self._xnnpack)

    def _add(self, name: str, graph: SubGraphT, inputs: list[int], outputs: list[int]) -> None:
        """Adds a signature with the operators of `graph` that compute `outputs` from `inputs`."""
        # LiteRT does not write an output that is an input or a constant, dequantised or not.
        places = {int(x): i for i, x in enumerate(inputs)}
        known = [places.get(int(x), self._constant(graph, int(x))) for x in outputs]
        self._known[name] = known
        outputs = [x for x, value in zip(outputs, known, strict=True) if value is None]
        piece = copy.copy(graph)
        piece.name, piece.inputs, piece.outputs = name.encode(), inputs, outputs
        needed, kept = {int(x) for x in outputs} - set(map(int, inputs)), []
        for operator in reversed(graph.operators):
            if needed & set(map(int, operator.outputs)):
                kept.append(copy.copy(operator))
                needed |= set(map(int, operator.inputs)) - set(map(int, inputs))
        piece.operators = kept[::-1]
        signature = self._schema.SignatureDefT()
        signature.signatureKey, signature.subgraphIndex = name.encode(), len(self._model.subgraphs)
        signature.inputs = self._maps("in", inputs)
        signature.outputs = self._maps("out", outputs)
        self._model.subgraphs.append(piece)
        self._model.signatureDefs.append(signature)

    def _piece(self, signature: SignatureDefT) -> Predict:
        """What a signature takes and returns."""
        types = {x: name.lower() for name, x in vars(self._schema.TensorType).items()}
        tensors = self._model.subgraphs[signature.subgraphIndex].tensors

        def description(x: TensorMapT) -> tuple[str, Tensor]:
            tensor = tensors[x.tensorIndex]
            shape = [] if tensor.shape is None else list(map(int, tensor.shape))
            return x.name.decode(), Tensor(shape=shape, dtype=types[tensor.type])

        inputs = {
            name: Input(shape=x.shape, dtype=x.dtype, kind="input", padded=False)
            for name, x in map(description, signature.inputs)
        }
        return Predict(inputs=inputs, outputs=dict(map(description, signature.outputs)))

    def _constant(self, graph: SubGraphT, index: int) -> np.ndarray | None:
        """The value of a constant, or of a dequantised weight; None for any other tensor."""
        result, types = graph.tensors[index], vars(self._schema.TensorType)
        data = self._model.buffers[result.buffer].data
        if data is not None and len(data):
            (dtype,) = (name.lower() for name, x in types.items() if x == result.type)
            shape = () if result.shape is None else result.shape
            return np.frombuffer(bytes(data), dtype).reshape(shape)
        for operator in graph.operators:
            if index in operator.outputs and self._is(operator, "DEQUANTIZE"):
                tensor = graph.tensors[operator.inputs[0]]
                data = self._model.buffers[tensor.buffer].data
                if data is None:
                    return None
                if tensor.type == self._schema.TensorType.FLOAT16:
                    half = np.frombuffer(bytes(data), "float16").reshape(tensor.shape)
                    return half.astype("float32")
                return flatbuffer.dequantize(self._model, tensor)[0]
        return None

    def _maps(self, prefix: str, tensors: list[int]) -> list[TensorMapT]:
        result = []
        for number, tensor in enumerate(tensors):
            entry = self._schema.TensorMapT()
            entry.name, entry.tensorIndex = f"{prefix}{number}".encode(), int(tensor)
            result.append(entry)
        return result

    def _call(self, name: str, arguments: list[np.ndarray]) -> list[np.ndarray]:
        results = self._runners[name](**{f"in{i}": x for i, x in enumerate(arguments)})
        computed = (results[f"out{i}"] for i in range(len(results)))
        return [
            next(computed) if x is None else arguments[x] if isinstance(x, int) else x
            for x in self._known[name]
        ]
