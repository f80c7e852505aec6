"""Quantization-aware training: every way to run a model reads the rounded weights."""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import tensorflow_only

import keras_tfm
from keras_tfm import generation, layers, models
from keras_tfm.models.quantization.rounded_weights import rounded_weights
from keras_tfm.models.quantization.state import quantization_of, rounded_reads

ROOT = Path(__file__).parents[2]
SIZE = {"dim": 32, "num_layers": 2, "num_heads": 2, "intermediate_dim": 40, "max_length": 7}
IDS = np.array([[3, 4, 5], [6, 7, 1]], "int32")


def gpt(**options):
    keras.utils.set_random_seed(0)
    return models.gpt(13, **{**SIZE, **options}, dropout=0.0)


def rounded_copy(model, *arguments):
    """The model with rounded values in its variables."""
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    for variable, grid in rounded_weights(copy, *arguments):
        values = to_numpy(variable).astype("float32")
        variable.assign(grid.values(*grid.round(values), values.shape))
    return copy


def trained(model, epochs=2, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, **options)
    return model.fit(IDS, IDS, epochs=epochs, verbose=0).history["loss"]


def test_which_weights():
    keras.utils.set_random_seed(0)
    x = keras.Input((6, 64))
    y = keras.layers.MultiHeadAttention(2, 32, name="attention")(x, x)
    y = keras.layers.Conv1D(5, 3, name="convolution")(y)
    y = keras.layers.Conv1D(5, 3, groups=5, name="depthwise")(y)
    y = keras.layers.Dense(3, name="narrow")(keras.layers.LayerNormalization()(y))
    model = keras_tfm.Model(x, y)
    found = {x.variable.path: x.grid for x in rounded_weights(model, "int4")}
    assert {path: x.bits for path, x in found.items()} == {
        "attention/query/kernel": 4,
        "attention/key/kernel": 4,
        "attention/value/kernel": 4,
        "attention/attention_output/kernel": 4,
        "convolution/kernel": 8,
        "narrow/kernel": 8,
    }
    inputs = {path: x[1:3] for path, x in found.items()}
    assert inputs["attention/query/kernel"] == (0, 1)  # (D, H, K)
    assert inputs["attention/attention_output/kernel"] == (0, 2)  # (H, K, D)
    assert inputs["convolution/kernel"] == (0, 2)
    small = {x.variable.path for x in rounded_weights(model, "int8", ["attention/query"])}
    assert small == {
        *(f"attention/{x}/kernel" for x in ("key", "value", "attention_output"))
    }  # the convolution has 960 values


def test_tied_tables_are_rounded_once_and_kept_layers_are_not():
    model = gpt()
    every = {x.variable.path: x.grid.bits for x in rounded_weights(model, "int4")}
    assert [path for path in every if path.endswith("embeddings")] == [
        model.embedding.embeddings.path
    ]
    kept = rounded_weights(model, "int4", [model.embedding.name], ["decoder_1"])
    bits = {x.variable.path: x.grid.bits for x in kept}
    assert model.embedding.embeddings.path not in bits
    wanted = {path: 8 if "decoder_1" in path else x for path, x in every.items()}
    assert {**wanted, **bits} == wanted and len(bits) == len(every) - 1


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16", "bfloat16"])
def test_every_call_has_rounded_weights(dtype):
    model = gpt(dtype=dtype)
    exact = to_numpy(model(IDS))
    copy = rounded_copy(model, "int4", ["decoder_0"])
    wanted = to_numpy(copy(IDS))
    assert np.abs(wanted - exact).max() > 0.02
    assert models.enable_quantization(model, "int4", keep_float=["decoder_0"]) == 5
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    copy.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    # The same values: only the order of sums may differ.
    tolerance = 1e-6 if dtype == "float32" else 0.02
    assert_close(model(IDS), wanted, tolerance)
    assert_close(model.predict(IDS, verbose=0), wanted, tolerance)
    losses = [x.evaluate(IDS, IDS, verbose=0) for x in (model, copy)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4 if dtype == "float32" else 0.02)
    with models.without_quantization(model):
        assert_close(model.predict(IDS, verbose=0), exact, tolerance)
    assert_close(model.predict(IDS, verbose=0), wanted, tolerance)
    models.disable_quantization(model)
    assert_close(model.predict(IDS, verbose=0), exact, tolerance)


