"""Beam search."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer, check_number
from keras_tfm.generation.gather import gather
from keras_tfm.generation.logits import log_normalizer, top_k
from keras_tfm.generation.strategies.strategy import LogitsProcessor, Strategy, Task
from keras_tfm.layers.types import Size, Tensor

# A log-probability of -inf, but finite, so that sums and products are not NaN.
IMPOSSIBLE = -1e9


class BeamState(NamedTuple):
    """The state of a beam search with beam width n.

    Attributes:
        position: () int32, the column of the next step's tokens.
        tokens: (B, n, T), int32, the open hypotheses, best first.
        token: (B, n), int32, their last tokens.
        open_scores: (B, n), float32, their log-probabilities.
        ended_tokens: (B, n, T), int32, the best finished hypotheses, best first.
        ended_scores: (B, n), float32, their scores; `IMPOSSIBLE` if fewer than n have finished.
        searching: (B,), boolean, False for rows whose search has stopped.
    """

    position: Tensor
    tokens: Tensor
    token: Tensor
    open_scores: Tensor
    ended_tokens: Tensor
    ended_scores: Tensor
    searching: Tensor


@dataclass(frozen=True)
class Beam(Strategy):
    """Beam search: keeps the `size` most probable hypotheses, and returns the best finished ones.

    The score of a hypothesis with n generated tokens, including the end token, is its
    log-probability divided by n^length_penalty. A hypothesis is finished at an end token or the
    maximum length. Tokens and scores are those of `generate` in transformers.

    Args:
        size: int, the beam width.
        length_penalty: float, the exponent: above 0 it prefers longer hypotheses, 1 is the mean
            log-probability of a token. Or a function of n (a float32 tensor) that returns the
            divisor, which must not decrease, or not increase, with n.
        hypotheses: int, number of hypotheses returned. With 1, `tokens` is (B, T) and `scores`
            (B,); with n > 1, (B, n, T) and (B, n), best first.
        early_stopping: bool or str, when the search of a row stops. True: as soon as `size`
            hypotheses have finished. False: also if the best open one, divided by the penalty of
            its present length, is not better than the worst of the `size` best finished ones.
            "never": only if no open one can become better at any length.
        processors: iterable of functions that change the log-probabilities of the next token, in
            this order; see `generation.processors`. Scores are sums of the changed ones.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or `size` is above the vocabulary size.

    Example:

    >>> from keras_tfm.generation import Beam
    >>> Beam(size=8, hypotheses=3)
    Beam(size=8, length_penalty=1.0, hypotheses=3, early_stopping=False, processors=())

    The length penalty of "Google's Neural Machine Translation System" (arXiv:1609.08144):

    >>> beam = Beam(size=4, length_penalty=lambda n: ((5 + n) / 6) ** 0.6, early_stopping="never")
    """

    size: int = 4
    length_penalty: float | Callable[[Tensor], Tensor] = 1.0
    hypotheses: int = 1
    early_stopping: bool | str = False
    processors: Sequence[LogitsProcessor] = field(default=(), kw_only=True)
    streams: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "processors", tuple(self.processors))
        check_integer("size", self.size)
        if not callable(self.length_penalty):
            check_number("length_penalty", self.length_penalty)
        if self.early_stopping not in (True, False, "never"):
            raise ValueError(
                f'early_stopping must be True, False or "never", got {self.early_stopping!r}'
            )
        check_integer("hypotheses", self.hypotheses)
        if self.hypotheses > self.size:
            raise ValueError(
                f"hypotheses ({self.hypotheses}) must not be more than size ({self.size})"
            )

    @property
    def width(self) -> int:  # type: ignore[override]
        """The beam width: one token per hypothesis."""
        return self.size

    def check(self, vocabulary_size: int) -> None:
        """Raises ValueError if the vocabulary is smaller than the beam width."""
        super().check(vocabulary_size)
        if self.size > vocabulary_size:
            raise ValueError(
                f"size ({self.size}) must not be more than the vocabulary ({vocabulary_size})"
            )

    def start(self, task: Task, tokens: Tensor, features: Tensor | None) -> BeamState:
        """The prompt as the only possible hypothesis of each row; the others are impossible."""
        shape = (task.batch, self.size)
        first = np.full((1, self.size), IMPOSSIBLE, "float32")
        first[0, 0] = 0.0
        hypotheses = ops.repeat(ops.expand_dims(tokens, 1), self.size, axis=1)
        return BeamState(
            position=ops.convert_to_tensor(task.first, dtype="int32"),
            tokens=hypotheses,
            token=ops.repeat(tokens[:, task.first : task.first + 1], self.size, axis=1),
            open_scores=ops.zeros(shape, dtype="float32") + ops.convert_to_tensor(first),
            ended_tokens=hypotheses,
            ended_scores=ops.full(shape, IMPOSSIBLE, dtype="float32"),
            searching=ops.ones((task.batch,), dtype="bool"),
        )

    def advance(
        self, task: Task, state: BeamState, logits: Tensor, features: Tensor | None
    ) -> tuple[BeamState, Tensor]:
        """The best continuations of all open hypotheses; finished ones are stored separately."""
        batch, n, position = task.batch, self.size, state.position
        vocabulary = logits.shape[-1]
        # Each hypothesis has one continuation per end token, so at least n open ones are left.
        count = min((1 + len(task.end_ids)) * n, n * vocabulary)
        logits = ops.reshape(ops.cast(logits, "float32"), (batch, n, vocabulary))
        before = ops.expand_dims(state.open_scores, 2)
        if self.processors:
            rows = ops.reshape(logits - log_normalizer(logits), (-1, vocabulary))
            rows = self.process(rows, task.context(state.tokens, position))
            logits = ops.reshape(rows, (batch, n, vocabulary))
        else:
            before = before - log_normalizer(logits)
        sums, places = top_k(logits, count, plus=before)
        sums = ops.maximum(sums, IMPOSSIBLE)
        parents, token = places // vocabulary, places % vocabulary  # (B, count)
        tokens = ops.slice_update(
            gather(state.tokens, parents), (0, 0, position + 1), ops.expand_dims(token, 2)
        )

        full = ops.reshape(task.is_full(position + 2), (-1, 1))
        ends = ops.logical_or(task.is_end(token), full)
        possible = ops.greater(sums, IMPOSSIBLE / 2)
        # Only the n best continuations may end, as in Hugging Face's transformers: worse ones would
        # displace better hypotheses that are still open.
        among_best = ops.expand_dims(ops.arange(count, dtype="int32") < n, 0)
        ended = ops.logical_and(ops.logical_and(ends, possible), among_best)
        ended = ops.logical_and(ended, ops.expand_dims(state.searching, 1))
        scores = ops.where(ended, sums / self.divisor(position + 1 - task.first), IMPOSSIBLE)
        scores = ops.concatenate([state.ended_scores, scores], axis=1)
        all_tokens = ops.concatenate([state.ended_tokens, tokens], axis=1)
        ended_scores, best = ops.top_k(scores, k=n)

        open_scores, kept = ops.top_k(ops.where(ends, IMPOSSIBLE, sums), k=n)
        kept, best = ops.cast(kept, "int32"), ops.cast(best, "int32")
        after = BeamState(
            position=position + 1,
            tokens=gather(tokens, kept),
            token=gather(token, kept),
            open_scores=open_scores,
            ended_tokens=gather(all_tokens, best),
            ended_scores=ended_scores,
            searching=ops.logical_and(
                state.searching,
                self._can_improve(task, position + 1, open_scores[:, 0], ended_scores[:, -1]),
            ),
        )
        return after, gather(parents, kept)

    def _can_improve(self, task: Task, position: Tensor, best: Tensor, worst: Tensor) -> Tensor:
        """Whether the search of a row goes on.

        Args:
            task: `Task`, the constants of the loop.
            position: () int32, the column of the open hypotheses' last tokens.
            best: (B,), float32, the log-probability of the best open hypothesis.
            worst: (B,), float32, the score of the worst of the best finished ones.

        Returns:
            (B,), boolean.
        """
        length = position - task.first
        attainable = best / self.divisor(length)
        rising = callable(self.length_penalty) or self.length_penalty > 0
        if self.early_stopping == "never" and rising:
            at_the_end = best / self.divisor(ops.squeeze(task.limits, 1) - 1 - task.first)
            if callable(self.length_penalty):  # its divisor may also fall with the length
                at_the_end = ops.maximum(at_the_end, best / self.divisor(length + 1))
            attainable = at_the_end
        result = ops.logical_and(ops.greater(best, IMPOSSIBLE / 2), ops.greater(attainable, worst))
        if self.early_stopping is True:
            result = ops.logical_and(result, ops.less(worst, IMPOSSIBLE / 2))
        return result

    def going(self, task: Task, state: BeamState) -> Tensor:
        """Rows whose search has not stopped: (B,)."""
        return state.searching

    def result(self, task: Task, state: BeamState) -> dict[str, Tensor]:
        """The best hypotheses, best first, and their scores."""
        tokens, scores = state.ended_tokens, state.ended_scores
        if self.hypotheses == 1:
            return {"tokens": tokens[:, 0], "scores": scores[:, 0]}
        return {"tokens": tokens[:, : self.hypotheses], "scores": scores[:, : self.hypotheses]}

    def divisor(self, length: Size) -> Tensor:
        """The divisor of the log-probability of a hypothesis with `length` generated tokens."""
        length = ops.cast(length, "float32")
        if callable(self.length_penalty):
            return ops.cast(self.length_penalty(length), "float32")
        return ops.power(length, self.length_penalty)
