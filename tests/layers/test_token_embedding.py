import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import GRAPHS, MODES, compiled, execute, gradients, saving, tensorflow_only
from keras import ops
from keras_weights import built

from keras_tfm.layers import (
    CodebookEmbedding,
    DecodingScope,
    MultiHeadSelfAttention,
    RotaryEmbedding,
    SegmentEmbedding,
    TokenEmbedding,
    TransformerEncoderBlock,
)

V, D = 11, 6
IDS = np.array([[3, 10, 0, 7], [0, 1, 1, 2]])


@pytest.fixture
def embedding():
    return built(TokenEmbedding(V, D), (None, None))


@pytest.mark.parametrize("scale", [False, True])
def test_lookup(scale):
    layer = built(TokenEmbedding(V, D, scale=scale), (None, None))
    expected = to_numpy(layer.embeddings)[IDS] * (D**0.5 if scale else 1.0)
    # Without the factor nothing is computed; with it there is one rounding.
    assert_close(layer(IDS), expected, 2e-7 if scale else 0.0)


def test_a_factor_for_each_channel():
    factors = np.linspace(0.5, 2, D)
    for scale in (factors, factors.tolist()):
        layer = built(TokenEmbedding(V, D, scale=scale), (None, None))
        assert_close(layer(IDS), to_numpy(layer.embeddings)[IDS] * factors, 2e-7)
        copy = TokenEmbedding.from_config(layer.get_config())
        assert copy.scale == layer.scale == tuple(factors)
    codebook = built(CodebookEmbedding(3, D, scale=factors), (None, 3))
    assert_close(codebook(np.eye(3, dtype="float32")), codebook(np.arange(3)), 2e-7)


@pytest.mark.parametrize(
    ("scale", "error", "message"),
    [
        ([1.0, 2.0], ValueError, "a number for each of the 6 channels, got 2"),
        ([1.0] * 5 + [np.nan], ValueError, "scale must be finite"),
        (["1"] * 6, TypeError, "scale must be a number, got '1'"),
        ("123456", TypeError, "scale must be a number"),
        (b"123456", TypeError, "scale must be a number"),
    ],
)
def test_wrong_scales(scale, error, message):
    with pytest.raises(error, match=message):
        TokenEmbedding(V, D, scale=scale)


@pytest.mark.parametrize("scale", [False, True])
def test_tied_logits_are_products_with_the_unscaled_table(scale):
    layer = built(TokenEmbedding(V, D, scale=scale), (None, None))
    x = np.random.default_rng(0).normal(size=(2, 5, D)).astype("float32")
    expected = x.astype("float64") @ to_numpy(layer.embeddings).T
    actual = layer(x, reverse=True)
    assert_close(actual, expected, 1e-6)  # six terms of size 1, rounded at 6e-8
    x[1, 2] = 0.0
    np.testing.assert_array_equal(to_numpy(layer(x, reverse=True))[1, 2], 0.0)  # no bias


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16", "mixed_float16"])
def test_half_precision(dtype):
    layer = built(TokenEmbedding(V, D, scale=True, dtype=dtype), (None, None))
    table = to_numpy(layer.embeddings)
    x = layer(IDS)
    assert keras.backend.standardize_dtype(x.dtype) == dtype.removeprefix("mixed_")
    assert_close(x, table[IDS] * D**0.5, 1e-2)  # rounded twice at 4e-3
    assert_close(layer(x, reverse=True), to_numpy(x) @ table.T, 2e-2)  # and a sum of six


def test_the_scale_is_rounded_to_the_dtype():
    """As in Gemma, where sqrt(3072) = 55.4256 is 55.5 in bfloat16."""
    layer = TokenEmbedding(
        2, 3072, scale=True, embeddings_initializer="ones", dtype="mixed_bfloat16"
    )
    assert set(to_numpy(layer(np.array([[0, 1]]))).ravel()) == {55.5}


def test_the_table_starts_with_unit_variance_once_scaled():
    x = to_numpy(TokenEmbedding(1000, 256, scale=True)(np.arange(1000)[None]))
    assert 0.98 < x.std() < 1.02  # of 256,000 numbers: ten deviations
    assert abs(x.mean()) < 0.02


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
@pytest.mark.parametrize("mode", MODES)
def test_ids_may_be_any_integers(embedding, dtype, mode):
    actual = execute(mode, embedding, IDS.astype(dtype))
    np.testing.assert_array_equal(to_numpy(actual), to_numpy(embedding.embeddings)[IDS])


