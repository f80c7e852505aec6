"""The scores of examples/contacts.py, and its reading of alignments and structures."""

import contacts_data as data
import contacts_scores as scores
import numpy as np
import pytest


def test_mutual_information_finds_columns_that_change_together():
    """By hand for two pairs of equal columns; independent columns score less."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 21, (61, 11)).astype("int32")
    ids[:, 7], ids[:, 10] = ids[:, 2], (ids[:, 4] + 3) % 20 + 1
    found = scores.mutual_information(ids)
    np.testing.assert_allclose(found, found.T, atol=1e-6)  # float32 sums in another order
    best = np.argsort(-np.triu(found, 1), axis=None)[:2]
    pairs = {
        tuple(map(int, pair)) for pair in zip(*np.unravel_index(best, found.shape), strict=True)
    }
    assert pairs == {(2, 7), (4, 10)}


def test_mutual_information_by_hand():
    """Two letters, both columns equal, no near rows: with the pseudocount, by loops."""
    ids = np.array([[1, 1, 1], [2, 2, 1], [1, 1, 2], [2, 2, 2]])
    count, total = 21, 4 + 1.0

    def information(i, j):
        value = 0.0
        for a in range(count):
            for b in range(count):
                both = (np.sum((ids[:, i] == a) & (ids[:, j] == b)) + 1 / count**2) / total
                one = (np.sum(ids[:, i] == a) + 1 / count) / total
                other = (np.sum(ids[:, j] == b) + 1 / count) / total
                value += both * np.log(both / (one * other))
        return value

    raw = np.array([[0.0 if i == j else information(i, j) for j in range(3)] for i in range(3)])
    means = raw.sum(axis=0) / 2
    expected = raw - np.outer(means, means) / means.mean()
    np.testing.assert_allclose(scores.mutual_information(ids), expected, atol=1e-6)  # float32


def test_precision_of_the_best_fifth():
    contacts = np.zeros((10, 10), bool)
    contacts[0, 9] = contacts[9, 0] = True
    measured = np.abs(np.subtract.outer(np.arange(10), np.arange(10))) >= 6
    found = np.zeros((10, 10))
    found[0, 9] = found[9, 0] = 2.0
    found[1, 8] = found[8, 1] = 1.0
    found[3, 4] = found[4, 3] = 9.0  # too near to count
    assert scores.precision(found, contacts, measured) == 0.5


def test_the_profile_does_not_see_what_is_hidden():
    ids = np.array([[1, 5, 22], [1, 6, 22], [2, 6, 3]])
    hidden = np.array([[False, False, False], [False, True, True], [False, True, True]])
    assert scores.from_profile(ids, hidden, False).tolist() == [1, 5, 22]
    assert scores.from_profile(ids, hidden & False, False).tolist() == [1, 6, 22]
    assert scores.from_profile(ids, hidden, True)[0] == 1
    mean, error = scores.mean_and_error([1.0, 2.0, 3.0])
    assert (mean, error) == (2.0, pytest.approx(1 / np.sqrt(3)))


def test_logarithms_of_the_profile_by_hand():
    """Three rows more with the shares of what is visible everywhere: 1 three times, 2 once."""
    ids, hidden = np.array([[1, 1], [1, 2], [3, 1]]), np.array([[0, 0], [0, 0], [1, 1]], bool)
    found = np.exp(scores.log_profile(ids, hidden))
    assert found.shape == (2, 24) and found.dtype == np.float32
    np.testing.assert_allclose(found[0, 1:4], [(2 + 2.25) / 5, 0.75 / 5, 1e-6], rtol=1e-5)
    np.testing.assert_allclose(found[1, 1:4], [(1 + 2.25) / 5, (1 + 0.75) / 5, 1e-6], rtol=1e-5)
    several = scores.log_profile(np.stack([ids, ids]), np.stack([hidden, hidden]))
    one = scores.log_profile(ids, hidden)
    np.testing.assert_array_equal(several, np.stack([one, one]))


def test_coupling_is_scaled_mutual_information():
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 21, (50, 12)).astype("int32")
    ids[:, 9] = ids[:, 1]
    found, raw = scores.coupling(ids, separation=6), scores.mutual_information(ids)
    apart = np.abs(np.subtract.outer(range(12), range(12))) >= 6
    assert found.shape == (12, 12, 2)
    scaled = (raw - raw[apart].mean()) / raw[apart].std()
    np.testing.assert_allclose(found[..., 0], np.clip(scaled, -8, 8), rtol=1e-4, atol=1e-4)
    # 50 different sequences.
    np.testing.assert_allclose(found[..., 1], found[..., 0] * (np.log10(50) - 1), rtol=1e-5)
    assert found[1, 9, 0] == found[..., 0].max()


def test_the_heads_start_from_what_needs_no_training():
    import contacts

    from keras_tfm import models

    trunk = models.evoformer(**{**contacts.SIZE, "num_layers": 1})
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 21, (2, 5, 9)).astype("int32")
    profile = scores.log_profile(ids, rng.random(ids.shape) < 0.2)
    logits = contacts.with_profile(trunk)({"tokens": ids, "profile": profile})
    np.testing.assert_array_equal(logits, np.broadcast_to(profile[:, None], (2, 5, 9, 24)))
    coupling = np.stack([scores.coupling(x, 6) for x in ids])
    found = contacts.predicted(contacts.with_coupling(trunk), ids, coupling)
    np.testing.assert_allclose(found, coupling[..., 0], atol=1e-6)


def test_contacts_of_a_structure_by_hand(tmp_path):
    """A hairpin: residue i stands beside residue 33 - i, 5 Å away; others 3.8 Å apart in line."""
    pytest.importorskip("Bio")
    from Bio.SeqUtils import seq3

    letters = "ACDEFGHIKLMNPQRSTVWYACDEFGHIKLMNPQ"
    names = {letter: seq3(letter).upper() for letter in set(letters)}
    lines = []
    for i, letter in enumerate(letters):
        x, y = (3.8 * i, 0.0) if i < 17 else (3.8 * (33 - i), 5.0)
        atom = "CA" if letter == "G" else "CB"
        for k, name in enumerate({"CA", atom}):
            lines.append(
                f"ATOM  {2 * i + k + 1:5d}  {name:3s} {names[letter]} A{i + 1:4d}    "
                f"{x:8.3f}{y:8.3f}{0:8.3f}  1.00  0.00           C  "
            )
    file = tmp_path / "x.pdb"
    file.write_text("\n".join([*lines, "TER", "END", ""]))
    ((found, atoms),) = data.chains(file)
    assert found == letters and atoms.shape == (34, 3)
    # The alignment's row lacks the structure's first residue and has one more at its end.
    rows = [("other", "-" * 34), ("mine", letters[1:] + "W")]
    row, places = data._target(rows, found)
    assert row == 1 and places[0] == -1 and places[1:].tolist() == list(range(33))
    one = data._known("family", "x", rows, row, places, atoms)
    assert one.ids.shape == (1, 34)
    assert not one.measured[33].any() and one.measured[0, 6] and not one.measured[0, 5]
    for i in range(33):
        for j in range(33):
            a, b = i + 1, j + 1  # numbers in the structure
            beside = np.hypot(3.8 * ((a if a < 17 else 33 - a) - (b if b < 17 else 33 - b)),
                              5.0 * ((a < 17) != (b < 17)))  # fmt: skip
            assert one.contacts[i, j] == (beside < 8 and abs(i - j) >= 6)
