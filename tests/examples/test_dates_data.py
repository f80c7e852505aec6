"""The data of the main job: what Babel writes, without leaks and without ambiguity."""

import dates_data as data
import numpy as np
import pytest


@pytest.fixture(scope="module")
def training():
    return data.training_examples(5_000, seed=3)


def test_our_formatters_write_what_babel_writes():
    data.check_against_babel()


def test_no_text_has_two_readings(training):
    data.check_unambiguous(training[:1_500])
    data.check_unambiguous(data.test_dates(300))
    data.check_unambiguous(data.test_formats(300))


def test_held_out_dates_are_in_no_training_example(training):
    held_out = {x.iso for x in data.test_dates()} | {x.iso for x in data.test_formats()}
    assert len(held_out) > 1_000
    assert not held_out & {x.iso for x in training}


def test_the_same_seed_draws_the_same_examples(training):
    assert data.training_examples(50, seed=3) == training[:50]
    assert data.training_examples(50, seed=4) != training[:50]


def test_encoding_round_trips_and_pads(training):
    sources, targets = data.arrays(training[:100])
    assert sources.shape == (100, data.SOURCE_LENGTH)
    texts = data.target_tokenizer().decode_batch(targets.tolist())
    assert texts == [x.iso for x in training[:100]]
    assert sources.min() == 0
    assert sources.max() < data.source_tokenizer().get_vocab_size()
    assert not np.any(sources == data.UNKNOWN)


def test_ids_by_hand():
    """Padding, unknown, [any], the locales in their order, then the characters in theirs."""
    tokenizer = data.source_tokenizer()
    characters = [x for x, i in tokenizer.get_vocab().items() if i > 2 + len(data.LOCALES)]
    assert characters
    assert all(len(x) == 1 for x in characters)
    first = 3 + len(data.LOCALES)
    expected = [2 + 1 + data.LOCALES.index("de")]
    expected += [first + sorted(characters).index(x) for x in "5. mai 26"]
    assert tokenizer.encode(data.question(" 5.\u00a0MAI  26\n", "de")).ids == expected
    target = data.target_tokenizer().encode("1999-01-20")
    assert target.ids == [1, 5, 13, 13, 13, 3, 4, 5, 3, 6, 4, 2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NİSAN Kas\u0131m ISI", "nisan kasim isi"),
        ("ΙΑΝΟΥΆΡΙΟΣ Σάβ ΜΑΪΟΣ.", "ιανουάριος σάβ μαϊος."),
        ("Cafe\u0301\u200e ﬁ Ⅳ", "café fi iv"),
        ("٣\u200f/۴/६ — 1\u202f9 \u2019s", "3/4/6 - 1 9 's"),
        ("２０２６年３月", "2026年3月"),
        ("\x1c a \u3000\x85 b\n", "a b"),
        ("", ""),
    ],
)
def test_normalise(text, expected):
    assert data.normalise(text) == expected
    assert data.normalise(expected) == expected


def test_an_unknown_character_and_an_unknown_tag():
    assert data.UNKNOWN in data.source_tokenizer().encode(data.question("5 🗓 2026", "de")).ids
    with pytest.raises(ValueError, match="klingon"):
        data.question("5 5 2026", "klingon")
