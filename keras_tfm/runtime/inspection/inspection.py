"""The content of a .tflite file: signatures, sizes, operators and XNNPACK partitions."""

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from keras_tfm.runtime import flatbuffer, litert_internals
from keras_tfm.runtime.flatbuffer import Content
from keras_tfm.runtime.litert_internals import Table
from keras_tfm.runtime.manifest.manifest import (
    Decode,
    Encode,
    Input,
    Manifest,
    Prefill,
    Stream,
    Tensor,
)
from keras_tfm.runtime.manifest.records import Json
from keras_tfm.runtime.manifest.storage import File, import_litert, map_content, read, source_of


@dataclass
class Subgraph:
    """One graph of the file: that of a signature, of a loop, or of branches that are alike.

    Attributes:
        name: str, the name that the converter gave it.
        operators: dict from an operator to its number of nodes.
        delegated: int, the number of nodes delegated to XNNPACK.
        partitions: int, the number of XNNPACK partitions; between two of them the interpreter runs
            nodes that XNNPACK does not support.
        count: int, the number of branches that have these operators, and tensors of these shapes:
            those of the experts of all blocks are alike.
    """

    name: str
    operators: dict[str, int]
    delegated: int
    partitions: int
    count: int = 1

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return sum(self.operators.values())


@dataclass
class Inspection:
    """The content of a file; `print` it, or take `asdict()`.

    Attributes:
        path: str or Path, the file.
        bytes: its size.
        manifest: its manifest, with the signatures.
        subgraphs: its graphs.
        layers: the bytes of each layer's weights, by its path in the model.
        bytes_by_kind: the bytes of constants by dtype, of "metadata", and of the rest, "graph".
        custom_operators: the operators that plain LiteRT lacks.
    """

    path: str
    bytes: int
    manifest: Json
    subgraphs: list[Subgraph]
    bytes_by_kind: dict[str, int]
    custom_operators: list[str]

    @property
    def quantization(self) -> str:
        """The quantization preset."""
        return str(self.manifest["quantization"])

    @property
    def signatures(self) -> Json:
        """The signatures of the manifest: inputs, outputs and settings by name."""
        signatures: Json = self.manifest["signatures"]
        return signatures

    @property
    def layers(self) -> dict[str, int]:
        """The bytes of each layer's weights, by its path in the model."""
        layers: dict[str, int] = self.manifest.get("layers", {})
        return layers

    def asdict(self) -> Json:
        """Everything, as plain dictionaries and lists."""
        return asdict(self)

    def __str__(self) -> str:
        """The content as a text table."""
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Size, signatures and graphs, one per line."""
        manifest = Manifest.from_json(self.manifest)
        caches = ", int8 caches" if manifest.cache == "int8" else ""
        lines = [f"{self.path}: {self.bytes / 1e6:.2f} MB, {manifest.quantization}{caches}"]
        steps = [x for x in manifest.signatures.values() if isinstance(x, Prefill | Decode)]
        cached = {name for signature in steps for name in signature.of_kind("cache")}
        for name, x in manifest.signatures.items():
            hidden = cached if isinstance(x, Encode | Prefill | Decode) else set()
            if isinstance(x, Stream):
                hidden = {*x.states}
            inputs, outputs = (_describe(tensors, hidden) for tensors in (x.inputs, x.outputs))
            lines.append(f"  {name}({inputs}) -> {outputs}")
            if isinstance(x, Stream):
                lines.append(f"  {name}: {x.delay} positions late, keeps {x.floats} numbers")
        lines.append(f"  {'graph':24} {'nodes':>6} {'on XNNPACK':>11} {'partitions':>11}")
        for graph in self.subgraphs:
            numbers = f"{graph.nodes:6} {graph.delegated:11} {graph.partitions:11}"
            others = f"  x {graph.count}" if graph.count > 1 else ""
            lines.append(f"  {graph.name[:24]:24} {numbers}{others}")
        lines.append(f"  Flex and custom operators: {', '.join(self.custom_operators) or 'none'}")
        return lines

    def table(self, depth: int = 1) -> str:
        """`lines`, sizes of layers up to `depth`, bytes by kind, operators, and the manifest."""
        lines = self.lines()
        sizes: Counter[str] = Counter()
        for path, size in self.layers.items():
            sizes["/".join(path.split("/")[:depth])] += size
        width = max([24, *map(len, sizes)])
        lines.append(f"  {'weights of':{width}} {'kB':>10} {'share':>7}")
        for path, size in sizes.items():
            share = size / self.bytes
            bar = "#" * round(40 * min(share, 1))
            path = path or "no layer"
            lines.append(f"  {path:{width}} {size / 1e3:10.1f} {share:7.1%} {bar}".rstrip())
        kinds = (f"{kind} {size / 1e3:.1f} kB" for kind, size in self.bytes_by_kind.items())
        lines.append(f"  bytes: {', '.join(kinds)}")
        operators: Counter[str] = Counter()
        for graph in self.subgraphs:
            operators.update({name: graph.count * x for name, x in graph.operators.items()})
        counts = (f"{name} {count}" for name, count in operators.most_common())
        lines.append(f"  operators: {', '.join(counts)}")
        for key, value in self.manifest.items():
            if key not in ("signatures", "layers", "quantization"):
                lines.append(f"  {key}: {value}")
        return "\n".join(lines)


def _describe(tensors: Mapping[str, Tensor], cached: set[str]) -> str:
    """Names, shapes, dtypes and nonzero padding ids; all caches as one entry."""
    texts, caches = [], [x for name, x in tensors.items() if name in cached]
    for name, x in tensors.items():
        if name not in cached:
            padding = f" padded with {x.pad_id}" if isinstance(x, Input) and x.pad_id else ""
            texts.append(f"{name} {tuple(x.shape)} {x.dtype}{padding}")
    if caches:
        size = sum(int(np.prod(x.shape)) * np.dtype(x.dtype).itemsize for x in caches)
        texts.append(f"{len(caches)} caches of {size / 1e3:.1f} kB")
    return ", ".join(texts)


def inspect_file(path: File) -> Inspection:
    """The content of a file, given as in `runtime.load`, after its checksum was verified.

    Raises:
        FileNotFoundError, ValueError: as in `runtime.load`.
    """
    source, name = source_of(path)
    manifest = read(source, name)
    return Inspection(**inspection_fields(name, source, manifest))


def inspection_fields(name: str | Path, source: Path | bytes, manifest: Manifest) -> Json:
    """The fields of an `Inspection` of a file, given as a path or bytes; `name` is shown."""
    content = map_content(source)
    return {
        "path": str(name),
        "bytes": len(content),
        "manifest": manifest.to_json(),
        "subgraphs": inspect_subgraphs(content),
        "bytes_by_kind": bytes_by_kind(content),
        "custom_operators": custom_operators(content),
    }


def inspect_subgraphs(content: Content) -> list[Subgraph]:
    """The subgraphs of a .tflite file with operators, each delegated to XNNPACK separately."""
    schema = import_litert("schema_py_generated")
    names = {
        code: name
        for name, code in vars(schema.BuiltinOperator).items()
        if not name.startswith("_")
    }
    model = flatbuffer.read(content)
    operator_names = [
        names[max(code.builtinCode, code.deprecatedBuiltinCode)]
        if code.customCode is None
        else code.customCode.decode()
        for code in model.operatorCodes
    ]
    branches = {
        number
        for graph in model.subgraphs
        for x in graph.operators
        if operator_names[x.opcodeIndex] == "IF"
        for number in flatbuffer.called_subgraphs(x).values()
    }
    result = []
    alike: dict[object, Subgraph] = {}
    for index, graph in enumerate(model.subgraphs):
        if not len(graph.operators):
            continue
        kind = _structure(graph) if index in branches else index
        if kind in alike:
            alike[kind].count += 1
            continue
        operators = Counter(operator_names[x.opcodeIndex] for x in graph.operators)
        try:
            # Which nodes XNNPACK runs does not depend on weights, of which it makes copies.
            alone = flatbuffer.without_weights(_with_main(model, index))
            delegated, partitions = _delegation(alone)
        except RuntimeError:
            if not custom_operators(content):  # LiteRT cannot run those here
                raise
            delegated, partitions = 0, 0
        name = (graph.name or b"").decode()
        alike[kind] = Subgraph(name, dict(operators.most_common()), delegated, partitions)
        result.append(alike[kind])
    return result


def _structure(graph: Table) -> tuple[object, ...]:
    """What is equal in graphs that differ in names and constants alone."""
    operators = [(x.opcodeIndex, tuple(x.inputs), tuple(x.outputs)) for x in graph.operators]
    tensors = [(x.type, tuple(() if x.shape is None else x.shape)) for x in graph.tensors]
    return tuple(operators), tuple(tensors)


def bytes_by_kind(content: Content) -> dict[str, int]:
    """The bytes of a file: constants by their type, each counted once, then "metadata", "graph".

    "graph" is what remains: operators, names, and the padding between constants.
    """
    schema = import_litert("schema_py_generated")
    types = _types(schema)
    model = schema.Model.GetRootAsModel(content, 0)
    kinds = {model.Metadata(i).Buffer(): "metadata" for i in range(model.MetadataLength())}
    for i in range(model.SubgraphsLength()):
        graph = model.Subgraphs(i)
        for j in range(graph.TensorsLength()):
            kinds.setdefault(graph.Tensors(j).Buffer(), types[graph.Tensors(j).Type()])
    sizes: Counter[str] = Counter()
    for number, kind in kinds.items():
        sizes[kind] += _buffer_size(model.Buffers(number))
    metadata = sizes.pop("metadata", 0)
    result = {kind: size for kind, size in sizes.most_common() if size}
    return {**result, "metadata": metadata, "graph": len(content) - sizes.total() - metadata}


def bytes_by_scopes(content: Content) -> dict[tuple[str, ...], int]:
    """The bytes of constants by the scopes of the operators that the converter fused into one.

    The original operator is usually the last, except where a scale or a residual was fused.
    """
    schema = import_litert("schema_py_generated")
    model = schema.Model.GetRootAsModel(content, 0)
    sizes: Counter[tuple[str, ...]] = Counter()
    seen: set[int] = set()
    for i in range(model.SubgraphsLength()):
        graph = model.Subgraphs(i)
        for j in range(graph.TensorsLength()):
            tensor = graph.Tensors(j)
            size = _buffer_size(model.Buffers(tensor.Buffer()))
            if size and tensor.Buffer() not in seen:
                seen.add(tensor.Buffer())
                names = [x for x in (tensor.Name() or b"").decode().split(";") if "/" in x]
                sizes[tuple(names)] += size
    return dict(sizes)


def _types(schema: ModuleType) -> dict[int, str]:
    """The dtypes of a file's tensors by their codes."""
    codes = vars(schema.TensorType).items()
    return {code: name.lower() for name, code in codes if not name.startswith("_")}


