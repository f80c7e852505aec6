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
    vocabulary = data.Vocabulary()
    sources, targets = data.arrays(training[:100], vocabulary)
    assert sources.shape == (100, data.SOURCE_LENGTH)
    assert [vocabulary.decode_target(row) for row in targets] == [x.iso for x in training[:100]]
    assert sources.min() == 0
    assert sources.max() < len(vocabulary.source_tokens)
    assert not np.any(sources == vocabulary.UNKNOWN)


def test_an_unknown_character_and_an_unknown_tag():
    vocabulary = data.Vocabulary()
    assert vocabulary.UNKNOWN in vocabulary.encode_source("5 🗓 2026", "de")
    with pytest.raises(ValueError, match="klingon"):
        vocabulary.encode_source("5 5 2026", "klingon")
