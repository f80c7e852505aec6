"""Batches by step as a dataset: where it begins, where it ends."""

import sys

import numpy as np
import pytest

from keras_tfm.text import BucketedBatches, MaskTokens, PackedBatches, Padding

ROWS = [[5, 6], [7], [8, 9, 10], [11, 12], [13], [14, 15, 16, 17], [18]]


def pipelines():
    yield "bucketed", BucketedBatches({"ids": ROWS}, ROWS, boundaries=[2, 4], tokens=8)
    packed = PackedBatches({"ids": ROWS}, length=4, batch_size=2)
    yield "packed", packed
    yield "masked", packed.map(MaskTokens(19, mask_id=1, special_ids=[0]))


def arrays(batch):
    if isinstance(batch, tuple):
        return [x for part in batch for x in arrays(part)]
    if isinstance(batch, dict):
        return [np.asarray(batch[name]) for name in sorted(batch)]
    return [np.asarray(batch)]


@pytest.mark.parametrize(("name", "batches"), list(pipelines()))
def test_from_any_step_on_the_same_batches(name, batches):
    """What an interrupted run reads is what it would have read."""
    whole = [arrays(batch) for batch in batches.dataset(epochs=3)]
    assert len(whole) == 3 * batches.steps
    for start in (1, batches.steps, 2 * batches.steps + 1, 3 * batches.steps):
        rest = [arrays(batch) for batch in batches.dataset(start=start, epochs=3)]
        assert len(rest) == len(whole) - start
        for found, expected in zip(rest, whole[start:], strict=True):
            for x, y in zip(found, expected, strict=True):
                assert x.dtype == y.dtype
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(("name", "batches"), list(pipelines()))
def test_a_dataset_knows_its_length(name, batches):
    assert batches.dataset(start=1, epochs=2).cardinality() == 2 * batches.steps - 1
    endless = batches.dataset()
    assert endless.cardinality() == -1  # infinite
    assert sum(1 for _ in endless.take(5 * batches.steps)) == 5 * batches.steps


@pytest.mark.parametrize(("name", "batches"), list(pipelines()))
def test_without_tensorflow(name, batches, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # as if it were not installed
    found = list(batches.dataset(start=1, epochs=2))
    assert len(found) == 2 * batches.steps - 1
    for step, batch in enumerate(found, start=1):
        for x, y in zip(arrays(batch), arrays(batches.batch(step)), strict=True):
            np.testing.assert_array_equal(x, y)


def test_maps_follow_one_another():
    batches = BucketedBatches({"ids": [[5]]}, boundaries=[1], batch_size=1)
    doubled = batches.map(lambda batch, step: {"ids": batch["ids"] * 2})
    moved = doubled.map(lambda batch, step: {"ids": batch["ids"] + step})
    assert moved.steps == 1
    assert moved.batch(3)["ids"].tolist() == [[13]]
    assert batches.batch(3)["ids"].tolist() == [[5]]


def test_out_of_range():
    batches = BucketedBatches({"ids": [[5], [6]]}, boundaries=[1], batch_size=1)
    with pytest.raises(ValueError, match=r"at most 4, 2 epochs of 2 steps, got 5"):
        batches.dataset(start=5, epochs=2)
    with pytest.raises(ValueError, match="start must be at least 0"):
        batches.dataset(start=-1)
    with pytest.raises(ValueError, match="epochs must be at least 1"):
        batches.dataset(epochs=0)


def test_padding_in_words():
    assert str(Padding(1, 3, 1234)) == "1,234 batches, 3 positions, 66.7 % padding"
