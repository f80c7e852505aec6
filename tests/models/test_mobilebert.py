"""MobileBERT: its embedding, its blocks by hand, its output over the vocabulary, its padding."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from families import small_model
from keras_weights import randomize

from keras_tfm import models
from keras_tfm.layers import (
    BottleneckEncoderBlock,
    ConcatenateNeighbors,
    ElementwiseAffine,
    FeedForward,
    LayerNormalization,
    MultiHeadSelfAttention,
    Residual,
)
from keras_tfm.models.resize import select_ids

B, T, D, W, C, F, H = 2, 5, 12, 6, 7, 11, 3
rng = np.random.default_rng(5)
X = rng.normal(size=(B, T, D)).astype("float32")
MASK = np.array([[True] * 5, [True, True, True, False, False]])


def dense(layer, x):
    return x @ to_numpy(layer.kernel).astype("float64") + to_numpy(layer.bias)


def affine(layer, x):
    return x * to_numpy(layer.gamma) + to_numpy(layer.beta)


def attention(layer, query, key, value, mask, heads=H):
    """In float64, with separate projections."""
    q, k, v = (
        np.moveaxis(dense(part, x).reshape(B, T, heads, -1), 2, 1)
        for part, x in ((layer.query, query), (layer.key, key), (layer.value, value))
    )
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    scores = np.where(mask[:, None, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return dense(layer.output_projection, np.moveaxis(weights @ v, 1, 2).reshape(B, T, -1))


def network(layer, x):
    return dense(layer.outer, np.maximum(dense(layer.inner, x), 0))


def test_a_block_by_hand():
    block = BottleneckEncoderBlock(F, H, bottleneck_dim=W, num_feed_forward=3)
    block(X)
    randomize(block)
    z = affine(block.bottleneck_norm, dense(block.bottleneck_projection, X))
    s = affine(block.query_key_norm, dense(block.query_key_projection, X))
    attended = attention(block.self_attention, s, s, X, MASK)
    y = affine(block.self_attention_residual.sum_norm, z + attended)
    networks = (*block.stacked_feed_forward, block.feed_forward)
    residuals = (*block.stacked_feed_forward_residual, block.feed_forward_residual)
    assert len(networks) == 3
    for one, residual in zip(networks, residuals, strict=True):
        y = affine(residual.sum_norm, y + network(one, y))
    expected = affine(block.output_residual.sum_norm, X + dense(block.expansion, y))
    # float32: sums of up to 12 terms through five sublayers.
    assert_close(to_numpy(block(X, mask=MASK))[MASK], expected[MASK], 1e-4)


def test_values_of_another_width_by_hand():
    value = rng.normal(size=(B, T, C)).astype("float32")
    layer = MultiHeadSelfAttention(H)
    layer(X, value=value)
    randomize(layer)
    assert tuple(layer.value.kernel.shape) == (C, D)
    expected = attention(layer, X, X, value, MASK)
    assert_close(layer(X, value=value, mask=MASK), expected, 1e-5)
    with pytest.raises(ValueError, match="expected axis -1 of input shape to have value 7"):
        layer(X)


def test_values_of_the_same_width_keep_the_fused_kernel():
    layer, value = MultiHeadSelfAttention(H), np.flip(X, 1).copy()
    y = layer(X, value=value)
    assert hasattr(layer, "query_key_value")
    assert_close(layer(value, query=X, key=X), y, 1e-6)
    assert_close(layer(X, value=X), layer(X), 1e-6)


@pytest.mark.parametrize(
    "options", [{"tied_values": True, "head_dim": 4}, {"merged": True}], ids=str
)
def test_values_with_an_option_that_has_its_own(options):
    memory = {"memory": X} if "merged" in options else {}
    with pytest.raises(ValueError, match="a value is not for tied_values=True"):
        MultiHeadSelfAttention(H, **options)(X, value=X, **memory)


def test_values_of_another_length():
    with pytest.raises(ValueError, match=r"value must have shape \(..., T, C\)"):
        MultiHeadSelfAttention(H)(X, value=X[:, :3])


def test_causal_attention_with_wide_values_steps():
    """With a cache, as in a full pass."""
    from keras_tfm import generation

    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = keras.layers.Embedding(17, D)(tokens)
    x = BottleneckEncoderBlock(
        feed_forward=FeedForward(F),
        self_attention=MultiHeadSelfAttention(H, causal=True),
        bottleneck_dim=W,
        causal=True,
    )(x)
    generation.check_stepping(keras.Model(tokens, keras.layers.Dense(17)(x)))


def test_trigrams_are_a_convolution():
    """Keras's kernel has the previous token first."""
    layer = ConcatenateNeighbors()
    convolution = keras.layers.Conv1D(4, 3, padding="same", use_bias=False)
    convolution(X)
    previous, own, following = to_numpy(convolution.kernel)
    kernel = np.concatenate([following, own, previous])
    assert_close(to_numpy(layer(X)) @ kernel, convolution(X), 1e-5)
    assert tuple(layer(X[:, :1]).shape) == (B, 1, 3 * D)
    assert not np.any(to_numpy(layer(X[:, :1]))[..., :D])


def test_an_affine_by_hand():
    layer = ElementwiseAffine(gamma_initializer=keras.initializers.Constant(2.0))
    layer.build((None, D))
    layer.beta.assign(np.arange(D))
    np.testing.assert_array_equal(to_numpy(layer(X)), 2 * X + np.arange(D, dtype="float32"))
    with pytest.raises(ValueError, match="a known last axis"):
        ElementwiseAffine().build((None, None))


