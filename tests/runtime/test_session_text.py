"""The text of a session, over the borders of its calls."""

import os

import numpy as np
import pytest
from small_tokenizers import CORPUS, KINDS, tokenizer_of

from keras_tfm.runtime.tasks.session_text import GivenText, Run

TEXTS = ["東京は日本の首都です。", "Schön, 5 € für Müller", "ok 👍 done", "no  spaces\n at  all"]


class Scripted:
    """A session that is going to have given tokens; `said` is the text that calls gave."""

    def __init__(self, tokenizer, tokens, before=()):
        self.tokenizer, self.new, self.tokens = tokenizer, list(tokens), list(before)
        self.given, self.said, self.run = GivenText(), "", Run(None)

    def generated(self, run):
        run.first = len(self.tokens)
        while len(self.tokens) - run.first != run.max_tokens:
            if not self.new:
                run.ended = "end"
                return
            self.tokens.append(self.new.pop(0))
            yield self.tokens[-1]
        run.ended = "max_tokens"

    def rewind(self, length):
        del self.tokens[length:]

    def stream(self, max_tokens=None, stop=()):
        self.run = Run(max_tokens)
        new = self.generated(self.run)
        return self.given.stream(self.tokens, new, self.tokenizer, self.run, stop, self.rewind)

    def generate(self, max_tokens=None):
        self.said += "".join(self.stream(max_tokens))

    def leave(self, count, stop=()):
        """A stream of which `count` pieces are taken."""
        for _, piece in zip(range(count), self.stream(stop=stop), strict=False):
            self.said += piece


@pytest.mark.parametrize("kind", KINDS)
def test_calls_join_to_the_whole(kind):
    """Of texts, and of tokens as no tokenizer writes them; after 0, 20 special and 40 tokens."""
    tokenizer, generator = tokenizer_of(kind), np.random.default_rng(1)
    rows = [tokenizer.encode(text) for text in (*TEXTS, *CORPUS[:4])]
    rows += generator.integers(0, tokenizer.size, (40, 23)).tolist()
    for i, row in enumerate(rows):
        before = [[], [2] * 20, generator.integers(0, tokenizer.size, 40).tolist()][i % 3]
        session = Scripted(tokenizer, row, before)
        while session.run.ended != "end":
            if generator.integers(2):
                session.generate(int(generator.integers(1, 5)))
            else:  # text that may begin a stop string is held back
                session.leave(int(generator.integers(1, 4)), [x + "\U0010ffff" for x in "は n世"])
        whole, known = tokenizer.decode(session.tokens), tokenizer.decode(before)
        assert session.tokens == [*before, *row]
        shared = os.path.commonprefix([known, whole])  # noqa: RUF071
        assert shared + session.said == whole
        # Bytes at the end of `before` may be a character now.
        assert known.removeprefix(shared).strip("\ufffd") == ""


@pytest.mark.parametrize("kind", ["byte pairs", "byte fallback", "bpe"])
def test_a_call_gives_complete_characters(kind):
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode("a東b")
    session, said = Scripted(tokenizer, ids), []
    for length in range(1, len(ids) + 1):
        session.generate(1)
        said.append(session.said)
        assert session.said == tokenizer.decode(ids[:length]).rstrip("\ufffd")
    assert said[-1] == "a東b"
    assert len(set(said)) < len(said)  # calls that complete no character


@pytest.mark.parametrize("kind", ["byte pairs", "byte fallback", "bpe"])
def test_an_end_within_a_character_gives_what_there_is(kind):
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode("x東")
    for cut in (1, 2):
        session = Scripted(tokenizer, ids[:-cut])
        session.generate(len(ids) - cut)
        assert session.said == "x"
        session.generate()
        assert session.run.ended == "end"
        assert session.said == tokenizer.decode(session.tokens)
        assert session.said.startswith("x\ufffd")
        # If the caller goes on nevertheless, the character comes.
        session.new = ids[-cut:]
        session.generate()
        assert session.said.replace("\ufffd", "") == tokenizer.decode(ids) == "x東"


def test_a_replacement_character_in_a_text_is_a_character():
    tokenizer = tokenizer_of("byte pairs")
    before, new = tokenizer.encode("a\ufffd"), tokenizer.encode("\ufffdb\ufffd")
    for step in (1, 2, 9):
        session = Scripted(tokenizer, new, before)
        while session.run.ended != "end":
            session.generate(step)
        assert session.said == "\ufffdb\ufffd"


def test_a_stop_string_over_two_calls():
    """Of a stream that was left; tokens that reach into it are not kept, whose ever they are."""
    tokenizer = tokenizer_of("byte pairs")
    new = tokenizer.encode("ab##")
    session = Scripted(tokenizer, new, tokenizer.encode("x"))
    session.leave(2, ["##"])
    assert (session.said, tokenizer.decode(session.tokens)) == ("ab", "xab")
    stream = session.stream(1, ["#", "##"])
    assert list(stream) == []
    assert session.run.ended == "stop"
    assert tokenizer.decode(session.tokens) == "xab"
    held = Scripted(tokenizer, tokenizer.encode("ab#c##"), tokenizer.encode("x"))
    held.new = [*tokenizer.encode("ab#"), *tokenizer.encode("c##")]
    held.leave(1, ["b#\0"])
    assert held.said == "a"
    held.said += "".join(held.stream(None, ["##"]))
    assert (held.said, tokenizer.decode(held.tokens)) == ("ab#c", "xab#c")
