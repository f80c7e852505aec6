"""The translator: what it trains on, how it is scored, and a run from names to a file."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import translation
import translation_data as data

from keras_tfm.models import transformer

pytest.importorskip("sacrebleu")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def corpus():
    return translation.Corpus(data.names(), translation.SMOKE_VOCABULARY)


def test_the_decoder_sees_the_target_shifted(corpus):
    inputs, labels = corpus.training.batch(3)
    assert set(inputs["target"][:, 0].tolist()) == {translation.START}
    ends = np.sum(labels == translation.END, axis=1)
    assert set(ends.tolist()) == {1}
    assert set(inputs["source"][:, 0].tolist()) == {translation.START}
    for row, answer in zip(inputs["target"], labels, strict=True):
        n = np.count_nonzero(answer)
        np.testing.assert_array_equal(row[1:n], answer[: n - 1])
    texts = {pair.target for pair in corpus.parts.training}
    assert set(corpus.tokenizer.decode_batch(labels.tolist())) <= texts


def test_the_saved_vocabulary_is_the_trained_one(corpus, tmp_path):
    path = tmp_path / "tokenizer.json"
    corpus.tokenizer.save(str(path))
    again = translation.Corpus(data.names(), 1, path)
    assert again.tokenizer.to_str() == corpus.tokenizer.to_str()
    for x, y in zip(
        again.training.batch(5)[0].values(), corpus.training.batch(5)[0].values(), strict=True
    ):
        np.testing.assert_array_equal(x, y)


@pytest.mark.slow
def test_texts_come_back_in_their_order(corpus):
    """Batches are of similar lengths; a text's translation does not depend on its neighbours."""
    keras.utils.set_random_seed(0)
    size = corpus.tokenizer.get_vocab_size()
    model = transformer(size, normalize_first=True, **translation.SMOKE)
    texts = [pair.source for pair in corpus.parts.test][:5]
    texts = sorted(texts, key=len, reverse=True)
    together = translation.translate(model, corpus.tokenizer, texts, rows=2)
    assert len(together) == len(texts)
    assert translation.translate(model, corpus.tokenizer, texts[::-1], rows=5) == together[::-1]


def test_the_table(capsys):
    """What is right scores 100, and what was seen in training is not among the unseen."""
    test = [
        data.Pair("a b c d e", "das ist ein guter Satz", "x"),
        data.Pair("f g h i j", "hier steht noch ein Satz", "x"),
    ]
    right = [pair.target for pair in test]
    answers = {"right": right, "half": [right[0], "ganz und gar nicht richtig"]}
    translation.print_table(answers, test, seen={"a b c d e"})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["all", "(2)", "unseen", "(1)"]
    assert lines[2].split() == ["right", "100.0", "100.0", "100.0", "100.0"]
    name, all_bleu, _, unseen_bleu, _ = lines[3].split()
    assert name == "half"
    assert 0 < float(all_bleu) < 100
    assert float(unseen_bleu) == 0
    assert "tok:13a" in lines[4]


@pytest.mark.slow
def test_from_pairs_to_a_file_that_answers(tmp_path):
    """The names of Babel as a file of pairs: what a user with data of their own does."""
    lines = ["\t".join(pair) + "\n" for pair in data.names()]
    pairs = tmp_path / "names.tsv"
    pairs.write_text("".join(lines), encoding="utf-8")
    command = [sys.executable, ROOT / "examples" / "translation.py", "--smoke", "--epochs", "2"]
    command += ["--pairs", pairs, "--folder", tmp_path / "made", "--ask", "Norwegian"]
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert run.returncode == 0, run.stderr
    assert "TFLite, int8" in run.stdout
    for name in ("translation.keras", "tokenizer.json", "int8.tflite", "smoke/checkpoint"):
        assert (tmp_path / "made" / name).stat().st_size > 50
