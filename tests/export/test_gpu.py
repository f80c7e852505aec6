"""Graphs for LiteRT's GPU delegate: what it refuses, and the same results on a CPU.

No GPU runs here: the checks are those of the delegate's source.
"""

import functools
import json
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from gpu_graphs import REWRITTEN, converted, for_gpu, numbers
from keras_weights import randomize
from small_exports import small
from small_models import SOURCES, START, decoder_only

from keras_tfm import cli, layers, models, runtime
from keras_tfm.export import export_tflite
from keras_tfm.runtime.inspection.gpu_support import OPERATORS, check, check_file

# Float32 rounds at 6e-8; the same sums in another order, through some layers.
FLOAT32 = 1e-5
PROMPTS = [[1, 5, 3, 8, 2, 4, 9, 6, 7], [1, 5]]
STEPS = {"signatures": ["prefill", "decode"], "prompt_length": 4, "max_length": 12}


def gpt():
    model = models.gpt(11, dim=6, num_layers=2, num_heads=3, intermediate_dim=7, max_length=13)
    return randomize(model, 1)


def llama():
    model = models.llama(11, 8, 2, 4, 13, num_key_value_heads=2, windows=[3, None])
    return randomize(model, 2)


def alibi():
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = layers.TokenEmbedding(11, 6)(ids)
    attention = layers.MultiHeadSelfAttention(3, causal=True, position=layers.ALiBi())
    x = layers.TransformerDecoderBlock(7, self_attention=attention, cross_attention=False)(x)
    return randomize(keras.Model(ids, keras.layers.Dense(11)(x), name="alibi"), 3)


def both(model, folder, **arguments):
    """The file for a CPU, and the one for a GPU, which is verified."""
    files = []
    for accelerator in ("cpu", "gpu"):
        path = folder / f"{accelerator}.tflite"
        verify = accelerator == "gpu"
        export_tflite(model, path, accelerator=accelerator, verify=verify, **arguments)
        files.append(runtime.load(path))
    return files


# By default; translators have learnt no rotation and caches of their own length.
DECODERS = [(llama, True)]


@pytest.fixture(scope="module")
def decoders(tmp_path_factory):
    """`both` of `make()`, once for all tests: in a cache of its own length, or a whole one."""

    @functools.cache
    def of(make, whole):
        return both(make(), tmp_path_factory.mktemp("gpu"), whole_caches=whole, **STEPS)

    return of


def streamed(file, inputs):
    """The logits (T, V) of greedy steps."""
    logits = []

    def choose(x):
        logits.append(x[0])
        return np.argmax(x, axis=-1)

    list(file.stream(inputs, choose))
    return np.stack(logits)


@pytest.mark.parametrize(
    ("make", "whole"),
    [
        pytest.param(make, whole, marks=[pytest.mark.slow] * ((make, whole) not in DECODERS))
        for make in (gpt, llama, alibi, decoder_only)
        for whole in (False, True)
    ],
)
def test_decoders_give_what_they_give_on_a_cpu(make, whole, decoders):
    cpu, gpu = decoders(make, whole)
    refused = {x.operator for x in check_file(cpu.path)}
    # Positions of ALiBi are computed, not cut out of a table.
    assert refused >= {"BATCH_MATMUL"} | ({"STRIDED_SLICE"} if make is not alibi else set())
    assert check_file(gpu.path) == []
    for prompt in PROMPTS:
        target = cpu.signatures["decode"]["target"]
        expected, found = (streamed(x, {target: [prompt]}) for x in (cpu, gpu))
        np.testing.assert_allclose(found, expected, atol=FLOAT32, rtol=FLOAT32)
    shapes = {x: y["shape"] for x, y in gpu.signatures["decode"]["inputs"].items()}
    keys = [shape for x, shape in shapes.items() if x.endswith("_transposed_key")]
    assert len(keys) >= 1 and all(shape[3] == 12 for shape in keys)  # (B, G, K, S)


def test_keys_in_caches_are_not_transposed_at_each_step(decoders):
    """Only in prefills: their keys are new."""
    _, gpu = decoders(llama, True)
    report = runtime.inspection.inspect_file(gpu.path)
    operators = {x.name: x.operators for x in report.subgraphs}
    assert "TRANSPOSE" not in operators["decode"]
    # Beside a composite, the delegate ends the process where it refuses another operator.
    assert "STABLEHLO_COMPOSITE" not in operators["decode"] and "RSQRT" in operators["decode"]
    assert "WHILE" not in {x for kinds in operators.values() for x in kinds}


