"""A model with the grids of a quantized checkpoint: its file holds these levels and scales."""

import keras
import numpy as np
import pytest
from compare import to_numpy

import keras_tfm
from keras_tfm import models, runtime
from keras_tfm.export import calibrate, export_tflite, save_adapter
from keras_tfm.export.quantization.four_bits import unpack
from keras_tfm.models.quantization.rounding import Grid
from keras_tfm.models.quantization.state import quantization_of
from keras_tfm.runtime import flatbuffer


def draw(shape, first, last, bits, rng, has_offsets=True):
    """A weight of this shape, its grid, and its levels (F, D)."""
    plain = Grid(bits, first, last)
    count, width = plain.rows(np.zeros(shape, "float32")).shape
    groups = 1 if bits == 8 else width // 32
    scales = (0.01 * rng.uniform(0.5, 2, (count, groups))).astype("float16")
    offsets = None
    if has_offsets:  # Q4_0's blocks with a negative scale, or zero points
        offsets = scales.astype("float32") * rng.choice([0, 1, 5], scales.shape).astype("float32")
    levels = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (count, width)).astype("int8")
    scales = scales[:, 0].astype("float32") if bits == 8 else scales
    grid = plain._replace(scales=scales, offsets=offsets)
    return grid.values(levels, scales, shape), grid, levels


def publish(model, rng, bits=4, has_offsets=True):
    """Gives a model drawn weights on drawn grids; returns their levels by path."""
    models.enable_quantization(model, f"int{bits}")
    state, grids, found = quantization_of(model), {}, {}
    for number, (weight, grid) in enumerate(state.weights):
        values, grids[number], levels = draw(
            tuple(weight.shape), *grid[1:3], grid.bits, rng, has_offsets
        )
        weight.assign(values)
        found[weight.path] = levels
    state.publish(grids)
    return found


def stored(path):
    """Levels (F, D) and scales of all 4-bit or 8-bit matrices of a file, each once."""
    file = flatbuffer.read(path.read_bytes())
    found = {}
    for use in flatbuffer.weight_uses(file):
        details = use.tensor.quantization and use.tensor.quantization.details
        if hasattr(details, "scales"):
            buffer = file.buffers[use.graph.tensors[details.scales].buffer]
            scales = np.asarray(buffer.data, "uint8").view("float16")
            found[use.tensor.buffer] = (
                unpack(file, use.tensor),
                scales.reshape(use.tensor.shape[0], -1),
            )
        elif use.tensor.type == 9:
            data = np.asarray(file.buffers[use.tensor.buffer].data, "uint8").view("int8")
            levels = data.reshape(use.tensor.shape[0], -1)
            found[use.tensor.buffer] = levels, np.asarray(use.tensor.quantization.scale)
    return list(found.values())


def assert_stored(model, levels, path):
    """The file holds each weight's levels and scales, whole or in parts of rows, and no others."""
    rest = {
        weight.path: (levels[weight.path], grid.scales)
        for weight, grid in quantization_of(model).weights
    }
    for found, scales in stored(path):
        assert any(take(rest, path, found, scales) for path in rest)
    assert all(len(x) == 0 for x, _ in rest.values())


def take(rest, path, found, scales):
    """Removes the first rows of a weight, if they are these; whether they are."""
    levels, wanted = rest[path]
    count = len(found)
    if not np.array_equal(levels[:count], found) or not np.array_equal(wanted[:count], scales):
        return False
    rest[path] = levels[count:], wanted[count:]
    return True


def llama(**options):
    keras.utils.set_random_seed(0)
    return models.llama(37, dim=64, num_layers=2, num_heads=2, num_key_value_heads=1,
                        intermediate_dim=96, max_length=16, tie_output=True, **options)  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("bits", [4, 8])
def test_both_forms_of_the_rounding_are_equal(bits, seed):
    """Levels are those drawn; other values go to the nearest level, and beyond the last to it."""
    rng = np.random.default_rng(seed)
    for shape, first, last in [((64, 5), 0, 1), ((7, 96), 1, 2), ((4, 8, 3), 0, 2)]:
        weight, grid, levels = draw(shape, first, last, bits, rng, has_offsets=seed % 2)
        found, scales = grid.round(weight)
        np.testing.assert_array_equal(found, levels)
        assert scales is grid.scales
        weight += (0.02 * rng.normal(size=shape)).astype("float32")
        found, _ = grid.round(weight)
        lowest, highest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        assert found.min() >= lowest and found.max() <= highest
        rounded = grid.values(found, scales, shape)
        tensor = grid.straight_through(keras.ops.convert_to_tensor(weight))
        np.testing.assert_array_equal(to_numpy(tensor), rounded)
        step = scales.astype("float32")
        step = step[:, np.newaxis] if bits == 8 else np.repeat(step, 32, axis=1)
        error = np.abs(grid.rows(weight - rounded))
        assert np.all((error <= 0.501 * step) | (found == lowest) | (found == highest))


