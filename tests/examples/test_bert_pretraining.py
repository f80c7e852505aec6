"""What BERT is trained on, and a run on docstrings up to files that classify them."""

import subprocess
import sys
from pathlib import Path

import bert_pretraining
import numpy as np
import pytest
import text_classification
from bert_pretraining import END, MASK, PADDING, START
from help_data import Paragraph

from keras_tfm import text

ROOT = Path(__file__).parents[2]


def test_passages_are_the_page_in_like_lengths():
    passages = bert_pretraining.passages(np.arange(5, 136))
    assert [len(x) for x in passages] == [44, 44, 43]
    assert np.concatenate(passages).tolist() == list(range(5, 136))
    # A short page has two passages, so that one may follow the other.
    assert [x.tolist() for x in bert_pretraining.passages(np.arange(5, 8))] == [[5, 6], [7]]


def test_a_corpus_is_read_from_its_file(tmp_path):
    ids = np.arange(5, 12, dtype="uint16")
    lengths, pages = np.array([2, 3, 2]), np.array([0, 0, 1])
    arrays = {f"{part}_{name}": x for part in ("training", "test") for name, x in (
        ("ids", ids), ("lengths", lengths), ("pages", pages),
    )}  # fmt: skip
    np.savez_compressed(tmp_path / "corpus.npz", vocabulary_size=13, **arrays)
    inputs, labels, weights = bert_pretraining.Corpus(tmp_path / "corpus.npz", True).test.batch(0)
    assert sorted(inputs) == ["mask_positions", "segments", "tokens"]
    assert sorted(labels) == sorted(weights) == ["next_sentence", "tokens"]
    alone = bert_pretraining.Corpus(tmp_path / "corpus.npz", False)
    assert alone.vocabulary_size == 13
    assert alone.counts.tolist() == [0] * 5 + [1] * 7 + [0]
    only, answers, chosen = alone.test.batch(0)
    assert sorted(only) == ["mask_positions", "tokens"]
    for name, x in only.items():
        np.testing.assert_array_equal(x, inputs[name])
    np.testing.assert_array_equal(answers, labels["tokens"])
    np.testing.assert_array_equal(chosen, weights["tokens"])


def test_rows_are_pairs_and_half_of_them_follow():
    mask = text.MaskTokens(99, mask_id=MASK, special_ids=range(4), name="tokens", positions=True)
    first = np.arange(10, 74)[:, None] * np.array([1, 1, 0])  # rows of two pieces, and padding
    batch = {"first": first, "second": first[:, :2]}
    pieces = np.arange(10, 74)
    follows = []
    for step in range(20):
        inputs, labels, weights = bert_pretraining.pretraining_batch(batch, step, mask)
        tokens = inputs["tokens"].copy()
        for row, (places, answers, there) in enumerate(
            zip(inputs["mask_positions"], labels["tokens"], weights["tokens"], strict=True)
        ):
            tokens[row, places[there > 0]] = answers[there > 0]
        assert tokens.shape == (64, 8)
        np.testing.assert_array_equal(tokens[:, [0, 3, 6, 7]], [[START, END, END, PADDING]] * 64)
        np.testing.assert_array_equal(tokens[:, 1], pieces)
        np.testing.assert_array_equal(inputs["segments"], [[0] * 4 + [1] * 3 + [0]] * 64)
        np.testing.assert_array_equal(labels["next_sentence"] == 0, tokens[:, 4] == pieces)
        assert sorted(tokens[:, 4]) == pieces.tolist()  # every passage once
        assert weights["tokens"].sum(axis=1).tolist() == [1.0] * 64  # 15 % of four
        follows.append(np.mean(labels["next_sentence"] == 0))
    # 1,280 rows: four standard deviations of a share of a half are 0.056.
    assert abs(np.mean(follows) - 0.5) < 0.056


def test_labels_are_of_first_pieces():
    tokenizer = text.train_word_piece(["ab abc abcd"] * 2, 20)
    some = [Paragraph(("abcab", "ab"), ("", "code"), "Calc", "page")]
    words = text_classification.Task("words", ["", "code"], None)
    (encoding,) = text_classification.encodings(some, tokenizer)
    inputs, labels = text_classification.labelled_batches(words, some, tokenizer).batch(0)
    n = len(encoding.ids)
    assert inputs["tokens"][0, :n].tolist() == encoding.ids
    starts = [encoding.word_ids.index(0), encoding.word_ids.index(1)]
    expected = np.full(labels.shape[1], text_classification.IGNORED)
    expected[starts] = [0, 1]
    np.testing.assert_array_equal(labels, [expected])
    logits = np.zeros((n, 2))
    logits[starts[0], 1] = logits[starts[1], 0] = 1.0
    assert text_classification.classes_of(words, logits, encoding) == ["code", ""]

    subject = text_classification.Task("subject", ["Base", "Calc"], None)
    _, labels = text_classification.labelled_batches(subject, some, tokenizer).batch(0)
    assert labels.tolist() == [1]
    assert text_classification.classes_of(subject, np.array([0.5, 0.1]), encoding) == ["Base"]


SOME = [Paragraph(tuple("abcd"), ("", "code", "key", ""), "Calc", "")]


def test_accuracy_of_subjects_by_hand():
    subject = text_classification.Task("subject", ["Base", "Calc"], None)
    assert subject.score(["Base", "Calc"], SOME * 2) == 0.5


def test_f1_of_words_by_hand():
    pytest.importorskip("sklearn", reason="the extra `examples` has it; .ci/run runs this with it")
    words = text_classification.Task("words", ["", "code", "key"], None)
    # One of two marked words is found, and one is marked that is none: F1 of 1/2 and 1/2.
    assert words.score(["key", "code", "", ""], SOME) == 0.5


@pytest.mark.slow
def test_a_small_run_from_nothing_to_files_that_answer(tmp_path):
    def run(*arguments):
        command = [sys.executable, *arguments, "--smoke", "--folder", tmp_path]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    question = "The run method of the TestCase class."
    early = subprocess.run(
        [sys.executable, ROOT / "examples/text_classification.py", "--folder", tmp_path],
        capture_output=True,
        text=True,
    )
    assert "run examples/bert_pretraining.py first" in early.stderr and early.returncode == 2
    assert "unigram frequencies" in run(ROOT / "examples/bert_pretraining.py")
    modern = run(ROOT / "examples/bert_pretraining.py", "--model", "modernbert")
    assert "ModernBERT" in modern and (tmp_path / "modernbert.keras").exists()
    said = run(ROOT / "examples/text_classification.py", "--ask", question)
    assert "TFLite, int8" in said and "subject: " in said and question in said
