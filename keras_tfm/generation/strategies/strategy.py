"""The base of all strategies, and the interface between a strategy and the generation loop.

The loop gives a strategy the `Task` and asks it for a new `State` in each step; processors get a
`Context`.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import keras
import numpy as np
from keras import ops

from keras_tfm.generation.gather import gather
from keras_tfm.generation.logits import log_normalizer
from keras_tfm.layers.types import Size, Tensor


class Context(NamedTuple):
    """The tokens so far, how many may follow, and a seed for this step.

    In a beam search each hypothesis is a row.

    Attributes:
        tokens: (B, T), int32, the prompt and the tokens generated so far. Only columns in which
            `written` is True are valid; the others are padding.
        written: (B, T) or (1, T), boolean, True = the column holds a token.
        position: () int32, the column of the last token, the same in all rows.
        seed: (2,), int32, different in each step; None for strategies that do not sample.
        new_length: () int32, the number of tokens generated so far, the same in all rows.
        remaining: (B, 1) or (1, 1), int32, the number of tokens that the row may still get.
        end_ids: tuple of the tokens that end a row.
        copies: int, the number of consecutive rows that belong to one row of the inputs.
        unconditional: (B, V), float32, the logits after the empty prompt of a `Guidance` and the
            same tokens; None without one.

    A strategy that never generates a token twice:

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
    new_length: Tensor = 0
    remaining: Tensor = 0
    end_ids: tuple[int, ...] = ()
    copies: int = 1
    unconditional: Tensor | None = None

    @property
    def length(self) -> Tensor:
        """(B, 1) or (1, 1), int32, the number of tokens so far, prompt included."""
        return ops.sum(ops.cast(self.written, "int32"), axis=1, keepdims=True)


