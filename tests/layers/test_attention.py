import math

import numpy as np
import pytest
import reference
from compare import assert_close, to_numpy
from execution import EVERY_MODE, GRAPHS, compiled, execute, gradients, tensorflow_only
from keras import ops

from keras_tfm.layers import attention
from keras_tfm.layers.multi_head_attention.heads import merge_heads, split_heads
from keras_tfm.layers.target import current_target, export_target

# Float32 rounds at 6e-8 and sums here have at most 13 terms, of size 1.
FLOAT32 = 1e-6
# Bfloat16 rounds at 4e-3: queries, keys, scores, weights and output once each.
BFLOAT16 = 2e-2

B, H, T, S, K, V = 2, 4, 5, 7, 3, 11


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def random_arrays(rng, groups=H):
    shapes = (B, H, T, K), (B, groups, S, K), (B, groups, S, V)
    return tuple(rng.normal(size=shape).astype("float32") for shape in shapes)


def some_mask(rng, kind):
    """Half of the keys, at random; in the masks of pairs one row sees nothing."""
    if kind is None:
        return None
    shape = {"keys": (B, 1, 1, S), "pairs": (B, 1, T, S), "heads": (B, H, T, S), "one": (S,)}[kind]
    mask = rng.random(shape) < 0.5
    mask[..., 0] = True
    if len(shape) == 4 and shape[2] == T:
        mask[1, :, 2] = False
    return mask


# By hand: scores 2 ln 3 and 0 over sqrt(4), so weights 3/4 and 1/4.
QUERY = np.array([[[[2 * math.log(3), 0.0, 0.0, 0.0]]]], "float32")
KEY = np.array([[[[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]]], "float32")
VALUE = np.array([[[[4.0, 0.0], [0.0, 8.0]]]], "float32")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [3.0, 2.0]),
        ({"scale": 1.0}, [3.6, 0.8]),  # 9/10 and 1/10
        ({"bias": np.array([0.0, math.log(9)], "float32")}, [1.0, 6.0]),  # 3 : 9
        ({"mask": np.array([True, False])}, [4.0, 0.0]),
        ({"mask": np.array([False, False])}, [0.0, 0.0]),
        # A mask of integers, 1 = attend.
        ({"mask": np.array([0, 1])}, [0.0, 8.0]),
        # Dropout is of the weights: the first is taken out, the other stays 1/4.
        (
            {"dropout": lambda weights: ops.multiply(weights, np.array([0.0, 1.0], "float32"))},
            [0.0, 2.0],
        ),
    ],
)
def test_by_hand(options, expected):
    assert_close(attention(QUERY, KEY, VALUE, **options)[0, 0, 0], expected, FLOAT32)