def test_encoder_decoders_and_predict(tmp_path):
    sizes = {"source_length": 5, "max_length": 9, "start_id": START}
    cpu, gpu = both(small(), tmp_path, signatures=["predict", "encode", "decode"], **sizes)
    assert check_file(cpu.path) != []
    assert check_file(gpu.path) == []
    np.testing.assert_array_equal(gpu.generate(SOURCES).tokens, cpu.generate(SOURCES).tokens)
    inputs = {"source": SOURCES, "target": np.ones((len(SOURCES), 9), "int32")}
    expected, found = (x.predict(inputs)["output"] for x in (cpu, gpu))
    np.testing.assert_allclose(found, expected, atol=FLOAT32)


def test_int8(tmp_path):
    model = randomize(models.llama(300, 32, 1, 4, 64, num_key_value_heads=2))
    report = export_tflite(
        model, tmp_path / "int8.tflite", quantization="int8", accelerator="gpu", **STEPS
    )
    assert report.quantization == "int8" and check_file(report.path) == []
    assert max(x.graph_error for x in report.verification.checks) < FLOAT32


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"quantization": "int4"}, "int4' is for accelerator='cpu': .* weights of 4 bits"),
        (
            {"quantization": "int8_full", "representative_data": [[[1, 2, 3]]]},
            "int8_full' is for accelerator='cpu': .* computes in floats",
        ),
        ({"signatures": ["predict_text"]}, r"signatures of texts .* got \['predict_text'\]"),
    ],
)
def test_what_the_delegate_cannot_run_is_refused_before_conversion(arguments, reason, tmp_path):
    given = {"signatures": ["predict"], "source_length": 3, **arguments}
    with pytest.raises(ValueError, match=reason):
        export_tflite(gpt(), tmp_path / "x.tflite", accelerator="gpu", **given)
    assert list(tmp_path.iterdir()) == []


def test_tables_are_in_float32_in_a_file_of_float16(tmp_path):
    """Once in the file, for all signatures; the kernels stay in float16."""
    model = randomize(models.gpt(997, 16, 1, 2, 16, max_length=12))
    path = tmp_path / "half.tflite"
    export_tflite(model, path, quantization="float16", accelerator="gpu", verify=False, **STEPS)
    assert check_file(path) == []
    file = runtime.flatbuffer.read(path.read_bytes())
    sizes = [len(x.data) for x in file.buffers if x.data is not None]
    table = 997 * 16
    assert [x for x in sizes if x >= 2 * table] == [4 * table]
    assert 2 * 16 * 48 in sizes  # the kernel of queries, keys and values


