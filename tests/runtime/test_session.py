"""Sessions: tokens and KV caches that are kept between calls."""

import lzma
import pickle
import re
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
from small_exports import MAX_LENGTH, SOURCE_LENGTH, folder, new_path, small
from small_models import SOURCES, START, logits_of
from small_tokenizers import CORPUS, byte_pairs
from small_writers import END, LENGTH, SIZE, ids, story, written
from traced_memory import at_most

from keras_tfm.export import export_tflite
from keras_tfm.runtime import Reply, load

# What float32 rounds, of logits of order 1, in two layers.
FLOAT32 = 1e-4
TEXT = CORPUS[0]


class Forced:
    """Chooses given tokens, and keeps the logits."""

    def __init__(self, tokens):
        self.tokens, self.logits = [int(i) for i in tokens], []

    def __call__(self, logits):
        self.logits.append(logits)
        return np.array([self.tokens[len(self.logits) - 1]])


def logits_after(session, count=2):
    """The logits of the next tokens, with a session that stays as it was."""
    forced = Forced([5, 9, 8, 4][:count])
    fork = session.fork()
    assert list(fork.stream_tokens(count, forced)) == forced.tokens
    return np.stack([x[0] for x in forced.logits]), [*session.tokens.tolist(), *forced.tokens]


def check(session, model):
    """The next logits are those of one full pass."""
    found, tokens = logits_after(session)
    expected = logits_of(model, [tokens])[0, -3:-1]
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=FLOAT32)


# Chunks


@pytest.mark.parametrize(
    "sizes",
    [[1], [2], [21], [27, 1], [6, 6, 1, 20, 3], [70, 69], [126, 3], [150, 47], [197], [198]],
)
@pytest.mark.parametrize("window", [None, 7])
def test_tokens_in_chunks_equal_one_pass(sizes, window):
    """Padded last chunks, chunks across two capacities, and those that end at the last position."""
    session = load(written(window)).session()
    tokens = ids(sum(sizes))
    for part in np.split(tokens, np.cumsum(sizes)[:-1]):
        session.append(part)
    np.testing.assert_array_equal(session.tokens, tokens)
    check(session, story(window))


@pytest.mark.parametrize(
    "prompt_length", [None, 160, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 128))]
)
def test_other_lengths_of_prompts(prompt_length):
    """None: token by token. The longest read some tokens again at the end."""
    session = load(written(prompt_length=prompt_length)).session()
    for count in (3, 80, 100):
        session.append(ids(count, seed=count))
    check(session, story())


def test_chunks_are_read_by_prefills(monkeypatch):
    """Each token once: as few runs as the lengths allow, except at the last position."""
    model = load(written())
    session, runs = model.session(), []
    buffers = model.file.buffers
    monkeypatch.setattr(model.file, "buffers", lambda name: Counted(buffers(name), name, runs))
    session = model.session()
    session.append(ids(47))
    assert runs == ["prefill_20_128", "prefill_20_128", "prefill_6_128"]
    runs.clear()
    session.append(ids(86))
    assert runs == ["prefill_20_128"] * 4 + ["prefill_6_200"]
    runs.clear()
    list(session.stream_tokens(2, Forced([5, 6])))
    assert runs == ["decode_200"] * 2


class Counted:
    def __init__(self, buffers, name, runs):
        self.buffers, self.name, self.runs = buffers, name, runs
        self.inputs, self.version = buffers.inputs, buffers.version

    def run(self):
        self.runs.append(self.name)
        return self.buffers.run()


@pytest.mark.parametrize(
    "options",
    [{"whole_caches": True}, pytest.param({"batch_size": 2}, marks=pytest.mark.slow)],
    ids=str,
)
def test_other_files(options):
    session = load(written(**options)).session()
    for count in (3, 80, 100):
        session.append(ids(count, seed=count))
    check(session, story())


def test_a_weight_cache(tmp_path):
    """LiteRT's CompiledModel takes copies of the caches."""
    session = load(written(), weight_cache=tmp_path).session()
    for count in (3, 80, 60):
        session.append(ids(count, seed=count))
    check(session, story())


