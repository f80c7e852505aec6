"""The text of a session, call by call: what was given, and what the next call begins with."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from keras_tfm.arguments import check_integer
from keras_tfm.runtime.tasks.text import before_stop, complete, pieces
from keras_tfm.runtime.tokenizers.tokenizer import Tokenizer

# The least number of earlier tokens that are decoded with new ones, for the spaces between them.
_CONTEXT = 16


class Run:
    """The limits of one generation, and what became of it."""

    def __init__(self, max_tokens: int | None):
        check_integer("max_tokens", max_tokens, optional=True)
        self.max_tokens = max_tokens
        self.first = 0  # the number of tokens before the new ones
        self.ended = ""

    @property
    def goes_on(self) -> bool:
        """Whether more tokens may follow the last one, in this call or the next."""
        return self.ended in ("", "max_tokens")


class GivenText:
    """How much of a session's text was given.

    Args:
        length: int, a number of tokens; with more or fewer tokens, all of the text was given.
        owed: int, the number of complete characters at the end of the text of these tokens that no
            call has given. Nor are the bytes after them, which are not, or not yet, a character,
            unless the number is negative.
    """

    def __init__(self, length: int = -1, owed: int = 0):
        self._length, self._owed = length, owed

    def owed_characters(self, length: int) -> int | None:
        """`owed` if the session has `length` tokens now; None if all of their text was given."""
        return self._owed if self._length == length else None

    def rewind(self, length: int) -> None:
        """Other tokens may follow the first `length`."""
        if self._length > length:
            self._length = -1

    def stream(
        self,
        tokens: list[int],
        new: Iterator[int],
        tokenizer: Tokenizer,
        run: Run,
        stops: Sequence[str],
        rewind: Callable[[int], None],
    ) -> Generator[str]:
        """Yields the text of new tokens up to a stop string, after the text that is owed.

        Args:
            tokens: the session's tokens, to which `new` appends what it yields.
            new: the new tokens.
            tokenizer: `Tokenizer`.
            run: `Run` of `new`.
            stops: the stop strings.
            rewind: shortens the session to a number of tokens.
        """
        before, given, owed = self._before(tokens, tokenizer)
        least = 0 if self._length == len(tokens) else len(before)  # of these, after a stop string
        made = yielded = 0  # characters

        def read() -> Iterator[int]:
            for token in new:
                self._length, self._owed = len(tokens), made - yielded if made else owed
                yield token

        def count_characters() -> Iterator[str]:
            nonlocal made
            for text in pieces(
                read(), tokenizer, before, given=given, ended=lambda: not run.goes_on
            ):
                made += len(text)
                yield text

        def cut(count: int) -> None:
            run.ended = "stop"
            ids = [*before, *tokens[run.first :]]
            kept = len(ids)
            while kept > least:
                text = tokenizer.decode(ids[:kept])
                if len(text) <= given + count and text == complete(text):
                    break
                kept -= 1
            rewind(len(tokens) - len(ids) + kept)
            self._length = -1

        for text in before_stop(count_characters(), stops, cut):
            yielded += len(text)
            # The caller may leave the stream here.
            self._length = len(tokens) if run.goes_on else -1
            self._owed = made - yielded
            yield text

    def _before(self, tokens: list[int], tokenizer: Tokenizer) -> tuple[list[int], int, int]:
        """The last tokens, how many characters of their text were given, and how many are owed."""
        owed, count = self.owed_characters(len(tokens)), _CONTEXT
        while True:
            text = tokenizer.decode(tokens[-count:])
            known = len(complete(text))
            given = len(text) if owed is None else max(0, known - owed)
            # A decoder may remove a space at the start: of a text, not of the new tokens.
            if given or count >= len(tokens):
                return tokens[-count:], given, known - given
            count *= 2


def checked_stops(stop: str | Sequence[str]) -> list[str]:
    """The stop strings; raises a TypeError unless all are texts of at least one character."""
    stops = list(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else [stop]
    if not all(isinstance(one, str) and one for one in stops):
        raise TypeError(f"stop must be texts of at least one character, got {stop!r}")
    return stops
