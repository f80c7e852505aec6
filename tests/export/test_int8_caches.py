"""KV caches in int8 in exported files: the numbers, the operators, and what is refused."""

import functools
import sys
from itertools import pairwise
from pathlib import Path

import keras
import numpy as np
import pytest
from small_exports import MAX_LENGTH, SOURCE_LENGTH, new_path, small, small_tokens
from small_models import SOURCES, START, decoder_only, logits_of
from small_writers import LENGTH, ids, story, written

from keras_tfm import cli
from keras_tfm.export import VerificationError, export_tflite, verify
from keras_tfm.export.graph import int8_caches
from keras_tfm.generation import Beam, Drafted, PromptLookup
from keras_tfm.generation.loop import GenerationLoop
from keras_tfm.layers import DecodingScope, TokenEmbedding, attention
from keras_tfm.layers.multi_head_attention.stepped_attention import stepped_attention
from keras_tfm.layers.target import export_target
from keras_tfm.runtime import flatbuffer, load
from keras_tfm.runtime.manifest.storage import import_litert

# Of logits of order 1: what rounding keys and values to 8 bits changes, in one and in two layers.
ROUNDED = 5e-2
# Float32 rounds at 6e-8; sums in another order.
FLOAT32 = 1e-4
STEPS = {"signatures": ["encode", "decode"], "source_length": SOURCE_LENGTH}
CHAT = {"signatures": ["generate", "prefill", "decode"], "prompt_length": 3, "max_length": 37}


def exported(model=None, **options):
    chosen = {"max_length": MAX_LENGTH, "start_id": START, "cache": "int8", **options}
    return export_tflite(small() if model is None else model, new_path(), **chosen)


@functools.cache
def steps(cache="int8"):
    return load(exported(**STEPS, cache=cache, verify=False).path)


@functools.cache
def writer():
    """A decoder-only model, verified: the loop in the file, and the loop on the host."""
    return exported(decoder_only(), **CHAT, draft_length=2)


def rounded(x):
    """Integers and scales for the last axis, in NumPy."""
    scale = np.abs(x).max(axis=-1, keepdims=True) / 127.0
    return x / scale, scale


def test_the_encoder_returns_rounded_keys_and_values():
    """Beside those of a file with caches in float32."""
    exact = steps("float32").run("encode_5", {"source": SOURCES[:1]})
    found = steps().run("encode_5", {"source": SOURCES[:1]})
    (entry,) = {name.rsplit("_", 1)[0] for name in exact if name.endswith("_value")}
    for part, turned in (("key", True), ("value", False)):
        numbers, scale = rounded(exact[f"{entry}_{part}"])
        name = f"{entry}_{'transposed_' * turned}{part}"
        ours = np.swapaxes(found[name], -1, -2) if turned else found[name]
        assert ours.dtype == np.int8
        # 0.5, and 127 times the error of float32.
        np.testing.assert_allclose(ours, numbers, rtol=0.0, atol=0.5 + 127 * FLOAT32)
        scales = np.swapaxes(found[f"{name.replace('transposed_', '')}_scale"], -1, -2)
        np.testing.assert_allclose(scales, scale, rtol=FLOAT32)
    assert np.abs(found[name]).max() == 127


@pytest.mark.default
def test_a_quarter_of_the_bytes():
    def size(model):
        specs = model.signatures["decode"]["inputs"].values()
        return {
            kind: sum(
                np.prod(x["shape"]) * np.dtype(x["dtype"]).itemsize
                for x in specs
                if x["kind"] == "cache" and x["dtype"] == kind and len(x["shape"]) == 4
            )
            for kind in ("int8", "float32")
        }

    ours, exact = size(steps()), size(steps("float32"))
    assert exact["int8"] == 0 and 4 * ours["int8"] == exact["float32"]
    # One scale for the 3 numbers of a key, and one for the 5 of a value.
    assert ours["float32"] == exact["float32"] * 2 // 8
    assert steps().manifest["cache"] == "int8" and "cache" not in steps("float32").manifest
    assert str(writer()).splitlines()[0].endswith("float32, int8 caches")


def test_the_host_loop_is_near_to_the_model():
    """A step of one token after the other; the same tokens in a stream, and in a full pass."""
    found = []
    tokens = small_tokens()[:1]

    def forced(logits):
        found.append(logits)
        return tokens[:, len(found)]

    list(steps().stream(SOURCES[:1], forced))
    wanted = logits_of(small(), SOURCES[:1], tokens)[:, :-1]
    found = np.stack(found, axis=1)
    error = np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2))
    assert 1e-5 < error < ROUNDED


