"""Models that are not ours throughout: unmasked, unnamed, nested, of bytes, of int64."""

import keras
import numpy as np
import pytest
from keras import layers
from small_exports import new_path

from keras_tfm import runtime
from keras_tfm.export import export_saved_model, export_tflite, verify
from keras_tfm.generation import check_stepping, generate
from keras_tfm.layers import PositionalEncoding, TokenEmbedding, TransformerEncoderBlock
from keras_tfm.models import with_dtype

MANY = 2000


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(1)


def ids_input(name="ids", dtype="int32"):
    return keras.Input((None,), dtype=dtype, name=name)


def encoder(x):
    return TransformerEncoderBlock(16, num_heads=2)(x)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", None])
def test_padding_that_is_seen_is_refused_however_small_the_outputs_are(activation):
    x = ids_input()
    y = layers.GlobalAveragePooling1D()(encoder(TokenEmbedding(MANY, 16)(x)))  # no mask
    kernel = keras.initializers.RandomNormal(stddev=1e-4)
    y = layers.Dense(MANY, activation=activation, kernel_initializer=kernel)(y)
    report = export_tflite(keras.Model(x, y), new_path(), source_length=8, verify=False)
    model = runtime.load(report.path)
    with pytest.raises(ValueError, match=r"was exported for exactly|must have|mask"):
        model.predict([[3, 4, 5]])


def test_padding_that_one_id_alone_sees_is_refused():
    x = ids_input()
    embedding = layers.Embedding(MANY, 4)
    model = keras.Model(x, layers.GlobalMaxPooling1D()(embedding(x)))
    table = np.abs(np.random.default_rng(0).normal(size=(MANY, 4)))
    table[0], table[1] = 0.0, -1.0
    embedding.set_weights([table])
    report = export_tflite(model, new_path(), source_length=8, verify=False)
    with pytest.raises(ValueError, match=r"was exported for exactly|must have|mask"):
        runtime.load(report.path).predict([[1, 1]])


def test_inputs_of_one_length_are_padded_together():
    tokens, segments = ids_input("tokens"), ids_input("segments")
    x = TokenEmbedding(11, 8, mask_zero=True)(tokens)
    y = layers.Add()([x, TokenEmbedding(2, 8)(segments)])
    mask = layers.Lambda(lambda ids: ids != 0)(tokens)
    y = TransformerEncoderBlock(16, num_heads=2)(y, mask=mask)
    y = layers.GlobalAveragePooling1D()(y, mask=mask)
    model = keras.Model({"tokens": tokens, "segments": segments}, layers.Dense(3)(y))
    report = export_tflite(model, new_path(), source_length=[4, 8])
    inputs = {"tokens": [[3, 4, 5]], "segments": [[0, 1, 1]]}
    expected = model({name: np.array(x, "int32") for name, x in inputs.items()})
    found = runtime.load(report.path).predict(inputs)["output"]
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-5)


def test_what_cannot_be_stepped_is_refused_however_small_its_outputs_are():
    x = ids_input()
    y = layers.Dense(MANY)(encoder(TokenEmbedding(MANY, 8)(x)))
    y = 1e-3 * y
    with pytest.raises(ValueError, match="cannot be stepped"):  # the encoder looks ahead
        check_stepping(keras.Model(x, y))


def test_bytes_are_verified_on_bytes():
    x = keras.Input((8, 8, 3), dtype="uint8", name="image")
    y = layers.Reshape((4, 32))(layers.Conv2D(32, 4, 4)(layers.Rescaling(1 / 255)(x)))
    y = layers.Dense(4)(layers.Flatten()(encoder(y)))
    report = export_tflite(keras.Model(x, y), new_path(), quantization="int8")
    assert 1e-4 < report.verification.checks[0].relative_error < 0.25


