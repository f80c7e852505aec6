"""A file of a model that was trained with rounding stores its grid, and computes what it does."""

import re

import keras
import numpy as np
import pytest
from compare import to_numpy
from grids import first_of

import keras_tfm
from keras_tfm import layers, models, runtime
from keras_tfm.export import calibrate, export_tflite, save_adapter
from keras_tfm.export.quantization import trained_weights
from keras_tfm.export.quantization.trained_weights import rounded_copy
from keras_tfm.export.verification import verify
from keras_tfm.export.verification.float_file import FloatFile
from keras_tfm.generation import generate
from keras_tfm.models.quantization.state import quantization_of
from keras_tfm.runtime import flatbuffer


def gpt(dim=64):
    """Heads of 32 dimensions: scores are divided by a number that no bfloat16 is."""
    keras.utils.set_random_seed(0)
    return models.gpt(41, dim=dim, num_layers=2, num_heads=dim // 32, intermediate_dim=96,
                      max_length=8, dropout=0.0)  # fmt: skip


def randomize(model):
    """Gammas, biases and kernels as after a training."""
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        offset = 1.0 if variable.name == "gamma" else 0.0
        size = 0.3 if len(variable.shape) == 1 else variable.shape[0] ** -0.5
        variable.assign(offset + size * rng.normal(size=variable.shape))
    return model


def stored_bits(path):
    """By the size of a weight, the set of formats in which a file stores it."""
    file = flatbuffer.read(path.read_bytes())
    found = {}
    for use in flatbuffer.weight_uses(file):
        size = int(np.prod(use.tensor.shape))
        found.setdefault(size, set()).add({0: 32, 9: 8, 17: 4}[use.tensor.type])
    return found


def grid_values(model):
    return {
        x.variable.path: x.grid.rows(x.grid.values(*x.grid.round(w), w.shape))
        for x in quantization_of(model).weights
        for w in [to_numpy(x.variable)]
    }


@pytest.mark.default
@pytest.mark.parametrize(
    ("quantization", "signatures"),
    first_of([("int4", ["predict"]), ("int4", ["generate"]), ("int8", ["predict", "generate"])]),
)
def test_the_file_holds_the_trained_grid(quantization, signatures, tmp_path):
    """Bit for bit; no weight is left in float32; the graph in float32 has float errors.

    A loop with a tied table is in test_published_grids.py.
    """
    model = randomize(gpt())
    count = models.enable_quantization(model, quantization)
    path = tmp_path / "model.tflite"
    lengths = {"predict": {"source_length": 6}, "generate": {"max_length": 8, "prompt_length": 3}}
    options = {name: value for x in signatures for name, value in lengths[x].items()}
    report = export_tflite(model, path, signatures, quantization, **options)
    graph = FloatFile(path.read_bytes())
    stored = [x.values for x in graph.stored.values()]
    wanted = grid_values(model)
    assert len(wanted) == count == len(stored)
    for name, rows in wanted.items():
        assert any(x.shape == rows.shape and np.array_equal(x, rows) for x in stored), name
    for check in report.verification.checks:
        assert check.graph_error <= 1e-4 == check.graph_tolerance
    other = stored_bits(path)
    assert set().union(*(other[x.size] for x in wanted.values())) == {
        4 if quantization == "int4" else 8
    }
    # Verified again, from the model in a file.
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert verify.verify(loaded, path).checks[0].graph_error <= 1e-4


def test_large_weights_are_stand_ins(tmp_path):
    """Of more than 65,536 values; the gamma before them stays apart."""
    keras.utils.set_random_seed(0)
    x = keras.Input((288,))
    y = keras.layers.Dense(512, activation="gelu")(layers.LayerNormalization()(x))
    y = layers.LayerNormalization()(keras.layers.Dense(288)(y))
    model = randomize(keras_tfm.Model(x, keras.layers.Dense(300, use_bias=False)(y)))
    models.enable_quantization(model, "int4")
    path = tmp_path / "model.tflite"
    (check,) = export_tflite(model, path, quantization="int4").verification.checks
    assert check.graph_error <= 1e-4
    graph = FloatFile(path.read_bytes())
    stored = [x.values for x in graph.stored.values()]
    for rows in grid_values(model).values():
        assert any(np.array_equal(x, rows) for x in stored if x.shape == rows.shape)