def test_a_session_continues_restores_and_rewinds(tmp_path):
    """Its logits do not depend on how the tokens were read, except for the rounding."""
    session = load(writer().path).session()
    session.append([1, 5, 3, 7, 2, 9, 4])
    reply = session.generate(max_tokens=4).tokens
    session.save(tmp_path / "session.npz")
    with np.load(tmp_path / "session.npz") as stored:
        kinds = {str(stored[key].dtype) for key in stored if "_key" in key and "scale" not in key}
        assert kinds == {"int8"}
    restored = load(writer().path).session(restore=tmp_path / "session.npz")
    more = [x.generate(max_tokens=3).tokens.tolist() for x in (session.fork(), restored)]
    assert more[0] == more[1]
    session.rewind(4)
    assert session.generate(max_tokens=4).tokens.tolist() == reply.tolist()


def test_drafts_on_the_host_keep_the_tokens():
    """A step of three tokens reads its own keys exactly, as a step of one does."""
    model, prompt = load(writer().path), [[1, 5, 3, 5, 3]]

    def guess(known, count, _):
        return known[:, -2:][:, :count]

    plain = [int(x[0]) for x in model.stream(prompt)]
    drafted = [int(x[0]) for x in model.stream(prompt, draft=guess)]
    same = np.cumprod(np.equal(plain, drafted)).sum()
    assert len(plain) == len(drafted) and same > 16  # until two logits are nearly equal


@pytest.mark.parametrize(
    ("quantization", "strategy"),
    [
        pytest.param("int8", None, marks=pytest.mark.slow),
        ("float32", Beam(3, length_penalty=0.6)),
        pytest.param("float16", None, marks=pytest.mark.slow),
        pytest.param("int4", None, marks=pytest.mark.slow),
        pytest.param("int8", Beam(3), marks=pytest.mark.slow),
    ],
)
def test_every_preset_is_verified(quantization, strategy):
    report = exported(
        signatures=["generate"],
        source_length=SOURCE_LENGTH,
        quantization=quantization,
        strategy=strategy,
    )
    (check,) = report.verification.checks
    assert 0.0 < check.relative_error < check.tolerance < 0.7
    assert check.graph_error < FLOAT32
    manifest = load(report.path).manifest
    assert (manifest["quantization"], manifest["cache"]) == (quantization, "int8")


@pytest.mark.parametrize(
    "strategy",
    [
        None,
        pytest.param(Beam(2), marks=pytest.mark.slow),
        pytest.param(Drafted(PromptLookup(), 2), marks=pytest.mark.slow),
    ],
)
def test_the_loop_in_the_file_is_the_loop_in_keras(strategy):
    """With caches that grow from 32 columns, or are pruned; the same rounding in both."""
    import tensorflow as tf

    model, length, prompt = decoder_only(), 47, np.array([[1, 5, 3, 5]], "int32")
    path = export_tflite(
        model, new_path(), max_length=length, prompt_length=4, strategy=strategy, cache="int8",
        verify=False,
    ).path  # fmt: skip
    found = load(path).generate(prompt).tokens

    @tf.function(autograph=False)
    def run(prompt):
        with export_target("cpu-edge"):
            loop = GenerationLoop(
                model, {}, "tokens", prompt, length, strategy=strategy, score=False,
                capacity=96 if isinstance(strategy, Beam) else 32, int8_caches=True,
            )  # fmt: skip
            return loop.run()["tokens"]

    wanted = run(prompt).numpy()
    same = np.cumprod(np.equal(found[..., : wanted.shape[-1]], wanted).reshape(-1, length)[0])
    # Where float32 sums differ in their last bits, a key may be rounded to the next integer.
    assert same.sum() > 40
    if not isinstance(strategy, Beam):  # greedy search without rounding
        best = logits_of(model, found)[0, 3:-1].argmax(axis=-1)
        assert np.cumprod(np.equal(best, found[0, 4:])).sum() > 12


def operators_of(graph, model):
    schema = import_litert("schema_py_generated")
    names = {x: name for name, x in vars(schema.BuiltinOperator).items() if isinstance(x, int)}
    codes = [max(x.builtinCode, x.deprecatedBuiltinCode) for x in model.operatorCodes]
    return [(names[codes[x.opcodeIndex]], x) for x in graph.operators]


