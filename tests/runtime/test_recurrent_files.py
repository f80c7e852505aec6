"""Files of models with recurrent states: generation, a host's loop, drafts, sessions."""

from pathlib import Path

import keras
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated
from small_exports import new_path, once_a_run
from small_tokenizers import words

from keras_tfm import layers
from keras_tfm.export import export_litertlm, export_tflite
from keras_tfm.generation import Beam, generate
from keras_tfm.runtime import PromptLookup, flatbuffer, load
from keras_tfm.runtime.manifest.manifest import WITH_STATES, Decode, Prefill

K = keras.layers
V, D, T, BATCH = 19, 16, 24, 2
# What float32 rounds, of logits of order 1.
FLOAT32 = 1e-4


def hybrid():
    """A convolution, a recurrent layer and attention of Keras."""
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.TokenEmbedding(V, D)(tokens)
    x = K.Conv1D(D, 4, padding="causal", activation="silu")(x) + x
    x = K.LSTM(D, return_sequences=True)(K.LayerNormalization()(x)) + x
    x = K.MultiHeadAttention(2, 8)(x, x, use_causal_mask=True) + x
    return noisy(keras.Model(tokens, K.Dense(V)(K.LayerNormalization()(x)), name="hybrid"))


def ours():
    """Blocks of LFM2, Qwen3.5 and Mamba-2: a convolution, two recurrent ones, gated attention."""
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.TokenEmbedding(V, D)(tokens)
    for mixer in (
        layers.ShortConvolution(name="convolution"),
        layers.GatedDeltaNet(4, 8, num_key_heads=2, name="delta"),
        layers.Mamba2(4, 8, 5, num_groups=2, name="mamba"),
        layers.MultiHeadSelfAttention(
            2, causal=True, position=layers.RotaryEmbedding(), gate=True, use_bias=False
        ),
    ):
        x = layers.TransformerDecoderBlock(
            2 * D,
            cross_attention=False,
            self_attention=mixer,
            residual=layers.Residual(input_norm=layers.RMSNormalization()),
        )(x)
    return noisy(keras.Model(tokens, K.Dense(V)(layers.RMSNormalization()(x)), name="ours"))


MODELS = {"hybrid": hybrid, "ours": ours}
every_model = pytest.mark.parametrize("name", MODELS)


def two_branches():
    """Two recurrent layers: the first run of "prefill" moves LiteRT's tensors."""
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.TokenEmbedding(V, D)(tokens)
    y = K.Add()([K.LSTM(D, return_sequences=True)(x), K.GRU(D, return_sequences=True)(x)])
    return noisy(keras.Model(tokens, K.Dense(V)(y), name="two_branches"))


def translator():
    """An encoder and a decoder of LSTMs, without attention."""
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    _, h, c = K.LSTM(D, return_state=True)(layers.TokenEmbedding(V, D)(source))
    y = layers.TokenEmbedding(V, D)(target)
    y = K.LSTM(D, return_sequences=True)(y, initial_state=[h, c])
    return noisy(keras.Model([source, target], K.Dense(V)(y), name="translator"))


def noisy(model):
    generator = np.random.default_rng(0)
    for variable in model.variables:
        noise = generator.normal(scale=0.4, size=variable.shape)
        variable.assign(np.array(variable) + noise.astype("float32"))
    return model


@once_a_run
def file_of(path, name):
    roles = ["generate", "prefill", "decode"]
    return export_tflite(
        MODELS[name](), path, roles, prompt_length=4, max_length=T, batch_size=BATCH, draft_length=3
    )


def ids(count, rows=1, seed=0):
    return np.random.default_rng(seed).integers(1, V, (rows, count)).astype("int32")


def logits_after(session, model):
    """The logits of the session's next token, and those of one full pass."""
    found = []

    def choose(logits):
        found.append(logits)
        return np.array([3])

    assert list(session.fork().stream_tokens(1, choose)) == [3]
    return found[0], np.array(model(session.tokens[np.newaxis]))[:, -1]


def check(session, model):
    found, expected = logits_after(session, model)
    np.testing.assert_allclose(found, expected, rtol=0, atol=FLOAT32)


def test_no_output_is_the_result_of_a_loop():
    """LiteRT's CompiledModel cannot give memory to a tensor that WHILE allocates."""
    file = flatbuffer.read(Path(file_of("hybrid").path).read_bytes())
    codes = vars(schema_py_generated.BuiltinOperator)
    loops = []
    for signature in file.signatureDefs:
        graph = file.subgraphs[signature.subgraphIndex]
        for operator in graph.operators:
            if file.operatorCodes[operator.opcodeIndex].builtinCode == codes["WHILE"]:
                loops.append(signature.signatureKey)
                assert not {*map(int, operator.outputs)} & {*map(int, graph.outputs)}
    assert loops


STATES = {
    "hybrid": [(BATCH, 3, D), (BATCH, D), (BATCH, D)],
    "ours": sorted(
        [(BATCH, 2, D), (BATCH, 3, 64), (BATCH, 4, 8, 8), (BATCH, 3, 52), (BATCH, 2, 5, 16)]
    ),
}


@every_model
def test_the_manifest_tells_the_states(name):
    file = load(file_of(name).path).file
    (decode,) = (x for x in file.signatures.values() if isinstance(x, Decode))
    shapes = sorted(tuple(decode.inputs[name].shape) for name in decode.states)
    assert shapes == STATES[name]
    assert file.manifest.format == WITH_STATES
    prefills = [x for x in file.signatures.values() if isinstance(x, Prefill)]
    assert sorted(len(x.of_kind("count")) for x in prefills) == [0, 1]


