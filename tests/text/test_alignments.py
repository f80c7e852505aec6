"""Alignments as token ids, their profiles, crops and masks; bad input."""

import re

import numpy as np
import pytest

from keras_tfm.text import MaskAlignments, alignment_profile, crop_alignment, encode_alignment
from keras_tfm.text.alignments import GAP_ID, MASK_ID

RNG = np.random.default_rng(5)


def test_letters_gaps_and_insertions_by_hand():
    """Columns of the target's gaps and lower-case letters go; dots and tildes are gaps."""
    ids = encode_alignment(["AC-WYX", "UB~Z.J", "......"])
    assert ids.dtype == np.int32
    assert ids.tolist() == [[1, 2, 19, 20, 21], [2, 3, 4, 22, 21], [22] * 5]
    assert encode_alignment(["A-C", "AkkD-"]).tolist() == [[1, 2], [1, 22]]
    assert encode_alignment(["A-c", "ADe"], keep_inserts=True).tolist() == [[1, 22, 2], [1, 3, 4]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "at least one aligned sequence, got []"),
        ("ACD", "at least one aligned sequence, got 'ACD'"),
        (["ACD", "ACD", "AC"], "row 0 has 3 columns, row 2 has 2"),
        (["ACD", "A?D"], "unknown letter '?' in row 1, column 1"),
        (["A1D"], "unknown letter '1' in row 0, column 1"),
        (["---", "ACD"], "row 0, must have residues, got only gaps"),
        (["", ""], "row 0, must have residues, got only gaps"),
    ],
)
def test_bad_alignments_are_errors(rows, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        encode_alignment(rows)


def test_profiles_count_no_padding():
    ids = np.array([[[1, 2, 0], [1, 3, 0], [2, 0, 0], [0, 0, 0]]])
    profile = alignment_profile(ids)
    assert profile.shape == (1, 3, 24)
    np.testing.assert_allclose(profile[0, 0, 1:4], [2 / 3, 1 / 3, 0], rtol=1e-6)  # float32
    np.testing.assert_array_equal(profile[0, 1, 1:4], [0, 0.5, 0.5])
    np.testing.assert_array_equal(profile[0, 2], 0)


def test_crops_keep_the_target_and_are_padded():
    ids = np.arange(1, 78).reshape(7, 11)
    crop, first = crop_alignment(ids, 5, 3, np.random.default_rng(0))
    np.testing.assert_array_equal(crop[0], ids[0, first : first + 3])
    assert len(np.unique(crop[:, 0])) == 5
    for row in crop:
        assert row.tolist() in ids[:, first : first + 3].tolist()
    crop, first = crop_alignment(ids, 13, 17, np.random.default_rng(0))
    np.testing.assert_array_equal(crop[:7, :11], ids)
    assert first == 0 and crop.shape == (13, 17) and not crop[7:].any() and not crop[:, 11:].any()


def test_masks_have_the_shares_of_the_supplement():
    """70 % masks, 10 % random, 10 % of the profile, 10 % unchanged."""
    ids = RNG.choice([3, 4, GAP_ID], (3, 101, 103), p=[0.6, 0.3, 0.1])
    ids[0, 53:], ids[1, :, 31:] = 0, 0
    inputs, labels, weights = MaskAlignments(seed=1)({"tokens": ids, "other": 5}, step=7)
    found, chosen = inputs["tokens"], weights > 0
    assert inputs["other"] == 5 and found.dtype == labels.dtype == np.int32
    count = chosen.sum()
    assert not chosen[ids == 0].any()
    np.testing.assert_array_equal(found[~chosen], ids[~chosen])
    np.testing.assert_array_equal(labels[chosen], ids[chosen])
    np.testing.assert_array_equal(labels[~chosen], 0)

    def near(share, expected, of):
        # Four standard deviations of a binomial share.
        assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / of)

    near(chosen[ids != 0].mean(), 0.15, (ids != 0).sum())
    near((found[chosen] == MASK_ID).mean(), 0.7, count)
    others = ~np.isin(found[chosen], [3, 4, GAP_ID, MASK_ID])
    near(others.mean(), 0.1 * 18 / 20, count)
    gaps = ids[chosen] == GAP_ID
    # A gap stays one if it is unchanged or drawn from a profile with 10 % gaps.
    near((found[chosen][gaps] == GAP_ID).mean(), 0.1 + 0.1 * 0.1, gaps.sum())


def test_the_choice_depends_on_seed_and_step_alone():
    ids = RNG.integers(1, 21, (2, 5, 7))
    first, again = (MaskAlignments(seed=3)(ids, step=2) for _ in range(2))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.any(MaskAlignments(seed=3)(ids, step=3)[2] != first[2])
    assert np.any(MaskAlignments(seed=4)(ids, step=2)[2] != first[2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 1.5}, "rate must be within 0 and 1, got 1.5"),
        ({"random_share": 0.7, "same_share": 0.4}, "must add up to at most 1, got 1.2"),
    ],
)
def test_shares_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        MaskAlignments(**options)


def test_rows_without_a_batch_are_refused():
    with pytest.raises(ValueError, match=r"tokens must be \(B, S, N\), got shape \(5, 7\)"):
        MaskAlignments()({"tokens": np.ones((5, 7), int)}, 0)


def test_shares_that_add_up_to_1():
    """Of which the sum of floats is 1.0000000000000002."""
    MaskAlignments(random_share=0.33, profile_share=0.56, same_share=0.11)


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ({"ids": [[[1]]]}, ValueError, r"must have 'tokens', got \['ids'\]"),
        ({"tokens": [[[1, 24]]]}, ValueError, r"tokens must be in 0..23, got 24"),
        ({"tokens": [[[1.0]]]}, TypeError, "tokens must be integers, got float64"),
    ],
)
def test_batches_that_are_none(batch, error, message):
    with pytest.raises(error, match=message):
        MaskAlignments()(batch, 0)


def test_a_letter_with_two_capitals_is_unknown():
    with pytest.raises(ValueError, match="unknown letter 'ß' in row 1, column 1"):
        encode_alignment(["AC", "Aß"], keep_inserts=True)
