"""Text in, text out in Keras, beside the same texts through an exported file."""

import keras
import numpy as np
import pytest
import small_tokenizers
from grids import first_of
from small_exports import new_path
from small_models import START, decoder_only, encoder_decoder, randomize
from small_tokenizers import END, WORDS

from keras_tfm.export import export_tflite
from keras_tfm.generation import Beam, Contrastive, Generator, Greedy, Sample
from keras_tfm.layers import TokenEmbedding, TransformerDecoderBlock
from keras_tfm.runtime import load

LENGTH = 9
TEXTS = ["two three four", "Eight", "six nine"]
# The small models' ids of a source are the first eleven words.
TOKENIZERS = {"source": small_tokenizers.source_words(), "target": small_tokenizers.words()}


@pytest.fixture(scope="module")
def translator():
    return encoder_decoder()


@pytest.fixture(scope="module")
def writer():
    return decoder_only()


def generator_of(model, strategy=None, tokenizer=TOKENIZERS, **options):
    start = START if len(model.inputs) > 1 else None
    return Generator(model, LENGTH, start, END, strategy, tokenizer=tokenizer, **options)


def text_of(tokens):
    """By hand: words up to the end, without special ones."""
    words = []
    for token in [int(x) for x in tokens]:
        if token == END:
            break
        words += [] if token in (0, START) else [WORDS[token]]
    return " ".join(words)


def test_texts_are_those_of_the_tokens(translator):
    generator = generator_of(translator)
    sources = np.array([[2, 3, 4], [8, 0, 0], [6, 9, 0]], "int32")
    expected = [text_of(row) for row in generator(sources).tokens]
    assert len(set(expected)) > 1
    assert generator.generate_text(TEXTS) == expected
    assert [generator.generate_text(text) for text in TEXTS] == expected
    assert generator.generate_text({"source": TEXTS}) == expected
    assert generator.generate_text([]) == []


def test_prompts_begin_the_answers(translator):
    prompts = ["two", "three six", "nine"]
    found = generator_of(translator).generate_text({"source": TEXTS, "target": prompts})
    for text, prompt in zip(found, prompts, strict=True):
        assert text.split()[: len(prompt.split())] == prompt.split()


def test_a_decoder_continues_its_prompts(writer):
    """The tokenizer's end token is removed from a prompt."""
    tokenizer = small_tokenizers.words(around="<start> $A end")
    generator = generator_of(writer, tokenizer=tokenizer)
    tokens = generator([[START, 2, 3, 4], [START, 8], [START, 6, 9]]).tokens
    assert generator.generate_text(TEXTS) == [text_of(row) for row in tokens]


@pytest.mark.parametrize(
    "strategy", [Beam(3, hypotheses=2), Sample(seed=1, hypotheses=2)], ids=["beam", "sample"]
)
def test_several_hypotheses(translator, strategy):
    generator = generator_of(translator, strategy)
    sources = np.array([[2, 3, 4], [8, 0, 0], [6, 9, 0]], "int32")
    tokens, scores = generator(sources)
    for i, several in enumerate(generator.generate_text(TEXTS)):
        assert [x.text for x in several] == [text_of(row) for row in tokens[i]]
        np.testing.assert_allclose([x.score for x in several], scores[i])


@pytest.mark.parametrize("strategy", first_of({"greedy": Greedy(), "sample": Sample(seed=4)}))
def test_a_stream_is_the_text_in_pieces(translator, strategy):
    generator = generator_of(translator, strategy)
    for text in TEXTS:
        prompt = {"source": text, "target": "two three"}
        pieces = list(generator.stream_text(prompt))
        assert len(pieces) > 1
        assert "two three" + "".join(pieces) == generator.generate_text(prompt)


def test_a_file_gives_the_same_texts(translator):
    report = export_tflite(
        translator, new_path(), source_length=4, max_length=LENGTH, start_id=START, end_id=END,
        tokenizer=TOKENIZERS, verify=False,
    )  # fmt: skip
    file, generator = load(report.path), generator_of(translator)
    assert file.generate_text(TEXTS) == generator.generate_text(TEXTS)


@pytest.mark.parametrize(
    ("tokenizer", "error", "message"),
    [
        (small_tokenizers.words(), ValueError, "'source' has 13 ids, but the model's embedding t"),
        ({"source": TOKENIZERS["source"]}, ValueError, "stepped input 'target' is needed"),
        ({"else": TOKENIZERS["source"]}, ValueError, r"\['source', 'target'\], got \['else'\]"),
        ({"target": small_tokenizers.words(5)}, ValueError, "end_id 7 is not in the tokenizer of"),
        ({"target": str.split}, TypeError, "must be a tokenizers.Tokenizer"),
        ("missing.json", FileNotFoundError, "no such tokenizer file: missing.json"),
    ],
    ids=["size", "target", "name", "end", "kind", "path"],
)
def test_a_tokenizer_that_does_not_fit_is_refused(translator, tokenizer, error, message):
    with pytest.raises(error, match=message) as caught:
        generator_of(translator, tokenizer=tokenizer)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        (3, TypeError, "expected a text"),
        ([3], TypeError, "got a list of int"),
        (np.array([[3]]), TypeError, "got ndarray"),
        ("", ValueError, "'source': '' has no tokens"),
        ({"target": "two"}, ValueError, r"missing: \['source'\]"),
        ({"source": TEXTS, "target": ["two"]}, ValueError, "the same number of rows"),
        ("two " * 3 + "\ud800", ValueError, "lone surrogate"),
    ],
    ids=["int", "ints", "array", "empty", "no source", "rows", "surrogate"],
)
def test_what_is_no_text_is_refused(translator, texts, error, message):
    with pytest.raises(error, match=message) as caught:
        generator_of(translator).generate_text(texts)
    assert "\n" not in str(caught.value)


def test_a_generator_without_a_tokenizer_has_no_texts(translator):
    generator = Generator(translator, LENGTH, START)
    for call in (generator.generate_text, generator.stream_text):
        with pytest.raises(ValueError, match="texts need a tokenizer: give the generator token"):
            call("two")


@pytest.mark.parametrize(
    ("strategy", "texts", "message"),
    [
        (None, TEXTS, "one text is streamed at a time, got 3"),
        (Sample(hypotheses=2), "two", "got 1 with 2 hypotheses"),
        (Contrastive(2), "two", "Contrastive cannot be streamed"),
    ],
    ids=["texts", "hypotheses", "contrastive"],
)
def test_what_cannot_be_streamed(translator, strategy, texts, message):
    with pytest.raises(ValueError, match=message):
        list(generator_of(translator, strategy).stream_text(texts))


def test_a_source_that_is_not_masked_takes_texts_of_one_length():
    source, target = (keras.Input((None,), dtype="int32", name=x) for x in ("source", "target"))
    context = TokenEmbedding(13, 6)(source)
    x = TransformerDecoderBlock(8, 2)(TokenEmbedding(13, 6)(target), context)
    model = randomize(keras.Model([source, target], keras.layers.Dense(13)(x)), 1)
    generator = generator_of(model, tokenizer=small_tokenizers.words())
    assert len(generator.generate_text(["two three", "six six"])) == 2
    with pytest.raises(ValueError, match="texts of 1 to 3 tokens need padding"):
        generator.generate_text(TEXTS)
