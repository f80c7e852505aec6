"""How the package is built: the files of one token and of one export, folders, circles, names.

    python benchmarks/structure.py                       # the table, 30 s
    python benchmarks/structure.py --list participles    # where; see --help
    python benchmarks/structure.py --sources             # without the token and the export: 2 s

It needs no other package than those of the library. Nothing here is asserted but what
tests/test_structure.py imports.
"""

import argparse
import ast
import collections
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "keras_tfm"

# Lines after which a file is worth a look: does it have more than one reason to change?
LONG = 400

# Past participles that do not end in "ed", of the verbs that function names are made of.
IRREGULAR = set(
    re.findall(
        r"\w+",
        """
        begun bound broken brought built bought chosen cut done drawn driven fallen felt forgotten
        found frozen given gone grown held hidden kept known laid led left lent lost made meant met
        paid proven put rebuilt redone rewritten run said seen sent set shaken shown shrunk shut
        split spoken spread stood stuck sunk swept taken thought thrown told understood undone
        unknown withdrawn won worn woven written
        """,
    )
)
# Also verbs, and also nouns: `run` and `set` say what a function does, `seed` and `need` are none.
NO_PARTICIPLES = {"cut", "embed", "feed", "need", "put", "run", "seed", "set", "shed", "shut"}
NO_PARTICIPLES |= {"speed", "split", "spread", "exceed", "proceed", "succeed", "bed", "led"}


def module_files(package: Path = PACKAGE) -> dict[str, Path]:
    """The modules of a package, by their dotted names."""
    root = package.parent
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(package.rglob("*.py"))
    }


# Sources


def all_imports(module: str, path: Path, modules: dict[str, Path]) -> set[str]:
    """The modules of the package that one imports: late and type-checking imports, too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parts = parts[: len(parts) - node.level + (path.name == "__init__.py")]
                base = ".".join([*parts, *filter(None, [node.module])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                found.add(whole if whole in modules else base)
    return {x for x in found if x in modules} - {module}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of nodes that lead to each other (Tarjan 1972), the largest first."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found, key=len, reverse=True)


def import_circles(package: Path = PACKAGE) -> list[list[str]]:
    """Groups of modules that import each other, now, later or for types."""
    modules = module_files(package)
    return circles({name: all_imports(name, path, modules) for name, path in modules.items()})


def is_lone_participle(name: str) -> bool:
    """Whether a function is named by a past participle alone, such as `written`."""
    word = name.strip("_")
    if word in NO_PARTICIPLES or "_" in word:
        return False
    return word in IRREGULAR or bool(re.fullmatch(r"[a-z]{2,}ed", word))


def lone_participles(package: Path = PACKAGE) -> list[str]:
    """Functions and methods without properties, named by a participle alone."""
    found = []
    for module, path in module_files(package).items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and is_lone_participle(node.name):
                if any("property" in ast.unparse(x) for x in node.decorator_list):
                    continue  # `file.closed` is a state
                found.append(f"{module}:{node.lineno} {node.name}")
    return found


def annotations(tree: ast.AST) -> Iterator[ast.expr]:
    """The annotations of arguments, results and variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef) and node.returns:
            yield node.returns


def any_annotations(package: Path = PACKAGE) -> dict[str, int]:
    """How often `Any` stands in annotations, by module."""
    counts = {}
    for module, path in module_files(package).items():
        trees = annotations(ast.parse(path.read_text()))
        names = (x for tree in trees for x in ast.walk(tree))
        counts[module] = sum(isinstance(x, ast.Name) and x.id == "Any" for x in names)
    return counts


def folder_sizes(package: Path = PACKAGE) -> dict[str, int]:
    """The number of modules in each folder, `__init__.py` not counted."""
    paths = module_files(package).values()
    names = (x.parent.relative_to(package.parent) for x in paths if x.name != "__init__.py")
    return dict(collections.Counter(str(x) for x in names))


def line_counts(package: Path = PACKAGE) -> dict[str, int]:
    """Lines that are not empty, by module."""
    return {
        name: sum(bool(line.strip()) for line in path.read_text().splitlines())
        for name, path in module_files(package).items()
    }


# What runs


