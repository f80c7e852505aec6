"""The recipes of export/, run as their users run them, and their files in two clients.

One client is `keras_tfm.runtime`. The other, `plain_...` below, shows that nothing of keras_tfm is
needed: LiteRT's interpreter, the tokenizer out of the file's metadata, and a few lines. Both run
the same kernels, so tokens and scores are equal bit for bit, in int8 too. The third client,
Chromium, is in tests/examples/test_web.py.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import dates_data
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated
from ai_edge_litert.interpreter import Interpreter
from tokenizers import Tokenizer

from keras_tfm import runtime

ROOT = Path(__file__).parents[2]
NAMES = ["Neuseeland", "Oslo", "Åland ☃", "Democratic Republic of Congo"]  # of all three lengths
BEGINNINGS = ["x", "[de][city]", "[fr][country]Nou", "[sw][currency]dola ya Nyuzil"]
DATES = [dates_data.question(date.text, date.tag) for date in dates_data.test_dates(12)]


def ran(folder, recipe, *arguments):
    """What a recipe prints in its smoke size."""
    command = [sys.executable, ROOT / f"export/{recipe}.py", "--smoke", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


# A client without keras_tfm


def plain_metadata(path):
    """The file's metadata, bytes by name."""
    model = schema_py_generated.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    return {x.name.decode(): bytes(model.buffers[x.buffer].data) for x in model.metadata}


def plain_padded(ids, length):
    return np.array([ids + [0] * (length - len(ids))], "int32")


def plain_predict(path, texts):
    tokenizer = Tokenizer.from_str(plain_metadata(path)["tokenizer.json"].decode())
    interpreter = Interpreter(str(path))
    for text in texts:
        ids = tokenizer.encode(text).ids
        length = next(n for n in (8, 16, 32) if len(ids) <= n)
        runner = interpreter.get_signature_runner(f"predict_{length}")
        yield runner(ids=plain_padded(ids, length))["output"][0]


def plain_generate(path, texts):
    """The three best texts with their scores."""
    metadata = plain_metadata(path)
    names = json.loads(metadata["keras_tfm"])["tokenizers"]
    source, target = (
        Tokenizer.from_str(metadata[names[name]].decode()) for name in ("source", "target")
    )
    interpreter = Interpreter(str(path))
    for text in texts:
        ids = source.encode(text).ids
        length = 20 if len(ids) <= 20 else 40
        runner = interpreter.get_signature_runner(f"generate_{length}")
        found = runner(source=plain_padded(ids, length))
        yield [
            (target.decode(tokens.tolist()), float(score))
            for tokens, score in zip(found["tokens"][0], found["scores"][0], strict=True)
        ]


def plain_write(path, text, choose):
    """What goes on from a text, token by token, with the caches here."""
    tokenizer = Tokenizer.from_str(plain_metadata(path)["tokenizer.json"].decode())
    interpreter = Interpreter(str(path))
    decode = interpreter.get_signature_runner("decode")
    caches = {
        name: np.zeros(spec["shape"], spec["dtype"])
        for name, spec in decode.get_input_details().items()
        if name.startswith("cache_")
    }

    def keep(new, position, count):
        for name, cache in caches.items():
            if cache.ndim == 2:  # a mask (B, S)
                cache[:, position : position + count] = new[name][:, :count]
            else:  # keys and values (B, G, S, K)
                cache[:, :, position : position + count] = new[name][:, :, :count]

    ids = tokenizer.encode(text).ids
    capacity, read = caches["cache_000_self_attention_mask"].shape[1], 0
    while read + 4 <= capacity and read < len(ids) - 1:  # in chunks
        length = 4 if len(ids) - 1 - read <= 4 or read + 16 > capacity else 16
        prefill = interpreter.get_signature_runner(f"prefill_{length}")
        chunk = ids[read : min(read + length, len(ids) - 1)]
        at = np.array([read], "int32")
        keep(prefill(tokens=plain_padded(chunk, length), position=at, **caches), read, len(chunk))
        read += len(chunk)
    for position in range(read, capacity - 1):
        token, at = np.array([[ids[position]]], "int32"), np.array([position], "int32")
        new = decode(tokens=token, position=at, **caches)
        keep(new, position, 1)
        if position == len(ids) - 1:
            ids.append(int(choose(new["logits"])[0]))
            if ids[-1] == 1:  # the end
                break
    return tokenizer.decode(ids)


def most_probable():
    return lambda logits: np.argmax(logits, axis=-1)


def never_twice():
    """The most probable token that was not yet chosen: what hardly learned repeats itself."""
    chosen = []

    def choose(logits):
        logits = logits.copy()
        logits[:, chosen] = -np.inf
        chosen.append(int(np.argmax(logits[0])))
        return np.array(chosen[-1:])

    return choose


# The recipes


@pytest.mark.slow
def test_a_classifier(tmp_path):
    report = ran(tmp_path, "classifier", "--ask", "Neuseeland")
    assert re.search(r"the same answer for (9[5-9]|100)\.\d%", report)
    assert len(re.findall(r"^\w\w \d+\.\d%$", report, re.MULTILINE)) == 3
    path = tmp_path / "artifacts/export/classifier.tflite"
    model = runtime.load(path)
    assert {len(model.tokenizers["ids"].encode(name)) > 8 for name in NAMES} == {True, False}
    scores = [model.predict_text(name)["output"][0] for name in NAMES]
    np.testing.assert_array_equal(scores, list(plain_predict(path, NAMES)))


@pytest.mark.slow
def test_a_classifier_trained_with_rounded_weights(tmp_path):
    report = ran(tmp_path, "classifier", "--quantize", "int4")
    assert "classifier.tflite: 0.0" in report and ", int4\n" in report
    checks = report.split("  against Keras ")[1]
    lines = re.findall(r"^  predict_\d+ +\d.*$", checks, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        assert float(line.split()[6]) < 1e-5, line  # the file's own weights are the model's
    assert re.search(r"% in int4; the same answer for (9[5-9]|100)\.\d%", report)


@pytest.mark.slow
def test_a_translator(tmp_path):
    report = ran(tmp_path, "translator", "--ask", "3 de marzo de 2026")
    assert len(re.findall(r"^[\d-]+ -\d+\.\d{3}$", report, re.MULTILINE)) == 3
    path = tmp_path / "artifacts/export/translator.tflite"
    found = runtime.load(path).generate_text(DATES)
    assert [[tuple(x) for x in row] for row in found] == list(plain_generate(path, DATES))


def test_a_language_model(tmp_path):
    ran(tmp_path, "language_model", "--write", "[de][city]Neu")
    path = tmp_path / "artifacts/export/language_model.tflite"
    model = runtime.load(path)
    for choose in (most_probable, never_twice):
        for text in BEGINNINGS:
            written = re.sub(r"\[\w+\]", "", text)  # tags are special tokens
            pieces = list(model.stream_text(text, choose()))
            assert written + "".join(pieces) == plain_write(path, text, choose())


@pytest.mark.slow
def test_a_server(tmp_path):
    """It asks itself over HTTP, in a process without Keras."""
    report = ran(tmp_path, "saved_model_server")
    # float32 of two graphs, scores of order 1.
    difference = re.search(r"50 answers over HTTP, largest difference from Keras (\S+)", report)
    assert float(difference.group(1)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["float32", "float16"])
def test_other_weights(quantization, tmp_path):
    for recipe in ("classifier", "translator", "language_model"):
        assert f", {quantization}\n" in ran(tmp_path, recipe, "--quantize", quantization)
