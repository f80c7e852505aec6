"""Batches of similar lengths: by hand, against tf.data's, and what always holds."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_tfm.text import BucketedBatches, Rows, teacher_forcing

LENGTHS = st.lists(st.integers(1, 13), min_size=1, max_size=60)


def rows_of(lengths):
    """Rows whose tokens tell which row they are from."""
    return [[i + 1] * n for i, n in enumerate(lengths)]


def examples_of(batches, epoch=0):
    """The examples of each batch of an epoch."""
    steps = range(epoch * batches.steps, (epoch + 1) * batches.steps)
    return [(batches.batch(step)["ids"][:, 0] - 1).tolist() for step in steps]


def test_by_hand():
    """Boundaries 2 and 5, 10 tokens: five rows of up to 2, two rows of up to 5."""
    lengths = [1, 5, 2, 4, 1, 2, 3, 2, 1]
    batches = BucketedBatches(
        {"ids": rows_of(lengths)}, boundaries=[2, 5], tokens=10, shuffle=False
    )
    assert batches.steps == 4
    # Example 3 fills the first batch, 7 the second; what is left comes at the end.
    assert examples_of(batches) == [[1, 3], [0, 2, 4, 5, 7], [8], [6]]
    assert batches.batch(0)["ids"].tolist() == [[2, 2, 2, 2, 2], [4, 4, 4, 4, 0]]
    # Padded to 2, although its row has one token: there are no shapes but (., 2) and (., 5).
    assert batches.batch(2)["ids"].tolist() == [[9, 0]]
    padding = batches.padding()
    assert padding == (21, 10 + 10 + 2 + 5, 4)
    assert str(padding) == "4 batches, 27 positions, 22.2 % padding"


def test_every_part_is_padded_by_itself():
    """The source is longer, so it decides the bucket; the target has a length of its own."""
    batches = BucketedBatches(
        {"source": [[1] * 7, [2] * 5], "target": [[3], [4] * 2]},
        [[5], [6] * 2],
        boundaries=[3, 8],
        batch_size=2,
        shuffle=False,
        pad_id=9,
    )
    inputs, labels = batches.batch(0)
    # 7 and not 8, 2 and not 3: no further than the longest row of that part.
    assert inputs["source"].tolist() == [[1] * 7, [2] * 5 + [9] * 2]
    assert inputs["target"].tolist() == [[3, 9], [4, 4]]
    assert labels.tolist() == [[5, 9], [6, 6]]
    assert {x.dtype for x in (inputs["source"], inputs["target"], labels)} == {np.dtype("int32")}
    assert batches.padding().tokens == 18
    assert batches.padding().positions == 22


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_without_shuffle_the_batches_of_tensorflow(drop_remainder):
    rng = np.random.default_rng(0)
    rows = Rows.of(rows_of(rng.integers(1, 21, 211)))
    boundaries, sizes = [4, 9, 20], [11, 5, 2]
    tokens = 44
    assert [tokens // x for x in boundaries] == [11, 4, 2]
    ours = BucketedBatches(
        {"ids": rows}, boundaries=boundaries, tokens=tokens, shuffle=False,
        drop_remainder=drop_remainder,
    )  # fmt: skip
    sizes = [tokens // x for x in boundaries]
    theirs = tf.data.Dataset.from_generator(
        lambda: iter(rows), output_signature=tf.TensorSpec((None,), "int32")
    ).bucket_by_sequence_length(
        tf.size,
        [x + 1 for x in boundaries[:-1]],  # shorter than, not up to
        sizes,
        padded_shapes=[None],
        drop_remainder=drop_remainder,
    )
    expected = [(x[:, 0].numpy() - 1).tolist() for x in theirs]
    assert len(expected) == ours.steps
    found = examples_of(ours)
    if not drop_remainder:  # the last three: TensorFlow's come in an order of its own
        found, expected = [[*x[:-3], *sorted(x[-3:])] for x in (found, expected)]
    assert found == expected


@settings(deadline=None)
@given(LENGTHS, st.integers(0, 5), st.booleans(), st.booleans(), st.integers(13, 40))
def test_what_always_holds(lengths, epoch, shuffle, drop_remainder, tokens):
    boundaries = [3, 6, 13]
    try:
        batches = BucketedBatches(
            {"ids": rows_of(lengths)}, boundaries=boundaries, tokens=tokens, shuffle=shuffle,
            drop_remainder=drop_remainder,
        )  # fmt: skip
    except ValueError as error:
        assert "leaves no batch" in str(error)
        assert drop_remainder
        return
    seen = []
    for step in range(epoch * batches.steps, (epoch + 1) * batches.steps):
        ids = batches.batch(step)["ids"]
        assert ids.size <= tokens
        assert ids.shape[1] in {*boundaries, max(lengths)}
        for row in ids:
            example = row[0] - 1
            seen.append(example)
            assert row.tolist() == [row[0]] * lengths[example] + [0] * (len(row) - lengths[example])
        # All rows of one bucket.
        assert len({int(np.searchsorted(boundaries, lengths[row[0] - 1])) for row in ids}) == 1
    assert len(seen) == len(set(seen))
    if not drop_remainder:
        assert sorted(seen) == list(range(len(lengths)))


def test_epochs_and_seeds_differ_and_are_the_same_again():
    def made(seed):
        return BucketedBatches(
            {"ids": rows_of(range(1, 14))}, boundaries=[5, 13], batch_size=2, seed=seed
        )

    first = made(0)
    epochs = [examples_of(first, epoch) for epoch in (0, 1, 2)]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    # Another object, asked in another order.
    assert [examples_of(made(0), epoch) for epoch in (2, 0, 1)] == [epochs[i] for i in (2, 0, 1)]
    assert examples_of(made(1)) != epochs[0]


def test_it_wastes_less_than_batches_of_any_lengths():
    rng = np.random.default_rng(0)
    rows = rows_of(np.clip(rng.geometric(0.1, 2000), 1, 64))
    sorted_ = BucketedBatches({"ids": rows}, boundaries=[4, 8, 16, 32, 64], tokens=256)
    one_length = BucketedBatches({"ids": rows}, boundaries=[64], tokens=256)
    assert one_length.padding().share > 0.8
    assert sorted_.padding().share < 0.3
    assert sorted_.padding().tokens == one_length.padding().tokens == sum(map(len, rows))


def test_a_fit_over_the_dataset_learns():
    import keras

    from keras_tfm.models import transformer
    from keras_tfm.training import LabelSmoothedCrossEntropy

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    sources = [rng.integers(3, 7, n).tolist() for n in rng.integers(1, 6, 50)]
    targets = [[1, *row, 2] for row in sources]
    batches = BucketedBatches(*teacher_forcing(sources, targets), boundaries=[3, 6], tokens=60)
    model = transformer(7, dim=16, num_layers=1, num_heads=2, intermediate_dim=16, dropout=0.0)
    model.compile("adam", LabelSmoothedCrossEntropy(0.0))
    history = model.fit(
        batches.dataset(epochs=4), epochs=4, steps_per_epoch=batches.steps, shuffle=False, verbose=0
    )
    assert len(history.history["loss"]) == 4
    assert model.optimizer.iterations == 4 * batches.steps
    assert history.history["loss"][-1] < history.history["loss"][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": {}}, r"at least one, got \{\}"),
        ({"inputs": {"ids": []}}, r"at least one, got \{'ids': 0\}"),
        ({"labels": [[1]]}, r"same number of rows, .* got \{'ids': 2, 'labels': 1\}"),
        ({"boundaries": [3]}, r"longer than the last boundary \(3\), got one of 4"),
        ({"boundaries": [4, 2]}, r"boundaries must ascend from 1 or more, got \(4, 2\)"),
        ({"boundaries": [0, 4]}, r"boundaries must ascend from 1 or more, got \(0, 4\)"),
        ({"boundaries": []}, r"boundaries must ascend from 1 or more, got \(\)"),
        ({"boundaries": 8}, r"boundaries must be integers, such as \(8, 16\), got 8"),
        ({"boundaries": [4.5, 8]}, "boundaries must be integers"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"tokens": None}, "either tokens or batch_size, got tokens=None and batch_size=None"),
        ({"batch_size": 2}, "either tokens or batch_size, got tokens=8 and batch_size=2"),
        ({"tokens": 3}, r"at least the last boundary \(4\), got 3"),
        ({"tokens": 100, "drop_remainder": True}, r"2 examples fill none of \[25\]"),
    ],
)  # fmt: skip
def test_refused(arguments, message):
    given = {"inputs": {"ids": [[5], [6] * 4]}, "boundaries": [4], "tokens": 8, **arguments}
    with pytest.raises((TypeError, ValueError), match=message):
        BucketedBatches(**given)


def test_a_negative_step():
    batches = BucketedBatches({"ids": [[5]]}, boundaries=[1], batch_size=1)
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        batches.batch(-1)
