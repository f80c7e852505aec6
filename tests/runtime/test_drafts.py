"""Drafts in the host loop: the tokens of steps of one token, in fewer steps."""

import keras
import numpy as np
import pytest
from keras_weights import randomize
from small_models import SOURCES, START, encoder_decoder

from keras_tfm import generation, models, runtime
from keras_tfm.export import export_tflite
from keras_tfm.generation.strategies import Task
from keras_tfm.runtime.decoding.steps import Steps

VOCABULARY, LENGTH, DRAFTED = 13, 23, 3
PROMPTS = [[3, 4, 5, 3, 4], [7, 8, 9, 7, 1]]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """A decoder-only model for two rows; its export verifies the logits of steps with drafts."""
    size = {"dim": 16, "num_layers": 2, "num_heads": 2, "intermediate_dim": 16}
    model = randomize(models.gpt(VOCABULARY, max_length=LENGTH, **size))
    path = tmp_path_factory.mktemp("drafts") / "decoder.tflite"
    export_tflite(
        model, path, ["decode"], max_length=LENGTH, batch_size=2, draft_length=DRAFTED, end_id=6
    )
    return runtime.load(path)


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    path = tmp_path_factory.mktemp("drafts") / "translator.tflite"
    sizes = {"source_length": 5, "max_length": 17, "start_id": START, "end_id": 2}
    export_tflite(
        encoder_decoder(), path, ["encode", "decode"], draft_length=4, verify=False, **sizes
    )
    return runtime.load(path)


def tokens_of(stream):
    return [tokens.tolist() for tokens in stream]


@pytest.fixture
def passes(monkeypatch):
    """The columns at which steps of several tokens began."""
    found = []
    verify = Steps.verify

    def counted(self, tokens):
        found.append(self.position)
        return verify(self, tokens)

    monkeypatch.setattr(Steps, "verify", counted)
    return found


@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1], [[1]]], ids=["two", "one", "short"])
@pytest.mark.parametrize("seed", [None, 4])
def test_a_decoder(decoder, prompts, seed):
    choose = None if seed is None else runtime.Sampler(temperature=1.5, seed=seed)
    wanted = tokens_of(decoder.stream(prompts, choose))
    found = tokens_of(decoder.stream(prompts, choose, runtime.PromptLookup(2)))
    assert found == wanted and len(wanted) > 2


@pytest.mark.parametrize("sources", [(), ("source",)])
def test_an_encoder_decoder(translator, sources):
    for row in SOURCES:
        wanted = tokens_of(translator.stream(row))
        assert tokens_of(translator.stream(row, draft=runtime.PromptLookup(2, sources))) == wanted


def test_right_drafts_save_steps_and_wrong_ones_do_not(decoder, passes):
    wanted = np.array(tokens_of(decoder.stream(PROMPTS[:1])))[:, 0]
    whole = np.concatenate([PROMPTS[0], wanted, np.zeros(DRAFTED, int)])

    def right(tokens, count, inputs):
        return whole[np.newaxis, tokens.shape[1] :][:, :count]

    def wrong(tokens, count, inputs):
        return (right(tokens, count, inputs) + 1) % VOCABULARY

    assert tokens_of(decoder.stream(PROMPTS[:1], draft=right)) == wanted[:, np.newaxis].tolist()
    assert passes[:2] == [4, 8]
    assert len(passes) == -(-len(wanted) // (DRAFTED + 1))
    passes.clear()
    assert tokens_of(decoder.stream(PROMPTS[:1], draft=wrong)) == wanted[:, np.newaxis].tolist()
    assert len(passes) == len(wanted)


def test_another_user_of_the_caches_ends_the_stream(decoder):
    stream = decoder.stream(PROMPTS, draft=runtime.PromptLookup())
    next(stream)
    name = next(x for x in decoder.signatures if x.startswith("verify"))
    inputs = decoder.signatures[name]["inputs"]
    decoder.run(name, {key: np.zeros(x["shape"], x["dtype"]) for key, x in inputs.items()})
    with pytest.raises(RuntimeError, match="another stream has begun"):
        next(stream)


def test_lookup_copies_what_that_of_the_generator_copies():
    random = np.random.default_rng(0)
    for _ in range(40):
        ngram, count, position = (int(random.integers(1, x)) for x in (5, 6, 12))
        source = random.integers(1, 4, (2, 9)).astype("int32")
        tokens = random.integers(1, 4, (2, 12)).astype("int32")
        task = Task(2, 12, 0, (), None, None, False, None, sources={"source": source})
        for sources in ((), ("source",)):
            wanted = generation.PromptLookup(ngram, sources).propose(task, tokens, position, count)
            found = runtime.PromptLookup(ngram, sources)(
                tokens[:, : position + 1], count, {"source": source}
            )
            np.testing.assert_array_equal(found, keras.ops.convert_to_numpy(wanted))
    assert runtime.PromptLookup()(np.array([[5]]), 2, {}).tolist() == [[5, 5]]


def test_what_does_not_fit_is_named(decoder, translator, tmp_path):
    with pytest.raises(ValueError, match="reads the input 'source', the file has"):
        next(decoder.stream(PROMPTS, draft=runtime.PromptLookup(sources=["source"])))
    with pytest.raises(TypeError, match=r"integer tokens of shape \(2, 3\), got float64 \(2, 3\)"):
        next(decoder.stream(PROMPTS, draft=lambda tokens, count, inputs: np.zeros((2, count))))
    with pytest.raises(ValueError, match=r"tokens in 0\.\.12, got \[\[13, 13, 13, 13\]\]"):
        full = lambda tokens, count, inputs: np.full((1, count), 13)  # noqa: E731
        next(translator.stream(SOURCES[0], draft=full))
    model = encoder_decoder()
    sizes = {"source_length": 5, "max_length": 7, "start_id": START}
    with pytest.raises(ValueError, match="draft_length=6 does not fit max_length=7"):
        export_tflite(model, tmp_path / "x", ["encode", "decode"], draft_length=6, **sizes)
    with pytest.raises(ValueError, match="draft_length is for the signature 'decode'"):
        export_tflite(model, tmp_path / "x", ["generate"], draft_length=2, **sizes)
    path = tmp_path / "plain.tflite"
    export_tflite(model, path, ["encode", "decode"], verify=False, **sizes)
    with pytest.raises(ValueError, match="export it with a draft_length"):
        next(runtime.load(path).stream(SOURCES[0], draft=runtime.PromptLookup()))
    with pytest.raises(TypeError, match="sources must be a list of names"):
        runtime.PromptLookup(sources="source")
    with pytest.raises(ValueError, match="ngram must be at least 1"):
        runtime.PromptLookup(0)
