import keras
import numpy as np
import pytest
import reference_positions as rp
from attention_features import built, expected_self_attention, randomize, stepped, terms_of
from blocks import encoder_block, head_norms
from compare import assert_close, to_numpy
from execution import MODES, execute, gradients, saving, tensorflow_only
from keras import ops

from keras_tfm.layers import (
    ALiBi,
    DisentangledPositionEmbedding,
    MultiHeadSelfAttention,
    RelativePositionBias,
    RelativePositionEmbedding,
    RelativePositionTable,
    RotaryEmbedding,
    TransformerEncoderBlock,
    t5_buckets,
)

# Float32 rounds at 6e-8; 60 terms a sum, and weights that follow scores of size 3.
FLOAT32 = 1e-5
# Float32 gradients are sums of some 100 products, rounded at 6e-8 each.
GRADIENT = 2e-5

B, T, D = 2, 7, 10
MASK = np.array([[True, True, True, False, True, True, True], [False, False] + [True] * 5])
HEADS = {
    "plain": {"num_heads": 2},
    "grouped": {"num_heads": 4, "num_key_value_heads": 2, "head_dim": 3, "value_dim": 11},
    "one key head": {"num_heads": 3, "num_key_value_heads": 1, "head_dim": 5},
}
PARTS = {
    "T5": lambda: RelativePositionBias(num_buckets=8, max_distance=5),
    "Shaw": lambda: RelativePositionEmbedding(max_distance=3),
    "Shaw, keys only": lambda: RelativePositionEmbedding(max_distance=2, values=False),
    "Shaw, far": lambda: RelativePositionEmbedding(max_distance=50),
    "ALiBi": ALiBi,
    "DeBERTa": lambda: DisentangledPositionEmbedding(RelativePositionTable(D, 5, num_buckets=4)),
    "DeBERTa, own projections": lambda: DisentangledPositionEmbedding(
        RelativePositionTable(D, 3), own_projections=True
    ),
}
both_directions = pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
every_head = pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
every_part = pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)


@pytest.fixture
def x():
    return np.random.default_rng(7).normal(size=(B, T, D)).astype("float32")


def assert_equals_reference(x, options, **call):
    """A layer with random weights, without dropout, against the loops of the reference."""
    layer = built(MultiHeadSelfAttention(**options), x.shape)
    assert_close(layer(x, **call), expected_self_attention(layer, x, **options, **call), FLOAT32)


# All parts


@every_part
@both_directions
@every_head
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_self_attention_equals_the_float64_reference(x, part, causal, heads, masked):
    pairs = np.random.default_rng(3).random((B, T, T)) < 0.6
    pairs[0, 2] = False  # one query sees nothing
    masks = {"mask": MASK, "attention_mask": pairs} if masked else {}
    assert_equals_reference(x, {**heads, "causal": causal, "position": part()}, **masks)


@every_part
@both_directions
@pytest.mark.parametrize("heads", [3, 1], ids=["of each head", "of all heads"])
def test_a_bias_of_the_call_is_added_to_that_of_the_part(x, part, causal, heads):
    bias = np.random.default_rng(5).normal(size=(1, heads, T, T))
    options = {"num_heads": 3, "head_dim": 5, "causal": causal, "position": part()}
    assert_equals_reference(x, options, attention_bias=bias.astype("float32"))


@every_part
@pytest.mark.parametrize("mode", MODES)
def test_eager_graph_and_xla_agree(x, part, mode):
    options = {"num_heads": 2, "causal": True, "position": part()}
    layer = built(MultiHeadSelfAttention(**options), x.shape)
    assert_close(execute(mode, layer, x), expected_self_attention(layer, x, **options), FLOAT32)


@every_part
@pytest.mark.parametrize("mode", ["eager", pytest.param("graph", marks=tensorflow_only)])
def test_lengths_may_be_unknown(x, part, mode):
    layer = MultiHeadSelfAttention(2, position=part())
    inputs = keras.Input((None, D))
    model = keras.Model(inputs, layer(inputs))
    randomize(layer)
    for length in (T, 3):
        assert_close(execute(mode, model, x[:, :length]), layer(x[:, :length]), FLOAT32)


