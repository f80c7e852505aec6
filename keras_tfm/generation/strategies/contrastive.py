"""Contrastive search."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer, check_number
from keras_tfm.generation.gather import gather
from keras_tfm.generation.logits import log_normalizer
from keras_tfm.generation.strategies.strategy import LogitsProcessor, Strategy, Task
from keras_tfm.layers.types import Tensor


class ContrastiveState(NamedTuple):
    """The state of a contrastive search over k candidates.

    Attributes:
        position: () int32, the column of the candidates.
        tokens: (B, T), int32, the tokens chosen so far, before that column.
        token: (B, k), int32, the candidates, the next step's tokens.
        running: (B, 1), int32, 1 for rows that have not ended.
        scores: (B,), float32, the sum of the log-probabilities.
        probabilities: (B, k), float32, probabilities of the candidates, after the processors.
        log_probabilities: (B, k), float32, their log-probabilities under the model.
        features: (B, T, D), float32, features of the tokens, scaled to length 1.
    """

    position: Tensor
    tokens: Tensor
    token: Tensor
    running: Tensor
    scores: Tensor
    probabilities: Tensor
    log_probabilities: Tensor
    features: Tensor


@dataclass(frozen=True)
class Contrastive(Strategy):
    """Contrastive search: chooses probable tokens whose features differ from those of earlier ones.

    Among the k most probable tokens v it chooses the one with the largest
    (1 - alpha) p(v) - alpha max_j cos(h_v, h_j), where h are the inputs of the model's last layer
    and j runs over the tokens so far. "A Contrastive Framework for Neural Text Generation"
    (arXiv:2202.06417).

    Args:
        top_k: int, number of candidates (k).
        alpha: float, weight of the similarity, within 0 and 1; 0 is greedy search.
        processors: iterable of functions that change the logits of the candidates, in this order;
            see `generation.processors`.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or `top_k` is above the vocabulary size.

    Example:

    >>> from keras_tfm.generation import Contrastive
    >>> Contrastive(top_k=5, alpha=0.6)
    Contrastive(top_k=5, alpha=0.6, processors=())
    """

    top_k: int = 4
    alpha: float = 0.6
    processors: Sequence[LogitsProcessor] = field(default=(), kw_only=True)
    reads_features: ClassVar[bool] = True
    lookahead: ClassVar[int] = 1  # candidates go through the model before one of them is chosen
    streams: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "processors", tuple(self.processors))
        check_integer("top_k", self.top_k)
        check_number("alpha", self.alpha)
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be within 0 and 1, got {self.alpha}")

    @property
    def width(self) -> int:  # type: ignore[override]
        """The number of candidates."""
        return self.top_k

    def check(self, vocabulary_size: int) -> None:
        """Raises ValueError if the vocabulary has fewer tokens than candidates."""
        super().check(vocabulary_size)
        if self.top_k > vocabulary_size:
            raise ValueError(
                f"top_k ({self.top_k}) must not be more than the vocabulary ({vocabulary_size})"
            )

    def start(self, task: Task, tokens: Tensor, features: Tensor) -> ContrastiveState:
        """All candidates are the last token of the prompt."""
        batch, k = task.batch, self.top_k
        known = ops.zeros((batch, task.length, features.shape[-1]), dtype="float32")
        if task.first:
            known = ops.slice_update(known, (0, 0, 0), _normalize(features))
        return ContrastiveState(
            position=ops.convert_to_tensor(task.first, dtype="int32"),
            tokens=tokens,
            token=ops.repeat(tokens[:, task.first : task.first + 1], k, axis=1),
            running=ops.ones((batch, 1), dtype="int32"),
            scores=ops.zeros((batch,), dtype="float32"),
            probabilities=ops.ones((batch, k), dtype="float32"),
            log_probabilities=ops.zeros((batch, k), dtype="float32"),
            features=known,
        )

    def advance(
        self, task: Task, state: ContrastiveState, logits: Tensor, features: Tensor
    ) -> tuple[ContrastiveState, Tensor]:
        """Writes the best candidate at `position`, and finds the candidates of the next one."""
        batch, k, position = task.batch, self.top_k, state.position
        new = ops.reshape(_normalize(features), (batch, k, features.shape[-1]))
        similarity = ops.matmul(new, ops.transpose(state.features, (0, 2, 1)))
        before = ops.expand_dims(task.is_written(position - 1), 1)
        similarity = ops.max(ops.where(before, similarity, -1.0), axis=-1)  # (B, k)
        merit = (1.0 - self.alpha) * state.probabilities - self.alpha * similarity
        # A candidate of probability 0 is one that a processor forbids.
        merit = ops.where(state.probabilities > 0, merit, -2.0)
        best = ops.cast(ops.top_k(merit, k=1)[1], "int32")  # (B, 1)

        is_prompt = ops.equal(position, task.first)  # its last token is not chosen
        token = task.pad_ended(gather(state.token, best), state.running)
        gained = gather(state.log_probabilities, best)
        going = ops.logical_and(ops.greater(state.running, 0), ops.logical_not(is_prompt))
        gained = ops.where(going, gained, 0.0)
        running = task.still_running(state.running, token, position + 1)

        logits = ops.reshape(ops.cast(logits, "float32"), (batch, k, logits.shape[-1]))
        logits = ops.squeeze(gather(logits, best), 1)
        written = ops.slice_update(state.tokens, (0, position), token)
        processed = self.process(logits, task.context(written, position))
        probabilities, candidates = ops.top_k(ops.softmax(processed, axis=-1), k=k)
        candidates = ops.cast(candidates, "int32")
        log_probabilities = gather(logits, candidates) - log_normalizer(logits)
        # Probabilities are NaN if the processors left no token.
        log_probabilities = ops.where(ops.isnan(probabilities), np.nan, log_probabilities)
        after = ContrastiveState(
            position=position + 1,
            tokens=written,
            token=candidates,
            running=ops.where(is_prompt, state.running, running),
            scores=state.scores + ops.squeeze(gained, 1),
            probabilities=probabilities,
            log_probabilities=log_probabilities,
            features=ops.slice_update(state.features, (0, position, 0), gather(new, best)),
        )
        return after, ops.repeat(best, k, axis=1)

    def going(self, task: Task, state: ContrastiveState) -> Tensor:
        """Which rows have not ended: (B,), boolean."""
        return ops.squeeze(ops.greater(state.running, 0), 1)

    def result(self, task: Task, state: ContrastiveState) -> dict[str, Tensor]:
        """The tokens and their log-probabilities."""
        return {"tokens": state.tokens, "scores": state.scores}


def _normalize(x: Tensor) -> Tensor:
    """Vectors scaled to length 1, float32."""
    x = ops.cast(x, "float32")
    return x / ops.maximum(ops.norm(x, axis=-1, keepdims=True), 1e-8)