def test_ids_of_a_model_inside_are_drawn_from_its_vocabulary():
    x = ids_input("x")
    inside = keras.Model(x, TokenEmbedding(50, 16, mask_zero=True)(x))
    y = ids_input("y")
    report = export_tflite(
        keras.Model(y, encoder(inside(y))), new_path(), source_length=6, quantization="int8"
    )
    assert report.signatures["predict"]["inputs"]["y"]["vocabulary_size"] == 50
    with pytest.raises(ValueError, match=r"0\.\.49"):
        runtime.load(report.path).predict([[99]])


def test_a_table_of_its_own_is_looked_up_in_full_int8():
    x = keras.Input((6,), dtype="int32", name="ids")
    y = layers.Dense(4)(encoder(TokenEmbedding(200, 16)(x)))
    model = keras.Model(x, y)
    data = np.random.default_rng(0).integers(1, 200, (30, 1, 6))
    rows = [{"ids": row.astype("int32")} for row in data]
    with pytest.warns(UserWarning, match="partitions"):
        report = export_tflite(
            model, new_path(), quantization="int8_full", representative_data=rows
        )
    assert report.verification.checks[0].relative_error < 0.3


def test_inputs_without_names_and_models_cut_from_others():
    first, second = keras.Input((4,)), keras.Input((4,))
    hidden = layers.Dense(3, name="hidden")(layers.Subtract()([first, second]))
    whole = keras.Model([first, second], layers.Dense(2)(hidden))
    part = keras.Model(whole.inputs, whole.get_layer("hidden").output)
    sequential = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    for model in (whole, part, sequential):
        file = runtime.load(export_tflite(model, new_path()).path)
        names = list(file.signatures["predict"]["inputs"])
        rows = np.random.default_rng(0).normal(size=(len(names), 1, 4)).astype("float32")
        found = file.predict(dict(zip(names, rows, strict=True)))["output"]
        expected = model(list(rows) if len(names) > 1 else rows[0])
        expected = expected[0] if isinstance(expected, list) else expected
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-5)


def sequential_decoder(*after):
    """A `keras.Sequential` of two, as a user writes it."""
    ids = [keras.Input((None,), dtype="int32", name="ids"), TokenEmbedding(11, 8, mask_zero=True)]
    block = TransformerEncoderBlock(16, num_heads=2, causal=True)
    inner = keras.Sequential([block, *after])
    return keras.Sequential([*ids, inner, layers.Dense(11)], name="speller")


