"""Files that are stepped from outside: `stream`, and `generate` where no loop is inside."""

import functools
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from blocks import decoder_block
from keras import layers
from small_exports import MAX_LENGTH, QUESTIONS, SOURCE_LENGTH, new_path, small, small_tokens
from small_models import (
    BLOCK,
    DIM,
    SOURCES,
    START,
    TARGET_SIZE,
    AddStyle,
    decoder_only,
    embed,
    logits_of,
    randomize,
    unpadded,
)

from keras_tfm.export import export_tflite
from keras_tfm.generation import generate
from keras_tfm.runtime import load

END = 7
# What float32 rounds, of logits of order 1.
FLOAT32 = 1e-5
LONG = 200
PROMPTS = [[5, 8, 3], [4, 8, 3, 1, 12, 9], [9]]


@functools.cache
def translator():
    """`small(seed=6)`, three rows at once, of two source lengths, and no loop inside."""
    report = export_tflite(
        small(seed=6),
        new_path(),
        ["predict", "encode", "prefill", "decode"],
        source_length=[3, SOURCE_LENGTH],
        prompt_length=[2, 4],
        max_length=MAX_LENGTH,
        start_id=START,
        end_id=END,
        batch_size=3,
        verify=False,
    )
    return report.path


@functools.cache
def writer():
    """A decoder alone, of long texts: two capacities, a prefill, and the loop too."""
    roles = ["generate", "prefill", "decode"]
    options = {"prompt_length": 6, "max_length": LONG, "verify": False}
    return export_tflite(story(), new_path(), roles, **options).path


@functools.cache
def story():
    return decoder_only(num_layers=1)


def expected(questions=QUESTIONS):
    return small_tokens(seed=6, end_id=END)[: len(questions)]


def rows_of(stream):
    """(B, T) of the steps."""
    return np.stack(list(stream), axis=1)


def empty(model, name, rows=1):
    """The arguments of a step for the caches before the first token."""
    signature = model.signatures[name]
    return {
        key: np.zeros((rows, *spec["shape"][1:]), spec["dtype"])
        for key, spec in signature["inputs"].items()
        if key in signature["outputs"]
    }


# As generate in Keras


def test_without_a_loop_inside_generate_steps_from_outside():
    model = load(translator())
    assert "generate" not in model.signatures
    generated = model.generate(QUESTIONS)
    np.testing.assert_array_equal(generated.tokens, expected())
    assert generated.tokens.dtype == np.int32
    assert generated.scores is None


def test_whole_caches_are_handed_on():
    """As a host does that passes on what it got, and as the runtime's loop takes them."""
    options = {"source_length": SOURCE_LENGTH, "prompt_length": 3, "max_length": MAX_LENGTH}
    report = export_tflite(
        small(seed=6),
        new_path(),
        ["encode", "prefill", "decode"],
        start_id=START,
        whole_caches=True,
        **options,
    )
    assert report.verification is not None
    model = load(report.path)
    known = model.run("encode_5", SOURCES[:1])
    first = {"target": [[START, 5, 9]], "position": [0], **known, **empty(model, "decode")}
    cache = model.run("prefill_3", first)
    tokens = [START, 5, 9, 2]
    for position in (3, 4):
        step = {"target": [tokens[position:]], "position": [position], **known, **cache}
        cache = model.run("decode", step)
        logits = cache.pop("logits")
        wanted = logits_of(small(seed=6), SOURCES[:1], [tokens])[:, -1]
        np.testing.assert_allclose(logits, wanted, rtol=0.0, atol=FLOAT32)
        tokens.append(int(logits.argmax()))
    inputs = {"source": SOURCES[:1], "target": [tokens[:4]]}
    np.testing.assert_array_equal(model.generate(inputs).tokens[0, :6], tokens)


