"""The data, the model and the scores of examples/word2vec.py."""

import itertools

import numpy as np
import pytest
import word2vec
import word2vec_data as data

TEXT = "the cat sees the dog and the dog sees a cat"


@pytest.fixture(scope="module")
def paragraphs():
    return [
        data.Paragraph(tuple(TEXT.split()), "one", "one/a.py"),
        data.Paragraph(("a", "dog", "sees", "the", "cat"), "two", "two/b.py"),
    ]


@pytest.fixture(scope="module")
def vocabulary(paragraphs):
    return data.Vocabulary(paragraphs, least=2)


def test_docstrings(tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    code = (
        '"""It\'s the module\'s text, in words.\n\n>>> not + this + one + here\n"""\n'
        'def f():\n    """Returns the matmul_grad of 7 x."""\n'
        'class C:\n    """Too short."""\n'
    )
    for name in ("one.py", "tests/two.py"):
        (tmp_path / name).write_text(code)
    (tmp_path / "broken.py").write_text('"""One more of five words."""\ndef (')
    monkeypatch.setattr(data, "folders", lambda packages: [("here", tmp_path)])
    assert data.paragraphs() == [
        data.Paragraph(("it's", "the", "module's", "text", "in", "words"), "here", "here/one.py"),
        data.Paragraph(("returns", "the", "matmul_grad", "of", "x"), "here", "here/one.py"),
    ]


def test_vocabulary_by_hand(vocabulary):
    assert vocabulary.words[:3] == ["<padding>", "<unknown>", "the"]
    assert {*vocabulary.words[3:]} == {"cat", "dog", "sees", "a"}
    assert vocabulary.counts.tolist() == [0, 0, 4, 3, 3, 3, 2]
    assert vocabulary.encode(("and", "the")) == [1, 2]


def test_pairs_are_those_of_the_window(vocabulary, paragraphs):
    """With a window of 1 and every word kept: the neighbours in a paragraph, both ways."""
    pairs = data.Pairs(vocabulary, paragraphs, window=1, t=1e9)
    centres, contexts = pairs.epoch(np.random.default_rng(0))
    expected = []
    for paragraph in paragraphs:
        row = [i for i in vocabulary.encode(paragraph.words) if i != data.UNKNOWN]
        expected += [*itertools.pairwise(row), *((b, a) for a, b in itertools.pairwise(row))]
    assert sorted(zip(centres.tolist(), contexts.tolist(), strict=True)) == sorted(expected)


def test_wider_windows_and_subsampling(vocabulary, paragraphs):
    rng = np.random.default_rng(1)
    many = paragraphs * 400
    pairs = data.Pairs(vocabulary, many, window=3, t=1e9)
    centres, _ = pairs.epoch(rng)
    # A word with n words on a side has the mean of min(width, n), width from 1 to 3, pairs there.
    sides = {0: 0, 1: 1, 2: 5 / 3}
    lengths = [10, 5]  # "and" is unknown
    expected = sum(sides.get(i, 2) + sides.get(n - 1 - i, 2) for n in lengths for i in range(n))
    # 6,000 widths: the relative deviation of the sum is below 1 %.
    assert len(centres) / 400 == pytest.approx(expected, rel=0.02)
    t = 0.05
    pairs = data.Pairs(vocabulary, many, window=3, t=t)
    assert pairs.kept[2] == pytest.approx(np.sqrt(t / (4 / 15)))
    kept = np.mean([len(pairs.epoch(rng)[0]) for _ in range(3)])
    assert 0.05 * len(centres) < kept < 0.5 * len(centres)


def test_batches_and_negatives(vocabulary, paragraphs):
    pairs = data.Pairs(vocabulary, paragraphs * 50, window=2, negatives=4, t=1e9)
    batches = pairs.batches(101, np.random.default_rng(2))
    drawn = np.zeros(len(vocabulary))
    for _ in range(60):
        inputs, labels = next(batches)
        assert inputs["centre"].shape == (101, 1) and inputs["context"].shape == (101, 5)
        assert labels[:, 0].all() and not labels[:, 1:].any()
        drawn += np.bincount(inputs["context"][:, 1:].ravel(), minlength=len(vocabulary))
    expected = vocabulary.counts**0.75 / (vocabulary.counts**0.75).sum()
    # 24,240 draws: the standard deviation of a share is below 0.0033.
    np.testing.assert_allclose(drawn / drawn.sum(), expected, atol=0.015)


def test_logits_are_dot_products():
    model = word2vec.skip_gram(11, 7)
    rng = np.random.default_rng(3)
    tables = {name: rng.normal(size=(11, 7)) for name in ("centres", "contexts")}
    for name, table in tables.items():
        model.get_layer(name).embeddings.assign(table)
    centre, context = rng.integers(0, 11, (5, 1)), rng.integers(0, 11, (5, 3))
    found = model.predict({"centre": centre, "context": context}, verbose=0)
    rows = tables["centres"][centre[:, 0]], tables["contexts"][context]
    # Sums of 7 products in float32.
    np.testing.assert_allclose(found, np.einsum("bd,bkd->bk", *rows), rtol=1e-5, atol=1e-5)


@pytest.fixture
def vectors(tmp_path):
    """The second axis is the plural."""
    words = ["<padding>", "<unknown>", "row", "rows", "column", "columns", "file"]
    table = np.array(
        [[9, 9, 9], [9, 9, 9], [1, 0, 0], [1, 1, 0], [0.9, 0, 0.5], [0.9, 1, 0.5], [0, -1, 0.1]],
        "float32",
    )
    np.savez(tmp_path / "vectors.npz", vectors=table, words=np.array(words), counts=np.ones(7))
    return word2vec.Vectors(tmp_path / "vectors.npz")


def test_neighbours_and_analogies_by_hand(vectors, capsys):
    assert vectors.near("row", 2) == ["column", "rows"]
    assert vectors.analogy("row", "rows", "column", 1) == ["columns"]
    assert vectors.analogy("columns", "column", "rows", 1) == ["row"]
    word2vec.describe(vectors)
    shown = capsys.readouterr().out.splitlines()
    # Two pairs make two questions, both right.
    assert next(x.split()[1:3] for x in shown if x.startswith("plurals")) == ["2", "100.0%"]


def test_the_picture_is_drawn(vectors, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setitem(word2vec.PICTURE, "sides", "row rows column columns file nothing")
    monkeypatch.setattr(word2vec, "projected", lambda points, seed: points[:, :2])
    word2vec.draw(vectors, tmp_path / "projection.png")
    assert (tmp_path / "projection.png").read_bytes()[1:4] == b"PNG"


def test_a_classifier_starts_with_the_table(vectors):
    embeddings = {
        start: word2vec.classifier(np.pad(vectors.table, ((0, 0), (0, 5))), 3, start).layers[1]
        for start in ("random", "word2vec", "word2vec, frozen")
    }
    for start in ("word2vec", "word2vec, frozen"):
        found = np.asarray(embeddings[start].embeddings)[:, :3]
        ratio = found[2:][vectors.table[2:] != 0] / vectors.table[2:][vectors.table[2:] != 0]
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)
    assert [x.trainable for x in embeddings.values()] == [True, True, False]


def test_the_command_names_what_is_unknown(vectors, tmp_path, monkeypatch):
    arguments = ["word2vec.py", "--folder", str(tmp_path), "--near", "zebra"]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit, match="no vector of 'zebra': it is not among 7 words"):
        word2vec.main()
