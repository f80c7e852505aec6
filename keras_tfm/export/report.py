"""What is in a .tflite file: operators, and how much of them XNNPACK runs."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from keras_tfm.export.verification import Verification
from keras_tfm.runtime import native_log
from keras_tfm.runtime.manifest import import_litert


@dataclass
class Subgraph:
    """One graph of the file: a signature's, or a loop's body or condition.

    Attributes:
        name: the converter's name of it.
        operators: how many of each.
        delegated: how many nodes XNNPACK runs.
        partitions: in how many pieces it runs them; between two pieces the interpreter runs the
            nodes that XNNPACK does not take.
    """

    name: str
    operators: dict[str, int]
    delegated: int
    partitions: int

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return sum(self.operators.values())


@dataclass
class Report:
    """What was exported; `print` it, or take `asdict()`."""

    path: str
    bytes: int
    quantization: str
    signatures: dict[str, Any]
    subgraphs: list[Subgraph]
    custom_operators: list[str] = field(default_factory=list)
    verification: Verification | None = None

    def asdict(self) -> dict[str, Any]:
        """Everything, as plain dictionaries and lists."""
        return asdict(self)

    def __str__(self) -> str:
        """A table for people."""
        lines = [f"{self.path}: {self.bytes / 1e6:.2f} MB, {self.quantization}"]
        for name, signature in self.signatures.items():
            inputs = ", ".join(
                f"{key} {tuple(spec['shape'])} {spec['dtype']}"
                for key, spec in signature["inputs"].items()
            )
            outputs = ", ".join(
                f"{key} {tuple(spec['shape'])} {spec['dtype']}"
                for key, spec in signature["outputs"].items()
            )
            lines.append(f"  {name}({inputs}) -> {outputs}")
        lines.append(f"  {'graph':24} {'nodes':>6} {'on XNNPACK':>11} {'partitions':>11}")
        for graph in self.subgraphs:
            lines.append(
                f"  {graph.name[:24]:24} {graph.nodes:6} {graph.delegated:11} {graph.partitions:11}"
            )
        if self.verification is not None:
            lines.append(str(self.verification))
        lines.append(f"  Flex and custom operators: {', '.join(self.custom_operators) or 'none'}")
        return "\n".join(lines)


def inspect_subgraphs(content: bytes) -> list[Subgraph]:
    """The subgraphs of a .tflite file, each given to XNNPACK by itself."""
    schema = import_litert("schema_py_generated")
    names = {
        code: name
        for name, code in vars(schema.BuiltinOperator).items()
        if not name.startswith("_")
    }
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))

    def operator_name(operator: Any) -> str:
        code = model.operatorCodes[operator.opcodeIndex]
        if code.customCode is not None:
            return code.customCode.decode()
        return names[max(code.builtinCode, code.deprecatedBuiltinCode)]

    result = []
    for index, graph in enumerate(model.subgraphs):
        operators = Counter(operator_name(operator) for operator in graph.operators)
        delegated, partitions = _delegation(_first(content, index, schema))
        name = (graph.name or b"").decode()
        result.append(Subgraph(name, dict(operators.most_common()), delegated, partitions))
    return result


def bytes_by_kind(content: bytes) -> dict[str, int]:
    """The bytes of a file: constants by their type, each counted once, then "metadata", "graph".

    "graph" is what remains: operators, names, and the padding between constants.
    """
    schema = import_litert("schema_py_generated")
    types = {
        code: name.lower()
        for name, code in vars(schema.TensorType).items()
        if not name.startswith("_")
    }
    model = schema.Model.GetRootAsModel(content, 0)
    kinds = {model.Metadata(i).Buffer(): "metadata" for i in range(model.MetadataLength())}
    for i in range(model.SubgraphsLength()):
        graph = model.Subgraphs(i)
        for j in range(graph.TensorsLength()):
            kinds.setdefault(graph.Tensors(j).Buffer(), types[graph.Tensors(j).Type()])
    sizes: Counter[str] = Counter()
    for number, kind in kinds.items():
        sizes[kind] += model.Buffers(number).DataLength()
    metadata = sizes.pop("metadata", 0)
    result = {kind: size for kind, size in sizes.most_common() if size}
    return {**result, "metadata": metadata, "graph": len(content) - sizes.total() - metadata}


def custom_operators(content: bytes) -> list[str]:
    """The names of operators that plain LiteRT does not have: Flex and custom ones."""
    schema = import_litert("schema_py_generated")
    model = schema.Model.GetRootAsModel(content, 0)
    codes = [model.OperatorCodes(i).CustomCode() for i in range(model.OperatorCodesLength())]
    return sorted({code.decode() for code in codes if code is not None})


def _first(content: bytes, index: int, schema: Any) -> bytes:
    """The same file with subgraph `index` as its main one, whose nodes LiteRT lists."""
    import flatbuffers

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
    order = list(range(len(model.subgraphs)))
    order[0], order[index] = order[index], order[0]
    for graph in model.subgraphs:
        for operator in graph.operators:
            options = operator.builtinOptions
            for key in ("condSubgraphIndex", "bodySubgraphIndex"):
                if hasattr(options, key):
                    setattr(options, key, order.index(getattr(options, key)))
    model.subgraphs = [model.subgraphs[i] for i in order]
    model.signatureDefs = None
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _delegation(content: bytes) -> tuple[int, int]:
    """How many nodes of the main subgraph XNNPACK runs, and in how many partitions."""
    interpreter_module = import_litert("interpreter")
    try:
        with native_log.captured():
            interpreter = interpreter_module.Interpreter(model_content=content, num_threads=1)
            interpreter.allocate_tensors()
    except RuntimeError:
        if not custom_operators(content):
            raise
        return 0, 0  # it cannot be run without the kernels of its custom operators
    nodes = interpreter._get_ops_details()  # not public, and the only account of delegation
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


def make_report(path: Path, content: bytes, manifest: dict[str, Any]) -> Report:
    """The report of a file whose bytes are `content`."""
    return Report(
        path=str(path),
        bytes=len(content),
        quantization=manifest["quantization"],
        signatures=manifest["signatures"],
        subgraphs=inspect_subgraphs(content),
        custom_operators=custom_operators(content),
    )