def test_a_step_of_three_rows_has_one_position():
    model = load(translator())
    known = model.run("encode_5", SOURCES[:2])
    caches = empty(model, "decode", rows=2)
    results = model.run("decode", {"target": [[START]] * 2, "position": [0], **known, **caches})
    wanted = logits_of(small(seed=6), SOURCES[:2], [[START]] * 2)[:, -1]
    np.testing.assert_allclose(results["logits"], wanted, rtol=0.0, atol=FLOAT32)


def test_shorter_sources_take_the_shorter_encoder(monkeypatch):
    model, taken = load(translator()), []
    run = model.file.run
    monkeypatch.setattr(model.file, "run", lambda name, x: (taken.append(name), run(name, x))[1])
    for row, tokens in zip(SOURCES, expected(), strict=False):
        np.testing.assert_array_equal(model.generate(unpadded(row)).tokens, [tokens])
    assert taken == ["encode_5", "encode_3", "encode_3", "encode_5"]


@pytest.mark.parametrize("prompt", [[START], [START, 5], [START, 5, 9], [1, 5, 9, 2, 4, 6, 3]])
def test_prompts_are_continued(prompt):
    """Read by no prefill, by one to its length and not, and by more steps than that."""
    model = load(translator())
    inputs = {"source": SOURCES[:3], "target": np.tile(np.array(prompt, "int32"), (3, 1))}
    wanted = generate(small(seed=6), inputs, MAX_LENGTH, end_id=END).tokens
    np.testing.assert_array_equal(model.generate(inputs).tokens, wanted)


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_a_stream_is_what_the_loop_inside_makes(prompt):
    model = load(writer())
    assert {"decode_128", f"decode_{LONG}", "generate"} <= model.signatures.keys()
    inside = model.generate({"tokens": [prompt]}).tokens
    assert len(set(inside[0, 100:].tolist())) > 3
    streamed = rows_of(model.stream({"tokens": [prompt]}))
    np.testing.assert_array_equal(streamed, inside[:, len(prompt) :])


def test_a_stream_yields_a_token_of_each_row_as_it_is_chosen():
    model = load(translator())
    steps = list(model.stream(SOURCES[:2]))
    assert all(step.shape == (2,) and step.dtype == np.int32 for step in steps)
    tokens = np.stack(steps, axis=1)
    wanted = expected()[:2, 1:]
    np.testing.assert_array_equal(tokens, wanted[:, : len(steps)])
    assert not wanted[:, len(steps) :].any()


def test_an_ended_row_gives_zeros_until_all_have_ended():
    tokens = expected()
    ends = [row.tolist().index(END) if END in row else MAX_LENGTH for row in tokens]
    early, late = int(np.argmin(ends)), int(np.argmax(ends))
    assert ends[early] < ends[late]
    model = load(translator())
    streamed = rows_of(model.stream(QUESTIONS[[early, late]]))
    assert streamed[0, ends[early] - 1] == END
    assert not streamed[0, ends[early] :].any()
    np.testing.assert_array_equal(streamed[1], tokens[late, 1:][: streamed.shape[1]])
    (alone,) = rows_of(load(translator()).stream(QUESTIONS[early]))
    assert len(alone) == ends[early]


def test_a_cache_of_weights_steps_alike(tmp_path):
    """LiteRT's CompiledModel takes copies of the caches."""
    model = load(translator(), weight_cache=tmp_path)
    np.testing.assert_array_equal(model.generate(QUESTIONS[:4]).tokens, expected()[:4])


# Choosing


def test_the_caller_may_choose():
    seen = []

    def second_best(logits):
        seen.append(logits.copy())
        return np.argsort(logits, axis=-1)[:, -2]

    model = load(translator())
    streamed = rows_of(model.stream(SOURCES[:3], choose=second_best))
    whole = np.concatenate([np.full((3, 1), START), streamed], axis=1)
    logits = logits_of(small(seed=6), SOURCES[:3], whole[:, :-1])
    assert seen[0].dtype == np.float32
    going = whole[:, :-1].astype(bool) & ~(whole[:, :-1] == END)
    for column, found in enumerate(seen):
        rows = going[:, : column + 1].all(axis=1)
        np.testing.assert_allclose(found[rows], logits[rows, column], rtol=0.0, atol=FLOAT32)
    best = np.argsort(logits, axis=-1)[:, :, -2]
    np.testing.assert_array_equal(streamed[going], best[going])


