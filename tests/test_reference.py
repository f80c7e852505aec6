"""The reference itself, against answers worked out by hand and against torch.nn.Transformer.

`parity/make_torch_fixture.py` made the values of the latter.
"""

import math

import numpy as np
import pytest
import reference
import torch_weights

# Float64 throughout: two orders of summation differ by some 1e-15 of values of 1 to 100, and five
# layers in a row amplify that by less than a thousand.
EXACT = {"rtol": 0.0, "atol": 1e-12}
PARITY = {"rtol": 0.0, "atol": 1e-10}


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.fixture(scope="module")
def fixture():
    return torch_weights.fixture()


# Positions


def test_positional_encoding_by_hand():
    expected = [
        [0.0, 1.0, 0.0, 1.0],
        [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)],
        [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)],
    ]
    np.testing.assert_allclose(reference.positional_encoding(3, 4), expected, **EXACT)
    # The same in digits, so that no formula is shared.
    np.testing.assert_allclose(
        reference.positional_encoding(3, 4)[2],
        [0.9092974268, -0.4161468365, 0.0199986667, 0.9998000067],
        rtol=0.0,
        atol=1e-10,  # ten digits were written down
    )


def test_positional_encoding_of_odd_width_ends_in_a_sine():
    # w^(2/D) = 8^(2/3) = 4.
    actual = reference.positional_encoding(2, 3, max_wavelength=8.0, start=5)
    expected = [[math.sin(p), math.cos(p), math.sin(p / 4)] for p in (5, 6)]
    np.testing.assert_allclose(actual, expected, **EXACT)


