"""`calibrate`: the same outputs, and less lost by rounding."""

import keras
import numpy as np
import pytest
from grids import first_of
from small_models import randomize

from keras_tfm import runtime
from keras_tfm.export import calibrate, export_tflite, verify
from keras_tfm.export.quantization import four_bits, gptq
from keras_tfm.export.quantization.smoothing import tied_tables
from keras_tfm.export.verification import float_file
from keras_tfm.generation import Generator
from keras_tfm.generation.interface import interface_of
from keras_tfm.keras_internals import sublayers
from keras_tfm.layers import TokenEmbedding
from keras_tfm.layers.transformer_block import TransformerBlock
from keras_tfm.models import bert, deberta, gemma, gpt, llama, t5, transformer

VOCABULARY, LENGTH = 53, 9
SIZE = {"dim": 32, "num_layers": 2, "num_heads": 4, "intermediate_dim": 96}
WIDER = {"max_length": LENGTH}
INPUTS = ("query_key_value", "query", "key", "value", "inner")
RNG = np.random.default_rng(7)
MODELS = {
    "rotary, grouped, gated": lambda: llama(VOCABULARY, **SIZE, **WIDER, num_key_value_heads=2),
    "norms after and before": lambda: gemma(
        VOCABULARY, **SIZE, **WIDER, head_dim=8, post_norm=True
    ),
    "layer norm with beta": lambda: gpt(VOCABULARY, **SIZE, **WIDER),
    "norms after": lambda: bert(VOCABULARY, **SIZE, **WIDER),
    "position projections": lambda: deberta(
        VOCABULARY, **SIZE, max_length=LENGTH, max_distance=LENGTH, num_buckets=8
    ),
    "cross-attention": lambda: transformer(VOCABULARY, **SIZE, normalize_first=True),
    "position bias": lambda: t5(VOCABULARY, **SIZE),
}


def ids(rows=4, length=LENGTH):
    return RNG.integers(1, VOCABULARY, (rows, length)).astype("int32")


def inputs_of(model):
    high = {"segments": 2}
    return {
        x.name: RNG.integers(0, high.get(x.name, VOCABULARY), (4, LENGTH)).astype("int32")
        for x in model.inputs
    }


def with_outliers(model):
    """Two channels of each sublayer's input are 40 times as large, and their weights as small."""
    factors = np.ones(SIZE["dim"], "float32")
    factors[[3, 17]] = 40.0
    for block in (x for x in sublayers(model) if isinstance(x, TransformerBlock)):
        for residual, layer in (
            (block.self_attention_residual, block.self_attention),
            (block.feed_forward_residual, block.feed_forward),
        ):
            for weight in (residual.input_norm or residual.sum_norm).weights:
                weight.assign(weight * factors)
            for part in (getattr(layer, x, None) for x in INPUTS):
                if part is not None:
                    part.kernel.assign(part.kernel / factors[:, np.newaxis])
    return model


def named(model, path):
    (layer,) = (x for x in sublayers(model) if (x.path or "").endswith(path))
    return layer


def distance(x, y):
    return float(np.sqrt(np.mean((x - y) ** 2) / np.mean(y**2)))


SIMILAR = ("layer norm with beta", "norms after", "position bias")  # to another of them


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] * (x in SIMILAR)) for x in MODELS]
)
def test_outputs_stay_the_same(name):
    model = randomize(MODELS[name](), 3)
    examples = [inputs_of(model), inputs_of(model)]
    before = [np.array(w) for w in model.weights]
    calibrated = calibrate(model, examples)
    new = inputs_of(model)
    wanted, found = (keras.tree.flatten(interface_of(m).call(new)) for m in (model, calibrated))
    for x, y in zip(found, wanted, strict=True):
        assert distance(np.array(x), np.array(y)) < 1e-4
    changed = [
        w.path
        for w, old in zip(calibrated.weights, before, strict=True)
        if not np.array_equal(w, old)
    ]
    assert len(changed) >= 2 * SIZE["num_layers"]
    assert all(np.array_equal(w, old) for w, old in zip(model.weights, before, strict=True))


def stored_in(path):
    """The rounded weights of a file, as float32."""
    return [x.values for x in float_file.FloatFile(path.read_bytes()).stored.values()]


def outputs_of_file(model, path, tokens, **options):
    export_tflite(
        model, path, source_length=LENGTH, batch_size=len(tokens), verify=False, **options
    )
    return runtime.load(path).predict(tokens)["output"]


