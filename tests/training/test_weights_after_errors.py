"""An error in `fit`, `evaluate` or `predict` leaves a model its weights, on every backend."""

import keras
import numpy as np
import pytest

import keras_tfm

X = np.ones((6, 3), "float32")


class Broken(keras.utils.PyDataset):
    """Data of which a batch cannot be read."""

    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def __len__(self):
        return 3

    def __getitem__(self, i):
        if i == self.batch:
            raise OSError("no such file")
        return X[:2], X[:2]


class Interrupted(keras.callbacks.Callback):
    def on_predict_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


@pytest.mark.parametrize(("broken", "steps"), [(0, 1), (1, 1), (1, 2)])
@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_of_data(method, broken, steps):
    if steps > 1 and keras.backend.backend() == "torch":
        pytest.skip("Keras on PyTorch runs one step at a time")
    model = trained(steps)
    before = model.get_weights()
    with pytest.raises(Exception, match="no such file"):
        getattr(model, method)(Broken(broken), verbose=0)
    assert_it_goes_on(model, before, changed=method == "fit")


@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_of_labels(method):
    model = trained()
    before = model.get_weights()
    with pytest.raises(Exception, match=r"shape|incompatible|[Dd]imension|size"):
        getattr(model, method)(X, np.ones((6, 5)), verbose=0)
    assert_it_goes_on(model, before)


def test_of_a_callback():
    model = trained()
    before = model.get_weights()
    with pytest.raises(KeyboardInterrupt):
        model.predict(X, verbose=0, callbacks=[Interrupted()])
    assert_it_goes_on(model, before)


def test_steps_on_single_batches_before_and_after():
    model = trained()
    before = model.get_weights()
    model.test_on_batch(X, X)
    model.predict_on_batch(X)
    with pytest.raises(Exception, match=r"shape|incompatible|[Dd]imension|size"):
        model.train_on_batch(X, np.ones((6, 5)))
    assert_it_goes_on(model, before)
    model.train_on_batch(X, X)
    after = model.get_weights()
    model.test_on_batch(X, X)
    model.predict_on_batch(X)
    assert_it_goes_on(model, after)


def test_of_averaged_weights():
    model = trained(use_ema=True)
    with pytest.raises(Exception, match="no such file"):
        model.fit(Broken(1), verbose=0)
    assert_it_goes_on(model, model.get_weights())


def trained(steps_per_execution=1, use_ema=False):
    x = keras.Input((3,))
    model = keras_tfm.Model(x, keras.layers.Dense(3)(x))
    optimizer = keras.optimizers.SGD(0.01, use_ema=use_ema)
    model.compile(optimizer, "mse", steps_per_execution=steps_per_execution)
    model.fit(X, X, verbose=0)
    return model


def assert_it_goes_on(model, before, changed=False):
    after = model.get_weights()
    assert all(np.isfinite(x).all() for x in after)
    assert changed or all(map(np.array_equal, before, after))
    steps = int(model.optimizer.iterations)
    model.fit(X, X, verbose=0)
    assert int(model.optimizer.iterations) == steps + 1
