"""Each private name of Keras's trainer that the package uses still means the same."""

import inspect
import re
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from execution import epoch_iterator

from keras_tfm import trainer_internals

ON_TENSORFLOW = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow's trainer"
)
X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]], "float32")


def test_every_function_is_tested_here():
    functions = inspect.getmembers(trainer_internals, inspect.isfunction)
    names = [name for name, f in functions if f.__module__ == trainer_internals.__name__]
    used = set(re.findall(r"trainer_internals\.(\w+)", Path(__file__).read_text()))
    assert len(names) > 15
    assert [name for name in names if name not in used] == []


# Training: the model and its compiled loss.


def compiled(**kwargs):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse", **kwargs)
    return model


def test_takes_training():
    class Untaking(keras.Model):
        def call(self, x):
            return x

    assert trainer_internals.takes_training(compiled())
    assert not trainer_internals.takes_training(Untaking())


def test_compute_loss():
    model, y = compiled(), np.zeros((3, 1), "float32")
    prediction = keras.ops.convert_to_tensor(np.full((3, 1), 2.0, "float32"))
    loss = trainer_internals.compute_loss(model, X, y, prediction, None, training=True)
    assert float(loss) == 4.0


def test_loss_tracker():
    model = compiled()
    model.fit(X, np.zeros((3, 1)), verbose=0)
    (logged,) = [m for m in model.metrics if m.name == "loss"]
    assert trainer_internals.loss_tracker(model) is logged


def test_compiled_loss():
    model = compiled(loss_weights=[2.0])
    loss = trainer_internals.compiled_loss(model)
    assert isinstance(loss, trainer_internals.compile_loss_class())
    arguments = trainer_internals.loss_arguments(loss)
    assert arguments[:2] == ("mse", [2.0])
    again = trainer_internals.compile_loss_class()(**arguments._asdict())
    trainer_internals.set_compiled_loss(model, again)
    ones, zeros = np.ones((3, 1), "float32"), np.zeros((3, 1), "float32")
    assert float(model.compute_loss(X, zeros, keras.ops.convert_to_tensor(ones))) == 2.0
    trainer_internals.wrap_losses(again, lambda loss: lambda *args: 3.0 * loss(*args))
    assert float(model.compute_loss(X, zeros, keras.ops.convert_to_tensor(ones))) == 6.0


@ON_TENSORFLOW
def test_strategy_of_and_losses_of_replicas():
    import tensorflow as tf

    assert trainer_internals.strategy_of(compiled()) is None
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        assert trainer_internals.strategy_of(compiled()) is strategy
    cpus = tf.config.list_logical_devices("CPU")
    strategy = tf.distribute.MirroredStrategy([x.name for x in cpus])
    with strategy.scope():
        loss = trainer_internals.unscale_loss(tf.constant(3.0))
        scaled = trainer_internals.scale_loss(loss)
    assert float(loss) == 3.0 * strategy.num_replicas_in_sync
    assert float(scaled) == 3.0


# Training: building and the data of `fit`.


@ON_TENSORFLOW
def test_build_with_replaces_what_fit_builds_by():
    calls = []

    @trainer_internals.build_with
    class Built(keras.Model):
        def build_before(self, iterator, data_batch):
            calls.append((iterator, data_batch))
            if iterator is None:
                trainer_internals.default_build(self, data_batch)
            else:
                calls.append(trainer_internals.element_spec(iterator))

    x = keras.Input((2,))
    model = Built(x, keras.layers.Dense(1)(x))
    model.compile("sgd", loss="mse")
    model.fit(X, np.zeros((3, 1), "float32"), verbose=0)
    (iterator, batch), spec = calls
    assert batch is None and iterator.data_adapter.batch_size == 32
    assert [tuple(t.shape)[1:] for t in spec] == [(2,), (1,)]
    del calls[:]
    model.train_on_batch(X, np.zeros((3, 1), "float32"))
    assert calls[0][0] is None and calls[0][1] is not None


@ON_TENSORFLOW
def test_default_build_calls_keras_where_build_with_does_not(monkeypatch):
    got = []
    monkeypatch.setattr(
        keras.Model, "_maybe_symbolic_build", lambda self, **kwargs: got.append(kwargs)
    )
    trainer_internals.default_build(compiled(), "batch")
    assert got == [{"data_batch": "batch"}]


def test_symbolic_build():
    model = compiled(metrics=["mae"])
    batch = (X, np.zeros((3, 1), "float32"), None)
    assert not model.optimizer.built
    trainer_internals.symbolic_build(model, tuple(None if x is None else x for x in batch))
    assert model.optimizer.built
    assert [m.name for m in model.metrics[1].metrics] == ["mae"]


class Steps(keras.callbacks.Callback):
    """Counts the batches of each epoch, from epoch `first` on."""

    def __init__(self, first=0):
        super().__init__()
        self.first = first
        self.epochs = []

    def on_train_begin(self, logs=None):
        trainer_internals.set_initial_epoch(self.model, self.first)

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append([epoch, 0])

    def on_train_batch_end(self, batch, logs=None):
        self.epochs[-1][1] += 1


def test_set_initial_epoch():
    steps = Steps(first=2)
    compiled().fit(X, np.zeros((3, 1)), epochs=4, batch_size=1, verbose=0, callbacks=[steps])
    assert steps.epochs == [[2, 3], [3, 3]]


