"""Weights that are frozen, or made, after a step, without another `compile`; on every backend."""

import keras
import numpy as np
import pytest

import keras_tfm

X, Y = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")


def square_layers(dtype="float32"):
    """Two layers whose weights have the same shapes, and the model of them."""
    x = keras.Input((2,))
    first, second = (keras.layers.Dense(2, "tanh", dtype=dtype) for _ in range(2))
    return first, second, keras_tfm.Model(x, second(first(x)))


def values(model):
    return [keras.ops.convert_to_numpy(v).copy() for v in model.weights]


def changes(model, before):
    """Whether each weight has changed."""
    pairs = zip(before, values(model), strict=True)
    return [not np.array_equal(old, new) for old, new in pairs]


@pytest.mark.parametrize("use_ema", [False, True])
def test_weights_that_are_frozen_after_a_step_stay(use_ema):
    """Keras 3.15 goes on training them on TensorFlow, and fails on JAX."""
    x = keras.Input((3,))
    first = keras.layers.Dense(5)
    model = keras_tfm.Model(x, keras.layers.Dense(2)(first(x)))
    model.compile(keras.optimizers.SGD(0.1, use_ema=use_ema), "mse")
    model.fit(X, Y, verbose=0)
    first.trainable = False
    before = values(model)
    if use_ema:
        for _ in range(2):  # each time
            with pytest.raises(ValueError, match="some are frozen; call compile again"):
                model.fit(X, Y, verbose=0)
        assert not any(changes(model, before))
        return
    model.fit(X, Y, verbose=0)
    assert changes(model, before) == [False, False, True, True]


@pytest.mark.parametrize(
    ("dtype", "steps"), [("float32", 2), pytest.param("mixed_float16", 1, marks=pytest.mark.slow)]
)
def test_layers_take_turns(dtype, steps):
    """A compiled step of JAX knows a weight by its place among those of its shape."""
    first, second, model = square_layers(dtype)
    if keras.backend.backend() == "tensorflow":
        optimizer = keras.optimizers.Adam(0.1, clipnorm=1.0)
        model.compile(optimizer, "mse", gradient_accumulation_steps=steps)
    else:
        several = None if steps == 1 else steps
        optimizer = keras.optimizers.Adam(0.1, clipnorm=1.0, gradient_accumulation_steps=several)
        model.compile(optimizer, "mse")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 8, 2)).astype("float32")
    model.fit(x, y, batch_size=2, verbose=0)
    for frozen, other, expected in [
        (first, second, [False, False, True, True]),
        (second, first, [True, True, False, False]),
    ]:
        frozen.trainable, other.trainable = False, True
        before = values(model)
        model.fit(x, y, batch_size=2, verbose=0)
        assert changes(model, before) == expected
        predicted, called = model.predict(x, verbose=0), keras.ops.convert_to_numpy(model(x))
        assert np.allclose(predicted, called, atol=1e-6 if dtype == "float32" else 2e-3)
        error = float(np.mean((called.astype("float32") - y) ** 2))
        assert abs(model.evaluate(x, y, verbose=0) - error) < (1e-5 if dtype == "float32" else 1e-2)
    first.trainable = second.trainable = True
    before = values(model)
    model.fit(x, y, batch_size=2, verbose=0)
    assert all(changes(model, before))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="others trace no such step")
@pytest.mark.parametrize("epoch", [0, 1])
def test_what_a_callback_freezes_is_trained_again_later(epoch):
    """During `fit` what counts is the time of the first step, as in Keras; then each `fit`."""
    first, _, model = square_layers()
    model.compile("adam", "mse")

    def freeze(now, logs):
        first.trainable = first.trainable and now != epoch

    before = values(model)
    callback = keras.callbacks.LambdaCallback(on_epoch_begin=freeze)
    model.fit(Y, Y, epochs=2, verbose=0, callbacks=[callback])
    assert changes(model, before) == [epoch > 0] * 2 + [True] * 2
    for is_trained in (False, True):
        first.trainable, before = is_trained, values(model)
        model.fit(Y, Y, verbose=0)
        assert changes(model, before) == [is_trained] * 2 + [True] * 2


def test_a_file_keeps_the_moments_of_what_is_frozen(tmp_path):
    """Keras 3.15 would lose the optimizer's state; here each step is that of the model itself."""
    first, _, model = square_layers()
    model.compile("adam", "mse")
    model.fit(Y, Y, verbose=0)
    first.trainable = False
    model.save(tmp_path / "model.keras")
    loaded = keras_tfm.load_model(tmp_path / "model.keras")
    for x in (model, loaded):
        assert not x.layers[1].trainable
        x.fit(Y, Y, verbose=0)
        x.layers[1].trainable = True
        x.fit(Y, Y, verbose=0)
    assert int(loaded.optimizer.iterations) == 3
    for x, y in zip(values(loaded), values(model), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_model_without_trainable_weights_stays():
    first, second, model = square_layers()
    model.compile("sgd", "mse")
    model.fit(Y, Y, verbose=0)
    first.trainable = second.trainable = False
    before = values(model)
    if keras.backend.backend() == "jax":
        model.fit(Y, Y, verbose=0)
    else:
        with pytest.warns(UserWarning, match="does not have any trainable weights"):
            model.fit(Y, Y, verbose=0)
    assert not any(changes(model, before))


def test_adapters_need_another_compile():
    x = keras.Input((3,))
    model = keras_tfm.Model(x, keras.layers.Dense(2, name="answer")(x))
    model.compile("adam", "mse")
    model.fit(X, Y, verbose=0)
    model.get_layer("answer").enable_lora(1)
    for _ in range(2):  # each time
        with pytest.raises(ValueError, match=r"2 are new, the first is answer/lora_kernel_a; call"):
            model.fit(X, Y, verbose=0)
    model.compile("adam", "mse")
    model.fit(X, Y, verbose=0)