@pytest.mark.default
def test_xnnpack_multiplies_the_caches_as_they_are():
    """In a loop and in "decode": a DEQUANTIZE that one product reads, not transposed; no CAST."""
    content = Path(writer().path).read_bytes()
    model = flatbuffer.read(content)
    types = import_litert("schema_py_generated").TensorType
    products = 0
    for graph in model.subgraphs:
        operators = operators_of(graph, model)
        for name, operator in operators:
            kinds = [graph.tensors[i].type for i in operator.inputs if i >= 0]
            assert name != "CAST" or types.INT8 not in kinds
            if name != "DEQUANTIZE":
                continue
            (x,), (y,) = operator.inputs, operator.outputs
            tensor = graph.tensors[x]
            assert tensor.type == types.INT8
            assert (list(tensor.quantization.scale), list(tensor.quantization.zeroPoint)) == (
                [1.0],
                [0],
            )
            readers = [(kind, other) for kind, other in operators if y in other.inputs]
            assert [kind for kind, _ in readers] == ["BATCH_MATMUL"]
            assert not readers[0][1].builtinOptions.adjY
            products += 1
    graphs = [x for x in writer().subgraphs if x.operators.get("DEQUANTIZE")]
    # Two layers, keys and values, in the loop, "decode" and "verify_3". What "prefill_3" returns
    # does not depend on the attention of the last layer.
    assert products == 4 + 4 + 4 + 2 and len(graphs) == 4
    options = {"draft_length": 2, "cache": "float32", "verify": False}
    exact = exported(decoder_only(), **CHAT, **options).subgraphs
    assert [x.partitions for x in writer().subgraphs] == [x.partitions for x in exact]


def logits_after(path, tokens):
    """The logits of a session after each of its tokens, which it reads in chunks."""
    session, found = load(path).session(), []

    def choose(logits):
        found.append(logits)
        return tokens[len(session) :][:1]

    session.append(tokens[:150])
    session.generate(len(tokens) - 150, choose)
    return np.concatenate(found)


def test_large_caches_are_read_in_parts(monkeypatch):
    """The same numbers from parts of 32 columns, of keys and of values."""
    direct = written(cache="int8")
    monkeypatch.setattr(int8_caches, "_LARGEST_DIRECT", 0)
    monkeypatch.setattr(int8_caches, "_PART", 1)
    path = new_path()
    export_tflite(
        story(), path, ["prefill", "decode"], max_length=LENGTH, verify=False, cache="int8",
        prompt_length=(6, 20), end_id=2,
    )  # fmt: skip
    tokens = ids(LENGTH - 1)
    # 200 columns: the same products, whose sums are added in another order.
    np.testing.assert_allclose(
        logits_after(path, tokens), logits_after(direct, tokens), rtol=0, atol=FLOAT32
    )
    model = flatbuffer.read(path.read_bytes())
    (graph,) = (
        model.subgraphs[x.subgraphIndex]
        for x in model.signatureDefs
        if x.signatureKey.decode() == f"decode_{LENGTH}"
    )
    sizes = [
        graph.tensors[x.outputs[0]].shape.tolist()
        for kind, x in operators_of(graph, model)
        if kind == "DEQUANTIZE"
    ]
    widths = [32] * 6 + [8]
    keys, values = ([1, 2, 4, x] for x in widths), ([1, 2, x, 4] for x in widths)
    assert sorted(sizes) == sorted([*keys, *values] * 2)  # of two layers


def test_a_cache_is_dequantized_next_to_its_product():
    """Not before all layers, where other operators would separate it from the product."""
    model = flatbuffer.read(Path(written(cache="int8")).read_bytes())
    for graph in model.subgraphs:
        operators = operators_of(graph, model)
        for (kind, x), (following, y) in pairwise(operators):
            if kind == "DEQUANTIZE":
                assert following in ("BATCH_MATMUL", "RESHAPE") and x.outputs[0] in y.inputs


def damaged(path, change):
    """A copy of a file in which `change` was made, with a new checksum."""
    file = load(path)
    model = flatbuffer.read(Path(path).read_bytes())
    for graph in model.subgraphs:
        change(graph, model)
    model.metadata = []
    new = new_path()
    new.write_bytes(flatbuffer.write(model, file.file.manifest))
    return new


