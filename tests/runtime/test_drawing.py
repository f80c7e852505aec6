"""Text in, pictures out: the codes are those of Keras, and the errors name what is wrong."""

import io

import numpy as np
import pytest
import small_drawing
from execution import tensorflow_only
from grids import first_of
from PIL import Image
from small_drawing import GREEDY, ROWS

from keras_tfm.runtime import Sampler, load

pytestmark = tensorflow_only

TEXTS = ["two four", "nine", "ten six six", "three", "twelve two"]
IDS = [[2, 4], [9], [10, 6, 6], [3], [12, 2]]
BEST = Sampler(temperature=0)


def codes_of(drawings):
    return np.stack([x.codes for x in drawings])


@pytest.mark.parametrize("guidance", first_of([3.0, 1.0]))
def test_the_codes_and_the_picture_are_those_of_keras(guidance):
    model = load(small_drawing.file())
    found = model.draw(TEXTS, guidance=guidance, sampler=BEST)
    expected = small_drawing.drawn(IDS, guidance)
    np.testing.assert_array_equal(codes_of([group[0] for group in found]), expected)
    # Rounded after products in another order: a value near a half may differ by one.
    pixels = np.stack([np.asarray(group[0].picture) for group in found]).astype(int)
    assert np.abs(pixels - small_drawing.pixels(expected)).max() <= 1
    assert len(np.unique(expected)) > 1
    assert pixels.std() > 1
    if guidance != 1:
        assert np.any(expected != small_drawing.drawn(IDS, 1.0))


@pytest.mark.slow
def test_a_file_with_the_loop_draws_the_same():
    for guidance in (1.0, 3.0):
        path = small_drawing.file(GREEDY, 1, guidance)
        found = load(path).draw(TEXTS)
        expected = small_drawing.drawn(IDS, guidance)
        np.testing.assert_array_equal(codes_of([group[0] for group in found]), expected)


def test_a_seed_repeats_candidates():
    model = load(small_drawing.file())
    first, again, other = (
        codes_of(model.draw("two", candidates=5, guidance=2.0, sampler=Sampler(seed=seed)))
        for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    assert len({tuple(row) for row in first.tolist()}) > 1  # not five times the same
    assert first.shape == (5, 6) and 0 <= first.min() <= first.max() < 7


def test_it_samples_the_distribution():
    """The first code's shares among 400 drawings, beside the softmax of Keras's logits."""
    model = load(small_drawing.file())
    found = codes_of(model.draw("two", candidates=400, sampler=Sampler(seed=1)))[:, 0]
    logits = np.asarray(small_drawing.dalle()(ROWS.prompts([[2]])))[0, -1, ROWS.first_code :]
    expected = np.exp(logits - logits.max())
    shares = np.bincount(found, minlength=7) / len(found)
    # Four standard deviations of a share among 400 draws are at most 0.1.
    np.testing.assert_allclose(shares, expected / expected.sum(), atol=0.1)


def test_a_picture_is_saved_as_png():
    picture = load(small_drawing.file()).draw("two", sampler=BEST)[0].picture
    content = io.BytesIO()
    picture.save(content, "PNG")
    np.testing.assert_array_equal(np.asarray(Image.open(content)), np.asarray(picture))
    assert picture.size == (12, 8)


class Judge:
    """Prefers dark pictures."""

    def __init__(self, width=2):
        self.width = width

    def embed_text(self, texts):
        return np.ones((len(texts), 2), "float32")

    def embed_image(self, images):
        means = np.array([x.mean() for x in images], "float32") / 255
        return np.stack([1 - means, 1 - means, *[means] * (self.width - 2)], 1) - 0.5


def test_a_judge_sorts_the_candidates():
    model = load(small_drawing.file())
    unsorted = model.draw("two", candidates=6, sampler=Sampler(seed=2))
    found = model.draw("two", candidates=6, judge=Judge(), sampler=Sampler(seed=2))
    scores = [x.score for x in found]
    assert scores == sorted(scores, reverse=True) and all(x.score is None for x in unsorted)
    key = lambda rows: sorted(map(tuple, codes_of(rows).tolist()))  # noqa: E731
    assert key(found) == key(unsorted)
    with pytest.raises(ValueError, match="must have the same width, got 3 and 2"):
        model.draw("two", judge=Judge(3))


@pytest.mark.parametrize(
    ("texts", "options", "error", "message"),
    [
        ("", {}, ValueError, "text 0 must have at least one character, got ''"),
        (["two", "  "], {}, ValueError, "text 1 must have at least one character"),
        ("two two two two", {}, ValueError, "text 0 must have 1 to 3 tokens, got 4"),
        ([3], {}, TypeError, r"expected a text \(str\) or a list of texts, got int"),
        ([], {}, ValueError, "got no texts"),
        ("two", {"candidates": 0}, ValueError, "candidates must be an integer of at least 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(texts, options, error, message):
    with pytest.raises(error, match=message):
        load(small_drawing.file()).draw(texts, **options)


def test_guidance_needs_two_rows():
    path = small_drawing.file(("decode",), 1)
    with pytest.raises(ValueError, match=r"guidance needs two rows .* exported for one row"):
        load(path).draw("two", guidance=2.0)
    assert load(path).draw("two", sampler=BEST)[0].codes.shape == (6,)


def test_a_file_that_does_not_draw_says_so():
    model = load(small_drawing.file())
    with pytest.raises(ValueError, match=r"must hold one model of models.dalle and one of"):
        model.models["decoder"].draw("two")