def test_positional_encoding_of_a_shifted_position_is_a_rotation():
    shift, w = 3, 10000.0
    here = reference.positional_encoding(7, 6)
    there = reference.positional_encoding(7, 6, start=shift)
    for pair, column in enumerate((0, 2, 4)):
        angle = shift / w ** (2 * pair / 6)
        rotation = [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
        np.testing.assert_allclose(
            there[:, column : column + 2],
            here[:, column : column + 2] @ np.transpose(rotation),
            **EXACT,
        )


# Elementwise functions and norms


def test_activations_by_hand():
    np.testing.assert_array_equal(reference.relu(np.array([-2.0, 0.0, 3.0])), [0.0, 0.0, 3.0])
    # x Phi(x) with Phi(1) = 0.8413447461 from a table of the normal distribution; the tanh
    # approximation would give 0.8411919906.
    np.testing.assert_allclose(
        reference.gelu([-1.0, 0.0, 1.0]), [-0.1586552539, 0.0, 0.8413447461], rtol=0.0, atol=1e-10
    )


def test_softmax_by_hand():
    # 1000 overflows exp unless the largest entry is subtracted.
    scores = np.array([[0.0, math.log(3)], [1000.0, 1000.0]])
    np.testing.assert_allclose(reference.softmax(scores), [[0.25, 0.75], [0.5, 0.5]], **EXACT)


def test_layer_norm_by_hand():
    # Mean 2, variance 1 (over D, not D - 1), epsilon 3 inside the root: +-1 / sqrt(1 + 3).
    actual = reference.layer_norm(
        np.array([[1.0, 3.0]]), gamma=np.array([2.0, 4.0]), beta=np.array([10.0, 20.0]), epsilon=3.0
    )
    np.testing.assert_allclose(actual, [[9.0, 22.0]], **EXACT)


# Attention

QUERY = np.array([[2 * math.log(3), 0.0, 0.0, 0.0]])
KEY = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
VALUE = np.array([[4.0, 0.0], [0.0, 8.0]])


@pytest.mark.parametrize(
    ("mask", "scale", "expected"),
    [
        # Scores 2 ln 3 and 0 over sqrt(4): weights 3/4 and 1/4.
        (None, None, [[3.0, 2.0]]),
        ([[True, True]], None, [[3.0, 2.0]]),
        # Scores 2 ln 3 and 0: weights 9/10 and 1/10.
        (None, 1.0, [[3.6, 0.8]]),
        ([[True, False]], None, [[4.0, 0.0]]),
        ([[False, True]], None, [[0.0, 8.0]]),
        ([[False, False]], None, [[0.0, 0.0]]),
    ],
)
def test_attention_by_hand(mask, scale, expected):
    actual = reference.attention(QUERY, KEY, VALUE, mask=mask, scale=scale)
    np.testing.assert_allclose(actual, expected, **EXACT)


def test_attention_refuses_a_float_mask():
    with pytest.raises(TypeError, match="mask must be boolean, True = attend, but its dtype is"):
        reference.attention(QUERY, KEY, VALUE, mask=np.array([[0.0, -1e9]]))


def test_attention_broadcasts_a_key_mask_over_queries(rng):
    query, key, value = (rng.normal(size=shape) for shape in ((2, 3, 5), (2, 7, 5), (2, 7, 11)))
    key_mask = np.arange(7) < np.array([[4], [6]])
    actual = reference.attention(query, key, value, key_mask[:, np.newaxis, :])
    for row, length in enumerate((4, 6)):  # a masked key might as well not be there
        expected = reference.attention(query[row], key[row, :length], value[row, :length])
        np.testing.assert_allclose(actual[row], expected, **EXACT)


def attention_weights(rng, dim, context_dim, num_heads, num_key_value_heads, head_dim):
    shapes = {
        "query": (dim, num_heads * head_dim),
        "key": (context_dim, num_key_value_heads * head_dim),
        "value": (context_dim, num_key_value_heads * head_dim),
        "output": (num_heads * head_dim, dim),
    }
    weights = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    return weights | {f"{name}_bias": rng.normal(size=shapes[name][1]) for name in shapes}


def test_multi_head_attention_by_hand():
    # K = 1, and identity projections: head 0 sees the first column, head 1 the second.
    identity = {name: np.eye(2) for name in ("query", "key", "value", "output")}
    x = np.array([[[math.log(3), math.log(2)]]])
    context = np.array([[[1.0, 1.0], [0.0, 2.0]]])
    # Head 0: scores ln 3 and 0, weights 3/4, 1/4, values 1, 0 -> 3/4.
    # Head 1: scores ln 2 and 2 ln 2, weights 1/3, 2/3, values 1, 2 -> 5/3.
    actual = reference.multi_head_attention(x, context, identity, num_heads=2)
    np.testing.assert_allclose(actual, [[[3 / 4, 5 / 3]]], **EXACT)
    # One head with K = 2: scores ln 3 + ln 2 and 2 ln 2, each over sqrt(2).
    first, second = 6 ** (1 / math.sqrt(2)), 4 ** (1 / math.sqrt(2))
    expected = [first / (first + second), (first + 2 * second) / (first + second)]
    actual = reference.multi_head_attention(x, context, identity, num_heads=1)
    np.testing.assert_allclose(actual, [[expected]], **EXACT)


def test_multi_head_attention_biases_by_hand():
    # A zero context: keys are the key bias, alike, so that weights are uniform and each value is
    # the value bias. The output is value_bias @ output + output_bias.
    weights = {
        "query": np.zeros((3, 2)),
        "query_bias": np.array([5.0, -7.0]),
        "key": np.zeros((1, 2)),
        "key_bias": np.array([2.0, 3.0]),
        "value": np.zeros((1, 2)),
        "value_bias": np.array([1.0, 10.0]),
        "output": np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 2.0]]),
        "output_bias": np.array([0.1, 0.2, 0.3]),
    }
    actual = reference.multi_head_attention(np.zeros((1, 1, 3)), np.zeros((1, 5, 1)), weights, 2)
    np.testing.assert_allclose(actual, [[[1.1, 10.2, 22.3]]], **EXACT)
    # Without a key to see the heads are zeros and the output bias is what is left.
    nothing = np.zeros((1, 1, 5), dtype=bool)
    actual = reference.multi_head_attention(
        np.zeros((1, 1, 3)), np.zeros((1, 5, 1)), weights, 2, mask=nothing
    )
    np.testing.assert_allclose(actual, [[[0.1, 0.2, 0.3]]], **EXACT)


def test_grouped_heads_by_hand():
    # One key: each head returns its value. Four query heads, two value heads: 0, 0, 1, 1.
    weights = {
        "query": np.ones((1, 4)),
        "key": np.ones((2, 2)),
        "value": np.eye(2),
        "output": np.eye(4),
    }
    context = np.array([[[3.0, 5.0]]])
    actual = reference.multi_head_attention(np.ones((1, 1, 1)), context, weights, num_heads=4)
    np.testing.assert_allclose(actual, [[[3.0, 3.0, 5.0, 5.0]]], **EXACT)