class Calls:
    """Counts the calls of functions of the package, as a context.

    Attributes:
        files: Counter, the calls by file.
        crossings: Counter, the calls whose nearest caller in the package stands in another file,
            by the two files.
        functions: Counter, the calls by "file:function".
    """

    def __init__(self) -> None:
        self.files: collections.Counter[str] = collections.Counter()
        self.crossings: collections.Counter[tuple[str, str]] = collections.Counter()
        self.functions: collections.Counter[str] = collections.Counter()

    def _count(self, frame, event, _argument) -> None:  # type: ignore[no-untyped-def]
        if event != "call":
            return
        file = frame.f_code.co_filename
        if not file.startswith(str(PACKAGE)) or frame.f_code.co_name == "<module>":
            return
        name = str(Path(file).relative_to(PACKAGE))
        self.files[name] += 1
        self.functions[f"{name}:{frame.f_code.co_qualname}"] += 1
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(str(PACKAGE)):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != file:
            self.crossings[str(Path(caller.f_code.co_filename).relative_to(PACKAGE)), name] += 1

    def __enter__(self) -> "Calls":
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_exception: object) -> None:
        sys.setprofile(None)


def small_llama():  # type: ignore[no-untyped-def]
    """A Llama of one block."""
    from keras_tfm import models

    return models.llama(
        31, dim=16, num_layers=1, num_heads=2, num_key_value_heads=1, intermediate_dim=24
    )


def token_calls() -> Calls:
    """The calls of the second decode step of a one-block Llama, run eagerly."""
    import numpy as np

    from keras_tfm.generation import SteppedModel
    from keras_tfm.layers import DecodingScope

    stepped = SteppedModel(small_llama())
    encoded = stepped.encode({})
    cache = None
    for position in (0, 1):
        with Calls() as calls:
            with DecodingScope(cache, position=position, length=8) as scope:
                stepped.step(encoded, np.array([[3]]))
            cache = scope.cache
    return calls


def export_calls() -> Calls:
    """The calls of a float32 export of a one-block Llama with its decoding loop."""
    from keras_tfm.export import export_tflite

    model = small_llama()
    with tempfile.TemporaryDirectory() as folder, Calls() as calls:
        path = Path(folder) / "model.tflite"
        export_tflite(model, path, prompt_length=4, max_length=8, end_id=2)
    return calls


def interface_calls(calls: Calls) -> int:
    """How often an export read the model's inputs from its graph.

    Before 2026-11-27, `input_names` read them at each call.
    """
    asked = ("input_names", "Interface.__init__")
    return sum(n for name, n in calls.functions.items() if name.split(":")[1] in asked)


LISTS: dict[str, Callable[[], list[str]]] = {
    "any": lambda: [
        f"{n:5} {name}" for name, n in sorted(any_annotations().items(), key=lambda x: -x[1]) if n
    ],
    "circles": lambda: [" <-> ".join(group) for group in import_circles()],
    "folders": lambda: [
        f"{n:5} {name}" for name, n in sorted(folder_sizes().items(), key=lambda x: -x[1])
    ],
    "long": lambda: [
        f"{n:5} {name}" for name, n in sorted(line_counts().items(), key=lambda x: -x[1])[:30]
    ],
    "participles": lone_participles,
    "token": lambda: [f"{n:5} {a} -> {b}" for (a, b), n in token_calls().crossings.most_common()],
    "export": lambda: [f"{n:5} {name}" for name, n in export_calls().files.most_common()],
}


def rows(sources_only: bool) -> Iterator[tuple[str, str]]:
    """The table: what is counted, and the count."""
    if not sources_only:
        calls = token_calls()
        yield (
            "decode step of a one-block Llama: files, crossings",
            (f"{len(calls.files)}, {calls.crossings.total()}"),
        )
        calls = export_calls()
        yield (
            "one export: files, times it read the inputs",
            (f"{len(calls.files)}, {interface_calls(calls)}"),
        )
    sizes = folder_sizes()
    largest = max(sizes, key=lambda x: sizes[x])
    yield "largest folder: modules", f"{sizes[largest]} ({largest})"
    yield "import circles, all imports counted", str(len(import_circles()))
    yield "Any in annotations", str(sum(any_annotations().values()))
    yield "functions named by a lone participle", str(len(lone_participles()))
    lines = line_counts()
    core = sum(n for name, n in lines.items() if ".gallery" not in name)
    yield "lines that are not empty, gallery apart", f"{core:,} + {sum(lines.values()) - core:,}"
    long = sum(len(path.read_text().splitlines()) > LONG for path in module_files().values())
    yield f"modules, of more than {LONG} lines", f"{len(lines)}, {long}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", choices=sorted(LISTS), help="show where, and not the table")
    parser.add_argument("--sources", action="store_true", help="run nothing of the package")
    arguments = parser.parse_args()
    if arguments.list:
        print(*LISTS[arguments.list](), sep="\n")
        return
    for name, value in rows(arguments.sources):
        print(f"{name:52} {value}")


if __name__ == "__main__":
    main()
