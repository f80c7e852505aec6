"""Several tokens per pass over the weights: a draft proposes them, and the model verifies them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.generation.gather import gather
from keras_tfm.generation.logits import log_normalizer
from keras_tfm.generation.strategies.drafts import Draft
from keras_tfm.generation.strategies.greedy import Greedy
from keras_tfm.generation.strategies.strategy import LogitsProcessor, Strategy, Task, leaves_none
from keras_tfm.layers.types import Tensor


class DraftedState(NamedTuple):
    """The state of `Drafted`.

    Attributes:
        position: () int32, the column of the last token that is certain.
        tokens: (B, T + n), int32, the tokens that are certain up to `position`, then drafts; n is
            the number of tokens in a step, so that no draft is past the end.
        token: (B, n), int32, the next step's tokens: certain ones up to `position`, then drafts.
        start: () int32, the column of the first of these.
        running: (B, 1), int32, 1 for rows that have not ended; None if no row can end early.
        scores: (B,), float32, the sum of the log-probabilities; None without `Task.score`.
        followed: (B, n), boolean, which logits of the last step chose a token of the result; None
            without `Task.score`.
        passes: () int32, the number of steps so far; None without `Task.score`.
        draft: the state of the draft, nested tensors; None for a draft without state.
    """

    position: Tensor
    tokens: Tensor
    token: Tensor
    start: Tensor
    running: Tensor | None
    scores: Tensor | None
    followed: Tensor | None
    passes: Tensor | None
    draft: Any


@dataclass(frozen=True)
class Drafted(Strategy):
    """Verifies several drafted tokens in each step; the result is that of the strategy inside.

    Decoding one token at a time reads all weights for every token. A step with several tokens
    reads them once, and costs little more. So a cheap draft proposes the next n tokens, the model
    computes the logits after each of them in one step, and the tokens up to the first one that the
    strategy would not have chosen are kept, together with the one that it chooses there: "Blockwise
    Parallel Decoding for Deep Autoregressive Models" (arXiv:1811.03115). Each step thus yields
    between 1 and n + 1 tokens, and drafts change only the speed.

    With `Sample` inside, the tokens are those that it samples without drafts, with the same seed:
    the token after each prefix is drawn from the model's distribution with the seed of its column,
    and a draft is kept if it equals the drawn token. For a draft without probabilities of its own
    that is speculative sampling (arXiv:2302.01318). `DraftModel` draws its tokens with the same
    random numbers, so close distributions draw equal tokens.

    In a batch, every row advances by the number of tokens that are right in all rows: drafts are
    most useful for one row at a time.

    Args:
        draft: `Draft` that proposes tokens, such as `PromptLookup()`, `DraftHeads()` or
            `DraftModel(model)`.
        length: int, number of tokens that are drafted for each step (n), at most `max_length` - 2.
        strategy: `Greedy` or `Sample`, or another strategy with a `choose` of its own and one
            hypothesis per row. Default: `Greedy()`.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range; or the strategy has several hypotheses, such as
            `Beam`.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.generation import Drafted, Greedy, PromptLookup, generate
    >>> from keras_tfm.models import gpt
    >>> model = gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> prompt = np.array([[3, 4, 5, 3, 4]])
    >>> drafted = Drafted(PromptLookup(), length=3)
    >>> tokens = generate(model, prompt, 12, strategy=drafted).tokens
    >>> bool(np.all(tokens == generate(model, prompt, 12).tokens))
    True
    """

    draft: Draft
    length: int = 4
    strategy: Strategy = field(default_factory=Greedy)

    def __post_init__(self) -> None:
        if not isinstance(self.draft, Draft):
            raise TypeError(f"draft must be a Draft such as PromptLookup(), got {self.draft!r}")
        check_integer("length", self.length)
        inner = self.strategy
        if not isinstance(inner, Strategy):
            raise TypeError(f"strategy must be a Strategy such as Greedy(), got {inner!r}")
        plain = type(inner).advance is Strategy.advance
        if not plain or inner.width != 1 or inner.lookahead or isinstance(inner, Drafted):
            raise ValueError(
                f"strategy must choose one token per row and step, as Greedy and Sample do, got "
                f"{inner!r}: several hypotheses cannot be drafted"
            )

    @property
    def consecutive(self) -> int:  # type: ignore[override]
        """The number of consecutive tokens of a row in each step."""
        return self.length + 1

    @property
    def reads_drafts(self) -> bool:  # type: ignore[override]
        """Whether the draft reads the model's second output."""
        return self.draft.reads_heads

    @property
    def draws(self) -> bool:  # type: ignore[override]
        """Whether the strategy inside samples."""
        return self.strategy.draws

    @property
    def seed(self) -> int | None:  # type: ignore[override]
        """The seed of the strategy inside."""
        return self.strategy.seed

    @property
    def hypotheses(self) -> int:  # type: ignore[override]
        """The number of independent samples per row."""
        return self.strategy.hypotheses

    @property
    def processors(self) -> Sequence[LogitsProcessor]:  # type: ignore[override]
        """The processors of the strategy inside."""
        return self.strategy.processors

    @property
    def variables(self) -> Sequence[keras.Variable]:  # type: ignore[override]
        """The variables of the draft."""
        return self.draft.variables

    # A step writes several columns, and a stream yields one column per step.
    streams = False

    def check(self, vocabulary_size: int) -> None:
        """Raises as the strategy inside does, or if the draft has another vocabulary."""
        self.strategy.check(vocabulary_size)
        self.draft.check(vocabulary_size)

    def check_length(self, length: int) -> None:
        """Raises ValueError if a step has more columns than a row of this many tokens reads."""
        if self.length > length - 2:
            raise ValueError(
                f"length={self.length} drafted tokens do not fit a row of {length} tokens: "
                f"give Drafted a length of at most {max(1, length - 2)}"
            )

    def column(self, state: DraftedState) -> Tensor:
        """() int32, the column of the first of a step's tokens."""
        return state.start

    def start(self, task: Task, tokens: Tensor, features: Tensor | None) -> DraftedState:
        """The state before the first step; raises ValueError if a step does not fit."""
        self.check_length(task.length)
        position = ops.convert_to_tensor(task.first, dtype="int32")
        running = ops.ones((task.batch, 1), dtype="int32") if task.can_end else None
        draft = self.draft.start(task, tokens)
        spare = ops.full((task.batch, self.consecutive), task.pad_id, dtype="int32")
        tokens = ops.concatenate([tokens, spare], axis=1)
        start, tokens, token, draft = self._next(task, tokens, position, running, draft)
        return DraftedState(
            position=position,
            tokens=tokens,
            token=token,
            start=start,
            running=running,
            scores=ops.zeros((task.batch,), dtype="float32") if task.score else None,
            followed=ops.zeros((task.batch, self.consecutive), "bool") if task.score else None,
            passes=ops.convert_to_tensor(0, dtype="int32") if task.score else None,
            draft=draft,
        )

    def advance(
        self, task: Task, state: DraftedState, logits: Tensor, features: Tensor
    ) -> tuple[DraftedState, None]:
        """Keeps the drafts that are right, chooses the token after them, and drafts the next.

        Args:
            task: `Task`, the constants of the loop.
            state: `DraftedState`, before the step.
            logits: (B, n, V), the model's output for `state.token`.
            features: function of the index of one of the step's tokens that returns the model's
                second output there, for a draft that reads it; otherwise None.
        """
        steps, start = self.consecutive, state.start
        chosen, processed = self._choose_tokens(task, state, logits)
        # Columns start + 1 .. start + n: certain up to `position`, chosen after it.
        known = ops.slice(state.tokens, (0, start + 1), (task.batch, steps))
        columns = ops.add(start, np.arange(steps, dtype="int32")[np.newaxis])
        new = ops.greater_equal(columns, state.position)
        tokens = ops.where(new, chosen, known)
        tokens, count, going, counted = self._count_kept(task, state, tokens, known, new, columns)
        last = start + count
        scores = followed = passes = None
        if state.scores is not None:
            followed = ops.logical_and(new, ops.less(columns, last))
            if counted is not None:
                followed = ops.logical_and(followed, ops.greater(counted, 0))
            followed = ops.broadcast_to(followed, (task.batch, steps))
            scores = state.scores + self._gains(logits, processed, tokens, followed)
            passes = ops.add(state.passes, 1)
        running = None if going is None else ops.slice(going, (0, count - 1), (task.batch, 1))
        heads = None
        if self.reads_drafts:
            (heads,) = features(count - 1)
            heads = ops.squeeze(heads, 1)
        result = ops.slice_update(state.tokens, (0, start + 1), tokens)
        next_start, result, token, draft = self._next(
            task, result, last, running, state.draft, heads
        )
        return DraftedState(
            last, result, token, next_start, running, scores, followed, passes, draft
        ), None

    def _count_kept(
        self,
        task: Task,
        state: DraftedState,
        tokens: Tensor,
        known: Tensor,
        new: Tensor,
        columns: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """How many of a step's tokens are kept.

        Args:
            tokens: (B, n), the tokens after each of the step's tokens.
            known: (B, n), the certain tokens and the drafts there.
            new: (1, n), boolean, which of `tokens` the strategy chose.
            columns: (1, n), the columns of the step's tokens.

        Returns:
            The tokens, with padding after the end of a row; the number that is kept, () int32; the
            rows that go on after each of them, (B, n), int32, None if no row can end; and the
            tokens that count for the scores, (B, n), int32, None if all that are kept do.
        """
        wrong = ops.cast(ops.not_equal(tokens, known), "int32")
        going = counted = None
        if state.running is not None:
            going = task.still_running(ops.ones_like(tokens), tokens, columns + 2)
            going = ops.where(new, going, 1)
            if task.batch == 1:  # the step ends with the row: there is nothing to pad
                wrong = ops.maximum(wrong, 1 - going)
            else:
                ended = ops.cumsum(1 - going, axis=1)
                going = state.running * ops.cast(ops.equal(ended, 0), "int32")
                counted = ops.concatenate([state.running, going[:, :-1]], axis=1)
                tokens = ops.where(new, task.pad_ended(tokens, counted), tokens)
                # A draft is wrong if it differs in a row that has not ended.
                wrong = ops.cast(ops.not_equal(tokens, known), "int32") * going
        if task.batch != 1:
            wrong = ops.max(wrong, axis=0, keepdims=True)
        # No draft follows the last token.
        end = np.eye(1, self.consecutive, self.length, dtype="int32")
        first = ops.argmax(ops.maximum(wrong, end), axis=1)
        return tokens, 1 + ops.squeeze(ops.cast(first, "int32"), 0), going, counted

    def _choose_tokens(
        self, task: Task, state: DraftedState, logits: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The strategy's tokens (B, n) after each of the step's tokens, and its logits."""
        steps = self.consecutive
        if self._is_greedy:
            flat = ops.reshape(logits, (-1, logits.shape[-1]))
            return ops.reshape(self.strategy.choose(flat, None), (-1, steps)), logits  # type: ignore[arg-type]
        # If a draft is wrong, what follows is not used.
        tokens = state.tokens[:, : task.length]
        both = [self._choice(task, logits[:, i], state.start + i, tokens) for i in range(steps)]
        chosen, processed = zip(*both, strict=True)
        return ops.stack(chosen, axis=1), ops.stack(processed, axis=1)

    @property
    def _is_greedy(self) -> bool:
        return isinstance(self.strategy, Greedy) and not self.strategy.processors

    def _choice(
        self, task: Task, logits: Tensor, column: Tensor, tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The strategy's tokens (B,) after a column, and the logits (B, V) that it reads."""
        seed = None if task.seed is None else task.seed + ops.stack([0, column])
        context = task.context(tokens, column, seed)
        processed = self.strategy.process(logits, context)
        return self.strategy.choose(processed, context), processed

    def _gains(self, logits: Tensor, processed: Tensor, tokens: Tensor, followed: Tensor) -> Tensor:
        """The log-probabilities (B,) of the step's new tokens."""
        logits = ops.cast(logits, "float32")
        size = logits.shape[-1]
        values = gather(ops.reshape(logits, (-1, size)), ops.reshape(tokens, (-1, 1)))
        gained = ops.reshape(values, ops.shape(tokens)) - ops.squeeze(log_normalizer(logits), -1)
        if self.processors:  # NaN tells the generator of them
            gained = ops.where(ops.squeeze(leaves_none(processed), -1), np.nan, gained)
        # `where`, not a product: -inf (a forbidden token) times 0 is NaN.
        return ops.sum(ops.where(followed, gained, 0.0), axis=1)

    def _next(
        self,
        task: Task,
        tokens: Tensor,
        position: Tensor,
        running: Tensor | None,
        draft: Any,
        heads: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Any]:
        """The first column of the next step, all tokens with its drafts, its own, and the draft.

        Near the end the step starts earlier, with tokens that are certain, so that its columns are
        within the limit of each row that has not ended: a table of positions may have no others.
        """
        steps = self.consecutive
        latest: Tensor = max(task.length - 1 - steps, 0)
        if task.limit is not None and running is not None:
            limits = task.limits * running + task.length * (1 - running)
            latest = ops.maximum(ops.min(limits) - 1 - steps, 0)
        # Not the maximum of this minimum and 0: the converter reads max(min(x, 6), 0) of integers
        # as the activation ReLU6, for which LiteRT has no integer kernel.
        start = ops.minimum(position, latest)
        drafts, draft = self.draft.step(
            task,
            tokens[:, : task.length],
            position,
            self.length,
            heads,
            draft,
            None if self._is_greedy else partial(self._drafted_choice, task),
        )
        tokens = ops.slice_update(tokens, (0, position + 1), drafts)
        return start, tokens, ops.slice(tokens, (0, start), (task.batch, steps)), draft

    def _drafted_choice(self, task: Task, logits: Tensor, column: Tensor, tokens: Tensor) -> Tensor:
        """The strategy's tokens (B,) after a column, for a draft's logits (B, V)."""
        return self._choice(task, logits, column, tokens)[0]

    def result(self, task: Task, state: DraftedState) -> dict[str, Tensor]:
        """The tokens, and with `Task.score` their log-probabilities and the number of steps."""
        columns = ops.arange(task.length, dtype="int32")
        certain = ops.expand_dims(ops.less_equal(columns, state.position), 0)
        tokens = ops.where(certain, state.tokens[:, : task.length], task.pad_id)
        if state.scores is None:
            return {"tokens": tokens}
        return {"tokens": tokens, "scores": state.scores, "passes": state.passes}
