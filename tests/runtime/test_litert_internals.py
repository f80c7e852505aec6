"""Every private name of LiteRT in use: a test fails when one moves."""

import ast
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import interpreter as litert
from ai_edge_litert import schema_py_generated as schema
from small_exports import SOURCE_LENGTH, small_file

import keras_tfm
from keras_tfm.runtime import compiled_model, litert_internals

PACKAGE = Path(keras_tfm.__file__).parent
OWN = PACKAGE / "runtime" / "litert_internals.py"


@pytest.fixture(scope="module")
def interpreter():
    made = litert.Interpreter(str(small_file().path), num_threads=1)
    made.allocate_tensors()
    return made


def test_buffers_are_the_memory_of_the_signature(interpreter):
    runner = interpreter.get_signature_runner("predict")
    generator = np.random.default_rng(0)
    inputs = {
        "source": generator.integers(1, 11, (1, SOURCE_LENGTH)).astype("int32"),
        "target": generator.integers(1, 13, (1, 9)).astype("int32"),
    }
    expected = runner(**inputs)["output"]
    buffers = litert_internals.Buffers(runner)
    assert set(buffers.inputs) == set(inputs)
    for name, array in inputs.items():
        assert buffers.inputs[name].shape == array.shape
        buffers.inputs[name][:] = array
    first = buffers.run()["output"]
    np.testing.assert_array_equal(first, expected)
    buffers.inputs["source"][:] = 0
    assert buffers.run()["output"].ctypes.data == first.ctypes.data  # no copy


def test_host_memory_is_the_memory_of_a_buffer():
    path, shape = small_file().path, (1, SOURCE_LENGTH)
    model = compiled_model.compile_file(Path(path), 1, None)
    buffer = model.create_input_buffer_by_name("generate", "source")
    memory = litert_internals.host_memory(buffer, 4 * SOURCE_LENGTH)
    array = np.frombuffer(memory, "int32").reshape(shape)
    array[...] = np.arange(SOURCE_LENGTH)
    np.testing.assert_array_equal(buffer.read(SOURCE_LENGTH, np.int32), np.arange(SOURCE_LENGTH))
    buffer.write(np.full(shape, 7, "int32"))
    np.testing.assert_array_equal(array, np.full(shape, 7))


def test_nodes_name_delegated_ones_and_partitions(interpreter):
    nodes = litert_internals.nodes(interpreter)
    delegates = [node for node in nodes if node["op_name"] == "DELEGATE"]
    others = [node for node in nodes if node["op_name"] != "DELEGATE"]
    assert delegates and others
    for node in nodes:
        assert {"index", "op_name", "inputs", "outputs"} <= set(node)
    # Outside the partitions: the embedding's lookup, which XNNPACK does not support.
    assert {"GATHER", "EMBEDDING_LOOKUP"} & {node["op_name"] for node in others}


def test_positions_in_a_flatbuffer():
    content = bytearray(Path(small_file().path).read_bytes())
    model = schema.Model.GetRootAsModel(content, 0)
    read = lambda place: int.from_bytes(content[place : place + 4], "little")  # noqa: E731
    assert litert_internals.table_position(model) == read(0)
    # Field 0 of Model is the schema's version; no table has a field 99.
    version = litert_internals.field_position(model, 0)
    assert read(version) == model.Version() == 3
    assert litert_internals.field_position(model, 99) == 0


def private_attributes(path):
    """The private names that a file reads of objects other than `self`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            if re.match(r"_[a-z]", node.attr):
                yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value  # getattr(x, "_tab"), hasattr


@pytest.mark.default
def test_they_stand_in_one_file():
    names = {x for x in private_attributes(OWN) if re.fullmatch(r"_[a-z_]+", x)}
    assert names >= {"_tab", "_get_ops_details", "_interpreter_wrapper", "_subgraph_index"}
    for path in PACKAGE.rglob("*.py"):
        if path != OWN:
            used = names.intersection(private_attributes(path)) - {"_array"}
            assert not used, f"{path.name} uses {used}: add a function to litert_internals.py"


def test_later_versions_are_excluded_until_they_are_tried():
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    (edge,) = project["optional-dependencies"]["edge"]
    assert re.search(r"<\d+\.\d+", edge), edge
