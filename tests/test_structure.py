"""The structure of the package: imports in one direction, names, private names in one file.

Everything is read from the sources with `ast`; nothing of the package is imported.
`python benchmarks/structure.py` also measures what no rule limits: lines, types, calls.
"""

import ast
import inspect
import itertools
import re
from pathlib import Path

import pytest
import structure

pytestmark = pytest.mark.default  # about texts and sources: no branch shows what it notices
ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "keras_tfm"
LARGEST_FOLDER = 20

# Each layer may import those above it. Two packages of one layer do not import each other.
LAYERS = [
    {
        "version",
        "arguments",
        "atomic_files",
        "host_memory",
        "matmul_precision",
        "model_types",
        "optional_package",
    },
    {
        "keras_internals",
        "optimizer_internals",
        "plots",
        "trainer_internals",
        "text",
        "runtime",
    },
    {"layers", "distributed"},
    {"models"},
    {"generation"},
    {"checkpoints"},  # which `export` uses for models of KerasHub
    {"training", "export", "web"},
    {"cli"},
]
# What else may be imported, or not: package -> all that it may import of keras_tfm.
ONLY = {
    "arguments": set(),
    "atomic_files": set(),
    "host_memory": set(),
    "keras_internals": set(),
    "matmul_precision": set(),
    "model_types": set(),
    "optimizer_internals": set(),
    "trainer_internals": set(),
    "optional_package": set(),
    "plots": {"optional_package"},
    "version": set(),
    "runtime": {"arguments", "atomic_files", "optional_package", "version"},
    "text": {"arguments", "optional_package"},
    "web": {"atomic_files", "runtime"},
    "distributed": {"arguments", "keras_internals", "optimizer_internals", "trainer_internals"},
}
INTERNALS = {
    "keras_tfm.keras_internals",
    "keras_tfm.optimizer_internals",
    "keras_tfm.trainer_internals",
}

# Private attributes of Keras 3.15 objects: layers, models, tensors, optimizers, iterators, losses.
PRIVATE = {
    "_adjust_scale_for_dequant", "_aggregate_additional_loss", "_all_reduce_sum_gradients",
    "_apply_weight_decay",
    "_assert_input_compatibility", "_backend_update_step",
    "_call_context_args", "_call_has_mask_arg", "_call_has_training_arg",
    "_compile_loss", "_compile_metrics", "_compute_attention", "_compute_loss",
    "_convert_to_tensor",
    "_deferred_initialize",
    "_distribute_strategy", "_distributed_dataset", "_enumerate_iterator", "_first_batches",
    "_flat_losses",
    "_flatten_layers", "_functional", "_get_jax_state", "_inbound_nodes", "_initial_epoch",
    "_initial_seed",
    "_int4_unpacked_column_size",
    "_iterations", "_jax_state", "_keras_history", "_keras_mask", "_layers",
    "_layer_checkpoint_dependencies", "_layout",
    "_loss_tracker", "_make_function", "_maybe_symbolic_build", "_metrics", "_nested_inputs",
    "_nested_outputs", "_nodes", "_nodes_by_depth", "_non_trainable_variables", "_outbound_nodes",
    "_output_dense", "_output_shape", "_outputs_struct",
    "_inputs_struct", "_remat_mode", "_run_through_graph", "_seed_generators", "_symbolic_build",
    "_key_dense", "_post_build", "_query_dense", "_standardize_batch", "_standardize_inputs",
    "_tracker",
    "_trainable_variables", "_unpickle_model",
    "_user_loss",
    "_user_loss_weights", "_value_dense",
}  # fmt: skip

FILES = structure.module_files()
TREES = {name: ast.parse(path.read_text()) for name, path in FILES.items()}
ALL = pytest.mark.parametrize("name", FILES)


def package_of(module):
    """ "keras_tfm.layers.multi_head_attention.masks" -> "layers"; the package itself is ""."""
    return (*module.split("."), "")[1]


def is_type_checking(node):
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports(module, tree, at_import_only):
    """The modules of any package that a module imports.

    Args:
        at_import_only: leave out imports inside functions, which run later.
    """
    found = set()

    def visit(node):
        if is_type_checking(node):
            return
        if at_import_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                is_package = FILES[module].name == "__init__.py"
                parts = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parts, *filter(None, [node.module])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                found.add(whole if whole in FILES else base)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found


def ours(modules):
    return {name for name in modules if name in FILES}


# Folders


def test_no_folder_is_crowded():
    crowded = {x: n for x, n in structure.folder_sizes().items() if n > LARGEST_FOLDER}
    assert not crowded, f"at most {LARGEST_FOLDER} modules in a folder: {crowded}"


def is_gallery(module):
    return ".gallery" in module


# They import all public names.
INDEXES = {"keras_tfm.layers", "keras_tfm.models"}


