"""The constants of a generation loop."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from keras import ops

from keras_tfm.generation.strategies.context import Context
from keras_tfm.layers.types import Size, Tensor


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
