"""Text in, text out, with the tokenizers that a file carries."""

import itertools
import json
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from odd_tokenizers import with_unknown_words
from small_exports import MAX_LENGTH, SOURCE_LENGTH, new_path, small, small_file
from small_models import START, decoder_only
from small_tokenizers import (
    CORPUS,
    END,
    KINDS,
    byte_fallback,
    byte_pairs,
    sentence_pieces,
    source_words,
    text_of,
    tokenizer_of,
    words,
)
from tokenizers import pre_tokenizers, processors

from keras_tfm import runtime
from keras_tfm.export import export_tflite
from keras_tfm.generation import Beam, generate
from keras_tfm.optional_package import install_command
from keras_tfm.runtime.tasks.text import pieces
from keras_tfm.runtime.tokenizers.tokenizer import prompt_ids, read

TEXTS = ["three four FIVE six end", "eight nine ten", "nobody two", ""]
IDS = np.array([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0], [1, 2, 0, 0, 0], [0] * 5], "int32")
LENGTHS = {"max_length": MAX_LENGTH, "end_id": END, "verify": False}
SOURCE = {"source_length": SOURCE_LENGTH, "start_id": START}


@pytest.fixture(scope="module")
def path():
    report = export_tflite(
        small(seed=6),
        new_path(),
        ["generate", "predict", "encode", "decode"],
        **LENGTHS,
        **SOURCE,
        tokenizer=source_words(),
        detokenizer=words(around="<start> $A end"),
    )
    return report.path


@pytest.fixture(scope="module")
def model(path):
    return runtime.load(path)


@pytest.fixture(scope="module")
def expected():
    """By hand from the ids that Keras generates."""
    texts = [text_of(row) for row in generate(small(seed=6), IDS, MAX_LENGTH, START, END).tokens]
    assert len(set(texts)) > 2
    return texts


@pytest.fixture(scope="module")
def prompted():
    """A model of one input, whose prompts its tokenizer puts a start and an end around."""
    report = export_tflite(
        decoder_only(),
        new_path(),
        ["generate", "prefill", "decode"],
        **LENGTHS,
        prompt_length=4,
        tokenizer=words(around="<start> $A end"),
    )
    return runtime.load(report.path)


def continued(ids):
    return text_of(generate(decoder_only(), [ids], MAX_LENGTH, end_id=END).tokens[0])


# What it takes


def test_a_list_of_texts(model, expected):
    assert model.generate_text(TEXTS) == expected
    assert model.generate_text(tuple(TEXTS)) == expected
    assert model.generate_text(np.array(TEXTS)) == expected


def test_one_text(model, expected):
    assert model.generate_text(TEXTS[1]) == expected[1]
    assert model.generate_text({"source": TEXTS[1]}) == expected[1]
    assert model.generate_text({"source": TEXTS[1:2]}) == expected[1:2]


def test_ids_in_and_text_out(model, expected):
    """An input without text, as that of a model of images, still gives one."""
    assert model.generate_text({"source": IDS}) == expected


def test_the_tokenizers_of_each_input(model):
    assert model.tokenizers["source"].encode("Three nobody") == [3, 1]
    assert model.tokenizers["target"].encode("three") == [1, 3, 7]
    assert model.tokenizers["target"].decode([1, 3, 12, 0, 99]) == "three twelve"
    assert model.tokenizers["source"].size == 11


@pytest.mark.parametrize("i", range(len(TEXTS)))
def test_streamed(model, expected, i):
    parts = list(model.stream_text(TEXTS[i]))
    assert "".join(parts) == expected[i]
    assert len(parts) == len(expected[i].split())


def test_streamed_with_a_choice_of_ones_own(model):
    never = "".join(model.stream_text(TEXTS[0], choose=lambda logits: np.full(len(logits), 12)))
    assert never == " ".join(["twelve"] * (MAX_LENGTH - 1))


def test_predict_text(model):
    texts = {"source": TEXTS[:2], "target": ["three", "ten two"]}
    targets = [[1, 3, 7], [1, 10, 2, 7]]
    outputs = model.predict_text(texts)["output"]
    ids = model.predict({"source": IDS[:2], "target": targets})["output"]
    np.testing.assert_array_equal(outputs, ids)
    assert outputs.shape == (2, MAX_LENGTH, 13)