def run(content, *arrays):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    details = sorted(interpreter.get_input_details(), key=lambda x: x["name"])
    for given, x in zip(details, arrays, strict=True):
        interpreter.set_tensor(given["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


@pytest.mark.parametrize("case", REWRITTEN)
def test_rewritten_operators_give_the_same(case):
    function, shapes, operators = REWRITTEN[case]
    content = converted(function, *shapes)
    found = {x.operator for x in check(content)}
    assert found and operators in (None, " ".join(sorted(found)))
    rewritten = for_gpu(content)
    assert check(rewritten) == []
    arrays = [np.random.default_rng(i).normal(size=x).astype("f4") for i, x in enumerate(shapes)]
    expected = function(*map(tf.constant, arrays))
    # Sums of float32 in another order.
    allowed = 1e-6 * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(run(rewritten, *arrays), expected, rtol=0, atol=allowed)
    assert run(rewritten, *arrays).shape == expected.shape


def test_constants_of_other_axes_stay():
    """The delegate reads them rightly: no reshape is added."""
    for function, shape in (
        (lambda x: tf.nn.relu(x) + numbers(7), (5, 7)),
        (lambda x: tf.nn.relu(x) + numbers(1, 7), (5, 7)),
        (lambda x: tf.nn.relu(x) + numbers(1, 5, 7), (1, 7)),
        (lambda x: tf.nn.relu(x) + numbers(2, 3, 5, 7), (2, 3, 5, 7)),
        (lambda x: tf.nn.relu(x) + numbers(3, 5, 7), (2, 3, 5, 7)),
    ):
        content = converted(function, shape)
        assert check(content) == []
        graph = runtime.flatbuffer.read(for_gpu(content)).subgraphs[0]
        assert len(graph.operators) == 2


def test_slices_of_booleans_raise_no_version():
    content = converted(lambda x: tf.cast((x > 0)[:, :, 1:], tf.float32) + x[:, :, 1:], (2, 3, 5))
    versions = [x.version for x in runtime.flatbuffer.read(content).operatorCodes]
    assert max(versions) > 2
    model = runtime.flatbuffer.read(for_gpu(content))
    found = [x.version for x in model.operatorCodes if x.builtinCode == 45]  # STRIDED_SLICE
    assert found and max(found) == 2


@pytest.mark.parametrize(
    ("function", "shapes", "operator", "reason"),
    [
        (lambda x: tf.broadcast_to(x, (2, 3)), [(1, 3)], "BROADCAST_TO", "is not supported"),
        (lambda x: tf.tile(x > 0, (2, 1)), [(1, 3)], "TILE", "booleans are not supported"),
        (lambda x: tf.argmax(x, 1), [(2, 3)], "ARG_MAX", "int64 are not supported"),
        (lambda x: tf.cast(tf.cast(x, "float64"), "int32"), [(2, 3)], "CAST", "of float64"),
        (lambda x: tf.where(x[:1] > 0, x[:1], x), [(2, 3)], "SELECT_V2", "shape of the result"),
        (lambda x: tf.one_hot(tf.cast(x, "int32"), 3), [(2, 1, 3)], "ONE_HOT", "at most 2 axes"),
        (lambda x: tf.transpose(x, (4, 0, 1, 2, 3)), [(2, 3, 2, 3, 2)], "TRANSPOSE", "4 axes"),
        (lambda x: tf.gather(x, [[0, 1]]), [(2, 3)], "GATHER", "one axis"),
        (lambda x: tf.matmul(x, x[:1]), [(2, 3, 3)], "BATCH_MATMUL", "broadcast wrongly"),
        (lambda x: tf.nn.relu(x) + numbers(3, 2, 5, 7), [(1, 2, 5, 7)], "ADD", "first axis"),
        (lambda x: tf.nn.relu(x) + numbers(2, 3, 5, 7), [(3, 5, 7)], "ADD", "first axis"),
        (lambda x: tf.sort(x), [(2, 3)], "TOPK_V2", "the result is wrong"),
        (lambda x: tf.cumsum(x[0]), [(2, 3)], "STRIDED_SLICE", "masks are not supported"),
        (lambda x: tf.cumsum(x[1:]), [(3, 3)], "STRIDED_SLICE", "three or four axes"),
    ],
)
def test_reasons(function, shapes, operator, reason):
    found = {x.operator: x.reason for x in check(converted(function, *shapes))}
    assert reason in found[operator]


def test_constant_integers_are_broadcast_wrongly():
    content = converted(lambda x: x + tf.constant([1, 2, 3]), (2, 3), dtype=tf.int32)
    (found,) = check(content)
    assert found.operator == "ADD" and found.count == 1
    assert "the first axis of the constant" in found.reason
    assert check(for_gpu(content)) == []


def test_a_loop_is_refused(tmp_path):
    sizes = {"source_length": 5, "max_length": 9, "start_id": START}
    report = export_tflite(small(), tmp_path / "loop.tflite", verify=False, **sizes)
    found = {(x.signature, x.operator) for x in check_file(report.path)}
    assert ("generate", "WHILE") in found and "WHILE" not in OPERATORS
    with pytest.raises(ValueError, match="a GPU delegate refuses the loop of 'generate'"):
        export_tflite(small(), tmp_path / "gpu.tflite", accelerator="gpu", **sizes)
    with pytest.raises(ValueError, match="accelerator must be 'cpu' or 'gpu', got 'npu'"):
        export_tflite(small(), tmp_path / "gpu.tflite", accelerator="npu", **sizes)


def test_command_line(tmp_path, monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["keras-tfm", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        return capsys.readouterr().out

    gpt().save(tmp_path / "gpt.keras")
    sizes = ["--signatures", "prefill,decode", "--prompt-lengths", 4, "--max-length", 12]
    run("export", tmp_path / "gpt.keras", tmp_path / "cpu.tflite", *sizes)
    run("export", tmp_path / "gpt.keras", tmp_path / "gpu.tflite", *sizes, "--accelerator", "gpu")
    out = run("inspect", tmp_path / "cpu.tflite", "--accelerator", "gpu")
    assert "decode: BATCH_MATMUL (2): some delegates ignore adj_x and adj_y" in out
    found = json.loads(run("inspect", tmp_path / "cpu.tflite", "--accelerator", "gpu", "--json"))
    assert {"signature", "operator", "count", "reason"} == found[0].keys()
    out = run("inspect", tmp_path / "gpu.tflite", "--accelerator", "gpu")
    assert "no operator that the GPU delegate refuses" in out