@pytest.mark.parametrize("quantization", ["int4", "int8"])
def test_layers_of_keras(quantization, tmp_path):
    """Factors of a batch normalisation become part of the scales of a convolution."""
    keras.utils.set_random_seed(0)
    x = keras.Input((6, 8, 32))
    y = keras.layers.Conv2D(64, 3, strides=2, use_bias=False, name="convolution")(x)
    y = keras.layers.ReLU()(keras.layers.BatchNormalization(name="norm")(y))
    y = keras.layers.Reshape((6, 64))(y)
    y = keras.layers.MultiHeadAttention(2, 32, name="attention")(y, y)
    y = keras.layers.Dense(40, activation="relu", name="kept")(y)
    model = randomize(keras_tfm.Model(x, keras.layers.Dense(64, name="output")(y)))
    norm = model.get_layer("norm")
    norm.gamma.assign(np.linspace(-1, 2, 64))
    norm.moving_variance.assign(np.linspace(0.3, 2, 64))
    keep = {"keep_float": ["kept"]}
    if quantization == "int4":
        keep["keep_int8"] = ["attention/query"]
    models.enable_quantization(model, quantization, **keep)
    path = tmp_path / "model.tflite"
    (check,) = export_tflite(model, path, quantization=quantization, **keep).verification.checks
    assert check.graph_error <= 1e-4
    bits = 4 if quantization == "int4" else 8
    assert stored_bits(path) == {
        9 * 32 * 64: {8},
        64 * 64: {bits, 8},
        64 * 40: {8, 32},  # the output has 40 inputs
    }


def products(kind):
    """A small model with two products, and the shape of its input."""
    if kind == "einsum":
        x = keras.Input((5, 2, 32))
        y = keras.layers.EinsumDense("abcd,cde->abe", (None, 64), bias_axes="e")(x)
    elif kind == "convolution":
        x = keras.Input((8, 8, 32))
        y = keras.layers.Conv2D(64, 3, activation="relu")(x)
    elif kind == "keras":
        x = keras.Input((5, 64))
        y = keras.layers.MultiHeadAttention(2, 32)(x, x)
    elif kind == "unequal parts":  # of 128, 144 and 8 columns
        x = keras.Input((5, 64))
        y = layers.Mamba2(8, 16, 8)(x)
    else:
        x = keras.Input((5, 64))
        norms = kind == "norms first"
        y = layers.TransformerEncoderBlock(96, 2, normalize_first=norms)(x)
    return keras_tfm.Model(x, keras.layers.Dense(48)(y)), x.shape[1:]


@pytest.mark.parametrize("quantization", ["int4", "int8"])
@pytest.mark.parametrize(
    "kind", ["einsum", "convolution", "keras", "norms last", "norms first", "unequal parts"]
)
def test_a_file_computes_what_a_model_with_rounded_activations_does(kind, quantization, tmp_path):
    """XNNPACK's own rows: no bias or beta of a layer before is moved behind the product."""
    keras.utils.set_random_seed(0)
    model, shape = products(kind)
    randomize(model)
    rows = np.random.default_rng(1).normal(0.4, 1.0, (6, *shape)).astype("float32")
    models.enable_quantization(model, quantization)
    exact = to_numpy(model(rows))
    models.disable_quantization(model)
    models.enable_quantization(model, quantization, activations=True)
    wanted = to_numpy(model(rows))
    path = tmp_path / "model.tflite"
    (check,) = export_tflite(model, path, quantization=quantization).verification.checks
    assert check.graph_error <= 1e-4
    file = runtime.load(path)
    found = np.concatenate([file.predict(x[None])["output"] for x in rows])
    size = np.abs(wanted).max()
    assert np.abs(found - exact).max() > 1e-3 * size
    # Where sums in another order round to another integer, a row differs by a step.
    errors = np.sort(np.abs(found - wanted).reshape(len(rows), -1).max(axis=1))
    assert errors[-2] < 1e-5 * size and errors[-1] < 0.05 * size
    if kind == "unequal parts":
        assert all(stored_bits(path)[64 * count] <= {4, 8} for count in (128, 144, 8))
    graphs = flatbuffer.read(path.read_bytes())
    assert not any(
        flatbuffer.is_operator(graphs, x, "MAXIMUM") for x in graphs.subgraphs[0].operators
    )