def test_the_core_can_be_read_without_the_gallery():
    assert any(map(is_gallery, FILES))
    for name, path in FILES.items():
        if not is_gallery(name) and name not in INDEXES:
            wrong = sorted(filter(is_gallery, structure.all_imports(name, path, FILES)))
            assert not wrong, f"{name} imports {wrong}"


# Names


def test_no_function_is_named_by_a_participle_alone():
    """A function is a verb or what it returns (STYLE.md), in the field's words."""
    assert structure.lone_participles() == []


def test_participles_are_found(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    names = ["written", "_carried", "seed", "read", "feed_forward", "checked_x", "run", "embed"]
    source = "".join(f"def {x}(): pass\n" for x in names)
    (package / "a.py").write_text(source + "class A:\n    @property\n    def closed(self): pass\n")
    found = [x.split()[1] for x in structure.lone_participles(package)]
    assert found == ["written", "_carried"]


# Imports


def test_cycles_are_found():
    assert structure.cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert structure.cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"]]


def test_late_imports_and_those_for_types_make_cycles(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text("def f():\n    from package.b import g\n")
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package import a\n"
    (package / "b.py").write_text(types)
    assert structure.import_cycles(package) == [["package.a", "package.b"]]


def test_an_import_runs_the_packages_of_what_it_imports(tmp_path):
    package = tmp_path / "package"
    (package / "part").mkdir(parents=True)
    (package / "a.py").write_text("from package.part.b import g\n")
    (package / "part" / "b.py").write_text("g = 1\n")
    (package / "part" / "__init__.py").write_text("from package import a\n")
    assert structure.import_cycles(package) == [["package.a", "package.part"]]


def test_no_modules_import_each_other():
    """Late imports and those for types count: they are dependencies all the same."""
    assert structure.import_cycles() == []


def test_no_packages_import_each_other():
    graph = {package_of(name): set() for name in FILES if name != "keras_tfm"}
    for name, tree in TREES.items():
        if name != "keras_tfm":
            others = map(package_of, ours(imports(name, tree, at_import_only=False)))
            graph[package_of(name)] |= {x for x in others if x} - {package_of(name)}
    assert structure.cycles(graph) == []


def allowed(package):
    """The packages that one may import."""
    if package in ONLY:
        return ONLY[package]
    (at,) = [i for i, layer in enumerate(LAYERS) if package in layer]
    return set().union(*LAYERS[:at])


@ALL
def test_imports_go_one_way(name):
    """Inside functions too: a late import is a dependency all the same."""
    package = package_of(name)
    if not package:
        return  # the package itself: all names, lazily
    others = {package_of(x) for x in ours(imports(name, TREES[name], at_import_only=False))}
    wrong = sorted(others - {package, ""} - allowed(package))
    assert not wrong, f"{name} imports {wrong}, {package} may import {sorted(allowed(package))}"


def test_every_package_has_a_place():
    packages = {package_of(name) for name in FILES} - {""}
    assert packages - set().union(*LAYERS) == set()


@pytest.mark.parametrize(
    ("package", "banned"),
    [
        ("runtime", {"keras", "tensorflow"}),
        ("web", {"keras", "tensorflow", "numpy"}),
        ("text", {"keras"}),
        ("arguments", {"keras", "tensorflow"}),
        ("optional_package", {"keras", "tensorflow", "numpy"}),
    ],
)
def test_what_needs_no_keras_imports_none(package, banned):
    for name, tree in TREES.items():
        if package_of(name) == package:
            wrong = {x.split(".")[0] for x in imports(name, tree, at_import_only=True)} & banned
            assert not wrong, f"{name} imports {sorted(wrong)}"


# Private names of Keras


def private_names(tree):
    """Each with its line: attributes and their names as strings, methods, imports of keras.src.

    A class without bases is no Keras class: what its methods read of `self` is its own.
    """
    plain = [x for x in ast.walk(tree) if isinstance(x, ast.ClassDef) and not x.bases]
    own = {
        x
        for x in itertools.chain.from_iterable(map(ast.walk, plain))
        if isinstance(x, ast.Attribute) and ast.unparse(x.value) == "self"
    }
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Attribute) and node not in own:
            names = [node.attr]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]  # getattr(x, "_keras_mask", None)
        elif isinstance(node, ast.FunctionDef):
            names = [node.name]  # an override
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{x.name}" for x in node.names)]
        for name in names:
            if name in PRIVATE or re.match(r"keras\.src\b", name):
                yield node.lineno, name


def test_private_names_are_found():
    source = (
        "from keras.src import a\n"
        "import keras.src.b\n"
        "getattr(x, '_keras_mask', None)\n"
        "x._keras_history\n"
        "def _symbolic_build(self): pass\n"
        "keras.ops.relu(x._own)\n"
        "class Own:\n"
        "    def f(self): return self._layers\n"
        "class Layer(keras.layers.Layer):\n"
        "    def f(self): return self._layers\n"
    )
    assert {line for line, _ in private_names(ast.parse(source))} == {1, 2, 3, 4, 5, 10}


