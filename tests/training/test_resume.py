"""Interrupted trainings end where the uninterrupted one ends, to the bit."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from execution import epoch_iterator, saving
from interrupted_program import (
    IDS,
    KINDS,
    LABELS,
    LENGTH,
    ROWS,
    SIZE,
    STEPS,
    InterruptAt,
    Interrupted,
    bits,
    fit,
    program,
)

import keras_tfm
from keras_tfm import models, training
from keras_tfm.training.resuming.data_position import first_checksum

# Keras says of tf.data that it is not shuffled by fit, and of unknown lengths that they end.
pytestmark = [
    saving,
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning"),
    pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning"),
]


SIMILAR = ("unknown length", "repeated")  # to a dataset: on request


def files(folder):
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """By kind of data, the model that no one interrupted."""
    models = {}

    def of(kind):
        if kind not in models:
            models[kind] = program(tmp_path_factory.mktemp("whole"), kind, every_steps=4)
        return models[kind]

    return of


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        *(("arrays", step) for step in (1, STEPS, 2 * STEPS + 5)),
        pytest.param("arrays", STEPS + 1, marks=pytest.mark.slow),
        *(
            pytest.param(kind, STEPS + 5, marks=[pytest.mark.slow] * (kind in SIMILAR))
            for kind in KINDS[1:]
        ),
    ],
)
def test_killed_at_any_step(tmp_path, uninterrupted, kind, step):
    """Steps before the first checkpoint, between two, at the end of an epoch, and after it."""
    with pytest.raises(Interrupted):
        program(tmp_path, kind, InterruptAt(step), every_steps=4)
    model = program(tmp_path, kind, every_steps=4)
    assert bits(model) == bits(uninterrupted(kind))
    assert model.history.history == uninterrupted(kind).history.history
    assert model.history.epoch == [0, 1, 2]


@pytest.mark.slow
def test_killed_again_and_again(tmp_path, uninterrupted):
    for _ in range(4):
        with pytest.raises(Interrupted):
            program(tmp_path, "dataset", InterruptAt(5), every_steps=3)
    assert bits(program(tmp_path, "dataset", every_steps=3)) == bits(uninterrupted("dataset"))


def test_a_finished_training_is_restored_with_its_history(tmp_path, uninterrupted):
    program(tmp_path)
    with pytest.warns(UserWarning, match=r"holds a finished training of 3 epochs: nothing was tr"):
        model = program(tmp_path, "arrays", InterruptAt(1))  # no step: no interruption
    assert bits(model) == bits(uninterrupted("arrays"))
    assert model.history.history == uninterrupted("arrays").history.history
    assert model.history.epoch == [0, 1, 2]


def test_a_second_fit_in_the_same_folder_warns(tmp_path):
    model = program(tmp_path, epochs=1)
    before = bits(model)
    with pytest.warns(UserWarning, match=f"{tmp_path} holds a finished training of 1 epochs"):
        fit(model, [training.Resume(tmp_path)], epochs=1)
    assert bits(model) == before
    assert len(model.history.history["loss"]) == 1


def test_a_later_fit_without_the_callback_begins_at_its_first_epoch(tmp_path):
    program(tmp_path, epochs=2)
    with pytest.warns(UserWarning, match="nothing was trained"):
        model = program(tmp_path, epochs=2)
    fit(model, [], epochs=2)
    assert model.history.epoch == [0, 1]
    with pytest.raises(Interrupted):
        program(tmp_path, "arrays", InterruptAt(1), epochs=3)
    model = program(tmp_path, epochs=3)
    fit(model, [], epochs=2)
    assert model.history.epoch == [0, 1]


def test_an_initial_epoch_is_counted_once(tmp_path):
    """The number of an epoch is saved, not the number of epochs."""
    whole = program(None, fit_options={"initial_epoch": 2}, epochs=5)
    with pytest.raises(Interrupted):
        program(tmp_path, "arrays", InterruptAt(8), fit_options={"initial_epoch": 2}, epochs=5)
    model = program(tmp_path, fit_options={"initial_epoch": 2}, epochs=5)
    assert bits(model) == bits(whole)
    assert model.history.epoch == whole.history.epoch == [2, 3, 4]
    assert model.history.history == whole.history.history


def test_more_epochs_go_on_from_the_last(tmp_path):
    program(tmp_path, epochs=2)
    first, second = program(tmp_path, epochs=4), program(None, epochs=4)
    assert bits(first) == bits(second)


def test_the_callback_changes_nothing(uninterrupted):
    assert bits(program(None)) == bits(uninterrupted("arrays"))


class RoundFrom(keras.callbacks.Callback):
    """Trains with rounded weights from a step on, as in docs/quantization-aware-training.md."""

    def __init__(self, step):
        super().__init__()
        self.first = step

    def on_train_batch_begin(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == self.first:
            models.enable_quantization(self.model, "int4")


def test_rounding_that_began_in_the_interrupted_run_goes_on(tmp_path):
    whole = program(None, "arrays", RoundFrom(2), epochs=2)
    with pytest.raises(Interrupted):
        program(tmp_path, "arrays", RoundFrom(2), InterruptAt(STEPS + 2), epochs=2, every_steps=1)
    model = program(tmp_path, "arrays", RoundFrom(2), epochs=2)
    assert bits(model) == bits(whole)
    assert np.array_equal(model.predict(IDS, verbose=0), whole.predict(IDS, verbose=0))
    with pytest.warns(UserWarning, match="nothing was trained"):
        finished = program(tmp_path, "arrays", RoundFrom(2), epochs=2)
    assert np.array_equal(finished.predict(IDS, verbose=0), whole.predict(IDS, verbose=0))
    fit(model, [training.Resume(tmp_path)], epochs=3)  # a model that rounds from the start


def test_the_newest_checkpoints_are_kept(tmp_path):
    with pytest.raises(Interrupted):
        program(tmp_path, "arrays", InterruptAt(11), every_steps=4, keep=2)
    program(tmp_path, every_steps=4, keep=2)
    steps = [name for name in files(tmp_path) if name.endswith(".index")]
    assert steps == ["ckpt-16.index", "ckpt-18.index"]


def test_minutes(tmp_path, monkeypatch):
    """A clock that goes on by 40 seconds at each step: every second one is a minute."""
    now = [0.0]

    class Clock(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            now[0] += 40.0

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    program(tmp_path, "arrays", Clock(), every_minutes=1, epochs=1, keep=9)
    steps = [name for name in files(tmp_path) if name.endswith(".index")]
    assert steps == ["ckpt-2.index", "ckpt-4.index", "ckpt-6.index"]


@pytest.fixture(scope="module")
def stopped_at_11(tmp_path_factory):
    """A folder with the checkpoints of the steps 4, 6 and 8: nobody may change it."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(Interrupted):
        program(folder, "arrays", InterruptAt(11), every_steps=4)
    return folder


