import keras
import numpy as np
import pytest
import reference_positions as rp
from attention_features import built, randomize
from compare import assert_close, to_numpy
from execution import gradients, tensorflow_only
from keras import ops

import keras_tfm
from keras_tfm.layers import (
    DisentangledPositionEmbedding,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    RelativePositionTable,
    TransformerEncoderBlock,
)
from keras_tfm.layers.multi_head_attention import blockwise
from keras_tfm.layers.positions.disentangled_position_embedding import skew
from keras_tfm.layers.positions.relative_position_table import log_buckets

# Float32 rounds at 6e-8; 60 terms a sum, and weights that follow scores of size 3.
FLOAT32 = 1e-5
B, T, D = 2, 7, 10


@pytest.fixture
def x():
    return np.random.default_rng(7).normal(size=(B, T, D)).astype("float32")


def part(*table, dropout=0.0, **options):
    table = RelativePositionTable(D, *table, dropout=dropout)
    return DisentangledPositionEmbedding(table, **options)


# Buckets


def test_buckets_by_hand():
    """8 buckets to 12: one a distance up to 4, then ceil(3 log(n / 4) / log(11 / 4)) more.

    The logarithms are 1.01 for 11, 0.22 for 5, 0.41 for 6, 0.56 for 7, 0.69 for 8, 1.10 for 12.
    """
    distances = np.array([0, 1, 4, 5, 6, 7, 8, 11, 12])
    expected = np.array([0, 1, 4, 5, 6, 6, 7, 7, 8])
    np.testing.assert_array_equal(log_buckets(distances, 8, 12), expected)
    np.testing.assert_array_equal(log_buckets(-distances, 8, 12), -expected)


@pytest.mark.parametrize(
    ("num_buckets", "max_distance"),
    [(256, 512), (32, 128), (8, 12), (7, 12), (9, 6), (2, 3), (3, 5)],
)
def test_buckets_equal_exact_arithmetic(num_buckets, max_distance):
    reach = 2 * max_distance if max_distance < 300 else 550
    distances = np.arange(-reach, reach + 1)
    expected = [rp.deberta_bucket(int(d), num_buckets, max_distance) for d in distances]
    np.testing.assert_array_equal(log_buckets(distances, num_buckets, max_distance), expected)


def test_rows_by_hand():
    """k = 3 rows before that of distance 0, and 2 behind it."""
    table = RelativePositionTable(D, 3)
    assert table.rows_of([-9, -3, -2, 0, 1, 2, 3]).tolist() == [0, 0, 1, 3, 4, 5, 5]
    # m = 4 // 2; log(3 / 2) / log(5 / 2) is 0.44 and one step; 12 / 2 is more than one.
    table = RelativePositionTable(D, 6, num_buckets=4)
    assert table.rows_of([-12, -5, -3, -2, 0, 2, 3, 5, 6]).tolist() == [0, 1, 1, 2, 4, 6, 7, 7, 7]


@pytest.mark.parametrize("sizes", [(6,), (5, 4), (40, 7), (4, 5)], ids=str)
def test_rows_of_tensors_equal_those_of_arrays(sizes):
    table = RelativePositionTable(D, *sizes)
    distances = np.random.default_rng(0).integers(-100_000, 100_000, (3, 50)).astype("int32")
    distances[0] %= 23
    actual = table.rows_of(ops.convert_to_tensor(distances))
    np.testing.assert_array_equal(to_numpy(actual), table.rows_of(distances))


# Scores


def test_scores_by_hand():
    """One head of width 1, two positions; queries are 1, keys x, values x, and the table is
    K_r = Q_r: 0 at distance 0, ln 2 at distance 1 (query after key), ln 3 at distance -1.

    Content to position: the first query adds ln 3 to the score of the second key, the second
    query ln 2 to that of the first. Position to content: keys of 1 add the same numbers once more.
    """
    position = DisentangledPositionEmbedding(
        RelativePositionTable(1, 2, normalize=False), own_projections=True
    )
    layer = MultiHeadSelfAttention(1, position=position, scale=1.0)
    layer.build((1, 2, 1))
    position.table.table.assign([[0.0], [np.log(3.0)], [0.0], [np.log(2.0)]])
    for projection in (position.position_key, position.position_query):
        projection.set_weights([np.ones((1, 1)), np.zeros(1)])
    layer.output_projection.set_weights([np.ones((1, 1)), np.zeros(1)])
    # Queries 1, keys 1, values x.
    layer.query_key_value.set_weights([np.array([[0.0, 0.0, 1.0]]), np.array([1.0, 1.0, 0.0])])
    # Scores 1 and 1 + 2 ln 3: weights 1/10 and 9/10. Scores 1 + 2 ln 2 and 1: 4/5 and 1/5.
    x = np.array([[[10.0], [20.0]]], "float32")
    assert_close(layer(x), [[[1.0 + 18.0], [8.0 + 4.0]]], 1e-6)
    # Keys of 0: position to content is 0. Scores 0 and ln 3, ln 2 and 0.
    layer.query_key_value.set_weights([np.array([[0.0, 0.0, 1.0]]), np.array([1.0, 0.0, 0.0])])
    assert_close(layer(x), [[[2.5 + 15.0], [20 / 3 + 20 / 3]]], 1e-6)
    # Queries of 0: content to position is 0.
    layer.query_key_value.set_weights([np.array([[0.0, 0.0, 1.0]]), np.array([0.0, 1.0, 0.0])])
    assert_close(layer(x), [[[2.5 + 15.0], [20 / 3 + 20 / 3]]], 1e-6)


