"""What `verify` compares: which steps, up to which token, of which prompts."""

import functools
import time

import keras
import numpy as np
import pytest
from compare import to_numpy
from keras_weights import randomize
from small_exports import MAX_LENGTH, SOURCE_LENGTH, new_path, small, small_file
from small_models import START, TARGET_SIZE, decoder_only

from keras_tfm import models
from keras_tfm.export import VerificationError, export_tflite, verify
from keras_tfm.export.verification import comparison
from keras_tfm.export.verification.checks import RUNS
from keras_tfm.export.verification.comparison import Comparison, ModelOutputs
from keras_tfm.generation import Beam, Drafted, Greedy, PromptLookup
from keras_tfm.generation.generator import Generated
from keras_tfm.generation.processors import RepetitionPenalty
from keras_tfm.runtime import load
from keras_tfm.runtime.loaded_file import LoadedFile

LENGTHS = {"source_length": SOURCE_LENGTH, "max_length": MAX_LENGTH, "start_id": START}
# Sums of float32 in another order.
FLOAT32 = 1e-4
PROMPTS = [[3, 4, 5], [6, 7, 8], [9, 1, 2], [5, 5, 5], [11, 12, 3]]
STRATEGIES = {"greedy": Greedy(), "drafted": Drafted(PromptLookup(1), 2)}


@functools.cache
def decoder():
    return decoder_only(num_layers=1)


@functools.cache
def file_of(strategy):
    """A loop of the decoder, not yet verified."""
    path, options = new_path(), {"prompt_length": 3, "max_length": 9, "verify": False}
    export_tflite(decoder(), path, ["generate"], strategy=STRATEGIES[strategy], **options)
    return path


def greedy(prompt, length, ends):
    """The tokens after a prompt, by full passes, and the logits before each of them."""
    tokens, logits = list(prompt), []
    while len(tokens) < length and (len(tokens) == len(prompt) or tokens[-1] not in ends):
        logits.append(to_numpy(decoder()(np.array([tokens], "int32")))[0, -1])
        tokens.append(int(np.argmax(logits[-1])))
    return tokens[len(prompt) :], np.array(logits)


def ends_in_the_middle():
    """Two tokens that end answers early: of three prompts at least, and at different steps."""
    for first in range(TARGET_SIZE):
        for second in range(first):
            answers = [len(greedy(x, 9, (first, second))[0]) for x in PROMPTS]
            if len(set(answers)) >= 3 and min(answers) < 4 < max(answers):
                return [first, second]
    raise AssertionError("no such tokens")


@pytest.fixture
def seen(monkeypatch):
    """What `check` is called with, by the name of the signature."""
    found, check = {}, comparison.check

    def spy(name, rows, errors, wanted, gaps, ms):
        found[name] = {"rows": rows, "errors": errors, "wanted": wanted, "gaps": gaps, "ms": ms}
        return check(name, rows, errors, wanted, gaps, ms)

    monkeypatch.setattr(comparison, "check", spy)
    return found


@pytest.mark.parametrize(
    ("strategy", "batch"),
    [
        ("greedy", len(PROMPTS)),
        ("drafted", 1),
        pytest.param("greedy", 1, marks=pytest.mark.slow),
        pytest.param("drafted", len(PROMPTS), marks=pytest.mark.slow),
    ],
)
def test_every_token_up_to_the_end_is_compared_and_none_after_it(strategy, batch, seen):
    """Each row's logits are those before its own tokens, behind a prompt of several."""
    ends, path = ends_in_the_middle(), new_path()
    options = {"prompt_length": 3, "max_length": 9, "end_id": ends, "batch_size": batch}
    options |= {"strategy": STRATEGIES[strategy], "verify": False}
    export_tflite(decoder(), path, ["generate"], **options)
    verify(decoder(), path, {"tokens": np.array(PROMPTS)}, strategy=STRATEGIES[strategy])
    expected = [greedy(x, 9, ends)[1] for x in PROMPTS]
    found = seen["generate"]
    assert found["rows"] == len(PROMPTS)
    for wanted, gaps, errors, x in zip(
        found["wanted"], found["gaps"], found["errors"], expected, strict=True
    ):
        np.testing.assert_allclose(wanted.reshape(x.shape), x, atol=FLOAT32)
        # Of drafts there are no logits of the file: a token's distance to the best one is compared.
        assert errors.shape == (wanted.shape if strategy == "greedy" else gaps.shape)
        assert gaps.tolist() == [0.0] * len(x)
        assert np.abs(errors).max() < FLOAT32


def test_a_drafted_translator_is_compared_with_its_source():
    path = new_path()
    export_tflite(small(), path, strategy=STRATEGIES["drafted"], verify=False, **LENGTHS)
    (check,) = verify(small(), path, strategy=STRATEGIES["drafted"]).checks
    assert check.top_1 == 1.0 and check.relative_error < FLOAT32
    with pytest.raises(VerificationError, match="generate: expected"):
        verify(small(seed=3), path, strategy=STRATEGIES["drafted"])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_file_of_other_weights_is_refused(strategy):
    other = decoder_only(num_layers=1)
    head = other.get_layer("head").kernel
    head.assign(to_numpy(head)[:, ::-1])
    with pytest.raises(VerificationError, match="generate: expected"):
        verify(other, file_of(strategy), strategy=STRATEGIES[strategy])