@pytest.mark.parametrize("activations", first_of([True, False]))
def test_int8_caches(activations, tmp_path):
    """A loop and host-driven steps compute what a full pass with rounded keys and values does."""
    model = randomize(gpt())
    models.enable_quantization(model, "int4", activations=activations, cache="int8")
    path = tmp_path / "model.tflite"
    options = {"prompt_length": 3, "max_length": 8}
    report = export_tflite(
        model, path, ["generate", "prefill", "decode"], "int4", cache="int8", **options
    )
    for check in report.verification.checks:
        assert check.graph_error <= 1e-4
    if activations:  # nothing is left but the order of sums
        errors = sorted(check.relative_error for check in report.verification.checks)
        assert errors[0] < 1e-5 and errors[-1] < 0.02
    ids = np.array([[3, 9, 27]], "int32")
    tokens = generate(model, ids, 8).tokens
    assert activations is False or np.array_equal(runtime.load(path).generate(ids).tokens, tokens)
    with pytest.raises(ValueError, match="is trained with int8 caches, got cache='float32'"):
        export_tflite(model, path, ["generate"], "int4", overwrite=True, **options)
    # Without caches, there is nothing to round.
    report = export_tflite(model, tmp_path / "predict.tflite", ["predict"], "int4", source_length=6)
    assert report.verification.checks[0].graph_error <= 1e-4


@pytest.mark.default
def test_a_wrong_weight_is_found(tmp_path, monkeypatch):
    """The file's own weights are compared with the model's, not those nearest to them."""
    model = randomize(gpt())
    models.enable_quantization(model, "int8")
    levels = trained_weights.TrainedWeight.levels

    def wrong(self, rows, part):
        result = levels(self, rows, part)
        result[0, 0] = -result[0, 0] // 2
        return result

    monkeypatch.setattr(trained_weights.TrainedWeight, "levels", wrong)
    with pytest.raises(verify.VerificationError, match="a weight or an operator differs"):
        export_tflite(model, tmp_path / "model.tflite", quantization="int8", source_length=6)
    assert not (tmp_path / "model.tflite").exists()


