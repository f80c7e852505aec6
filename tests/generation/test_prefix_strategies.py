"""A prefix before the tokens under every strategy: tokens and scores of full passes."""

import functools

import keras
import numpy as np
import pytest
from compare import to_numpy
from small_models import TARGET_SIZE, log_softmax, randomize

from keras_tfm import layers
from keras_tfm.generation import (
    Beam,
    Contrastive,
    Drafted,
    Generator,
    Greedy,
    PromptLookup,
    Sample,
)

P, DIM, MAX_LENGTH = 5, 7, 12
FEATURES = np.random.default_rng(8).normal(size=(3, P, DIM)).astype("float32")
PROMPTS = [[1, 4, 1, 4], [2], [9, 3]]
INPUTS = {"features": FEATURES, "target": PROMPTS}
# Log-probabilities of order 1 differ by 1e-6 between a full pass and steps; some tens add up.
SCORE = 1e-4


@functools.cache
def model():
    features = keras.Input((P, DIM), name="features")
    ids = keras.Input((None,), dtype="int32", name="target")
    x = layers.TokenEmbedding(TARGET_SIZE, DIM, mask_zero=True)(ids)
    x = layers.ConcatenatePrefix()([features, layers.PositionEmbedding(64)(x)])
    for position in (layers.ALiBi(), layers.RelativePositionBias(8, 16)):
        x = layers.TransformerDecoderBlock(
            self_attention=layers.MultiHeadSelfAttention(
                2, causal=True, head_dim=3, position=position
            ),
            feed_forward=layers.FeedForward(11),
            cross_attention=False,
        )(x)
    x = layers.RemovePrefix()([features, x])
    logits = keras.layers.Dense(TARGET_SIZE, name="head")(x)
    return randomize(keras.Model({"features": features, "target": ids}, logits), seed=4)


def generated(strategy, length=MAX_LENGTH, **options):
    return Generator(model(), length, strategy=strategy, **options)(INPUTS)


@functools.cache
def greedy():
    tokens = generated(Greedy()).tokens
    for row, (prompt, found) in enumerate(zip(PROMPTS, tokens, strict=True)):
        logits = full_pass(row, found[:-1])
        np.testing.assert_array_equal(found[len(prompt) :], logits.argmax(-1)[len(prompt) - 1 :])
    return tokens


def full_pass(row, tokens, outputs=None):
    whole = model() if outputs is None else outputs
    return to_numpy(whole({"features": FEATURES[row : row + 1], "target": tokens[None]}))[0]


def log_probability(row, tokens):
    gained = log_softmax(full_pass(row, np.asarray(tokens)))
    first = len(PROMPTS[row])
    return sum(gained[j - 1, tokens[j]] for j in range(first, len(tokens)))


def test_drafts_change_nothing():
    np.testing.assert_array_equal(generated(Drafted(PromptLookup(2), 3)).tokens, greedy())


def test_a_stream_brings_what_a_call_returns():
    generator = Generator(model(), max_new_tokens=6)
    streamed = np.stack([*generator.stream(INPUTS)], axis=1)
    for row, prompt in enumerate(PROMPTS):
        np.testing.assert_array_equal(streamed[row], greedy()[row, len(prompt) :][:6])


@pytest.mark.slow  # tests/generation/test_composed_models.py has a shorter search
def test_a_long_beam_search_prunes_its_caches():
    """Three hypotheses fill the first 128 columns after 42 tokens."""
    length = 60
    result = generated(Beam(3, 0.0), length)
    for row, (tokens, score) in enumerate(zip(result.tokens, result.scores, strict=True)):
        assert abs(score - log_probability(row, tokens)) < SCORE


@pytest.mark.slow  # the loop is that of greedy search
def test_scores_of_samples():
    result = generated(Sample(top_k=4, seed=3))
    assert (result.tokens != greedy()).any()
    for row, (tokens, score) in enumerate(zip(result.tokens, result.scores, strict=True)):
        assert abs(score - log_probability(row, tokens)) < SCORE


@pytest.mark.slow  # as above
def test_contrastive_search():
    features_of = keras.Model(model().input, model().get_layer("head").input)
    result = generated(Contrastive(3, 0.6))
    for row, prompt in enumerate(PROMPTS):
        tokens = list(prompt)
        while len(tokens) < MAX_LENGTH:
            logits = log_softmax(full_pass(row, np.array(tokens)))[-1]
            candidates, merits = np.argsort(-logits)[:3], []
            for candidate in candidates:
                features = full_pass(row, np.array([*tokens, candidate]), features_of)
                features /= np.linalg.norm(features, axis=-1, keepdims=True)
                likeness = (features[:-1] @ features[-1]).max()
                merits.append(0.4 * np.exp(logits[candidate]) - 0.6 * likeness)
            tokens.append(int(candidates[int(np.argmax(merits))]))
        assert result.tokens[row].tolist() == tokens