def tied():
    """Ids to logits: a table, which is also the output's, and a frozen matrix between."""
    keras.utils.set_random_seed(0)
    ids = keras.Input((3,), dtype="int32")
    table = layers.TokenEmbedding(13, 32)
    x = keras.layers.Dense(40, activation="gelu")(table(ids))
    x = keras.layers.Dense(32, trainable=False, name="frozen")(x)
    return keras_tfm.Model(ids, table(x, reverse=True))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_one_step_is_that_of_the_rounded_weights(jit_compile):
    """Straight through: w - rate dL/dw of the rounded model, added to the float32 weights."""
    if jit_compile and keras.backend.backend() == "torch":
        pytest.skip("torch.compile takes a minute")
    model = tied()
    copy = rounded_copy(model, "int4")
    before, rounded = [to_numpy(x) for x in model.weights], [to_numpy(x) for x in copy.weights]
    assert models.enable_quantization(model, "int4") == 3
    for one in (model, copy):
        trained(one, 1, jit_compile=jit_compile)
    for variable, other, old, start in zip(
        model.weights, copy.weights, before, rounded, strict=True
    ):
        new = to_numpy(variable)
        assert np.any(new != old) == (not variable.path.startswith("frozen"))
        assert_close(new - old, to_numpy(other) - start, 1e-6)


@pytest.mark.parametrize("options", [{}, {"activations": True, "cache": "int8"}], ids=str)
def test_recomputed_blocks_read_rounded_weights(options):
    with keras.RematScope("full"):
        model = gpt(num_layers=1)
    copy = gpt(num_layers=1) if options else rounded_copy(model, "int4")
    if options:
        models.enable_quantization(copy, "int4", **options)
    for one in (model, copy):
        one.get_layer("decoder_0").self_attention.trainable = False
    models.enable_quantization(model, "int4", **options)
    epochs = 2 if options else 1  # the rounded copy has other float32 weights after a step
    losses = trained(model, epochs)
    assert losses == pytest.approx(trained(copy, epochs), rel=1e-5)
    models.disable_quantization(model)
    exact = model.evaluate(IDS, IDS, verbose=0)
    assert losses[0] != pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_inputs_are_rounded_with_the_gradient_of_the_identity(jit_compile):
    """Two products, by hand: y = W2 q(W1 q(x)), and a step along dy/dW1 and dy/dW2."""
    if jit_compile and keras.backend.backend() == "torch":
        pytest.skip("torch.compile takes a minute")
    keras.utils.set_random_seed(0)
    x = keras.Input((64,))
    layer, last = keras.layers.Dense(32, use_bias=False), keras.layers.Dense(48, use_bias=False)
    model = keras_tfm.Model(x, last(layer(x)))
    models.enable_quantization(model, "int8", activations=True)
    grids = [(to_numpy(x.variable), x.grid) for x in quantization_of(model).weights]
    first, second = (grid.values(*grid.round(w), w.shape) for w, grid in grids)
    rows = np.random.default_rng(0).normal(0.5, 1.0, (5, 64)).astype("float32")

    def rounded(x):
        low, high = np.minimum(x.min(-1), 0)[:, None], np.maximum(x.max(-1), 0)[:, None]
        step = (high - low) / 255
        return np.rint(x / step) * step  # the zero point is an integer

    inner = rounded(rows) @ first
    wanted = rounded(inner) @ second
    assert_close(model(rows), wanted, 1e-5)
    assert np.abs(rows @ first @ second - wanted).max() > 1e-3
    model.compile(keras.optimizers.SGD(1.0), Mean(), jit_compile=jit_compile)
    model.fit(rows, wanted, batch_size=5, verbose=0)
    ones = np.full((5, 48), 1 / wanted.size)
    assert_close(to_numpy(layer.kernel) - grids[0][0], -rounded(rows).T @ ones @ second.T, 1e-5)
    assert_close(to_numpy(last.kernel) - grids[1][0], -rounded(inner).T @ ones, 1e-5)


