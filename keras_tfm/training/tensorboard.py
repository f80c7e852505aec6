"""Keras's TensorBoard callback with summaries for transformers."""

import importlib.util
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tfm.keras_internals import is_functional
from keras_tfm.layers import AttentionProbe
from keras_tfm.layers.types import Tensor
from keras_tfm.models.checked_inputs import known_inputs
from keras_tfm.optional_package import missing_package
from keras_tfm.plots import Figure
from keras_tfm.training.gradients import GradientWatch
from keras_tfm.training.metrics import TokenMean


class TensorBoard(keras.callbacks.TensorBoard):
    """`keras.callbacks.TensorBoard` with learning rate, gradient norm, tokens/s and attention maps.

    It adds to Keras's summaries, in the same log:

    - `batch_learning_rate` every `update_freq` steps (Keras has `epoch_learning_rate`);
    - `batch_gradient_norm`, `epoch_gradient_norm` (the mean over the epoch's steps): the global
      norm of the gradients of the whole batch, before clipping and without the loss scale. On the
      TensorFlow backend only;
    - `batch_tokens_per_second`, `epoch_tokens_per_second`: labels that are not ignored per second,
      without validation. The model needs a `MaskedAccuracy` or `Perplexity` metric, which counts
      them. The first epoch includes the compilation;
    - `attention/<layer>`: an image of the layer's attention maps, one panel per head, if
      `attention_inputs` is given.

    With several workers, each one except the first writes to its own folder in `log_dir`:
    `worker_1`, ...

    Args:
        *args, **kwargs: as in `keras.callbacks.TensorBoard`.
        attention_inputs: dict or array, a batch of the model's inputs, whose first row is drawn.
            Requires matplotlib (the extra `plots`).
        attention_freq: int, draws at the end of every `attention_freq`-th epoch.

    Raises:
        ModuleNotFoundError: tensorboard, or matplotlib for images, is not installed; the message
            names the extra to install.

    Example:

    >>> import tempfile, keras
    >>> import numpy as np
    >>> from keras_tfm import models, training
    >>> model = models.transformer(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> loss, accuracy = training.LabelSmoothedCrossEntropy(), training.MaskedAccuracy()
    >>> model.compile("adam", loss, metrics=[accuracy])
    >>> x = {"source": np.array([[3, 4, 5]]), "target": np.array([[1, 3, 4]])}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     board = training.TensorBoard(folder, update_freq=10, attention_inputs=x)
    ...     history = model.fit(x, np.array([[3, 4, 2]]), callbacks=[board], verbose=0)
    """

    log_dir: str

    def __init__(
        self, *args: Any, attention_inputs: Tensor = None, attention_freq: int = 1, **kwargs: Any
    ):
        super().__init__(*args, **kwargs)
        if importlib.util.find_spec("tensorboard") is None:
            raise missing_package(
                "summaries need tensorboard", "tensorboard", extra="tensorboard", name="tensorboard"
            )
        if attention_freq < 1:
            raise ValueError(f"attention_freq must be at least 1, got {attention_freq}")
        if attention_inputs is not None:
            from keras_tfm.plots import plot_attention

            plot_attention(
                np.zeros((1, 1, 1))
            )  # raises now if matplotlib is missing, not after an epoch
        self.attention_inputs = attention_inputs
        self.attention_freq = attention_freq
        self._folder = Path(self.log_dir)
        self._watch: GradientWatch | None = None
        self._counter: TokenMean | None = None
        self._norms: list[float] = []
        # (seconds, tokens) at the start of the epoch, at the last summary, and now.
        self._first = self._last = self._now = (0.0, 0.0)
        self._is_counted = True

    def set_model(self, model: keras.Model) -> None:
        """Sets the model; on every worker except the first, also the worker's folder."""
        worker = _worker(model)
        if worker:
            self.log_dir = str(self._folder / f"worker_{worker}")
        super().set_model(model)

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Installs the watch in the optimizer."""
        super().on_train_begin(logs)
        self._counter = None
        if keras.backend.backend() == "tensorflow":
            self._watch = GradientWatch.of(self.model)

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Removes the watch."""
        super().on_train_end(logs)
        if self._watch is not None:
            self._watch.remove()
            self._watch = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Starts the clock."""
        super().on_epoch_begin(epoch, logs)
        self._norms = []
        self._first = self._last = self._now = (time.perf_counter(), 0.0)
        self._is_counted = False

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Writes the summaries of the step."""
        super().on_train_batch_end(batch, logs)
        if self._watch is not None:
            self._norms.append(float(keras.ops.convert_to_numpy(self._watch.norm)))
        if self._counter is None:  # Keras creates the variables of metrics in the first step
            self._counter = next(_token_means(self.model), None)
        self._now = (time.perf_counter(), self._now[1])
        if self.update_freq == "epoch" or self._global_train_batch % self.update_freq:
            return
        values = self._collect_learning_rate({})
        if self._norms:
            values["gradient_norm"] = self._norms[-1]
        if self._counter is not None:
            self._now = (self._now[0], self._tokens_seen())
            values["tokens_per_second"] = _rate(self._last, self._now)
            self._last = self._now
        with self._train_writer.as_default():
            for name, value in values.items():
                self.summary.scalar(f"batch_{name}", value, step=self._global_train_batch)

    def on_test_begin(self, logs: dict[str, float] | None = None) -> None:
        """Reads the epoch's number of tokens before validation resets the metrics."""
        super().on_test_begin(logs)
        self._count_the_epoch()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Writes the summaries of the epoch, and the images."""
        super().on_epoch_end(epoch, logs)
        self._count_the_epoch()
        values: dict[str, float] = {}
        if self._norms:
            values["gradient_norm"] = float(np.mean(self._norms))
        if self._counter is not None:
            values["tokens_per_second"] = _rate(self._first, self._now)
        with self._train_writer.as_default():
            for name, value in values.items():
                self.summary.scalar(f"epoch_{name}", value, step=epoch)
        if self.attention_inputs is not None and not (epoch + 1) % self.attention_freq:
            self._draw_attention(epoch)

    def _tokens_seen(self) -> float:
        assert self._counter is not None
        return float(keras.ops.convert_to_numpy(self._counter.count))

    def _count_the_epoch(self) -> None:
        if self._counter is not None and not self._is_counted:
            self._now = (self._now[0], self._tokens_seen())
        self._is_counted = True

    def _draw_attention(self, epoch: int) -> None:
        from keras_tfm.plots import plot_attention

        row = keras.tree.map_structure(lambda x: np.asarray(x)[:1], self.attention_inputs)
        if is_functional(self.model):  # a `keras.Model` would assign surplus keys to its inputs
            row = known_inputs(self.model, row)
        with AttentionProbe() as probe:
            self.model(row, training=False)
        with self._train_writer.as_default():
            for name, weights in probe.maps.items():
                weights = keras.ops.convert_to_numpy(keras.ops.cast(weights, "float32"))
                figure = plot_attention(weights[0], title=name)
                self.summary.image(f"attention/{name}", _pixels(figure), step=epoch)


def _token_means(model: keras.Model) -> Iterator[TokenMean]:
    """The `TokenMean` metrics of a model, unweighted ones first."""
    for metric in model.metrics:
        for x in (metric, *getattr(metric, "metrics", ())):
            if isinstance(x, TokenMean):
                yield x


def _rate(before: tuple[float, float], now: tuple[float, float]) -> float:
    return (now[1] - before[1]) / max(now[0] - before[0], 1e-9)


def _pixels(figure: Figure) -> np.ndarray:
    """(1, height, width, 4), uint8."""
    from matplotlib.image import imread

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    buffer.seek(0)
    return np.asarray(255 * imread(buffer), "uint8")[np.newaxis]


def _worker(model: keras.Model) -> int:
    """The index of this worker among those that train the model."""
    if keras.backend.backend() != "tensorflow":
        return 0
    strategy = model.distribute_strategy
    if not strategy.extended._in_multi_worker_mode():  # private in TensorFlow, not in Keras
        return 0
    return int(strategy.cluster_resolver.task_id or 0)