@pytest.mark.filterwarnings("ignore:Layer 'sequential")  # Keras: that it drops the mask
def test_a_sequential_model_is_stepped():
    check_stepping(sequential_decoder(layers.LSTM(8, return_sequences=True)), length=4)
    mixed = sequential_decoder(layers.GlobalAveragePooling1D(), layers.RepeatVector(1))
    with pytest.raises(ValueError, match=r"^speller cannot be stepped"):
        check_stepping(mixed, length=4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer 'sequential")
def test_a_sequential_model_is_a_graph_of_its_layers():
    model = sequential_decoder(layers.LayerNormalization(), layers.LSTM(8, return_sequences=True))
    options = {"prompt_length": 3, "max_length": 7, "quantization": "int8"}
    path = export_tflite(model, new_path(), ["generate"], **options).path
    prompt = np.array([[3, 4, 5]], "int32")
    expected = generate(keras.Model(model.inputs, model.outputs), prompt, max_length=7)
    np.testing.assert_array_equal(generate(model, prompt, max_length=7).tokens, expected.tokens)
    assert len(runtime.load(path).generate(prompt[0]).tokens[0]) == 7
    assert verify(model, path).checks
    # Layers that are added later belong to it.
    model.pop()
    model.add(layers.Dense(9))
    assert generate(model, prompt, max_length=7).tokens.max() < 9


def test_a_sequential_model_in_half_precision():
    policy = keras.dtype_policies.DTypePolicy("mixed_bfloat16")
    model = keras.Sequential(
        [keras.Input((4,), dtype=policy.compute_dtype), layers.Dense(3, dtype=policy)]
    )
    assert with_dtype(model, "float32").output.dtype == "float32"
    assert export_tflite(model, new_path()).verification.checks


def test_a_sequential_model_without_an_input_says_what_it_lacks():
    with pytest.raises(
        TypeError, match=r"got Sequential without inputs: make keras.Input its first"
    ):
        export_tflite(keras.Sequential([layers.Dense(3)]), new_path())


def test_a_sequential_model_with_a_call_of_its_own_says_what_to_give():
    class Doubled(keras.Sequential):
        def call(self, inputs):
            return 2 * super().call(inputs)

    model, x = Doubled([keras.Input((4,)), layers.Dense(3)]), keras.Input((4,))
    with pytest.raises(TypeError, match=r"got Doubled with a call method of its own: give keras\."):
        export_tflite(model, new_path())
    assert export_tflite(keras.Model(x, model(x)), new_path()).verification.checks


def test_ids_of_64_bits():
    x = ids_input(dtype="int64")
    model = keras.Model(x, encoder(TokenEmbedding(11, 8, mask_zero=True)(x)))
    found = runtime.load(export_tflite(model, new_path(), source_length=5).path)
    expected = model(np.array([[3, 4, 5]]))
    output = found.predict([[3, 4, 5]])["output"][:, :3]
    np.testing.assert_allclose(output, expected, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": "2"}, TypeError, "batch_size must be an integer, got '2'"),
        ({"source_length": "8"}, TypeError, "source_length must be an integer, got '8'"),
        ({"source_length": 8.5}, TypeError, "source_length must be an integer, got 8.5"),
        ({"max_length": "8", "start_id": 1}, TypeError, "max_length must be an integer"),
        ({"signatures": "predict"}, ValueError, "got the string 'predict'"),
        ({"strategy": "beam"}, TypeError, "strategy must be a Strategy such as Beam"),
        ({"verify_inputs": np.ones((1, 4))}, TypeError, "must be a dictionary of .*'ids'"),
    ],
)
def test_arguments_of_the_wrong_type_are_named(options, error, message):
    x = ids_input()
    model = keras.Model(x, TokenEmbedding(11, 8, mask_zero=True)(x))
    with pytest.raises(error, match=message):
        export_tflite(model, new_path(), **{"source_length": 4, **options})


@pytest.mark.parametrize("write", [export_tflite, export_saved_model])
def test_an_unknown_argument_is_named_with_the_known_ones(write):
    x = ids_input()
    model, path = keras.Model(x, TokenEmbedding(11, 8, mask_zero=True)(x)), new_path()
    with pytest.raises(TypeError) as raised:
        write(model, path, max_len=4)
    message = str(raised.value)
    assert message.startswith(f"{write.__name__} has no argument 'max_len'; it has model, path, ")
    assert "\n" not in message
    known = message.split("it has ")[1].split(", ")
    assert {"signatures", "tokenizer", "max_length", "end_id", "strategy"} <= set(known)
    sizes = {"source_length", "prompt_length", "batch_size", "whole_caches"}
    assert set(known) & sizes == (sizes if write is export_tflite else set())
    assert not path.exists()


@pytest.mark.parametrize("model", ["model.keras", None])
def test_what_is_no_model(model):
    with pytest.raises(TypeError, match=r"expected a functional keras\.Model"):
        export_tflite(model, new_path())


def test_mixed_precision_inside_a_nested_model():
    x = keras.Input((4,))
    inside = keras.Model(x, layers.Dense(3, dtype="mixed_bfloat16")(x))
    y = keras.Input((4,))
    model = keras.Model(y, inside(layers.Dense(4, dtype="mixed_float16")(y)))
    path = new_path()
    export_tflite(model, path)
    row = np.array([[0.5, -1.25, 2.0, 0.75]], "float32")
    kernels = [np.float64(w) for w in model.get_weights()]
    found = runtime.load(path).predict(row)["output"]
    expected = (row @ kernels[0] + kernels[1]) @ kernels[2] + kernels[3]
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-6)