@pytest.mark.parametrize("i", range(3))
def test_a_prompt_goes_on(prompted, i):
    """The tokenizer's start is kept, its end left out, and the text begins with the prompt."""
    text, ids = [("three four", [1, 3, 4]), ("", [1]), ("Nobody six", [1, 1, 6])][i]
    whole = prompted.generate_text(text)
    assert whole == continued(ids)
    new = "".join(prompted.stream_text(text))
    assert text_of(ids) + new == whole
    assert len(new) > 3


def test_prompts_of_different_lengths(prompted):
    texts = ["three four", "", "six"]
    assert prompted.generate_text(texts) == [prompted.generate_text(text) for text in texts]


def test_prompts_of_different_lengths_in_a_file_of_several_rows(prompted):
    file = export_tflite(
        decoder_only(),
        new_path(),
        ["decode"],
        **LENGTHS,
        start_id=START,
        batch_size=2,
        tokenizer=words(),
    )
    texts = ["three four", "six", "ten", "two", "three four"]
    loaded = runtime.load(file.path)
    assert loaded.generate_text(texts) == [prompted.generate_text(text) for text in texts]


def test_an_end_that_a_prompt_says_is_kept(prompted):
    """It is the tokenizer's own that is left out, not the user's."""
    tokens = generate(decoder_only(), [[1, 3, END]], MAX_LENGTH, end_id=END).tokens[0].tolist()
    assert tokens[2] == END
    assert prompted.generate_text("three end") == " ".join(["three", text_of(tokens[3:])])


def test_a_start_that_the_tokenizer_does_not_add(monkeypatch):
    file = export_tflite(
        decoder_only(), new_path(), ["decode"], **LENGTHS, start_id=2, tokenizer=words()
    )
    loaded = runtime.load(file.path)
    assert loaded.generate_text("four") == continued([2, 4]).removeprefix("two ")
    assert "".join(loaded.stream_text("")) == continued([2]).removeprefix("two ")
    signatures = loaded.file.signatures
    monkeypatch.setitem(signatures, "decode", replace(signatures["decode"], start_id=None))
    assert loaded.generate_text("two four") == continued([2, 4])
    with pytest.raises(ValueError, match="'tokens' is an empty text, and there is no start_id"):
        loaded.generate_text("")


def test_a_start_token_that_a_prompt_writes_is_there_once():
    """Of tokenizers that add one, of those that do not, and where the file adds it."""

    def of(tokenizer, adds):
        tokenizer = tokenizer.from_str(tokenizer.to_str())
        if adds:
            tokenizer.post_processor = processors.TemplateProcessing(
                single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
            )
        return tokenizer, read("tokenizer.json", tokenizer.to_str().encode())

    spaced = byte_fallback().from_str(byte_fallback().to_str())  # a space before a text alone
    spaced.normalizer = None
    spaced.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", "first", split=False)
    for made, adds, start_id in itertools.product(
        (byte_pairs(), byte_fallback(), spaced), (True, False), (None, 1)
    ):
        package, tokenizer = of(made, adds)
        for text in ("hello", "<s>hello", "<s><s>hello", "<s>", "hello<s>"):
            given = package.encode(text, add_special_tokens=False).ids
            starts = text.startswith("<s>")
            plain = package.encode(text).ids[: -1 if adds else None]
            expected = given if starts else [1, *given] if start_id and not adds else plain
            assert prompt_ids(tokenizer, text, start_id, [2], "x") == expected, (text, adds)
    pieces, bos = sentence_pieces(), {"add_bos": True}
    for options, start_id in ((bos, None), (bos, 1), ({}, 1)):
        tokenizer = read("tokenizer.model", pieces, options)
        expected = [1, *tokenizer.encode_more("hello")]
        for text in ("hello", "<s>hello"):
            assert prompt_ids(tokenizer, text, start_id, [2], "x") == expected


def test_several_hypotheses(expected):
    file = export_tflite(
        small(seed=6),
        new_path(),
        **LENGTHS,
        **SOURCE,
        tokenizer={"source": source_words()},
        detokenizer=words(),
        strategy=Beam(size=3, hypotheses=2),
    )
    loaded = runtime.load(file.path)
    found = loaded.generate(IDS[:2])
    texts = loaded.generate_text(TEXTS[:2])
    assert [[h.text for h in row] for row in texts] == [
        [text_of(row) for row in rows] for rows in found.tokens
    ]
    np.testing.assert_allclose([[h.score for h in row] for row in texts], found.scores)
    assert loaded.generate_text(TEXTS[0]) == texts[0]