def test_outliers_cost_nothing_in_int8(tmp_path):
    model, tokens = randomize(MODELS["rotary, grouped, gated"](), 3), ids(16)
    wanted = np.array(model(tokens))
    errors = {}
    for kind in ("even", "outliers", "calibrated"):
        if kind == "outliers":
            assert distance(np.array(with_outliers(model)(tokens)), wanted) < 1e-4
        if kind == "calibrated":
            model = calibrate(model, [ids(16) for _ in range(3)])
        found = outputs_of_file(model, tmp_path / f"{kind}.tflite", tokens, quantization="int8")
        errors[kind] = distance(found, wanted)
    assert errors["outliers"] > 1.4 * errors["even"]
    assert errors["calibrated"] < 1.1 * errors["even"]


@pytest.mark.parametrize(
    "name", [pytest.param("layer norm with beta", marks=pytest.mark.slow), "rotary, grouped, gated"]
)
def test_outliers_of_tied_logits(name, tmp_path):
    """The table takes them up, and its lookups divide: of ids, and of a file that generates."""
    tied = {"tie_output": True} if name.startswith("rotary") else {}
    build = {"layer norm with beta": gpt, "rotary, grouped, gated": llama}[name]
    model = randomize(build(VOCABULARY, **SIZE, **WIDER, **tied), 3)
    (table, norm), *rest = tied_tables(model)
    assert not rest and table.scale is False
    factors = np.where(np.isin(np.arange(SIZE["dim"]), [3, 17]), 40.0, 1.0)
    norm.weights[0].assign(norm.weights[0] * factors)
    table.embeddings.assign(table.embeddings / factors)
    tokens = ids(16)
    calibrated = calibrate(model, [ids(16) for _ in range(3)])
    scale = np.array(named(calibrated, table.path).scale)
    assert scale.min() < 0.2 * np.median(scale)
    errors = {}
    for kind, each in (("as it is", model), ("calibrated", calibrated)):
        found = outputs_of_file(each, tmp_path / f"{kind}.tflite", tokens, quantization="int8")
        errors[kind] = distance(found, np.array(each(tokens)))
    assert errors["calibrated"] < 0.8 * errors["as it is"], errors
    calibrated.save(tmp_path / "calibrated.keras")
    copy = keras.models.load_model(tmp_path / "calibrated.keras")
    np.testing.assert_array_equal(np.array(copy(tokens)), np.array(calibrated(tokens)))
    path = tmp_path / "generate.tflite"
    export_tflite(copy, path, ["generate"], prompt_length=3, max_length=LENGTH)
    generated = runtime.load(path).generate(tokens[:1, :3]).tokens
    wanted = Generator(model, LENGTH)(tokens[:1, :3]).tokens
    np.testing.assert_array_equal(generated, wanted)


def test_logits_that_others_read_stay():
    """A norm that is an output, or read by another layer, is not changed."""
    model = llama(VOCABULARY, **SIZE, **WIDER, tie_output=True)
    assert len(tied_tables(model)) == 1
    both = keras.Model(model.input, [model.output, model.features])
    assert tied_tables(both) == []
    head = keras.layers.Dense(2)(model.features)
    assert tied_tables(keras.Model(model.input, [model.output, head])) == []
    x = keras.Input((8,), dtype="int32")
    table, norm = TokenEmbedding(VOCABULARY, 16), keras.layers.LayerNormalization()
    vectors = table(x)
    inner = keras.Model(vectors, keras.layers.Dense(2)(norm(vectors)))
    logits = table(norm(vectors), reverse=True)
    assert tied_tables(keras.Model(x, [logits, inner(vectors)])) == []
    across = keras.layers.LayerNormalization(axis=1)(vectors)
    assert tied_tables(keras.Model(x, table(across, reverse=True))) == []
    table = TokenEmbedding(VOCABULARY, 16)
    last = table(keras.layers.LayerNormalization()(table(x)), reverse=True)
    (tied,) = tied_tables(keras.Model(x, last))
    assert tied.table is table
    tokens = ids()
    for x, y in zip(both(tokens), calibrate(both, [tokens])(tokens), strict=True):
        assert distance(np.array(y), np.array(x)) < 1e-4


@pytest.mark.parametrize(
    "name",
    [pytest.param("rotary, grouped, gated", marks=pytest.mark.slow), "layer norm with beta"],
)
def test_the_weights_of_gptq_are_those_of_the_file(name, tmp_path):
    model, tokens, path = randomize(MODELS[name](), 3), ids(16), tmp_path / "4.tflite"
    kept = ["embedding", "self_attention"]
    calibrated = calibrate(model, [ids(16) for _ in range(8)], "int4", keep_int8=kept)
    outputs_of_file(calibrated, path, tokens, quantization="int4", keep_int8=kept)
    for part in ("inner", "outer"):
        kernel = np.array(named(calibrated, f"0/feed_forward/{part}").kernel).T
        apart = "gated" in name and part == "inner"  # gate and values are two matrices
        for matrix in np.split(kernel, 1 + apart):
            stored = [x for x in stored_in(path) if x.shape == matrix.shape]
            assert any(np.allclose(x, matrix, rtol=1e-6, atol=1e-7) for x in stored), part
    assert verify(calibrated, path).failures == []