def test_a_norm_that_nothing_reads():
    given = {
        "self_attention": Residual(input_norm=LayerNormalization()),
        "feed_forward": Residual(),
    }
    with pytest.raises(ValueError, match=r"input_norm of the self-attention's .* must be None"):
        BottleneckEncoderBlock(F, H, bottleneck_dim=W, residual=given)
    BottleneckEncoderBlock(F, H, bottleneck_dim=W, query_key_bottleneck=False, residual=given)


def test_parts_of_a_block_are_copied_and_are_in_its_configuration():
    norm, parts = LayerNormalization(epsilon=0.1), ("stacked_residual", "output_residual")
    given = {name: Residual(sum_norm=LayerNormalization(epsilon=0.1)) for name in parts}
    block = BottleneckEncoderBlock(F, H, bottleneck_dim=W, num_feed_forward=2, norm=norm, **given)
    again = BottleneckEncoderBlock.from_config(block.get_config())
    assert again.get_config() == block.get_config()
    for one in (block, again):
        one(X)
        norms = [
            one.bottleneck_norm,
            one.query_key_norm,
            one.stacked_feed_forward_residual[0].sum_norm,
            one.output_residual.sum_norm,
        ]
        assert [x.epsilon for x in norms] == [0.1] * 4
        assert len({id(x.gamma) for x in norms}) == 4
        assert isinstance(one.feed_forward_residual.sum_norm, ElementwiseAffine)
    again.set_weights(block.get_weights())
    assert_close(again(X), block(X), 0.0)


@pytest.mark.parametrize("options", [{"feed_forward": False}, {"parallel": True}], ids=str)
def test_a_block_that_is_none(options):
    sizes = {} if "feed_forward" in options else {"intermediate_dim": F}
    with pytest.raises(ValueError, match="a bottleneck block needs a MultiHeadSelfAttention"):
        BottleneckEncoderBlock(num_heads=H, bottleneck_dim=W, **sizes, **options)


def inputs(rows):
    tokens = np.array(rows, "int32")
    return {"tokens": tokens, "segments": np.zeros_like(tokens)}


def test_more_padding_after_padding_changes_nothing():
    model = randomize(small_model("mobilebert", pooler=False))
    short, long = [[9, 4, 5, 6, 3, 0], [8, 0, 0, 0, 0, 0]], [[0] * 2] * 2
    expected = to_numpy(model(inputs(short)))
    found = to_numpy(model(inputs(np.concatenate([short, long], 1))))
    real = np.array(short) != 0
    assert_close(found[:, :6][real], expected[real], 1e-5)


def test_the_first_padding_is_read_by_the_last_token():
    """As in transformers; tests/checkpoints/test_transformers_encoders.py compares them."""
    model = randomize(small_model("mobilebert", pooler=False))
    expected, found = (
        to_numpy(model(inputs(rows)))[:, :2] for rows in ([[9, 4, 3]], [[9, 4, 3, 0]])
    )
    assert np.abs(found - expected).max() > 1e-3


def test_logits_are_of_the_embedding_and_columns_of_their_own():
    model = randomize(models.masked_language_model(small_model("mobilebert")))
    transformed = keras.Model(model.inputs, model.get_layer("transform_norm").output)
    given = inputs([[9, 4, 5, 3]])
    x = to_numpy(transformed([given[x.name] for x in model.inputs])).astype("float64")
    table = to_numpy(model.get_layer("embedding").embeddings)
    own = to_numpy(model.get_layer("output").kernel)
    assert (table.shape, own.shape) == ((31, 6), (6, 31))
    expected = x @ np.concatenate([table.T, own]) + to_numpy(model.get_layer("output_bias").bias)
    assert_close(model(given), expected, 1e-5)


def test_embeddings_as_wide_as_the_model_have_no_columns_of_their_own():
    model = models.masked_language_model(small_model("mobilebert", embedding_dim=12))
    assert "output" not in [x.name for x in model.layers]


def test_embeddings_wider_than_the_model_have_no_output():
    model = small_model("mobilebert", embedding_dim=14)
    with pytest.raises(ValueError, match=r"embedding_dim \(14\) must not exceed dim \(12\)"):
        models.masked_language_model(model)


def test_more_and_fewer_tokens():
    """The columns of their own have one for each token, too."""
    model = randomize(models.masked_language_model(small_model("mobilebert")))
    given = inputs([[9, 4, 5, 3]])
    expected = to_numpy(model(given))
    for size in (37, 23):
        found = to_numpy(models.resize_vocabulary(model, size)(given))
        assert found.shape[-1] == size
        count = min(size, 31)
        assert_close(found[..., :count], expected[..., :count], 1e-5)


def test_kept_tokens():
    """As in `trim_vocabulary`."""
    model = randomize(models.masked_language_model(small_model("mobilebert")))
    kept = [0, 3, 4, 7, 9, 30]
    small = select_ids(model, kept)
    expected = to_numpy(model(inputs([[9, 4, 7, 3]])))[..., kept]
    assert_close(small(inputs([[4, 2, 3, 1]])), expected, 1e-6)
    assert tuple(small.get_layer("output").kernel.shape) == (6, 6)


def test_the_pooler_is_the_first_token():
    model = randomize(small_model("mobilebert", pooler_dense=False))
    found = {name: to_numpy(x) for name, x in model(inputs([[9, 4, 5, 3]])).items()}
    np.testing.assert_array_equal(found["pooled"], found["features"][:, 0])
    classifier = models.sequence_classifier(small_model("mobilebert", pooler_dense=False), 3)
    bare = models.sequence_classifier(
        small_model("mobilebert", pooler_dense=False, pooler=False), 3
    )
    assert [x.path for x in classifier.weights] == [x.path for x in bare.weights]