def doubled(graph, model):
    """Caches are read with the scale 2."""
    for name, operator in operators_of(graph, model):
        if name == "DEQUANTIZE":
            graph.tensors[operator.inputs[0]].quantization.scale = [2.0]


def coarse(graph, model):
    """Keys and values are rounded to 15 integers instead of 255."""
    types = import_litert("schema_py_generated").TensorType
    for tensor in graph.tensors:
        if tensor.type == types.INT8:
            tensor.quantization.scale = [17.0]


def saturated(graph, model):
    """The largest value of a head is stored as 254, which int8 cuts off at 127."""
    for tensor in graph.tensors:
        data = model.buffers[tensor.buffer].data
        if data is not None and len(data) == 4:
            value = np.frombuffer(bytes(data), "float32")
            if abs(value[0] * 127 - 1) < 1e-6:
                model.buffers[tensor.buffer].data = np.frombuffer((value / 2).tobytes(), "uint8")


@pytest.mark.parametrize(
    "change", [*(pytest.param(x, marks=pytest.mark.slow) for x in (doubled, coarse)), saturated]
)
def test_damaged_caches_are_refused(change):
    with pytest.raises(VerificationError, match="expected a relative error of at most"):
        verify(decoder_only(), damaged(writer().path, change))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": "int4"}, r"cache must be one of \['float32', 'int8'\], got 'int4'"),
        ({"signatures": ["predict"]}, "cache='int8' is for the KV caches of 'generate'"),
        ({**STEPS, "accelerator": "gpu"}, "cache='int8' is for accelerator='cpu'"),
    ],
)
def test_where_it_does_not_apply(options, message):
    with pytest.raises(ValueError, match=message):
        exported(**{"source_length": SOURCE_LENGTH, **options})


class RunningMean(keras.layers.Layer):
    """The mean of the tokens up to each one: attention whose keys are zeros."""

    def call(self, x):
        value = keras.ops.expand_dims(x, 1)
        key = keras.ops.zeros_like(value[..., :1])
        scope = DecodingScope.current()
        step = None if scope is None else scope.extend(self.name, key, value, None)
        if step is None or step.entry is None:
            y = attention(key, key, value, causal=True)
        else:
            y = stepped_attention(key, key, value, step.entry, step.visible)
        return keras.ops.squeeze(y, 1)


def test_keys_of_zeros():
    """In the file they share their bytes with a constant in int32, which stays one."""
    keras.utils.set_random_seed(0)
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = TokenEmbedding(11, 6)(tokens)
    model = keras.Model(tokens, keras.layers.Dense(11)(RunningMean()(x)))
    report = exported(model, **{**CHAT, "max_length": 7})
    assert [x.failure for x in report.verification.checks] == [None] * 3


def test_a_model_without_caches():
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    logits = keras.layers.Dense(11)(keras.layers.Embedding(11, 5)(tokens))
    model = keras.Model(tokens, logits, name="bigram")
    with pytest.raises(ValueError, match="bigram has no attention whose keys and values"):
        exported(model, signatures=["generate"], prompt_length=3)


@pytest.mark.slow
def test_of_several_models_the_one_that_generates_has_them():
    x = keras.Input((3,), name="x")
    other = keras.Model(x, keras.layers.Dense(2)(x), name="other")
    path = new_path()
    report = export_tflite(
        {"writer": decoder_only(), "other": other}, path, {"writer": ["prefill", "decode"]},
        prompt_length=3, max_length=17, start_id=START, cache="int8",
    )  # fmt: skip
    assert not report.verification.failures
    dtypes = {x["dtype"] for x in load(path).signatures["writer_decode"]["inputs"].values()}
    assert "int8" in dtypes and load(path).manifest["cache"] == "int8"


@pytest.mark.slow
def test_command_line(tmp_path, monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["keras-tfm", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, capsys.readouterr()

    small().save(tmp_path / "small.keras")
    sizes = ["--lengths", SOURCE_LENGTH, "--max-length", MAX_LENGTH, "--start", START]
    arguments = ["export", tmp_path / "small.keras", tmp_path / "small.tflite", *sizes]
    assert not run(*arguments, "--cache", "int8")[0]
    code, printed = run("inspect", tmp_path / "small.tflite")
    assert not code and "cache: int8" in printed.out
    code, printed = run(*arguments, "--cache", "int8", "--signatures", "predict", "--force")
    assert code and "--cache" in printed.err