def custom_operators(content: Content) -> list[str]:
    """The names of operators that plain LiteRT lacks: Flex and custom ones."""
    schema = import_litert("schema_py_generated")
    model = schema.Model.GetRootAsModel(content, 0)
    codes = [model.OperatorCodes(i).CustomCode() for i in range(model.OperatorCodesLength())]
    return sorted({code.decode() for code in codes if code is not None})


def _buffer_size(buffer: Table) -> int:
    """The bytes of a constant, inside the flatbuffer or behind it."""
    return int(buffer.DataLength() or buffer.Size())


def _with_main(model: Table, index: int) -> Table:
    """The file with subgraph `index` as the main one: LiteRT lists only the main one's nodes.

    Of the other subgraphs, those that it calls are there, and the rest are empty: XNNPACK would
    pack their weights, too.
    """
    swap = {0: index, index: 0}
    used = flatbuffer.reachable(model, [index])
    changed = copy.copy(model)
    changed.signatureDefs, changed.metadata, changed.subgraphs = [], [], []
    for number in range(len(model.subgraphs)):
        graph = copy.copy(model.subgraphs[swap.get(number, number)])
        is_used = swap.get(number, number) in used
        graph.operators = [_renumber(x, swap) for x in graph.operators] if is_used else []
        if not is_used:
            graph.tensors = graph.inputs = graph.outputs = []
        changed.subgraphs.append(graph)
    needed = {tensor.buffer for graph in changed.subgraphs for tensor in graph.tensors}
    empty = type(model.buffers[0])()
    changed.buffers = [x if i in needed else empty for i, x in enumerate(model.buffers)]
    return changed