def test_what_is_neither_float32_nor_mixed_precision():
    x = keras.Input((4,))
    inside = keras.Model(x, layers.Dense(3, dtype="float64")(x))
    y = keras.Input((4,))
    with pytest.raises(ValueError, match=r"compute in float32, got dense.* in float64"):
        export_tflite(keras.Model(y, inside(y)), new_path())


def test_lora_adapters_are_merged_into_the_kernels_of_a_file():
    x = ids_input()
    block = TransformerEncoderBlock(64, num_heads=2)
    model = keras.Model(x, layers.Dense(3)(block(TokenEmbedding(11, 32)(x))))
    plain = export_tflite(model, new_path(), source_length=8, verify=False)
    before = runtime.load(plain.path).predict([list(range(8))])["output"]
    adapted = [layer for layer in model._flatten_layers() if isinstance(layer, layers.Dense)]
    assert len(adapted) > 4
    for layer in adapted:
        layer.enable_lora(8)
        layer.lora_kernel_b.assign(np.full(layer.lora_kernel_b.shape, 0.5))
    report = export_tflite(model, new_path(), source_length=8)  # verified
    after = runtime.load(report.path).predict([list(range(8))])["output"]
    assert np.abs(after - before).max() > 0.1
    assert report.bytes < 1.02 * plain.bytes


@pytest.mark.parametrize("quantization", ["float16", "int8"])
def test_inputs_and_outputs_in_half_precision(quantization):
    """The graph without rounded weights, with which a file is compared, has them too."""
    x = keras.Input((5,), dtype="float16", name="x")
    model = keras.Model(x, keras.ops.cast(layers.Dense(3)(layers.Reshape((5,))(x)), "float16"))
    report = export_tflite(model, new_path(), quantization=quantization)
    given = np.linspace(-1, 1, 10, dtype="float16").reshape(2, 5)
    found = runtime.load(report.path).predict(given)["output"]
    assert found.dtype == "float16"
    # Of weights rounded to 8 bits.
    np.testing.assert_allclose(found, model(given), atol=2e-2)


def test_generated_ids_need_an_input_of_integers():
    x = keras.Input((None,), name="ids")
    model = keras.Model(x, layers.Dense(7)(layers.Embedding(7, 5)(x)))
    with pytest.raises(ValueError, match=r"'ids' of .* must be rows of token ids.* got float32"):
        export_tflite(model, new_path(), prompt_length=3, max_length=6)


@pytest.mark.parametrize(
    ("returned", "keys"),
    [(lambda y: {"y": y, "states": None}, "states"), (lambda y: (y, None), 1)],
)
def test_outputs_that_are_none_are_named(returned, keys):
    """A functional model tells its outputs before it is called; a subclass may return others."""

    class More(keras.Model):
        def call(self, x, training=None, mask=None):
            return returned(super().call(x, training=training, mask=mask))

    x = keras.Input((3,))
    model = More(x, layers.Dense(2)(x), name="more")
    message = rf"^expected tensors as the outputs of more, got None as \[{keys!r}\]: leave it out"
    for write in (export_tflite, export_saved_model):
        with pytest.raises(ValueError, match=message):
            write(model, new_path())