@pytest.mark.parametrize(
    ("ids", "got"),
    [
        (np.array([[3.0, 4.5]], "float32"), "float32 4.5"),
        (np.array([[3.0, 4.0]], "float16"), "float16"),  # 2049 would be 2048
        (np.ones((1, 3, D), "float32"), "float32"),  # features, without reverse=True
    ],
    ids=["fraction", "half precision", "features"],
)
def test_floats_that_are_no_ids_are_refused(embedding, ids, got):
    message = r'TokenEmbedding: declare keras\.Input\(..., dtype="int32"\): ids must be integers, '
    with pytest.raises(TypeError, match=f"{message}got {got}"):
        embedding(ids)
    if got != "float32 4.5":
        with pytest.raises(TypeError, match=f"{message}got {got}"):
            embedding(keras.Input(ids.shape[1:], dtype=ids.dtype.name))


@keras.saving.register_keras_serializable("tests")
class Subclassed(keras.Model):
    """Keras builds it with float placeholders when it is loaded."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.embedding = TokenEmbedding(V, D, mask_zero=True)
        self.segments = SegmentEmbedding(3)
        self.block = TransformerEncoderBlock(5, 1)
        self.attention = MultiHeadSelfAttention(1, position=RotaryEmbedding(rotary_dim=2))

    def call(self, inputs):
        mask = inputs["mask"]
        x = self.segments(self.embedding(inputs["ids"]), inputs["segments"])
        x = self.attention(self.block(x, mask=mask), mask=mask, positions=inputs["positions"])
        return self.embedding(x, reverse=True)

    def get_config(self):
        return {"dtype": keras.dtype_policies.serialize(self.dtype_policy)}


@saving
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_a_subclassed_model_is_loaded_with_its_weights(dtype, tmp_path):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        model = Subclassed()
        inputs = {
            "ids": IDS,
            "segments": IDS % 3,
            "mask": IDS != 3,
            "positions": np.arange(IDS.shape[1], dtype="int32") * 2,
        }
        expected = model(inputs)
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    finally:
        keras.config.set_dtype_policy(before)
    assert len(loaded.weights) == len(model.weights)
    np.testing.assert_array_equal(to_numpy(loaded(inputs)), to_numpy(expected))


@saving
def test_a_sequential_model_without_an_input_trains_and_is_loaded(tmp_path):
    model = keras.Sequential(
        [TokenEmbedding(V, D, mask_zero=True), TransformerEncoderBlock(5, 1), keras.layers.Dense(2)]
    )
    model.compile("sgd", "mse")
    model.fit(IDS, np.ones((*IDS.shape, 2)), verbose=0)
    embedding = model.layers[0]
    table = to_numpy(embedding.embeddings)
    expected = model.layers[1](embedding(IDS), mask=IDS != 0)
    np.testing.assert_allclose(to_numpy(model(IDS)), to_numpy(model.layers[2](expected)), atol=1e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(to_numpy(loaded.layers[0].embeddings), table)
    np.testing.assert_array_equal(to_numpy(loaded(IDS)), to_numpy(model(IDS)))


# Masks


@pytest.mark.parametrize("mode", ["eager", "functional"])
def test_id_0_is_padding_with_mask_zero_only(mode):
    ids = IDS if mode == "eager" else keras.Input((None,), dtype="int32")
    assert getattr(TokenEmbedding(V, D)(ids), "_keras_mask", None) is None
    mask = TokenEmbedding(V, D, mask_zero=True)(ids)._keras_mask
    if mode == "eager":
        np.testing.assert_array_equal(mask, IDS != 0)
    else:
        assert (mask.shape, mask.dtype) == ((None, None), "bool")


@pytest.mark.parametrize("mask_zero", [False, True])
def test_logits_keep_the_mask_of_the_features(mask_zero):
    features = TokenEmbedding(V, D, mask_zero=True)(IDS)
    logits = TokenEmbedding(13, D, mask_zero=mask_zero)(features, reverse=True)
    np.testing.assert_array_equal(logits._keras_mask, IDS != 0)


# Faults


@pytest.mark.parametrize(
    ("ids", "found"), [([[3, V]], r"3\.\.11"), ([[-1, 3]], r"-1\.\.3"), ([[-1, 99]], r"-1\.\.99")]
)
def test_ids_out_of_range_are_named_eagerly(ids, found):
    layer = TokenEmbedding(V, D, name="tokens")
    with pytest.raises(ValueError, match=rf"tokens: token ids must be in 0\.\.10, got {found}"):
        layer(np.array(ids))


@tensorflow_only
@pytest.mark.parametrize("scoped", [False, True])
@pytest.mark.parametrize("bad", [V, -1, 10**6])
def test_ids_out_of_range_are_an_error_in_a_graph(embedding, bad, scoped):
    """In training, and stepped: TensorFlow names the id and the range."""
    import tensorflow as tf

    @tf.function
    def run(ids):
        if not scoped:
            return embedding(ids)
        with DecodingScope(length=5):
            return embedding(ids)

    run(tf.constant([[3, 10]]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"= {bad} is not in \[0, 11\)"):
        run(tf.constant([[3, bad]]))


@tensorflow_only
def test_fit_stops_at_an_id_out_of_range():
    import tensorflow as tf

    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, TokenEmbedding(V, D)(ids))
    model.compile("sgd", "mse", jit_compile=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"= 11 is not in \[0, 11\)"):
        model.fit(np.array([[3, V]]), np.zeros((1, 2, D)), verbose=0)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (1, 1)])
def test_short_and_empty_inputs(embedding, shape):
    ids = np.full(shape, 7)
    np.testing.assert_array_equal(to_numpy(embedding(ids)), to_numpy(embedding.embeddings)[ids])
    features = np.ones((*shape, D), "float32")
    expected = features @ to_numpy(embedding.embeddings).T
    assert_close(embedding(features, reverse=True), expected, 1e-6)


@pytest.mark.parametrize(("name", "sizes"), [("vocabulary_size", (0, 4)), ("dim", (5, 0))])
def test_impossible_sizes_are_refused(name, sizes):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        TokenEmbedding(*sizes)


@pytest.mark.parametrize("symbolic", [False, True])
def test_features_of_another_width_are_refused(embedding, symbolic):
    x = keras.Input((None, D + 1)) if symbolic else np.ones((2, 5, D + 1), "float32")
    with pytest.raises(ValueError, match=r"reverse=True expects features of width 6, got shape \("):
        embedding(x, reverse=True)


# Inside a DecodingScope TensorFlow looks up through a function with a name.


def scoped(function):
    def run(*arguments):
        with DecodingScope(length=5):
            return function(*arguments)

    return run


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_the_lookup_of_a_scope_is_the_same(dtype, scale, mode):
    layer = built(TokenEmbedding(V, D, scale=scale, mask_zero=True, dtype=dtype), (None, None))
    expected = layer(IDS)
    actual = execute(mode, scoped(layer), IDS)
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(to_numpy(actual), to_numpy(expected))


@pytest.mark.parametrize("mode", GRAPHS)
def test_a_scope_keeps_what_is_known_of_the_shape(embedding, mode):
    shapes = []

    def run(ids):
        with DecodingScope(length=5):
            x = embedding(ids)
        shapes.append(tuple(x.shape))
        return x

    compiled(mode, run)(ops.convert_to_tensor(IDS))
    assert shapes == [(*IDS.shape, D)]


@tensorflow_only
@pytest.mark.parametrize("inside", [False, True])
def test_the_gradient_of_a_lookup(embedding, inside):
    """Of sum(w E[ids]): row v gets the sum of the w where ids is v."""
    import tensorflow as tf

    weights = np.random.default_rng(0).normal(size=(*IDS.shape, D)).astype("float32")

    def loss():
        x = scoped(embedding)(IDS) if inside else embedding(IDS)
        return ops.sum(weights * x)

    (gradient,), _ = gradients(loss, [embedding.embeddings])
    expected = np.zeros((V, D))
    np.add.at(expected, IDS, weights)
    assert_close(tf.convert_to_tensor(gradient), expected, 1e-6)