def _renumber(operator: Table, numbers: Mapping[int, int]) -> Table:
    """The operator, where the subgraphs that it calls have other numbers."""
    changed = copy.copy(operator)
    for (field, key), number in flatbuffer.called_subgraphs(operator).items():
        options = copy.copy(getattr(changed, field))
        setattr(options, key, numbers.get(number, number))
        setattr(changed, field, options)
    return changed


def _delegation(content: bytes) -> tuple[int, int]:
    """The number of nodes of the main subgraph that XNNPACK runs, and of its partitions."""
    interpreter_module = import_litert("interpreter")
    interpreter = interpreter_module.Interpreter(model_content=content, num_threads=1)
    interpreter.allocate_tensors()
    nodes = litert_internals.nodes(interpreter)
    delegates = [node for node in nodes if node["op_name"] == "DELEGATE"]
    producer = {
        output: node
        for node in nodes
        if node["op_name"] != "DELEGATE"
        for output in node["outputs"]
    }
    taken: set[int] = set()
    for delegate in delegates:
        inputs, waiting = set(delegate["inputs"]), list(delegate["outputs"])
        while waiting:
            tensor = waiting.pop()
            node = producer.get(tensor)
            if tensor in inputs or node is None or node["index"] in taken:
                continue
            taken.add(node["index"])
            waiting.extend(node["inputs"])
    return len(taken), len(delegates)