class Task(NamedTuple):
    """The lengths, end tokens and seed of one run of the loop.

    Attributes:
        batch: int or scalar tensor, number of rows (B).
        length: int, number of columns of the result, including prompt and padding (T).
        first: int, the column of the last token of the prompt.
        end_ids: tuple of the tokens that end a row.
        limit: (B,), int32, number of columns that each row may use, including left padding; None:
            all T.
        padding: (B,), int32, number of padding columns before each row's prompt; optional.
        score: bool, whether log-probabilities are summed.
        seed: (2,), int32, for strategies that sample; optional.
        copies: int, the number of consecutive rows that belong to one row of the inputs.
        pad_id: int, the token of the columns after the end of a row.
        sources: dict of the model's inputs by name, without the stepped one.
        unconditional: (B * width, V), float32, in a step the logits after the empty prompt of a
            `processors.Guidance`; otherwise None.

    >>> from keras_tfm.generation.strategies import Task
    >>> task = Task(1, 4, 0, (7,), None, None, False, None)
    >>> task.is_end([[7, 3]]).numpy().tolist(), task.is_written(1).numpy().tolist()
    ([[True, False]], [[True, True, False, False]])
    """

    batch: Size
    length: int
    first: int
    end_ids: tuple[int, ...]
    limit: Tensor | None
    padding: Tensor | None
    score: bool
    seed: Tensor | None
    pad_id: int = 0
    copies: int = 1
    sources: Mapping[str, Tensor] = MappingProxyType({})
    unconditional: Tensor | None = None

    @property
    def can_end(self) -> bool:
        """Whether a row may end before the last column."""
        return bool(self.end_ids) or self.limit is not None

    def sequences(self, prompt: Tensor) -> Tensor:
        """A prompt (B, P) followed by padding: (B, T), int32, the tokens that `start` takes."""
        tokens = ops.full((self.batch, self.length), self.pad_id, dtype="int32")
        return ops.slice_update(tokens, (0, 0), prompt)

    def is_written(self, position: Tensor) -> Tensor:
        """The columns that hold a token when `position` is the last: (1 | B, T), boolean."""
        columns = ops.expand_dims(ops.arange(self.length, dtype="int32"), 0)
        written = ops.less_equal(columns, position)
        if self.padding is not None:
            written = ops.logical_and(
                written, ops.greater_equal(columns, ops.expand_dims(self.padding, 1))
            )
        return written

    def context(self, tokens: Tensor, position: Tensor, seed: Tensor | None = None) -> Context:
        """The context of a step.

        Args:
            tokens: (B, T), or (B, n, T) with n hypotheses, which become B * n rows.
            position: () int32, the column of the last token.
            seed: (2,), int32, the seed of the step; optional.
        """
        written, remaining = self.is_written(position), self.limits - 1 - position
        copies = self.copies
        if len(tokens.shape) == 3:
            n = tokens.shape[1]
            copies *= n
            tokens = ops.reshape(tokens, (-1, self.length))
            written = written if self.padding is None else ops.repeat(written, n, axis=0)
            remaining = remaining if self.limit is None else ops.repeat(remaining, n, axis=0)
        return Context(
            tokens,
            written,
            position,
            seed,
            position - self.first,
            remaining,
            self.end_ids,
            copies,
            self.unconditional,
        )

    @property
    def limits(self) -> Tensor:
        """The number of columns that each row may use, at most T: (B, 1) or (1, 1), int32."""
        if self.limit is None:
            return ops.full((1, 1), self.length, dtype="int32")
        return ops.expand_dims(ops.minimum(self.limit, self.length), 1)

    def is_end(self, tokens: Tensor) -> Tensor:
        """Which tokens end a row: boolean, with the shape of `tokens`."""
        ends = ops.zeros_like(tokens, dtype="bool")
        for end_id in self.end_ids:
            ends = ops.logical_or(ends, ops.equal(tokens, end_id))
        return ends

    def is_full(self, columns: Tensor) -> Tensor:
        """Whether a row that uses this many columns is at its limit: boolean, (B,) or ()."""
        limit = self.length if self.limit is None else ops.squeeze(self.limits, 1)
        return ops.greater_equal(columns, limit)

    def still_running(self, running: Tensor, token: Tensor, columns: Tensor) -> Tensor:
        """Which rows continue after `token`.

        Args:
            running: (B, n), int32, 1 for rows that had not ended before `token`; n is 1, or the
                number of tokens that are considered at once.
            token: (B, n), int32, the new tokens.
            columns: int32, () or (1, n), number of columns that rows use, including `token`.

        Returns:
            (B, n), int32, 1 for rows that have not ended, 0 for others.
        """
        # Products of integers: XNNPACK has no operator for booleans.
        for end_id in self.end_ids:
            running = running * ops.cast(ops.not_equal(token, end_id), "int32")
        if self.limit is not None:
            full = ops.greater_equal(columns, self.limits)
            running = running * (1 - ops.cast(full, "int32"))
        return running

    def pad_ended(self, token: Tensor, running: Tensor) -> Tensor:
        """`token` where a row is running (1), the padding token where it has ended (0)."""
        token = token * running
        return token + self.pad_id * (1 - running) if self.pad_id else token


# A function of logits (B, V), float32, and a context that returns logits (B, V).
LogitsProcessor = Callable[[Tensor, Context], Tensor]


class State(Protocol):
    """The fields of a strategy's state that the loop reads.

    A state is a NamedTuple of tensors, which `keras.tree` flattens on every backend, so that it can
    be a variable of `ops.while_loop`. An optional field must be None in all steps or in none.
    """

    @property
    def position(self) -> Tensor:
        """() int32, the column of the next step's tokens, the same in all rows."""

    @property
    def tokens(self) -> Tensor:
        """(B, T), or (B, width, T) with several hypotheses, int32: the tokens chosen so far."""

    @property
    def token(self) -> Tensor:
        """(B, width), int32: the model's input tokens in the next step."""


