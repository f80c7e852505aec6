"""How the next token is chosen: small objects of pure functions."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer, check_number, check_positive
from keras_tfm.generation import filters
from keras_tfm.generation.gather import gather
from keras_tfm.generation.logits import log_normalizer, top_k
from keras_tfm.layers.drawn_seed import DrawnSeed

Tensor = Any
State = dict[str, Any]

# A log-probability that no sequence has; finite, so that sums and products of it stay numbers.
IMPOSSIBLE = -1e9


class Context(NamedTuple):
    """What a strategy may look at when it chooses.

    Attributes:
        tokens: (B, T), int32, what was written so far, 0 elsewhere.
        written: (B, T), boolean, where that is.
        position: int32, the column of the last token, the same in every row.
        seed: (2,), int32, another one at every step.

    A strategy that never writes a token twice:

    >>> from keras import ops
    >>> from keras_tfm.generation import Context, Strategy
    >>> class Fresh(Strategy):
    ...     def choose(self, logits, context: Context):
    ...         size = logits.shape[-1]
    ...         seen = ops.one_hot(ops.where(context.written, context.tokens, -1), size)
    ...         return ops.cast(ops.argmax(logits - 1e9 * ops.max(seen, axis=1), axis=-1), "int32")
    >>> context = Context(ops.array([[2, 0, 0]]), ops.array([[True, False, False]]), 0, None)
    >>> Fresh().choose(ops.array([[0.1, 0.2, 0.7]]), context).numpy().tolist()
    [1]
    """

    tokens: Tensor
    written: Tensor
    position: Tensor
    seed: Tensor


class Task(NamedTuple):
    """What is fixed while a loop runs.

    Attributes:
        batch: B, the rows that were asked for.
        length: T, the columns there are.
        first: the column of the last token of the prompt.
        end_ids: tokens that end a row.
        limit: (B,), int32, how many columns each row may fill, or None: all.
        padding: (B,), int32, how many columns lie before a row's prompt, or None: none.
        score: whether log-probabilities are added up.
        seed: (2,), int32.
    """

    batch: Any
    length: int
    first: int
    end_ids: tuple[int, ...]
    limit: Tensor | None
    padding: Tensor | None
    score: bool
    seed: Tensor | None

    def written(self, position: Tensor) -> Tensor:
        """Which columns hold a token once `position` does: (1 | B, T), boolean."""
        columns = ops.expand_dims(ops.arange(self.length, dtype="int32"), 0)
        written = ops.less_equal(columns, position)
        if self.padding is not None:
            written = ops.logical_and(
                written, ops.greater_equal(columns, ops.expand_dims(self.padding, 1))
            )
        return written

    def is_end(self, tokens: Tensor) -> Tensor:
        """Which tokens end a row: boolean, in the shape of `tokens`."""
        ends = ops.zeros_like(tokens, dtype="bool")
        for end_id in self.end_ids:
            ends = ops.logical_or(ends, ops.equal(tokens, end_id))
        return ends

    def is_full(self, columns: Tensor) -> Tensor:
        """Whether a row that fills this many columns is at its limit: boolean, (B,) or ()."""
        limit = self.length if self.limit is None else ops.minimum(self.limit, self.length)
        return ops.greater_equal(columns, limit)


class Strategy:
    """The base of all strategies: one token a row a step, which `choose` chooses.

    A strategy of one's own defines `choose`, a pure function of tensors that is compiled into the
    loop (and exported with it):

    >>> import numpy as np
    >>> from keras import ops
    >>> from keras_tfm.generation import Strategy
    >>> class SecondBest(Strategy):
    ...     def choose(self, logits, context):
    ...         return ops.cast(ops.top_k(logits, k=2)[1][:, 1], "int32")
    >>> SecondBest().choose(np.array([[0.1, 0.7, 0.2]], "float32"), None).numpy().tolist()
    [2]
    """

    # How many tokens of each row a step feeds, each of which goes on from its own beginning.
    width: int = 1
    # Whether the strategy reads what goes into the model's last layer.
    reads_features: ClassVar[bool] = False
    # How many steps beyond the last column: a strategy may feed tokens before it has chosen.
    lookahead: ClassVar[int] = 0
    # Whether what a step has written is final.
    streams: ClassVar[bool] = True
    # Whether tokens are drawn at random.
    draws: ClassVar[bool] = False
    # How many rows are returned for each that was asked for.
    hypotheses: int = 1
    seed: int | None = None

    def choose(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> tokens (B,), int32."""
        raise NotImplementedError(f"{type(self).__name__} does not define choose(logits, context)")

    def check(self, vocabulary_size: int) -> None:
        """Raises ValueError if the strategy cannot be used with so many tokens."""

    def start(self, task: Task, tokens: Tensor, features: Tensor) -> State:
        """The strategy's part of the loop's state.

        Args:
            task: what is fixed.
            tokens: (B, T), int32, the prompt, padding before it, and zeros.
            features: (B, P - 1, D) of the prompt without its last token, where the strategy reads
                them; None elsewhere.

        Returns:
            "tokens", "token" (B, width) to be fed next, and what the strategy keeps.
        """
        state: State = {"tokens": tokens, "token": tokens[:, task.first : task.first + 1]}
        if task.end_ids or task.limit is not None:
            state["running"] = ops.ones((task.batch, 1), dtype="int32")
        if task.score:
            state["scores"] = ops.zeros((task.batch,), dtype="float32")
        return state

    def advance(
        self, task: Task, state: State, logits: Tensor, features: Tensor
    ) -> tuple[State, Tensor | None]:
        """One step: the new state, and which of the tokens fed each of the next goes on from.

        Args:
            task: what is fixed.
            state: as `start` or `advance` returned it, and "position", the column of the token that
                was fed.
            logits: (B * width, V), of what follows it.
            features: (B * width, D), where the strategy reads them.

        Returns:
            The state, and (B, width), int32, numbers below `width`, or None where width is 1.
        """
        position = state["position"]
        seed = None if task.seed is None else task.seed + ops.stack([0, position])
        context = Context(state["tokens"], task.written(position), position, seed)
        token = ops.expand_dims(self.choose(logits, context), 1)
        after: State = {}
        running = state.get("running")
        if running is not None:
            token = token * running
        if task.score:
            gained = _log_probabilities(logits, token)
            if running is not None:
                # Not a product: a forbidden token's -inf times 0 is no number.
                gained = ops.where(ops.greater(running, 0), gained, 0.0)
            after["scores"] = state["scores"] + ops.squeeze(gained, 1)
        if running is not None:
            after["running"] = _still_running(task, running, token, position + 2)
        after["token"] = token
        after["tokens"] = ops.slice_update(state["tokens"], (0, position + 1), token)
        return after, None

    def going(self, task: Task, state: State) -> Tensor | None:
        """Which rows go on: (B,), boolean; None: all do."""
        running = state.get("running")
        return None if running is None else ops.squeeze(ops.greater(running, 0), 1)

    def result(self, task: Task, state: State) -> dict[str, Tensor]:
        """ "tokens" and, if they were added up, "scores"."""
        return {name: state[name] for name in ("tokens", "scores") if name in state}


