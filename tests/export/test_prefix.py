"""Image features before the text, in one file: pixels in, tokens out, however the file is run."""

import functools

import keras
import numpy as np
import pytest
from small_exports import new_path
from small_models import randomize

from keras_tfm import layers
from keras_tfm.export import export_tflite
from keras_tfm.export.signatures.make import make_signatures
from keras_tfm.export.signatures.request import Request
from keras_tfm.generation import Beam, Generator
from keras_tfm.runtime import load

B, P, D, V, START, END, MAX_LENGTH = 3, 6, 8, 13, 1, 5, 11
ROLES = ["generate", "encode", "prefill", "decode"]
PIXELS = np.random.default_rng(7).integers(0, 256, (B, 8, 12, 3)).astype("uint8")
PROMPTS = [[1, 4, 9], [1], [1, 7]]


@functools.cache
def captioner():
    """Six patches before the embedded tokens; two blocks, grouped keys, rotary positions."""
    pixels = keras.Input((8, 12, 3), name="pixels")
    x = layers.ImageNormalization((0.5,) * 3, (0.25,) * 3)(pixels)
    features = keras.layers.Reshape((P, D))(layers.PatchEmbedding(D, 4)(x))
    ids = keras.Input((None,), dtype="int32", name="target")
    embedding = layers.TokenEmbedding(V, D, mask_zero=True)
    x = layers.ConcatenatePrefix()([features, embedding(ids)])
    for _ in range(2):
        x = layers.TransformerDecoderBlock(
            self_attention=layers.MultiHeadSelfAttention(
                4, causal=True, position=layers.RotaryEmbedding(), num_key_value_heads=2
            ),
            feed_forward=layers.FeedForward(17),
            cross_attention=False,
        )(x)
    x = layers.RemovePrefix()([features, x])
    logits = embedding(layers.LayerNormalization()(x), reverse=True)
    return randomize(keras.Model({"pixels": pixels, "target": ids}, logits), seed=11)


def exported(**options):
    defaults = {"max_length": MAX_LENGTH, "start_id": START, "end_id": END, "target": "target"}
    return export_tflite(captioner(), new_path(), **{"signatures": ROLES, **defaults, **options})


@functools.cache
def file():
    """Verified when it was made: each signature's logits are Keras's."""
    return load(exported(prompt_length=3).path)


@functools.cache
def expected():
    generator = Generator(captioner(), MAX_LENGTH, START, END)
    tokens = generator({"pixels": PIXELS, "target": PROMPTS}).tokens
    assert len({tuple(row) for row in tokens[:, 3:].tolist()}) == B  # the pictures matter
    return tokens


def test_the_loop_in_the_file_writes_keras_s_tokens():
    tokens = file().generate({"pixels": PIXELS, "target": PROMPTS}).tokens
    np.testing.assert_array_equal(tokens, expected())


def test_pixels_are_bytes():
    inputs = file().signatures["encode"]["inputs"]
    assert {name: (x["shape"], x["dtype"]) for name, x in inputs.items()} == {
        "pixels": ([1, 8, 12, 3], "uint8")
    }


def test_the_caches_begin_with_the_prefix():
    signatures = file().signatures
    assert signatures["decode"]["prefix"] == P
    before = {name: x["shape"] for name, x in signatures["encode"]["outputs"].items()}
    cached = {
        name: x["shape"]
        for name, x in signatures["decode"]["inputs"].items()
        if x["kind"] == "cache"
    }
    assert before.keys() == cached.keys()
    name = next(name for name in before if name.endswith("_key"))
    assert before[name] == [1, 2, P, 2] and cached[name] == [1, 2, P + MAX_LENGTH, 2]
    name = next(name for name in before if name.endswith("_mask"))
    assert before[name] == [1, P] and cached[name] == [1, P + MAX_LENGTH]


@pytest.mark.parametrize("row", range(B))
def test_the_loop_on_the_host_writes_them_too(row):
    inputs = {"pixels": PIXELS[row : row + 1], "target": PROMPTS[row : row + 1]}
    tokens = [int(token[0]) for token in file().stream(inputs)]
    whole = [*PROMPTS[row], *tokens]
    assert whole == expected()[row, : len(whole)].tolist()
    assert not expected()[row, len(whole) :].any()


def test_a_session_continues_a_picture(tmp_path):
    session = file().session({"pixels": PIXELS[:1]})
    session.append(PROMPTS[0])
    other = session.fork()
    first = session.generate(max_tokens=3)
    session.save(tmp_path / "session.npz")
    rest = session.generate()
    restored = file().session(restore=tmp_path / "session.npz")
    assert restored.generate().tokens.tolist() == rest.tokens.tolist()
    session.rewind(len(session) - len(PROMPTS[0]))
    whole = [*first.tokens, *rest.tokens]
    assert session.generate().tokens.tolist() == whole == other.generate().tokens.tolist()
    row = [*PROMPTS[0], *map(int, whole)]
    assert row == expected()[0, : len(row)].tolist()


@pytest.mark.slow  # "greedy" covers the caches, tests/generation the search
def test_a_beam_in_the_file():
    report = exported(signatures=["generate"], strategy=Beam(3), prompt_length=3, verify=False)
    strategy = Beam(3)
    keras_s = Generator(captioner(), MAX_LENGTH, START, END, strategy=strategy)
    inputs = {"pixels": PIXELS, "target": PROMPTS}
    tokens = load(report.path).generate(inputs).tokens
    np.testing.assert_array_equal(tokens, keras_s(inputs).tokens)


@pytest.mark.slow  # two capacities, which the other tests of the host's loop cover
def test_long_texts_have_several_capacities():
    report = exported(signatures=ROLES, max_length=200, end_id=None, prompt_length=3)
    keras_s = Generator(captioner(), 200, START)({"pixels": PIXELS[:1], "target": PROMPTS[:1]})
    inputs = {"pixels": PIXELS[:1], "target": PROMPTS[:1]}
    tokens = [int(token[0]) for token in load(report.path).stream(inputs)]
    assert [*PROMPTS[0], *tokens] == keras_s.tokens[0].tolist()


def test_steps_without_their_prefix_are_refused():
    request = Request(
        captioner(), roles=["decode"], target="target", max_length=MAX_LENGTH, start_id=START
    )
    with pytest.raises(ValueError, match="takes the results of 'encode': export both"):
        make_signatures(request)


def test_prefixes_of_several_lengths_are_refused():
    source = keras.Input((None,), dtype="int32", name="source")
    ids = keras.Input((None,), dtype="int32", name="target")
    embedding = layers.TokenEmbedding(V, D, mask_zero=True)
    prefix = embedding(source)
    x = layers.ConcatenatePrefix()([prefix, embedding(ids)])
    x = layers.MultiHeadSelfAttention(2, causal=True)(x)
    logits = embedding(layers.RemovePrefix()([prefix, x]), reverse=True)
    model = keras.Model({"source": source, "target": ids}, logits)
    request = Request(
        model, roles=["encode", "decode"], source_length=[3, 5], max_length=7, start_id=START
    )
    with pytest.raises(ValueError, match=r"a prefix of one length, got \[5\] and the source"):
        make_signatures(request)


@pytest.mark.slow
def test_int8_caches_begin_with_the_columns_of_the_prefix():
    report = exported(prompt_length=3, cache="int8")
    assert not report.verification.failures
    inputs = load(report.path).signatures["decode"]["inputs"].values()
    assert "int8" in {x["dtype"] for x in inputs if x["kind"] == "cache"}