@pytest.mark.parametrize("name", first_of(["rotary, grouped, gated", "layer norm with beta"]))
def test_named_layers_get_eight_bits(name, tmp_path):
    model = randomize(MODELS[name](), 5)
    options = {"source_length": LENGTH, "quantization": "int4"}
    small = export_tflite(model, tmp_path / "4.tflite", **options)
    large = export_tflite(model, tmp_path / "8.tflite", **options, keep_int8=["feed_forward"])
    width, inner = SIZE["dim"], SIZE["intermediate_dim"]
    for path in small.layers:
        grows = path.endswith(("inner", "outer"))
        # Half a byte a weight more; four bytes a column instead of two a block of 32 rows.
        more = width * inner // 2 * (2 if "gated" in name and path.endswith("inner") else 1)
        assert (large.layers[path] - small.layers[path] > 0.7 * more) == grows, path


def test_rounding_again_changes_nothing():
    kernel = RNG.normal(size=(96, 7)).astype("float32")
    kernel[32:64, 2] = 0.0
    x = RNG.normal(size=(200, 96)) @ RNG.normal(size=(96, 96))
    found = gptq.compensate(kernel, (x.T @ x).astype("float32"))
    np.testing.assert_array_equal(gptq.round_kernel(found, 4), found)


def test_compensation_reduces_the_error_of_the_product():
    kernel = RNG.normal(size=(64, 31)).astype("float32")
    x = RNG.normal(size=(500, 64)) @ RNG.normal(size=(64, 64))  # correlated channels
    found = gptq.compensate(kernel, (x.T @ x).astype("float32"))
    assert distance(x @ found, x @ kernel) < 0.75 * distance(
        x @ gptq.round_kernel(kernel, 4), x @ kernel
    )


def test_independent_channels_have_nothing_to_compensate():
    kernel = RNG.normal(size=(32, 5)).astype("float32")
    found = gptq.compensate(kernel, np.eye(32, dtype="float32"))
    np.testing.assert_allclose(found, gptq.round_kernel(kernel, 4), atol=1e-6)


def test_rounded_is_what_the_quantizer_stores(tmp_path):
    x = keras.Input((64,))
    dense = keras.layers.Dense(33, use_bias=False)
    model = keras.Model(x, dense(x))
    export_tflite(model, tmp_path / "4.tflite", quantization="int4", verify=False)
    (found,) = stored_in(tmp_path / "4.tflite")
    np.testing.assert_allclose(gptq.round_kernel(np.array(dense.kernel), 4).T, found, atol=1e-7)


def test_huge_weights_stay_in_eight_bits():
    model = randomize(MODELS["layer norm with beta"](), 5)
    layer = named(model, "0/feed_forward/outer")
    layer.kernel.assign(layer.kernel * 1e7)
    assert four_bits.matrix_bits(np.array(layer.kernel).T) == 8
    found = calibrate(model, [ids()], "int4")(ids())
    assert np.all(np.isfinite(found))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"quantization": "float16"}, "quantization must be 'int8' or 'int4', got 'float16'"),
        ({"examples": []}, "examples must have some inputs of the model, got none"),
        ({"examples": [{"token": ids()}]}, r"examples\[0\] must have the inputs"),
        ({"examples": [ids(), ids()[0]]}, r"examples\[1\]: tokens must have shape \(None, None\)"),
        ({"examples": [ids() + 0.5]}, r"examples\[0\]: tokens must be int32, got float64"),
        ({"examples": [[1, 2, 3]]}, r"examples\[0\] must be a dictionary of arrays by input name"),
        ({"keep_int8": ["feed_froward"]}, "keep_int8: .* similar names are"),
    ],
)
def test_wrong_arguments(change, message):
    model = MODELS["layer norm with beta"]()
    with pytest.raises(ValueError, match=message):
        calibrate(model, **{"examples": [ids()], **change})


def test_a_model_without_blocks():
    x = keras.Input((3,))
    model = keras.Model(x, keras.layers.Dense(2)(x), name="small")
    with pytest.raises(ValueError, match="small has no TransformerEncoderBlock"):
        calibrate(model, [np.ones((1, 3), "float32")])


def test_keep_int8_is_for_int4():
    model = MODELS["layer norm with beta"]()
    with pytest.raises(
        ValueError, match="keep_int8 needs quantization int4, got quantization='int8'"
    ):
        export_tflite(model, "never.tflite", quantization="int8", keep_int8=["embedding"])
