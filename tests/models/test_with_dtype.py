import keras
import numpy as np
import pytest
from blocks import encoder_block
from compare import assert_close, to_numpy
from execution import tensorflow_only
from small_models import encoder_decoder

from keras_tfm.keras_internals import is_initialized
from keras_tfm.layers import RotaryEmbedding, TokenEmbedding
from keras_tfm.models import Model, t5, transformer, with_dtype, without_storage
from keras_tfm.models.with_dtype import float32_view

IDS = {"source": np.array([[3, 4, 5, 0]]), "target": np.array([[1, 7, 2]])}


def dtype_of(x):
    return keras.backend.standardize_dtype(x.dtype)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_it_answers_as_the_model_made_in_that_dtype(dtype):
    """And the other way round; `encoder_decoder` draws weights by their names."""
    half, full = encoder_decoder(dtype=dtype), encoder_decoder()
    copy = with_dtype(half, "float32")
    assert_close(copy(IDS), full(IDS), 1e-6)
    assert {layer.compute_dtype for layer in copy._flatten_layers(include_self=False)} == {
        "float32"
    }
    assert dtype_of(half(IDS)) == dtype.removeprefix("mixed_")
    assert_close(with_dtype(full, dtype)(IDS), half(IDS), 0.0)


def test_names_inputs_and_ties_stay():
    model = transformer(11, dim=8, num_layers=1, num_heads=2, dtype="mixed_bfloat16", name="here")
    model.compile("sgd", "mse")
    copy = with_dtype(model)
    assert [x.name for x in copy.layers] == [x.name for x in model.layers]
    assert type(copy) is type(model) and isinstance(model, Model)
    assert (copy.name, list(copy.input), copy.compiled) == ("here", ["source", "target"], False)
    assert [w.path for w in copy.weights] == [w.path for w in model.weights]
    assert len(copy.get_layer("embedding")._inbound_nodes) == 3  # source, target and output
    for new, old in zip(copy.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(new, old)
    copy.weights[0].assign(np.zeros(copy.weights[0].shape))
    assert np.abs(model.get_weights()[0]).max() > 0


def test_nested_models_and_parts_that_are_passed_in():
    x = keras.Input((None, 8))
    block = encoder_block(16, 2, position=RotaryEmbedding(), dtype="mixed_bfloat16")
    inside = keras.Model(x, block(x), name="inside")
    ids = keras.Input((None,), dtype="int32")
    y = TokenEmbedding(11, 8, dtype="mixed_bfloat16")(ids)
    model = keras.Model(ids, keras.ops.cast(inside(inside(y)), "float32") * 2.0)
    copy = with_dtype(model, "float32")
    assert len(copy.weights) == len(model.weights)
    rows = np.array([[3, 4, 5, 0]])
    # Bfloat16 rounds at 4e-3, and a row of 8 normalised numbers passes a dozen operations.
    assert_close(copy(rows), model(rows), 5e-2)
    assert np.abs(to_numpy(copy(rows)) - to_numpy(model(rows))).max() > 1e-4
    assert {x.compute_dtype for x in copy._flatten_layers(include_self=False)} == {"float32"}


def test_a_part_that_blocks_share_is_shared_in_the_copy():
    model = t5(11, dim=8, num_layers=2, num_heads=2, intermediate_dim=16, dtype="mixed_bfloat16")
    copy = with_dtype(model)
    assert [w.path for w in copy.weights] == [w.path for w in model.weights]
    biases = [block.self_attention.position for block in copy.blocks]
    assert biases[0] is biases[1] and biases[2] is biases[3] and biases[0] is not biases[2]
    inputs = {name: np.array([[3, 4, 5, 0]]) for name in ("source", "target")}
    # Bfloat16 rounds at 4e-3, and logits are of 1.
    assert_close(copy(inputs), model(inputs), 5e-2)


def test_the_global_policy_is_neither_used_nor_changed():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = encoder_decoder()
        assert dtype_of(with_dtype(model, "float32")(IDS)) == "float32"
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has no float64 by default")
def test_other_dtypes_stay():
    x = keras.Input((3,))
    y = keras.layers.Dense(2, dtype="float64", name="exact")(x)
    model = keras.Model(x, keras.layers.Dense(2, dtype="mixed_float16", name="half")(y))
    copy = with_dtype(model, "float32")
    assert copy.get_layer("exact").compute_dtype == "float64"
    assert copy.get_layer("half").compute_dtype == "float32"


class WithoutConfig(keras.layers.Layer):
    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self.function = function

    def call(self, x):
        return self.function(x)


class Grows(keras.layers.Layer):
    """Its configuration does not say how many weights it has."""

    extra = 0

    def build(self, shape):
        for i in range(1 + self.extra):
            self.add_weight(shape=(2,), name=f"w{i}")

    def call(self, x):
        return x


@pytest.mark.filterwarnings("ignore")
def test_layers_that_cannot_be_made_again_are_named():
    x = keras.Input((2,))
    model = keras.Model(x, WithoutConfig(keras.ops.tanh, name="here", dtype="mixed_bfloat16")(x))
    with pytest.raises(ValueError, match="here cannot be recreated in float32 from its get_conf"):
        with_dtype(model, "float32")
    layer = Grows(name="grows")
    layer.extra = 1
    with pytest.raises(ValueError, match=r"expected the weights \['w0 \(2,\)', 'w1 .*got \['w0"):
        with_dtype(keras.Model(x, layer(x)), "mixed_bfloat16")


def test_only_functional_models():
    class Own(keras.Model):
        def call(self, x):
            return x

    with pytest.raises(TypeError, match=r"expected a functional keras\.Model .*, got Own"):
        with_dtype(Own(), "float32")


@tensorflow_only
def test_a_trained_model_of_half_precision_goes_on_in_float32():
    model = transformer(11, dim=8, num_layers=1, num_heads=2, dropout=0.0, dtype="mixed_bfloat16")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
    model.fit(IDS, IDS["target"], verbose=0)
    assert_close(with_dtype(model)(IDS), model(IDS), 5e-2)


@pytest.mark.parametrize("make", [with_dtype, float32_view])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_adapters_are_merged(dtype, make, monkeypatch):
    """Of layers inside blocks, of nested models, and of embedding tables."""
    monkeypatch.setattr(without_storage, "_LARGE", 32)
    x = keras.Input((None, 8))
    inside = keras.Model(x, encoder_block(16, 2, dtype=dtype)(x), name="inside")
    ids = keras.Input((None,), dtype="int32")
    table = keras.layers.Embedding(11, 8, dtype=dtype)
    model = keras.Model(ids, keras.layers.Dense(3, dtype=dtype)(inside(table(ids))))
    rows, rng = np.array([[3, 4, 5, 0]]), np.random.default_rng(0)
    before, count = to_numpy(model(rows)), len(model.weights)
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.layers.Dense | keras.layers.Embedding):
            layer.enable_lora(2, lora_alpha=3)
            name = "lora_kernel_b" if hasattr(layer, "lora_kernel_b") else "lora_embeddings_b"
            variable = getattr(layer, name)
            variable.assign(rng.normal(scale=0.3, size=variable.shape))
    expected = to_numpy(model(rows))
    assert np.abs(expected - before).max() > 0.1
    copy = make(model)
    assert len(copy.weights) == count
    assert_close(copy(rows), expected, 1e-5 if dtype == "float32" else 5e-2)


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16", "float16"])
def test_a_view_reads_the_weights_of_its_model(dtype, monkeypatch):
    """Also those that the model has later, and those of a model whose large weights it reads."""
    monkeypatch.setattr(without_storage, "_LARGE", 32)
    model = encoder_decoder(dtype=dtype)
    view = float32_view(model)
    kernels = [x for x in view.weights if not is_initialized(x)]
    assert kernels and all(len(x.shape) > 1 for x in kernels)
    assert_close(view(IDS), with_dtype(model)(IDS), 0.0)
    assert_close(view.predict(IDS, verbose=0), with_dtype(model)(IDS), 1e-6)
    for weight in model.weights:
        if len(weight.shape) > 1:
            weight.assign(weight * 0.5)
    assert_close(view(IDS), with_dtype(model)(IDS), 0.0)
    assert_close(float32_view(view)(IDS), view(IDS), 0.0)
    assert not any(map(is_initialized, kernels))


