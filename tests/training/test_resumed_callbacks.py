"""The other callbacks of an interrupted training continue, and so do history and learning rate."""

import json
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import keras
import numpy as np
import pytest
from execution import saving
from interrupted_program import STEPS, InterruptAt, Interrupted, bits, program

from keras_tfm.training.resuming.callback_states import CallbackStates
from keras_tfm.training.resuming.training_state import Arrays

EPOCHS = 9
pytestmark = saving


class Interrupt(keras.callbacks.Callback):
    """Interrupts at the n-th call of a method, of `on_test_batch_begin` for instance."""

    def __init__(self, method, count, by=None):
        super().__init__()
        self.method, self.left = method, count
        self.by = by or interrupt
        setattr(self, method, self.count_down)

    def count_down(self, *_, **__):
        self.left -= 1
        if self.left == 0:
            self.by()


def interrupt():
    raise Interrupted


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


class Decay(keras.callbacks.Callback):
    """Multiplies the learning rate at the beginning of each epoch, so that twice is once too often.

    It counts, in attributes of several kinds, how often its methods are called.
    """

    def __init__(self):
        super().__init__()
        self.calls = {"begin": 0, "batch": 0, "end": 0}
        self.rates = np.zeros(0, "float32")
        self.last = None

    def on_epoch_begin(self, epoch, logs=None):
        self.calls["begin"] += 1
        optimizer = self.model.optimizer
        optimizer.learning_rate = 0.97 * float(optimizer.learning_rate)
        self.rates = np.append(self.rates, np.float32(optimizer.learning_rate))

    def on_train_batch_end(self, batch, logs=None):
        self.calls["batch"] += 1
        self.last = (batch, np.float32(logs["loss"]))

    def on_epoch_end(self, epoch, logs=None):
        self.calls["end"] += 1


def callbacks(patience):
    """The learning rate is halved after epochs 3 and 5, and `EarlyStopping` ends epoch 6."""
    return [
        keras.callbacks.ReduceLROnPlateau("val_loss", 0.5, patience=1, cooldown=1, min_delta=0.05),
        Decay(),
        keras.callbacks.EarlyStopping(
            "val_loss", patience=patience, min_delta=0.05, restore_best_weights=True
        ),
    ]


def trained(folder, *others, patience=2, **options):
    """The model at the end of the program, and its callbacks."""
    followed = callbacks(patience)
    model = program(folder, "arrays", *followed, *others, epochs=EPOCHS, rate=0.05, **options)
    return model, followed


def outcome(model, followed):
    """All that the callbacks make: weights, optimizer, history, attributes."""
    reduce, decay, stopping = followed
    return {
        "bits": zlib.crc32(bits(model)),
        "rate": float(model.optimizer.learning_rate),
        "history": model.history.history,
        "epoch": model.history.epoch,
        "reduce": [reduce.wait, reduce.cooldown_counter, reduce.best],
        "decay": [decay.calls, decay.rates.tolist(), decay.rates.dtype.name, decay.last[0]],
        "last": [type(decay.last).__name__, type(decay.last[1]).__name__, float(decay.last[1])],
        "stopping": [stopping.wait, stopping.best, stopping.best_epoch, stopping.stopped_epoch],
        "best": [zlib.crc32(w.tobytes()) for w in stopping.best_weights],
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return outcome(*trained(tmp_path_factory.mktemp("whole"), every_steps=3))


def test_the_callback_changes_nothing(uninterrupted):
    assert outcome(*trained(None)) == uninterrupted


def test_the_callbacks_had_something_to_do(uninterrupted):
    rates = uninterrupted["history"]["learning_rate"]
    ratios = np.array(rates[1:]) / np.array(rates[:-1])
    assert ratios.min() < 0.9 < ratios.max()
    assert uninterrupted["epoch"] == list(range(7))
    assert uninterrupted["stopping"][2:] == [4, 6]  # the best epoch and the last


POINTS = [
    ("on_train_batch_end", 3 * STEPS + 2),  # between two checkpoints
    ("on_train_batch_begin", 4 * STEPS + 4),  # after one in the middle of an epoch
    ("on_test_begin", 4),  # after the one of an epoch's last step
    ("on_test_batch_end", 3 * STEPS + 3),
    ("on_epoch_end", 4),  # other callbacks have seen the end of the epoch, the checkpoint has not
    ("on_epoch_begin", 5),  # after the checkpoint at the end of an epoch
    ("on_train_end", 1),
]
# Interrupted between two checkpoints: by the next test, again and again.
DEFAULT = ("on_epoch_end", "on_train_end")


@pytest.mark.parametrize(
    ("method", "count"),
    [pytest.param(*x, marks=[pytest.mark.slow] * (x[0] not in DEFAULT)) for x in POINTS],
)
def test_interrupted_anywhere(tmp_path, uninterrupted, method, count):
    with pytest.raises(Interrupted):
        trained(tmp_path, Interrupt(method, count), every_steps=3)
    if method == "on_train_end":
        with pytest.warns(UserWarning, match="finished training of .* stopped by a callback"):
            assert outcome(*trained(tmp_path, every_steps=3)) == uninterrupted
    else:
        assert outcome(*trained(tmp_path, every_steps=3)) == uninterrupted


def test_interrupted_again_and_again(tmp_path, uninterrupted):
    for count in (4, 5, 6, 7):
        with pytest.raises(Interrupted):
            trained(tmp_path, InterruptAt(count), every_steps=3)
    assert outcome(*trained(tmp_path, every_steps=3)) == uninterrupted


def test_a_training_that_early_stopping_ended_is_not_continued(tmp_path, uninterrupted):
    trained(tmp_path, every_steps=3)
    with pytest.warns(UserWarning, match=r"epochs, stopped by a callback: nothing was trained"):
        assert outcome(*trained(tmp_path, every_steps=3)) == uninterrupted


@pytest.mark.parametrize(
    ("method", "count"),
    [
        ("on_test_begin", 2),
        pytest.param("on_train_batch_end", 8, marks=pytest.mark.slow),
        pytest.param("on_epoch_begin", 3, marks=pytest.mark.slow),
    ],
)
def test_moving_averages(tmp_path, method, count):
    """Swapped for validation, and at the end of `fit` the weights."""

    def run(folder, *others):
        optimizer = keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.8)
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        return program(folder, "arrays", swap, *others, rate=optimizer, every_steps=3)

    whole = run(tmp_path / "whole")
    folder = tmp_path / "interrupted"
    with pytest.raises(Interrupted):
        run(folder, Interrupt(method, count))
    model = run(folder)
    assert bits(model) == bits(whole)
    assert model.history.history == whole.history.history