@pytest.mark.default
@pytest.mark.parametrize(
    ("bits", "has_offsets"),
    [
        (4, True),
        *(pytest.param(*x, marks=pytest.mark.slow) for x in [(4, False), (8, False), (8, True)]),
    ],
)
def test_the_file_holds_the_published_grid(bits, has_offsets, tmp_path):
    """Every level and scale; also of a tied table, in a loop, of a copy, and of a .keras file."""
    model = llama()
    levels = publish(model, np.random.default_rng(0), bits, has_offsets)
    tokens = np.array([[3, 5, 7]])
    logits = to_numpy(model(tokens))
    with models.without_quantization(model):  # the values are on the grid: rounding keeps them
        np.testing.assert_array_equal(to_numpy(model(tokens)), logits)
    path = tmp_path / "model.tflite"
    report = export_tflite(model, path, ["predict", "generate"], f"int{bits}", source_length=6,
                           max_length=8, prompt_length=3)  # fmt: skip
    for check in report.verification.checks:
        assert check.graph_error <= 1e-4 == check.graph_tolerance
    assert_stored(model, levels, path)
    model.save(tmp_path / "model.keras")
    for copy in (
        keras.models.load_model(tmp_path / "model.keras"),
        models.with_dtype(model, "mixed_bfloat16"),
    ):
        again = tmp_path / f"{copy.dtype_policy.name}.tflite"
        export_tflite(copy, again, quantization=f"int{bits}", source_length=6)
        assert_stored(copy, levels, again)
    clone = keras.models.clone_model(model)
    assert all(x.grid.scales is not None for x in quantization_of(clone).weights)


def test_an_activation_follows_the_offsets(tmp_path):
    """A fused RELU is applied to the sum, not to the part without offsets."""
    x = keras.Input((64,), name="x")
    model = keras_tfm.Model(x, keras.layers.Dense(40, activation="relu")(x))
    levels = publish(model, np.random.default_rng(1))
    path = tmp_path / "model.tflite"
    (check,) = export_tflite(
        model, path, quantization="int4", verify_inputs={"x": np.eye(64, dtype="float32")}
    ).verification.checks
    assert check.graph_error <= 1e-4
    assert_stored(model, levels, path)


def test_training_keeps_the_scales(tmp_path):
    """`fit` moves the levels; scales and offsets stay, and the file follows."""
    model = llama()
    before = publish(model, np.random.default_rng(2))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(10.0), loss)
    rows = np.random.default_rng(0).integers(1, 37, (8, 6))
    model.fit(rows, np.roll(rows, -1, 1), verbose=0)
    after = {x.path: grid.round(to_numpy(x))[0] for x, grid in quantization_of(model).weights}
    assert any(np.any(after[path] != before[path]) for path in before)
    path = tmp_path / "model.tflite"
    export_tflite(model, path, quantization="int4", source_length=6)
    assert_stored(model, after, path)


def layers_with_activations():
    x = keras.Input((64,), name="x")
    y = keras.layers.Dense(40, activation="relu")(x)
    return x, keras.layers.Dense(7, activation="tanh")(y)


def products_of_einsum():
    x = keras.Input((4, 64), name="x")
    y = keras.layers.EinsumDense("abc,cde->abde", (4, 3, 32), bias_axes="de")(x)
    return x, keras.layers.EinsumDense("abde,def->abf", (4, 5), activation="gelu")(y)


@pytest.mark.parametrize("has_offsets", [False, True])
@pytest.mark.parametrize("build", [layers_with_activations, products_of_einsum])
def test_rounded_activations_beside_a_published_grid(build, has_offsets, tmp_path):
    """The model computes what the file does when it runs; offsets multiply the exact input."""
    model = keras_tfm.Model(*build())
    rng = np.random.default_rng(3)
    levels = publish(model, rng, 4, has_offsets)
    x = rng.normal(size=(6, *model.inputs[0].shape[1:])).astype("float32")
    exact = to_numpy(model(x))
    assert models.enable_quantization(model, "int4", activations=True) == 2
    assert np.abs(to_numpy(model(x)) - exact).max() > 1e-4 * np.abs(exact).max()
    path = tmp_path / "model.tflite"
    (check,) = export_tflite(
        model, path, quantization="int4", verify_inputs={"x": x}
    ).verification.checks
    assert check.graph_error <= 1e-6
    assert check.relative_error <= 1e-6
    assert_stored(model, levels, path)  # the integers stay; scales have XNNPACK's seven bits
    model.save(tmp_path / "model.keras")
    copy = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(to_numpy(copy(x)), to_numpy(model(x)))