def test_a_file_of_format_1_is_read_token_by_token(tmp_path):
    """Its prefill begins at position 0."""
    path = tmp_path / "model.tflite"
    golden = Path(__file__).parents[1] / "golden/format_1.tflite.xz"
    path.write_bytes(lzma.decompress(golden.read_bytes()))
    model = load(path)
    source = [[3, 4, 5]]
    for sizes in ([3], [1, 2], [2, 1]):
        session = model.session({"source": source})
        for part in np.split([1, 5, 3], np.cumsum(sizes)[:-1]):
            session.append(part)
        tokens = list(session.stream_tokens())
        streamed = [int(x[0]) for x in model.stream({"source": source, "target": [[1, 5, 3]]})]
        assert tokens == streamed[: len(tokens)]
        assert len(tokens) >= len(streamed) - 1


@pytest.mark.slow
def test_ten_thousand_tokens_equal_one_pass():
    """Appended in chunks of odd sizes, with a sliding window: float32, 1e-4."""
    path = written(100, 10_016, prompt_length=(64, 512), tokenizer=None)
    tokens, session = ids(10_000), load(path).session()
    for part in np.split(tokens, [1, 700, 701, 2_050, 6_161, 9_998]):
        session.append(part)
    found, tokens = logits_after(session)
    # Eagerly, of a known length: attention in blocks, which has no 10,000 x 10,000 scores.
    expected = np.asarray(story(100)(np.array([tokens])))[0, -3:-1]
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=FLOAT32)


def test_a_model_with_a_source():
    report = export_tflite(
        small(seed=6),
        new_path(),
        ["encode", "prefill", "decode"],
        source_length=SOURCE_LENGTH,
        prompt_length=2,
        max_length=MAX_LENGTH,
        start_id=START,
        batch_size=3,
    )
    model = load(report.path)
    streamed = [int(x[0]) for x in model.stream(SOURCES[1:2])]
    session = model.session(SOURCES[1:2])
    assert list(session.stream_tokens(3)) == streamed[:3]
    session.save(folder() / "source.npz")
    assert list(model.session(restore=folder() / "source.npz").stream_tokens()) == streamed[3:]
    assert session.generate().tokens.tolist() == streamed[3:]
    assert session.tokens.tolist() == [START, *streamed]
    with pytest.raises(ValueError, match="a session has one row, got 2"):
        model.session(SOURCES[:2])
    with pytest.raises(ValueError, match="encode_5 takes the inputs"):
        model.session()


# Fork, rewind, save


def fresh(model, tokens):
    session = model.session()
    session.append(tokens)
    return session


def same(session, model):
    found, _ = logits_after(session, 4)
    expected, _ = logits_after(fresh(model, session.tokens), 4)
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=FLOAT32)


def test_a_fork_goes_its_own_way():
    model = load(written())
    session = fresh(model, ids(50))
    fork = session.fork()
    session.append(ids(9, seed=1))
    fork.append(ids(90, seed=2))
    second = fork.fork()
    list(second.stream_tokens(5, Forced([7, 8, 9, 10, 11])))
    fork.append(ids(3, seed=3))
    for one, tokens in {
        session: [*ids(50), *ids(9, seed=1)],
        fork: [*ids(50), *ids(90, seed=2), *ids(3, seed=3)],
        second: [*ids(50), *ids(90, seed=2), 7, 8, 9, 10, 11],
    }.items():
        np.testing.assert_array_equal(one.tokens, tokens)
        same(one, model)


@pytest.mark.parametrize("count", [0, 1, 2, 30, 140, 149, 150])
def test_a_rewound_session_is_a_shorter_one(count):
    model = load(written())
    session = fresh(model, ids(145))
    list(session.stream_tokens(5, Forced([7, 8, 9, 10, 11])))
    session.rewind(count)
    assert len(session) == 150 - count
    session.append(ids(7, seed=1))
    same(session, model)