@dataclass(frozen=True)
class Greedy(Strategy):
    """Takes the most probable token at each step.

    >>> import numpy as np
    >>> from keras_tfm.generation import Greedy
    >>> Greedy().choose(np.array([[0.1, 0.7, 0.2]], "float32"), None).numpy().tolist()
    [1]
    """

    def choose(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> tokens (B,), int32."""
        # Not ops.argmax: on TensorFlow it compares bits to tell 0.0 from -0.0, with operations that
        # no .tflite file may hold.
        return ops.squeeze(top_k(logits, 1)[1], -1)


@dataclass(frozen=True)
class Sample(Strategy):
    """Draws the next token from the model's distribution, after these filters, in this order.

    Args:
        temperature: logits are divided by it; below 1 the probable become more probable.
        top_k: only the k most probable tokens may be drawn (arXiv:1805.04833).
        top_p: only the smallest set of tokens whose probabilities add up to p, "nucleus sampling"
            (arXiv:1904.09751).
        min_p: only tokens at least min_p times as probable as the most probable (arXiv:2407.01082).
        repetition_penalty: the logits of tokens that were written before, the prompt's included,
            are divided by it if positive, multiplied if negative (arXiv:1909.05858). Applied first.
        banned_ids: tokens that are never drawn.
        seed: the same tokens at every call (but others with `jit_compile=True` than without);
            None: others at every call.

    Scores are of the model's own distribution, without the filters.

    >>> from keras_tfm.generation import Sample
    >>> Sample(temperature=0.7, top_p=0.9, seed=1).top_p
    0.9
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    banned_ids: Sequence[int] = ()
    seed: int | None = None
    draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)
        check_integer("top_k", self.top_k, optional=True)
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            check_positive(name, value, optional=True)
            if value is not None and value > 1:
                raise ValueError(f"{name} must be within 0 and 1, got {value}")
        check_positive("repetition_penalty", self.repetition_penalty)
        check_integer("seed", self.seed, minimum=0, optional=True)
        object.__setattr__(self, "banned_ids", tuple(map(operator.index, self.banned_ids)))

    def check(self, vocabulary_size: int) -> None:
        """Raises ValueError if a banned token does not exist, or all are banned."""
        for banned in self.banned_ids:
            if not 0 <= banned < vocabulary_size:
                raise ValueError(f"banned_ids must be in 0..{vocabulary_size - 1}, got {banned}")
        if len(set(self.banned_ids)) >= vocabulary_size:
            raise ValueError(f"banned_ids forbid all {vocabulary_size} tokens")

    def filter(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> logits of the distribution that is drawn from, -inf: never."""
        logits = ops.cast(logits, "float32")
        if self.repetition_penalty != 1.0:
            logits = filters.repetition_penalty(
                logits, context.tokens, context.written, self.repetition_penalty
            )
        if self.banned_ids:
            logits = filters.banned(logits, self.banned_ids)
        logits = logits / self.temperature
        if self.top_k is not None:
            logits = filters.top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = filters.top_p(logits, self.top_p)
        if self.min_p is not None:
            logits = filters.min_p(logits, self.min_p)
        return logits

    def choose(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> tokens (B,), int32."""
        logits = self.filter(logits, context)
        drawn = keras.random.categorical(logits, 1, seed=DrawnSeed(context.seed), dtype="int32")
        # Of NaN logits TensorFlow draws the token V, which is none; the loop stops at them.
        return ops.minimum(ops.squeeze(drawn, 1), logits.shape[-1] - 1)


@dataclass(frozen=True)
class Beam(Strategy):
    """Beam search: keeps the `size` most probable beginnings, returns the best that ended.

    A hypothesis of n generated tokens, its end among them, scores its log-probability divided by
    ((5 + n) / 6)^length_penalty, as in "Google's Neural Machine Translation System"
    (arXiv:1609.08144). It counts as ended with an end token, or at the maximal length. The search
    stops when no open beginning can become better than the `size` best that ended.

    Args:
        size: beginnings that are kept.
        length_penalty: the exponent, 0.6 in the original Transformer, or a function of n (a
            float32 tensor) that returns the divisor.
        hypotheses: how many are returned: with 1, `tokens` is (B, T) and `scores` (B,); with more,
            (B, n, T) and (B, n), best first.

    >>> from keras_tfm.generation import Beam
    >>> Beam(size=8, hypotheses=3)
    Beam(size=8, length_penalty=0.6, hypotheses=3)
    """

    size: int = 4
    length_penalty: float | Callable[[Tensor], Tensor] = 0.6
    hypotheses: int = 1
    streams: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_integer("size", self.size)
        if not callable(self.length_penalty):
            check_number("length_penalty", self.length_penalty)
        check_integer("hypotheses", self.hypotheses)
        if self.hypotheses > self.size:
            raise ValueError(
                f"hypotheses ({self.hypotheses}) must not be more than size ({self.size})"
            )

    @property
    def width(self) -> int:  # type: ignore[override]
        """A row for each beginning."""
        return self.size

    def check(self, vocabulary_size: int) -> None:
        """Raises ValueError if there are too few tokens to begin with."""
        if self.size > vocabulary_size:
            raise ValueError(
                f"size ({self.size}) must not be more than the vocabulary ({vocabulary_size})"
            )

    def start(self, task: Task, tokens: Tensor, features: Tensor) -> State:
        """Begins with one beginning a row, the prompt; the others are impossible."""
        shape = (task.batch, self.size)
        first = np.full((1, self.size), IMPOSSIBLE, "float32")
        first[0, 0] = 0.0
        beams = ops.repeat(ops.expand_dims(tokens, 1), self.size, axis=1)
        token = ops.repeat(tokens[:, task.first : task.first + 1], self.size, axis=1)
        return {
            "tokens": beams,
            "token": token,
            "open_scores": ops.zeros(shape, dtype="float32") + first,
            "ended_tokens": beams,
            "ended_scores": ops.full(shape, IMPOSSIBLE, dtype="float32"),
        }

    def advance(
        self, task: Task, state: State, logits: Tensor, features: Tensor
    ) -> tuple[State, Tensor]:
        """The best continuations of all beginnings, those that end put aside."""
        batch, n, position = task.batch, self.size, state["position"]
        vocabulary = logits.shape[-1]
        # Of n that end here, n others must be left.
        count = min((1 + len(task.end_ids)) * n, n * vocabulary)
        logits = ops.reshape(ops.cast(logits, "float32"), (batch, n, vocabulary))
        before = ops.expand_dims(state["open_scores"], 2) - log_normalizer(logits)
        sums, places = top_k(logits, count, plus=before)
        sums = ops.maximum(sums, IMPOSSIBLE)
        parents, token = places // vocabulary, places % vocabulary  # (B, count)
        tokens = ops.slice_update(
            gather(state["tokens"], parents), (0, 0, position + 1), ops.expand_dims(token, 2)
        )

        full = ops.reshape(task.is_full(position + 2), (-1, 1))
        ends = ops.logical_or(task.is_end(token), full)
        possible = ops.greater(sums, IMPOSSIBLE / 2)
        # Only the n best may end, as in Hugging Face's transformers: others would crowd out better
        # ones that are still open.
        among_best = ops.expand_dims(ops.arange(count, dtype="int32") < n, 0)
        ended = ops.logical_and(ops.logical_and(ends, possible), among_best)
        scores = ops.where(ended, sums / self._divisor(position + 1 - task.first), IMPOSSIBLE)
        scores = ops.concatenate([state["ended_scores"], scores], axis=1)
        all_tokens = ops.concatenate([state["ended_tokens"], tokens], axis=1)
        ended_scores, best = ops.top_k(scores, k=n)

        open_scores, kept = ops.top_k(ops.where(ends, IMPOSSIBLE, sums), k=n)
        kept, best = ops.cast(kept, "int32"), ops.cast(best, "int32")
        after = {
            "tokens": gather(tokens, kept),
            "token": gather(token, kept),
            "open_scores": open_scores,
            "ended_tokens": gather(all_tokens, best),
            "ended_scores": ended_scores,
        }
        return after, gather(parents, kept)

    def going(self, task: Task, state: State) -> Tensor:
        """Where an open beginning may still become better than the worst that is kept."""
        best = state["open_scores"][:, 0]
        now = state["position"] + 1 - task.first
        # Divided by the most or the least that is ahead, whichever is better.
        attainable = ops.maximum(
            best / self._divisor(now), best / self._divisor(task.length - 1 - task.first)
        )
        open_ = ops.greater(best, IMPOSSIBLE / 2)
        return ops.logical_and(
            open_, ops.greater(attainable, ops.min(state["ended_scores"], axis=1))
        )

    def _divisor(self, length: Any) -> Tensor:
        length = ops.cast(length, "float32")
        if callable(self.length_penalty):
            return ops.cast(self.length_penalty(length), "float32")
        return ops.power((5.0 + length) / 6.0, self.length_penalty)

    def result(self, task: Task, state: State) -> dict[str, Tensor]:
        """The best hypotheses."""
        tokens, scores = state["ended_tokens"], state["ended_scores"]
        if self.hypotheses == 1:
            return {"tokens": tokens[:, 0], "scores": scores[:, 0]}
        return {"tokens": tokens[:, : self.hypotheses], "scores": scores[:, : self.hypotheses]}


@dataclass(frozen=True)
class Contrastive(Strategy):
    """Contrastive search: a probable token whose features are unlike those before it.

    Of the k most probable tokens v takes the one with the largest (1 - alpha) p(v) - alpha max_j
    cos(h_v, h_j), where h are the features that go into the model's last layer, h_j those of what
    is written. "A Contrastive Framework for Neural Text Generation" (arXiv:2202.06417).

    Args:
        top_k: k.
        alpha: how much likeness counts, within 0 and 1; 0 is greedy.

    >>> from keras_tfm.generation import Contrastive
    >>> Contrastive(top_k=5, alpha=0.6)
    Contrastive(top_k=5, alpha=0.6)
    """

    top_k: int = 4
    alpha: float = 0.6
    reads_features: ClassVar[bool] = True
    lookahead: ClassVar[int] = 1  # candidates are fed, then one of them is written
    streams: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_integer("top_k", self.top_k)
        check_number("alpha", self.alpha)
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be within 0 and 1, got {self.alpha}")

    @property
    def width(self) -> int:  # type: ignore[override]
        """A row for each candidate."""
        return self.top_k

    def check(self, vocabulary_size: int) -> None:
        """Raises ValueError if there are too few tokens."""
        if self.top_k > vocabulary_size:
            raise ValueError(
                f"top_k ({self.top_k}) must not be more than the vocabulary ({vocabulary_size})"
            )

    def start(self, task: Task, tokens: Tensor, features: Tensor) -> State:
        """All candidates are the last token of the prompt."""
        state = super().start(task, tokens, features)
        state["token"] = ops.repeat(state["token"], self.top_k, axis=1)
        state["running"] = ops.ones((task.batch, 1), dtype="int32")
        state["scores"] = ops.zeros((task.batch,), dtype="float32")
        state["probabilities"] = ops.ones((task.batch, self.top_k), dtype="float32")
        shape = (task.batch, task.length, features.shape[-1])
        state["features"] = ops.zeros(shape, dtype="float32")
        if task.first:
            state["features"] = ops.slice_update(
                state["features"], (0, 0, 0), _normalized(features)
            )
        return state

    def advance(
        self, task: Task, state: State, logits: Tensor, features: Tensor
    ) -> tuple[State, Tensor]:
        """Writes the best candidate at the position that was fed, and finds the next ones."""
        batch, k, position = task.batch, self.top_k, state["position"]
        new = ops.reshape(_normalized(features), (batch, k, features.shape[-1]))
        likeness = ops.matmul(new, ops.transpose(state["features"], (0, 2, 1)))
        before = ops.expand_dims(task.written(position - 1), 1)
        likeness = ops.max(ops.where(before, likeness, -1.0), axis=-1)  # (B, k)
        merit = (1.0 - self.alpha) * state["probabilities"] - self.alpha * likeness
        best = ops.cast(ops.top_k(merit, k=1)[1], "int32")  # (B, 1)

        first = ops.equal(position, task.first)  # the prompt's own token: nothing is chosen yet
        running = state["running"]
        token = gather(state["token"], best) * running
        gained = ops.log(gather(state["probabilities"], best))
        going = ops.logical_and(ops.greater(running, 0), ops.logical_not(first))
        gained = ops.where(going, gained, 0.0)
        ends = _still_running(task, running, token, position + 1)

        logits = ops.reshape(ops.cast(logits, "float32"), (batch, k, logits.shape[-1]))
        logits = ops.squeeze(gather(logits, best), 1)
        probabilities, tokens = ops.top_k(ops.softmax(logits, axis=-1), k=k)
        return {
            "tokens": ops.slice_update(state["tokens"], (0, position), token),
            "token": ops.cast(tokens, "int32"),
            "running": ops.where(first, running, ends),
            "scores": state["scores"] + ops.squeeze(gained, 1),
            "probabilities": probabilities,
            "features": ops.slice_update(state["features"], (0, position, 0), gather(new, best)),
        }, ops.repeat(best, k, axis=1)


def _log_probabilities(logits: Tensor, token: Tensor) -> Tensor:
    """Of tokens (B, 1) by logits (B, V): (B, 1), float32."""
    logits = ops.cast(logits, "float32")
    return gather(logits, token) - log_normalizer(logits)


def _still_running(task: Task, running: Tensor, token: Tensor, columns: Tensor) -> Tensor:
    """Which rows go on after `token` (B, 1), which made them `columns` long: (B, 1), int32."""
    for end_id in task.end_ids:
        running = running * ops.cast(ops.not_equal(token, end_id), "int32")
    if task.limit is not None:
        full = ops.expand_dims(task.is_full(columns), 1)
        running = running * (1 - ops.cast(full, "int32"))
    return running


def _normalized(x: Tensor) -> Tensor:
    """Vectors of length 1, float32."""
    x = ops.cast(x, "float32")
    return x / ops.maximum(ops.norm(x, axis=-1, keepdims=True), 1e-8)