def test_logits_are_the_callers_to_keep():
    kept, copies = [], []

    def choose(logits):
        kept.append(logits)
        copies.append(logits.copy())
        return logits.argmax(axis=-1)

    list(load(translator()).stream(SOURCES[:3], choose))
    assert len(kept) > 2
    np.testing.assert_array_equal(kept, copies)


def test_what_chooses_may_ask_the_model():
    model, answers = load(translator()), []

    def choose(logits):
        inputs = {"source": SOURCES[1:2], "target": [[1, 2]]}
        answers.append(model.predict(inputs)["output"])
        return logits.argmax(axis=-1)

    streamed = rows_of(model.stream(SOURCES[:1], choose))
    np.testing.assert_array_equal(streamed, expected()[:1, 1 : 1 + streamed.shape[1]])
    assert len(answers) == streamed.shape[1]


@pytest.mark.parametrize("prompt", [1, 6, 7, 127, 128, 129, 190])
def test_logits_across_rooms_are_those_of_a_full_pass(prompt):
    """The caches of `decode_128` go on in `decode_200`, wherever the prompt ends."""
    model = load(writer())
    text = np.random.default_rng(prompt).integers(1, TARGET_SIZE, (1, LONG)).astype("int32")
    seen = []

    def forced(logits):
        seen.append(logits.copy())
        return text[:, prompt + len(seen) - 1]

    streamed = rows_of(model.stream({"tokens": text[:, :prompt]}, choose=forced))
    np.testing.assert_array_equal(streamed, text[:, prompt:])
    found, wanted = np.stack(seen, axis=1), logits_of(story(), text)[:, prompt - 1 : -1]
    np.testing.assert_allclose(found, wanted, rtol=0.0, atol=FLOAT32)


def test_a_text_begun_before_leaves_nothing_behind():
    """The caches are made anew, those of each capacity."""
    model = load(writer())
    first = rows_of(model.stream({"tokens": [PROMPTS[1]]}))
    rows_of(model.stream({"tokens": [[12] * 150]}))
    np.testing.assert_array_equal(rows_of(model.stream({"tokens": [PROMPTS[1]]})), first)


# Several at once


def test_two_streams_at_once_are_refused():
    model = load(translator())
    first, second = model.stream(SOURCES[0]), model.stream(SOURCES[1])
    np.testing.assert_array_equal(next(first), expected()[0, 1:2])
    np.testing.assert_array_equal(next(second), expected()[1, 1:2])
    with pytest.raises(RuntimeError, match=r"another stream has begun, .*: load it twice to"):
        next(first)
    rest = [int(tokens[0]) for tokens in second]
    assert rest == expected()[1, 2 : 2 + len(rest)].tolist()


def test_a_stream_goes_on_after_other_signatures_have_run():
    model = load(translator())
    tokens = []
    for step in model.stream(SOURCES[0]):
        tokens.append(int(step[0]))
        model.predict({"source": SOURCES[1:2], "target": [[1, 2]]})
        model.run("encode_5", SOURCES[2:3])
        known = {**model.run("encode_5", SOURCES[1:2]), **empty(model, "prefill_2")}
        model.run("prefill_2", {**known, "target": [[3, 4]], "position": [0]})
    assert tokens == expected()[0, 1 : 1 + len(tokens)].tolist()


def test_a_decode_between_two_steps_ends_a_stream():
    model = load(writer())
    stream = model.stream([3])
    next(stream)
    specs = model.signatures["decode_128"]["inputs"]
    model.run("decode_128", {x: np.zeros(y["shape"], y["dtype"]) for x, y in specs.items()})
    with pytest.raises(RuntimeError, match="'decode' has run, and one file has one set of caches"):
        next(stream)