def test_the_list_of_private_names_has_those_of_keras_internals():
    trees = [TREES[name] for name in sorted(INTERNALS)]
    used = {x.attr for tree in trees for x in ast.walk(tree) if isinstance(x, ast.Attribute)}
    private = {x for x in used if x.startswith("_") and not x.startswith("__")}
    # Names of our own functions and fields, too.
    assert private - {"_replace", "_initialize", "_initializer", "_value", "_variable"} <= PRIVATE


@ALL
def test_private_names_of_keras_stand_in_three_files(name):
    if name in INTERNALS:
        return
    found = list(private_names(TREES[name]))
    assert not found, f"{name} uses {found}: add a function to keras_internals"


# Argument lists

MANY = 8


# Arguments of a layer's `call` that Keras fills by their names: each layer has to list them.
FILLED = {"training", "x_mask"}


def signatures(name, tree):
    """The public functions and methods of a module: (where, names of its parameters)."""
    for node in ast.walk(tree):
        owner = node.name + "." if isinstance(node, ast.ClassDef) else ""
        body = node.body if isinstance(node, ast.ClassDef | ast.Module) else []
        for function in body:
            if isinstance(function, ast.FunctionDef):
                arguments = function.args
                names = {
                    x.arg for x in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
                }
                yield f"{name}.{owner}{function.name}", names - {"self", "cls"} - FILLED
        fields = [
            x for x in body if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)
        ]
        if owner and len(fields) >= MANY:  # a dataclass or NamedTuple is its constructor
            yield f"{name}.{owner[:-1]}", {x.target.id for x in fields}


def documented(name, tree):
    """The docstrings of a module with an "Args:" section: (where, names in it)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            text = inspect.cleandoc(ast.get_docstring(node) or "")
            section = re.search(r"^Args:\n((?:[ \t].*\n?|\n)+)", text, flags=re.MULTILINE)
            if section:
                names = re.findall(r"^    (\w+(?:, \w+)*):", section[1], flags=re.MULTILINE)
                yield f"{name}.{node.name}", {x for line in names for x in line.split(", ")}


# The dataclasses that are the arguments of builders: `@with_arguments(Name)`.
ARGUMENTS_OF_BUILDERS = {
    decorator.args[0].id
    for tree in TREES.values()
    for function in ast.walk(tree)
    if isinstance(function, ast.FunctionDef)
    for decorator in function.decorator_list
    if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "with_arguments"
}


def is_exempt(where):
    """Whether it is a function in models/, the arguments of a builder, or a command in cli/."""
    _, package, *rest = where.split(".")
    is_builder = rest[-1].islower() or rest[-1] in ARGUMENTS_OF_BUILDERS
    return package == "cli" or (package == "models" and is_builder)


def repeated(lists):
    """Pairs of lists in different files that share many names, and these."""
    lists = [(where, file, names) for where, file, names in lists if len(names) >= MANY]
    for (a, file_a, x), (b, file_b, y) in itertools.combinations(lists, 2):
        if file_a != file_b and len(x & y) >= MANY and not (is_exempt(a) or is_exempt(b)):
            yield a, b, sorted(x & y)


@pytest.mark.parametrize("read", [signatures, documented])
def test_no_argument_list_stands_in_two_files(read):
    """Two functions, methods or "Args:" sections in different files share fewer than 8 names.

    With 8 shared names, a new option must be added, documented and passed on twice; the arguments
    belong in an object that both take (STYLE.md: pass parts, not flags).

    Two exceptions, by rule:

    - functions in models/, and the dataclasses that are the arguments of several of them: a builder
      is the definition of a model family with that family's own defaults. Its arguments have the
      names of the paper's sizes and of the blocks that they go to, which is what readers look for;
      `bert` and `gpt` share them as two papers do;
    - commands in cli/: typer makes one option of each parameter, and can make them of nothing
      else.

    What Keras fills in a layer's call by its name does not count.
    Constructors and their "Args:" sections are compared as methods, dataclasses by their fields.
    """
    lists = [
        (where, name, names) for name, tree in TREES.items() for where, names in read(name, tree)
    ]
    assert len(lists) > 50
    found = [f"{a} and {b} share {len(names)}: {names}" for a, b, names in repeated(lists)]
    assert not found, "\n".join(found)


def test_repeated_lists_are_found():
    names = set("abcdefgh")
    lists = [("k.layers.f", "one", names), ("k.layers.G", "two", names | {"i"})]
    assert [pair[:2] for pair in repeated(lists)] == [("k.layers.f", "k.layers.G")]
    assert list(repeated([lists[0], ("k.layers.f", "one", names)])) == []
    assert list(repeated([lists[0], ("k.models.bert.bert", "two", names)])) == []
    assert list(repeated([lists[0], ("k.layers.f", "two", names - {"a"})])) == []
