"""The data and the scores of examples/spoken_numbers.py."""

import numpy as np
import pytest
import spoken_numbers
import spoken_numbers_data as data


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"), (13, "thirteen"), (20, "twenty"), (42, "forty two"), (100, "one hundred"),
        (305, "three hundred and five"), (999, "nine hundred and ninety nine"),
    ],
)  # fmt: skip
def test_numbers_in_words(number, words):
    assert " ".join(data.words_of(number, with_and=True)) == words
    assert " ".join(data.words_of(number)) == words.replace(" and", "")
    assert set(data.words_of(number)) <= set(data.WORDS)


def test_word_error_rates():
    references = ["three hundred five", "two", "one"]
    assert spoken_numbers.word_error_rate(references, references) == 0.0
    # One word deleted, one replaced, two inserted, of five.
    found = ["three five", "ten", "one and two"]
    assert spoken_numbers.word_error_rate(references, found) == pytest.approx(4 / 5)


def test_noise_has_its_level():
    rng = np.random.default_rng(0)
    sound = (0.1 * np.sin(np.arange(16000))).astype("float32")
    recordings = [data.Recording((32767 * sound[:999]).astype("int16"), ("two",), "f1")]
    for decibels in (5, 20):
        for _ in range(4):
            noise = spoken_numbers.noisy(sound, decibels, rng, recordings) - sound
            level = 10 * np.log10(np.mean(sound**2) / np.mean(noise**2))
            assert level == pytest.approx(decibels, abs=0.1)


def test_voices_speak_and_those_of_the_test_are_others():
    pytest.importorskip("espeakng_loader")
    heard, unheard = data.voices()
    assert len(heard) > 50 and len(unheard) > 10 and not {*heard} & {*unheard}
    for accent in data.ACCENTS:
        samples, rate = data._synthesized("two", f"{accent}+{heard[0]}", 160, 50)
        assert rate == 22050 and np.abs(samples).max() > 1000