class Mean(keras.losses.Loss):
    """The mean of the outputs."""

    def call(self, y_true, y_pred):
        return keras.ops.mean(y_pred, axis=-1)


def test_adapters_read_inputs_that_are_not_rounded():
    """As in a file: q(x) W + x A B."""
    model, rows = gpt(num_layers=1), {}
    models.enable_lora(model, 2, 4.0, ["outer"])
    layer = model.get_layer("decoder_0").feed_forward.outer
    layer.lora_kernel_b.assign(np.random.default_rng(0).normal(size=layer.lora_kernel_b.shape))
    method = type(layer).affine

    def affine(self, inputs, *args):
        result = method(self, inputs, *args)
        if self is layer:
            rows["rounded"], rows["product"] = to_numpy(inputs), to_numpy(result)
        return result

    x = np.random.default_rng(1).normal(size=(2, 3, 40)).astype("float32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(layer), "affine", affine)
        models.enable_quantization(model, "int8", activations=True)
        with quantization_of(model).rounded_values():
            found = to_numpy(layer(x))
    ab = 2 * to_numpy(layer.lora_kernel_a) @ to_numpy(layer.lora_kernel_b)
    kernel = to_numpy(next(v for v in layer.variables if v.name == "kernel"))
    assert np.abs(rows["rounded"] - x).max() > 1e-3
    assert_close(rows["product"], rows["rounded"] @ kernel + to_numpy(layer.bias), 1e-5)
    assert_close(found, rows["product"] + x @ ab, 1e-5)


def test_caches_are_rounded_in_full_passes_and_in_steps():
    """Each key and value to 127 steps of its own; own ones and those of prompts, too."""
    model = gpt()
    exact = to_numpy(model(IDS))
    models.enable_quantization(model, "int4", cache="int8")
    whole = to_numpy(model(IDS))
    models.disable_quantization(model)
    models.enable_quantization(model, "int4")
    assert np.abs(to_numpy(model(IDS)) - whole).max() > 1e-4
    assert np.abs(exact - whole).max() > 1e-4
    models.disable_quantization(model)
    models.enable_quantization(model, "int4", cache="int8")
    with rounded_reads(model):
        stepped = generation.SteppedModel(model)
        cache, steps = None, []
        for position, count in ((0, 2), (2, 1)):  # a prompt and a step
            with layers.DecodingScope(cache, position=position, length=3) as scope:
                steps.append(
                    to_numpy(stepped.step(stepped.encode({}), IDS[:, position : position + count]))
                )
            cache = scope.cache
    assert_close(np.concatenate(steps, axis=1), whole, 1e-5)


def test_generation_has_rounded_weights():
    model = gpt(num_layers=1)
    copy = rounded_copy(model, "int4")
    wanted = generation.Generator(copy, 5)(IDS)
    generator = generation.Generator(model, 5)
    exact = generator(IDS)
    assert np.abs(wanted.scores - exact.scores).max() > 1e-3
    models.enable_quantization(model, "int4")
    found = generator(IDS)
    np.testing.assert_array_equal(found.tokens, wanted.tokens)
    assert_close(found.scores, wanted.scores, 1e-5)
    streamed = np.stack([*generator.stream(IDS)], 1)
    np.testing.assert_array_equal(streamed, wanted.tokens[:, 3:])


def test_it_survives_files_clones_and_copies(tmp_path):
    model = gpt()
    models.enable_quantization(model, "int4", keep_float=["decoder_0"], keep_int8=["decoder_1"])
    trained(model)
    wanted = to_numpy(model(IDS))
    model.save(tmp_path / "model.keras")
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    for copy in (
        keras.models.load_model(tmp_path / "model.keras"),
        clone,
        models.with_dtype(model, "float32"),
    ):
        assert quantization_of(copy).get_config() == quantization_of(model).get_config()
        assert_close(copy(IDS), wanted, 1e-6)
        assert_close(copy.predict(IDS, verbose=0), wanted, 1e-6)
    # A model of the same layers, or with the model inside, has no rounding of its own.
    assert quantization_of(keras_tfm.Model(clone.inputs, clone.outputs)) is None
    x = keras.Input((3,), dtype="int32")
    outer = keras_tfm.Model(x, model(x))
    assert quantization_of(outer) is None
    assert_close(outer(IDS), wanted, 1e-6)


def test_a_head_reads_rounded_weights():
    """So do parts of a model. New weights are rounded, too, as in a file."""
    model = gpt()
    models.enable_quantization(model, "int4", keep_float=["decoder_0"], keep_int8=["decoder_1"])
    wanted = to_numpy(model(IDS))
    head = models.sequence_classifier(model, 5)
    drafting = models.with_draft_heads(model, 2)
    state = quantization_of(head)
    assert state.get_config() == quantization_of(model).get_config()
    grids = {x.variable.path: x.grid.bits for x in state.weights}
    assert grids["classifier/kernel"] == (4 if model.features.shape[-1] % 32 == 0 else 8)
    assert not any(path.startswith("decoder_0/") for path in grids)
    assert_close(drafting(IDS)[0], wanted, 1e-6)
    body = models.backbone(model)
    rounded = to_numpy(body(IDS))
    with models.without_quantization(body):
        assert not np.allclose(to_numpy(body(IDS)), rounded, atol=1e-3)
    models.disable_quantization(head)  # of the head alone
    assert_close(model(IDS), wanted, 1e-6)


def test_a_head_leaves_out_layers_that_were_kept():
    encoder_decoder = models.t5(41, dim=32, num_layers=1, num_heads=2, intermediate_dim=32)
    models.enable_quantization(encoder_decoder, "int4", keep_float=["decoder_0", "encoder_0"])
    encoder = models.encoder(encoder_decoder)
    assert quantization_of(encoder).keep_float == ["encoder_0"]


def test_a_training_goes_on_from_a_file(tmp_path):
    """Four epochs, and two times two, with the state of Adam and the rounding in between."""

    def start():
        model = tied()
        models.enable_quantization(model, "int4", activations=True)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), loss)
        return model

    whole, first = start(), start()
    first.set_weights(whole.get_weights())
    whole.fit(IDS, IDS, epochs=4, verbose=0)
    first.fit(IDS, IDS, epochs=2, verbose=0)
    first.save(tmp_path / "model.keras")
    second = keras.models.load_model(tmp_path / "model.keras")
    second.fit(IDS, IDS, epochs=2, verbose=0)
    for one, other in zip(whole.weights, second.weights, strict=True):
        assert_close(other, to_numpy(one), 1e-6)