# Pieces of text


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_join_to_the_whole(kind):
    """Of texts, and of tokens as no tokenizer writes them: bytes that are no character."""
    tokenizer = tokenizer_of(kind)
    generator = np.random.default_rng(0)
    rows = [tokenizer.encode(text + " ☃ü") for text in CORPUS[:4]]
    rows += generator.integers(0, tokenizer.size, (60, 9)).tolist()
    for row in rows:
        whole = tokenizer.decode(row)
        for known in (0, 4):
            before = tokenizer.decode(row[:known])
            if not whole.startswith(before):  # bytes that new tokens make a character
                before = os.path.commonprefix([whole, before])  # noqa: RUF071
                assert tokenizer.decode(row[:known]).strip("\ufffd") == before.strip("\ufffd")
            parts = list(pieces(row[known:], tokenizer, row[:known], []))
            assert before + "".join(parts) == whole
            assert all(parts)


@pytest.mark.parametrize("kind", ["byte pairs", "byte fallback", "unigram", "bpe"])
def test_a_character_is_never_cut(kind):
    tokenizer = tokenizer_of(kind)
    text = "a☃ü𝒳 😀"
    ids = tokenizer.encode(text)
    assert len(ids) > len(text)
    parts = list(pieces(ids, tokenizer, [], []))
    assert "".join(parts) == text
    assert len(parts) > 3
    # Cut within a character, what there is of it comes at the end and not before.
    *parts, last = pieces(ids[:3], tokenizer, [], [])
    assert "\ufffd" in last
    assert not any("\ufffd" in part for part in parts)


def test_pieces_end_with_the_end():
    assert list(pieces(iter([3, END, 4]), tokenizer_of("words"), [], [END])) == ["three"]


def test_bytes_that_are_no_character_leave_those_that_are():
    """As SentencePiece decodes them; the package `tokenizers` would give five replacements."""
    fallback, pairs = tokenizer_of("byte fallback"), byte_fallback()
    ids = [pairs.token_to_id(f"<0x{x:02X}>") for x in "ü€".encode()]
    wrong = [pairs.token_to_id("<0xE2>"), pairs.token_to_id("x")]
    assert fallback.decode(ids) == "ü€"
    assert fallback.decode([*ids, *wrong]) == "ü€\ufffdx"
    assert fallback.decode([1, *ids[:4], *wrong]) == "ü\ufffd\ufffd\ufffdx"
    unigram = sentencepiece.SentencePieceProcessor(model_proto=sentence_pieces())
    pieces = [f"<0x{x:02X}>" for x in "ü€".encode()[:4]] + ["<0xE2>"]
    assert unigram.decode_pieces(pieces) == "ü\ufffd\ufffd\ufffd"


# What it refuses


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        (3, TypeError, r"expected a text \(str\) or a list of texts, got int"),
        (None, TypeError, "got NoneType"),
        (b"two", TypeError, "got bytes"),
        (np.array("two"), TypeError, r"got ndarray of shape \(\) and dtype <U3"),
        (np.array([["two"]]), TypeError, r"got ndarray of shape \(1, 1\) and dtype <U3"),
        ([3, "two"], TypeError, "got list of int, str"),
        ([], ValueError, "got no texts for 'source'"),
        ("a\ud800b", ValueError, r"'a\\ud800b' is not Unicode text.* '\\ud800', at position 1$"),
        (["two", "\udfff"], ValueError, "not Unicode text"),
        ("two " * 6, ValueError, r"^source: .* has 6 tokens, but .* for at most 5$"),
        (["two", "x " * 60], ValueError, r"source: '(x )+'\.\.\. \(120 characters\) has 60 tok"),
        ({"sauce": "two"}, ValueError, "no tokenizer for 'sauce', it has ..source', 'target'"),
        ({"source": "two", "target": "ten"}, ValueError, r"takes the inputs \['source'\]"),
    ],
)  # fmt: skip
def test_bad_texts(model, texts, error, message):
    with pytest.raises(error, match=message) as caught:
        model.generate_text(texts)
    assert "\n" not in str(caught.value)