def test_logits_of_greedy_search_are_those_of_the_file(monkeypatch):
    """With drafts the file's logits cannot be read, without them they are."""
    read = []
    run = comparison.LoopLogits.run
    monkeypatch.setattr(comparison.LoopLogits, "run", lambda *x: read.append(1) or run(*x))
    counts = []
    for name, strategy in STRATEGIES.items():
        verify(decoder(), file_of(name), strategy=strategy)
        counts.append(len(read))
    assert counts[0] == counts[1] > 0


def test_the_pieces_of_a_loop_run_on_the_kernels_of_the_file():
    """LiteRT's own kernels for 4 bits in blocks are wrong: XNNPACK runs the file, and its loop."""
    model = models.transformer(40, dim=32, num_layers=2, num_heads=2, intermediate_dim=64)
    randomize(model)
    lengths = {"source_length": 6, "max_length": 7, "start_id": 1, "end_id": 2}
    steps = export_tflite(model, new_path(), ["encode", "decode"], "int4", **lengths)
    loop = export_tflite(model, new_path(), ["generate"], "int4", **lengths)
    (*_, decode), (generate,) = steps.verification.checks, loop.verification.checks
    assert generate.relative_error < 2 * decode.relative_error


def test_random_prompts_become_shorter_from_call_to_call(monkeypatch):
    lengths = []
    generate_by = comparison.generate_by

    def spy(file, name, inputs):
        lengths.append(len(inputs["tokens"][0]))
        return generate_by(file, name, inputs)

    monkeypatch.setattr(comparison, "generate_by", spy)
    export_tflite(decoder(), new_path(), ["generate"], prompt_length=4, max_length=7)
    calls = lengths[RUNS - 1 :]  # the first one is timed, in several runs
    assert len(calls) >= 4 and calls[0] == 4
    # A padding id at the end of a row is left out.
    assert all(1 <= x <= 4 - number % 4 for number, x in enumerate(calls))


@pytest.mark.parametrize(
    ("max_length", "lengths"),
    # Two chunks and half of one, rounded up; of a small cache, the whole chunks that it has.
    [(64, {1: 3, 3: 8, 4: 10}), (9, {4: 8, 5: 5})],
)
def test_a_prefill_is_followed_by_two_steps(monkeypatch, max_length, lengths):
    asked = []
    run_steps = Comparison._run_steps

    def spy(self, **arguments):
        asked.append(arguments)
        return run_steps(self, **arguments)

    path = new_path()
    options = {"prompt_length": [*lengths], "max_length": max_length, "whole_caches": True}
    export_tflite(decoder(), path, ["prefill", "decode"], verify=False, **options)
    monkeypatch.setattr(Comparison, "_run_steps", spy)
    verify(decoder(), path)
    assert [x for x in asked if x.get("prefill")] == [
        {"prefill": f"prefill_{length}", "before": before, "steps": 2}
        for length, before in lengths.items()
    ]


def test_milliseconds_are_a_part_of_the_whole_time():
    path = small_file().path
    begun = time.perf_counter()
    verification = verify(small(), path)
    whole = 1e3 * (time.perf_counter() - begun)
    for check in verification.checks:
        assert 0 < check.ms < whole


class Counted:
    """A model, which notes how many rows it gets."""

    def __init__(self, model):
        self.model, self.calls = model, []

    def __getattr__(self, name):
        return getattr(self.model, name)

    def __call__(self, inputs, **arguments):
        self.calls.append(len(inputs))
        return self.model(inputs, **arguments)


def test_outputs_are_computed_once_and_in_parts():
    """Of 70 rows, 64 in one call and 6 in another."""
    rows = np.tile(np.array(PROMPTS, "int32"), (14, 1))
    model = Counted(decoder())
    outputs = ModelOutputs(model)
    logits = outputs.logits({"tokens": rows})
    assert outputs.logits({"tokens": rows.copy()}) is logits
    assert model.calls == [64, 6]
    np.testing.assert_allclose(logits, to_numpy(decoder()(rows)), atol=FLOAT32)


def test_a_model_of_a_fixed_batch_gets_that_many_rows():
    x = keras.Input(batch_shape=(2, 4), name="x")
    model = Counted(keras.Model(x, keras.layers.Dense(3)(x)))
    assert ModelOutputs(model).logits({"x": np.ones((6, 4), "float32")}).shape == (6, 3)
    assert model.calls == [2, 2, 2]


