"""Rows of a caption and codes: by hand, left out captions, and what is refused."""

import numpy as np
import pytest

from keras_tfm.text import CaptionedImages

ROWS = CaptionedImages(4, text_vocabulary_size=11, image_vocabulary_size=7)
CODES = np.array([[0, 6, 3], [2, 2, 1]])
CAPTIONS = [[5, 2, 3], [10]]


def test_a_row_by_hand():
    """Padding at position p is 11 + p, code c is 11 + 4 + c; a caption shares 1/8 of the loss."""
    tokens, targets, weights = ROWS(CAPTIONS, CODES, step=0)
    whole = [[5, 2, 3, 14, 15, 21, 18], [10, 12, 13, 14, 17, 17, 16]]
    assert tokens.tolist() == [row[:-1] for row in whole]
    assert targets.tolist() == [row[1:] for row in whole]
    # Of the first caption, two tokens are targets; of the second, its only one is not.
    code = 7 / 8 / 3
    expected = [[1 / 16, 1 / 16, 0, code, code, code], [0, 0, 0, code, code, code]]
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    assert tokens.dtype == targets.dtype == "int32" and weights.dtype == "float32"
    assert ROWS.unconditional == [11, 12, 13, 14]
    np.testing.assert_array_equal(ROWS.codes(whole), CODES)


def test_captions_are_left_out_at_their_rate():
    rows = CaptionedImages(2, 11, 7, caption_dropout=0.3, seed=4)
    captions, codes = [[5, 2]] * 500, np.zeros((500, 3), int)
    first, again = (rows(captions, codes, step=8)[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    out = (first[:, :2] == [11, 12]).all(1)
    assert np.all((first[:, :2] == [5, 2]).all(1) != out)
    assert abs(out.mean() - 0.3) < 0.082  # four standard deviations of a share of 500
    assert np.any(rows(captions, codes, step=9)[0] != first)


@pytest.mark.parametrize(
    ("captions", "codes", "error", "message"),
    [
        ([[5], []], CODES, ValueError, "caption 1 must have 1 to 4 tokens, got 0"),
        ([[5]], CODES, ValueError, "each image needs one caption, got 2 images and 1 captions"),
        ([[5], [1, 2, 3, 4, 5]], CODES, ValueError, "caption 1 must have 1 to 4 tokens, got 5"),
        ([[5], [11]], CODES, ValueError, r"the ids of caption 1 must be in 0..10, got 11..11"),
        ([[5], [1.5]], CODES, TypeError, "caption 1 must be integers in one dimension"),
        (CAPTIONS, CODES + 1, ValueError, r"codes must be in 0..6, got 1..7"),
        (CAPTIONS, CODES[:, :0], ValueError, r"at least one code, got codes of \(2, 0\)"),
        (CAPTIONS, CODES / 2, TypeError, r"codes must be integers \(B, M\), got float64"),
    ],
)
def test_what_is_refused(captions, codes, error, message):
    with pytest.raises(error, match=message):
        ROWS(captions, codes, step=0)


def test_generated_text_is_no_image():
    with pytest.raises(ValueError, match=r"the codes of generated rows must be in 0..6, got -5"):
        ROWS.codes([[5, 2, 3, 14, 10, 21, 18]])
