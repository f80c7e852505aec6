"""Resuming an interrupted training, with the same result as without the interruption."""

import signal
import threading
import time
from pathlib import Path
from typing import Any

import keras

from keras_tfm.keras_internals import set_initial_epoch


class Resume(keras.callbacks.Callback):
    """Saves the whole state of training and resumes from it, to bit-equal weights.

    Pass it to `fit`, and run the same program again after a crash, a `kill -9` or a full disk: it
    restores the newest complete checkpoint (model, optimizer, dropout seeds, metrics, history),
    skips the data that were already used, and continues. It writes a checkpoint at the end of each
    epoch, every `every_steps` steps and every `every_minutes` minutes, and at SIGTERM, after which
    the program exits with status 143. Checkpoints are managed by `tf.train.CheckpointManager`.

    The result is exact if the program is deterministic: call `keras.utils.set_random_seed` first,
    on GPUs also `tf.config.experimental.enable_op_determinism()`, and use data whose order is the
    same in each run (arrays and seeded `tf.data` shuffling are). Finished epochs are skipped by
    drawing one batch of each; with a Python generator or `steps_per_epoch`, by drawing all.

    Several workers must share one folder, to which the first worker writes. The metrics of the
    interrupted epoch are then averaged over its remaining steps only; everything else is exact.

    The state of other callbacks (such as the patience of `EarlyStopping`) is not saved.

    Args:
        directory: str or Path, the folder of the checkpoints. Created if it does not exist.
        every_steps: int, steps between two checkpoints. Default: only at the end of each epoch.
        every_minutes: float, minutes between two checkpoints. Default: no limit.
        keep: int, number of checkpoints to keep.
        configuration: dict of JSON values, settings of the program that must not change between
            runs, such as `vars(arguments)`. The model's layers, the loss, the optimizer, the number
            of replicas and the first batch of the data are always compared.

    Raises:
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
        configuration: dict[str, Any] | None = None,
    ):
        super().__init__()
        for name, value in {"every_steps": every_steps, "every_minutes": every_minutes}.items():
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be above 0, got {value}")
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.directory = Path(directory)
        self.every_steps = every_steps
        self.every_minutes = every_minutes
        self.keep = keep
        self.configuration = configuration or {}
        self.step = 0  # of all epochs together

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores the newest complete checkpoint, if any."""
        from keras_tfm.training import data_position  # TensorFlow only
        from keras_tfm.training.training_state import TrainingState

        model = self.model
        if not hasattr(model, "epoch_iterator"):
            raise TypeError(
                "Resume needs a keras_tfm.Model on Keras's TensorFlow backend, "
                f"keras_tfm.Model(inputs, outputs), got {type(model).__name__}"
            )
        if model.steps_per_execution > 1:
            raise ValueError(
                f"steps_per_execution must be 1 to resume at any step, got "
                f"{model.steps_per_execution}"
            )
        data = model.epoch_iterator
        self.state = TrainingState(
            model, self.directory, self.keep, self.configuration, data_position.first_batch(data)
        )
        self.in_epoch = 0
        self.epochs: list[int] = []
        self.past: dict[str, Any] = {}
        found = self.state.restore()
        if found is not None:
            self.step, self.in_epoch, self.epochs = (
                found["step"],
                found["in_epoch"],
                found["epochs"],
            )
            self.past = found["history"]
            set_initial_epoch(model, len(self.epochs))
            for steps in self.epochs:
                data_position.pass_epoch(data, steps)
            data_position.begin_epoch_at(data, self.in_epoch)
        self.restored = found is not None and self.in_epoch > 0
        self.saved_at = time.monotonic()
        self.terminated = False
        if threading.current_thread() is threading.main_thread():
            self.previous = signal.signal(signal.SIGTERM, self._on_sigterm)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Restores the history of earlier epochs, and the metrics of this one."""
        if self.past:
            self.model.history.epoch = list(range(len(self.epochs)))
            self.model.history.history = {name: list(v) for name, v in self.past.items()}
            self.past = {}
        if self.restored:  # `fit` has just reset them
            self.state.restore_metrics()
            self.restored = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Writes a checkpoint if one is due."""
        self.step += 1
        self.in_epoch += 1
        age = time.monotonic() - self.saved_at
        due = self.every_steps and self.step % self.every_steps == 0
        old = self.every_minutes and age >= 60 * self.every_minutes
        if due or old or self.terminated:
            self._save(self.model.history.history)
        self._exit_if_terminated()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Exits after SIGTERM; an evaluation changes nothing that needs a checkpoint."""
        self._exit_if_terminated()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes a checkpoint."""
        self.epochs.append(self.in_epoch)
        self.in_epoch = 0
        # The callback that fills the history runs after this one.
        history = {name: list(values) for name, values in self.model.history.history.items()}
        for name, value in (logs or {}).items():
            history.setdefault(name, []).append(float(value))
        self._save(history)
        self._exit_if_terminated()

    def on_train_end(self, logs: Any = None) -> None:
        """Restores the signal handler of SIGTERM."""
        if hasattr(self, "previous"):
            signal.signal(signal.SIGTERM, self.previous)

    def _save(self, history: dict[str, list[float]]) -> None:
        self.state.save(
            self.step,
            {
                "step": self.step,
                "in_epoch": self.in_epoch,
                "epochs": self.epochs,
                "history": {name: [float(v) for v in values] for name, values in history.items()},
            },
        )
        self.saved_at = time.monotonic()

    def _on_sigterm(self, number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, self.previous)  # a second SIGTERM ends the program at once
        while frame is not None and frame.f_code.co_name != "fit":
            frame = frame.f_back
        if frame is None:  # an error ended `fit` without `on_train_end`
            signal.raise_signal(number)
        self.terminated = True

    def _exit_if_terminated(self) -> None:
        if self.terminated:
            self.on_train_end()
            raise SystemExit(128 + signal.SIGTERM)
