"""Logits processors inside exported files."""

import numpy as np
import pytest
from small_exports import MAX_LENGTH, QUESTIONS, SOURCE_LENGTH, new_path, small
from small_models import START, TARGET_SIZE

from keras_tfm import models, runtime
from keras_tfm.export import export_tflite, verify
from keras_tfm.generation import Beam, Generator, Greedy, Sample, Strategy, generate, processors
from keras_tfm.runtime import load

END = 7
LENGTHS = {"source_length": SOURCE_LENGTH, "max_length": MAX_LENGTH, "end_id": END}
GROUPS = np.full((3, TARGET_SIZE), -1)
GROUPS[0, 3:9], GROUPS[1, 3:9], GROUPS[2, 10] = 1, 2, 0

MANY = [
    processors.RepetitionPenalty(1.3),
    processors.NoRepeatNGram(2),
    processors.NoBadWords([[4], [11, 11], [2, 10, 4]]),
    processors.SequenceBias({(3,): 1.0, (3, 8): 2.0}),
    processors.MinLength(5),
    processors.MinNewTokens(4),
    processors.SuppressTokens([9]),
    processors.SuppressTokensAtBegin([3], index=1),
    processors.ForcedBOS(12),
    processors.ForcedEOS(END),
    processors.LogitNormalization(),
]
GRAMMAR = [processors.Grammar(GROUPS, [2]), processors.SequenceBias({(10,): 3.0})]
STRATEGIES = {
    "greedy, many": Greedy(MANY),
    "beam, grammar": Beam(3, hypotheses=2, processors=GRAMMAR),
    "beam, many": Beam(3, processors=MANY),
    "greedy, grammar": Greedy(GRAMMAR),
}


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(x, id=name, marks=[pytest.mark.slow] * (i > 0))
        for i, (name, x) in enumerate(STRATEGIES.items())
    ],
)
def test_a_file_generates_what_keras_does(strategy):
    report = export_tflite(
        small(), new_path(), **LENGTHS, start_id=START, strategy=strategy, verify=False
    )
    assert not report.custom_operators
    expected = Generator(small(), MAX_LENGTH, START, END, strategy)(QUESTIONS).tokens
    np.testing.assert_array_equal(load(report.path).generate(QUESTIONS).tokens, expected)
    plain = Greedy() if strategy.width == 1 else Beam(3, hypotheses=strategy.hypotheses)
    assert np.any(expected != generate(small(), QUESTIONS, MAX_LENGTH, START, END, plain).tokens)


def test_verification_takes_the_same_processors():
    strategy = Greedy([processors.ForcedBOS(12), processors.MinNewTokens(3)])
    path = new_path()
    report = export_tflite(small(), path, **LENGTHS, start_id=START, strategy=strategy)
    assert report.verification.checks[0].top_1 == 1.0
    described = report.manifest["signatures"]["generate"]["strategy"]
    assert described == {"name": "Greedy", "processors": ["ForcedBOS", "MinNewTokens"]}
    with pytest.raises(ValueError, match=r"with the processors \['ForcedBOS', .*: pass strategy="):
        verify(small(), path)
    assert not verify(small(), path, strategy=strategy).failures
    with pytest.raises(ValueError, match="generate: expected"):
        verify(small(), path, strategy=Greedy([processors.ForcedBOS(11)]))


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (
            Beam(2, processors=[processors.PrefixConstrained(lambda row, tokens: [3])]),
            "PrefixConstrained calls Python in each step, which a file cannot: use a processor of",
        ),
        (Greedy([processors.ForcedBOS(13)]), r"ForcedBOS: id must be in 0\.\.12, got 13"),
        (Greedy([processors.Grammar(GROUPS[:, 1:], [2])]), "each of 13 tokens, got 12"),
    ],
    ids=["python", "id", "table"],
)
def test_what_a_file_cannot_hold_is_refused(strategy, message, tmp_path):
    with pytest.raises(ValueError, match=message) as caught:
        export_tflite(small(), tmp_path / "x.tflite", **LENGTHS, start_id=START, strategy=strategy)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "strategy",
    [
        Greedy([processors.ForcedBOS(3)]),
        Greedy([processors.RepetitionPenalty(1.2)]),
        Sample(processors=[processors.RepetitionPenalty(1.2), processors.MinLength(3)]),
    ],
    ids=["forced", "greedy", "sampled"],
)
def test_processors_without_a_loop_in_the_file_are_refused(strategy, tmp_path):
    with pytest.raises(ValueError, match="processors are a part of the signature 'generate'"):
        export_tflite(
            small(),
            tmp_path / "x.tflite",
            ["encode", "decode"],
            **LENGTHS,
            start_id=START,
            strategy=strategy,
        )
    assert list(tmp_path.iterdir()) == []


def test_the_sampling_of_decode(tmp_path):
    """The file says it; the caller decides."""
    penalties = [processors.RepetitionPenalty(1.2), processors.RepetitionPenalty(1.25)]
    sampled = Sample(0.7, top_k=3, top_p=0.9, processors=penalties)
    path = tmp_path / "x.tflite"
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16}
    model = models.gpt(13, **sizes, max_length=12)
    export_tflite(model, path, ["decode"], max_length=12, end_id=2, strategy=sampled)
    model = runtime.load(path)
    expected = runtime.Sampler(0.7, top_k=3, top_p=0.9, repetition_penalty=1.5)
    assert model.sampler == expected
    greedy = [int(token[0]) for token in model.stream([[3, 4]])]
    best = model.stream([[3, 4]], choose=lambda logits: logits.argmax(-1))
    assert greedy == [int(token[0]) for token in best]


def test_a_grammar_without_an_end_token_is_refused(tmp_path):
    lengths = {**LENGTHS, "end_id": None, "start_id": START}
    with pytest.raises(ValueError, match="give end_id, got none"):
        export_tflite(small(), tmp_path / "x.tflite", **lengths, strategy=Greedy(GRAMMAR))
    assert list(tmp_path.iterdir()) == []


def test_a_custom_strategy_has_processors_too():
    class Second(Strategy):
        processors = (processors.SuppressTokens([3, 4]),)

        def choose(self, logits, context):
            from keras import ops

            return ops.cast(ops.top_k(logits, k=2)[1][:, 1], "int32")

    tokens = generate(small(), QUESTIONS, MAX_LENGTH, START, strategy=Second()).tokens
    assert not np.isin(tokens, [3, 4]).any()