@every_part
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_equals_the_float64_reference(x, part, dtype):
    options = {"num_heads": 2, "position": part(), "dtype": dtype}
    layer = built(MultiHeadSelfAttention(**options), x.shape)
    # Bfloat16 rounds at 4e-3, six times in a row, of values of both signs; float16 at 5e-4.
    tolerance = {"mixed_bfloat16": 3e-2, "mixed_float16": 4e-3}[dtype]
    assert_close(layer(x), expected_self_attention(layer, x, **options), tolerance)


@every_part
def test_float16_activations_of_1e3_are_finite_and_right(x, part):
    options = {"num_heads": 2, "position": part(), "dtype": "mixed_float16"}
    layer = built(MultiHeadSelfAttention(**options), x.shape)
    # Scores are near 1e6, so that each row has a winner; its value is rounded at 5e-4 three times.
    expected = expected_self_attention(layer, 1e3 * x, **options)
    assert_close(layer(1e3 * x), expected, 5e-3)


@every_part
@both_directions
@pytest.mark.parametrize(("batch", "length"), [(0, T), (B, 0), (1, 1)])
def test_short_and_empty_inputs(x, part, causal, batch, length):
    options = {"num_heads": 2, "position": part(), "causal": causal}
    layer = built(MultiHeadSelfAttention(**options), x.shape)
    x = x[:batch, :length]
    wanted = np.zeros(x.shape) if 0 in x.shape else expected_self_attention(layer, x, **options)
    assert_close(layer(x), wanted, FLOAT32)


@every_part
@every_head
@pytest.mark.parametrize("steps", [[1] * 7, [3, 1, 2, 1]], ids=["ones", "prefill"])
def test_stepped_equals_full(x, part, heads, steps):
    layer = MultiHeadSelfAttention(**heads, causal=True, position=part())
    built(layer, x.shape)
    actual = stepped(lambda start, end: layer(x[:, start:end]), steps)
    assert_close(actual, layer(x), FLOAT32)


# T5


@both_directions
@pytest.mark.parametrize(("num_buckets", "reach"), [(32, 128), (8, 16), (64, 256), (12, 7)])
def test_buckets_are_those_of_t5(causal, num_buckets, reach):
    part = RelativePositionBias(num_buckets, reach)
    distances = np.arange(-200, 201)
    expected = [rp.t5_bucket(int(d), causal, num_buckets, reach) for d in distances]
    np.testing.assert_array_equal(part.buckets(distances, causal), expected)


def test_buckets_by_hand():
    """T5's own numbers, 32 buckets to 128: one a distance up to 15 (7), then ever wider."""
    part = RelativePositionBias()

    def buckets(causal, *distances):
        return part.buckets(np.array(distances), causal).tolist()

    assert buckets(True, 0, -1, -15, -16, -18, -19, -32, -127, -128, -5000) == [
        0, 1, 15, 16, 16, 17, 21, 31, 31, 31
    ]  # fmt: skip
    assert buckets(True, 1, 100) == [0, 0]  # after the query: masked anyway
    assert buckets(False, 0, -1, -7, -8, -11, -12, -16, -64, -128) == [
        0, 1, 7, 8, 8, 9, 10, 14, 15
    ]  # fmt: skip
    assert buckets(False, 1, 7, 8, 12, 16, 64, 128) == [17, 23, 24, 25, 26, 30, 31]


@both_directions
def test_t5_bias_is_that_of_every_pair(causal):
    part = RelativePositionBias(num_buckets=8, max_distance=5)
    layer = built(MultiHeadSelfAttention(3, causal=causal, position=part), (B, T, 12))
    query = np.zeros((B, 3, 11, 4), "float32")
    terms = terms_of(part, query, 2 + np.arange(11), np.arange(13), causal)
    expected = rp.t5_bias(layer.position.table, 11, 13, causal, 5, start=2)
    np.testing.assert_array_equal(to_numpy(terms.bias), expected[None])
    assert (terms.scores, terms.values) == (None, None)


