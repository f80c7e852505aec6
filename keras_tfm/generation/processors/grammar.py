"""A constraint by a regular grammar: a finite automaton over tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from keras_tfm.generation.gather import gather
from keras_tfm.generation.processors.processor import NEVER, Processor, as_ids, is_among
from keras_tfm.generation.strategies.strategy import Context
from keras_tfm.layers.types import Tensor
from keras_tfm.optional_package import optional_package


@dataclass(frozen=True, eq=False)
class Grammar(Processor):
    """Allows the sequences of a regular grammar, given as a finite automaton over tokens.

    The automaton reads the generated tokens, without the prompt. The end token is allowed in
    accepting states, and only there. Transitions to states from which no accepting state can be
    reached are not allowed, so a row can always be completed, unless it reaches its maximum length
    first.

    Args:
        transitions: (S, V), integers: the next state for each state and token; -1: not allowed.
        accepting: the states in which a row may end.
        start: int, the state before the first token.

    A grammar of one or more 3, then a 4; the vocabulary has five tokens, 2 ends a row:

    >>> import numpy as np
    >>> from keras import ops
    >>> from keras_tfm.generation import Context
    >>> from keras_tfm.generation.processors import Grammar
    >>> transitions = np.full((3, 5), -1)
    >>> transitions[0, 3] = transitions[1, 3] = 1
    >>> transitions[1, 4] = 2
    >>> grammar = Grammar(transitions, accepting=[2])
    >>> tokens, written = ops.array([[0, 3, 0]]), ops.array([[True, True, False]])
    >>> context = Context(tokens, written, 1, None, new_length=1, end_ids=(2,))
    >>> grammar(ops.zeros((1, 5)), context).numpy().tolist()
    [[-inf, -inf, -inf, 0.0, 0.0]]
    """

    transitions: np.ndarray
    accepting: Sequence[int]
    start: int = 0

    def __post_init__(self) -> None:
        table = np.asarray(self.transitions)
        if table.ndim != 2 or not table.size or not np.issubdtype(table.dtype, np.integer):
            raise ValueError(
                f"transitions must be integers (S, V), got {table.dtype} {table.shape}"
            )
        states = len(table)
        if table.min() < -1 or table.max() >= states:
            raise ValueError(
                f"transitions must be in -1..{states - 1}, got {table.min()}..{table.max()}"
            )
        accepting = as_ids("accepting", self.accepting)
        (start,) = as_ids("start", [self.start])
        if max(*accepting, start) >= states:
            raise ValueError(
                f"accepting and start must be in 0..{states - 1}, got {accepting} and {start}"
            )
        if (states + 2) * table.shape[1] >= 2**31:
            raise ValueError(f"transitions must have less than 2^31 entries, got {table.shape}")
        table = _completable(table, accepting)
        if start not in accepting and not (table[start] >= 0).any():
            raise ValueError(f"no accepting state can be reached from the start, state {start}")
        object.__setattr__(self, "transitions", table)
        object.__setattr__(self, "accepting", accepting)
        object.__setattr__(self, "start", start)

    @classmethod
    def from_regex(cls, pattern: str, tokens: Sequence[str | None]) -> "Grammar":
        """The grammar of the texts that a regular expression matches as a whole.

        It needs interegular (the extra `grammar`).

        Args:
            pattern: a regular expression of Python's `re`, without back references.
            tokens: the text of each token of the vocabulary; None for tokens that are not allowed:
                special tokens, and those that are only a part of a character.

        Raises:
            ValueError: the pattern is damaged or not supported, or no sequence of tokens matches.
            ModuleNotFoundError: interegular is not installed.
        """
        package = _import_interegular()
        try:
            machine = package.parse_pattern(pattern).to_fsm().reduce()
        except (package.InvalidSyntax, package.Unsupported, ValueError) as error:
            raise ValueError(f"the pattern {pattern!r} cannot be read: {error}") from None
        number = {state: i for i, state in enumerate(sorted(machine.states))}
        dead = len(number)
        classes = 1 + max(machine.alphabet.by_transition, default=0)
        # One more state, from which nothing matches, and one more class, of other characters.
        step = np.full((dead + 1, classes + 1), dead)
        for state, following in machine.map.items():
            for of_character, then in following.items():
                step[number[state], of_character] = number[then]
        table = np.full((dead, len(tokens)), -1)
        for token, text in enumerate(tokens):
            if not text:
                continue
            states = np.arange(dead)
            for character in text:
                of_character = machine.alphabet[character]
                states = step[states, classes if of_character is None else of_character]
            table[:, token] = np.where(states == dead, -1, states)
        return cls(table, [number[x] for x in machine.finals], number[machine.initial])

    def check(self, vocabulary_size: int) -> None:
        """Raises ValueError if the table is for a vocabulary of another size."""
        if self.transitions.shape[1] != vocabulary_size:
            raise ValueError(
                f"Grammar: transitions must have a column for each of {vocabulary_size} tokens, "
                f"got {self.transitions.shape[1]}"
            )

    def __call__(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> logits (B, V), -inf for tokens that are not allowed."""
        if not context.end_ids:
            raise ValueError("Grammar ends a row with the end token: give end_id, got none")
        states, size = self.transitions.shape
        # Two more states, in which all is allowed: of rows that have ended, and after a token that
        # was not allowed, which another processor forced.
        ended, forbidden = states, states + 1
        table = np.full((states + 2, size), ended, "int32")
        table[:states] = np.where(self.transitions < 0, forbidden, self.transitions)
        may_end = np.isin(np.arange(states), self.accepting)[:, np.newaxis]
        is_end = is_among(logits, context.end_ids)[0]
        table[:states, is_end] = np.where(may_end, ended, forbidden)
        flat = ops.convert_to_tensor(table.reshape(1, -1))
        row = gather(
            ops.reshape(flat, (1, states + 2, size)),
            ops.reshape(self._state(flat, context, size), (1, -1)),
        )
        return ops.where(ops.equal(ops.squeeze(row, 0), forbidden), NEVER, logits)

    def _state(self, flat: Tensor, context: Context, size: int) -> Tensor:
        """The state after the generated tokens of each row: (B, 1), int32."""
        tokens = context.tokens
        batch = ops.shape(tokens)[0]
        first = context.position - context.new_length + 1

        def step(count: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            token = ops.slice(tokens, (0, first + count), (batch, 1))
            following = gather(flat, ops.reshape(state * size + token, (1, -1)))
            return count + 1, ops.reshape(following, (batch, 1))

        start = ops.full((batch, 1), self.start, dtype="int32")
        zero = ops.convert_to_tensor(0, dtype="int32")
        return ops.while_loop(
            lambda count, _: ops.less(count, context.new_length), step, (zero, start)
        )[1]


def _completable(table: np.ndarray, accepting: Sequence[int]) -> np.ndarray:
    """The transitions without those to states from which no accepting state can be reached."""
    useful = np.isin(np.arange(len(table)), accepting)
    while True:
        leads = np.where(table >= 0, useful[table], False)
        more = useful | leads.any(axis=1)
        if (more == useful).all():
            return np.where(leads, table, -1).astype("int32")
        useful = more


def _import_interegular() -> Any:
    return optional_package(
        "interegular", "regular expressions need interegular", "interegular", extra="grammar"
    )