class Handle(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = None

    def on_epoch_begin(self, epoch, logs=None):
        self.seen = object()


def test_state_that_cannot_be_saved_is_named(tmp_path):
    with pytest.warns(UserWarning, match=r"Resume does not save Handle\.seen, .* got object"):
        program(tmp_path, "arrays", Handle(), epochs=1)


def test_attributes_of_the_program_are_not_restored(tmp_path):
    """A patience that the program has changed is its new one."""
    with pytest.raises(Interrupted):
        trained(tmp_path, InterruptAt(STEPS + 2), every_steps=3, patience=1)
    _, (_, _, stopping) = trained(tmp_path, every_steps=3, patience=50)
    assert stopping.patience == 50


VALUES = {
    "number": -3,
    "large": 2**70,
    "float": 0.1,
    "infinity": float("inf"),
    "text": "é",
    "nothing": None,
    "flag": True,
    "list": [1, [2.5, None], "a"],
    "tuple": (1, (2,)),
    "dictionary": {"a": {1: 2}, (3, 4): [np.float32(0.1)]},
    "array": np.arange(6, dtype="int16").reshape(2, 3),
    "empty": np.zeros((0, 3), "float32"),
    "scalar": np.float32(0.1),
    "bfloat16": np.array(keras.ops.convert_to_numpy(keras.ops.ones((2,), "bfloat16"))),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_survive_a_checkpoint(name):
    class Holder(keras.callbacks.Callback):
        value = "nothing yet"

        def __init__(self):
            super().__init__()
            self.value = "nothing yet"

    holder, value = Holder(), VALUES[name]
    states = CallbackStates([holder])
    assert states.changes([]) == {}
    holder.value = value
    arrays = [np.ones(3)]
    position = json.loads(json.dumps(states.changes(arrays)))
    saved, loaded = Arrays(), Arrays()
    saved.value = arrays
    loaded.deserialize(saved.serialize())
    other = Holder()
    CallbackStates([other]).restore(position, loaded.value)
    assert type(other.value) is type(value)
    if isinstance(value, np.ndarray):
        assert (other.value.dtype, other.value.shape) == (value.dtype, value.shape)
        assert other.value.tobytes() == value.tobytes()
    else:
        assert other.value == value


def test_callbacks_of_one_class_are_told_apart():
    first, second = (keras.callbacks.EarlyStopping(monitor=name) for name in ("loss", "val_loss"))
    states = CallbackStates([first, second])
    first.wait, second.wait = 1, 2
    saved = states.changes([])
    again = [keras.callbacks.EarlyStopping() for _ in range(2)]
    CallbackStates(again).restore(saved, [])
    assert [x.wait for x in again] == [1, 2]
    assert [x.monitor for x in again] == ["val_loss", "val_loss"]


PROGRAM = """
import json, os, sys
sys.path[:0] = {paths!r}
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import test_resumed_callbacks as t
others = [t.Interrupt({method!r}, {count}, t.kill)] if {count} else []
print("OUTCOME", json.dumps(t.outcome(*t.trained({folder!r}, *others, every_steps=3))))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "count"),
    [
        ("on_test_batch_begin", 3 * STEPS + 3),
        ("on_epoch_end", 4),
    ],
)
def test_kill_9_in_validation_and_between_callbacks(tmp_path, uninterrupted, method, count):
    """Processes of their own: killed, and started again."""

    def run(count):
        here = Path(__file__).parent
        paths = [str(here), str(here.parent), str(here.parent.parent)]
        code = PROGRAM.format(paths=paths, folder=str(tmp_path), method=method, count=count)
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert run(count).returncode == -9
    again = run(0)
    assert again.returncode == 0, again.stderr
    line = again.stdout.strip().splitlines()[-1]
    assert json.loads(line.removeprefix("OUTCOME ")) == json.loads(json.dumps(uninterrupted))