def test_sums_with_a_vector_along_any_axis():
    x, ids = keras.Input((3, 5), name="x"), keras.Input((3,), dtype="int32", name="ids")
    row, column = np.arange(5.0, dtype="float32"), np.arange(3.0, dtype="float32")[:, np.newaxis]
    outputs = {
        "row": x + row,
        "column": x + column,
        "column_of_five_axes": x[:, :, :, None, None] + column[:, None, None],
        "offsets": ids + np.array([0, 4, 11], "int32"),
        "offsets_of_columns": ids[..., None] * np.ones((1, 5), "int32") + column.astype("int32"),
    }
    model = keras.Model({"x": x, "ids": ids}, outputs)
    rows = {
        "x": np.random.default_rng(0).normal(size=(2, 3, 5)).astype("float32"),
        "ids": np.array([[1, 2, 3], [3, 0, 1]], "int32"),
    }
    report = export_tflite(model, new_path())
    assert report.verification.inputs["ids"].startswith("random 0 and 1")
    found = runtime.load(report.path).predict(rows)
    for name, expected in model(rows).items():
        np.testing.assert_allclose(found[name], expected, rtol=0.0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:the rounding of int8")
def test_a_logarithm_of_rounded_weights_is_verified():
    """Random rounding, which sets the tolerance, may make it one of a negative number: NaN."""
    filters = np.repeat(np.eye(32, dtype="float32"), 2, axis=0)
    x = keras.Input((5, 64), name="audio")
    y = layers.Dense(3)(keras.ops.log(keras.ops.matmul(keras.ops.square(x), filters) + 0.001))
    report = export_tflite(keras.Model(x, y), new_path(), quantization="int8")
    assert report.verification.checks[0].relative_error < 0.25


def test_positions_of_prompts_of_any_length_take_no_more_rows_than_there_are_tokens():
    ids = ids_input()
    x = PositionalEncoding(name="positions")(TokenEmbedding(11, 32)(ids))
    x = layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    model = keras.Model(ids, layers.Dense(11)(x))
    lengths = {"prompt_length": 4, "max_length": 7}
    report = export_tflite(model, new_path(), ["generate"], verify=False, **lengths)
    assert report.layers["positions"] < 3 * 7 * 32 * 4  # prompt and padding may be beside the rest


def test_a_new_batch_normalization_after_few_weights():
    """Its factor, 0.9995, is less than what rounding changes: a factor of 1 fits as well."""

    class Pixels(keras.layers.Layer):
        def build(self, shape):
            self.convolution = keras.layers.Conv2D(1, 1, use_bias=False)
            self.norm = keras.layers.BatchNormalization()
            self.convolution.build(shape)
            self.norm.build((None, None, None, 1))

        def call(self, x):
            return self.norm(self.convolution(x))

    layer = Pixels()
    x = keras.Input((4, 4, 3))
    model = keras.Model(x, layer(x))
    layer.convolution.kernel.assign(np.reshape([1.0, -0.3, 0.71], (1, 1, 3, 1)))
    report = export_tflite(model, new_path(), quantization="int4")
    assert report.verification.checks[0].graph_error < 1e-5


def test_categories_of_integers():
    """Keras counts and looks up with operators that LiteRT does not have."""
    found = layers.IntegerLookup(output_mode="multi_hot")
    found.adapt(np.array([70, 3, 70, 12]))
    x = keras.Input((3,), dtype="int64", name="ids")
    known = layers.IntegerLookup(vocabulary=[3, 70, 9])(x)
    y = [
        found(x),
        layers.CategoryEncoding(100, output_mode="multi_hot")(x),
        layers.CategoryEncoding(100, output_mode="count")(x),
        layers.Flatten()(layers.Embedding(4, 2)(known)),
    ]
    model = keras.Model(x, layers.Dense(5)(layers.Concatenate()(y)))
    report = export_tflite(model, new_path())
    rows = np.array([[3, 70, 3], [12, 5, 9], [99, 0, 70]])
    outputs = runtime.load(report.path).predict(rows)["output"]
    np.testing.assert_allclose(outputs, model.predict(rows, verbose=0), atol=1e-6)


def test_a_batch_of_fixed_size():
    x = keras.Input(batch_shape=(2, 3), name="x")
    model = keras.Model(x, layers.Dense(5, name="y")(keras.ops.reshape(x, (2, 3))))
    report = export_tflite(model, new_path(), batch_size=2)
    rows = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    expected = model.predict(rows, batch_size=2, verbose=0)
    outputs = runtime.load(report.path).predict(rows)["output"]
    np.testing.assert_allclose(outputs, expected, atol=1e-6)