@pytest.mark.parametrize(
    ("dtype", "activations"), first_of([("mixed_bfloat16", False), ("float32", True)])
)
def test_adapters_beside_the_trained_grid(dtype, activations, tmp_path):
    """QLoRA: one base file with the trained integers, and an adapter file for each task."""
    model = randomize(models.with_dtype(gpt(), dtype))
    models.enable_lora(model, 4, 6.0)
    models.enable_quantization(model, "int4", activations=activations)
    wanted = grid_values(model)
    path = tmp_path / "base.tflite"
    report = export_tflite(model, path, ["predict", "generate"], "int4", source_length=6,
                           max_length=8, prompt_length=3, separate_adapters=True)  # fmt: skip
    for check in report.verification.checks:
        assert check.graph_error <= 1e-4 == check.graph_tolerance
    graph = FloatFile(path.read_bytes())
    stored = [x.values for x in graph.stored.values()]
    assert len(stored) == len(wanted)
    for name, rows in wanted.items():
        assert any(x.shape == rows.shape and np.array_equal(x, rows) for x in stored), name
    ids = np.random.default_rng(1).integers(1, 41, (4, 6)).astype("int32")
    results = []
    for seed in range(2):
        model.compile(keras.optimizers.Adam(3e-2), "sparse_categorical_crossentropy")
        model.fit(ids, np.roll(ids, seed + 1, axis=1), epochs=2, verbose=0)
        adapter = save_adapter(model, tmp_path / f"{seed}.npz")
        for check in verify.verify(model, path, adapter=adapter).checks:
            assert check.graph_error <= 1e-4 == check.graph_tolerance
            if activations:  # but for sums that round to another integer
                assert check.relative_error <= 2e-3
        results.append(runtime.load(path, adapter=adapter).predict(ids)["output"])
    assert np.abs(results[0] - results[1]).max() > 0.1
    # The integers are those of before the training.
    for name, rows in grid_values(model).items():
        np.testing.assert_array_equal(rows, wanted[name])
    for run in (
        lambda: export_tflite(model, tmp_path / "merged.tflite", quantization="int4"),
        lambda: verify.verify(model, path),
    ):
        with pytest.raises(ValueError, match="has LoRA adapters beside rounded weights") as error:
            run()
        assert "\n" not in str(error.value)
    # Merged: another training puts the sum on a grid of its own.
    merged = models.with_dtype(model, "float32")
    models.enable_quantization(merged, "int4")
    report = export_tflite(merged, tmp_path / "merged.tflite", quantization="int4",
                           source_length=6)  # fmt: skip
    assert report.verification.checks[0].graph_error <= 1e-4
    other = FloatFile((tmp_path / "merged.tflite").read_bytes())
    name = next(x for x in wanted if "query_key_value" in x)
    ours = grid_values(merged)[name]
    assert any(np.array_equal(x.values, ours) for x in other.stored.values())
    assert not np.array_equal(ours, wanted[name])


def test_half_precision_and_the_grid(tmp_path):
    """The copy in float32 has the float32 weights' grid, whatever the model computes in."""
    model = randomize(models.with_dtype(gpt(), "mixed_bfloat16"))
    models.enable_quantization(model, "int4")
    copy = rounded_copy(model)
    for name, rows in grid_values(model).items():
        variable = next(x for x in copy.weights if x.path == name)
        grid = next(x.grid for x in quantization_of(model).weights if x.variable.path == name)
        np.testing.assert_array_equal(grid.rows(to_numpy(variable)), rows)


def with_rounded_model_inside():
    inner = randomize(gpt())
    models.enable_quantization(inner, "int4", activations=True)
    x = keras.Input((6,), dtype="int32", name="ids")
    return inner, keras.Model(x, keras.layers.Dense(3, name="head")(inner(x)), name="outer")


