"""A padding id of each part, other than 0."""

import numpy as np
import pytest

from keras_tfm.text import BucketedBatches, MaskTokens, PackedBatches

SOURCES, TARGETS = [[3, 4, 5], [0]], [[1, 2], [3]]


def test_each_part_of_a_bucket_has_its_own():
    batches = BucketedBatches(
        {"source": SOURCES, "target": TARGETS},
        TARGETS,
        boundaries=[2, 3],
        batch_size=2,
        shuffle=False,
        pad_id={"source": 7, "labels": -100},
    )
    assert batches.pad_ids == {"source": 7, "target": 0, "labels": -100}
    # The row of one token comes alone: its boundary is 2.
    (first, first_labels), (second, labels) = batches.batch(0), batches.batch(1)
    found = [first["source"].tolist(), first["target"].tolist(), first_labels.tolist()]
    found += [second["source"].tolist(), second["target"].tolist(), labels.tolist()]
    assert found == [[[0, 7]], [[3, 0]], [[3, -100]], [[3, 4, 5]], [[1, 2]], [[1, 2]]]


def test_one_id_is_for_all_parts():
    batches = BucketedBatches({"ids": SOURCES}, TARGETS, [3], batch_size=2, pad_id=7)
    assert batches.pad_ids == {"ids": 7, "labels": 7}


def test_each_part_of_a_packed_row_has_its_own():
    batches = PackedBatches(
        {"a": SOURCES, "b": SOURCES}, SOURCES, length=5, shuffle=False, pad_id={"b": 7, "labels": 9}
    )
    inputs, labels = batches.batch(0)
    assert inputs["a"].tolist() == [[3, 4, 5, 0, 0]]
    assert inputs["b"].tolist() == [[3, 4, 5, 0, 7]]
    assert labels.tolist() == [[3, 4, 5, 0, 9]]
    assert inputs["segments"].tolist() == [[1, 1, 1, 2, 0]]


@pytest.mark.parametrize(
    ("pad_id", "error", "message"),
    [
        ({"sorce": 7}, ValueError, r"must be for the parts \['ids'\], got one for \['sorce'\]"),
        ({"labels": 7}, ValueError, r"must be for the parts \['ids'\], got one for \['labels'\]"),
        (7.0, TypeError, "pad_id of 'ids' must be an integer, got 7.0"),
        ({"ids": True}, TypeError, "pad_id of 'ids' must be an integer, got True"),
    ],
)
def test_a_wrong_id_is_refused(pad_id, error, message):
    with pytest.raises(error, match=message):
        PackedBatches({"ids": SOURCES}, length=5, pad_id=pad_id)
    with pytest.raises(error, match=message):
        BucketedBatches({"ids": SOURCES}, boundaries=[3], batch_size=1, pad_id=pad_id)


def test_an_input_named_as_the_labels_takes_no_ids_by_name():
    with pytest.raises(ValueError, match="different names, got labels and inputs"):
        PackedBatches({"labels": SOURCES}, SOURCES, length=5, pad_id={"labels": 7})


def test_padding_is_never_hidden_and_never_drawn():
    mask = MaskTokens(9, mask_id=4, pad_id=7, mask_share=0.0, random_share=1.0, rate=1.0)
    ids = np.array([[0, 1, 2, 3, 7, 7]] * 50)
    inputs, labels, weights = mask(ids, step=0)
    assert weights[:, :4].all() and not weights[:, 4:].any()
    np.testing.assert_array_equal(inputs[:, 4:], 7)
    np.testing.assert_array_equal(labels, ids)  # 7, the pad id, is the label to ignore
    assert set(inputs[:, :4].ravel()) == {0, 1, 2, 3, 5, 6, 8}


def test_rows_without_padding_need_an_ignored_label():
    with pytest.raises(ValueError, match="without a pad_id give an ignore_id, such as -100"):
        MaskTokens(9, mask_id=4, pad_id=None)
    mask = MaskTokens(9, mask_id=4, pad_id=None, ignore_id=-100, rate=1.0)
    assert mask(np.array([[0, 4]]), 0)[2].tolist() == [[1.0, 0.0]]