class TokenState(NamedTuple):
    """The state of a strategy that chooses one token per row and step.

    Attributes:
        position: () int32, see `State`.
        tokens: (B, T), int32.
        token: (B, 1), int32.
        running: (B, 1), int32, 1 for rows that have not ended; None if no row can end early.
        scores: (B,), float32, the sum of the log-probabilities; None without `Task.score`.
    """

    position: Tensor
    tokens: Tensor
    token: Tensor
    running: Tensor | None
    scores: Tensor | None


class Strategy:
    """The base class of strategies: `choose` returns one token per row and step.

    A custom strategy defines `choose`, a pure function of tensors that is compiled into the loop
    and exported with it:

    >>> import numpy as np
    >>> from keras import ops
    >>> from keras_tfm.generation import Strategy
    >>> class SecondBest(Strategy):
    ...     def choose(self, logits, context):
    ...         return ops.cast(ops.top_k(logits, k=2)[1][:, 1], "int32")
    >>> SecondBest().choose(np.array([[0.1, 0.7, 0.2]], "float32"), None).numpy().tolist()
    [2]

    A search over several hypotheses has its own state and defines these four methods instead. The
    loop calls them in this order:

        state = strategy.start(task, tokens, features)
        while state.position < last and any(strategy.going(task, state)):
            logits, features = model(state.token)  # at state.position
            state, parents = strategy.advance(task, state, logits, features)
        strategy.result(task, state)
    """

    # The number of tokens per row in each step: one for each hypothesis or candidate.
    width: int = 1
    # The number of consecutive tokens per row in each step: more than one with drafts. `advance`
    # then gets the logits of all of them, (B, n, V).
    consecutive: int = 1
    # Whether `advance` gets, instead of features, a function of the index of one of the step's
    # tokens, () int32, that computes the model's second output there, such as that of draft heads.
    reads_drafts: bool = False
    # Whether `start` and `advance` get the input of the model's last layer.
    reads_features: ClassVar[bool] = False
    # The number of steps after the last column, for a strategy that runs the model on candidates
    # and chooses one of them a step later.
    lookahead: ClassVar[int] = 0
    # Whether written tokens are final, so that they can be streamed.
    streams: ClassVar[bool] = True
    # Whether tokens are sampled, so that the loop needs a seed.
    draws: ClassVar[bool] = False
    # The number of hypotheses returned per row. With a width of 1 they are independent: the loop
    # gets each row of the inputs that many times.
    hypotheses: int = 1
    # The seed of strategies that sample; None: a different one for each call.
    seed: int | None = None
    # Functions that change the logits before the strategy reads them, in this order.
    processors: Sequence[LogitsProcessor] = ()
    # The variables that the strategy reads, besides the model's.
    variables: Sequence[keras.Variable] = ()

    @property
    def copies(self) -> int:
        """The number of rows of the loop for each row of the inputs."""
        return self.hypotheses if self.width == 1 else 1

    def choose(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V), after the processors -> tokens (B,), int32."""
        raise NotImplementedError(f"{type(self).__name__} does not define choose(logits, context)")

    def process(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> logits (B, V) after all processors."""
        size = logits.shape[-1]
        for processor in self.processors:
            logits = processor(ops.cast(logits, "float32"), context)
            shape = getattr(logits, "shape", None)
            if shape is not None and getattr(shape, "rank", 2) is None:  # of a Python function
                logits = ops.reshape(logits, (-1, size))
                shape = logits.shape
            if shape is None or len(shape) != 2 or shape[-1] not in (size, None):
                got = type(logits).__name__ if shape is None else tuple(shape)
                raise ValueError(
                    f"the processor {processor!r} must return logits (B, {size}), got {got}"
                )
        return logits

    def check_length(self, length: int) -> None:
        """Raises ValueError if the steps do not fit a row of this many tokens."""

    def check(self, vocabulary_size: int) -> None:
        """Raises ValueError if a processor does not support a vocabulary of this size.

        A strategy may have further conditions.
        """
        for processor in self.processors:
            if not callable(processor):
                raise TypeError(
                    "processors must be functions of logits and a context, such as "
                    f"processors.ForcedEOS(2), got {processor!r}"
                )
            check = getattr(processor, "check", None)
            if check is not None:
                check(vocabulary_size)

    def column(self, state: Any) -> Tensor:
        """() int32, the column of a step's first token."""
        return state.position

    def start(self, task: Task, tokens: Tensor, features: Tensor | None) -> State:
        """The state before the first step.

        Args:
            task: `Task`, the constants of the loop.
            tokens: (B, T), int32, `task.sequences(prompt)`.
            features: (B, P - 1, D), float, features of the prompt without its last token; None
                unless `reads_features`.

        Returns:
            A state whose `position` is `task.first` and whose `token` is the prompt's last token.
        """
        return TokenState(
            position=ops.convert_to_tensor(task.first, dtype="int32"),
            tokens=tokens,
            token=tokens[:, task.first : task.first + 1],
            running=ops.ones((task.batch, 1), dtype="int32") if task.can_end else None,
            scores=ops.zeros((task.batch,), dtype="float32") if task.score else None,
        )

    def advance(
        self, task: Task, state: Any, logits: Tensor, features: Tensor | None
    ) -> tuple[State, Tensor | None]:
        """Chooses the next tokens after the model has seen `state.token`.

        Args:
            task: `Task`, the constants of the loop.
            state: `State`, as returned by `start` or `advance`.
            logits: (B * width, V), the model's output for `state.token`.
            features: (B * width, D), float; None unless `reads_features`.

        Returns:
            The next state, whose `position` is one larger, and the parents: (B, width), int32, the
            index (below `width`) of the token of this step that each of the next tokens continues.
            The parents are None if width is 1.
        """
        before: TokenState = state  # subclasses may have other states
        position = before.position
        seed = None if task.seed is None else task.seed + ops.stack([0, position])
        context = task.context(before.tokens, position, seed)
        processed = self.process(logits, context)
        token = ops.expand_dims(self.choose(processed, context), 1)
        running, scores = before.running, before.scores
        if running is not None:
            token = task.pad_ended(token, running)
        if scores is not None:
            gained = _log_probabilities(logits, token)
            if self.processors:  # NaN tells the generator of them
                gained = ops.where(leaves_none(processed), np.nan, gained)
            if running is not None:
                # `where`, not a product: -inf (a forbidden token) times 0 is NaN.
                gained = ops.where(ops.greater(running, 0), gained, 0.0)
            scores = scores + ops.squeeze(gained, 1)
        if running is not None:
            running = task.still_running(running, token, position + 2)
        tokens = ops.slice_update(before.tokens, (0, position + 1), token)
        return TokenState(position + 1, tokens, token, running, scores), None

    def going(self, task: Task, state: Any) -> Tensor | None:
        """Which rows have not ended: (B,), boolean; None if no row can end early."""
        before: TokenState = state
        if before.running is None:
            return None
        return ops.squeeze(ops.greater(before.running, 0), 1)

    def result(self, task: Task, state: Any) -> dict[str, Tensor]:
        """The output of the loop: "tokens", (B, T) or (B, n, T), and "scores", (B,) or (B, n).

        "scores" may be missing without `task.score`.
        """
        last: TokenState = state
        if last.scores is None:
            return {"tokens": last.tokens}
        return {"tokens": last.tokens, "scores": last.scores}


def leaves_none(logits: Tensor) -> Tensor:
    """Whether processors left no token, or NaN: (..., V) -> (..., 1), bool."""
    is_none = ops.equal(ops.max(logits, axis=-1, keepdims=True), -np.inf)
    # Apart from the maximum, which may be that of the other numbers.
    return ops.logical_or(is_none, ops.any(ops.isnan(logits), axis=-1, keepdims=True))


def _log_probabilities(logits: Tensor, token: Tensor) -> Tensor:
    """Log-probabilities of tokens (B, 1) under logits (B, V): (B, 1), float32."""
    logits = ops.cast(logits, "float32")
    return gather(logits, token) - log_normalizer(logits)