def test_sessions_take_turns():
    """Each switch takes LiteRT's buffers, and no token is read again."""
    model = load(written())
    first, second = fresh(model, ids(30)), fresh(model, ids(140, seed=1))
    for i in range(3):
        first.append(ids(4, seed=i))
        second.append(ids(11, seed=i))
    same(first, model)
    same(second, model)
    stream = model.stream([[4, 5]])
    next(stream)
    same(first, model)
    with pytest.raises(RuntimeError, match="another stream has begun"):
        next(stream)


def test_a_saved_session_goes_on(tmp_path):
    model, path = load(written()), tmp_path / "session"
    session = fresh(model, ids(40))
    session.generate(3)
    session.save(path)
    restored = load(written()).session(restore=path)
    np.testing.assert_array_equal(restored.tokens, session.tokens)
    same(restored, model)
    restored.append(ids(100))
    same(restored, model)
    model.session().save(path)
    assert [x.name for x in tmp_path.iterdir()] == ["session"]
    assert len(model.session(restore=path)) == 0


def test_another_file_is_not_replaced(tmp_path):
    model = load(written())
    for name, content in (("model.tflite", Path(written()).read_bytes()), ("x.zip", b"PK\x03\x04")):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(FileExistsError, match="it exists and is not a saved session"):
            model.session().save(path)
        assert path.read_bytes() == content
    (tmp_path / "empty").touch()  # `tempfile` creates those
    model.session().save(tmp_path / "empty")