def test_gradients_accumulate():
    """Of two rows one by one and of both at once: the same weights are rounded."""
    results, loss = [], keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    inside = keras.backend.backend() == "tensorflow"  # of a batch; otherwise of several batches
    for steps in (None, 2):
        model = tied()
        models.enable_quantization(model, "int4")
        given = None if inside else steps
        own = {"gradient_accumulation_steps": steps} if inside and steps else {}
        model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=given), loss, **own)
        size = 1 if given else 2
        model.fit(IDS, IDS, batch_size=size, epochs=3, shuffle=False, verbose=0)
        results.append(model)
    for one, other, before in zip(*(x.weights for x in (*results, tied())), strict=True):
        assert_close(other, to_numpy(one), 1e-6)
        assert np.any(to_numpy(one) != to_numpy(before)) == one.trainable


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16", "bfloat16"])
def test_half_precision_trains(dtype):
    model = gpt(dtype=dtype)
    models.enable_quantization(model, "int4", activations=True, cache="int8")
    losses = trained(model, 6)
    assert np.isfinite(losses).all() and losses[-1] < 0.8 * losses[0]


def test_a_callback_may_begin_it():
    model = tied()

    class Begin(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                models.enable_quantization(self.model, "int4")
            with models.without_quantization(self.model) if epoch else keras.name_scope("none"):
                self.model.predict(IDS, verbose=0)

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e-6), loss)
    losses = model.fit(IDS, IDS, epochs=4, verbose=0, callbacks=[Begin()]).history["loss"]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[3] == pytest.approx(losses[2], rel=1e-5)
    assert losses[2] != pytest.approx(losses[1], rel=1e-4)


