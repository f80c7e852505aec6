"""Several tokens per pass over the weights: a draft proposes them, and the model verifies them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.generation.gather import gather
from keras_tfm.generation.logits import log_normalizer
from keras_tfm.generation.strategies.drafts import Draft
from keras_tfm.generation.strategies.greedy import Greedy
from keras_tfm.generation.strategies.strategy import LogitsProcessor, Strategy
from keras_tfm.generation.strategies.task import Task

Tensor = Any


class DraftedState(NamedTuple):
    """The state of `Drafted`.

    Attributes:
        position: () int32, the column of the last token that is certain.
        tokens: (B, T), int32, the tokens that are certain.
        token: (B, n), int32, the next step's tokens: certain ones up to `position`, then drafts.
        start: () int32, the column of the first of these.
        running: (B, 1), int32, 1 for rows that have not ended; None if no row can end early.
        scores: (B,), float32, the sum of the log-probabilities; None without `Task.score`.
        followed: (B, n), boolean, which logits of the last step chose a token of the result; None
            without `Task.score`.
        passes: () int32, the number of steps so far.
    """

    position: Tensor
    tokens: Tensor
    token: Tensor
    start: Tensor
    running: Tensor | None
    scores: Tensor | None
    followed: Tensor | None
    passes: Tensor


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
    that is speculative sampling (arXiv:2302.01318).

    In a batch, every row advances by the number of tokens that are right in all rows: drafts are
    most useful for one row at a time.

    Args:
        draft: `Draft` that proposes tokens, such as `PromptLookup()`.
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

    # A step writes several columns, and a stream yields one column per step.
    streams = False

    def check(self, vocabulary_size: int) -> None:
        """Raises as the strategy inside does."""
        self.strategy.check(vocabulary_size)

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
        start, token = self._next(task, tokens, position, running)
        return DraftedState(
            position=position,
            tokens=tokens,
            token=token,
            start=start,
            running=running,
            scores=ops.zeros((task.batch,), dtype="float32") if task.score else None,
            followed=ops.zeros((task.batch, self.consecutive), "bool") if task.score else None,
            passes=ops.convert_to_tensor(0, dtype="int32"),
        )

    def advance(
        self, task: Task, state: DraftedState, logits: Tensor, features: Any
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
        chosen, processed = self._chosen(task, state, logits)
        # Columns start + 1 .. start + n: certain up to `position`, chosen after it.
        known = ops.slice(state.tokens, (0, start + 1), (task.batch, steps))
        columns = ops.expand_dims(start + ops.arange(steps, dtype="int32"), 0)
        new = ops.cast(columns >= state.position, "int32")
        tokens = chosen * new + known * (1 - new)
        alive = None  # (B, n + 1), 1 in the columns of rows that have not ended before
        if state.running is not None:
            going = task.still_running(ops.ones_like(tokens), tokens, columns + 2)
            ended = ops.cumsum((1 - going) * new, axis=1)
            alive = state.running * ops.cast(ops.equal(ended, 0), "int32")
            alive = ops.concatenate([state.running, alive], axis=1)
            tokens = task.padded(tokens, ops.maximum(alive[:, :-1], 1 - new))
        # The drafts before the first one that is wrong in a row that has not ended.
        wrong = ops.cast(ops.not_equal(state.token[:, 1:], tokens[:, :-1]), "int32")
        if alive is not None:
            wrong = wrong * alive[:, 1:-1]
        right = ops.equal(ops.cumsum(ops.max(wrong, axis=0)), 0)
        count = 1 + ops.sum(ops.cast(right, "int32"))
        last = start + count
        certain = ops.cast(columns < last, "int32")
        tokens = tokens * certain + task.pad_id * (1 - certain)
        result = ops.slice_update(state.tokens, (0, start + 1), tokens)
        scores, followed = state.scores, None
        if scores is not None:
            followed = new * certain if alive is None else new * certain * alive[:, :-1]
            followed = ops.broadcast_to(followed, (task.batch, steps)) > 0
            scores = scores + self._gained(logits, processed, tokens, followed)
        after = None if alive is None else ops.slice(alive, (0, count), (task.batch, 1))
        heads = None
        if self.reads_drafts:
            (heads,) = features(count - 1)
            heads = ops.squeeze(heads, 1)
        next_start, token = self._next(task, result, last, after, heads)
        return DraftedState(
            last, result, token, next_start, after, scores, followed, state.passes + 1
        ), None

    def _chosen(self, task: Task, state: DraftedState, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The strategy's tokens (B, n) after each of the step's tokens, and its logits."""
        inner, steps = self.strategy, self.consecutive
        if isinstance(inner, Greedy) and not inner.processors:
            flat = ops.reshape(logits, (-1, logits.shape[-1]))
            return ops.reshape(inner.choose(flat, None), (-1, steps)), logits  # type: ignore[arg-type]
        # The drafts, in the columns after the certain tokens: if they are wrong, what follows is
        # not used.
        tokens = ops.slice_update(state.tokens, (0, state.start), state.token)
        chosen, processed = [], []
        for i in range(steps):
            column = state.start + i
            seed = None if task.seed is None else task.seed + ops.stack([0, column])
            context = task.context(tokens, column, seed)
            processed.append(inner.process(logits[:, i], context))
            chosen.append(inner.choose(processed[-1], context))
        return ops.stack(chosen, axis=1), ops.stack(processed, axis=1)

    def _gained(
        self, logits: Tensor, processed: Tensor, tokens: Tensor, followed: Tensor
    ) -> Tensor:
        """The log-probabilities (B,) of the step's new tokens."""
        logits = ops.cast(logits, "float32")
        size = logits.shape[-1]
        values = gather(ops.reshape(logits, (-1, size)), ops.reshape(tokens, (-1, 1)))
        gained = ops.reshape(values, ops.shape(tokens)) - ops.squeeze(log_normalizer(logits), -1)
        if self.processors:  # NaN tells the generator that they left no token
            largest = ops.max(processed, axis=-1)
            gained = ops.where(ops.equal(largest, -np.inf), np.nan, gained)
        # `where`, not a product: -inf (a forbidden token) times 0 is NaN.
        return ops.sum(ops.where(followed, gained, 0.0), axis=1)

    def _next(
        self,
        task: Task,
        tokens: Tensor,
        position: Tensor,
        running: Tensor | None,
        heads: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The first column of the next step, and its tokens (B, n).

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
        drafts = self.draft.propose(task, tokens, position, self.length, heads)
        padding = ops.full((task.batch, steps), task.pad_id, dtype="int32")
        longer = ops.concatenate([tokens, padding], axis=1)
        longer = ops.slice_update(longer, (0, position + 1), drafts)
        return start, ops.slice(longer, (0, start), (task.batch, steps))

    def result(self, task: Task, state: DraftedState) -> dict[str, Tensor]:
        """The tokens, and with `Task.score` their log-probabilities and the number of steps."""
        if state.scores is None:
            return {"tokens": state.tokens}
        return {"tokens": state.tokens, "scores": state.scores, "passes": state.passes}
