"""JSON and regular expressions: what is allowed, for tokenizers of bytes of all kinds."""

import json
import re
import sys

import numpy as np
import pytest
from small_exports import new_path
from small_tokenizers import byte_pairs, sentence_pieces, words
from small_writers import END, SIZE, story, written

from keras_tfm.export import export_tflite
from keras_tfm.runtime import JsonSchema, Regex, Sampler, load
from keras_tfm.runtime.tokenizers.tokenizer import read

pytest.importorskip("llguidance")
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["city", "count"],
    "additionalProperties": False,
}
DATE = r"\d{4}-(0[1-9]|1[0-2])-\d{2}"


def session():
    result = load(written()).session()
    result.append("hello")
    return result


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)], ids=["dict", "text"])
def test_json_of_a_schema(schema, seed):
    """Of a model with random weights, which without it writes nothing of the kind."""
    reply = session().generate(150, Sampler(seed=seed), constraint=JsonSchema(schema))
    assert reply.ended == "end"
    answer = json.loads(reply.text)
    assert list(answer) == ["city", "count"]
    assert len(answer["city"]) <= 8
    assert 0 <= answer["count"] <= 99


@pytest.mark.parametrize("seed", range(5))
def test_a_regular_expression(seed):
    one = session()
    fork = one.fork()
    reply = one.generate(50, Sampler(seed=seed), constraint=Regex(DATE))
    assert re.fullmatch(DATE, reply.text)
    assert reply.ended == "end"
    pieces = list(fork.stream(50, Sampler(seed=seed), constraint=Regex(DATE)))
    assert "".join(pieces) == reply.text


def test_without_an_end_token_a_complete_text_ends():
    one = load(written(end_id=None)).session()
    one.append("hello")
    for pattern in ("ab", "a*b?", DATE):
        reply = one.generate(150, Sampler(seed=1), constraint=Regex(pattern))
        assert re.fullmatch(pattern, reply.text)
        assert not set(reply.tokens.tolist()) & {0, 1, END}


def test_an_end_token_ends_only_a_complete_text():
    """The most probable token of all is the end, wherever it is allowed."""

    def choose(logits):
        return [END] if np.isfinite(logits[0, END]) else [int(np.argmax(logits))]

    one = session()
    assert one.generate(50, choose, constraint=Regex("a{3}b*")).text == "aaa"
    assert one.generate(50, choose, constraint=Regex("a*")).text == ""


def test_more_logits_than_tokens():
    """The tokens beyond the tokenizer's are not allowed."""
    assert byte_pairs().get_vocab_size() == SIZE
    tokenizer = read("tokenizer.json", byte_pairs().to_str().encode())
    mask = Regex("[a-c]+").begin(tokenizer, [END], SIZE + 13).mask()
    allowed = {byte_pairs().decode([i]) for i in np.flatnonzero(mask)}
    assert mask.shape == (SIZE + 13,)
    assert allowed == {"a", "b", "c"}


def test_sentence_pieces():
    tokenizer = read("spiece.model", sentence_pieces())
    allowed = Regex("[a-z ]{4,9}x").begin(tokenizer, [2], tokenizer.size + 5)
    generator, ids = np.random.default_rng(0), []
    while (mask := allowed.mask()) is not None:
        assert mask.shape == (tokenizer.size + 5,)
        ids.append(int(generator.choice(np.flatnonzero(mask))))
        if ids[-1] == 2:
            break
        allowed.advance(ids[-1])
    text = b"".join(tokenizer.for_grammar()[i] for i in ids).decode()
    assert re.fullmatch("[a-z ]{4,9}x", text)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: JsonSchema('{"type":'), ValueError, r"not a JSON schema \(Expecting value"),
        (lambda: JsonSchema("[1]"), ValueError, r"not a JSON schema \(.+\)$"),
        (lambda: JsonSchema({"type": "objct"}), ValueError, "Invalid type: objct"),
        (lambda: JsonSchema({"$ref": "#/x"}), ValueError, "'/x' does not exist"),
        (lambda: JsonSchema({"type": {1}}), ValueError, "not a JSON schema"),
        (lambda: JsonSchema(3), TypeError, "must be a dictionary or a text, got 3"),
        (lambda: Regex("("), ValueError, r"not a regular expression: '\('"),
        (lambda: Regex("(?=a)b"), ValueError, r"not a regular expression: "),
        (lambda: Regex(b"a"), TypeError, "pattern must be a text"),
    ],
)
def test_what_is_no_schema_or_expression(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_an_error_leaves_the_session_usable():
    one = session()
    before = one.tokens
    with pytest.raises(TypeError, match="constraint must be a JsonSchema or a Regex, got 'a'"):
        one.generate(constraint="a")
    np.testing.assert_array_equal(one.tokens, before)
    assert one.generate(20, constraint=Regex("ab")).text == "ab"


def test_a_tokenizer_of_words_is_refused():
    path = export_tflite(
        story(), new_path(), ["decode"], max_length=9, tokenizer=words(), verify=False
    ).path
    one = load(path).session()
    one.append("two")
    with pytest.raises(ValueError, match="constraints need a tokenizer of bytes, such as byte"):
        one.generate(constraint=Regex("two"))
    assert len(one.generate(3).tokens) == 3


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ModuleNotFoundError, match=r'llguidance.* \(the extra "constraints" of'):
        Regex("a")
