"""Packed rows: what is where, and that an example gets the result that it has alone."""

import keras
import numpy as np
import pytest
from blocks import decoder_block, encoder_block
from hypothesis import given
from hypothesis import strategies as st

from keras_tfm import layers
from keras_tfm.text import PackedBatches, teacher_forcing

VOCABULARY, DIM = 23, 12


def test_by_hand():
    """The longest first; 3 fits only where 4 is, 2 beside 5, and so on."""
    lengths = [2, 5, 3, 4, 1, 1]
    rows = [[i + 1] * n for i, n in enumerate(lengths)]
    batches = PackedBatches(
        {"ids": rows}, [[-x for x in row] for row in rows], length=7, batch_size=1, shuffle=False
    )
    assert (batches.rows, batches.steps) == (3, 3)
    first, labels = batches.batch(0)
    assert first["ids"].tolist() == [[2, 2, 2, 2, 2, 1, 1]]
    assert first["segments"].tolist() == [[1, 1, 1, 1, 1, 2, 2]]
    assert first["positions"].tolist() == [[0, 1, 2, 3, 4, 0, 1]]
    assert labels.tolist() == [[-2, -2, -2, -2, -2, -1, -1]]
    second, _ = batches.batch(1)
    assert second["ids"].tolist() == [[4, 4, 4, 4, 3, 3, 3]]
    third, labels = batches.batch(2)
    assert third["ids"].tolist() == [[5, 6, 0, 0, 0, 0, 0]]
    assert third["segments"].tolist() == [[1, 2, 0, 0, 0, 0, 0]]
    assert third["positions"].tolist() == [[0, 0, 0, 0, 0, 0, 0]]
    assert labels.tolist() == [[-5, -6, 0, 0, 0, 0, 0]]
    assert {x.dtype for x in (*third.values(), labels)} == {np.dtype("int32")}
    # 16 of 21 positions, twice: inputs and labels.
    assert batches.padding() == (32, 42, 3)


