"""examples/web in headless Chromium: the page, and model.js with the recipes' files and others.

Of float32 files the same tokens are asked for as Python's runtime gives. Of int8 files, since the
kernels of WebAssembly round differently and tokens may be nearly tied, most of them.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import dates_data as data
import numpy as np
import pytest
from blocks import decoder_block
from web_pages import WEB, answers_of, need_browser, run_in_browser

from keras_tfm import runtime

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module", autouse=True)
def chromium():
    """All tests here need it, and Node."""
    need_browser()


def test_the_page_answers_as_python_does(tmp_path):
    _export(tmp_path)
    expected = tmp_path / "expected.json"
    subprocess.run(
        [sys.executable, WEB / "test/expected.py", tmp_path, expected, "45"],
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    run_in_browser("test", tmp_path, expected)


def test_the_chat_page_and_sessions_answer_as_python_does(tmp_path):
    """Also a screenshot, chat.png, in the test's folder."""
    from small_tokenizers import byte_pairs
    from small_writers import END, ids, recurrent_story, story

    from keras_tfm.export import export_tflite
    from keras_tfm.generation import Sample
    from keras_tfm.web import write_page

    template = runtime.ChatTemplate("User: ", "\nModel: ", "\nUser: ")
    shared = {"tokenizer": byte_pairs(), "chat_template": template, "verify": False}
    files = {
        "chunks": {"max_length": 200, "prompt_length": (6, 20), "strategy": Sample(0.4, top_k=3)},
        "rows": {"max_length": 190, "prompt_length": 7, "batch_size": 2, "end_id": None},
        "whole": {"max_length": 190, "prompt_length": (3, 160), "whole_caches": True},
        "steps": {"max_length": 200},
        "gpu": {"max_length": 200, "prompt_length": (6, 20), "accelerator": "gpu"},
        "states": {"max_length": 200, "prompt_length": (6, 20), "end_id": None},
    }
    models = {"states": recurrent_story()}
    answers = {}
    for name, options in files.items():
        roles = ["prefill", "decode"] if "prompt_length" in options else ["decode"]
        options = {"end_id": END, **shared, **options}
        model = models.get(name, story())
        export_tflite(model, tmp_path / f"{name}.tflite", roles, **options)
        model = runtime.load(tmp_path / f"{name}.tflite")
        session, parts = model.session(), [ids(9), ids(70, seed=1), ids(1, seed=2), ids(58, seed=3)]
        for part in parts:
            session.append(part)
        fork = session.fork()
        answer = session.generate(20)
        session.rewind(5)
        session.append(parts[0])
        stop = answer.text[5:7]
        stopped = fork.generate(len(answer.tokens), stop=stop)
        answers[name] = {
            "parts": [part.tolist() for part in parts],
            "tokens": answer.tokens.tolist(),
            "rewound": session.generate(len(answer.tokens)).tokens.tolist(),
            "stopped": {"stop": stop, "text": stopped.text, "tokens": stopped.tokens.tolist()},
        }
    model, said = runtime.load(tmp_path / "chunks.tflite"), []
    session, messages = model.session(), ["hello world", "text number 1"]
    for message in messages:
        session.append(template.turn(message) if said else template.prompt(message))
        said.append(session.generate(30).text)
    write_page(tmp_path / "chunks.tflite", tmp_path / "page", packages=WEB / "node_modules")
    chat = {"messages": messages, "answers": said, "longest": 30}
    expected = tmp_path / "expected.json"
    expected.write_text(json.dumps({"chat": chat, "files": answers, "sampling": _sampled()}))
    run_in_browser("test:chat", tmp_path, expected, SCREENSHOT=tmp_path / "chat.png")
    assert (tmp_path / "chat.png").stat().st_size > 10_000


def _sampled() -> list[dict]:
    """Arguments of `runtime.Sampler` with their JavaScript names, and the probabilities."""
    logits = np.random.default_rng(5).normal(0, 3, 40).astype("float32")
    logits[7] = logits[3]  # a tie, which top k and top p keep
    tokens = [int(logits.argmax()), 3, 11, 3]
    found = []
    for options in (
        {},
        {"temperature": 0.6},
        {"temperature": 0},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.05},
        {"repetition_penalty": 1.7},
        {"banned_tokens": tokens[:1], "temperature": 0},
        {"temperature": 1.4, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "banned_tokens": [0, 9]},
        {"repetition_penalty": 0.8, "top_k": 3},
    ):
        names = {key: "".join((key[0], key.title()[1:])).replace("_", "") for key in options}
        found.append(
            {
                "options": {names[key]: value for key, value in options.items()},
                "logits": logits.tolist(),
                "tokens": tokens,
                "probabilities": runtime.Sampler(**options)
                .probabilities(logits[None], np.array([tokens]))[0]
                .tolist(),
            }
        )
    assert found[-2]["options"].keys() == {"temperature", "topK", "topP", "minP", "bannedTokens"}
    return found