def test_a_schedule_begins_at_a_step():
    """Within an epoch: the first batch in float32, all later ones rounded."""
    model = tied()

    class Round(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == 1:
                models.enable_quantization(self.model, "int4")

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e-6), loss)
    options = {"batch_size": 1, "shuffle": False, "verbose": 0}
    exact = [model.evaluate(IDS[i : i + 1], IDS[i : i + 1], verbose=0) for i in range(2)]
    found = model.fit(IDS, IDS, epochs=2, callbacks=[Round()], **options).history["loss"]
    rounded = [model.evaluate(IDS[i : i + 1], IDS[i : i + 1], verbose=0) for i in range(2)]
    assert exact[0] != pytest.approx(rounded[0], rel=1e-3)
    assert found == pytest.approx(
        [(exact[0] + rounded[1]) / 2, (rounded[0] + rounded[1]) / 2], rel=1e-5
    )


@tensorflow_only
def test_losses_of_layers_are_kept():
    x = keras.Input((64,))
    dense = keras.layers.Dense(32, activity_regularizer="l2", kernel_regularizer="l2")
    model = keras_tfm.Model(x, dense(x))
    model(np.ones((2, 64)))
    exact = sorted(float(y) for y in model.losses)
    models.enable_quantization(model, "int8")
    for _ in range(2):
        model(np.ones((2, 64)))
        found = sorted(float(y) for y in model.losses)
        assert found == pytest.approx(exact, rel=0.02)
        assert found != pytest.approx(exact, rel=1e-6)


def test_batch_statistics_move():
    x = keras.Input((64,))
    y = keras.layers.BatchNormalization()(keras.layers.Dense(32)(x))
    model = keras_tfm.Model(x, keras.layers.Dropout(0.5)(y))
    models.enable_quantization(model, "int4")
    model.compile("sgd", "mse")
    moving = [x for x in model.non_trainable_variables if x.name.startswith("moving")]
    before = [to_numpy(x).copy() for x in moving]
    model.fit(np.ones((4, 64)), np.ones((4, 32)), verbose=0)
    assert len(moving) == 2
    assert all(np.any(to_numpy(x) != y) for x, y in zip(moving, before, strict=True))


@pytest.mark.parametrize("first", ["adapters", "rounding"])
def test_adapters_in_float_beside_rounded_weights(first, tmp_path):
    """QLoRA: the base stays as it is, A and B train; copies compute the same in float32."""
    model = gpt()
    if first == "rounding":
        models.enable_quantization(model, "int4")
    models.enable_lora(model, 2, 4.0, ["query_key_value", "inner"])
    if first == "adapters":
        models.enable_quantization(model, "int4")
    assert len(quantization_of(model).weights) == 9
    base = {x.variable.path: to_numpy(x.variable) for x in quantization_of(model).weights}
    before = to_numpy(model(IDS))
    losses = trained(model, 3)
    assert losses[2] < losses[0]
    for x in quantization_of(model).weights:
        np.testing.assert_array_equal(to_numpy(x.variable), base[x.variable.path])
    wanted = to_numpy(model(IDS))
    assert np.abs(wanted - before).max() > 1e-3
    # s round(W / s) + alpha / r A B, by hand.
    layer = model.get_layer("decoder_0").self_attention.query_key_value
    grid = next(x.grid for x in quantization_of(model).weights if x.variable.path == layer.path
                + "/kernel")  # fmt: skip
    kernel = base[f"{layer.path}/kernel"]
    merged = grid.values(*grid.round(kernel), kernel.shape)
    merged = merged + 2 * to_numpy(layer.lora_kernel_a) @ to_numpy(layer.lora_kernel_b)
    model.save(tmp_path / "model.keras")
    weights = tmp_path / "model.weights.h5"
    model.save_weights(weights)
    plain = gpt()
    plain.load_weights(weights)
    copies = [
        models.with_dtype(model, "float32"),
        keras.models.load_model(tmp_path / "model.keras"),
        pickle.loads(pickle.dumps(model)),
        plain,
    ]
    for copy in copies:
        assert quantization_of(copy) is None
        assert_close(copy(IDS), wanted, 1e-5)
        found = copy.get_layer("decoder_0").self_attention.query_key_value.kernel
        assert_close(found, merged, 1e-6)
    # Merged onto the grid by a last training.
    models.enable_quantization(copies[1], "int4")
    rounded = to_numpy(copies[1](IDS))
    assert np.abs(rounded - wanted).max() > 1e-3
    assert trained(copies[1])[1] < losses[0]