def test_callback_list_may_be_replaced_in_on_train_begin():
    """The loop over the old list continues, and later methods are called on the new one."""
    called = []

    class Named(keras.callbacks.Callback):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def on_train_begin(self, logs=None):
            called.append(f"{self.name} begin")
            if self.name == "a":
                found = trainer_internals.callback_list()
                found.callbacks = [Named("new"), *found.callbacks[1:], self]

        def on_train_end(self, logs=None):
            called.append(f"{self.name} end")

    callbacks = [Named("a"), Named("b")]
    compiled().fit(X, np.zeros((3, 1)), verbose=0, callbacks=callbacks)
    assert called == ["a begin", "b begin", "new end", "b end", "a end"]
    with pytest.raises(RuntimeError, match=r"expected a call by a keras\.callbacks\.CallbackList"):
        trainer_internals.callback_list()


def test_portable_config():
    """What Keras on PyTorch saves of an optimizer is loaded as this backend's."""
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.AdamW(0.5))
    config = keras.saving.serialize_keras_object(optimizer)
    inner = config["config"]["inner_optimizer"]
    inner["module"] = "keras.src.backend.torch.optimizers.torch_adamw"
    found = trainer_internals.portable_config({"optimizer": config, "metrics": ["mse"]})
    loaded = keras.saving.deserialize_keras_object(found)["optimizer"].inner_optimizer
    assert type(loaded) is type(keras.optimizers.AdamW())
    assert float(loaded.learning_rate) == 0.5


@ON_TENSORFLOW
def test_replace_next_epoch():
    iterator = epoch_iterator(X, batch_size=1, steps_per_execution=1)
    trainer_internals.replace_next_epoch(iterator, lambda steps: list(steps)[:1])
    assert [begin for begin, *_ in iterator] == [0]
    assert len([next(batches) for _, _, batches in iterator]) == 3


@ON_TENSORFLOW
def test_restarts_each_epoch():
    import tensorflow as tf

    def generator():
        yield (X,)

    assert trainer_internals.restarts_each_epoch(epoch_iterator(X))
    data = tf.data.Dataset.from_tensor_slices(X).batch(2)
    assert trainer_internals.restarts_each_epoch(epoch_iterator(data))
    assert not trainer_internals.restarts_each_epoch(epoch_iterator(data, steps_per_epoch=1))
    assert not trainer_internals.restarts_each_epoch(epoch_iterator(generator()))


@ON_TENSORFLOW
def test_first_batch():
    import tensorflow as tf

    batches = [(X[:2],), (X[2:],)]

    class Items(keras.utils.PyDataset):
        def __len__(self):
            return len(batches)

        def __getitem__(self, index):
            return batches[index]

    dataset = tf.data.Dataset.from_tensor_slices((X,)).batch(2)
    for x in (X, dataset, dataset.repeat(), (batch for batch in batches), Items()):
        options = {"batch_size": 2} if x is X else {}
        found, is_fixed = trainer_internals.first_batch(epoch_iterator(x, **options))
        assert np.array_equal(*keras.tree.flatten(found), X[:2])
        assert is_fixed == (x is X or isinstance(x, tf.data.Dataset))


def test_runs_fit():
    class Asked(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            frame, self.found = sys._getframe(), []
            while frame is not None:
                self.found += [x for x in (self, other) if trainer_internals.runs_fit(frame, x)]
                frame = frame.f_back

    asked, other = Asked(), keras.callbacks.Callback()
    compiled().fit(X, np.zeros((3, 1)), verbose=0, callbacks=[asked])
    assert asked.found == [asked]


@ON_TENSORFLOW
def test_weigh_additional_losses():
    @trainer_internals.weigh_additional_losses
    class Weighed(keras.Model):
        def weigh_mean(self, loss):
            return 3.0 * loss

    x = keras.Input((2,))
    y = keras.layers.ReLU(activity_regularizer=keras.regularizers.L1(0.5))(x)
    model = Weighed(x, y)
    model.compile("sgd")
    assert model.test_on_batch(X) == pytest.approx(3 * 0.5 * X.sum() / len(X))


def test_keep_weights_after_errors():
    """The behaviour on JAX is tested in `training/test_weights_after_errors.py`."""

    class Trainer:
        _jax_state, values = None, [1.0, 2.0]

        def _get_jax_state(self, purge_model_variables=False, **parts):
            state, self.values = [self.values], None
            return state

        def _make_function(self, step):
            return step

        def jax_state_sync(self):
            self.values = self._jax_state["trainable_variables"]

        def evaluate(self, fails):
            state = self._get_jax_state(trainable_variables=True, purge_model_variables=True)
            step = self._make_function(lambda state, data: (0.0, [[x + data for x in state[0]]]))
            step(state, 1.0)
            if fails:
                raise OSError("no such file")

        predict = evaluate

    trainer = trainer_internals.keep_weights_after_errors(type("Kept", (Trainer,), {}))()
    with pytest.raises(OSError, match="no such file"):
        trainer.evaluate(True)
    assert trainer.values == [2.0, 3.0]
    assert trainer._jax_state is None
    trainer.predict(False)
    assert trainer._jax_state == {"trainable_variables": [3.0, 4.0]}