def test_values_may_be_wider_than_keys_by_hand():
    # K = 1, two columns of value a head. One key: each head returns its two columns, in order.
    weights = {
        "query": np.ones((1, 2)),
        "key": np.ones((4, 2)),
        "value": np.eye(4),
        "output": np.eye(4),
    }
    context = np.array([[[3.0, 5.0, 7.0, 11.0]]])
    actual = reference.multi_head_attention(np.ones((1, 1, 1)), context, weights, num_heads=2)
    np.testing.assert_allclose(actual, [[[3.0, 5.0, 7.0, 11.0]]], **EXACT)


def test_grouped_heads_are_full_heads_with_repeated_keys_and_values(rng):
    x, context = rng.normal(size=(2, 5, 13)), rng.normal(size=(2, 7, 11))
    mask = rng.random(size=(2, 5, 7)) < 0.7
    head_dim = 3
    grouped = attention_weights(rng, 13, 11, num_heads=4, num_key_value_heads=2, head_dim=head_dim)
    full = dict(grouped)
    for name in ("key", "key_bias", "value", "value_bias"):
        first, second = grouped[name][..., :head_dim], grouped[name][..., head_dim:]
        full[name] = np.concatenate([first, first, second, second], axis=-1)
    actual = reference.multi_head_attention(x, context, grouped, 4, mask)
    expected = reference.multi_head_attention(x, context, full, 4, mask)
    np.testing.assert_allclose(actual, expected, **EXACT)


# Feed-forward and blocks


def test_feed_forward_by_hand():
    weights = {
        "inner": np.array([[1.0, -1.0, 2.0], [0.0, 1.0, 1.0]]),
        "inner_bias": np.array([0.0, 0.5, -9.0]),
        "outer": np.array([[1.0, 0.0], [10.0, 1.0], [100.0, 1.0]]),
        "outer_bias": np.array([0.25, -1.0]),
    }
    # x = (2, 3): inner (2, 1, 7) + bias = (2, 1.5, -2), relu (2, 1.5, 0).
    actual = reference.feed_forward(np.array([[2.0, 3.0]]), weights, reference.relu)
    np.testing.assert_allclose(actual, [[17.25, 0.5]], **EXACT)
    # Without the activation: the same with -2 left in.
    actual = reference.feed_forward(np.array([[2.0, 3.0]]), weights, lambda x: x)
    np.testing.assert_allclose(actual, [[-182.75, -1.5]], **EXACT)


def block_weights(rng, dim, context_dim, num_heads, intermediate_dim):
    def norm():
        return {"gamma": 1.0 + 0.3 * rng.normal(size=dim), "beta": 0.3 * rng.normal(size=dim)}

    head_dim = 3
    heads = {"num_heads": num_heads, "num_key_value_heads": num_heads, "head_dim": head_dim}
    return {
        "self_attention": attention_weights(rng, dim, dim, **heads),
        "self_attention_norm": norm(),
        "cross_attention": attention_weights(rng, dim, context_dim, **heads),
        "cross_attention_norm": norm(),
        "feed_forward": {
            "inner": rng.normal(size=(dim, intermediate_dim)),
            "inner_bias": rng.normal(size=intermediate_dim),
            "outer": rng.normal(size=(intermediate_dim, dim)),
            "outer_bias": rng.normal(size=dim),
        },
        "feed_forward_norm": norm(),
    }


@pytest.mark.parametrize("normalize_first", [False, True])
def test_decoder_block_drops_what_self_mask_hides(rng, normalize_first):
    """Blocks number no positions: a masked key might as well not be in the sequence."""
    weights = block_weights(rng, dim=5, context_dim=11, num_heads=2, intermediate_dim=13)
    x, context = rng.normal(size=(1, 7, 5)), rng.normal(size=(1, 3, 11))
    seen = np.array([True, True, False, True, False, True, True])
    options = {"num_heads": 2, "normalize_first": normalize_first}
    actual = reference.decoder_block(x, context, weights, self_mask=seen[None, None, :], **options)
    expected = reference.decoder_block(x[:, seen], context, weights, **options)
    np.testing.assert_allclose(actual[:, seen], expected, **EXACT)