def test_other_files_are_no_saved_sessions(tmp_path):
    model, path = load(written()), tmp_path / "session.npz"
    with pytest.raises(FileNotFoundError, match="no such file"):
        model.session(restore=path)
    path.write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match="is not a saved session"):
        model.session(restore=path)
    path.write_bytes(pickle.dumps([1]))
    with pytest.raises(ValueError, match=r"is not a saved session \([^\n]*\)$"):
        model.session(restore=path)
    np.savez(path, tokens=[1])
    with pytest.raises(ValueError, match="is not a session that this version"):
        model.session(restore=path)
    path.unlink()
    fresh(model, ids(30)).save(path)
    with pytest.raises(ValueError, match="was saved with another file: expected the checksum"):
        load(written(7)).session(restore=path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is not a saved session"):
        model.session(restore=path)
    path.write_bytes(whole)
    with np.load(path) as loaded:
        arrays = dict(loaded)
    entry = next(x for x in arrays if x.startswith("entry/"))
    for name, wrong in {
        "tokens": arrays["tokens"] + SIZE,
        entry: arrays[entry][:, :1],
        next(reversed(arrays)): arrays[entry][:, :, :3],
    }.items():
        np.savez(path, **{**arrays, name: wrong})
        with pytest.raises(ValueError, match="is damaged: its tokens and caches are not"):
            model.session(restore=path)


def test_a_saved_session_is_looked_at_before_it_is_unpacked(tmp_path):
    """3 MB could become 3 GB: names, shapes and dtypes are compared first."""
    model, path, large = load(written()), tmp_path / "session.npz", 1 << 26
    fresh(model, ids(30)).save(path)
    with np.load(path) as loaded:
        arrays = dict(loaded)
    np.savez_compressed(path, **arrays)  # which is allowed
    same(model.session(restore=path), model)
    entry = next(x for x in arrays if x.startswith("entry/"))
    flat = np.zeros(large, "uint8")
    for changed in (
        {"known/x": flat},
        {"tokens": flat},
        {"owed": flat},
        {entry: flat},
        {entry: np.zeros((1, *arrays[entry].shape[1:-1], large // 64), "float32")},
    ):
        lies = {**arrays, **changed}
        for some in (lies, {x: y for x, y in lies.items() if x not in ("sha256", entry)}):
            np.savez_compressed(path, **some)
            with at_most(8e6):
                try:
                    model.session(restore=path)
                except ValueError as error:
                    assert re.search("is damaged|is not a session", str(error)), error
                else:
                    assert "known/x" in changed  # no signature reads it
    for name in ("version", "sha256"):
        np.savez_compressed(path, **{**arrays, name: flat})
        with pytest.raises(ValueError, match="is not a session that this version"):
            model.session(restore=path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_caches_that_are_not_finite_are_refused(tmp_path, value):
    """Their logits are NaN, of which the most probable token is 0."""
    model, path = load(written()), tmp_path / "session.npz"
    fresh(model, ids(30)).save(path)
    with np.load(path) as loaded:
        arrays = dict(loaded)
    entry = next(x for x, y in arrays.items() if x.startswith("entry/") and y.dtype.kind == "f")
    arrays[entry].flat[-1] = value
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=f"{entry} has values that are not finite"):
        model.session(restore=path)


# Text


def test_text_is_continued_as_in_one_call():
    model = load(written())
    session = model.session()
    session.append(TEXT)
    whole = model.generate_text(TEXT)
    assert session.text == TEXT
    pieces = list(session.fork().stream())
    reply = session.generate()
    assert isinstance(reply, Reply)
    assert TEXT + reply.text == whole == TEXT + "".join(pieces) == session.text
    assert reply.ended == ("full" if session.remaining == 0 else "end")
    assert END not in session.tokens


def test_later_texts_get_no_special_tokens():
    from tokenizers import processors

    tokenizer = byte_pairs().from_str(byte_pairs().to_str())
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    session = load(written(tokenizer=tokenizer)).session()
    session.append("hello")
    session.append(" <s>world")
    session.append("")
    plain = [byte_pairs().encode(x).ids for x in ("hello", " <s>world")]
    assert session.tokens.tolist() == [1, *plain[0], *plain[1]]


def test_limits():
    session = fresh(load(written()), ids(10))
    reply = session.generate(4)
    assert len(reply.tokens) == 4
    assert reply.ended == "max_tokens"
    session.append(ids(session.remaining - 1))
    assert session.generate(choose=lambda x: [9]).ended == "full"
    session.rewind(5)
    assert session.generate(choose=lambda x: [END]) == ("", pytest.approx([]), "end")
    assert len(session) == LENGTH - 5
    check_end = session.generate(2, choose=Forced([END]))  # again: the last token is read again
    assert check_end.ended == "end"


@pytest.mark.parametrize(
    "stop", ["world", ["xyz", "orld, this"], ["o w", "world"], "h", [",", ", t"]]
)
def test_a_stop_string_ends_the_text_before_it(stop):
    session = load(written()).session()
    session.append("ü")
    forced = byte_pairs().encode(TEXT).ids
    stops = [stop] if isinstance(stop, str) else stop
    expected = TEXT[: min(TEXT.find(x) for x in stops if x in TEXT)]
    pieces = list(session.fork().stream(choose=Forced(forced), stop=stop))
    reply = session.generate(choose=Forced(forced), stop=stop)
    assert reply.text == "".join(pieces) == expected
    assert reply.ended == "stop"
    kept = byte_pairs().decode(reply.tokens.tolist())
    assert expected.startswith(kept)
    # The next token would have reached into the stop string.
    assert len(byte_pairs().decode(forced[: len(reply.tokens) + 1])) > len(expected)
    assert session.tokens.tolist() == [*byte_pairs().encode("ü").ids, *reply.tokens]
    check(session, story())


def test_a_stop_string_that_does_not_come():
    session = load(written()).session()
    session.append("ü")
    forced = byte_pairs().encode(TEXT).ids
    reply = session.generate(len(forced), Forced(forced), stop=["1x", "number 1 "])
    assert reply.text == TEXT
    assert reply.ended == "max_tokens"


class Next:
    """Chooses the tokens of a text and the end, over several calls."""

    def __init__(self, text):
        self.tokens = iter([*byte_pairs().encode(text).ids, END])

    def __call__(self, logits):
        return [next(self.tokens)]


@pytest.mark.parametrize("text", ["東京は日本の首都です。", "Schön, 5 € für Müller", "ok 👍 done"])
def test_a_session_is_continued_within_a_character(text, tmp_path):
    """By calls, streams that are left, a fork, and a session that was saved."""
    model = load(written())
    for step in (1, 2, 3, 7):
        session, choose, said = model.session(), Next(text), ""
        session.append("hello")
        while True:
            reply = session.generate(step, choose)
            said += reply.text
            if reply.ended == "end":
                break
            if step == 2:
                session = session.fork()
            if step == 3:
                session.save(tmp_path / "session.npz")
                session = model.session(restore=tmp_path / "session.npz")
        assert said == text
        assert session.text == "hello" + text
    session, choose, said = model.session(), Next(text), ""
    session.append("hello")
    while (piece := next(session.stream(choose=choose, stop="k\0"), None)) is not None:
        said += piece
    assert said == text


def test_text_that_is_not_owed():
    """After other tokens, after `stream_tokens`, after a rewind."""
    model = load(written())
    ids = byte_pairs().encode("東京").ids
    assert len(ids) > 4
    session, choose = model.session(), Next("東京東京")
    session.append("a")
    assert session.generate(2, choose).text == ""
    session.append("b")  # the bytes stay in the session, but are no text any more
    assert session.text.startswith("a\ufffd")
    assert session.generate(3, lambda logits: byte_pairs().encode("c").ids[:1]).text == "ccc"
    session.rewind(len(session))
    session.append("a")
    choose = Next("東京東京")
    list(session.stream_tokens(2, choose))
    assert session.generate(len(ids) - 2, choose).text == "東京"
    session.generate(2, choose)
    session.rewind(2)
    assert session.generate(2, Next("dd")).text == "dd"


def test_the_end_of_a_full_session_gives_what_there_is():
    session = load(written()).session()
    session.append([5] * (LENGTH - 2))
    reply = session.generate(choose=Next("東京"))
    assert reply.ended == "full"
    assert reply.text == "\ufffd"


def test_older_saved_sessions_are_read(tmp_path):
    model = load(written())
    session = model.session()
    session.append("a")
    choose = Next("東京")
    session.generate(1, choose)
    session.save(tmp_path / "new.npz")
    with np.load(tmp_path / "new.npz") as loaded:
        arrays = dict(loaded)
    assert arrays.pop("owed") == 0
    np.savez(tmp_path / "old.npz", **arrays)
    restored = model.session(restore=tmp_path / "old.npz")
    assert "".join(restored.stream(choose=choose)) == "東京"
    for wrong in (0.5, [1], "a"):
        np.savez(tmp_path / "wrong.npz", **arrays, owed=np.array(wrong))
        with pytest.raises(ValueError, match="is damaged"):
            model.session(restore=tmp_path / "wrong.npz")


def test_a_file_without_a_tokenizer():
    session = load(written(tokenizer=None)).session()
    session.append([4, 5])
    reply = session.generate(3)
    assert reply.text is None
    assert session.tokens.tolist() == [4, 5, *reply.tokens]
    for call in (
        lambda: session.append("a"),
        lambda: next(session.stream()),
        lambda: session.generate(3, stop="a"),
        lambda: session.text,
    ):
        with pytest.raises(ValueError, match="has no tokenizer for 'tokens'"):
            call()
    check(session, story())


# Errors: the session can be used on


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: x.append(ids(191)), ValueError, "has 10 tokens of at most 200, got 191 more"),
        (lambda x: x.append([SIZE]), ValueError, r"tokens: ids must be in 0\.\.299"),
        (lambda x: x.append([[1], [2]]), ValueError, "a session has one row, got 2"),
        (lambda x: x.append(3), TypeError, "tokens must be rows of ids, got int"),
        (lambda x: x.append("\ud800"), ValueError, "is not Unicode text"),
        (lambda x: x.rewind(11), ValueError, r"count must be in 0\.\.10, got 11"),
        (lambda x: x.rewind(-1), ValueError, r"count must be in 0\.\.10, got -1"),
        (lambda x: x.rewind(1.0), TypeError, "integer"),
        (lambda x: x.generate(0), ValueError, "max_tokens must be at least 1, got 0"),
        (lambda x: x.generate("a"), TypeError, "integer"),
        (lambda x: x.generate(choose=3), TypeError, "choose must be a Sampler or a function"),
        (lambda x: x.generate(choose=lambda y: [SIZE]), ValueError, r"tokens in 0\.\.299"),
        (lambda x: x.generate(choose=lambda y: [1, 2]), TypeError, "integer tokens of shape"),
        (lambda x: x.generate(stop=[""]), TypeError, "stop must be texts"),
        (lambda x: x.generate(stop=3), TypeError, "stop must be texts"),
        (lambda x: x.generate(stop=[3]), TypeError, "stop must be texts"),
        (lambda x: x.generate(choose=lambda y: x.append([1])), RuntimeError, "`choose` answers"),
        (lambda x: x.save("/nowhere/x.npz"), FileNotFoundError, "nowhere"),
    ],
)
def test_an_error_leaves_the_session_as_it_was(call, error, message):
    session = fresh(load(written()), ids(10))
    with pytest.raises(error, match=message) as caught:
        call(session)
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(session.tokens, ids(10))
    check(session, story())


def test_an_empty_and_a_full_session():
    session = load(written()).session()
    with pytest.raises(ValueError, match="the session is empty: append a prompt"):
        session.generate()
    session.append(ids(200))
    assert session.remaining == 0
    for call in (session.generate, lambda: next(session.stream())):
        with pytest.raises(ValueError, match="is full: it has 200 tokens of at most 200"):
            call()
    session.rewind(2)
    check(session, story())


def test_an_interrupted_append_adds_nothing(monkeypatch):
    model = load(written())
    session = fresh(model, ids(10))
    buffers = model.file.buffers

    class Interrupted(Counted):
        def run(self):
            if len(self.runs) == 3:
                raise KeyboardInterrupt
            return super().run()

    runs = []
    with monkeypatch.context() as patch:
        patch.setattr(session._steps, "_buffers", lambda x: Interrupted(buffers(x), x, runs))
        with pytest.raises(KeyboardInterrupt):
            session.append(ids(100))
    assert len(runs) == 3
    np.testing.assert_array_equal(session.tokens, ids(10))
    check(session, story())


def test_a_session_in_two_threads():
    session = fresh(load(written()), ids(10))
    inside, go_on, errors = threading.Event(), threading.Event(), []

    def choose(logits):
        inside.set()
        assert go_on.wait(20)
        return logits.argmax(axis=-1)

    thread = threading.Thread(target=session.generate, args=(3, choose))
    thread.start()
    assert inside.wait(20)
    for call in (
        lambda: session.append([4]), session.generate, session.fork, lambda: session.rewind(1),
        lambda: next(session.stream_tokens()), lambda: session.save(folder() / "x"),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match="is used by another thread") as caught:
            call()
        errors.append(caught)
    go_on.set()
    thread.join()
    assert len(session) == 13
    check(session, story())


def test_sessions_of_one_file_in_four_threads():
    model = load(written())
    sessions = [fresh(model, ids(20, seed=i)) for i in range(4)]

    def run(session):
        for i in range(5):
            session.append(ids(7, seed=i))
            session.generate(2)

    threads = [threading.Thread(target=run, args=(x,)) for x in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, session in enumerate(sessions):
        alone = fresh(model, ids(20, seed=i))
        run(alone)
        np.testing.assert_array_equal(session.tokens, alone.tokens)


def test_a_stream_ends_when_the_session_goes_another_way():
    session = fresh(load(written()), ids(10))
    stream = session.stream_tokens(10)
    next(stream)
    session.append([4])
    with pytest.raises(RuntimeError, match="the session was changed since this stream began"):
        next(stream)
    for token in session.stream_tokens():
        if token:
            break
    assert len(session) == 13
    check(session, story())


def test_a_closed_model():
    model = load(written())
    session = fresh(model, ids(10))
    stream = session.stream_tokens()
    next(stream)
    model.close()
    for call in (lambda: next(stream), lambda: session.append([4]), session.generate):
        with pytest.raises(ValueError, match="the model was closed"):
            call()
    assert len(session) == 11
    session.save(folder() / "closed.npz")
    restored = load(written()).session(restore=folder() / "closed.npz")
    np.testing.assert_array_equal(restored.tokens, session.tokens)
    check(restored, story())


def test_a_file_without_decode():
    x = keras.Input((4,), name="x")
    model = load(
        export_tflite(keras.Model(x, keras.layers.Dense(3)(x)), new_path(), verify=False).path
    )
    with pytest.raises(ValueError, match="has no signature 'decode'"):
        model.session()