def test_bad_texts_of_predict(model):
    with pytest.raises(ValueError, match=r"source: .* has 6 tokens"):
        model.predict_text({"source": "two " * 6, "target": ""})
    with pytest.raises(TypeError, match="got int"):
        model.predict_text(3)
    with pytest.raises(TypeError, match=r"got ndarray of shape \(\)"):
        model.predict_text(np.array("x"))


@pytest.mark.parametrize("text", ["\0", "two\0three", "\N{REPLACEMENT CHARACTER}", "\uffff 😀"])
def test_odd_characters(model, text):
    """The ids of `tokenizers`, which has no words of them, beside a word that it has."""
    (row,) = model.generate([source_words().encode(f"{text} two").ids]).tokens
    assert model.generate_text(f"{text} two") == text_of(row)
    message = r"the model has never seen the characters of '[^']+'$"
    with pytest.raises(ValueError, match=message):
        model.generate_text(text)
    with pytest.raises(ValueError, match=message):
        model.stream_text(text)
    assert model.predict_text({"source": text, "target": "two"})  # as the page


@pytest.mark.parametrize("kind", [*with_unknown_words(), "sentencepiece"])
def test_texts_of_unknown_characters_alone(kind):
    """Spaces and special tokens do not make a text known; without "unk_token" they are left out."""
    if kind == "sentencepiece":
        tokenizer = read("x.model", sentence_pieces())
        known, unknown = ["a", "☃", " ", ""], []  # of which all have bytes
    else:
        made, known, unknown = with_unknown_words()[kind]
        tokenizer, known = read("x.json", made.to_str().encode()), [*known, "[de]", ""]
    for text in known:
        tokenizer.check_known(text)
    for text in unknown:
        with pytest.raises(ValueError, match="the model has never seen the characters of '"):
            tokenizer.check_known(text)


def test_streams_refuse_when_they_are_called(model):
    for texts, error in ((["two", "two"], ValueError), ("two " * 6, ValueError), (3, TypeError)):
        with pytest.raises(error):
            model.stream_text(texts)


def test_a_prompt_that_is_too_long(prompted):
    with pytest.raises(ValueError, match="has 5 tokens, but the file was exported for at most 4"):
        prompted.generate_text("two two two two")
    with pytest.raises(ValueError, match=f"has 61 tokens, .* for at most {MAX_LENGTH - 1}"):
        prompted.stream_text("two " * 60)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["a", "日", "hello"])