def small(units=3, width=64, kind=keras_tfm.Model):
    x = keras.Input((width,))
    return kind(x, keras.layers.Dense(units, name="head")(x), name="small")


def enable_twice():
    model = small()
    models.enable_quantization(model, "int4")
    models.enable_quantization(model, "int8")


def quantized_by_keras():
    model = small(8)
    model.quantize("int8", filters="head")
    models.enable_quantization(model, "int4")


def quantize_by_keras_afterwards():
    model = small(8)
    models.enable_quantization(model, "int4")
    model.quantize("int8", filters="head")


ERRORS = {
    "a keras.Model": (
        lambda: models.enable_quantization(small(kind=keras.Model), "int4"),
        "expected a functional keras_tfm.Model, got keras.*Functional; of a functional",
    ),
    "width": (
        lambda: models.enable_quantization(small(), "int8_full"),
        r"must be one of \['int8', 'int4'\], got 'int8_full'",
    ),
    "a name": (
        lambda: models.enable_quantization(small(), "int4", ["haed"]),
        r"keep_float: small has no layer 'haed'; similar names are \['head'\]",
    ),
    "keep_int8": (
        lambda: models.enable_quantization(small(), "int8", keep_int8=["head"]),
        "keep_int8 needs quantization int4",
    ),
    "cache": (
        lambda: models.enable_quantization(small(), "int4", cache="int4"),
        r"cache must be one of \['float32', 'int8'\], got 'int4'",
    ),
    "nothing to round": (
        lambda: models.enable_quantization(small(), "int8"),
        "small has no weight that int8 would round",
    ),
    "twice": (enable_twice, "small is trained with int4 weights already"),
    "quantize afterwards": (
        quantize_by_keras_afterwards,
        "small is trained with int4 weights: export it with export_tflite, or call",
    ),
    "one name": (
        lambda: models.enable_quantization(small(), "int4", keep_float="head"),
        "keep_float must be a sequence of layer names, got the string 'head'",
    ),
    "quantized by Keras": (quantized_by_keras, "small is quantized by Keras"),
    "disable": (lambda: models.disable_quantization(small()), "call enable_quantization first"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_one_line(name):
    run, text = ERRORS[name]
    with pytest.raises((TypeError, ValueError), match=text) as error:
        run()
    assert "\n" not in str(error.value)


@tensorflow_only
@pytest.mark.slow
def test_the_example_runs(tmp_path):
    """examples/quantization_aware.py trains, exports three files and prints their scores."""
    command = [sys.executable, ROOT / "examples/quantization_aware.py", "--smoke"]
    run = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = re.findall(r"^(\w[^\n%]+?) +([\d.]+)%$", run.stdout, re.M)
    scores = {name: float(x) for name, x in found}
    assert len(scores) == 6
    # The file computes what the trained model does.
    kinds = [f"{x}, trained with rounding" for x in ("Keras, int4", "int4 file")]
    assert abs(scores[kinds[0]] - scores[kinds[1]]) < 3.0