def test_several_threads_generate_one_at_a_time():
    model = load(translator())
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(model.generate, [QUESTIONS[i : i + 4] for i in range(12)]))
    for i, answer in enumerate(answers):
        np.testing.assert_array_equal(answer.tokens, expected()[i : i + 4])


# An input that every step reads


@functools.cache
def styled(computed):
    """A style is added to every target position, either projected or as it is."""
    style = keras.Input((3 if computed else DIM,), name="style")
    target = keras.Input((None,), dtype="int32", name="target")
    x = embed(target, "target", TARGET_SIZE)
    x = AddStyle()(x, layers.Dense(DIM)(style) if computed else style)
    x = decoder_block(**BLOCK, cross_attention=False)(x)
    model = keras.Model({"style": style, "target": target}, layers.Dense(TARGET_SIZE)(x))
    options = {"max_length": 7, "start_id": START, "batch_size": 2, "verify": False}
    roles = ["encode", "decode"] if computed else ["decode"]
    return randomize(model, 3), export_tflite(model, new_path(), roles, **options).path


@pytest.mark.parametrize("computed", [True, False])
def test_a_style_is_read_by_every_step(computed):
    model, path = styled(computed)
    styles = np.random.default_rng(0).normal(size=(5, *model.inputs[0].shape[1:]))
    inputs = {"style": styles.astype("float32")}
    wanted = generate(model, inputs, 7, START).tokens
    assert len({tuple(row) for row in wanted.tolist()}) > 1
    np.testing.assert_array_equal(load(path).generate(inputs).tokens, wanted)


# Errors


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([[1] * 6], "source has 6 ids, but the file was exported for at most 5"),
        ([[11]], r"source: ids must be in 0\.\.10, got 11\.\.11"),
        ([[1]] * 4, "decodes at most 3 rows at once, got 4"),
        ([], "got no rows"),
        ({"sauce": [[1]]}, r"encode_3 takes the inputs \['source'\], got \['sauce'\]"),
        ({}, r"takes the inputs \['source'\], got \[\]"),
        ({"source": [[1]], "target": [[13]]}, r"target: ids must be in 0\.\.12, got 13\.\.13"),
        ({"source": [[1]], "target": [[]]}, "at least one token and fewer than max_length"),
        ({"source": [[1]], "target": [[1] * 9]}, r"fewer than max_length \(9\), got 9"),
        ({"source": [[1]], "target": [[1], [2]]}, "the same number of rows, got 1 and 2"),
    ],
)
def test_bad_inputs(inputs, message):
    model = load(translator())
    with pytest.raises(ValueError, match=message):
        list(model.stream(inputs))


@pytest.mark.parametrize("inputs", [[], {}, {"source": []}, {"sauce": [[1]]}])
def test_bad_inputs_of_generate(inputs):
    with pytest.raises(ValueError, match=r"got no rows|takes the inputs"):
        load(translator()).generate(inputs)


@functools.cache
def stepped_writer():
    """`writer`, with no loop inside."""
    options = {"max_length": 9, "verify": False}
    return export_tflite(story(), new_path(), ["decode"], **options).path


@pytest.mark.parametrize("path", [writer, stepped_writer])
@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ([], ValueError, "tokens: got no rows"),
        ({}, ValueError, "needs a prompt|takes the inputs|without a start_id: give 'tokens'"),
        ({"x": [[1]]}, ValueError, r"takes? the inputs .*'tokens'.*, got \['x'\]"),
        (3, TypeError, "tokens must be rows of ids, got int"),
        (None, TypeError, "tokens must be rows of ids, got NoneType"),
        ("a", TypeError, "tokens must be rows of ids, got str"),
        ([["a"]], TypeError, "tokens must be integer ids, got text"),
        ([[1, 2], 3], ValueError, r"tokens must have shape \(B, \d\), got a row of \(\)"),
        ([[]], ValueError, "a prompt must have"),
        ([[1] * (LONG + 1)], ValueError, "a prompt must have .*got .*201"),
    ],
)
def test_bad_prompts_of_generate(path, inputs, error, message):
    with pytest.raises(error, match=message):
        load(path()).generate(inputs)