def test_a_megabyte_in_one_word(kind, text):
    """A second or two; a quadratic algorithm would take hours."""
    word = text * (1_000_000 // len(text.encode()))
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(word)
    assert len(ids) == 1 if kind in ("word pieces", "words") else tokenizer.decode(ids) == word


def test_a_megabyte_is_too_long(model):
    with pytest.raises(ValueError, match=r"\(1000000 characters\) has 500000 tokens"):
        model.generate_text("x " * 500_000)


def test_a_file_without_tokenizers():
    loaded = runtime.load(small_file(num_layers=2).path)
    assert loaded.tokenizers == {}
    for ask in (loaded.generate_text, loaded.predict_text):
        with pytest.raises(ValueError, match=r"has no tokenizer for .*export it with tokenizer="):
            ask("two")
    with pytest.raises(ValueError, match="no signature 'decode'"):
        loaded.stream_text("two")


def test_a_file_that_was_replaced(path, tmp_path):
    """The weights are the old ones: the new tokenizer is not theirs."""
    copy, new = tmp_path / "model.tflite", tmp_path / "new.tflite"
    copy.write_bytes(Path(path).read_bytes())
    loaded = runtime.load(copy)
    new.write_bytes(Path(small_file(num_layers=2).path).read_bytes())
    new.rename(copy)
    with pytest.raises(ValueError, match="was replaced by another file"):
        loaded.generate_text("two")


# Bytes that are no tokenizer


def damaged(content):
    """Cut, changed, empty, and nothing of the kind."""
    generator = np.random.default_rng(0)
    yield from (b"", b"{", b"null", b"[]", b"{}", b"\xff\xfe", b"\0" * 100, generator.bytes(300))
    yield from (content[: len(content) * i // 7] for i in range(1, 7))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model"])
def test_garbage(name):
    content = words().to_str().encode() if name.endswith("json") else sentence_pieces()
    assert read(name, content).size > 10
    for bad in damaged(content):
        with pytest.raises(ValueError, match=f"the tokenizer '{name}' cannot be read: ") as caught:
            read(name, bad)
        assert "\n" not in str(caught.value)


def test_changed_bytes_of_a_tokenizer(path, tmp_path):
    """In a file they are seen by its checksum, before anything reads them."""
    content = Path(path).read_bytes()
    start = content.index(b'{"version":"1.0"')
    generator = np.random.default_rng(1)
    for offset in start + generator.integers(0, len(words().to_str()), 40):
        bad = bytearray(content)
        bad[offset] ^= generator.integers(1, 256)
        (tmp_path / "bad.tflite").write_bytes(bad)
        with pytest.raises(ValueError, match="is damaged"):
            runtime.load(tmp_path / "bad.tflite")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vocabulary.txt", {}, "must end in .json or .model, got 'vocabulary.txt'"),
        ("tokenizer.json", {"add_eos": True}, "unknown options"),
        ("tokenizer.model", {"reverse": True}, "unknown options"),
    ],
)
def test_another_kind(name, options, message):
    content = words().to_str().encode() if name.endswith("json") else sentence_pieces()
    with pytest.raises(ValueError, match=message):
        read(name, content, options)


def test_a_word_that_the_tokenizer_cannot_read():
    """A WordLevel whose unknown word is not among its words."""
    content = words().to_str().replace('"unk_token":"<start>"', '"unk_token":"<other>"').encode()
    with pytest.raises(ValueError, match=r"the tokenizer cannot read 'nobody' \(.*unk|UNK"):
        read("tokenizer.json", content).encode("nobody")


def test_rows_are_not_cut_by_a_setting_of_the_tokenizer():
    tokenizer = words()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    read_back = read("tokenizer.json", tokenizer.to_str().encode())
    assert read_back.encode("two three four") == [2, 3, 4]


def test_sentencepiece_options():
    plain, ended = (
        read("tokenizer.model", sentence_pieces(), options)
        for options in ({}, {"add_bos": True, "add_eos": True})
    )
    ids = plain.encode("hello")
    assert ended.encode("hello") == [1, *ids, 2]
    assert ended.encode_prompt("hello", [2]) == [1, *ids]
    assert ended.encode_prompt("hello", [9]) == [1, *ids, 2]
    assert ended.decode([1, *ids, 2, plain.size, -1]) == "hello"


# Alone


def test_without_keras_and_tensorflow(path, model, expected):
    script = f"""
        import json, sys
        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("keras", "tensorflow", "huggingface_hub", "httpx"):
                    raise ModuleNotFoundError(name)
        sys.meta_path.insert(0, Refuse())
        from keras_tfm import runtime
        before = sorted(sys.modules)
        model = runtime.load({str(path)!r})
        model.generate([3, 4])
        assert "tokenizers" not in sys.modules and "tokenizers" not in before
        texts = model.generate_text({TEXTS!r})
        pieces = list(model.stream_text({TEXTS[0]!r}))
        print(json.dumps([texts, pieces, "sentencepiece" in sys.modules]))
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    texts, parts, sentencepiece_too = json.loads(done.stdout)
    assert texts == expected
    assert "".join(parts) == expected[0]
    assert not sentencepiece_too
    assert done.stderr == "INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\n"


@pytest.mark.parametrize(
    ("package", "name"), [("tokenizers", "a.json"), ("sentencepiece", "a.model")]
)
def test_a_missing_package_is_named(monkeypatch, package, name):
    monkeypatch.setitem(sys.modules, package, None)
    command = install_command(package, dependencies=False)
    with pytest.raises(ModuleNotFoundError, match=re.escape(f"needs {package}: {command}")):
        read(name, b"")


def test_control_tokens_are_those_that_a_text_can_contain():
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "<s>": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    read_again = read("a.json", tokenizer.to_str().encode())
    assert read_again.control_tokens() == ["<s>", "<think>"]
    assert read_again.encode("a<s>a<think>") == [0, 1, 0, 2]
    assert read_again.encode("a< s>a") == [0, 0, 0, 0, 0]
