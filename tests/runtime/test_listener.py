"""Live speech: the text of a streamed file is that of the whole pass."""

import itertools

import numpy as np
import pytest
from execution import tensorflow_only
from keras_weights import randomize
from manifest_lies import read_manifest, with_manifest
from small_exports import new_path
from small_listeners import LABELS, ctc_file, recogniser
from small_tokenizers import WORDS, words

from keras_tfm import models, runtime
from keras_tfm.export import export_tflite
from keras_tfm.generation import generate

pytestmark = tensorflow_only
RNG = np.random.default_rng(0)
CLIPS = [RNG.normal(scale=0.1, size=n).astype("float32") for n in (400, 3200, 5003, 9999)]
LENGTHS = {"max_length": 9, "start_id": 1, "end_id": 7}
BOTH = {"encoder": ["stream"], "decoder": ["generate"]}


def export(model, path, quantization="float32", **options):
    parts = {"encoder": models.encoder(model), "decoder": models.decoder(model)}
    given = {"piece_length": 960, "source_length": {"decoder": 40}, **LENGTHS, **options}
    return export_tflite(parts, path, BOTH, quantization, tokenizer=words(), **given)


@pytest.fixture(scope="module")
def model():
    return randomize(
        models.moonshine_streaming(
            len(WORDS), dim=16, num_layers=2, num_heads=2, intermediate_dim=16, decoder_dim=12,
            windows=[(5, 3), (4, 1)], max_features=40, pad_id=0, end_id=7,
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def file(model):
    report = export(model, new_path())
    assert "encoder_stream: 640 positions late, keeps" in str(report)
    return runtime.load(report.path)


def text_of(model, clip):
    tokens = generate(model, {"audio": clip[np.newaxis]}, 9, start_id=1, end_id=7).tokens[0, 1:]
    return words().decode([x for x in tokens.tolist() if x not in (0, 7)])


def test_the_streamed_text_is_that_of_the_whole_pass(file, model):
    texts = set()
    for clip in CLIPS:
        listener = file.listen()
        heard = [listener.append(clip[i : i + 700]) for i in range(0, len(clip), 700)]
        assert heard[0] == ""  # no feature is final yet
        text = listener.finish()
        assert text == text_of(model, clip)
        features = np.array(models.encoder(model)(clip[np.newaxis]))[0]
        scale = np.abs(features).max()
        np.testing.assert_allclose(listener.features, features, atol=1e-5 * scale)
        texts.add(text)
    assert len(texts) > 1
    # What was heard before the end, as if the audio had ended there.
    listener, clip = file.listen(), CLIPS[-1]
    listener.append(clip[: 960 * 8])
    count = len(listener.features)
    assert count == 960 * 8 // 320 - 2
    # The last features would differ, as they look ahead: those that are final do not.
    whole = np.array(models.encoder(model)(clip[np.newaxis]))[0, :count]
    np.testing.assert_allclose(listener.features, whole, atol=1e-5 * np.abs(whole).max())


def test_what_is_refused(file):
    listener = file.listen()
    with pytest.raises(ValueError, match="audio: a stream that ends must have got values"):
        listener.finish()
    with pytest.raises(TypeError, match="audio must be floats from -1 to 1, or int16, got int64"):
        listener.append(np.ones(5, "int64"))
    with pytest.raises(ValueError, match=r"audio must have shape \(T,\), got \(5, 2\)"):
        listener.append(np.ones((5, 2), "float32"))
    with pytest.raises(ValueError, match=r"takes at most 40 features, got 4\d: begin another"):
        listener.append(np.ones(14400, "float32"))
    listener = file.listen()
    listener.append(CLIPS[0])
    listener.finish()
    with pytest.raises(ValueError, match="audio: the stream has ended: begin another one"):
        listener.append(CLIPS[0])
    with pytest.raises(ValueError, match="listening needs an encoder with the signature 'stream'"):
        file.models["encoder"].listen()


def test_features_of_another_width_are_refused(model):
    x = models.encoder(model)
    other = models.decoder(
        models.moonshine_streaming(
            len(WORDS), dim=8, num_layers=1, num_heads=2, intermediate_dim=16, windows=[(5, 3)]
        )
    )
    path = new_path()
    export_tflite(
        {"encoder": x, "decoder": other}, path, BOTH, piece_length=960,
        source_length={"decoder": 40}, verify=False, **LENGTHS,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"must read features \(B, S, 16\), got .*\[1, 40, 8\]"):
        runtime.load(path).listen()


def test_models_without_an_encoder_have_no_decoder():
    gpt = models.gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    with pytest.raises(ValueError, match=r"expected an encoder-decoder model of keras_tfm\.models"):
        models.decoder(gpt)


def test_words_of_ctc_are_the_best_path_of_the_whole_pass():
    file, model = runtime.load(ctc_file("float32")), recogniser()
    for clip in CLIPS:
        best = np.array(model(clip[np.newaxis]))[0].argmax(-1)
        kept = best[np.diff(best, prepend=0) != 0]
        wanted = [LABELS[i] for i in kept if i]
        listener = file.listen()
        texts = [listener.append(clip[i : i + 700]) for i in range(0, len(clip), 700)]
        texts.append(listener.finish())
        assert texts[-1] == " ".join(wanted)
        assert all(b.startswith(a) for a, b in itertools.pairwise(texts))
    assert len({*wanted}) > 1
    with pytest.raises(ValueError, match="audio: the stream has ended: begin another one"):
        listener.append(clip)


def test_letters_are_joined_as_they_are():
    path = new_path()
    letters = ["", " ", "a", "b", "c"]
    model = recogniser()
    export_tflite(model, path, ["stream"], piece_length=960, labels=letters, verify=False)
    listener = runtime.load(path).listen()
    listener.append(CLIPS[-1])
    words, listener = listener.finish(), runtime.load(ctc_file("float32")).listen()
    listener.append(CLIPS[-1])
    names = dict(zip(LABELS, letters, strict=True))
    assert words == "".join(names[word] for word in listener.finish().split())


def test_labels_of_a_stream_are_counted_and_begin_with_the_blank():
    content = runtime.load(ctc_file("float32")).content()
    for labels, message in (
        (LABELS[:4], r"labels must be as many as an output has classes, \[5\], got 4"),
        (["x", *LABELS[1:]], "or a model with 'stream' and labels of CTC, of which the first is"),
    ):
        path = new_path()
        path.write_bytes(with_manifest(content, {**read_manifest(content), "labels": labels}))
        with pytest.raises(ValueError, match=message):
            runtime.load(path).listen()