@pytest.mark.parametrize(
    ("chosen", "error", "message"),
    [
        ([[1]], TypeError, r"integer tokens of shape \(1,\), got int64 \(1, 1\)"),
        ([1, 2], TypeError, r"integer tokens of shape \(1,\), got int64 \(2,\)"),
        ([1.0], TypeError, r"integer tokens of shape \(1,\), got float64 \(1,\)"),
        (None, TypeError, r"integer tokens of shape \(1,\), got NoneType"),
        ("a", TypeError, r"integer tokens of shape \(1,\), got str"),
        ([TARGET_SIZE], ValueError, r"tokens in 0\.\.12, got \[13\]"),
        ([-1], ValueError, r"tokens in 0\.\.12, got \[-1\]"),
    ],
)
def test_what_is_chosen_must_be_tokens(chosen, error, message):
    with pytest.raises(error, match=f"choose must return {message}"):
        next(load(stepped_writer()).stream([[1]], lambda logits: chosen))


def test_prompts_stepped_together_have_one_length():
    inputs = {"source": SOURCES[:2], "target": [[1, 5], [1]]}
    message = r"target: prompts that are stepped together must have one length, got \[1, 2\]"
    with pytest.raises(ValueError, match=message):
        list(load(translator()).stream(inputs))


@pytest.mark.parametrize("rows", [1, 3])
def test_sources_are_as_many_as_prompts(rows):
    """A smaller batch is filled up; that must not hide it."""
    inputs, model = {"source": SOURCES[:rows], "target": [[1, 5], [1, 6]]}, load(translator())
    with pytest.raises(ValueError, match=f"the same number of rows, got {rows} and 2"):
        list(model.stream(inputs))
    message = f"the same number of rows, got .*'source': {rows}, 'target': 2"
    with pytest.raises(ValueError, match=message):
        model.generate(inputs)


def test_a_file_without_a_start_token_needs_a_prompt():
    with pytest.raises(ValueError, match="exported without a start_id: give 'tokens'"):
        next(load(writer()).stream({}))


@pytest.mark.parametrize(
    ("computed", "inputs", "message"),
    [
        (False, {}, r"the steps take the inputs \['style'\] and 'target', got \[\]"),
        (False, {"target": [[1]]}, r"the steps take the inputs \['style'\] and 'target', got \[\]"),
        (False, {"style": [[1.0] * DIM], "tone": [[1]]}, r"got \['style', 'tone'\]"),
        (False, {"style": [[1.0] * 2]}, rf"style must have shape \(B, {DIM}\), got \(1, 2\)"),
        (True, {"target": [[1]]}, r"encode takes the inputs \['style'\], got \[\]"),
        (True, {"style": [[1.0] * 3], "tone": [[1]]}, r"\['style'\], got \['style', 'tone'\]"),
        (True, {"style": [[1.0] * 2]}, r"style must have shape \(B, 3\), got \(1, 2\)"),
    ],
)
def test_an_input_is_neither_missing_nor_ignored(computed, inputs, message):
    with pytest.raises(ValueError, match=message):
        list(load(styled(computed)[1]).stream(inputs))


def test_a_file_that_cannot_be_stepped():
    x = keras.Input((4,), name="x")
    model = keras.Model(x, layers.Dense(3)(x))
    file = load(export_tflite(model, new_path(), verify=False).path)
    with pytest.raises(ValueError, match=r"has no signature 'decode', it has \['predict'\]"):
        next(file.stream([[1]]))
    with pytest.raises(ValueError, match=r"has no signature 'generate', it has \['predict'\]"):
        file.generate([[1]])
