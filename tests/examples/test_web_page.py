"""`write_page` in headless Chromium: a page for each kind of file, which answers as Python does.

Each page is served by Python's own http.server, asked, and asked again without a server.
"""

import shutil
import wave

import keras
import numpy as np
import pytest
import small_captioners
import small_clip
import small_pictures
from keras_weights import randomize
from small_exports import small, with_manifest
from small_listeners import ctc_file, live_file
from small_tokenizers import SOURCE_SIZE, WORDS, words
from small_writers import written
from web_pages import WEB, need_browser, run_in_browser

from keras_tfm import layers, models, runtime
from keras_tfm.export import export_tflite
from keras_tfm.runtime import ChatTemplate
from keras_tfm.runtime.media.wav import read_wav, resample
from keras_tfm.web import write_page

Image = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.browser
HOSTILE = "<img src=x onerror=document.title='executed'>"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages, and what they answer, by name."""
    need_browser()
    folder = tmp_path_factory.mktemp("pages")
    cases = {}
    for make in (texts, searches, pictures, captions, speech, live, pairs):
        for name, file, asked in make(folder):
            page = write_page(
                file, folder / name, packages=WEB / "node_modules", title=f"{name} {HOSTILE}"
            )
            cases[name] = {"form": page.form, "size": page.size, "asked": asked}
    return folder, cases


def texts(folder):
    template = ChatTemplate("User: ", "\nModel: ", "\nUser: ")
    for name, options in {"chat": {"chat_template": template}, "continue": {}}.items():
        file = written(**options)
        model = runtime.load(file)
        if name == "continue":
            text = "hello world"
            yield name, file, [{"text": text, "answer": "".join(model.stream_text(text))}]
            continue
        session, asked = model.session(), []
        for message in ("hello world", "text number 1"):
            session.append(template.turn(message) if asked else template.prompt(message))
            asked.append({"text": message, "answer": session.generate(30).text})
        yield name, file, asked
    both = {"source": words(SOURCE_SIZE), "target": words(SOURCE_SIZE)}
    ends = {"source_length": [4, 8], "max_length": 9, "start_id": 1, "end_id": 7}
    for name, roles in {"translate": ["generate"], "steps": ["encode", "decode"]}.items():
        file = folder / f"{name}.tflite"
        export_tflite(small(seed=6), file, roles, tokenizer=both, verify=False, **ends)
        model = runtime.load(file)
        asked = [{"text": x, "answer": model.generate_text(x)} for x in ("three four ten", "two")]
        yield name, file, asked
    file = folder / "classify.tflite"
    labels = ["negative", HOSTILE, "positive"]
    keras.utils.set_random_seed(2)
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.TokenEmbedding(len(WORDS), 12, mask_zero=True)(tokens)
    x = layers.SequencePooling()(layers.TransformerEncoderBlock(24, num_heads=2)(x))
    model = randomize(keras.Model(tokens, keras.layers.Dense(3)(x)))
    export_tflite(model, file, source_length=[4, 8], tokenizer=words(), labels=labels, verify=False)
    asked = []
    for text in ("two three", "four"):
        (logits,) = runtime.load(file).predict_text(text)["output"]
        shares = runtime.tasks.pictures.softmax(logits)
        order = np.argsort(-shares)
        asked.append({"text": text, "ranked": [[labels[i], float(shares[i])] for i in order]})
    yield "classify", file, asked


def searches(folder):
    size = {"dim": 16, "num_layers": 1, "num_heads": 2, "intermediate_dim": 32}
    body = models.bert(len(WORDS), **size, segments=False)
    searcher = randomize(models.sentence_embedding(body))
    file = folder / "search.tflite"
    export_tflite(searcher, file, source_length=[4, 8], tokenizer=words(), verify=False)
    lines = ["two three", "four", "three four five", "two"]
    model = runtime.load(file)
    asked = []
    for query in ("two three four", "five"):
        scores = model.embed(lines) @ model.embed(query)
        ranked = sorted(zip(lines, scores.tolist(), strict=True), key=lambda x: -x[1])
        asked.append({"text": query, "lines": lines, "ranked": [list(x) for x in ranked]})
    yield "search", file, asked


def pictures(folder):
    paths = []
    for i in range(2):
        pixels = np.random.default_rng(i).integers(0, 256, (48, 64, 3)).astype("uint8")
        Image.fromarray(pixels).save(folder / f"{i}.png")
        paths.append(folder / f"{i}.png")
    Image.new("RGB", (96, 64), (255, 255, 255)).save(folder / "white.png")
    file = folder / "classes.tflite"
    small_pictures.export_pictures(small_pictures.classifier(), file, resize=40)
    model, asked = runtime.load(file), []
    for path in paths:
        (logits,) = model.predict_images(path)["output"]
        shares = runtime.tasks.pictures.softmax(logits)
        ranked = [[model.labels[i], float(shares[i])] for i in np.argsort(-shares)]
        asked.append({"picture": str(path), "ranked": ranked})
    yield "classes", file, asked
    file = folder / "objects.tflite"
    small_pictures.export_pictures(
        small_pictures.detector(), file, small_pictures.OBJECTS, resize="fit"
    )
    found = runtime.load(file).detect(folder / "white.png")
    ranked = [[x.label, x.probability] for x in found]
    yield "objects", file, [{"picture": str(folder / "white.png"), "ranked": ranked}]


def captions(folder):
    for i, pixels in enumerate(small_captioners.PICTURES):
        Image.fromarray(pixels).save(folder / f"caption{i}.png")
    for name, by, roles in (
        ("captions", "cross-attention", small_captioners.WHOLE),
        ("captions_stepped", "prefix", small_captioners.STEPPED),
    ):
        model, asked = runtime.load(small_captioners.file(by, roles)), []
        for i in range(len(small_captioners.PICTURES)):
            path = folder / f"caption{i}.png"
            text = model.caption(path)
            if text:
                asked.append({"picture": str(path), "answer": text})
        yield name, small_captioners.file(by, roles), asked[:2]


def speech(folder):
    """Recordings at three rates, of one and two channels."""
    recordings = []
    for i, (rate, channels) in enumerate([(16000, 1), (44100, 2), (8000, 1)]):
        count = rate * 3 // 5
        time = np.arange(count)[:, None] / rate
        tones = np.sin(2 * np.pi * time * [[300 + 400 * i, 900]]).sum(-1, keepdims=True)
        noise = np.random.default_rng(i).normal(0, 0.05, (count, channels))
        values = (0.3 * tones + noise).clip(-1, 1)
        path = folder / f"{rate}.wav"
        with wave.open(str(path), "wb") as out:
            out.setparams((channels, 2, rate, 0, "NONE", None))
            out.writeframes((32767 * values).astype("<i2").tobytes())
        recordings.append(path)
    small_sizes = {"dim": 16, "num_layers": 1, "num_heads": 2, "intermediate_dim": 24}
    whisper = models.whisper(
        len(WORDS), **small_sizes, num_mels=8, max_source_length=500, max_length=9, pad_id=0
    )
    moonshine = models.moonshine(len(WORDS), **small_sizes, max_length=9, end_id=7)
    ends = {"max_length": 9, "end_id": 7, "tokenizer": words(), "verify": False}
    prompts = {"prompt_length": 3, "default_prompt": [1, 3]}
    lengths = {"source_length": [8000, 16000], "start_id": 1, "end_id": None}
    letters = models.ctc_classifier(
        models.wav2vec2(**small_sizes, feature_dims=(8,) * 7, position_kernel=6, position_groups=2),
        5,
        labels=["a", " ", "b", "", "c"],
    )
    ctc = {"source_length": [8000, 16000], "max_length": None, "end_id": None, "tokenizer": None}
    for name, model, roles, options in (
        ("whisper", randomize(whisper, 5), ["generate"], prompts),
        ("moonshine", randomize(moonshine, 3), ["encode", "decode"], lengths),
        ("wav2vec2", randomize(letters, 3), ["predict"], ctc),
    ):
        file = folder / f"{name}.tflite"
        export_tflite(model, file, roles, **{**ends, **options})
        loaded = runtime.load(file)
        asked = [{"recording": str(x), "answer": loaded.transcribe(x)} for x in recordings]
        assert any(x["answer"] for x in asked)
        yield name, file, asked


def live(folder):
    """Recordings that a listener hears whole: files of an encoder and a decoder, and of CTC."""
    for name, file in (("listener", live_file("float32")), ("ctc", ctc_file("float32"))):
        model, asked = runtime.load(file), []
        for rate in (16000, 44100):
            samples = resample(*read_wav(folder / f"{rate}.wav"), 16000)[:9000]
            path = folder / f"{name}_{rate}.wav"
            with wave.open(str(path), "wb") as out:
                out.setparams((1, 2, 16000, 0, "NONE", None))
                out.writeframes((32767 * samples.clip(-1, 1)).astype("<i2").tobytes())
            listener = model.listen()
            listener.append(read_wav(path)[0])
            asked.append({"recording": str(path), "answer": listener.finish()})
        assert any(x["answer"] for x in asked)
        yield name, file, asked


def pairs(folder):
    file = folder / "pairs.tflite"
    export_tflite(
        models.clip_towers(small_clip.small_clip()),
        file,
        images=small_clip.PROCESSOR,
        tokenizer=small_clip.tokenizer(),
        source_length=small_clip.LENGTH,
        verify=False,
    )
    lines = ["two three", "four", "five two"]
    classify = runtime.load(file).zero_shot(lines, "{}")
    path = folder / "0.png"
    ranked = [list(x) for x in classify(path)]
    yield "pairs", file, [{"picture": str(path), "lines": lines, "ranked": ranked}]


def hostile(folder):
    """Pages whose file was replaced."""
    chat = (folder / "chat/model.tflite").read_bytes()

    def lie(manifest):
        for signature in manifest["signatures"].values():
            if signature["role"] == "decode":
                signature["max_length"] = 10**9

    for name, content in {
        "no_model": b"<script>document.title = 'executed'</script>",
        "damaged": chat[:-100] + bytes(100),
        "lie": with_manifest(chat, lie),
        "other": (folder / "classify/model.tflite").read_bytes(),
    }.items():
        shutil.copytree(folder / "chat", folder / name)
        (folder / name / "model.tflite").write_bytes(content)


def test_pages_answer_as_python_does_with_and_without_a_server(pages):
    """Also screenshots, of a desk and of a phone, in the folder SCREENSHOTS if it is set."""
    folder, cases = pages
    assert {x["form"] for x in cases.values()} == {
        *("chat", "write", "classify", "search", "pictures", "pairs", "speech", "live")
    }
    hostile(folder)
    run_in_browser("test:app", folder, {"cases": cases})