def adapted(layer, rows):
    """A model of float inputs (B, 2) that begins with a layer after `adapt`."""
    layer.adapt(rows)
    x = keras.Input((2,))
    return keras.Model(x, keras.layers.Dense(3)(layer(x)))


def test_statistics_of_adapted_layers_stay():
    rows = np.array([[100.0, -3.0], [110.0, 5.0], [117.0, 2.0]], "float32")
    model = adapted(keras.layers.Normalization(), rows)
    expected = to_numpy(model(rows))
    assert_close(with_dtype(model, "float32")(rows), expected, 1e-6)
    half = with_dtype(model, "mixed_bfloat16")
    assert_close(half(rows), expected, 5e-2)
    assert_close(with_dtype(half, "float32")(rows), expected, 1e-6)


@tensorflow_only
@pytest.mark.parametrize("mode", ["multi_hot", "tf_idf"])
def test_vocabularies_of_adapted_layers_stay(mode):
    ids = np.array([[3, 7], [7, 5], [7, 2]])
    layer = keras.layers.IntegerLookup(output_mode=mode)
    layer.adapt(ids)
    x = keras.Input((2,), dtype="int64")
    model = keras.Model(x, keras.layers.Dense(3)(layer(x)))
    assert_close(with_dtype(model, "float32")(ids), to_numpy(model(ids)), 1e-6)


@keras.saving.register_keras_serializable("tests")
class Unnamed(keras.layers.Layer):
    """Keras numbers the weights of a process that have no name."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="random_normal")
        self.shift = keras.Variable(np.arange(shape[-1]), dtype="float32")

    def call(self, x):
        return x * self.scale + self.shift


def test_weights_without_a_name():
    x = keras.Input((2,))
    model = keras.Model(x, Unnamed()(Unnamed()(x)))
    rows = np.array([[3.0, 4.0]])
    assert_close(with_dtype(model, "float32")(rows), to_numpy(model(rows)), 1e-6)


def test_an_error_of_keras_is_one_line():
    class Own(keras.Model):
        def __init__(self, width):
            super().__init__()
            self.dense = keras.layers.Dense(width)

        def call(self, x):
            return self.dense(x)

    x = keras.Input((2,))
    with pytest.raises(ValueError, match=r"get_config\(\): .* implement `get_config\(\)`\.$"):
        with_dtype(keras.Model(x, Own(3)(x)), "float32")


def test_lambdas_keep_their_functions():
    """Keras refuses to load a lambda, and would not find what it reads."""
    factor, x = 3.0, keras.Input((2,))
    y = keras.layers.Lambda(
        lambda x, shift: factor * keras.ops.tanh(x) + shift,
        output_shape=lambda shape: shape,
        arguments={"shift": 0.5},
        name="own",
    )(x)
    model = keras.Model(x, keras.layers.Dense(3)(y))
    rows = np.array([[0.3, -2.0]])
    copy = with_dtype(model, "float32")
    assert_close(copy(rows), to_numpy(model(rows)), 1e-6)
    assert with_dtype(model, "mixed_bfloat16").get_layer("own").compute_dtype == "bfloat16"