# What --smoke trains knows nothing: what is compared is that clients give the same answers.
SMOKE_TEXTS = {
    "classifier": ["Neuseeland", "Oslo", "Åland ☃", "Democratic Republic of Congo"],
    "language_model": ["[de][city]", "[fr][country]Nou", "[sw][currency]dola ya Ny", "x"],
    "translator": [data.question(x.text, x.tag) for x in data.test_dates(12)],
}


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["float32", "int8"])
def test_files_of_the_recipes(quantization, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "export"))
    for recipe in SMOKE_TEXTS:
        importlib.import_module(recipe).export(smoke=True, quantization=quantization)
    _compare(tmp_path / "artifacts/export", SMOKE_TEXTS, exact=quantization == "float32")


@pytest.mark.slow
def test_files_that_are_stepped(tmp_path):
    """Several caches, whole caches, an encoder of two lengths, other padding ids."""
    from padded_models import translator
    from small_exports import MAX_LENGTH, SOURCE_LENGTH, small
    from small_models import START, randomize
    from small_tokenizers import CORPUS, END, byte_pairs, source_words, words

    from keras_tfm.export import export_tflite

    for name, options in {
        "caches": {"max_length": 200, "batch_size": 2, "prompt_length": 6},
        "whole": {"max_length": 20, "prompt_length": (3, 19), "whole_caches": True},
    }.items():
        export_tflite(
            randomize(_bytes_writer(), seed=0),
            tmp_path / f"{name}.tflite",
            ["prefill", "decode"],
            start_id=1,
            end_id=2,
            tokenizer=byte_pairs(),
            verify=False,
            **options,
        )
    export_tflite(
        small(seed=6),
        tmp_path / "encoder.tflite",
        ["predict", "encode", "decode"],
        source_length=(3, SOURCE_LENGTH),
        max_length=MAX_LENGTH,
        start_id=START,
        end_id=END,
        batch_size=3,
        tokenizer={"source": source_words()},
        detokenizer=words(),
        verify=False,
    )
    # Padding ids other than 0, and one signature of a length that most texts do not fill.
    export_tflite(
        randomize(translator(), seed=6),
        tmp_path / "padding.tflite",
        ["encode", "decode"],
        source_length=SOURCE_LENGTH,
        max_length=MAX_LENGTH,
        start_id=START,
        end_id=END,
        tokenizer={"source": source_words()},
        detokenizer=words(),
        verify=False,
    )
    texts = {
        "padding": ["three four FIVE six ten", "eight nine", "two"],
        "caches": [*dict.fromkeys(CORPUS), "日"],
        "whole": ["world", "日本", "ü"],
        "encoder": ["three four FIVE six ten", "eight nine", "two"],
    }
    _compare(tmp_path, texts, exact=True)


def _bytes_writer():
    import keras

    from keras_tfm import layers

    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.TokenEmbedding(300, 12, mask_zero=True)(tokens)
    x = decoder_block(16, num_heads=2, cross_attention=False, position=layers.RotaryEmbedding())(x)
    return keras.Model(tokens, keras.layers.Dense(300)(x))


def _compare(folder: Path, texts: dict[str, list[str]], exact: bool) -> None:
    """Chromium's answers with Python's."""
    files = {}
    for name in texts:
        model = runtime.load(folder / f"{name}.tflite")
        files[name] = {"texts": texts[name], **answers_of(model, texts[name])}
    expected = folder / "expected.json"
    expected.write_text(json.dumps({"exact": exact, "files": files}))
    run_in_browser("test:files", folder, expected)


def _export(folder: Path) -> None:
    """A small model that learned nothing, three times: what is compared are its tokens."""
    import keras

    from keras_tfm.export import export_tflite
    from keras_tfm.generation import Beam
    from keras_tfm.models import transformer

    keras.utils.set_random_seed(6)  # of which the answers differ most from text to text
    tokenizer, detokenizer = data.source_tokenizer(), data.target_tokenizer()
    model = transformer(
        tokenizer.get_vocab_size(),
        detokenizer.get_vocab_size(),
        dim=16,
        num_layers=1,
        num_heads=2,
        intermediate_dim=32,
        normalize_first=True,
    )
    # Wide enough that the answers differ from text to text.
    model.set_weights(
        [3.0 * weight if weight.ndim > 1 else weight for weight in model.get_weights()]
    )
    length = data.SOURCE_LENGTH
    files = {
        "float32": {"source_length": length},
        "int8": {"source_length": length, "quantization": "int8"},
        "beam": {"source_length": (length // 2, length), "batch_size": 2, "strategy": Beam(size=2)},
    }
    for name, options in files.items():
        export_tflite(
            model,
            folder / f"{name}.tflite",
            max_length=data.TARGET_LENGTH,
            start_id=data.START,
            end_id=data.END,
            tokenizer=tokenizer,
            detokenizer=detokenizer,
            verify=False,
            **options,
        )