def test_the_last_batch_of_an_epoch_and_the_order_of_epochs():
    rows = [[i] * 3 for i in range(1, 8)]
    batches = PackedBatches({"ids": rows}, length=4, batch_size=3, seed=5)
    assert (batches.rows, batches.steps) == (7, 3)
    epochs = [
        np.concatenate([batches.batch(3 * epoch + i)["ids"][:, 0] for i in range(3)]).tolist()
        for epoch in range(3)
    ]
    assert batches.batch(2)["ids"].shape == (1, 4)
    assert all(sorted(epoch) == list(range(1, 8)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert epochs[1] != epochs[2]


@given(st.lists(st.integers(1, 11), min_size=1, max_size=60), st.integers(11, 30))
def test_every_example_is_whole_and_there_once(lengths, length):
    rows = [[i + 1] * n for i, n in enumerate(lengths)]
    batches = PackedBatches({"ids": rows}, length=length, batch_size=4)
    found = []
    for step in range(batches.steps):
        batch = batches.batch(step)
        for ids, segments, positions in zip(*batch.values(), strict=True):
            assert np.all((ids == 0) == (segments == 0))
            for segment in range(1, segments.max() + 1):
                of = segments == segment
                example = int(ids[of][0]) - 1
                assert ids[of].tolist() == rows[example]
                assert positions[of].tolist() == list(range(lengths[example]))
                assert np.all(np.diff(np.flatnonzero(of)) == 1)
                found.append(example)
    assert sorted(found) == list(range(len(lengths)))
    # No two rows fit into one, so at most one row is half empty or emptier.
    packed = batches.rows
    assert packed <= 1 + 2 * sum(lengths) // length
    assert packed >= -(-sum(lengths) // length)


def language_model(position, attention_mask=True):
    """A decoder over packed rows; `position` says where its positions come from."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    segments = keras.Input((None,), dtype="int32", name="segments")
    places = keras.Input((None,), dtype="int32", name="positions")
    embedding = layers.TokenEmbedding(VOCABULARY, DIM, mask_zero=True)
    x = embedding(ids)
    if position == "input":
        x = keras.layers.Add()([x, keras.layers.Embedding(20, DIM)(places)])
    elif position == "row":
        x = layers.PositionalEncoding()(x)
    parts = {
        "rotary": layers.RotaryEmbedding,
        "t5": layers.RelativePositionBias,
        "alibi": layers.ALiBi,
    }
    for _ in range(2):
        part = parts[position]() if position in parts else None
        x = decoder_block(16, 3, cross_attention=False, position=part)(
            x, attention_mask=layers.segment_mask(segments) if attention_mask else None
        )
    return keras.Model([ids, segments, places], embedding(x, reverse=True))


def difference(model):
    """Between packed and alone, of the logits of all tokens, and their size."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(1, VOCABULARY, n).tolist() for n in (5, 2, 7, 3, 3, 1)]
    batch = PackedBatches({"ids": rows}, length=11, batch_size=9, shuffle=False).batch(0)
    assert len(batch["ids"]) == 2
    packed = np.array(model(list(batch.values())))
    errors, size = [], 0.0
    for row in rows:
        for i, segments in enumerate(batch["segments"]):
            for segment in range(1, segments.max() + 1):
                of = segments == segment
                if batch["ids"][i][of].tolist() == row:
                    n = len(row)
                    alone = np.array(
                        model([np.array([row]), np.ones((1, n), int), np.arange(n)[None]])
                    )[0]
                    errors.append(np.abs(packed[i][of] - alone).max())
                    size = max(size, np.abs(alone).max())
    assert len(errors) >= len(rows)
    return np.max(errors) / size


@pytest.mark.parametrize("position", ["rotary", "t5", "alibi", "input", "none"])
def test_packed_as_alone(position):
    """float32 rounding, in sums of another order."""
    keras.utils.set_random_seed(0)
    assert difference(language_model(position)) < 1e-5


@pytest.mark.parametrize(("position", "masked"), [("row", True), ("rotary", False)])
def test_what_would_not_be_as_alone(position, masked):
    """Positions of the row, and no block-diagonal mask: what the documentation warns of."""
    keras.utils.set_random_seed(0)
    assert difference(language_model(position, attention_mask=masked)) > 1e-2


def test_an_encoder_packed_as_alone():
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(1, 7, DIM)).astype("float32")
    block = encoder_block(16, 3, position=layers.RotaryEmbedding())
    packed = np.array(
        block(x, attention_mask=layers.segment_mask(np.array([[1, 1, 1, 2, 2, 2, 0]])))
    )
    for of in (slice(0, 3), slice(3, 6)):
        np.testing.assert_allclose(packed[:, of], block(x[:, of]), atol=1e-5)


def test_a_fit_over_packed_targets():
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    rows = [[1, *rng.integers(3, 7, n), 2] for n in rng.integers(1, 6, 40)]
    inputs, labels = teacher_forcing(None, rows, names=("", "ids"))
    batches = PackedBatches(inputs, labels, length=12, batch_size=8)
    model = language_model("rotary")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile("adam", loss)
    history = model.fit(
        batches.dataset(epochs=6), epochs=6, steps_per_epoch=batches.steps, shuffle=False, verbose=0
    )
    assert history.history["loss"][-1] < history.history["loss"][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": [[1, 2], [1, 2]]}, r"got 1 of 'ids' and 2 of 'labels' in row 1"),
        ({"inputs": {"ids": [[1, 2], [3]], "kind": [[1], [3]]}}, r"2 of 'ids' and 1 of 'kind'"),
        ({"inputs": {"ids": [[1, 2, 3], [1, 2, 3, 4]]}}, "1 to 3 tokens to be packed, got 3 to 4"),
        ({"inputs": {"ids": [[1], []]}}, "1 to 3 tokens to be packed, got 0 to 1"),
        (
            {"inputs": {"segments": [[1]]}},
            r"not be named segments or positions, got \['segments'\]",
        ),
        ({"inputs": {}}, "same number of rows"),
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        PackedBatches(**{"inputs": {"ids": [[1, 2], [3]]}, "length": 3, **arguments})


def test_rows_without_names_are_refused():
    with pytest.raises(TypeError, match="from an input's name to its rows, got list"):
        PackedBatches([[1, 2], [3]], length=3)
