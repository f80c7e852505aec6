"""Models composed by hand, with nothing from `models/`, live all three lives: the builders have no
privileges.

They learn to write three symbols backwards.
"""

import keras
import numpy as np
import pytest
from blocks import decoder_block, encoder_block
from small_models import brute_force

from keras_tfm import runtime
from keras_tfm.export import export_tflite
from keras_tfm.generation import Generator, check_stepping
from keras_tfm.layers import (
    FeedForward,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    PositionalEncoding,
    TokenEmbedding,
)

START, END, SYMBOLS = 1, 2, range(3, 8)
SIZE, DIM, LENGTH = 8, 23, 3
QUESTIONS = np.array([(a, b, c) for a in SYMBOLS for b in SYMBOLS for c in SYMBOLS], "int32")
ANSWERS = np.hstack([np.full((125, 1), START), QUESTIONS[:, ::-1], np.full((125, 1), END)]).astype(
    "int32"
)


def normalized(x):
    return keras.layers.LayerNormalization()(x)


def encoder_decoder():
    """Blocks in the encoder; in the decoder the parts of a block, put together differently.

    Cross-attention and the network in parallel, a gate, and logits from a layer of Keras.
    """
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    positions = PositionalEncoding()
    context = positions(TokenEmbedding(SIZE, DIM, scale=True, mask_zero=True)(source))
    context = encoder_block(intermediate_dim=29, num_heads=3, head_dim=7)(context)

    x = positions(TokenEmbedding(SIZE, DIM, scale=True, mask_zero=True)(target))
    attention = MultiHeadSelfAttention(num_heads=3, head_dim=7, causal=True)
    x = keras.layers.Add()([x, attention(normalized(x))])
    seen = MultiHeadCrossAttention(num_heads=3, head_dim=7)(normalized(x), context)
    gate = keras.layers.Dense(DIM, activation="sigmoid")(x)
    thought = FeedForward(29)(normalized(x))
    x = keras.layers.Add()([x, keras.layers.Multiply()([gate, seen]), thought])
    logits = keras.layers.Dense(SIZE)(normalized(x))
    return keras.Model([source, target], logits, name="by_hand")


def decoder_only():
    """One sequence: the question, the start token, the answer."""
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    embedding = TokenEmbedding(SIZE, DIM, scale=True)
    x = PositionalEncoding()(embedding(tokens))
    for _ in range(2):
        x = decoder_block(
            intermediate_dim=29,
            num_heads=3,
            head_dim=7,
            cross_attention=False,
            normalize_first=True,
        )(x)
    return keras.Model(tokens, embedding(normalized(x), reverse=True), name="by_hand")


def fitted(model, inputs, labels, epochs):
    """The model, trained on all there is: what it learnt is asked, not what it generalises."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile(keras.optimizers.Adam(0.005), loss)
    history = model.fit(inputs, labels, batch_size=25, epochs=epochs, verbose=0).history["loss"]
    return model, history


@pytest.fixture(scope="module")
def translator():
    keras.utils.set_random_seed(0)
    inputs = {"source": QUESTIONS, "target": ANSWERS[:, :-1]}
    return fitted(encoder_decoder(), [inputs["source"], inputs["target"]], ANSWERS[:, 1:], 40)


@pytest.fixture(scope="module")
def continuer():
    keras.utils.set_random_seed(0)
    tokens = np.hstack([QUESTIONS, ANSWERS])
    labels = tokens[:, 1:].copy()
    labels[:, :LENGTH] = 0  # what a question is cannot be known
    return fitted(decoder_only(), tokens[:, :-1], labels, 40)


def test_the_translator_learns(translator):
    _, losses = translator
    assert losses[0] > 1.0  # five symbols, by chance: log 5 = 1.6
    assert losses[-1] < 0.05


def test_the_translator_steps(translator):
    model, _ = translator
    check_stepping(model, length=5, tolerance=1e-5)


def test_the_translator_generates_what_it_learnt(translator):
    model, _ = translator
    generated = Generator(model, 6, START, END)(QUESTIONS)
    expected = np.pad(ANSWERS, ((0, 0), (0, 1)))  # the end, and 0 after it
    np.testing.assert_array_equal(generated.tokens, expected)
    assert brute_force(model, [3, 4, 5], [START], 6, END)[0] == [START, 5, 4, 3, END, 0]
    assert (generated.scores < 0).all()
    assert (generated.scores > -1).all()  # it is sure


def test_the_translator_runs_in_the_runtime(translator, tmp_path):
    model, _ = translator
    path = tmp_path / "model.tflite"
    report = export_tflite(
        model, path, source_length=LENGTH, max_length=6, start_id=START, end_id=END
    )
    assert report.custom_operators == []
    tokens = runtime.load(path).generate(QUESTIONS).tokens
    np.testing.assert_array_equal(tokens, Generator(model, 6, START, END)(QUESTIONS).tokens)


@pytest.mark.slow
def test_the_continuer_learns(continuer):
    _, losses = continuer
    assert losses[0] > 1.0
    assert losses[-1] < 0.05


@pytest.mark.slow
def test_the_continuer_steps(continuer):
    model, _ = continuer
    check_stepping(model, length=8, tolerance=1e-5)


@pytest.mark.slow
def test_the_continuer_generates_what_it_learnt(continuer):
    model, _ = continuer
    prompts = np.hstack([QUESTIONS, ANSWERS[:, :1]])
    tokens = Generator(model, 8, end_id=END)(prompts).tokens
    np.testing.assert_array_equal(tokens, np.hstack([QUESTIONS, ANSWERS]))


@pytest.mark.slow
def test_the_continuer_runs_in_the_runtime(continuer, tmp_path):
    """One full pass a token: a generate signature would begin with a start token, no prompt."""
    model, _ = continuer
    path = tmp_path / "model.tflite"
    export_tflite(model, path, source_length=8)
    file = runtime.load(path)
    tokens = np.hstack([QUESTIONS[::7], ANSWERS[::7, :1]])
    while tokens.shape[1] < 8:
        logits = file.predict(tokens)["output"][:, tokens.shape[1] - 1]
        tokens = np.hstack([tokens, logits.argmax(axis=-1)[:, np.newaxis]])
    np.testing.assert_array_equal(tokens, np.hstack([QUESTIONS, ANSWERS])[::7])