@pytest.fixture
def interrupted(tmp_path, stopped_at_11):
    """A copy of it, in `tmp_path`: the files of the weights by step."""
    shutil.copytree(stopped_at_11, tmp_path, dirs_exist_ok=True)
    return {step: tmp_path / f"ckpt-{step}.data-00000-of-00001" for step in (4, 6, 8)}


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path, seed=0):
    content = bytearray(path.read_bytes())
    content[random.Random(seed).randrange(len(content))] ^= 1 << random.Random(seed).randrange(8)
    path.write_bytes(content)


DAMAGE = {
    "truncated": truncate,
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "a flipped bit": flip,
}


DAMAGED = [("truncated", "data"), ("a flipped bit", "index")]  # by default


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        pytest.param(damage, what, marks=[pytest.mark.slow] * ((damage, what) not in DAMAGED))
        for damage in DAMAGE
        for what in ("data", "index")
    ],
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    tmp_path, uninterrupted, interrupted, capsys, damage, what
):
    data = interrupted[8]
    DAMAGE[damage](data if what == "data" else data.with_name("ckpt-8.index"))
    assert bits(program(tmp_path, every_steps=4)) == bits(uninterrupted("arrays"))
    gone = damage == "missing" and what == "index"
    assert ("ckpt-8 is damaged and is skipped" in capsys.readouterr().err) != gone


def test_no_flipped_bit_is_trained_on(tmp_path, interrupted):
    """Of 200 flipped bits of the data each is seen, or changes nothing of what is read."""
    from keras_tfm.training.resuming.training_state import _read_whole

    path = interrupted[8]
    whole = path.read_bytes()
    reader = tf.train.load_checkpoint(str(tmp_path / "ckpt-8"))
    names = sorted(reader.get_variable_to_shape_map())
    expected = [np.asarray(reader.get_tensor(name)).tobytes() for name in names]
    seen = 0
    for seed in range(200):
        flip(path, seed)
        try:
            _read_whole(str(tmp_path / "ckpt-8"))
        except Exception:
            seen += 1
        else:
            reader = tf.train.load_checkpoint(str(tmp_path / "ckpt-8"))
            assert [np.asarray(reader.get_tensor(name)).tobytes() for name in names] == expected
        path.write_bytes(whole)
    assert seen > 150