@pytest.mark.parametrize(
    ("shape", "has_classes"), [((3,), True), ((1,), False), ((1, 3), True), ((3, 1), False)]
)
def test_one_number_is_no_choice_among_several(shape, has_classes):
    x = keras.Input((4,), name="x")
    y = keras.layers.Reshape(shape)(keras.layers.Dense(int(np.prod(shape)))(x))
    report = export_tflite(keras.Model(x, y), new_path(), ["predict"])
    assert report.verification.checks[0].top_1 == (1.0 if has_classes else None)


def test_each_prefill_is_run_by_its_own_name(monkeypatch):
    names = []
    stream = comparison.host_loop.stream

    def spy(file, inputs, choose, prefill, draft):
        names.append(prefill)
        return stream(file, inputs, choose, prefill, draft)

    monkeypatch.setattr(comparison.host_loop, "stream", spy)
    options = {"prompt_length": [2, 4], "max_length": 9}
    export_tflite(decoder(), new_path(), ["prefill", "decode"], **options)
    assert set(names) == {"prefill_2", "prefill_4", None}  # None: the check of "decode"


@functools.cache
def wide():
    """Large enough for weights in int8."""
    return randomize(models.gpt(13, dim=32, num_layers=1, num_heads=2, intermediate_dim=64))


def test_without_scores_tokens_are_compared_unless_weights_are_rounded():
    """A float32 file has the tokens of Keras; an int8 file may have others."""
    penalized, plain = (
        Greedy(processors=[RepetitionPenalty(9.0)]),
        Greedy(processors=[lambda x, _: x]),
    )
    options = {"prompt_length": 3, "max_length": 9, "strategy": penalized, "verify": False}
    for quantization, expected in (("float32", 1.0), ("int8", 0.0)):
        path = new_path()
        export_tflite(wide(), path, ["generate"], quantization, **options)
        compare = Comparison(ModelOutputs(wide()), LoadedFile(path), None, penalized)
        assert compare.of("generate").relative_error == 0.0
        compare = Comparison(ModelOutputs(wide()), LoadedFile(path), None, plain)
        assert compare.of("generate").max_error == expected


BEAM = Beam(3, length_penalty=lambda n: ((5 + n) / 6) ** 0.6, hypotheses=2, early_stopping="never")


@functools.cache
def beam_file(quantization):
    """The file, and what it generates: two hypotheses, some end early."""
    path, ends = new_path(), ends_in_the_middle()
    options = {"prompt_length": 3, "max_length": 9, "end_id": ends, "batch_size": len(PROMPTS)}
    export_tflite(wide(), path, ["generate"], quantization, strategy=BEAM, verify=False, **options)
    file = load(path)
    return file, file.generate(PROMPTS)


def beam_search(quantization):
    """A comparison, its inputs, and what the file generates."""
    file, found = beam_file(quantization)
    compare = Comparison(ModelOutputs(wide()), file.file, None, BEAM)
    inputs = {"tokens": np.array(PROMPTS, "int32")}
    return compare, file.file.signatures["generate"], inputs, found


def test_the_model_scores_hypotheses_as_the_search_does():
    compare, signature, inputs, found = beam_search("float32")
    assert found.tokens.shape == (len(PROMPTS), 2, 9)
    own = compare._scores(BEAM, signature, inputs, found.tokens)
    np.testing.assert_allclose(own.reshape(found.scores.shape), found.scores, atol=FLOAT32)
    assert np.any(found.tokens[:, :, -1] == 0)


@pytest.mark.parametrize("quantization", ["float32", "int8"])
def test_rounding_may_lead_a_search_elsewhere(quantization):
    """What the file found is then scored by the model; unrounded weights find the same."""
    compare, signature, inputs, found = beam_search(quantization)
    other = Generated(found.tokens.copy(), found.scores - 5.0)
    other.tokens[0, :, -1] += 1  # this row is another one
    compare._generator = lambda _: other
    error, wanted, same = compare._compare_search(signature, inputs, found)
    error, wanted = error.reshape(-1, 2), wanted.reshape(-1, 2)
    assert same.reshape(-1, 2).tolist() == [[False, False]] + [[True, True]] * 4
    np.testing.assert_array_equal(wanted, other.scores)
    np.testing.assert_allclose(error[1:], 5.0, rtol=1e-5)
    assert np.all(np.abs(error[0]) < 0.1) == (quantization == "int8")
    # A search with processors is not scored: their changes of the logits are not known here.
    compare.strategy = Beam(3, hypotheses=2, processors=[lambda logits, _: logits])
    error, *_ = compare._compare_search(signature, inputs, found)
    np.testing.assert_allclose(error, 5.0, rtol=1e-5)


def test_nan_in_any_row_is_the_worst_error():
    """A check of unrounded weights reads nothing else."""
    wanted, still = [np.ones(2)] * 2, np.zeros(2)
    for errors in ([still, still * np.nan], [still * np.nan, still]):
        found = comparison.check("predict", 2, errors, wanted, [], [1.0])
        found.relative_error, found.graph_error = 0.0, found.worst_error
        assert "with unrounded weights expected" in found.failure