def reference_of(query, key, value, mask=None, scale=None):
    """Each key head repeated for the query heads that read it."""
    key, value = (np.repeat(x, query.shape[1] // x.shape[1], axis=1) for x in (key, value))
    return reference.attention(query, key, value, mask, scale)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("kind", [None, "keys", "pairs", "heads", "one"])
def test_equals_the_float64_reference(rng, kind, groups, scale):
    arrays = random_arrays(rng, groups)
    mask = some_mask(rng, kind)
    actual = attention(*arrays, mask=mask, scale=scale)
    assert_close(actual, reference_of(*arrays, mask, scale), FLOAT32)


@pytest.mark.parametrize("mode", GRAPHS)
@pytest.mark.parametrize("groups", [4, 2])
def test_graph_and_xla_equal_the_reference(rng, groups, mode):
    arrays = random_arrays(rng, groups)
    mask = some_mask(rng, "pairs")
    actual = execute(mode, attention, *arrays, mask)
    assert_close(actual, reference_of(*arrays, mask), FLOAT32)


def test_bias_is_added_to_the_scaled_scores(rng):
    query, key, value = random_arrays(rng)
    # q k^T / sqrt(K) + b is the product of (q / sqrt(K), b) and (k, identity).
    bias = rng.normal(size=(H, T, S)).astype("float32")
    wide_query = np.concatenate([query / K**0.5, np.broadcast_to(bias, (B, H, T, S))], axis=-1)
    wide_key = np.concatenate([key, np.broadcast_to(np.eye(S), (B, H, S, S))], axis=-1)
    expected = reference.attention(wide_query, wide_key, value, scale=1.0)
    assert_close(attention(query, key, value, bias=bias), expected, FLOAT32)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("kind", [None, "keys", "pairs"])
def test_half_precision_equals_the_float64_reference(rng, kind, groups, dtype):
    arrays = [ops.cast(x, dtype) for x in random_arrays(rng, groups)]
    mask = some_mask(rng, kind)
    actual = attention(*arrays, mask=mask)
    # Float16 rounds at 5e-4, eight times finer.
    tolerance = {"bfloat16": BFLOAT16, "float16": BFLOAT16 / 8}[dtype]
    assert_close(actual, reference_of(*map(to_numpy, arrays), mask), tolerance)
    assert actual.dtype == arrays[2].dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_activations_of_1e3_are_finite_and_right(rng, dtype):
    """Scores reach 1e6, beyond float16, and one weight of each row is 1."""
    arrays = [ops.cast(1e3 * x, dtype) for x in random_arrays(rng)]
    expected = reference.attention(*map(to_numpy, arrays))
    assert_close(attention(*arrays), expected, BFLOAT16)


def test_the_mask_constant_fits_float16_on_a_device():
    with export_target("gpu-edge"):
        masked = current_target.get().masked_score
    assert np.isfinite(np.float16(masked))
    assert np.isfinite(np.float16(masked) - np.float16(3e4))  # with a score of 3e4 added
    assert np.exp(np.float32(masked)) == 0.0
    # Elsewhere scores are float32: beyond any of them, and finite.
    here = current_target.get().masked_score
    assert here < -1e20
    assert np.isfinite(np.float32(here))


@pytest.mark.parametrize(("dtype", "score"), [("bfloat16", 256.0), ("float16", 2048.0)])
def test_the_softmax_is_float32(dtype, score):
    """At this score the dtype's spacing is 2: a bias of 1/2 would be lost in it."""
    query = ops.cast(np.full((1, 1, 1, 1), score), dtype)
    key = ops.cast(np.ones((1, 1, 2, 1)), dtype)
    value = ops.cast([[[[1.0], [0.0]]]], dtype)
    actual = attention(query, key, value, bias=np.array([0.5, 0.0]), scale=1.0)
    assert_close(actual, [[[[1 / (1 + math.exp(-0.5))]]]], 4e-3)  # one rounding to bfloat16


@pytest.mark.parametrize("mode", EVERY_MODE)
@pytest.mark.parametrize("keys", [1, S])
@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_fully_masked_row_gives_zeros(rng, dtype, groups, keys, mode):
    query, key, value = (ops.cast(x, dtype) for x in random_arrays(rng, groups))
    mask = np.ones((B, 1, T, keys), bool)
    mask[1, :, 2] = False
    actual = execute(mode, attention, query, key[:, :, :keys], value[:, :, :keys], mask)
    rows = to_numpy(actual)
    np.testing.assert_array_equal(rows[1, :, 2], 0.0)
    assert np.all(np.any(rows != 0.0, axis=-1) == np.broadcast_to(mask.any(-1), (B, H, T)))


@tensorflow_only
@pytest.mark.parametrize("seen", [False, True])
def test_no_gradient_flows_through_a_masked_key(rng, seen):
    arrays = random_arrays(rng)
    mask = np.full((T, S), seen)
    mask[:, 3] = False
    _, grads = gradients(lambda *qkv: ops.sum(attention(*qkv, mask=mask) ** 2), [], *arrays)
    for x, hidden in zip(grads, (slice(None), slice(3, 4), slice(3, 4)), strict=True):
        assert np.all(np.isfinite(x))
        if not seen or x is not grads[0]:
            np.testing.assert_array_equal(x[:, :, hidden], 0.0)
        assert np.any(to_numpy(x) != 0.0) == seen


@pytest.mark.parametrize("mode", EVERY_MODE)
@pytest.mark.parametrize("real", [1.0, 1e3])
def test_a_masked_key_does_not_leak_however_large(rng, real, mode):
    """The mask constant is of 3e4; scores of activations near 1e3 are of 1e6."""
    query, key, value = random_arrays(rng)
    query, key = (real * x for x in (query, key))
    mask = np.arange(S) < 4
    loud = np.where(mask, 1.0, 1e5).astype("float32")[:, np.newaxis]
    expected = reference.attention(query, key, value, mask)
    actual = execute(mode, attention, query, loud * key, loud * value, mask)
    # Scores of 1e6 are known to 0.1 only, but one is ahead by far more in each row of this seed.
    assert_close(actual, expected, FLOAT32)


@tensorflow_only
def test_a_mask_is_not_added_in_a_graph():
    """TensorFlow would hand product, scale and sum to one oneDNN kernel, which broadcasts a mask of
    (1, 1, T, S) a hundred times slower than the three take."""
    query, mask = ops.ones((2, 3, 5, 4)), np.tri(5, dtype=bool)[None, None]
    function = compiled("graph", lambda x: attention(x, x, x, mask=mask))
    operators = [x.type for x in function.get_concrete_function(query).graph.get_operations()]
    assert {"SelectV2", "BatchMatMulV2", "Softmax"} <= set(operators)
    assert not {"Add", "AddV2", "BiasAdd"} & set(operators)


def test_key_heads_must_divide_query_heads():
    query, key = np.ones((1, 4, 2, 3), "float32"), np.ones((1, 3, 2, 3), "float32")
    message = r"number of key heads \(3\) must divide the number of query heads \(4\)"
    with pytest.raises(ValueError, match=message):
        attention(query, key, key)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, T, S), (B, 0, S), (B, T, 0), (B, 0, 0)])
