"""A session: a text that is continued, whose tokens and KV caches are kept between calls."""

from __future__ import annotations

import copy
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from keras_tfm.arguments import check_integer
from keras_tfm.runtime.checked_inputs import Inputs, integer_rows, prompt_input
from keras_tfm.runtime.decoding.host_loop import checked_tokens, decode_of, known_of_row
from keras_tfm.runtime.decoding.sampling import Choose, Sampler, chooser
from keras_tfm.runtime.decoding.steps import Steps
from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.manifest.manifest import Decode
from keras_tfm.runtime.tasks import saved_session
from keras_tfm.runtime.tasks.session_text import GivenText, Run, checked_stops
from keras_tfm.runtime.tasks.text import tokenizer_of
from keras_tfm.runtime.tokenizers.constraints import Constraint, begin
from keras_tfm.runtime.tokenizers.tokenizer import Tokenizer, prompt_ids

Value = TypeVar("Value")


class Reply(NamedTuple):
    """What a session generated.

    Attributes:
        text: str, complete characters, without special tokens; None if the file has no tokenizer.
            If "max_tokens" ends it within a character, the next reply begins with that character.
        tokens: (T,), int32, without the end token.
        ended: str, why it ended: "end" (an end token, or a complete text of a constraint), "stop"
            (a stop string), "max_tokens", or "full" (the session has `max_length` tokens).
    """

    text: str | None
    tokens: np.ndarray
    ended: str


