import re

import keras
import numpy as np
import pytest
from execution import tensorflow_only

from keras_tfm.layers import TokenEmbedding, TransformerEncoderBlock
from keras_tfm.training import LabelSmoothedCrossEntropy, TensorBoard, TerminateOnNaN

pytestmark = tensorflow_only


def regression(block=False, **options):
    """Two dense layers on rows of numbers, a block between them."""
    x = keras.Input((3, 4), name="numbers")
    y = keras.layers.Dense(6, name="first")(x)
    if block:
        y = TransformerEncoderBlock(8, 2, name="block")(y)
    model = keras.Model(x, keras.layers.Dense(1, name="last")(y))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", **options)
    return model


def rows(count=6):
    rng = np.random.default_rng(3)
    return rng.normal(size=(count, 3, 4)).astype("float32"), np.ones((count, 3, 1), "float32")


def fit(model, x, y, *callbacks, **options):
    options = {"batch_size": 2, "shuffle": False, "verbose": 0, **options}
    return model.fit(x, y, callbacks=[*callbacks], **options)


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_in_an_input_the_batch_and_the_row_are_named(bad, jit_compile):
    model, (x, y) = regression(jit_compile=jit_compile), rows()
    fit(model, x, y)  # three steps that are good
    x[3, 1, 2] = bad
    message = (
        rf"the loss is (nan|inf) at step 5 \(epoch 1, batch 2\): "
        rf"input numbers has 1 {bad} of 24 numbers, row 1 first"
    )
    with pytest.raises(FloatingPointError, match=message):
        fit(model, x, y, TerminateOnNaN())


def test_in_labels_and_weights_of_samples():
    model, (x, y) = regression(), rows()
    weights = np.ones((6, 1))
    weights[5] = np.nan
    with pytest.raises(FloatingPointError, match=r"step 3 .*: sample weight has 1 nan of 2"):
        fit(model, x, y, TerminateOnNaN(), sample_weight=weights)
    y[0] = np.inf
    with pytest.raises(FloatingPointError, match=r"is inf at .*: label has 3 inf of 6 num"):
        fit(model, x, y, TerminateOnNaN())


def test_in_a_weight_it_is_named():
    model, (x, y) = regression(block=True), rows()
    kernel = model.get_layer("block").feed_forward.inner.kernel
    values = kernel.numpy()
    values[2, 3] = np.nan
    kernel.assign(values)
    message = r"step 1 .*: the weight block/feed_forward/inner/kernel has 1 nan of 48 numbers"
    with pytest.raises(FloatingPointError, match=message):
        fit(model, x, y, TerminateOnNaN())


def test_the_innermost_layer_is_named_whose_output_is_the_first():
    """1e30 times 1e30 is more than float32 holds."""
    model, (x, y) = regression(block=True), rows()
    model.get_layer("block").feed_forward.outer.kernel.assign(np.full((8, 6), 1e30))
    model.get_layer("block").feed_forward.inner.bias.assign(np.full(8, 1e30))
    message = r"step 1 .*: the output of block/feed_forward/outer has 36 inf of 36 numbers"
    with pytest.raises(FloatingPointError, match=message):
        fit(model, x, y, TerminateOnNaN())


def test_an_exploding_loss():
    x, y = rows()
    model = regression()
    model.compile(keras.optimizers.SGD(1e25), "mse")
    with pytest.raises(FloatingPointError, match=r"loss is (inf|nan) at step [23] ") as error:
        fit(model, x, y, TerminateOnNaN(), epochs=3)
    assert "the output of" in str(error.value) or "but their loss is" in str(error.value)
    assert all(np.isfinite(w).all() for w in model.get_weights())


def test_gradients_are_named_where_all_outputs_are_finite():
    class Root(keras.layers.Layer):
        """Its slope at 0 is infinite."""

        def call(self, x):
            return keras.ops.sqrt(x) + keras.ops.log(x + 1e-30) * 0.0

    x = keras.Input((2,))
    y = Root()(keras.layers.Dense(3, use_bias=False, name="zeros")(x))
    model = keras.Model(x, y)
    model.get_layer("zeros").kernel.assign(np.zeros((2, 3)))

    def loss(true, predicted):
        # Finite for the first step alone.
        return keras.ops.mean(predicted) * keras.ops.where(true[0, 0] > 0, 1.0, np.nan)

    model.compile("sgd", loss)
    with pytest.raises(FloatingPointError, match=r"step 1 .* but their loss is nan"):
        model.fit(np.ones((1, 2)), np.zeros((1, 3)), callbacks=[TerminateOnNaN()], verbose=0)
    assert np.all(model.get_weights()[0] == 0.0)
    # The loss of 0 is finite, its gradient is not: the step is left out, and training goes on.
    model.fit(np.ones((1, 2)), np.ones((1, 3)), callbacks=[TerminateOnNaN()], verbose=0)
    assert np.all(model.get_weights()[0] == 0.0)


def test_what_is_saved_then_are_the_weights_from_before(tmp_path):
    """Whatever the order of the callbacks."""
    model, (x, y) = regression(), rows()
    x[4] = np.nan
    good = regression()
    good.set_weights(model.get_weights())
    fit(good, x[:4], y[:4])
    saving = keras.callbacks.ModelCheckpoint(
        tmp_path / "{batch}.weights.h5", save_weights_only=True, save_freq=1
    )
    with pytest.raises(FloatingPointError, match="step 3"):
        fit(model, x, y, saving, TerminateOnNaN())
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{i}.weights.h5" for i in (1, 2, 3)]
    loaded = regression()
    fit(loaded, x[:2], y[:2])  # which makes the optimizer's variables
    loaded.load_weights(tmp_path / "3.weights.h5")
    assert all(np.isfinite(w).all() for w in loaded.get_weights())
    loaded.load_weights(tmp_path / "2.weights.h5")
    for found, expected in zip(loaded.get_weights(), good.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-6)