def test_t5_bias_is_not_scaled(x):
    """A constant 5 in one bucket, queries of 0: the weights are softmax(5, 0, ...) whatever K."""
    part = RelativePositionBias(num_buckets=8, max_distance=5)
    layer = built(MultiHeadSelfAttention(2, position=part, scale=0.01), x.shape)
    kernel, bias = (to_numpy(v).copy() for v in layer.query_key_value.trainable_variables)
    kernel[:, :D] = bias[:D] = 0.0
    layer.query_key_value.set_weights([kernel, bias])
    table = np.zeros((8, 2))
    table[0] = 5.0  # distance 0
    part.table.assign(table)
    value = x @ kernel[:, 2 * D :] + bias[2 * D :]
    own = np.exp(5.0) / (np.exp(5.0) + T - 1)
    mixed = own * value + (1 - own) / (T - 1) * (value.sum(axis=1, keepdims=True) - value)
    output = layer.output_projection
    expected = mixed @ to_numpy(output.kernel) + to_numpy(output.bias)
    assert_close(layer(x), expected, FLOAT32)


def shared_stack(part):
    """A model of two blocks, one part between them."""
    inputs = keras.Input((None, 6))
    y = encoder_block(5, 2, position=part)(inputs)
    return keras.Model(inputs, encoder_block(5, 2, position=part)(y))


def parts_of(model):
    return [
        layer.self_attention.position
        for layer in model.layers
        if isinstance(layer, TransformerEncoderBlock)
    ]


LEARNED = {name: PARTS[name] for name in ("T5", "Shaw")}
every_learned_part = pytest.mark.parametrize("part", LEARNED.values(), ids=LEARNED)


@every_learned_part
def test_a_shared_part_has_one_table_that_both_layers_use(part):
    part = part()
    model = randomize(shared_stack(part))
    tables = [w for w in model.trainable_weights if "table" in w.path]
    assert len(tables) == len(part.trainable_weights)
    assert all(
        any(table is weight for weight in layer.trainable_weights)
        for layer in model.layers[1:]
        for table in tables
    )
    x = np.random.default_rng(1).normal(size=(B, T, 6)).astype("float32")
    between = keras.Model(model.input, model.layers[1].output)
    before = to_numpy(between(x)), to_numpy(model(x))
    for table in tables:
        table.assign(-to_numpy(table))
    assert np.abs(to_numpy(between(x)) - before[0]).max() > 1e-2
    # The second block too: given what the first one gave before, it now gives something else.
    after = model.layers[2](before[0])
    assert np.abs(to_numpy(after) - before[1]).max() > 1e-2


@saving
@every_learned_part
def test_a_shared_part_is_still_shared_after_a_keras_file(part, tmp_path):
    model = randomize(shared_stack(part()))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    x = np.random.default_rng(1).normal(size=(B, T, 6)).astype("float32")
    assert_close(loaded(x), model(x), 0.0)
    first, second = parts_of(loaded)
    assert first is second
    assert len(loaded.weights) == len(model.weights)


@saving
@every_learned_part
def test_weights_of_a_shared_part_can_be_saved_alone(part, tmp_path):
    model, other = (randomize(shared_stack(part()), seed) for seed in (0, 1))
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    x = np.random.default_rng(1).normal(size=(B, T, 6)).astype("float32")
    assert_close(other(x), model(x), 0.0)


@every_learned_part
@pytest.mark.parametrize("how", ["clone_model", "from_config", "one layer"])
def test_a_copy_of_single_layers_that_share_a_part_is_refused(part, how):
    """Keras copies the layers of a `keras.Model` one by one: a copy would have a table for each."""
    model = shared_stack(part())
    with pytest.raises(ValueError, match=r"position '.*' is shared by several layers, .*Model"):
        if how == "clone_model":
            keras.models.clone_model(model)
        elif how == "from_config":
            keras.Model.from_config(model.get_config())
        else:
            attention = model.layers[1].self_attention
            type(attention).from_config(attention.get_config())


def test_layers_with_a_part_of_their_own_or_without_weights_are_copied():
    inputs = keras.Input((None, 6))
    rotary = RotaryEmbedding(rotary_dim=2)
    y = encoder_block(5, 2, position=rotary)(inputs)
    y = encoder_block(5, 2, position=rotary)(y)
    y = encoder_block(5, 2, position=RelativePositionBias())(y)
    model = keras.Model(inputs, y)
    assert len(keras.models.clone_model(model).weights) == len(model.weights)


