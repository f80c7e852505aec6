"""A file of a recogniser with CTC: the text of its best path, in several lengths and presets."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import tensorflow_only
from keras_weights import randomize

from keras_tfm import models, runtime
from keras_tfm.runtime import best_path
from keras_tfm.runtime.manifest import storage
from keras_tfm.web.kinds import form_of

pytestmark = tensorflow_only
LABELS = ["", "<s>", " ", "a", "b", "'"]
RNG = np.random.default_rng(0)
CLIPS = [RNG.normal(0.1, 0.2, n).astype("float32") for n in (400, 1600, 1601, 3000)]


@pytest.fixture(scope="module")
def model():
    encoder = models.wav2vec2(
        24, num_layers=1, num_heads=2, intermediate_dim=16, feature_dims=(8,) * 7,
        position_kernel=6, position_groups=3,
    )  # fmt: skip
    return randomize(models.ctc_classifier(encoder, len(LABELS), labels=LABELS))


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    from keras_tfm.export import export_tflite

    path = tmp_path_factory.mktemp("ctc") / "x.tflite"
    report = export_tflite(model, path, source_length=[1600, 3200])
    assert "Flex and custom operators: none" in str(report)
    return path


def test_each_clip_is_the_text_of_the_model_in_the_shortest_length(model, path):
    file = runtime.load(path)
    assert list(file.file.signatures) == ["predict_1600", "predict_3200"]
    assert (file.sample_rates, file.labels) == ({"audio": 16000}, LABELS)
    texts = set()
    for clip, count in zip(CLIPS, (1, 4, 4, 9), strict=True):
        logits = to_numpy(model({"audio": clip[np.newaxis]}))[0]
        found = file.predict_audio(clip)["output"][0]
        assert_close(found[:count], logits, 1e-5)
        assert (found[count:].argmax(axis=-1) == 0).all()
        text = file.transcribe(clip)
        assert text == best_path(logits, LABELS)
        texts.add(text)
    assert len(texts) > 2
    with pytest.raises(ValueError, match="has labels of CTC, and takes no prompt, got 'a'"):
        file.transcribe(CLIPS[0], prompt="a")
    with pytest.raises(ValueError, match=r"399 samples, .* needs at least 400"):
        file.transcribe(CLIPS[0][:399])


@pytest.mark.parametrize("preset", ["float16", pytest.param("int8", marks=pytest.mark.slow)])
def test_presets(model, preset, tmp_path):
    """Verified by the export; the text is that of the file's scores."""
    from keras_tfm.export import export_tflite

    export_tflite(model, tmp_path / "x.tflite", quantization=preset, source_length=3200)
    file = runtime.load(tmp_path / "x.tflite")
    scores = file.predict_audio(CLIPS[3])["output"][0]
    assert file.transcribe(CLIPS[3]) == best_path(scores, LABELS)


def test_a_page_of_it_is_one_of_speech(path):
    assert form_of(storage.read(path)) == "speech"


def test_best_path_by_hand():
    scores = np.eye(4)[[1, 1, 0, 2, 2, 3, 0, 3, 1, 0]]
    assert best_path(scores, ["", " ", "a", "b"]) == "abb"
    assert best_path(scores, ["", "on", "off", "go"]) == "on off go go on"
    assert best_path(scores, ["on", "", "off", "go"]) == "on off go on go on"
    for labels in (["", "a", "b"], ["", "a", "b", ""], ["c", "a", "b", "d"], None):
        with pytest.raises(ValueError, match=r"expected scores \(T, V\) and V labels, of which"):
            best_path(scores, labels)


def test_a_row_of_a_batch_has_the_loss_of_the_clip_alone(model):
    """The blank of the padding is certain: the loss needs no lengths."""
    loss = keras.losses.CTC(reduction=None)
    clip, target = CLIPS[3], np.array([[3, 2, 4, 0]])
    padded = np.pad(clip, (0, 1000))
    alone, batch = (to_numpy(loss(target, model({"audio": x[np.newaxis]}))) for x in (clip, padded))
    assert_close(batch, alone, 1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": ["a", "b", "c"]}, "labels must have one blank, '', got 0"),
        ({"labels": ["", "", "c"]}, "labels must have one blank, '', got 2"),
        ({"labels": ["", "b"]}, "labels must be 3 names"),
        ({"labels": ["a", "", "c"], "blank_id": 0}, "blank_id must be 1, got 0"),
        ({"blank_id": 3}, r"blank_id must be 0\.\.2, got 3"),
    ],
)
def test_a_head_with_other_labels_is_refused(model, options, message):
    with pytest.raises(ValueError, match=message):
        models.ctc_classifier(model, 3, **options)
