"""What transformers makes of tiny models of every family, here: states, logits, tokens."""

import numpy as np
import pytest
from compare import assert_close
from huggingface_cases import CASES, GENERATING, expected, inputs_of, loaded, outputs_of, run

from keras_tfm import models
from keras_tfm.generation import Beam, Generator

# Float32 rounds at 6e-8; two or three blocks, sums of up to 31 terms, and logits of up to 10.
FLOAT32 = 1e-5


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_those_of_transformers(case):
    outputs = outputs_of(case, run(loaded(case), inputs_of(case)))
    wanted = expected(case)
    compared = {"hidden", *(name for name in wanted if name.endswith(("logits", "output")))}
    assert set(outputs) >= compared - {"hidden"}
    for name, x in outputs.items():
        assert_close(x, wanted[name], FLOAT32)


@pytest.mark.parametrize("case", [case for case in CASES if case != "bert_next"])
def test_features_are_those_of_transformers(case):
    model = models.backbone(loaded(case)) if case != "t5_encoder" else loaded(case)
    assert_close(run(model, inputs_of(case)), expected(case)["hidden"], FLOAT32)


def up_to_end(row, end):
    """What follows an end token means nothing."""
    row = list(row)
    return row[: row.index(end, 1) + 1] if end in row[1:] else row


def generated(case, strategy=None):
    wanted = expected(case)
    end = int(wanted["end_id"])
    start = {"start_id": 0} if "source" in wanted else {}
    generator = Generator(
        loaded(case), int(wanted["max_length"]), end_id=end, strategy=strategy, **start
    )
    name = "source" if "source" in wanted else "prompt"
    return generator({"source": wanted[name]} if name == "source" else wanted[name]), wanted, end


def some(*fast):
    """All cases, the others marked slow: the outputs and test_files.py show the same."""
    return [pytest.param(x, marks=[pytest.mark.slow] * (x not in fast)) for x in GENERATING]


@pytest.mark.parametrize("case", some("gpt2"))
def test_greedy_tokens_are_those_of_transformers(case):
    result, wanted, end = generated(case)
    for tokens, other in zip(result.tokens, wanted["greedy"], strict=True):
        assert up_to_end(tokens, end) == up_to_end(other, end)


@pytest.mark.parametrize("case", some())
def test_beams_are_those_of_transformers(case):
    strategy = Beam(3, length_penalty=0.0, hypotheses=3)
    result, wanted, end = generated(case, strategy)
    for row, others in zip(result.tokens, wanted["beam"], strict=True):
        found = [up_to_end(tokens, end) for tokens in row]
        assert found == [up_to_end(tokens, end) for tokens in others]
    # Sums of ten log-probabilities.
    np.testing.assert_allclose(result.scores, wanted["beam_scores"], atol=1e-4)