class Session:
    """A text that is continued; returned by `Model.session`.

    It keeps the tokens and their KV caches, so each token is read once. One file may have any
    number of sessions: switching between them copies caches, but reads no token again. Different
    threads need different sessions. A session can be used after an error: `append` has added
    nothing then, and generation the tokens before the error.

    A text is encoded by itself when it is appended; a whole text, encoded at once, may have other
    tokens at the borders.

    Example, with a Keras model and a tokenizer of letters:

    >>> import tempfile, keras
    >>> from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    >>> from keras_tfm import runtime
    >>> from keras_tfm.export import export_tflite
    >>> from keras_tfm.models import gpt
    >>> ids = {token: i for i, token in enumerate(["<end>", *"abcdefg"])}
    >>> tokenizer = Tokenizer(models.WordLevel(ids))
    >>> tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    >>> tokenizer.decoder = decoders.Fuse()
    >>> model = gpt(8, max_length=20, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_tflite(
    ...         model, folder + "/letters.tflite", ["prefill", "decode"], prompt_length=4,
    ...         max_length=20, end_id=0, tokenizer=tokenizer,
    ...     )
    ...     session = runtime.load(report.path).session()
    ...     session.append("abba")
    ...     other = session.fork()
    ...     reply = session.generate(max_tokens=3)
    ...     pieces = list(other.stream(max_tokens=3))
    >>> len(session) == 4 + len(reply.tokens), "".join(pieces) == reply.text
    (True, True)
    """

    def __init__(
        self, file: LoadedFile, inputs: Inputs | None = None, restore: str | Path | None = None
    ):
        self._file, self._decode = file, decode_of(file)
        self._lock = threading.Lock()
        self._turn = 0  # a stream ends when another call has changed the session
        self._tokens: list[int] = []
        self._given = GivenText()
        if restore is not None:
            if inputs is not None:
                raise ValueError("a restored session has its inputs: leave out `inputs`")
            smallest = next(iter(file.of_role(Decode).values()))
            saved = saved_session.read(restore, file.checksum, file.signatures, smallest)
            self._tokens = saved.tokens
            if saved.owed is not None:
                self._given = GivenText(len(self._tokens), saved.owed)
            self._steps = Steps(file.signatures, file.buffers, saved.known, 1)
            self._steps.restore(saved.entries, saved.states, saved.position)
            return
        known = known_of_row(file, {} if inputs is None else inputs)
        self._steps = Steps(file.signatures, file.buffers, known, 1)

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self._tokens)

    @property
    def tokens(self) -> np.ndarray:
        """(T,), int32, all tokens so far: what was appended, and what was generated."""
        return np.array(self._tokens, "int32")

    @property
    def text(self) -> str:
        """The text of `tokens`, without special tokens."""
        return self._tokenizer().decode(self._tokens)

    @property
    def remaining(self) -> int:
        """The number of tokens that still fit."""
        return self._decode.max_length - len(self._tokens)

    def append(self, text: str | Sequence[int] | np.ndarray) -> None:
        """Reads more tokens, in chunks of the exported prompt lengths.

        Args:
            text: str; or ids, (T,), integers. The first text of a session is a prompt: it begins
                with the file's start token, if there is one, and has the special tokens that the
                tokenizer puts first. Later texts get none.

        Raises:
            ValueError: more tokens than `remaining`, or ids outside the vocabulary; the model was
                closed.
            TypeError: neither a text nor integer ids.
            RuntimeError: another thread uses the session.
            ModuleNotFoundError: the package that reads the tokenizer is missing.
        """
        new = self._ids(text)
        with self._use():
            if len(new) > self.remaining:
                raise ValueError(
                    f"the session has {len(self._tokens)} tokens of at most "
                    f"{self._decode.max_length}, got {len(new)} more: rewind it, or begin "
                    "another"
                )
            self._turn += 1
            before = len(self._tokens)
            self._tokens += new
            try:
                with self._buffers() as steps:
                    self._read(steps)
            except BaseException:
                self._rewind(before)
                raise

    def generate(
        self,
        max_tokens: int | None = None,
        choose: Choose | Sampler | None = None,
        *,
        stop: str | Sequence[str] = (),
        constraint: Constraint | None = None,
    ) -> Reply:
        """Continues the text until an end token, a stop string or a limit.

        The session then has the generated tokens, too. It does not keep the end token, nor tokens
        that reach into a stop string.

        Args:
            max_tokens: int, the largest number of new tokens; default: as many as fit.
            choose: `Sampler`, or a function from logits (1, V), float32, to integer tokens (1,);
                default: the most probable token.
            stop: str, or several: the text ends before the first of them.
            constraint: `JsonSchema` or `Regex`: the text has this form; by default any.

        Raises:
            ValueError: nothing to continue; the session is full; `choose` returned a token outside
                the vocabulary; the model was closed; `max_tokens` is less than 1.
            TypeError: an argument has the wrong type.
            RuntimeError: another thread uses the session.
        """
        run = Run(max_tokens)
        with self._use():
            if self._has_tokenizer() or stop:
                text = "".join(self._texts(run, choose, stop, constraint))
            else:
                text = None
                for _ in self._generate(run, choose, constraint):
                    pass
            return Reply(text, np.array(self._tokens[run.first :], "int32"), run.ended)

    def stream(
        self,
        max_tokens: int | None = None,
        choose: Choose | Sampler | None = None,
        *,
        stop: str | Sequence[str] = (),
        constraint: Constraint | None = None,
    ) -> Iterator[str]:
        """Yields the text of `generate` piece by piece; arguments and errors as there.

        A stream may be left at any piece: the session has the tokens up to there, and the next call
        begins with the text that was not yielded, such as a character whose last bytes are missing.
        A stream cannot go on after another call has changed the session: it raises a RuntimeError.
        """
        return self._exclusively(self._texts(Run(max_tokens), choose, stop, constraint))

    def stream_tokens(
        self,
        max_tokens: int | None = None,
        choose: Choose | Sampler | None = None,
        *,
        constraint: Constraint | None = None,
    ) -> Iterator[int]:
        """Yields the tokens of `generate`, without the end token; needs no tokenizer."""
        return self._exclusively(self._generate(Run(max_tokens), choose, constraint))

    def rewind(self, count: int) -> None:
        """Removes the last `count` tokens.

        Nothing is read again, except by models with recurrent states: they read from the end of an
        earlier text on, when they continue.

        Raises:
            ValueError: the session has fewer tokens, or `count` is negative.
            TypeError: `count` is not an integer.
            RuntimeError: another thread uses the session.
        """
        check_integer("count", count, None)
        with self._use(run=False):
            if not 0 <= count <= len(self._tokens):
                raise ValueError(f"count must be in 0..{len(self._tokens)}, got {count}")
            self._turn += 1
            self._rewind(len(self._tokens) - count)
            self._given.rewind(len(self._tokens))

    def fork(self) -> Session:
        """An independent session with the same tokens, for instance for another thread.

        The two share the entries of the KV caches until one of them adds to its own.
        """
        with self._use(run=False):
            result = Session.__new__(Session)
            vars(result).update(vars(self))
            result._lock = threading.Lock()
            result._tokens, result._steps = list(self._tokens), self._steps.fork()
            result._given = copy.copy(self._given)
            return result

    def save(self, path: str | Path) -> None:
        """Writes tokens and KV caches to an .npz file, for `Model.session(restore=path)`.

        The file is written completely or not at all. It belongs to this .tflite file.
        """
        with self._use(run=False):
            owed = self._given.owed_characters(len(self._tokens))
            saved_session.write(path, self._file.checksum, self._tokens, owed, self._steps)

    @contextmanager
    def _use(self, run: bool = True) -> Iterator[None]:
        """For this thread alone and, to run signatures, with LiteRT's buffers."""
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                "the session is used by another thread, or by the call that `choose` answers: "
                "fork() it, one session per thread"
            )
        try:
            if run:
                _ = self._file.runners  # raises if the model was closed
                yield
            else:
                with self._file.lock:  # another session may take LiteRT's buffers, and their caches
                    yield
        finally:
            self._lock.release()

    @contextmanager
    def _buffers(self) -> Iterator[Steps]:
        """The steps, while no other thread runs the model."""
        with self._file.lock:
            self._file.take_caches(self._steps)
            _ = self._file.runners
            yield self._steps

    def _read(self, steps: Steps) -> None:
        """Reads all tokens but the last, which a step reads when its logits are needed."""
        end = len(self._tokens) - 1
        if steps.position < end:  # mostly not: then the tokens are not copied to an array
            steps.read(np.array([self._tokens], "int32"), end)

    def _rewind(self, length: int) -> None:
        del self._tokens[length:]
        self._steps.rewind(min(self._steps.position, length))

    def _exclusively(self, values: Generator[Value]) -> Iterator[Value]:
        """The values of a generator, each computed while this thread alone uses the session."""
        while True:
            with self._use():
                try:
                    value = next(values)
                except StopIteration:
                    return
            yield value

    def _generate(
        self, run: Run, choose: Choose | Sampler | None, constraint: Constraint | None
    ) -> Generator[int]:
        """Yields new tokens, which the session has by then."""
        if not self._tokens and self._decode.start_id is not None:
            self._tokens.append(self._decode.start_id)
        if not self._tokens:
            raise ValueError("the session is empty: append a prompt")
        if self.remaining < 1:
            raise ValueError(
                f"the session is full: it has {len(self._tokens)} tokens of at most "
                f"{self._decode.max_length}; rewind it, or begin another"
            )
        self._turn += 1
        turn, run.first = self._turn, len(self._tokens)
        next_token = chooser(choose, np.array([self._tokens]))
        ends = self._decode.end_ids
        allowed = begin(constraint, self._tokenizer, self._decode)
        while self.remaining and len(self._tokens) - run.first != run.max_tokens:
            mask = None if allowed is None else allowed.mask()
            if allowed is not None and mask is None:
                run.ended = "end"
                return
            # After an end token all tokens have been read, and the last is read again.
            self._steps.rewind(min(self._steps.position, len(self._tokens) - 1))
            with self._buffers() as steps:
                self._read(steps)
                logits = steps.decode(np.array([self._tokens[-1:]], "int32"))
            if mask is not None:
                logits = np.where(mask, logits, np.float32(-np.inf))
            ended = np.zeros(1, bool)
            (token,) = checked_tokens(next_token(logits), ended, logits.shape[-1], 0).tolist()
            if token in ends:
                run.ended = "end"
                return
            if allowed is not None:
                allowed.advance(token)
            self._tokens.append(token)
            yield token
            if turn != self._turn:
                raise RuntimeError("the session was changed since this stream began")
        run.ended = "max_tokens" if len(self._tokens) - run.first == run.max_tokens else "full"

    def _texts(
        self,
        run: Run,
        choose: Choose | Sampler | None,
        stop: str | Sequence[str],
        constraint: Constraint | None,
    ) -> Generator[str]:
        """Yields the text of new tokens up to a stop string."""
        tokenizer, stops = self._tokenizer(), checked_stops(stop)
        new = self._generate(run, choose, constraint)
        return self._given.stream(self._tokens, new, tokenizer, run, stops, self._rewind)

    def _ids(self, text: str | Sequence[int] | np.ndarray) -> list[int]:
        """The ids of a text or of ids, checked."""
        expected, target = prompt_input(self._decode), self._decode.target
        if not isinstance(text, str):
            rows = integer_rows(target, text, expected)
            if len(rows) != 1:
                raise ValueError(f"a session has one row, got {len(rows)}")
            return [int(i) for i in rows[0]]
        if self._tokens:
            return self._tokenizer().encode_more(text)
        ends = self._decode.end_ids
        return prompt_ids(self._tokenizer(), text, self._decode.start_id, ends, target)

    def _has_tokenizer(self) -> bool:
        return self._decode.target in self._file.manifest.tokenizers

    def _tokenizer(self) -> Tokenizer:
        return tokenizer_of(self._file, self._decode.target)
