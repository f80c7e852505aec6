"""Resuming an interrupted training, with the same result as without the interruption."""

import signal
import threading
import time
import warnings
from pathlib import Path
from types import FrameType
from typing import NoReturn

import keras
import numpy as np

from keras_tfm.layers.types import Config
from keras_tfm.models.quantization.state import quantization_settings, set_quantization_settings
from keras_tfm.trainer_internals import callback_list, runs_fit, set_initial_epoch
from keras_tfm.training.resuming.callback_states import CallbackStates


class Resume(keras.callbacks.Callback):
    """Saves the whole state of training and resumes from it, to bit-equal weights.

    Pass it to `fit`, and run the same program again after a crash, a `kill -9` or a full disk: it
    restores the newest complete checkpoint (model, optimizer, dropout seeds, metrics, history,
    other callbacks, and rounding that a callback enabled), skips the data that were already used,
    and continues. It writes a checkpoint at the end of each epoch, every `every_steps` steps and
    every `every_minutes` minutes, and at SIGTERM, after which the program exits with status 143.
    Checkpoints are managed by `tf.train.CheckpointManager`.

    The result is exact if the program is deterministic: call `keras.utils.set_random_seed` first,
    on GPUs also `tf.config.experimental.enable_op_determinism()`, and use data whose order is the
    same in each run (arrays and seeded `tf.data` shuffling are). Finished epochs are skipped by
    drawing one batch of each; with a Python generator or `steps_per_epoch`, by drawing all.

    A `tf.data.Dataset` that shuffles has another order than without this callback, which reads its
    first batch once more.

    Several workers must share one folder, to which the first worker writes. About once a second
    they agree whether `every_minutes` are over and whether one of them got SIGTERM.

    The other callbacks of `fit` continue too (`EarlyStopping`, `ReduceLROnPlateau`, your own): all
    their attributes that have changed since training began are saved, if they are numbers, strings,
    arrays, or lists or dictionaries of these. A warning names the others of your own callbacks.
    Files that callbacks write are not rolled back.

    If all epochs are done, or a callback stopped the training, `fit` trains nothing, restores the
    weights and the history, and warns. Another training needs another folder.

    Args:
        directory: str or Path, the folder of the checkpoints. Created if it does not exist.
        every_steps: int, steps between two checkpoints. Default: only at the end of each epoch.
        every_minutes: float, minutes between two checkpoints. Default: no limit.
        keep: int, number of checkpoints to keep.
        configuration: dict of JSON values, settings of the program that must not change between
            runs, such as `vars(arguments)`. The model's layers and rounding, the loss, the
            metrics, the optimizer, the number of replicas and the first batch of the data are
            always compared; of a generator or a `PyDataset`, which may be random, its shapes.

    Raises:
        RuntimeError: at the start of `fit`, if the backend is not TensorFlow.
        ValueError: at the start of `fit`, if the checkpoints belong to another configuration (the
            message lists the differences) or none of them can be read.
        OSError: if a checkpoint cannot be written. The previous one is still complete.

    Example:

    >>> import tempfile, numpy as np
    >>> import keras_tfm
    >>> from keras_tfm import training
    >>> keras.utils.set_random_seed(1)
    >>> model = keras_tfm.models.transformer(11, dim=8, num_layers=1, num_heads=2)
    >>> model.compile("adam", training.LabelSmoothedCrossEntropy())
    >>> ids = np.ones((4, 5), "int32")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     resume = training.Resume(folder, every_steps=100)
    ...     history = model.fit({"source": ids, "target": ids}, ids, verbose=0, callbacks=[resume])
    >>> resume.step
    1
    """

    def __init__(
        self,
        directory: str | Path,
        every_steps: int | None = None,
        every_minutes: float | None = None,
        keep: int = 3,
        configuration: Config | None = None,
    ):
        super().__init__()
        for name, value in {"every_steps": every_steps, "every_minutes": every_minutes}.items():
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be above 0, got {value}")
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.directory = Path(directory).absolute()  # the current folder may change
        self.every_steps = every_steps
        self.every_minutes = every_minutes
        self.keep = keep
        self.configuration = configuration or {}
        self.step = 0  # of all epochs together

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Restores the newest complete checkpoint, if any."""
        backend = keras.backend.backend()
        if backend != "tensorflow":
            raise RuntimeError(
                f"Resume needs Keras's TensorFlow backend, got {backend!r}: "
                "keras.callbacks.BackupAndRestore resumes at the last complete epoch there"
            )
        from keras_tfm.training.resuming import data_position  # TensorFlow only
        from keras_tfm.training.resuming.training_state import TrainingState

        model = self.model
        if not hasattr(model, "epoch_iterator"):
            raise TypeError(
                "Resume needs a keras_tfm.Model made by keras_tfm.Model(inputs, outputs), got "
                f"{type(model).__name__}; of a functional keras.Model make one: "
                "keras_tfm.Model(model.input, model.output), of a keras.Sequential "
                "keras_tfm.Model(model.inputs[0], model.outputs[0])"
            )
        if model.steps_per_execution > 1:
            raise ValueError(
                f"steps_per_execution must be 1 to resume at any step, got "
                f"{model.steps_per_execution}"
            )
        data = model.epoch_iterator
        self.state = TrainingState(
            model, self.directory, self.keep, self.configuration, data_position.first_checksum(data)
        )
        self.in_epoch = 0
        self.epochs: list[int] = []
        self.found = found = self.state.restore()
        self.has_begun = False
        if found is not None:
            self.step, self.in_epoch, self.epochs = (
                found["step"],
                found["in_epoch"],
                found["epochs"],
            )
            for steps in self.epochs:
                data_position.pass_epoch(data, steps)
            data_position.begin_epoch_at(data, self.in_epoch)
            end = max(found["epoch"], self.params.get("epochs", 0))
            set_initial_epoch(model, end if found["stopped"] else found["epoch"])
        # The loop over the old list, which calls this method, goes on.
        callbacks = callback_list()
        others = [x for x in callbacks.callbacks if x is not self and not isinstance(x, _First)]
        callbacks.callbacks = [_First(self, others), *others, self]
        self.saved_at = self.agreed_at = time.monotonic()
        self.interval = self.until_agreement = 1
        self.terminated = False
        if threading.current_thread() is threading.main_thread():
            self.previous = signal.signal(signal.SIGTERM, self._on_sigterm)

    def begin(self, others: list[keras.callbacks.Callback]) -> None:
        """Begins to follow the other callbacks, after `on_train_begin` of all of them."""
        set_initial_epoch(self.model, None)  # which a later `fit` would use
        self.has_begun = True
        self.states = CallbackStates(others)

    def restore_again(self) -> None:
        """Restores what callbacks may have changed since `on_train_begin`, and the callbacks."""
        if self.found is not None:
            self.state.restore_variables()
            self.restore_quantization()
            self.states.restore(self.found["callbacks"], self.state.arrays.value)
            if not self.in_epoch:  # the metrics are those of the epoch before
                self.model.reset_metrics()
            elif "metrics" in self.found:
                arrays = self.state.arrays.value
                self.state.set_metric_values([arrays[i] for i in self.found["metrics"]])

    def restore_quantization(self) -> None:
        """Restores the rounding of the weights, which a callback may have enabled in training."""
        if self.found is not None:
            set_quantization_settings(self.model, self.found.get("quantization"))

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Restores an epoch that was interrupted, after `on_epoch_begin` of other callbacks."""
        self.epoch = epoch
        if self.found is not None and self.in_epoch:
            self.restore_again()

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Writes a checkpoint if one is due."""
        self.found = None
        self.step += 1
        self.in_epoch += 1
        if self.model.stop_training:  # the epoch ends here, with a checkpoint
            return
        old, terminated = self._decide()
        if old or terminated or (self.every_steps and self.step % self.every_steps == 0):
            metrics = self.model.get_metrics_result()
            self._save(self.epoch, {name: float(value) for name, value in metrics.items()})
        if terminated:
            self._exit()

    def on_test_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Exits after SIGTERM; an evaluation changes nothing that needs a checkpoint."""
        if self._decide()[1]:
            self._exit()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Writes a checkpoint, after `on_epoch_end` of other callbacks."""
        self.found = None
        self.epochs.append(self.in_epoch)
        self.in_epoch = 0
        self._save(epoch + 1, {})
        self.until_agreement = 1
        if self._decide()[1]:
            self._exit()

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Restores the signal handler of SIGTERM; warns if nothing was left to train."""
        set_initial_epoch(self.model, None)
        if hasattr(self, "previous"):
            signal.signal(signal.SIGTERM, self.previous)
        if self.found is not None:
            reason = ", stopped by a callback" if self.found["stopped"] else ""
            warnings.warn(
                f"{self.directory} holds a finished training of {len(self.epochs)} epochs{reason}: "
                "nothing was trained; use another folder for another training",
                stacklevel=2,
            )

    def _decide(self) -> tuple[bool, bool]:
        """Whether the last checkpoint is too old, and whether to exit after SIGTERM.

        Workers exchange numbers when they write a checkpoint, so they decide together, at the same
        step. Between two agreements are as many steps as the first worker did in a second.
        """
        now = time.monotonic()
        old = self.every_minutes is not None and now - self.saved_at >= 60 * self.every_minutes
        if not self.state.several_workers:
            return old, self.terminated
        self.until_agreement -= 1
        if self.until_agreement > 0:
            return False, False
        steps_per_second = self.interval / max(now - self.agreed_at, 1e-3)
        mine = [old, self.terminated, max(1, int(steps_per_second))]
        replicas = len(self.state.replicas)
        opinions = self.state.gather(np.tile(np.array(mine, "int64"), (replicas, 1)))
        self.interval = self.until_agreement = int(opinions[0, 2])
        self.agreed_at = now
        return bool(opinions[0, 0]), bool(opinions[:, 1].any())

    def _save(self, epoch: int, logs: dict[str, float]) -> None:
        arrays: list[np.ndarray] = []
        position = {
            "step": self.step,
            "epoch": epoch,
            "in_epoch": self.in_epoch,
            "epochs": self.epochs,
            "stopped": self.model.stop_training,
            "logs": logs,
            "quantization": quantization_settings(self.model),
            "callbacks": self.states.changes(arrays),
        }
        if self.in_epoch:
            values = self.state.metric_values()
            position["metrics"] = [*range(len(arrays), len(arrays) + len(values))]
            arrays += values
        self.state.save(self.step, position, arrays)
        self.saved_at = time.monotonic()

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, self.previous)  # a second SIGTERM ends the program at once
        while frame is not None and not runs_fit(frame, self):
            frame = frame.f_back
        if frame is None:  # an error ended its `fit` without `on_train_end`
            signal.raise_signal(number)
        self.terminated = True

    def _exit(self) -> NoReturn:
        self.found = None
        self.on_train_end()
        raise SystemExit(128 + signal.SIGTERM)


class _First(keras.callbacks.Callback):
    """What `Resume` does before all other callbacks; its own methods are called after them."""

    def __init__(self, resume: Resume, others: list[keras.callbacks.Callback]):
        super().__init__()
        self.resume, self.others = resume, others

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Restores the state between two epochs."""
        resume = self.resume
        if not resume.has_begun:
            resume.begin(self.others)
            if not resume.in_epoch:
                resume.restore_again()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Adds the training metrics, if the interruption came after the last step of the epoch."""
        if self.resume.found is not None and logs is not None:
            for name, value in self.resume.found["logs"].items():
                logs.setdefault(name, value)

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Restores rounding and the callbacks, with the history, if no epoch was left."""
        resume = self.resume
        if resume.has_begun or resume.found is None:
            return
        resume.begin(self.others)
        resume.restore_quantization()
        resume.states.restore(resume.found["callbacks"], resume.state.arrays.value)
