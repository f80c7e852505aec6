"""Lengths by input: a model of texts, frames and pictures, each with an encoder."""

import functools

import keras
import numpy as np
import pytest
from keras_weights import randomize
from small_exports import new_path

from keras_tfm import layers, runtime
from keras_tfm.export import export_tflite
from keras_tfm.export.signatures.request import source_lengths
from keras_tfm.generation import generate
from keras_tfm.generation.interface import interface_of

V, MAX_LENGTH, FRAMES = 13, 6, 10
LENGTHS = {"max_length": MAX_LENGTH, "start_id": 1, "end_id": 2}


@functools.cache
def model():
    """A decoder that attends to each of three encoders."""
    text = keras.Input((None,), dtype="int32", name="text")
    frames = keras.Input((None, 6), name="frames")
    image = keras.Input((4, 4, 3), name="image")
    target = keras.Input((None,), dtype="int32", name="target")
    sources = [
        layers.TokenEmbedding(V, 8, mask_zero=True)(text),
        keras.layers.Dense(8)(frames),
        keras.layers.Dense(8)(keras.layers.Reshape((4, 12))(image)),
    ]
    y = layers.TokenEmbedding(V, 8)(target)
    for x in sources:
        context = layers.TransformerEncoderBlock(11, num_heads=2)(layers.PositionalEncoding()(x))
        y = layers.TransformerDecoderBlock(11, num_heads=2)(y, context)
    inputs = {"text": text, "frames": frames, "image": image, "target": target}
    return randomize(keras.Model(inputs, keras.layers.Dense(V)(y)), 3)


def feed(number):
    rng = np.random.default_rng(number)
    return {
        "text": rng.integers(1, V, (1, number)),
        "frames": rng.normal(size=(1, FRAMES, 6)).astype("float32"),
        "image": rng.normal(size=(1, 4, 4, 3)).astype("float32"),
    }


@pytest.mark.parametrize(
    ("roles", "lengths", "names"),
    [
        pytest.param(
            ["generate"], {"text": 5, "frames": FRAMES}, ["generate"], marks=pytest.mark.slow
        ),
        (
            ["encode", "prefill", "decode"],
            {"text": [3, 5], "frames": FRAMES},
            ["encode_3", "encode_5", "prefill_2", "decode"],
        ),
    ],
)
def test_inputs_with_lengths_of_their_own(roles, lengths, names):
    prompt = {"prompt_length": 2} if "prefill" in roles else {}
    report = export_tflite(model(), new_path(), roles, source_length=lengths, **prompt, **LENGTHS)
    file = runtime.load(report.path)
    assert list(file.signatures) == names
    for number in (3, 5):
        expected = generate(model(), feed(number), **LENGTHS).tokens
        np.testing.assert_array_equal(file.generate(feed(number)).tokens, expected)
    with pytest.raises(ValueError, match=r"frames must have shape \(B, 10, 6\), got \(1, 7, 6\)"):
        file.generate({**feed(3), "frames": np.zeros((1, 7, 6), "float32")})


def lengths_in(given, roles=("generate",), **arguments):
    return source_lengths(interface_of(model()), roles, {"source_length": given, **arguments})


def test_lengths():
    assert lengths_in([8, 4]) == ((4, 8), {})
    assert lengths_in({"text": [8, 4], "frames": np.int64(3)}) == ((4, 8), {"frames": 3})
    assert lengths_in({"text": 8, "frames": [3]}) == ((), {"text": 8, "frames": 3})
    every = {"text": 8, "frames": 3, "target": 5}
    assert lengths_in(every, ["predict"]) == ((), every)
    del every["target"]
    assert lengths_in(every, ["predict"], max_length=5) == ((), every)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"text": 8}, ValueError, r"an open length, \['text', 'frames'\], got \['text'\]"),
        ({"text": 8, "frames": 3, "image": 4}, ValueError, r"got \['text', 'frames', 'image'\]"),
        ({}, ValueError, r"got \[\]"),
        ({"text": [4, 8], "frames": [3, 5]}, ValueError, "one input may have several"),
        ({"text": 8, "frames": 0}, ValueError, "source_length of 'frames' must be at least 1"),
        ({"text": "a", "frames": 3}, TypeError, "'text' must be an integer, got 'a'"),
        ({"text": None, "frames": 3}, ValueError, "must have a length for each input"),
    ],
)
def test_bad_lengths(given, error, message):
    with pytest.raises(error, match=message):
        lengths_in(given)


@pytest.mark.parametrize("roles", [["predict"], ["generate"]])
def test_several_lengths_of_a_model_without_an_open_axis(roles):
    """They would be equal signatures; the target of a generated one has the maximum length."""
    ids = keras.Input((5 if roles == ["predict"] else None,), dtype="int32", name="tokens")
    x = layers.TokenEmbedding(V, 8)(ids)
    x = layers.MultiHeadSelfAttention(2, causal=True)(x)
    model = keras.Model(ids, keras.layers.Dense(V)(x), name="closed")
    sizes = {} if roles == ["predict"] else {**LENGTHS, "prompt_length": 3}
    with pytest.raises(ValueError, match=r"need an input with an open .* but closed has none, got"):
        export_tflite(model, new_path(), roles, source_length=[7, 9], **sizes)


def test_lengths_on_the_command_line():
    from keras_tfm.cli.console import lengths_by_input, typer

    assert lengths_by_input("32,128", "--lengths") == [32, 128]
    found = lengths_by_input("text=32,text=128,frames=30", "--lengths")
    assert found == {"text": [32, 128], "frames": [30]}
    for text in ("text=a", "32,text=3", "=3"):
        with pytest.raises(typer.BadParameter, match=r"expected (integers|a length for each)"):
            lengths_by_input(text, "--lengths")