def test_decoder_block_without_context_is_a_causal_encoder_block(rng):
    weights = block_weights(rng, dim=5, context_dim=11, num_heads=2, intermediate_dim=13)
    x = rng.normal(size=(2, 7, 5))
    causal = np.tri(7, dtype=bool)
    actual = reference.decoder_block(x, None, weights, 2, activation=reference.gelu)
    expected = reference.encoder_block(x, weights, 2, mask=causal, activation=reference.gelu)
    np.testing.assert_allclose(actual, expected, **EXACT)


# The whole model


def test_transformer_without_layers_by_hand():
    # D = 4: embeddings times 2, plus the encoding of positions 0 and 1; no block, no norm.
    embedding = np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
    weights = {
        "source_embedding": np.zeros((2, 4)),
        "target_embedding": embedding,
        "output": np.eye(4),
        "encoder": [],
        "decoder": [],
    }
    actual = reference.transformer([[1, 1, 1]], [[1, 0]], weights, 1, False, 1e-5)
    expected = [
        [10.0, 12.0 + 1.0, 14.0, 16.0 + 1.0],
        [2.0 + math.sin(1), 4.0 + math.cos(1), 6.0 + math.sin(0.01), 8.0 + math.cos(0.01)],
    ]
    np.testing.assert_allclose(actual, [expected], **EXACT)
    # One matrix for all three where neither of the others is given.
    shared = {"source_embedding": embedding, "encoder": [], "decoder": []}
    actual = reference.transformer([[1, 1, 1]], [[1, 0]], shared, 1, False, 1e-5)
    np.testing.assert_allclose(actual, [np.array(expected) @ embedding.T], **EXACT)


@pytest.mark.parametrize("normalize_first", [False, True])
def test_transformer_sees_neither_padding_nor_the_future(rng, normalize_first):
    weights = {"source_embedding": rng.normal(size=(17, 5))}
    for stack in ("encoder", "decoder"):
        weights[stack] = [
            block_weights(rng, dim=5, context_dim=5, num_heads=2, intermediate_dim=13)
            for _ in range(2)
        ]

    def logits(source, target):
        return reference.transformer([source], [target], weights, 2, normalize_first, 1e-5)[0]

    expected = logits([3, 9, 4], [1, 7, 2, 11])
    np.testing.assert_allclose(logits([3, 9, 4, 0, 0], [1, 7, 2, 11]), expected, **EXACT)
    np.testing.assert_allclose(logits([3, 9, 4], [1, 7, 5, 13])[:2], expected[:2], **EXACT)
    np.testing.assert_allclose(logits([3, 9, 4], [1, 7, 2, 11, 0])[:4], expected, **EXACT)

    # Padding amid the target is no key either: what follows does not know its embedding.
    gap = logits([3, 9, 4], [1, 0, 2, 11])
    embedding, output = weights["source_embedding"], weights["source_embedding"].T
    target_embedding = np.concatenate([np.full((1, 5), 100.0), embedding[1:]])
    weights |= {"target_embedding": target_embedding, "output": output}
    np.testing.assert_allclose(logits([3, 9, 4], [1, 0, 2, 11])[2:], gap[2:], **EXACT)


# Training


def test_label_smoothed_cross_entropy_by_hand():
    # Probabilities 1/4, 1/2, 1/4, 0+ (a logit of -60 ln 2 adds 2^-60); the mass 0.4 is spread as
    # 0.1 a class: q = (0.1, 0.7, 0.1, 0.1).
    log2 = math.log(2)
    logits = log2 * np.array([-2.0, -1.0, -2.0, -60.0])
    expected = (0.1 * 2 + 0.7 * 1 + 0.1 * 2 + 0.1 * 60) * log2
    loss = reference.label_smoothed_cross_entropy([1], [logits], label_smoothing=0.4)
    assert loss == pytest.approx(expected, rel=1e-14)
    # Logits are not probabilities: a constant added to each changes nothing.
    loss = reference.label_smoothed_cross_entropy([1], [logits + 7.0], label_smoothing=0.4)
    assert loss == pytest.approx(expected, rel=1e-14)
    assert reference.label_smoothed_cross_entropy([1], [logits], 0.0) == pytest.approx(log2)
    assert reference.label_smoothed_cross_entropy([0], [logits], 0.0, ignore_class=None) == (
        pytest.approx(2 * log2)
    )


