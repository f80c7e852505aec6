"""Masked language modelling: what is hidden, how often, and what never is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_tfm.text import BucketedBatches, MaskTokens

SPECIAL = [0, 1, 2, 3]


def made(**options):
    return MaskTokens(50, **{"mask_id": 4, "special_ids": SPECIAL, **options})


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 49), min_size=9, max_size=9), min_size=1, max_size=5),
    st.integers(0, 99),
)
def test_what_always_holds(rows, step):
    ids = np.array(rows)
    before = ids.copy()
    inputs, labels, weights = made(rate=0.3, ignore_id=-100)(ids, step)
    np.testing.assert_array_equal(ids, before)
    chosen = labels != -100
    np.testing.assert_array_equal(weights, chosen)
    np.testing.assert_array_equal(labels[chosen], ids[chosen])
    np.testing.assert_array_equal(inputs[~chosen], ids[~chosen])
    # Neither hidden nor drawn.
    assert not np.isin(ids[chosen], [*SPECIAL, 4]).any()
    changed = inputs != ids
    assert not np.isin(inputs[changed], SPECIAL).any()
    for row, count in zip(ids, chosen.sum(axis=1), strict=True):
        available = int((row > 4).sum())
        assert count == (0 if available == 0 else max(1, round(0.3 * available)))


def test_positions_say_the_same_in_less():
    ids = np.random.default_rng(0).integers(0, 50, (7, 20))
    ids[3] = 0  # nothing to choose
    inputs, labels, weights = made()({"ids": ids}, step=3)
    short = made(positions=True)({"ids": ids}, step=3)
    places = short[0]["mask_positions"]
    np.testing.assert_array_equal(short[0]["ids"], inputs["ids"])
    assert places.shape == short[1].shape == short[2].shape == (7, 3)  # 15 % of 20
    assert places.dtype == np.int32 and short[2].dtype == np.float32
    for row in range(7):
        there = short[2][row] > 0
        np.testing.assert_array_equal(places[row][there], np.flatnonzero(weights[row]))
        np.testing.assert_array_equal(short[1][row][there], labels[row][weights[row] > 0])
        assert not places[row][~there].any() and not short[1][row][~there].any()
    with pytest.raises(
        ValueError,
        match=r"positions=True adds an input, so a batch must be a dictionary .*, got ndarray",
    ):
        made(positions=True)(ids, step=0)


def test_counts_by_hand():
    """15 % of 20 tokens are 3; of 2 tokens one, since none would teach nothing; of none, none."""
    ids = np.zeros((3, 22), int)
    ids[0, :22] = [1, *range(10, 30), 2]
    ids[1, :4] = [1, 10, 11, 2]
    ids[2, :2] = [1, 2]
    _, _, weights = made()({"ids": ids}, step=5)
    assert weights.sum(axis=1).tolist() == [3, 1, 0]
    assert weights.dtype == np.float32


def test_eighty_ten_ten():
    """Over 20,000 chosen tokens; four standard deviations of a share of 0.8 are 0.011."""
    ids = np.random.default_rng(0).integers(5, 50, (1000, 133))
    inputs, _, weights = made()(ids, step=0)
    chosen = weights > 0
    assert chosen.sum() == 20_000
    hidden = np.mean(inputs[chosen] == 4)
    kept = np.mean(inputs[chosen] == ids[chosen])
    assert abs(hidden - 0.8) < 0.0114
    # One of 45 that are drawn is the one that was there.
    assert abs(kept - (0.1 + 0.1 / 45)) < 0.0086
    drawn = inputs[chosen & (inputs != 4) & (inputs != ids)]
    assert set(drawn.tolist()) == set(range(5, 50))
    # Every place alike: 150 of 1000 each, standard deviation 11.3.
    assert np.all(np.abs(chosen.sum(axis=0) - 150) < 5 * 11.3)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [((1.0, 0.0), "mask"), ((0.0, 0.0), "same"), ((0.0, 1.0), "drawn")],
)
def test_shares_alone(shares, expected):
    ids = np.full((7, 30), 9)
    inputs, _, weights = made(mask_share=shares[0], random_share=shares[1])(ids, 0)
    chosen = inputs[weights > 0]
    if expected == "drawn":
        assert not np.isin(chosen, [*SPECIAL, 4]).any()
        assert np.any(chosen != 9)
    else:
        assert set(chosen.tolist()) == {4 if expected == "mask" else 9}


def test_a_choice_of_its_own_in_every_epoch_and_the_same_again():
    rows = [list(range(10, 30))]
    batches = BucketedBatches({"ids": rows}, boundaries=[20], batch_size=1).map(made(seed=3))
    epochs = [batches.batch(step)[1].tolist() for step in range(4)]
    assert len({str(x) for x in epochs}) > 1
    assert batches.batch(2)[1].tolist() == epochs[2]
    other = BucketedBatches({"ids": rows}, boundaries=[20], batch_size=1).map(made(seed=4))
    assert [other.batch(step)[1].tolist() for step in range(4)] != epochs


def test_other_inputs_stay():
    ids = np.array([[10, 11]])
    inputs, _, _ = made(name="tokens")({"tokens": ids, "segments": ids + 1}, 0)
    np.testing.assert_array_equal(inputs["segments"], ids + 1)


def test_a_fit_predicts_only_what_was_hidden():
    """Keras's loss, weighted by these weights: by hand the mean over the hidden alone."""
    import keras

    ids = np.array([[10, 11, 12, 13, 14, 15, 16, 17, 18, 19]])
    _, labels, weights = made()(ids, 0)
    logits = np.random.default_rng(0).normal(size=(1, 10, 50)).astype("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    )
    chosen = weights[0] > 0
    probabilities = np.exp(logits[0]) / np.exp(logits[0]).sum(axis=-1, keepdims=True)
    expected = -np.log([probabilities[i, ids[0, i]] for i in np.flatnonzero(chosen)]).mean()
    # float32 against float64
    np.testing.assert_allclose(loss(labels, logits, weights), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask_id": 50}, r"must be in 0..49, got 50"),
        ({"special_ids": [-1]}, r"must be in 0..49, got -1"),
        ({"mask_share": 0.8, "random_share": 0.3}, "add up to at most 1, got 0.8 and 0.3"),
        ({"rate": 1.5}, "rate must be within 0 and 1, got 1.5"),
        ({"special_ids": range(50)}, "some ids must not be special, got all 50 as special"),
        ({"ignore_id": 7}, "got the token 7"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        made(**arguments)


def test_a_batch_with_labels_is_refused():
    with pytest.raises(ValueError, match="must be inputs without labels, got a tuple"):
        made()(({"ids": np.array([[5]])}, np.array([[5]])), 0)


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([[5, 70]], ValueError, r"ids must be in 0..49, got 70"),
        ([[5, -1]], ValueError, r"ids must be in 0..49, got -1"),
        ([[5.5, 7.0]], TypeError, "ids must be integers, got float64"),
        ([5, 7], ValueError, r"ids must be \(B, T\), got shape \(2,\)"),
    ],
)
def test_ids_that_are_none(ids, error, message):
    with pytest.raises(error, match=message):
        MaskTokens(50, 4)({"ids": np.array(ids)}, step=0)


def test_a_batch_or_step_that_is_none():
    with pytest.raises(ValueError, match=r"must have 'ids', got \['tokens'\]"):
        MaskTokens(50, 4)({"tokens": np.array([[5]])}, step=0)
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        MaskTokens(50, 4)({"ids": np.array([[5]])}, step=-1)
