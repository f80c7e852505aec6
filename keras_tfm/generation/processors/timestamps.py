"""The timestamps of speech recognition, and all processors of a speech model together."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.generation.processors.processor import (
    NEVER,
    Processor,
    as_ids,
    check_in_vocabulary,
    is_among,
)
from keras_tfm.generation.processors.suppressed import SuppressTokens, SuppressTokensAtBegin
from keras_tfm.generation.strategies.strategy import Context
from keras_tfm.layers.types import Tensor


@dataclass(frozen=True)
class Timestamps(Processor):
    """Makes Whisper write timestamps around each piece of text (arXiv:2212.04356, section 2.3).

    The ids behind "<|notimestamps|>" are timestamps, 20 ms apart. The first generated token is a
    timestamp; they come in pairs, except before the end, and never decrease; and where all
    timestamps together are more probable than any other token, the next token is one. The same as
    `WhisperTimeStampLogitsProcessor` in transformers. The ids of text are those below the end
    token's.

    Args:
        no_timestamps_id: int, the token "<|notimestamps|>", which is never generated. The prompt
            must not have it either.
        max_initial: int, the largest first timestamp, in steps of 20 ms. None: any.

    >>> from keras import ops
    >>> from keras_tfm.generation import Context
    >>> from keras_tfm.generation.processors import Timestamps
    >>> written = ops.array([[True, False]])
    >>> context = Context(ops.array([[1, 0]]), written, 0, None, new_length=0, end_ids=(2,))
    >>> Timestamps(3, max_initial=1)(ops.zeros((1, 7)), context).numpy().tolist()
    [[-inf, -inf, -inf, -inf, 0.0, 0.0, -inf]]
    """

    no_timestamps_id: int
    max_initial: int | None = 50

    def __post_init__(self) -> None:
        (value,) = as_ids("no_timestamps_id", [self.no_timestamps_id])
        object.__setattr__(self, "no_timestamps_id", value)
        check_integer("max_initial", self.max_initial, minimum=0, optional=True)

    def check(self, vocabulary_size: int) -> None:
        """Raises ValueError if no id of the vocabulary is a timestamp."""
        name = "Timestamps: the first timestamp, no_timestamps_id + 1,"
        check_in_vocabulary(name, [self.no_timestamps_id + 1], vocabulary_size)

    def __call__(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> logits (B, V), -inf for tokens that are not allowed."""
        if not context.end_ids:
            raise ValueError("Timestamps may be followed by the end: give end_id, got none")
        begin, ids = self.no_timestamps_id + 1, np.arange(logits.shape[-1])[np.newaxis]
        is_timestamp = ids >= begin
        first = ops.equal(context.new_length, 0)
        last, before, latest = self._timestamps(context)
        pair = ops.logical_and(last, before)
        single = ops.logical_and(last, ops.logical_not(before))
        # A single timestamp may be repeated, as the start of the next piece.
        least = latest + ops.cast(ops.logical_not(single), "int32")
        at_first = ids < begin
        if self.max_initial is not None:
            at_first = at_first | (ids > begin + self.max_initial)
        rules = [
            (True, is_among(logits, [self.no_timestamps_id])),
            (pair, is_timestamp),
            (single, ids < min(context.end_ids)),
            (ops.less(ids, least), is_timestamp),
            (first, at_first),
        ]
        for when, forbidden in rules:
            logits = ops.where(ops.logical_and(when, forbidden), NEVER, logits)
        is_probable = _log_sum(logits[:, begin:]) > ops.max(
            logits[:, :begin], axis=-1, keepdims=True
        )
        return ops.where(ops.logical_and(is_probable, np.logical_not(is_timestamp)), NEVER, logits)

    def _timestamps(self, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Of the generated tokens: whether the last and the one before it are timestamps, (B, 1).

        And the latest timestamp, (B, 1), int32; one less than the smallest, if there is none. A
        token before the first counts as a timestamp.
        """
        tokens, begin = context.tokens, self.no_timestamps_id + 1
        batch, count = ops.shape(tokens)[0], context.new_length

        def column(index: Tensor) -> Tensor:
            return ops.slice(tokens, (0, ops.maximum(index, 0)), (batch, 1)) >= begin

        last = ops.logical_and(count >= 1, column(context.position))
        before = ops.logical_or(count < 2, column(context.position - 1))
        columns = np.arange(tokens.shape[1], dtype="int32")[np.newaxis]
        generated = ops.logical_and(columns > context.position - count, columns <= context.position)
        found = ops.logical_and(generated, tokens >= begin)
        where = ops.max(ops.where(found, columns, -1), axis=1, keepdims=True)
        latest = ops.sum(ops.where(ops.equal(columns, where), tokens, 0), axis=1, keepdims=True)
        return last, before, ops.maximum(latest, begin - 1)


def transcription(
    model: keras.Model, timestamps: bool = False, max_initial_timestamp: int | None = 50
) -> list[Processor]:
    """The processors with which transformers generates from a Whisper model.

    Suppressed tokens, tokens that are suppressed first, and the rules of timestamps, by the ids in
    `model.arguments`, which `load_huggingface` reads. The prompt is the start token, the language
    and the task, then "<|notimestamps|>" if there are none.

    Args:
        model: a model of `models.whisper`.
        timestamps: bool, whether texts get timestamps.
        max_initial_timestamp: int, as `max_initial` of `Timestamps`.

    Raises:
        ValueError: `timestamps` with a model that has no `no_timestamps_id`.

    >>> from keras_tfm.generation import Greedy, processors
    >>> from keras_tfm.models import whisper
    >>> sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16}
    >>> model = whisper(11, **sizes, suppressed_ids=[3], no_timestamps_id=5)
    >>> processors.transcription(model, timestamps=True)
    [SuppressTokens(ids=(3,)), Timestamps(no_timestamps_id=5, max_initial=50)]
    """
    given: Mapping[str, Any] = getattr(model, "arguments", None) or {}
    made: list[Processor] = []
    if given.get("suppressed_first_ids"):
        made.append(SuppressTokensAtBegin(given["suppressed_first_ids"]))
    if given.get("suppressed_ids"):
        made.append(SuppressTokens(given["suppressed_ids"]))
    if timestamps:
        if given.get("no_timestamps_id") is None:
            raise ValueError(
                "timestamps=True needs a model with no_timestamps_id, the token before the "
                "timestamps, got none"
            )
        made.append(Timestamps(given["no_timestamps_id"], max_initial_timestamp))
    return made


def _log_sum(x: Tensor) -> Tensor:
    """log(sum(exp(x))) of each row (B, 1); -inf for a row of -inf, where Keras's may be NaN."""
    largest = ops.maximum(ops.max(x, axis=-1, keepdims=True), -1e30)
    return ops.log(ops.sum(ops.exp(x - largest), axis=-1, keepdims=True)) + largest
