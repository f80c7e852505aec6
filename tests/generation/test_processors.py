"""Logits processors beside those of transformers: random logits and histories, whole outputs."""

import numpy as np
import pytest
from compare import to_numpy
from keras import ops

from keras_tfm.generation import Context, processors
from keras_tfm.generation.strategies import Task

V, LENGTH, END = 11, 14, 2
rng = np.random.default_rng(5)

# Ours, and theirs given the prompt's length.
SAME = {
    "MinLength": (
        processors.MinLength(6),
        lambda hf, prompt: hf.MinLengthLogitsProcessor(6, [END, 5]),
    ),
    "MinNewTokens": (
        processors.MinNewTokens(3),
        lambda hf, prompt: hf.MinNewTokensLengthLogitsProcessor(prompt, 3, [END, 5]),
    ),
    "NoRepeatNGram 1": (
        processors.NoRepeatNGram(1),
        lambda hf, prompt: hf.NoRepeatNGramLogitsProcessor(1),
    ),
    "NoRepeatNGram 2": (
        processors.NoRepeatNGram(2),
        lambda hf, prompt: hf.NoRepeatNGramLogitsProcessor(2),
    ),
    "NoRepeatNGram 3": (
        processors.NoRepeatNGram(3),
        lambda hf, prompt: hf.NoRepeatNGramLogitsProcessor(3),
    ),
    "RepetitionPenalty": (
        processors.RepetitionPenalty(1.7),
        lambda hf, prompt: hf.RepetitionPenaltyLogitsProcessor(1.7),
    ),
    "RepetitionPenalty below 1": (
        processors.RepetitionPenalty(0.6),
        lambda hf, prompt: hf.RepetitionPenaltyLogitsProcessor(0.6),
    ),
    "NoBadWords": (
        processors.NoBadWords([[3], [0, 1], [1, 0], [0, 0, 1], [1, 1, 0, 4], [END], [0, 5]]),
        lambda hf, prompt: hf.NoBadWordsLogitsProcessor(
            [[3], [0, 1], [1, 0], [0, 0, 1], [1, 1, 0, 4], [END], [0, 5]], [END, 5]
        ),
    ),
    "SequenceBias": (
        processors.SequenceBias({(3,): 0.5, (0, 1): -1.0, (1, 1): 2.0, (1, 0, 1): 0.25}),
        lambda hf, prompt: hf.SequenceBiasLogitsProcessor(
            [[[3], 0.5], [[0, 1], -1.0], [[1, 1], 2.0], [[1, 0, 1], 0.25]]
        ),
    ),
    "ForcedBOS": (processors.ForcedBOS(4), lambda hf, prompt: hf.ForcedBOSTokenLogitsProcessor(4)),
    "ForcedEOS": (
        processors.ForcedEOS([END, 5]),
        lambda hf, prompt: hf.ForcedEOSTokenLogitsProcessor(LENGTH, [END, 5]),
    ),
    "SuppressTokens": (
        processors.SuppressTokens([7, 1]),
        lambda hf, prompt: hf.SuppressTokensLogitsProcessor([7, 1]),
    ),
    "SuppressTokensAtBegin": (
        processors.SuppressTokensAtBegin([7, 1], index=1),
        lambda hf, prompt: hf.SuppressTokensAtBeginLogitsProcessor([7, 1], prompt + 1),
    ),
}


def histories(length, rows=6, size=2):
    """Rows of few different tokens, so that n-grams and sequences repeat."""
    return rng.integers(0, size, (rows, length)).astype("int32")


def context_of(tokens, prompt, padding=None, limit=None):
    """The context after these tokens (B, N), of which the first `prompt` are the prompt."""
    task = Task(len(tokens), LENGTH, prompt - 1, (END, 5), limit, padding, False, None)
    given = task.sequences(ops.convert_to_tensor(tokens))
    return task.context(given, ops.convert_to_tensor(tokens.shape[1] - 1, "int32"))


@pytest.mark.parametrize("name", SAME)
def test_logits_are_those_of_transformers(name):
    torch = pytest.importorskip("torch")
    hf = pytest.importorskip("transformers.generation.logits_process")
    ours, theirs = SAME[name]
    changed = 0
    for prompt in (1, 3):
        for length in range(prompt, LENGTH):
            tokens = histories(length, size=2 + length % 3)
            logits = rng.normal(size=(len(tokens), V)).astype("float32")
            expected = theirs(hf, prompt)(torch.from_numpy(tokens).long(), torch.from_numpy(logits))
            actual = to_numpy(ours(ops.convert_to_tensor(logits), context_of(tokens, prompt)))
            # The same operations in float32.
            np.testing.assert_allclose(actual, expected.numpy(), rtol=1e-6, atol=1e-7)
            changed += int(np.any(actual != logits))
    assert changed


@pytest.mark.parametrize("name", SAME)
def test_padding_before_a_prompt_does_not_count(name):
    """A padded row gets the logits that it gets alone, also with other lengths beside it."""
    ours, _ = SAME[name]
    padding = [0, 3, 4]
    for length in range(5, LENGTH):
        tokens = histories(length, rows=3)
        logits = rng.normal(size=(3, V)).astype("float32")
        together = context_of(
            tokens,
            5,
            ops.convert_to_tensor(padding, "int32"),
            ops.convert_to_tensor([LENGTH - 4 + x for x in padding], "int32"),
        )
        actual = to_numpy(ours(ops.convert_to_tensor(logits), together))
        for row, before in enumerate(padding):
            if length > LENGTH - 4 + before - 1:
                continue  # the row is full
            task = Task(1, LENGTH - 4, 5 - before - 1, (END, 5), None, None, False, None)
            own = tokens[row : row + 1, before:]
            alone = task.context(task.sequences(ops.convert_to_tensor(own)), length - before - 1)
            expected = to_numpy(ours(ops.convert_to_tensor(logits[row : row + 1]), alone))
            np.testing.assert_array_equal(actual[row], expected[0])


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("shared", [False, True], ids=["rows", "one row"])
def test_the_repetition_penalty_counts_written_tokens_once(penalty, shared):
    """Token 0 and the last one, a token twice, and tokens in columns without one."""
    logits = rng.normal(size=(5, 7)).astype("float32")
    tokens = np.int32([[0, 6, 6, 2], [1, 1, 1, 1], [5, 4, 3, 2], [0, 0, 6, 6], [3, 3, 0, 0]])
    written = np.array([[True, True, True, False]] * 5)
    if not shared:
        written[1] = False
        written[4] = [False, False, True, True]
    expected = logits.astype("float64")
    for row in range(5):
        for token in {int(x) for x, seen in zip(tokens[row], written[row], strict=True) if seen}:
            value = expected[row, token]
            expected[row, token] = value / penalty if value > 0 else value * penalty
    context = Context(tokens, written[:1] if shared else written, 2, None)
    found = processors.RepetitionPenalty(penalty)(ops.convert_to_tensor(logits), context)
    np.testing.assert_allclose(to_numpy(found), expected, rtol=1e-6)  # one rounding