@pytest.mark.parametrize(
    "damage",
    [pytest.param(x, marks=[pytest.mark.slow] * (x in ("truncated", "empty"))) for x in DAMAGE],
)
def test_the_list_of_checkpoints_may_be_damaged(tmp_path, uninterrupted, interrupted, damage):
    DAMAGE[damage](tmp_path / "checkpoint")
    assert bits(program(tmp_path, every_steps=4)) == bits(uninterrupted("arrays"))


def test_nothing_is_trained_where_all_are_damaged(tmp_path, interrupted):
    for path in interrupted.values():
        truncate(path)
    with pytest.raises(ValueError, match=r"none of the 3 checkpoints in .* can be read"):
        program(tmp_path)


def test_a_folder_that_cannot_be_written_is_an_error_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"checkpoints cannot be written to .*file/inside"):
        program(tmp_path / "file" / "inside")


def test_a_full_disk_is_an_error_and_the_checkpoint_before_stands(tmp_path, uninterrupted):
    """A limit on the size of files: what a disk without room answers."""

    class Full(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(OSError, match=r"the checkpoint of step 8 could .* is .*ckpt-6"):
            program(tmp_path, "arrays", Full(), every_steps=4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    assert bits(program(tmp_path, every_steps=4)) == bits(uninterrupted("arrays"))


class Terminate(keras.callbacks.Callback):
    def __init__(self, when, step):
        super().__init__()
        self.when, self.left = when, step

    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if self.left == 0 and self.when == "train":
            os.kill(os.getpid(), signal.SIGTERM)

    def on_test_batch_begin(self, batch, logs=None):
        if self.left <= 0 and self.when == "test":
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("when", ["train", "test"])
def test_sigterm_saves_and_exits(tmp_path, uninterrupted, when):
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as exit:
        program(tmp_path, "arrays", Terminate(when, 9), every_steps=100)
    assert exit.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == handler
    newest = "ckpt-9.index" if when == "train" else "ckpt-6.index"
    assert newest in files(tmp_path)
    assert bits(program(tmp_path, every_steps=100)) == bits(uninterrupted("arrays"))


@pytest.mark.parametrize("later", ["after fit", "in another fit"])
def test_sigterm_after_an_error_in_fit_is_the_program_s(tmp_path, later):
    received = []
    handler = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with pytest.raises(Interrupted):
            program(tmp_path, "arrays", InterruptAt(2))
        if later == "after fit":
            signal.raise_signal(signal.SIGTERM)
        else:
            program(None, "arrays", Terminate("train", 1), epochs=1)
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert received == [signal.SIGTERM]


@pytest.fixture(scope="module")
def one_epoch(tmp_path_factory):
    """A folder after an epoch: nobody may change it."""
    folder = tmp_path_factory.mktemp("epoch")
    program(folder, epochs=1, configuration={"corpus": "old"})
    return folder


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"rate": 0.02}, r"optimizer.config.learning_rate: 0.0.* in the checkpoint, 0.0.* now"),
        ({"dropout": 0.1}, r"layers\[2\].rate: 0.3 in the checkpoint, 0.1 now"),
        ({"quantization": "int4"}, r"quantization: None in the checkpoint, {.*'int4'.*} now"),
        ({"metrics": ["accuracy", "acc"]}, r"metrics: 1 in the checkpoint, 2 now"),
        ({"dim": 4}, r"layers\[1\].output_dim: 5 in the checkpoint, 4 now"),
        (
            {"configuration": {"corpus": "new"}},
            r"settings.corpus: 'old' in the checkpoint, 'new' now",
        ),
        ({"kind": "dataset"}, r"first batch of the data: '.*' in the checkpoint, '.*' now"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_configuration_is_refused_with_the_difference(one_epoch, change, line):
    before = files(one_epoch)
    with pytest.raises(ValueError, match=line):
        program(one_epoch, **{"configuration": {"corpus": "old"}, **change})
    assert files(one_epoch) == before


def test_another_batch_size_is_refused_with_steps_per_epoch(tmp_path):
    data = tf.data.Dataset.from_tensor_slices((IDS, LABELS)).repeat()
    options = {"x": data.batch(4), "validation_data": None}
    program(tmp_path, "repeated", epochs=1, fit_options=options)
    options["x"] = data.batch(5)
    with pytest.raises(ValueError, match=r"first batch of the data: '.*' in the checkpoint"):
        program(tmp_path, "repeated", epochs=2, fit_options=options)


class Sized(keras.utils.PyDataset):
    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return IDS[: self.rows], LABELS[: self.rows]


def batches_of(kind, rows):
    """Data for `fit` whose first batch has this number of rows."""
    if kind == "sequence":
        return Sized(rows)
    if kind == "generator":
        return (batch for batch in [(IDS[:rows], LABELS[:rows])] * 2)
    if kind == "no weights":
        return (batch for batch in [(IDS[:rows], LABELS[:rows], None)] * 2)
    x = IDS.astype(str) if kind == "strings" else IDS
    return tf.data.Dataset.from_tensor_slices((x, LABELS)).batch(rows)


@pytest.mark.parametrize("kind", ["dataset", "strings", "generator", "no weights", "sequence"])
def test_the_first_batch_is_told_from_others(kind):
    def checksum(rows):
        return first_checksum(epoch_iterator(batches_of(kind, rows)))

    first = checksum(4)
    assert first == checksum(4)
    assert first not in (checksum(5), None)


@pytest.mark.parametrize("kind", ["dataset", "generator"])
def test_rows_at_random_are_those_of_python_code(kind, monkeypatch):
    """A generator may augment its rows without a seed, and its training must go on."""
    first = first_checksum(epoch_iterator(batches_of(kind, 4)))
    monkeypatch.setattr(sys.modules[__name__], "IDS", IDS[::-1])
    assert (first == first_checksum(epoch_iterator(batches_of(kind, 4)))) == (kind == "generator")


def test_an_unseeded_shuffle_is_refused(one_epoch):
    """Other data than those that were trained on would come after the checkpoint."""
    rows = np.random.default_rng().permutation(ROWS)
    keras.utils.set_random_seed(1)
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Dropout(0.3)(keras.layers.Embedding(SIZE, 5)(tokens))
    model = keras_tfm.Model(tokens, keras.layers.Dense(SIZE)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    resume = training.Resume(one_epoch, configuration={"corpus": "old"})
    with pytest.raises(ValueError, match="first batch of the data"):
        model.fit(IDS[rows], LABELS[rows], 4, verbose=0, callbacks=[resume], epochs=3)


def test_errors_of_the_arguments(tmp_path):
    for name in ("every_steps", "every_minutes"):
        with pytest.raises(ValueError, match=f"{name} must be above 0, got 0"):
            training.Resume(tmp_path, **{name: 0})
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        training.Resume(tmp_path, keep=0)


def test_what_a_killed_save_left_is_removed(tmp_path):
    """As TensorFlow leaves it: the parts of a checkpoint, one without its index, half a list."""
    model = keras_tfm.Model(x := keras.Input((1,)), keras.layers.Dense(1)(x))
    model.compile("sgd", "mse")
    (tmp_path / "ckpt-7_temp").mkdir()
    for name in ("ckpt-7_temp/part-00000-of-00001.index", "ckpt-8.data-00000-of-00001"):
        (tmp_path / name).write_bytes(b"half")
    for name in ("checkpoint.tmp0123", "notes.txt"):
        (tmp_path / name).write_text("")
    model.fit(np.ones((4, 1)), np.ones((4, 1)), callbacks=[training.Resume(tmp_path)], verbose=0)
    names = ["checkpoint", "ckpt-1.data-00000-of-00001", "ckpt-1.index", "notes.txt"]
    assert files(tmp_path) == names


def test_a_model_of_keras_alone_is_refused(tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(TypeError, match=r"Resume needs a keras_tfm\.Model .* got Sequential"):
        model.fit(np.ones((4, 1)), np.ones((4, 1)), callbacks=[training.Resume(tmp_path)])


PROGRAM = """
import os, sys
sys.path[:0] = {paths!r}
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import interrupted_program
class Kill(interrupted_program.InterruptAt):
    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), 9)
others = [Kill({step})] if {step} else []  # whose count would be restored
model = interrupted_program.program({folder!r}, "dataset", *others, every_steps=4)
import zlib
print("BITS", zlib.crc32(interrupted_program.bits(model)))
"""


@pytest.mark.slow
def test_kill_9(tmp_path, uninterrupted):
    """Processes of their own: killed in the second epoch, and started again."""

    def run(step):
        here = Path(__file__).parent
        paths = [str(here), str(here.parent), str(here.parent.parent)]
        code = PROGRAM.format(paths=paths, folder=str(tmp_path), step=step)
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert run(9).returncode == -9
    again = run(0)
    assert again.returncode == 0, again.stderr
    expected = zlib.crc32(bits(uninterrupted("dataset")))
    assert again.stdout.strip().splitlines()[-1] == f"BITS {expected}"
