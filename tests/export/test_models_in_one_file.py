"""Several models in one file: signatures by name, weights stored once, one verification."""

import copy
import pickle

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import tensorflow_only
from keras_weights import randomize
from small_pairs import LENGTH, PICTURES, PROCESSOR, TOWER, letters, pair, rows_of

from keras_tfm import layers, models, runtime

pytestmark = tensorflow_only
TEXTS = ["a bad cab", "egg", "a", "no mad lion"]


def towers():
    return models.clip_towers(pair())


def exported(given, path, **options):
    from keras_tfm.export import export_tflite

    return export_tflite(given, path, **{"source_length": LENGTH, **options})


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Both towers, with texts of two lengths."""
    path = tmp_path_factory.mktemp("several") / "pair.tflite"
    options = {"tokenizer": letters(), "images": PROCESSOR, "source_length": [5, LENGTH]}
    return runtime.load(exported(towers(), path, **options).path)


@pytest.fixture(scope="module")
def expected():
    pixels = np.concatenate([PROCESSOR(x) for x in PICTURES])
    inputs = {"pixels": pixels, "tokens": rows_of(TEXTS)}
    made = towers()
    return {
        "image": to_numpy(made["image"](inputs["pixels"])),
        "text": to_numpy(made["text"](inputs["tokens"])),
    }


def test_pictures_and_texts_become_vectors(file, expected):
    assert_close(file.embed_image(PICTURES), expected["image"], 1e-6)
    assert_close(file.embed_text(TEXTS), expected["text"], 1e-6)
    assert_close(file.embed_image(PICTURES[1]), expected["image"][1], 1e-6)
    assert_close(file.embed_text(TEXTS[3]), expected["text"][3], 1e-6)
    assert_close(np.linalg.norm(file.embed_text(TEXTS), axis=-1), np.ones(4), 1e-6)


def test_each_model_works_as_from_a_file_of_its_own(file, expected):
    assert list(file.models) == ["image", "text"]
    assert list(file.signatures) == ["image", "text_5", "text_13"]
    image, text = file.models["image"], file.models["text"]
    assert list(text.signatures) == ["text_5", "text_13"]
    assert_close(image.predict_images(PICTURES)["output"], expected["image"], 1e-6)
    assert_close(text.predict_text(TEXTS)["output"], expected["text"], 1e-6)
    assert_close(text.predict(rows_of(TEXTS))["output"], expected["text"], 1e-6)
    assert_close(file.run("text_13", rows_of(TEXTS))["output"], expected["text"], 1e-6)
    assert (image.image_processors, text.image_processors) == ({"pixels": PROCESSOR}, {})
    assert (list(image.tokenizers), list(text.tokenizers)) == ([], ["tokens"])
    assert file.manifest["format"] == 2
    assert file.manifest["models"]["text"]["model"]["family"] == "clip_text"
    again = pickle.loads(pickle.dumps(text))
    assert_close(again.embed_text(TEXTS), expected["text"], 1e-6)
    again.close()
    with pytest.raises(ValueError, match="the model was closed"):
        again.embed_text("a")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: x.predict([1, 2]), ValueError, r"holds the models \['image', 'text'\]: choose"),
        (lambda x: x.predict_text("a"), ValueError, "choose one, such as .*models.'image'"),
        (lambda x: x.predict_images(PICTURES), ValueError, "holds the models"),
        (lambda x: x.generate([1]), ValueError, "has no signature 'generate', it has .'image'"),
        (lambda x: x.embed_text(["a", " "]), ValueError, "text 1 must have at least one char.*' '"),
        (lambda x: x.embed_text(""), ValueError, "text 0 must have at least one character, got ''"),
        (lambda x: x.embed_text("a" * 12), ValueError, "has 14 tokens, .* for at most 13"),
        (lambda x: x.embed_text([3]), TypeError, "expected a text .str. or a list of texts"),
        (lambda x: x.embed_image({"pixels": 1}), TypeError, "expected a picture or a list"),
        (lambda x: x.models["text"].embed_image(PICTURES), ValueError, "has no image processor"),
        (lambda x: x.models["image"].embed_text("a"), ValueError, "no tokenizer for 'pixels'"),
        (
            lambda x: x.run("text_5", [[3, 4, 5]]),
            ValueError,
            r"tokens: row 0 has no end token \(id 2\)",
        ),
    ],
)
def test_wrong_calls_are_one_line(file, call, error, message):
    with pytest.raises(error, match=message):
        call(file)


def shared():
    """Two models of texts with a table and a block in common."""
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    embedding = layers.TokenEmbedding(300, 48, mask_zero=True, name="table")
    x = layers.TransformerEncoderBlock(64, 4, name="block")(embedding(tokens))
    vectors = layers.SequencePooling()(x)
    classes = keras.layers.Dense(7, name="classes")(layers.SequencePooling("max")(x))
    made = keras.Model(tokens, vectors, name="a"), keras.Model(tokens, classes, name="b")
    return dict(zip(("vectors", "classes"), map(randomize, made), strict=True))


@pytest.mark.default
@pytest.mark.parametrize(
    "quantization",
    [*(pytest.param(x, marks=pytest.mark.slow) for x in ("float32", "float16", "int8")), "int4"],
)
def test_shared_weights_are_stored_once(quantization, tmp_path):
    """Two graphs of some 15 kB and a dense layer are all that the second model adds."""
    given, options = shared(), {"quantization": quantization, "source_length": 16}
    alone = [exported(x, tmp_path / "x.tflite", **options).bytes for x in given.values()]
    both = exported(given, tmp_path / "both.tflite", **options)
    weights = sum(both.layers.values())
    assert both.bytes < max(alone) + 32_000
    # Each weight once, in whichever signature it was found first.
    alone_weights = sum(
        exported(given["classes"], tmp_path / "x.tflite", **options).layers.values()
    )
    assert weights < 1.1 * alone_weights
    assert {path.split("/")[0] for path in both.layers} <= {"vectors", "classes", ""}
    file = runtime.load(both.path)
    ids = np.random.default_rng(0).integers(1, 300, (3, 16)).astype("int32")
    # Float32 rounds at 6e-8, float16 at 5e-4, 8 bits at 4e-3, 4 bits at 7e-2, through one block.
    allowed = {"float32": 1e-5, "float16": 5e-3, "int8": 0.1, "int4": 0.6}[quantization]
    for name, model in given.items():
        assert_close(file.models[name].predict(ids)["output"], model(ids), allowed)


def some_rows(count):
    """Random texts of full length."""
    rows = np.random.default_rng(2).integers(4, 20, (count, LENGTH)).astype("int32")
    rows[:, -1] = 2
    return rows


def test_full_int8_is_calibrated_with_inputs_of_every_model(tmp_path):
    import warnings

    samples = {
        "image": [{"pixels": PROCESSOR(x)} for x in PICTURES],
        "text": [{"tokens": row[None]} for row in some_rows(50)],
    }
    # Of scores that stay far above the mask of this preset, -30.
    sizes = {"max_length": LENGTH, "end_id": 2, "projection_dim": 33}
    given = {**towers(), "text": randomize(models.clip_text(32, **TOWER, **sizes))}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "int8_full: XNNPACK runs")
        options = {"quantization": "int8_full", "representative_data": samples}
        report = exported(given, tmp_path / "x.tflite", **options)
    assert {x.signature for x in report.verification.checks} == {"image", "text"}
    with pytest.raises(ValueError, match=r"dictionary by model, of \['image', 'text'\]"):
        options["representative_data"] = samples["image"]
        exported(given, tmp_path / "y.tflite", **options)


def test_every_model_is_verified_and_the_error_names_it(file, tmp_path):
    from keras_tfm.export import VerificationError, verify

    given = towers()
    checks = verify(given, file.path).checks
    assert [x.signature for x in checks] == ["image", "text_5", "text_13"]
    assert all(x.relative_error < 1e-5 for x in checks)
    other = dict(given, text=keras.models.clone_model(given["text"]))
    randomize(other["text"], seed=1)
    with pytest.raises(VerificationError, match=r"differs from .*: text_5: expected") as error:
        verify(other, file.path)
    assert [x.failure is None for x in error.value.verification.checks] == [True, False, False]
    with pytest.raises(
        ValueError, match=r"holds the models \['image', 'text'\]: give a dictionary"
    ):
        verify(given["text"], file.path)
    with pytest.raises(ValueError, match=r"model 'image': .* is not an export of"):
        verify({"image": given["text"], "text": given["image"]}, file.path)
    inputs = {"text": {"tokens": rows_of(TEXTS)}}
    assert verify(given, file.path, inputs).checks[-1].rows == 4
    with pytest.raises(ValueError, match="inputs must be a dictionary by model"):
        verify(given, file.path, {"tokens": rows_of(TEXTS)})


def test_models_with_layers_and_inputs_of_the_same_names(tmp_path):
    """They share nothing: each has its own input `x` and its own layer `dense`."""

    def model(units, seed):
        x = keras.Input((5,), name="x")
        return randomize(keras.Model(x, keras.layers.Dense(units, name="dense")(x)), seed)

    given = {"first": model(3, 0), "second": model(4, 1)}
    report = exported(given, tmp_path / "x.tflite", quantization="int8")
    x = np.random.default_rng(0).normal(size=(2, 5)).astype("float32")
    for name, one in given.items():
        found = runtime.load(report.path).models[name].predict(x)["output"]
        assert_close(found, one(x), 1e-5)  # small kernels stay in float32


def test_a_tokenizer_of_several_models_is_stored_once(tmp_path):
    given = shared()
    report = exported(
        given, tmp_path / "x.tflite", tokenizer=letters(), labels={"classes": [*"abcdefg"]}
    )
    models_in = report.manifest["models"]
    assert {x["tokenizers"]["tokens"] for x in models_in.values()} == {"tokenizer.json"}
    file = runtime.load(report.path)
    assert (file.models["classes"].labels, file.models["vectors"].labels) == ([*"abcdefg"], None)
    other = copy.deepcopy(letters())
    other.add_tokens(["z"])
    tokenizers = {"vectors": letters(), "classes": other}
    report = exported(given, tmp_path / "x.tflite", tokenizer=tokenizers)
    file = runtime.load(report.path)
    assert file.models["vectors"].tokenizers["tokens"].encode("z") == [1, 3, 2]
    assert file.models["classes"].tokenizers["tokens"].encode("z") == [1, 20, 2]
    with pytest.raises(ValueError, match=r"must have one model with a tokenizer.*classes"):
        file.embed_text("a")


@pytest.mark.parametrize(
    ("change", "options", "error", "message"),
    [
        (lambda x: {"text": x["text"]}, {}, ValueError, r"or more models by name, got \['text'"),
        (lambda x: {}, {}, ValueError, r"two or more models by name, got \[\]"),
        (lambda x: {**x, "a b": x["text"]}, {}, ValueError, "digits and underscores.*'a b'"),
        (lambda x: {**x, "text": 3}, {}, TypeError, "model 'text': expected a functional"),
        (
            lambda x: {**x, "text_5": x["image"]},
            {"source_length": [5, 7]},
            ValueError,
            "different names, got 'text_5' twice",
        ),
        (dict, {"start_id": 1}, ValueError, "start_id is for a file of one model, got start_id=1"),
        (dict, {"signatures": ["predict"]}, ValueError, "signatures is for a file of one model"),
        (dict, {"separate_adapters": True}, ValueError, "separate_adapters is for a file of one"),
        (dict, {"images": {"text": PROCESSOR}}, ValueError, "model 'text': images must be None"),
        (dict, {"images": {"x": PROCESSOR}}, ValueError, r"of \['image', 'text'\], got .'x"),
        (dict, {"source_length": 14}, ValueError, "got 14 positions, the table holds"),
        (dict, {"source_length": None}, ValueError, "model 'text': input 'tokens' has shape"),
        (dict, {"keep_float": ["text_projectoin"], "quantization": "int8"}, ValueError,
         "keep_float: image and text has no layer 'text_projectoin'; .*text_projection"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(change, options, error, message, tmp_path):
    with pytest.raises(error, match=message):
        exported(change(towers()), tmp_path / "x.tflite", **options)
    assert not (tmp_path / "x.tflite").exists()


# Zero-shot classification


def test_classes_by_their_words(file, expected):
    labels = ["cab", "egg", "lion"]
    classifier = file.zero_shot(labels, "a {}")
    texts = to_numpy(towers()["text"](rows_of([f"a {x}" for x in labels])))
    scale = float(
        to_numpy(pair()({"pixels": PROCESSOR(PICTURES[0]), "tokens": rows_of("a")})["scale"])[0, 0]
    )
    logits = scale * expected["image"].astype("float64") @ texts.T
    wanted = np.exp(logits - logits.max(-1, keepdims=True))
    wanted /= wanted.sum(-1, keepdims=True)
    # Errors of 1e-6 times the scale.
    assert_close(classifier.probabilities(PICTURES), wanted, 1e-4)
    ranked = classifier(PICTURES[0])
    order = np.argsort(-wanted[0])
    assert [x.label for x in ranked] == [labels[i] for i in order]
    assert [x.probability for x in ranked] == pytest.approx(wanted[0][order], abs=1e-4)
    assert [x[0].label for x in classifier(PICTURES)] == [labels[i] for i in wanted.argmax(-1)]


def test_vectors_of_several_templates_are_averaged(file):
    several = file.zero_shot(["egg", "lion"], ["a {}", "{}"], scale=3.0)
    vectors = np.stack([file.zero_shot(["egg", "lion"], x).vectors for x in ("a {}", "{}")])
    mean = vectors.mean(0)
    assert_close(several.vectors, mean / np.linalg.norm(mean, axis=-1, keepdims=True), 1e-6)
    assert several.scale == 3.0


@pytest.mark.parametrize(
    ("labels", "template", "error", "message"),
    [
        ("egg", "{}", TypeError, "labels must be a list of texts, got 'egg'"),
        ([], "{}", ValueError, "one or more different texts"),
        (["a", "a"], "{}", ValueError, "one or more different texts"),
        (["a", ""], "a {}", ValueError, "label 1 has none"),
        (["a"], "a", ValueError, r"a template must have \{\} for the label, got 'a'"),
        (["a" * 20], "{}", ValueError, "has 22 tokens"),
    ],
)
def test_labels_that_cannot_be_classes(file, labels, template, error, message):
    with pytest.raises(error, match=message):
        file.zero_shot(labels, template)


def test_towers_of_different_widths(tmp_path):
    given = towers()
    x = keras.layers.Dense(7, name="narrow")(given["image"].output)
    given["image"] = keras.Model(given["image"].input, x)
    options = {"tokenizer": letters(), "images": PROCESSOR, "verify": False}
    file = runtime.load(exported(given, tmp_path / "x.tflite", **options).path)
    with pytest.raises(ValueError, match="must have the same width, got 7 and 33"):
        file.zero_shot(["egg"], "{}")(PICTURES[0])