@pytest.mark.parametrize(("rows", "length"), [(3, 5), (5, 3), (1, 4), (4, 1), (1, 1)])
def test_skewed_rows_by_hand(rows, length):
    x = np.arange(2 * rows * (rows + length), dtype="float32").reshape(2, rows, rows + length)
    expected = np.zeros((2, rows, length))
    for i in range(rows):
        for j in range(length):
            expected[:, i, j] = x[:, i, rows - 1 - i + j]
    np.testing.assert_array_equal(to_numpy(skew(ops.convert_to_tensor(x), length)), expected)


@pytest.mark.parametrize("terms", ["both", "content_to_position", "position_to_content"])
@pytest.mark.parametrize("sizes", [(3,), (50,), (4, 5), (6, 4)], ids=str)
def test_positions_given_one_by_one_equal_consecutive_ones(x, terms, sizes):
    """A gather for each pair, and the skew; the same from another first position."""
    others = {"content_to_position", "position_to_content"} - {terms}
    options = {} if terms == "both" else dict.fromkeys(others, False)
    layer = built(MultiHeadSelfAttention(2, position=part(*sizes, **options)), x.shape)
    expected = layer(x)
    for positions in (np.arange(T), np.arange(5, 5 + T), np.arange(T) + np.array([[3], [90]])):
        assert_close(layer(x, positions=positions.astype("int32")), expected, FLOAT32)
    moved = layer(x, positions=np.array([0, 1, 2, 3, 4, 6, 5], "int32"))
    assert np.abs(to_numpy(moved) - to_numpy(expected)).max() > 1e-2


def test_cross_attention_of_two_lengths(x):
    context = np.random.default_rng(2).normal(size=(B, 4, D)).astype("float32")
    layer = MultiHeadCrossAttention(2, position=part(4, 5))
    built(layer, x.shape, context.shape)
    given = layer(
        x,
        context,
        positions=np.arange(T, dtype="int32"),
        context_positions=np.arange(4, dtype="int32"),
    )
    assert_close(layer(x, context), given, FLOAT32)


# Long sequences and dropout


@tensorflow_only
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("training", [False, True], ids=["", "training"])
def test_attention_in_blocks_has_the_same_values_and_gradients(x, own, training, monkeypatch):
    """Dropout drops the same values of the table in each block, and when a block is recomputed."""
    table = RelativePositionTable(D, 4, num_buckets=4, dropout=0.4)
    layer = MultiHeadSelfAttention(
        2, position=DisentangledPositionEmbedding(table, own_projections=own)
    )
    built(layer, x.shape)
    weighting = np.random.default_rng(3).normal(size=x.shape).astype("float32")
    state = None if not training else table.dropout_layer.seed_generator.state

    def run():
        y = []

        def loss(x):
            y.append(layer(x, training=training))
            return ops.sum(weighting * y[0])

        if state is not None:
            state.assign([3, 0])
        of_weights, (of_x,) = gradients(loss, layer.trainable_variables, x)
        return [to_numpy(v) for v in (y[0], of_x, *of_weights)]

    whole = run()
    monkeypatch.setattr(blockwise, "FEW", 1)
    monkeypatch.setattr(blockwise, "BLOCK", 3)
    # Gradients are sums of some 100 products, rounded at 6e-8 each, in another order.
    for actual, expected in zip(run(), whole, strict=True):
        assert_close(actual, expected, 2e-5)


