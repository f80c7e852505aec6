"""Measures the structure of the package: files of a decode step and of an export, folders, names.

    python benchmarks/structure.py                       # the table, 30 s
    python benchmarks/structure.py --list participles    # where the number comes from; see --help
    python benchmarks/structure.py --sources             # only the sources, nothing is run: 2 s

It needs only the packages that the library needs, and never fails because of a number. The rules
are in tests/test_structure.py, which imports this file.
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

# Files with more lines are counted as long: do they have more than one reason to change?
LONG = 400

# Past participles that do not end in "ed", and are not also the verb, as `run` and `set` are.
IRREGULAR = set(
    re.findall(
        r"\w+",
        """
        begun bound broken brought built bought chosen done drawn driven fallen felt forgotten
        found frozen given gone grown held hidden kept known laid led left lent lost made meant met
        paid proven rebuilt redone rewritten said seen sent shaken shown shrunk spoken stood stuck
        sunk swept taken thought thrown told understood undone unknown withdrawn won worn woven
        written
        """,
    )
)
# Verbs and nouns that end in "ed" and are not participles.
NO_PARTICIPLES = {"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "succeed"}


def module_files(package: Path = PACKAGE) -> dict[str, Path]:
    """The modules of a package, by their dotted names."""
    root = package.parent
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(package.rglob("*.py"))
    }


# Sources


def all_imports(module: str, path: Path, modules: dict[str, Path]) -> set[str]:
    """The modules of the package that `module` imports; also late imports and those for types."""
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


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of nodes that can reach each other (Tarjan 1972), the largest first."""
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


def packages_of(module: str) -> set[str]:
    """The packages that contain a module: importing it runs their `__init__.py`."""
    return {module[:i] for i, letter in enumerate(module) if letter == "."}


def import_cycles(package: Path = PACKAGE) -> list[list[str]]:
    """Groups of modules that import each other, also late and for types."""
    modules, graph = module_files(package), {}
    for name, path in modules.items():
        found = all_imports(name, path, modules)
        # The packages of the module itself already run when it is imported.
        graph[name] = found | set().union(*map(packages_of, found)) - packages_of(name) - {name}
    return cycles(graph)


def is_lone_participle(name: str) -> bool:
    """Whether a function is named by a past participle alone, such as `written`."""
    word = name.strip("_")
    if word in NO_PARTICIPLES or "_" in word:
        return False
    return word in IRREGULAR or bool(re.fullmatch(r"[a-z]{2,}ed", word))


def lone_participles(package: Path = PACKAGE) -> list[str]:
    """Functions and methods that are named by a participle alone; properties may be."""
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
    """How often annotations have `Any`, by module."""
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
    """The number of lines that are not empty, by module."""
    return {
        name: sum(bool(line.strip()) for line in path.read_text().splitlines())
        for name, path in module_files(package).items()
    }


# Calls while the package runs


class Calls:
    """Counts the calls of functions of the package inside a `with` block.

    Attributes:
        files: Counter, the calls by file.
        crossings: Counter, the calls from one file of the package into another, by the two files.
            Callers outside the package are skipped.
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

    In commits before 2026-11-27, every call of `input_names` did.
    """
    asked = ("input_names", "Interface.__init__")
    return sum(n for name, n in calls.functions.items() if name.split(":")[1] in asked)


LISTS: dict[str, Callable[[], list[str]]] = {
    "any": lambda: [
        f"{n:5} {name}" for name, n in sorted(any_annotations().items(), key=lambda x: -x[1]) if n
    ],
    "cycles": lambda: [" <-> ".join(group) for group in import_cycles()],
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
    """The rows of the table: a name and a number each."""
    if not sources_only:
        calls = token_calls()
        yield "decode step of a one-block Llama: files", str(len(calls.files))
        yield "calls from one file into another in that step", str(calls.crossings.total())
        calls = export_calls()
        yield "export of that model: files", str(len(calls.files))
        yield "readings of the model's inputs in that export", str(interface_calls(calls))
    sizes = folder_sizes()
    largest = max(sizes, key=lambda x: sizes[x])
    yield "largest folder: modules", f"{sizes[largest]} ({largest})"
    yield "import cycles, also of late imports", str(len(import_cycles()))
    yield "Any in annotations", str(sum(any_annotations().values()))
    yield "functions named by a participle alone", str(len(lone_participles()))
    lines = line_counts()
    core = sum(n for name, n in lines.items() if ".gallery" not in name)
    yield "lines that are not empty, without the gallery", f"{core:,}"
    yield "lines that are not empty in the gallery", f"{sum(lines.values()) - core:,}"
    long = sum(len(path.read_text().splitlines()) > LONG for path in module_files().values())
    yield "modules", str(len(lines))
    yield f"modules of more than {LONG} lines", str(long)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", choices=sorted(LISTS), help="show where a number comes from")
    parser.add_argument("--sources", action="store_true", help="read the sources only, run nothing")
    arguments = parser.parse_args()
    if arguments.list:
        print(*LISTS[arguments.list](), sep="\n")
        return
    for name, value in rows(arguments.sources):
        print(f"{name:52} {value}")


if __name__ == "__main__":
    main()