def test_without_an_error_fit_returns(capsys):
    model, (x, y) = regression(), rows()
    x[2] = np.inf
    callback = TerminateOnNaN(raise_error=False)
    history = fit(model, x, y, callback, epochs=4)
    assert len(history.history["loss"]) == 1
    assert re.match(r"the loss is (nan|inf) at step 2 \(epoch 1, batch 2\): in", callback.message)
    assert callback.message in capsys.readouterr().out


def test_mixed_float16_leaves_steps_out_by_itself_until_the_loss_is_bad():
    ids = keras.Input((None,), dtype="int32")
    embedding = TokenEmbedding(11, 8, dtype="mixed_float16", name="embedding")
    model = keras.Model(ids, embedding(embedding(ids), reverse=True))
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=1e30)
    model.compile(optimizer, LabelSmoothedCrossEntropy())
    x, y = np.array([[1, 3, 4]]), np.array([[3, 4, 2]])
    model.fit(x, y, epochs=3, callbacks=[TerminateOnNaN()], verbose=0)  # gradients overflow
    model.get_layer("embedding").embeddings.assign(np.full((11, 8), 6e4))
    with pytest.raises(FloatingPointError, match=r"the output of embedding has .*inf"):
        model.fit(x, y, callbacks=[TerminateOnNaN()], verbose=0)


@pytest.mark.default
def test_training_is_the_same_with_it_and_goes_on_without_it():
    x, y = rows()
    first, second = regression(), regression()
    second.set_weights(first.get_weights())
    for _ in range(2):
        one = fit(first, x, y)
        two = fit(second, x, y, TerminateOnNaN())
        assert one.history == two.history
    assert "apply" not in vars(second.optimizer)
    assert one.history == two.history
    assert fit(first, x, y).history == fit(second, x, y).history


@pytest.mark.parametrize(
    ("steps", "row", "step"),
    [
        # The fast tests have each row once; all numbers of steps with all rows are slow.
        pytest.param(n, *x, marks=[pytest.mark.slow] * ((i + n) % 3 > 0))
        for i, x in enumerate([(0, 1), (2, 2), (5, 3), (7, 4), (9, 5)])
        for n in (2, 3, 4)
    ],
)
def test_the_step_is_named_among_several_of_one_execution(steps, row, step):
    """Of 5 batches, so that the last execution has fewer."""
    model, (x, y) = regression(steps_per_execution=steps), rows(10)
    before = [w.copy() for w in model.get_weights()]
    x[row] = np.nan
    message = rf"the loss is nan at step {step} \(epoch 1, batch {step}\): input numbers has"
    with pytest.raises(FloatingPointError, match=message):
        fit(model, x, y, TerminateOnNaN())
    assert all(np.isfinite(w).all() for w in model.get_weights())
    assert any((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))


def test_steps_of_one_execution_train_as_without_the_callback():
    x, y = rows(10)
    models = [regression(steps_per_execution=2) for _ in range(2)]
    models[1].set_weights(models[0].get_weights())
    histories = [
        fit(models[0], x, y, TerminateOnNaN(), epochs=2),
        fit(models[1], x, y, epochs=2),
    ]
    for a, b in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(a, b)
    assert histories[0].history == histories[1].history


def test_datasets(tmp_path):
    import tensorflow as tf

    x, y = rows(8)
    x[5] = np.nan
    model = regression()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(2)
    with pytest.raises(FloatingPointError, match=r"step 3 .*: input numbers has 12 nan"):
        fit(model, data, None, TerminateOnNaN(), TensorBoard(tmp_path), batch_size=None)


@pytest.mark.slow
def test_generators_and_epochs_of_so_many_steps():
    model, (x, y) = regression(), rows()
    x[5] = np.nan

    def batches():
        while True:
            for i in range(0, 6, 2):
                yield x[i : i + 2], y[i : i + 2]

    message = r"step 3 \(epoch 2, batch 1\): input numbers"
    with pytest.raises(FloatingPointError, match=message):
        fit(model, batches(), None, TerminateOnNaN(), steps_per_epoch=2, epochs=2, batch_size=None)


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_nothing_changes_in_the_bad_step(jit_compile):
    """Neither by momentum and weight decay, nor in the moving statistics, nor in the optimizer."""
    x = keras.Input((3, 4), name="numbers")
    y = keras.layers.BatchNormalization()(keras.layers.Dense(6)(x))
    model = keras.Model(x, keras.layers.Dense(1)(y))
    model.compile(keras.optimizers.AdamW(0.1, weight_decay=0.1), "mse", jit_compile=jit_compile)
    x, y = rows()
    fit(model, x, y, TerminateOnNaN())
    before = [np.array(v) for v in (*model.variables, *model.optimizer.variables)]
    x[:2, 1, 2] = np.inf
    fit(model, x, y, TerminateOnNaN(raise_error=False))
    for old, v in zip(before, (*model.variables, *model.optimizer.variables), strict=True):
        if "loss" not in v.path:
            np.testing.assert_array_equal(np.array(v), old, err_msg=v.path)