def test_label_smoothed_cross_entropy_averages_over_what_is_not_ignored():
    log2 = math.log(2)
    row = log2 * np.array([-2.0, -1.0, -2.0])
    labels, logits = [[1, 0], [2, 0]], np.broadcast_to(row, (2, 2, 3))
    loss = reference.label_smoothed_cross_entropy(labels, logits, 0.0)
    assert loss == pytest.approx((1 + 2) / 2 * log2, rel=1e-14)
    loss = reference.label_smoothed_cross_entropy(labels, logits, 0.0, ignore_class=2)
    assert loss == pytest.approx((1 + 2 + 2) / 3 * log2, rel=1e-14)
    assert reference.label_smoothed_cross_entropy([[0, 0]], logits[:1]) == 0.0


@pytest.mark.parametrize(
    ("step", "dim", "warmup_steps", "expected"),
    [
        (1, 4, 4, 0.0625),  # 1/2 * 1 * 1/8
        (2, 4, 4, 0.125),  # rises by the step
        (4, 4, 4, 0.25),  # 1/2 * 1/2: the two meet
        (16, 4, 4, 0.125),  # 1/2 * 1/4
        (4000, 512, 4000, 6.987712429686844e-4),  # 1 / sqrt(512 * 4000), the paper's base model
    ],
)
def test_transformer_schedule_by_hand(step, dim, warmup_steps, expected):
    assert reference.transformer_schedule(step, dim, warmup_steps) == pytest.approx(
        expected, rel=1e-14
    )


# torch.nn.Transformer


@pytest.mark.parametrize("case", ["post", "pre"])
def test_blocks_equal_torch(fixture, case):
    weights = torch_weights.transformer(fixture, case)
    num_heads, epsilon = int(fixture["num_heads"]), float(fixture["epsilon"])
    options = {"epsilon": epsilon, "normalize_first": case == "pre"}
    mask = fixture["source_mask"]

    context = fixture["source"]
    for block in weights["encoder"]:
        context = reference.encoder_block(context, block, num_heads, mask[:, None, :], **options)
    context = reference.layer_norm(context, **weights["encoder_norm"], epsilon=epsilon)
    np.testing.assert_allclose(context[mask], fixture[f"{case}/context"][mask], **PARITY)

    x = fixture["target"]
    for block in weights["decoder"]:
        x = reference.decoder_block(
            x, context, block, num_heads, context_mask=mask[:, None, :], **options
        )
    x = reference.layer_norm(x, **weights["decoder_norm"], epsilon=epsilon)
    np.testing.assert_allclose(x, fixture[f"{case}/output"], **PARITY)


@pytest.mark.parametrize("case", ["post", "pre"])
def test_transformer_equals_torch(fixture, case):
    """Ids all different, and embeddings such that times sqrt(D) plus PE they are torch's inputs."""

    def ids_and_embedding(x, mask):
        batch, length, dim = x.shape
        ids = np.where(mask, 1 + np.arange(batch * length).reshape(batch, length), 0)
        encoding = reference.positional_encoding(length, dim)
        embedding = np.full((1 + batch * length, dim), 100.0)  # a padded position holds no sense
        embedding[1:] = ((x - encoding) / math.sqrt(dim)).reshape(-1, dim)
        return ids, embedding

    source, source_embedding = ids_and_embedding(fixture["source"], fixture["source_mask"])
    everything = np.ones(fixture["target"].shape[:2], dtype=bool)
    target, target_embedding = ids_and_embedding(fixture["target"], everything)
    weights = torch_weights.transformer(fixture, case) | {
        "source_embedding": source_embedding,
        "target_embedding": target_embedding,
        "output": np.eye(fixture["target"].shape[-1]),
    }
    actual = reference.transformer(
        source,
        target,
        weights,
        num_heads=int(fixture["num_heads"]),
        normalize_first=case == "pre",
        epsilon=float(fixture["epsilon"]),
    )
    np.testing.assert_allclose(actual, fixture[f"{case}/output"], **PARITY)


def test_base_model_has_the_parameters_torch_counts(fixture):
    dim, intermediate_dim, num_layers = 512, 2048, 6
    attention = 4 * (dim * dim + dim)
    feed_forward = 2 * dim * intermediate_dim + intermediate_dim + dim
    norm = 2 * dim
    encoder = num_layers * (attention + feed_forward + 2 * norm) + norm
    decoder = num_layers * (2 * attention + feed_forward + 3 * norm) + norm
    assert encoder + decoder == fixture["base_parameter_count"] == 44_140_544