def test_t5_heads_must_agree_where_a_part_is_shared():
    part = RelativePositionBias(name="bias")
    MultiHeadSelfAttention(2, position=part).build((B, T, 6))
    with pytest.raises(ValueError, match="bias is shared by layers of 2 and 3 heads"):
        MultiHeadSelfAttention(3, position=part).build((B, T, 6))


@pytest.mark.parametrize(
    "widths",
    [{"head_dim": 5}, {"head_dim": 3, "value_dim": 5}],
    ids=["head_dim", "value_dim"],
)
def test_shaws_widths_must_agree_where_a_part_is_shared(widths):
    part = RelativePositionEmbedding(max_distance=3, name="vectors")
    MultiHeadSelfAttention(2, head_dim=3, position=part).build((B, T, 6))
    with pytest.raises(ValueError, match=r"vectors is shared by layers .*3.*5"):
        MultiHeadSelfAttention(2, **widths, position=part).build((B, T, 6))


@pytest.mark.parametrize(("num_buckets", "causal"), [(2, True), (4, False)])
def test_the_fewest_buckets(num_buckets, causal):
    """One for distance 0, one for all others, of each direction."""
    distances = np.array([-3, -1, 0, 1, 3])
    expected = [1, 1, 0, 0, 0] if causal else [1, 1, 0, 3, 3]
    np.testing.assert_array_equal(t5_buckets(distances, num_buckets, 9, causal), expected)
    with pytest.raises(ValueError, match=f"num_buckets must be at least {num_buckets}"):
        t5_buckets(distances, num_buckets - 1, 9, causal)


@pytest.mark.parametrize(
    ("num_buckets", "max_distance"), [(0, 128), (1, 128), (-4, 5), (8, 2), (32, 8)]
)
def test_impossible_buckets_are_refused(num_buckets, max_distance):
    name, value = (
        ("num_buckets", num_buckets) if num_buckets < 2 else ("max_distance", max_distance)
    )
    with pytest.raises(ValueError, match=f"{name} must be .*, got {value}"):
        RelativePositionBias(num_buckets, max_distance)


@pytest.mark.parametrize(
    ("num_buckets", "max_distance", "causal", "least"),
    [(2, 128, False, 4), (3, 128, False, 4), (32, 16, True, 2), (8, 3, True, 2)],
)
def test_buckets_that_t5_cannot_divide_are_refused_when_called(
    x, num_buckets, max_distance, causal, least
):
    part = RelativePositionBias(num_buckets, max_distance)
    message = (
        f"num_buckets must be at least {least} and max_distance more than .*, "
        f"got {num_buckets} and {max_distance}"
    )
    with pytest.raises(ValueError, match=message):
        MultiHeadSelfAttention(2, causal=causal, position=part)(x)


@keras.saving.register_keras_serializable("tests")
def near_and_far(distances, num_buckets, max_distance, causal):
    return np.where(np.abs(distances) < max_distance, np.abs(distances) % num_buckets, 0)


@saving
def test_a_bucket_function_of_ones_own(x, tmp_path):
    part = RelativePositionBias(3, 5, bucket_function=near_and_far)
    layer = built(MultiHeadSelfAttention(2, position=part), x.shape)
    places = np.arange(T)
    terms = terms_of(part, np.zeros((1, 2, T, 3), "float32"), places, places)
    buckets = near_and_far(places[None, :] - places[:, None], 3, 5, False)
    expected = np.transpose(to_numpy(part.table)[buckets], (2, 0, 1))
    np.testing.assert_array_equal(to_numpy(terms.bias), expected[None])
    inputs = keras.Input(x.shape[1:])
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    assert_close(keras.saving.load_model(tmp_path / "model.keras")(x), model(x), 0.0)


# Shaw