def test_rounded_activations_of_a_language_model(tmp_path):
    """Also of a tied table, of columns of a kernel, with adapters, and in training."""
    model = llama()
    publish(model, np.random.default_rng(0))
    models.enable_lora(model, rank=2)
    models.enable_quantization(model, "int4", activations=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1.0), loss)
    rows = np.random.default_rng(0).integers(1, 37, (8, 6))
    model.fit(rows, np.roll(rows, -1, 1), verbose=0)
    assert all(np.any(to_numpy(x)) for x in model.trainable_variables)  # B began at zero
    path = tmp_path / "model.tflite"
    (check,) = export_tflite(model, path, ["predict"], "int4", source_length=6,
                             separate_adapters=True).verification.checks  # fmt: skip
    assert check.graph_error <= 1e-6
    wanted = to_numpy(model(rows))
    file = runtime.load(path, adapter=save_adapter(model, tmp_path / "adapter.npz"))
    found = np.concatenate([file.predict(x[None])["output"] for x in rows])
    # Where sums in another order round to another integer, a token differs by a step.
    errors = np.abs(found - wanted).max(axis=-1)
    assert np.quantile(errors, 0.8) < 1e-6 * np.abs(wanted).max()


def test_options_beside_a_published_grid(tmp_path):
    """Kept layers leave the grid; caches are rounded; a second call is refused."""
    model = llama()
    levels = publish(model, np.random.default_rng(0))
    with pytest.raises(ValueError, match="has the int4 grids of its checkpoint, got") as error:
        models.enable_quantization(model, "int8")
    assert "\n" not in str(error.value)
    for names, text in (
        ("head", "must be a sequence"),
        (["head"], "keep_int8: .* no layer 'head'"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            models.enable_quantization(model, "int4", keep_int8=names)
    before = {x.path: grid.scales for x, grid in quantization_of(model).weights}
    exact, wide = "decoder_1/feed_forward/outer", "decoder_0/self_attention"
    count = models.enable_quantization(
        model, "int4", keep_float=[exact], keep_int8=[wide], activations=True, cache="int8"
    )
    assert count == len(before) - 1
    state = quantization_of(model)
    for weight, grid in state.weights:
        if wide in weight.path:
            assert grid == (8, *grid[1:3], None, None)
            del levels[weight.path]
        else:
            np.testing.assert_allclose(grid.scales, before[weight.path], rtol=2**-8)
    del levels[f"{exact}/kernel"]
    with pytest.raises(ValueError, match="trained with int4 weights already"):
        models.enable_quantization(model, "int4", activations=True)
    path = tmp_path / "model.tflite"
    report = export_tflite(model, path, ["predict", "generate"], "int4", source_length=6,
                           max_length=8, prompt_length=3, cache="int8")  # fmt: skip
    assert all(x.graph_error <= 1e-4 for x in report.verification.checks)
    found = [x.tobytes() for x, _ in stored(path)]
    for rows in levels.values():
        assert any(x in rows.tobytes() for x in found)


def add_outliers(model):
    """The first 32 channels after a norm become 32 times as large, and their weights as small."""
    factors = np.repeat([32.0, 1.0], 32)
    state, grids = quantization_of(model), {}
    for number, (weight, grid) in enumerate(state.weights):
        grids[number] = grid
        if weight.path.endswith(("query_key_value/kernel", "inner/kernel")):
            grids[number] = grid.with_factors(
                to_numpy(weight), 1 / factors, np.ones(len(grid.scales))
            )
            weight.assign(to_numpy(weight) / factors[:, np.newaxis])
    state.publish(grids)
    for weight in (x for layer in model.layers for x in layer.weights if "norm" in x.path):
        if "decoder_norm" not in weight.path:
            weight.assign(to_numpy(weight) * factors)


@pytest.mark.parametrize(
    ("bits", "has_offsets"),
    [(4, True), *(pytest.param(*x, marks=pytest.mark.slow) for x in [(4, False), (8, True)])],
)
def test_calibration_keeps_the_levels(bits, has_offsets, tmp_path):
    """Scales take up outliers, also beside adapters; levels and outputs stay."""
    rng = np.random.default_rng(5)
    model = llama()
    levels = publish(model, rng, bits, has_offsets)
    if bits == 4:
        add_outliers(model)
    models.enable_lora(model, rank=2)
    for weight in model.trainable_variables:
        weight.assign(0.05 * rng.normal(size=weight.shape))
    rows = rng.integers(1, 37, (12, 6)).astype("int32")
    exact = to_numpy(model(rows))
    calibrated = calibrate(model, [rows[:4], rows[4:]], f"int{bits}")
    np.testing.assert_allclose(to_numpy(calibrated(rows)), exact, atol=1e-5 * np.abs(exact).max())
    trained, again = ([y.path for y in x.trainable_variables] for x in (model, calibrated))
    assert trained == again
    before, after = (quantization_of(x).weights for x in (model, calibrated))
    changed = []
    for (weight, grid), (_, old) in zip(after, before, strict=True):
        np.testing.assert_array_equal(grid.round(to_numpy(weight))[0], levels[weight.path])
        fractions = np.frexp(grid.scales.astype("float64") / old.scales)[0]
        assert np.all(fractions == 0.5), weight.path  # powers of two
        if not np.array_equal(grid.scales, old.scales):
            changed.append(weight.path)
    assert changed if bits == 4 else not changed  # 8 bits have a scale for each row
    errors = {}
    for name, each in (("as it is", model), ("calibrated", calibrated)):
        models.enable_quantization(each, f"int{bits}", activations=True)
        errors[name] = np.sqrt(np.mean((to_numpy(each(rows)) - exact) ** 2))
    assert errors["calibrated"] < (0.7 if bits == 4 else 1.01) * errors["as it is"], errors
    path = tmp_path / "model.tflite"
    (check,) = export_tflite(calibrated, path, ["predict"], f"int{bits}", source_length=6,
                             separate_adapters=True).verification.checks  # fmt: skip
    assert check.graph_error <= 1e-5
    assert_stored(calibrated, levels, path)


def test_calibration_of_a_published_grid_is_refused():
    """Once activations are rounded, of another width, and with layers of its own."""
    model, rows = llama(), [np.ones((1, 4), "int32")]
    publish(model, np.random.default_rng(0))
    for options, text in (
        ({"quantization": "int8"}, "has the int4 grids of its checkpoint, got quantization='int8'"),
        ({"quantization": "int4", "keep_int8": ["embedding"]}, "enable_quantization, before"),
    ):
        with pytest.raises(ValueError, match=text):
            calibrate(model, rows, **options)
    models.enable_quantization(model, "int4", activations=True)
    with pytest.raises(ValueError, match="calibrate it before enable_quantization"):
        calibrate(model, rows, "int4")


def test_grids_with_factors():
    """Levels stay, also of the smallest scale; zeros may have any; groups of offsets stay wide."""
    smallest = np.finfo("float16").tiny
    scales = np.array([[smallest, 0.01, 0.02, 0.5]] * 2, "float16")
    levels = np.random.default_rng(0).integers(-8, 8, (2, 128)).astype("int8")
    offsets = np.array([[0.25], [0.0]], "float32")
    grid = Grid(4, 0, 1, scales, offsets)
    weight = grid.values(levels, scales, (128, 2))
    ones, outputs = np.ones(128), np.array([0.5, 2.0])
    larger = np.repeat([4.0, 1.0, 2.0, 1.0], 32)
    found = grid.with_factors(weight, larger, np.ones(2))
    np.testing.assert_array_equal(found.round(weight * larger[:, np.newaxis])[0], levels)
    assert found.offsets.shape == (2, 4)
    assert grid.with_factors(weight, 1 / larger, np.ones(2)) is None  # too small for float16
    assert grid.with_factors(weight, np.linspace(1, 2, 128), np.ones(2)) is None
    levels[:, :32] = 0
    weight = grid.values(levels, scales, (128, 2))
    for inputs in (1 / larger, ones):
        found = grid.with_factors(weight, inputs, outputs)
        scaled = (weight * inputs[:, np.newaxis] * outputs).astype("float32")
        np.testing.assert_array_equal(found.round(scaled)[0], levels)
        np.testing.assert_array_equal(found.values(levels, found.scales, scaled.shape), scaled)
    assert found.offsets.shape == (2, 1)


def test_calibration_keeps_the_size_of_coarse_groups():
    """Channels that share a zero point share a factor."""
    rng, model = np.random.default_rng(1), llama()
    publish(model, rng)
    state, grids = quantization_of(model), {}
    for number, (weight, grid) in enumerate(state.weights):
        offsets = (0.01 * rng.integers(0, 5, (len(grid.scales), 1))).astype("float32")
        levels, _ = grid.round(to_numpy(weight))
        grids[number] = grid._replace(offsets=offsets)
        weight.assign(grids[number].values(levels, grid.scales, tuple(weight.shape)))
    state.publish(grids)
    rows = rng.integers(1, 37, (4, 6)).astype("int32")
    calibrated = calibrate(model, [rows], "int4")
    assert all(x.grid.offsets.shape[1] == 1 for x in quantization_of(calibrated).weights)
    np.testing.assert_allclose(to_numpy(calibrated(rows)), to_numpy(model(rows)), atol=1e-4)