@every_model
def test_verification_reads_the_logits_of_a_loop_after_others(name):
    """An LSTM reads the prompt in a loop of its own; tokens alone would have no error."""
    checks = [x for x in file_of(name).verification.checks if "generate" in x.signature]
    assert checks and all(0.0 < x.relative_error < FLOAT32 for x in checks)


@every_model
def test_generated_tokens_are_those_of_keras(name):
    file, model = load(file_of(name).path), MODELS[name]()
    rows = [ids(2)[0], ids(4, seed=1)[0]]
    expected = [generate(model, [row], T).tokens[0] for row in rows]
    for row, tokens in zip(rows, file.generate(rows).tokens, strict=True):
        np.testing.assert_array_equal(tokens[:T], expected[len(row) == 4])
    for number, row in enumerate(rows):
        given = {"tokens": np.stack([row, row])}
        for draft in (None, PromptLookup()):
            steps = list(file.stream(given, draft=draft))
            assert [int(x[0]) for x in steps] == expected[number][len(row) :].tolist()


@every_model
@pytest.mark.parametrize("sizes", [[1], [6], [3, 1, 9], [4, 4, 14], [23]])
def test_tokens_in_chunks_equal_one_pass(sizes, name):
    session, model = load(file_of(name).path).session(), MODELS[name]()
    for part in np.split(ids(sum(sizes))[0], np.cumsum(sizes)[:-1]):
        session.append(part)
    check(session, model)


@every_model
def test_a_session_is_rewound_forked_saved_and_restored(name, tmp_path):
    file, model = load(file_of(name).path), MODELS[name]()
    session = file.session()
    session.append(ids(5)[0])
    session.append(ids(6, seed=1)[0])
    session.generate(max_tokens=4)
    other = session.fork()
    for count in (2, 5, 3, 4):  # also to positions whose states are not known
        session.rewind(count)
        check(session, model)
        session.append(ids(1, seed=count)[0])
        check(session, model)
    check(other, model)
    other.save(tmp_path / "session.npz")
    restored = file.session(restore=tmp_path / "session.npz")
    np.testing.assert_array_equal(restored.tokens, other.tokens)
    check(restored, model)
    restored.rewind(8)
    check(restored, model)
    assert restored.generate(5).tokens.tolist() == (
        generate(model, restored.tokens[np.newaxis][:, :7], 12).tokens[0, 7:].tolist()
    )


def test_a_session_without_its_states_is_damaged(tmp_path):
    session = load(file_of("hybrid").path).session()
    session.append(ids(5)[0])
    session.save(tmp_path / "session.npz")
    with np.load(tmp_path / "session.npz") as saved:
        arrays = dict(saved)
    for lie in (
        {key: x for key, x in arrays.items() if not key.startswith("state/")},
        {key: x for key, x in arrays.items() if key != "position"},
        {**arrays, "position": np.array(2)},
    ):
        np.savez(tmp_path / "lie.npz", **lie)
        with pytest.raises(ValueError, match="is damaged"):
            load(file_of("hybrid").path).session(restore=tmp_path / "lie.npz")


@pytest.mark.slow
@every_model
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_rounded_file_with_int8_caches_and_a_beam_search(quantization, name):
    roles = ["generate", "prefill", "decode"]
    report = export_tflite(
        MODELS[name](), new_path(), roles, prompt_length=4, max_length=T, quantization=quantization,
        cache="int8", strategy=Beam(3),
    )  # fmt: skip
    assert {x.signature for x in report.verification.checks} >= {"generate", "decode"}


def test_tensors_that_the_first_run_moves_are_found():
    """Of the two chunks of the prompt, the second is written where the first left the tensors."""
    model = two_branches()
    roles = ["prefill", "decode"]
    report = export_tflite(model, new_path(), roles, prompt_length=4, max_length=T, verify=False)
    file = load(report.path)
    signature = next(x for x in file.file.signatures if x.startswith("prefill"))
    inputs = file.file.buffers(signature).inputs
    before = {key: x.ctypes.data for key, x in inputs.items()}
    session = file.session()
    session.append(ids(8)[0])
    check(session, model)
    assert before != {key: x.ctypes.data for key, x in inputs.items()}


def test_an_encoders_state_begins_the_decoder():
    model = translator()
    roles = ["generate", "encode", "decode"]
    report = export_tflite(model, new_path(), roles, source_length=5, max_length=9, start_id=1)
    sources = ids(5, rows=2, seed=2)
    expected = generate(model, {"source": sources}, 9, start_id=1).tokens
    file = load(report.path)
    np.testing.assert_array_equal(file.generate(sources).tokens, expected)
    for row, tokens in zip(sources, expected, strict=True):
        steps = list(file.stream({"source": row[np.newaxis]}))
        assert [int(x[0]) for x in steps] == tokens[1:].tolist()


def test_litert_lm_takes_no_states():
    pytest.importorskip("litert_lm_builder")
    with pytest.raises(ValueError, match="LiteRT-LM runs models whose only state are keys"):
        export_litertlm(
            hybrid(), new_path().with_suffix(".litertlm"), words(), max_length=T, end_id=2
        )