def test_shaw_by_hand():
    """One head of width 1, two positions, queries and keys 1, values 2 and 4.

    a^K is ln 3 at distance -1 and 0 elsewhere, a^V is 10 there: the second query has scores
    1 + ln 3 and 1, weights 3/4 and 1/4, and gets 3/4 (2 + 10) + 1/4 4 = 10; the first 1/2 (2 + 4).
    """
    part = RelativePositionEmbedding(max_distance=1)
    layer = MultiHeadSelfAttention(1, position=part, use_bias=False)
    x = np.array([[[2.0], [4.0]]], "float32")
    layer.build(x.shape)
    part.key_table.assign([[np.log(3.0)], [0.0], [0.0]])
    part.value_table.assign([[10.0], [0.0], [0.0]])
    layer.query_key_value.kernel.assign([[0.0, 0.0, 1.0]])
    layer.output_projection.kernel.assign([[1.0]])
    query_key_bias = MultiHeadSelfAttention(1, position=part)
    query_key_bias.build(x.shape)
    query_key_bias.query_key_value.set_weights([np.array([[0.0, 0.0, 1.0]]), np.array([1.0, 1, 0])])
    query_key_bias.output_projection.set_weights([np.ones((1, 1)), np.zeros(1)])
    # Some five roundings of 6e-8 of 10.
    assert_close(query_key_bias(x), [[[3.0], [10.0]]], 1e-6)
    # Queries of 0 see every key alike, but the vectors of the values stay: 1/2 (2 + 10) + 1/2 4.
    assert_close(layer(x), [[[3.0], [8.0]]], 1e-6)


@both_directions
@every_head
def test_shaws_vectors_are_scaled_with_the_keys(x, causal, heads):
    """Equation 4: e_ts = q (k + a), times whatever the scale is."""
    part = RelativePositionEmbedding(max_distance=3)
    assert_equals_reference(x, {**heads, "causal": causal, "position": part, "scale": 0.3})


@both_directions
def test_shaws_vectors_are_within_the_soft_cap(x, causal):
    part = RelativePositionEmbedding(max_distance=3)
    options = {"num_heads": 2, "causal": causal, "position": part, "soft_cap": 1.5}
    assert_equals_reference(x, options)


def test_shaws_vectors_are_added_to_normalised_keys(x):
    part = RelativePositionEmbedding(max_distance=3)
    assert_equals_reference(x, {"num_heads": 2, "position": part, **head_norms()})


def test_shaws_values_follow_the_weights_after_dropout(x):
    """A dropped weight takes the vector of its distance with it."""
    keras.utils.set_random_seed(3)  # before the layer, which draws its seed when it is made
    part = RelativePositionEmbedding(max_distance=3)
    layer = built(MultiHeadSelfAttention(2, position=part, dropout=0.9, use_bias=False), x.shape)
    y = to_numpy(layer(x, training=True))
    # 14 queries of 2 heads, 7 keys each: 0.9^14 = 0.23 of the queries lose every key.
    nothing = np.all(y == 0.0, axis=-1)
    assert 0 < nothing.sum() < nothing.size


WITH_WEIGHTS = {name: PARTS[name] for name in PARTS if name.startswith(("T5", "Shaw", "DeB"))}


@tensorflow_only
@both_directions
@pytest.mark.parametrize("part", WITH_WEIGHTS.values(), ids=WITH_WEIGHTS)
def test_tables_learn_as_finite_differences_of_the_reference_say(x, part, causal):
    options = {"num_heads": 2, "causal": causal, "position": part()}
    layer = built(MultiHeadSelfAttention(**options), x.shape)
    rng = np.random.default_rng(9)
    weighting = rng.normal(size=x.shape)
    tables = layer.position.trainable_variables

    def loss():
        return ops.sum(weighting.astype("float32") * layer(x, mask=MASK))

    of_tables, _ = gradients(loss, tables)
    for table, gradient in zip(tables, of_tables, strict=True):
        value, direction = to_numpy(table), rng.normal(size=table.shape)
        direction /= np.linalg.norm(direction)
        losses = []
        for step in (1e-2, -1e-2):  # of float32 tables, which round at 6e-8
            table.assign(value + step * direction)
            taken = (to_numpy(table) - value).ravel() @ direction.ravel()
            y = expected_self_attention(layer, x, **options, mask=MASK)
            losses.append((taken, np.sum(weighting * y)))
        table.assign(value)
        (a, high), (b, low) = losses
        # A central difference with steps of 1e-2 is off by 1e-4 of third derivatives.
        assert_close(np.sum(to_numpy(gradient) * direction), (high - low) / (a - b), 1e-3)