def test_empty_axes(batch, queries, keys, groups, masked):
    query = np.ones((batch, H, queries, K), "float32")
    key = np.ones((batch, groups, keys, K), "float32")
    value = np.ones((batch, groups, keys, V), "float32")
    mask = np.ones((batch, 1, queries, keys), bool) if masked else None
    actual = attention(query, key, value, mask=mask)
    # Of no keys at all a query sees none: zeros.
    np.testing.assert_array_equal(actual, np.zeros((batch, H, queries, V)))


def test_heads_are_split_and_merged_as_columns():
    x = np.arange(2 * 3 * 10).reshape(2, 3, 10)  # two heads of 5
    heads = to_numpy(split_heads(x, 2))
    np.testing.assert_array_equal(heads[:, 0], x[..., :5])
    np.testing.assert_array_equal(heads[:, 1], x[..., 5:])
    np.testing.assert_array_equal(merge_heads(heads), x)


def test_for_a_device_hidden_keys_get_a_penalty_and_the_same_weights():
    """A select would split the graph on XNNPACK; a query without keys gets zeros there too."""
    rng = np.random.default_rng(5)
    query, key, value = (rng.normal(size=(2, 3, 5, 4)).astype("float32") for _ in range(3))
    mask = rng.random((2, 1, 5, 5)) < 0.6
    mask[0, 0, 2] = False
    expected = attention(query, key, value, mask=mask)
    with export_target("cpu-edge"):
        found = attention(query, key, value, mask=mask)
    assert_close(found, expected, 1e-6)  # one addition more a score
    assert not np.any(to_numpy(found)[0, :, 2])


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_keys_of_one_row_are_those_of_all_rows(rng, groups):
    """With one group, TensorFlow's product of (B, 1, M, K) and (1, 1, K, N) is out of bounds."""
    query = rng.normal(size=(5, H, T, 8)).astype("float32")
    key, value = rng.normal(size=(2, 1, groups, S, 8)).astype("float32")
    all_keys, all_values = (np.repeat(x, 5, axis=0) for x in (key, value))
    expected = to_numpy(attention(query, all_keys, all_values))
    assert_close(attention(query, key, value), expected, FLOAT32)
