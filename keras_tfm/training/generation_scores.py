"""Scores generated texts during training."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np

from keras_tfm.arguments import check_integer
from keras_tfm.generation import Generator, Strategy
from keras_tfm.generation.interface import interface_of
from keras_tfm.layers.types import Arguments
from keras_tfm.optional_package import optional_package
from keras_tfm.runtime.decoding.special_ids import unpadded_length
from keras_tfm.runtime.tokenizers.tokenizer import until_end

# What the inputs of a `Generator` are: one array, or several by name.
Inputs: TypeAlias = np.ndarray | Sequence[Sequence[int]] | dict[str, np.ndarray]
# A function of one row's ids, or a tokenizer, of which each kind has another method.
Decoder: TypeAlias = Any
# With `corpus_score(texts, references).score`.
Metric: TypeAlias = Any


class GenerationScores(keras.callbacks.Callback):
    """Generates texts for held-out rows at the end of an epoch, and scores them: BLEU and chrF.

    A loss measures the prediction of the next token after a correct prefix; these scores measure
    whole answers. They are added to the epoch's logs as `val_bleu` and `val_chrf` (0 to 100, over
    the whole set), so `History` records them, and `EarlyStopping` and `ModelCheckpoint` can monitor
    them with `mode="max"` if they come after this callback in the list. BLEU (P02-1040) and chrF
    (W15-3049) are computed by `sacrebleu` (arXiv:1804.08771).

    A model that cannot be stepped raises an error when training starts, not at the end of an epoch.
    With several workers, each one generates, and all of them log the mean of their scores.

    Args:
        inputs: array, list or dict: the inputs of a `Generator`, one row per reference: a dict of
            the model's inputs, in which the stepped input is optional and holds prompts, or one
            array. Generation is faster if rows of similar lengths are adjacent.
        references: list with a text, or a list of correct texts, for each row: str, or bytes in
            UTF-8, as datasets have them.
        decode: function or tokenizer, converts ids to text: a function of one row's ids, or an
            object with `decode_batch` (Hugging Face `tokenizers`), `decode` (SentencePiece) or
            `detokenize` (keras-hub). It gets the generated ids without start token, prompt, end
            token and padding.
        max_length, start_id, end_id, strategy, target, max_new_tokens: as in `Generator`. If the
            strategy returns several hypotheses, the first one is scored.
        max_examples: int, number of rows that are scored, from the first. Default: all.
        batch_size: int, number of rows that are generated together.
        every: int, generates at the end of every `every`-th epoch. The logs of other epochs have no
            scores.
        metrics: dict from names to `sacrebleu` metrics, or other objects with a method
            `corpus_score(texts, references)` whose result has a `score`. Default:
            `{"bleu": BLEU(), "chrf": CHRF()}`. For Chinese use `BLEU(tokenize="zh")`, for Japanese
            `BLEU(tokenize="ja-mecab")`.
        prefix: str, prefix of the names in the logs.

    Attributes:
        texts: list of str, the generated texts of the last scored epoch.

    Raises:
        ValueError: the numbers of rows and references differ, a row has no reference, or the model
            cannot be stepped.
        TypeError: references that are not texts; metrics or `decode` that are none of the above.
        ModuleNotFoundError: sacrebleu is not installed; the message names the extra to install.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> from keras_tfm import models, training
    >>> model = models.transformer(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> model.compile("adam", training.LabelSmoothedCrossEntropy())
    >>> scores = training.GenerationScores(
    ...     np.array([[3, 4, 5], [6, 7, 0]]), ["3 4 5", "6 7"],
    ...     decode=lambda ids: " ".join(map(str, ids)),
    ...     max_length=6, start_id=1, end_id=2)
    >>> batch = {"source": np.array([[3, 4, 5]]), "target": np.array([[1, 3, 4]])}
    >>> history = model.fit(batch, np.array([[3, 4, 2]]), callbacks=[scores], verbose=0)
    >>> sorted(history.history)
    ['loss', 'val_bleu', 'val_chrf']
    """

    def __init__(
        self,
        inputs: Inputs,
        references: Sequence[str | Sequence[str]],
        decode: Decoder,
        max_length: int | None = None,
        start_id: int | None = None,
        end_id: int | Sequence[int] | None = None,
        strategy: Strategy | None = None,
        target: str | None = None,
        max_new_tokens: int | None = None,
        max_examples: int | None = None,
        batch_size: int = 32,
        every: int = 1,
        metrics: Mapping[str, Metric] | None = None,
        prefix: str = "val_",
    ):
        super().__init__()
        check_integer("batch_size", batch_size)
        check_integer("every", every)
        check_integer("max_examples", max_examples, optional=True)
        references = _texts_by_row(references)
        lengths = {len(x) for x in (inputs.values() if isinstance(inputs, dict) else [inputs])}
        if lengths != {len(references)} or not len(references):
            raise ValueError(
                "inputs must have a row for each reference, and at least one, "
                f"got {sorted(lengths)} rows and {len(references)} references"
            )
        self.inputs = inputs
        self.references = references[:max_examples]
        self.decode = _decoder(decode)
        self.options: Arguments = {
            "max_length": max_length,
            "start_id": start_id,
            "end_id": end_id,
            "strategy": strategy,
            "target": target,
            "max_new_tokens": max_new_tokens,
        }
        self.batch_size, self.every, self.prefix = batch_size, every, prefix
        self.metrics = _checked_metrics(metrics)
        self.texts: list[str] = []
        self._generator: Generator | None = None

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Creates the generator, which raises for a model that cannot be stepped."""
        if self._generator is None or self._generator.model is not self.model:
            self._generator = Generator(self.model, **self.options)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Generates, and adds the scores to the logs."""
        if (epoch + 1) % self.every:
            return
        scores = self.score()
        if logs is not None:
            logs.update({f"{self.prefix}{name}": value for name, value in scores.items()})

    def score(self) -> dict[str, float]:
        """The score of each metric with the current weights."""
        self.texts = self._generate()
        most = max(map(len, self.references))
        # For sacrebleu: a list of all first references, one of all second references, and so on.
        rows = self.references
        columns = [[row[i] if i < len(row) else None for row in rows] for i in range(most)]
        return {
            name: _mean_over_workers(
                self.model, float(metric.corpus_score(self.texts, columns).score)
            )
            for name, metric in self.metrics.items()
        }

    def _generate(self) -> list[str]:
        assert self._generator is not None, "on_train_begin was not called"
        generator, rows = self._generator, []
        count = generator.max_new_tokens
        for start in range(0, len(self.references), self.batch_size):
            end = min(start + self.batch_size, len(self.references))
            # The last batch repeats its last row: a new batch size would be compiled again.
            index = np.minimum(np.arange(start, start + self.batch_size), end - 1)
            batch = _rows_at(self.inputs, index)
            tokens = generator(batch).tokens[: end - start]
            if tokens.ndim == 3:
                tokens = tokens[:, 0]
            prompts = _prompt_lengths(generator, batch)
            for row, prompt in zip(tokens.tolist(), prompts, strict=False):
                last = None if count is None else prompt + count  # then columns of longer rows
                rows.append(until_end(row[prompt:last], generator.end_ids))
        return self.decode(rows)


def _texts_by_row(references: Any) -> list[list[str]]:
    """The correct texts of each row, checked here: scores are first computed after an epoch."""
    if isinstance(references, str | bytes):
        raise TypeError(f"references must be a list with a text for each row, got {references!r}")
    texts_by_row = []
    for i, given in enumerate(_as_list(references)):
        row = [given] if isinstance(given, str | bytes) else _as_list(given)
        texts = [x.decode("utf-8", "replace") if isinstance(x, bytes) else x for x in row]
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(
                    f"references must be texts, or a list of texts for each row, got {text!r} in "
                    f"row {i}"
                )
        if not texts:
            raise ValueError(
                f"references must have at least one text for each row, got {row!r} in row {i}"
            )
        texts_by_row.append(texts)
    return texts_by_row


def _as_list(x: Any) -> list[Any]:
    """The entries of a list, an array, a tensor or an iterator; anything else is the one entry."""
    x = x.numpy() if hasattr(x, "numpy") else x
    if isinstance(x, np.ndarray):
        x = x.tolist()
    return list(x) if isinstance(x, Iterable) and not isinstance(x, str | bytes) else [x]


def _checked_metrics(metrics: Mapping[str, Metric] | None) -> dict[str, Metric]:
    """The metrics by name, `sacrebleu`'s by default."""
    if metrics is None:
        return _default_metrics()
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics must be a dict from names to metrics, got {metrics!r}")
    for name, metric in metrics.items():
        if not hasattr(metric, "corpus_score"):
            raise TypeError(
                f"metrics must have a method corpus_score, as sacrebleu.BLEU() has, got {metric!r} "
                f"for {name!r}"
            )
    return dict(metrics)


def _rows_at(inputs: Inputs, index: np.ndarray) -> Any:
    """Rows of the inputs; prompts of different lengths are a list."""
    if isinstance(inputs, dict):
        return {name: _rows_at(x, index) for name, x in inputs.items()}
    if isinstance(inputs, list | tuple):
        return [inputs[i] for i in index]
    return np.asarray(inputs)[index]


def _prompt_lengths(generator: Generator, batch: Inputs) -> list[int]:
    """The number of tokens of each row that were not generated: the prompt, or the start token."""
    if isinstance(batch, dict):
        rows: Inputs | None = batch.get(generator.target)
    else:
        rows = batch if len(generator.model.inputs) == 1 else None
    if rows is None:
        return [1] * len(next(iter(batch.values())) if isinstance(batch, dict) else batch)
    masked = interface_of(generator.model).inputs[generator.target].masked_id
    if masked is None:
        return [len(row) for row in rows]
    return [max(1, unpadded_length(np.asarray(row), masked)) for row in rows]


def _decoder(decode: Decoder) -> Callable[[list[list[int]]], list[str]]:
    """A function from rows of ids to texts."""
    for name in ("decode_batch", "detokenize"):
        if hasattr(decode, name):
            function = getattr(decode, name)
            return lambda rows: [_text(x) for x in function(rows)]
    function = getattr(decode, "decode", decode)
    if not callable(function):
        raise TypeError(
            "decode must be a function from ids to text, or have decode_batch, decode or "
            f"detokenize, got {type(decode).__name__}"
        )
    return lambda rows: [_text(function(row)) for row in rows]


def _text(x: object) -> str:
    if hasattr(x, "numpy"):
        x = x.numpy()
    if isinstance(x, bytes):
        return x.decode("utf-8", "replace")
    if not isinstance(x, str):
        raise TypeError(f"decode must return a text for the ids of a row, got {x!r}")
    return x


def _default_metrics() -> dict[str, Metric]:
    sacrebleu = optional_package(
        "sacrebleu", "BLEU and chrF need sacrebleu", "sacrebleu", extra="scores"
    )
    return {"bleu": sacrebleu.BLEU(), "chrf": sacrebleu.CHRF()}


def _mean_over_workers(model: keras.Model, value: float) -> float:
    """The mean over workers, so that all of them stop and save at the same epoch."""
    if keras.backend.backend() != "tensorflow":
        return value
    import tensorflow as tf

    strategy = model.distribute_strategy
    if not strategy.extended._in_multi_worker_mode():  # private in TensorFlow, not in Keras
        return value
    values = strategy.experimental_distribute_values_from_function(
        lambda _: tf.constant(value, tf.float64)
    )
    return float(strategy.reduce(tf.distribute.ReduceOp.MEAN, values, axis=None))