@pytest.mark.parametrize("max_distance", [0, -3])
def test_impossible_distances_are_refused(max_distance):
    with pytest.raises(ValueError, match=f"max_distance must be at least 1, got {max_distance}"):
        RelativePositionEmbedding(max_distance)


# ALiBi


@pytest.mark.parametrize(
    ("num_heads", "slopes"),
    [
        # Section 3 of the paper: 1/2 to 1/2^8.
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),
        # As the authors' code gives: those of 8 heads, then 1/sqrt(2) and every quarter of it.
        (12, [*(2.0**-h for h in range(1, 9)), *(2.0 ** -(h - 0.5) for h in range(1, 5))]),
        # Those of 4 heads, then the first of 8.
        (5, [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2]),
        (1, [1 / 256]),
        (2, [1 / 16, 1 / 256]),
        (3, [1 / 16, 1 / 256, 1 / 4]),
    ],
)
def test_alibi_slopes_are_the_published_ones(num_heads, slopes):
    np.testing.assert_allclose(ALiBi.slopes(num_heads), slopes, rtol=1e-15)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 5, 6, 7, 8, 12, 16, 20, 31, 64])
def test_alibi_slopes_equal_the_reference(num_heads):
    np.testing.assert_allclose(ALiBi.slopes(num_heads), rp.alibi_slopes(num_heads), rtol=1e-15)


def test_alibi_biases_by_hand():
    actual = terms_of(ALiBi(), np.zeros((1, 2, 3, 4), "float32"), [5, 6, 7], [5, 6]).bias
    slopes = np.array([1 / 16, 1 / 256])[:, None, None]
    expected = -slopes * np.array([[0, 1], [1, 0], [2, 1]])
    np.testing.assert_array_equal(to_numpy(actual), expected)


def test_alibi_is_exact_far_away():
    """Distances of 100,000 in float32; in bfloat16 they would be off by 200."""
    part = ALiBi(dtype="mixed_bfloat16")
    query = ops.zeros((1, 2, 1, 4), "bfloat16")
    actual = terms_of(part, query, [100_001], [2, 0], causal=True).bias
    expected = -np.array([[[99_999 / 16, 100_001 / 16]], [[99_999 / 256, 100_001 / 256]]])
    np.testing.assert_array_equal(to_numpy(actual), expected)


# Configuration


@saving
@every_part
def test_a_keras_file_holds_the_part(x, part, tmp_path):
    layer = MultiHeadSelfAttention(2, causal=True, position=part())
    inputs = keras.Input((T, D))
    model = keras.Model(inputs, layer(inputs))
    randomize(layer)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    again = loaded.layers[-1].position
    assert type(again) is type(layer.position)
    assert again.get_config() == layer.position.get_config()
    assert_close(loaded(x), model(x), 0.0)


@every_learned_part
def test_names_of_weights_are_unique_and_tell_the_part(part):
    layer = MultiHeadSelfAttention(2, position=part(), name="attend")
    layer.build((B, T, D))
    paths = [weight.path for weight in layer.weights]
    assert len(set(paths)) == len(paths)
    assert all(path.startswith("attend/") for path in paths)


@pytest.mark.parametrize("part", LEARNED.values(), ids=LEARNED)
def test_tables_start_as_their_initializer_says(part):
    config = {**part().get_config(), "initializer": keras.initializers.Constant(0.25)}
    layer = MultiHeadSelfAttention(2, position=type(part()).from_config(config))
    layer.build((B, T, D))
    for table in layer.position.weights:
        np.testing.assert_array_equal(table, np.full(table.shape, 0.25, "float32"))


def test_values_of_a_token_at_the_positions_of_all_rows():
    """Positions (1, 1): TensorFlow's product of (B, 1, H, S) and (1, 1, S, V) is out of bounds."""
    rng = np.random.default_rng(3)
    rows, keys = np.array([[[3, 0, 6, 2, 5, 1, 4, 3]]]), 8
    layer = RelativePositionEmbedding(3, values=True)
    layer.build_for(8, 8, 9)
    weights = rng.random((5, 8, 1, keys)).astype("float32")
    expected = np.einsum("bhts,tsv->bhtv", weights, to_numpy(layer.value_table)[rows[0]])
    assert_close(layer._values(weights, rows=rows), expected, 1e-5)  # sums of 8 terms
