"""The report: its numbers against other accounts of the same file."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path

import keras
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from blocks import decoder_block, encoder_block
from keras import layers, ops
from small_exports import MAX_LENGTH, SOURCE_LENGTH, new_path, real_file, small_file

from keras_tfm import runtime
from keras_tfm.export import export_tflite
from keras_tfm.layers import (
    LayerNormalization,
    PositionalEncoding,
    RotaryEmbedding,
    TokenEmbedding,
)
from keras_tfm.models import transformer
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.inspection.inspection import bytes_by_kind, inspect_subgraphs


@pytest.fixture(scope="module")
def report():
    return small_file(num_layers=2)


def test_it_is_of_the_file(report):
    content = Path(report.path).read_bytes()
    assert report.bytes == len(content)
    assert report.quantization == "float32"
    assert real_file("int8").quantization == "int8"


def test_signatures_are_the_manifests(report):
    assert report.signatures == runtime.load(report.path).signatures


def test_every_graph_is_there(report):
    names = [graph.name for graph in report.subgraphs]
    assert sorted(names) == ["generate", "predict", "while_body", "while_cond"]


def test_nodes_are_litert_s_own(report):
    """LiteRT lists the nodes of the main graph, here without a delegate."""
    interpreter = Interpreter(
        report.path,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    interpreter.allocate_tensors()
    counted = Counter(node["op_name"] for node in interpreter._get_ops_details())
    assert report.subgraphs[0].operators == counted
    assert report.subgraphs[0].nodes == counted.total()


@pytest.mark.parametrize("quantization", ["float32", "int8"])
def test_numbers_fit_together(quantization):
    for graph in real_file(quantization).subgraphs:
        assert graph.nodes == sum(graph.operators.values()) > 0
        assert 0 <= graph.partitions <= graph.delegated <= graph.nodes
        assert (graph.partitions == 0) == (graph.delegated == 0)


def test_most_of_a_model_is_on_xnnpack(report):
    """All but lookups, masks and the cache: DESIGN, "static where it can be"."""
    for graph in report.subgraphs:
        if graph.name != "while_cond":
            assert graph.delegated >= 0.8 * graph.nodes


VOCABULARY, DIM = 97, 32
BLOCK = {"intermediate_dim": 64, "num_heads": 4}


def classifier():
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = PositionalEncoding()(TokenEmbedding(VOCABULARY, DIM, scale=True, mask_zero=True)(ids))
    x = encoder_block(**BLOCK)(x)
    return keras.Model(ids, layers.Dense(37, activation="softmax")(ops.mean(x, axis=1)))


def decoder():
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    embedding = TokenEmbedding(VOCABULARY, DIM, mask_zero=True)
    x = embedding(tokens)
    block = {"position": RotaryEmbedding(), "normalize_first": True, **BLOCK}
    x = decoder_block(cross_attention=False, **block)(x)
    return keras.Model(tokens, embedding(LayerNormalization()(x), reverse=True))


def translator():
    return transformer(VOCABULARY, dim=DIM, num_layers=1, **BLOCK)


@pytest.mark.parametrize("quantization", [pytest.param("float32", marks=pytest.mark.slow), "int8"])
@pytest.mark.parametrize(
    ("make", "signatures", "options"),
    [
        (classifier, ["predict"], {}),
        (translator, ["predict", "generate", "encode", "decode"], {"start_id": 1}),
        pytest.param(
            decoder,
            ["predict", "generate", "prefill", "decode"],
            {"prompt_length": 3},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["classifier", "translator", "decoder"],
)
def test_standard_models_are_one_piece_for_xnnpack(make, signatures, options, quantization):
    """All of a full pass, and of a step; in the loop the chosen token parts them."""
    lengths = {"source_length": 7, "max_length": None if make is classifier else 9}
    report = export_tflite(
        make(), new_path(), signatures, quantization, verify=False, **lengths, **options
    )
    partitions = {graph.name: graph.partitions for graph in report.subgraphs}
    assert partitions.pop("while_cond", 0) == 0
    assert partitions.pop("while_body", 1) <= 3
    partitions.pop("generate", None)  # the loop itself, and what is before it
    assert set(partitions.values()) == {1}


def with_data_behind(content):
    """The same file as other converters write large ones: the weights behind the flatbuffer."""
    model = flatbuffer.read(content)
    moved = [buffer for buffer in model.buffers if buffer.data is not None]
    data = [bytes(buffer.data) for buffer in moved]
    for buffer in moved:
        buffer.data, buffer.offset, buffer.size = None, 1 << 20, 1 << 20
    ends = np.cumsum([len(part) + -len(part) % 16 for part in data])
    start = len(flatbuffer.write(model))
    start += -start % 16
    for buffer, part, end in zip(moved, data, ends, strict=True):
        buffer.offset, buffer.size = start + int(end) - len(part) - -len(part) % 16, len(part)
    tail = b"".join(part + bytes(-len(part) % 16) for part in data)
    return flatbuffer.write(model).ljust(start, b"\0") + tail


def test_weights_may_lie_behind_the_flatbuffer(report):
    content = Path(report.path).read_bytes()
    behind = with_data_behind(content)
    inputs = {"source": np.int32([[3, 4, 5, 6, 7]]), "target": np.ones((1, MAX_LENGTH), "int32")}
    answers = [
        Interpreter(model_content=x).get_signature_runner("predict")(**inputs)["output"]
        for x in (content, behind)
    ]
    np.testing.assert_array_equal(*answers)
    assert inspect_subgraphs(behind) == report.subgraphs
    kinds, plain = bytes_by_kind(behind), bytes_by_kind(content)
    assert {**kinds, "graph": 0} == {**plain, "graph": 0}
    assert sum(kinds.values()) == len(behind)


def test_partitions_by_hand(tmp_path):
    """XNNPACK takes no cumulative sum: dense, sum, dense is one node, a gap, one node."""
    x = keras.Input((5,), name="x")
    y = layers.Dense(7)(ops.cumsum(layers.Dense(3)(x), axis=-1))
    report = export_tflite(keras.Model(x, y), tmp_path / "model.tflite", verify=False)
    (graph,) = report.subgraphs
    assert graph.operators == {"FULLY_CONNECTED": 2, "CUMSUM": 1}
    assert (graph.nodes, graph.delegated, graph.partitions) == (3, 2, 2)


def test_a_branch_counts_as_it_is(tmp_path):
    """Graphs refer to one another by number, and each in turn is made the main one."""
    x = keras.Input((5,), name="x")

    class Branch(layers.Layer):
        def call(self, x):
            return ops.cond(ops.sum(x) > 0.0, lambda: x * 2.0 + 1.0, lambda: ops.cumsum(x, axis=-1))

    report = export_tflite(keras.Model(x, Branch()(x)), new_path(), verify=False)
    branches = {tuple(graph.operators): graph for graph in report.subgraphs[1:]}
    assert branches.keys() == {("CUMSUM",), ("MUL", "ADD")}
    assert branches["CUMSUM",].delegated == 0
    assert (branches["MUL", "ADD"].delegated, branches["MUL", "ADD"].partitions) == (2, 1)
    file = runtime.load(report.path)
    np.testing.assert_array_equal(file.predict([[1, 1, 1, 1, 1]])["output"], [[3, 3, 3, 3, 3]])
    np.testing.assert_array_equal(
        file.predict([[-1, -1, 0, 0, 0]])["output"], [[-1, -2, -2, -2, -2]]
    )


def test_a_table_for_people(report):
    lines = str(report).splitlines()
    assert lines[0] == f"{report.path}: {report.bytes / 1e6:.2f} MB, float32"
    assert lines[1] == (
        f"  generate(source (1, {SOURCE_LENGTH}) int32) -> tokens (1, {MAX_LENGTH}) int32"
    )
    rows = {line.split()[0]: line.split()[1:] for line in lines[4:-1]}
    assert "against Keras" not in str(report)  # it was not verified
    for graph in report.subgraphs:
        numbers = [graph.nodes, graph.delegated, graph.partitions]
        assert rows[graph.name] == [str(number) for number in numbers]
    assert lines[-1] == "  Flex and custom operators: none"


def test_asdict(report):
    assert report.asdict() == asdict(report)
    assert report.asdict()["subgraphs"][0]["operators"]["WHILE"] == 1


def test_weights_are_counted_for_the_layer_that_owns_them():
    """Although the converter fuses projections with scales and residuals."""
    model = transformer(31, dim=32, num_layers=1, num_heads=4, intermediate_dim=64)
    options = {"source_length": 8, "max_length": 8, "start_id": 1, "verify": False}
    sizes = export_tflite(model, new_path(), quantization="int8", **options).layers
    for block, attention in [
        ("encoder_0", "self_attention"),
        ("decoder_0", "self_attention"),
        ("decoder_0", "cross_attention"),
    ]:
        of_attention = {x: n for x, n in sizes.items() if x.startswith(f"{block}/{attention}/")}
        # Four kernels of 32 x 32 and, at most, their biases and scales in float32.
        assert 4 * 1024 <= sum(of_attention.values()) <= 4 * 1024 + 4 * 32 * 8, sizes
        assert sizes.get(f"{block}/{attention}_residual", 0) < 32 * 8, sizes


@pytest.mark.default
def test_numbered_layers_have_their_own_bytes():
    """Keras numbers unnamed layers, and TensorFlow their scopes: `dense` is in `dense_1`."""
    x = y = keras.Input((7,))
    for number, width in enumerate((11, 13, 17)):
        y = layers.Dense(width, name=f"wide_{number}" if number else "wide")(y)
    report = export_tflite(keras.Model(x, y), new_path(), verify=False)
    kernels = {"wide": 4 * 7 * 11, "wide_1": 4 * 11 * 13, "wide_2": 4 * 13 * 17}
    assert report.layers.items() >= kernels.items()