def test_dropout_of_the_table(x):
    """Of a table of ones and a normalisation that is off, rows in training hold 0 and 2."""
    table = RelativePositionTable(50, 2, normalize=False, dropout=0.5)
    table.build()
    table.table.assign(np.ones((4, 50)))
    rows = to_numpy(table(np.array([0, 0, 3]), seed=table.draw()))
    assert set(rows.ravel().tolist()) == {0.0, 2.0}
    np.testing.assert_array_equal(rows[0], rows[1])
    assert np.any(rows[0] != rows[2])
    layer = MultiHeadSelfAttention(2, position=part(5, dropout=0.5))
    built(layer, x.shape)
    still, again = (to_numpy(layer(x)) for _ in range(2))
    np.testing.assert_array_equal(still, again)
    first, second = (to_numpy(layer(x, training=True)) for _ in range(2))
    assert np.any(first != second) and np.any(first != still)


# In a model composed by hand


def composed():
    """A user's model: two blocks with one table, each with projections of its own."""
    inputs = keras.Input((None, D), name="x")
    table = RelativePositionTable(D, max_distance=9, num_buckets=4)
    y = inputs
    for _ in range(2):
        position = DisentangledPositionEmbedding(table, own_projections=True)
        attention = MultiHeadSelfAttention(2, position=position, scale=(3 * D / 2) ** -0.5)
        y = TransformerEncoderBlock(13, self_attention=attention)(y)
    return keras_tfm.Model(inputs, keras.layers.Dense(1)(y))


@pytest.mark.slow
@tensorflow_only
def test_a_model_composed_by_hand_learns_an_order():
    """The target is the token before: without positions, no better than the variance 1."""
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, T, D)).astype("float32")
    y = np.roll(x[..., :1], 1, axis=1)
    y[:, 0] = 0.0
    model = composed()
    assert sum("relative_position_table" in v.path for v in model.weights) == 3
    model.compile(keras.optimizers.Adam(0.01), "mse")
    history = model.fit(x, y, batch_size=20, epochs=12, verbose=0)
    assert history.history["loss"][-1] < 0.1


@pytest.mark.default
@tensorflow_only
def test_a_model_composed_by_hand_is_one_partition_in_its_file(tmp_path):
    from keras_tfm.export import export_tflite

    model = randomize(composed())
    report = export_tflite(model, tmp_path / "x.tflite", ["predict"], source_length=6)
    assert [graph.partitions for graph in report.subgraphs] == [1]
    assert all(graph.delegated == graph.nodes for graph in report.subgraphs)


# Wrong arguments


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: part(0), ValueError, "max_distance must be at least 1, got 0"),
        (lambda: part(8, 1), ValueError, "num_buckets must be at least 2, got 1"),
        (lambda: part(4, 7), ValueError, "max_distance must be more than 4 .*=7, .*got 4"),
        (lambda: RelativePositionTable(D, 4, dropout=1.5), ValueError, "dropout must be"),
        (
            lambda: DisentangledPositionEmbedding(3),
            TypeError,
            "table must be a RelativePositionTable, got 3",
        ),
        (
            lambda: part(4, content_to_position=False, position_to_content=False),
            ValueError,
            "content_to_position or position_to_content must be True, got neither",
        ),
    ],
)
def test_wrong_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_table_of_another_width_is_named(x):
    layer = MultiHeadSelfAttention(
        2, position=DisentangledPositionEmbedding(RelativePositionTable(D + 1, 4))
    )
    with pytest.raises(ValueError, match=r"expected inputs of width 10, got shape \(14, 11\)"):
        layer(x)


def test_own_projections_of_layers_with_other_widths_are_refused():
    position = part(4, own_projections=True, name="positions")
    MultiHeadSelfAttention(2, position=position).build((B, T, D))
    with pytest.raises(ValueError, match=r"positions is shared by layers of .* 10 and 12"):
        MultiHeadSelfAttention(2, head_dim=6, position=position).build((B, T, D))


def test_a_copy_of_single_layers_that_share_a_table_is_refused():
    """Keras copies the layers of a `keras.Model` one by one: a copy would have a table for each."""
    model = composed()
    plain = keras.Model(model.input, model.output)
    with pytest.raises(ValueError, match=r"position '.*table.*' is shared by several layers"):
        keras.models.clone_model(plain)
    assert len(keras.models.clone_model(model).weights) == len(model.weights)


def test_one_head_computes_each_row_alone():
    """TensorFlow's product of (B, 1, M, K) and (1, K, N) writes out of bounds for 3 rows and more.

    B is 5 and the widths are 8 and more: with smaller ones the fault does not show.
    """
    x = np.random.default_rng(3).normal(size=(5, 9, 8)).astype("float32")
    position = DisentangledPositionEmbedding(RelativePositionTable(8, 8))
    layer = MultiHeadSelfAttention(1, position=position)
    together = to_numpy(layer(x))
    alone = np.concatenate([to_numpy(layer(x[i : i + 1])) for i in range(5)])
    assert_close(together, alone, FLOAT32)