def test_a_rounded_model_inside_another_one_is_refused(tmp_path):
    """A file in 4 bits would fold norms into its weights, which are then on no grid."""
    _, outer = with_rounded_model_inside()
    message = (
        "gpt inside outer is trained with int4 weights, and outer is not: call models."
        "disable_quantization(gpt), models.enable_quantization(outer, 'int4'), and train it a "
        "little more"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        export_tflite(outer, tmp_path / "model.tflite", quantization="int4")


@pytest.mark.slow
def test_a_rounded_model_inside_another_one_in_float32(tmp_path):
    inner, outer = with_rounded_model_inside()
    path = tmp_path / "model.tflite"
    (check,) = export_tflite(outer, path).verification.checks
    assert check.relative_error <= 1e-5
    assert quantization_of(inner).activations  # the model is as it was
    ids = np.array([[3, 4, 5, 6, 7, 8]], "int32")
    found = runtime.load(path).predict(ids)["output"]
    rounded = to_numpy(outer(ids))
    assert abs(found - rounded).max() <= 0.05 * abs(rounded).max()  # activations of 8 bits
    models.disable_quantization(inner)
    assert abs(found - to_numpy(outer(ids))).max() > 0.05 * abs(rounded).max()
    outer = keras_tfm.Model(outer.inputs, outer.outputs)
    models.enable_quantization(outer, "int4")
    (check,) = export_tflite(outer, path, quantization="int4").verification.checks
    assert check.graph_error <= 1e-4


def errors():
    model = gpt()
    models.enable_quantization(model, "int4", keep_float=["decoder_0"])
    x = keras.Input((4,))
    return model, keras.Model(x, keras.layers.Dense(3)(x))


ERRORS = {
    "float32": ({}, "is trained with int4 weights, got quantization='float32'"),
    "int8": ({"quantization": "int8"}, "export it with quantization='int4', or call"),
    "int8_full": (
        {"quantization": "int8_full", "representative_data": [np.ones((1, 6), "int32")]},
        "got quantization='int8_full'",
    ),
    "kept": (
        {"quantization": "int4", "keep_float": ["decoder_1"]},
        r"keep_float must be that of models.enable_quantization, \['decoder_0'\]",
    ),
    "GPU": ({"quantization": "int4", "accelerator": "gpu"}, "is for accelerator='cpu'"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_one_line(name, tmp_path):
    model, _ = errors()
    options, text = ERRORS[name]
    with pytest.raises(ValueError, match=text) as error:
        export_tflite(model, tmp_path / "model.tflite", source_length=6, **options)
    assert "\n" not in str(error.value)


def test_more_errors(tmp_path):
    model, other = errors()
    with pytest.raises(ValueError, match="export it alone"):
        export_tflite({"a": model, "b": other}, tmp_path / "model.tflite", quantization="int4",
                      source_length=6)  # fmt: skip
    with pytest.raises(ValueError, match="which calibration would change"):
        calibrate(model, [np.ones((1, 6), "int32")], "int4")
    x = keras.Input((64,), name="sensor")
    scaled = keras.layers.Normalization(mean=1e5, variance=1e4)(x)
    raw = keras_tfm.Model(x, keras.layers.Dense(32, name="first")(scaled))
    models.enable_quantization(raw, "int4")
    with pytest.raises(ValueError, match=r"first reads the raw numbers of sensor \(.*keep_float="):
        export_tflite(raw, tmp_path / "model.tflite", quantization="int4")


@pytest.mark.parametrize("zeros", ["none", "the first row", "the columns that are looked at first"])
def test_weights_are_found_among_others_of_their_size(zeros):
    """Whole or in adjacent rows, whatever their factors, and however many zeros begin them."""
    rng = np.random.default_rng(0)
    inputs = keras.Input((64,))
    model = keras_tfm.Model(inputs, [keras.layers.Dense(24)(inputs) for _ in range(4)])
    for layer in model.layers[1:]:
        kernel = rng.integers(-7, 8, layer.kernel.shape).astype("float32")
        if zeros == "the first row":
            kernel[:, 0] = 0
        elif zeros != "none":
            kernel[::4] = 0
        layer.kernel.assign(kernel)
    models.enable_quantization(model, "int8")
    trained = trained_weights.trained_weights(rounded_copy(model))
    samples = [trained_weights._columns(x.rows) for x in trained.weights]
    for number, weight in enumerate(trained.weights):
        for start, count in ((0, 24), (8, 8), (5, 11)):
            factors = rng.uniform(0.5, 2.0, (count, 1)).astype("float32")
            matrix = weight.rows[start : start + count] * factors
            found = trained_weights._find(trained, samples, matrix)
            assert found.weight is trained.weights[number]
            assert found.part == slice(start, start + count)
            known = np.any(matrix != 0, axis=1)
            np.testing.assert_allclose(found.factors[known], factors[known, 0], rtol=1e-6)
            matrix[-1, 5] += 0.1
            assert trained_weights._find(trained, samples, matrix) is None
