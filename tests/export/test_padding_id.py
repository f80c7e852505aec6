"""A padding id other than 0: trained, exported and run, where 0 is a token like others."""

import keras
import numpy as np
import pytest
from padded_models import CLASSES, PADDING, TARGET_PADDING, classifier, translator
from small_exports import new_path
from small_models import DIM, SOURCE_SIZE, TARGET_SIZE, randomize, telling_end

from keras_tfm import layers, models
from keras_tfm.export import export_saved_model, export_tflite
from keras_tfm.export.signatures.make import make_signatures
from keras_tfm.export.signatures.request import Request
from keras_tfm.generation import Beam, generate
from keras_tfm.generation.interface import interface_of
from keras_tfm.runtime import load
from keras_tfm.text import BucketedBatches, Rows
from keras_tfm.training import LabelSmoothedCrossEntropy

START, END = 1, 2
SOURCE_LENGTH, MAX_LENGTH = 5, 9
# Rows with 0 among their tokens and at their end, of every length.
SOURCES = [[3, 4, 0, 6, 0], [8, 0], [0], [0, 5, 1, 10]]
PADDED = np.array([row + [PADDING] * (SOURCE_LENGTH - len(row)) for row in SOURCES], "int32")
# float32: sums of other lengths are rounded otherwise.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def trained_classifier():
    """Learns which of 3, 4 and 8 a row holds, beside 0s, in rows that are padded with 7."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, 96)
    rows = [
        rng.permutation([[3, 4, 8][label], *[0] * rng.integers(0, 4)]).tolist() for label in labels
    ]
    padded = Rows.of(rows).to_padded(range(len(rows)), 4, pad_id=PADDING)
    model = classifier()
    model.compile(
        keras.optimizers.Adam(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    model.fit({"ids": padded}, labels, batch_size=24, epochs=12, verbose=0)
    assert (np.argmax(model.predict({"ids": padded}, verbose=0), axis=1) == labels).mean() > 0.9
    return model


@pytest.fixture(scope="module")
def trained_translator():
    """Begins to copy its source; two epochs, after which its tokens still vary."""
    keras.utils.set_random_seed(0)
    model = randomize(translator(), 5)  # a seed whose tokens vary
    rng = np.random.default_rng(0)
    sources = [rng.choice([0, 3, 4, 6, 8], n).tolist() for n in rng.integers(1, 6, 64)]
    targets = [[START, *row, END] for row in sources]
    batches = BucketedBatches(
        {"source": sources, "target": [row[:-1] for row in targets]},
        [row[1:] for row in targets],
        [6],
        batch_size=16,
        pad_id={"source": PADDING, "target": TARGET_PADDING, "labels": TARGET_PADDING},
    )
    loss = LabelSmoothedCrossEntropy(0.0, ignore_class=TARGET_PADDING)
    model.compile(keras.optimizers.Adam(0.001), loss)
    fitted = model.fit(
        batches.dataset(epochs=2), epochs=2, steps_per_epoch=batches.steps, shuffle=False, verbose=0
    )
    assert fitted.history["loss"][-1] < fitted.history["loss"][0]
    return model


@pytest.fixture(scope="module")
def file(trained_translator):
    """Every role but those of a prompt; verified, with sources padded in their second half."""
    report = export_tflite(
        trained_translator,
        new_path(),
        ["predict", "generate", "encode", "decode"],
        source_length=(2, SOURCE_LENGTH),
        max_length=MAX_LENGTH,
        start_id=START,
        batch_size=2,
    )
    assert report.verification is not None
    return report


def tokens_of(model, rows=SOURCES, **options):
    """What Keras generates for each row alone, without any padding."""
    options = {"max_length": MAX_LENGTH, "start_id": START, **options}
    return np.concatenate([generate(model, np.array([row]), **options).tokens for row in rows])


def alone(model, row):
    return np.array(model({"ids": np.array([row])}, training=False))[0]


# The id


def test_the_embedding_masks_its_id():
    embedding = layers.TokenEmbedding(9, 4, mask_id=7)
    assert np.array(embedding.compute_mask(np.array([[0, 7, 3]]))).tolist() == [[True, False, True]]
    again = layers.TokenEmbedding.from_config(embedding.get_config())
    assert again.mask_id == 7
    assert layers.TokenEmbedding(9, 4, mask_zero=True).mask_id == 0
    assert layers.TokenEmbedding(9, 4).mask_id is None
    with pytest.raises(ValueError, match=r"^mask_id must be in the vocabulary, 0\.\.8, got 9$"):
        layers.TokenEmbedding(9, 4, mask_id=9)


def pad_ids(model):
    inputs = interface_of(model).inputs.values()
    return {x.name: x.pad_id for x in inputs if x.takes_ids}


def test_it_is_found_in_the_graph():
    assert pad_ids(translator()) == {"source": PADDING, "target": TARGET_PADDING}
    ids = keras.Input((None,), dtype="int32", name="ids")
    nested = keras.Model(ids, classifier()({"ids": ids}))
    assert pad_ids(nested) == {"ids": PADDING}
    assert pad_ids(keras.Model(ids, keras.layers.Embedding(9, 4, mask_zero=True)(ids))) == {
        "ids": 0
    }
    assert pad_ids(keras.Model(ids, keras.layers.Embedding(9, 4)(ids))) == {"ids": 0}
    image = keras.Input((4, 4, 3), dtype="uint8", name="image")
    assert pad_ids(keras.Model(image, keras.layers.Flatten()(image))) == {}


def test_two_ids_for_one_input_are_refused():
    ids = keras.Input((None,), dtype="int32", name="ids")
    both = [layers.TokenEmbedding(9, 4, mask_id=i)(ids) for i in (7, 8)]
    model = keras.Model(ids, keras.layers.Add()(both), name="two")
    message = "input 'ids' of two must have one padding id, but its embeddings mask 7 and 8"
    with pytest.raises(ValueError, match=message):
        pad_ids(model)


# A classifier


def test_a_classifier(trained_classifier):
    report = export_tflite(trained_classifier, new_path(), source_length=(2, SOURCE_LENGTH))
    assert {x.signature for x in report.verification.checks} == {"predict_2", "predict_5"}
    model = load(report.path)
    for signature in model.signatures.values():
        assert signature["inputs"]["ids"]["pad_id"] == PADDING
        assert signature["inputs"]["ids"]["padded"]
    for row in SOURCES:
        found = model.predict(row)["output"][0]
        np.testing.assert_allclose(found, alone(trained_classifier, row), **CLOSE)
    # All rows at once, of which most are padded.
    together = model.predict(SOURCES)["output"]
    expected = [alone(trained_classifier, row) for row in SOURCES]
    np.testing.assert_allclose(together, expected, **CLOSE)


def test_padding_with_0_would_be_wrong(trained_classifier):
    """Or the tests above could not fail."""
    padded = [row + [0] * (SOURCE_LENGTH - len(row)) for row in SOURCES[1:]]
    wrong = np.array(trained_classifier({"ids": np.array(padded)}))
    right = np.array([alone(trained_classifier, row) for row in SOURCES[1:]])
    assert np.abs(wrong - right).max() > 0.1


def test_a_classifier_of_keras_own_layers():
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = keras.layers.Embedding(SOURCE_SIZE, DIM, mask_zero=True)(ids)
    x = keras.layers.GlobalAveragePooling1D()(x)
    report = export_tflite(keras.Model(ids, keras.layers.Dense(2)(x)), new_path(), source_length=4)
    assert report.signatures["predict"]["inputs"]["ids"]["pad_id"] == 0


# A transformer


def test_segment_ids_have_a_vocabulary_of_two():
    """BERT's padding is masked, which is found with ids that its segments have."""
    model = models.bert(SOURCE_SIZE, max_length=9, dim=6, num_layers=1, num_heads=2)
    assert Request(model, source_length=[5, 9]).padded == {"tokens", "segments"}


def test_the_manifest_has_the_id_of_each_input(file):
    signatures = load(file.path).signatures
    for name in ("predict_5", "generate_2", "encode_5"):
        assert signatures[name]["inputs"]["source"]["pad_id"] == PADDING
    for name in ("predict_5", "decode"):
        assert signatures[name]["inputs"]["target"]["pad_id"] == TARGET_PADDING
    for name in ("generate_2", "generate_5", "decode"):
        assert signatures[name]["pad_id"] == TARGET_PADDING
    others = [key for key in signatures["decode"]["inputs"] if key != "target"]
    assert others and not any("pad_id" in signatures["decode"]["inputs"][key] for key in others)


def test_a_report_shows_it(file):
    assert f"generate_5(source (2, 5) int32 padded with {PADDING})" in str(file)


def test_generation_reads_padded_sources(file, trained_translator):
    expected = tokens_of(trained_translator)
    padded = generate(trained_translator, PADDED, MAX_LENGTH, START).tokens
    np.testing.assert_array_equal(padded, expected)
    assert len(np.unique(expected)) > 4
    model = load(file.path)
    np.testing.assert_array_equal(model.generate(SOURCES).tokens, expected)
    np.testing.assert_array_equal(model.generate(PADDED).tokens, expected)


def ended(tokens, first, end_id):
    """Rows (B, T) with the target's padding id after their end, `first` tokens being given."""
    result = tokens.copy()
    for row in result:
        ends = np.flatnonzero(row[first:] == end_id)
        if len(ends):
            row[first + ends[0] + 1 :] = TARGET_PADDING
    return result


def test_steps_from_outside_read_padded_sources(trained_translator):
    """With an end, after which rows hold the target's padding id."""
    tokens = tokens_of(trained_translator)
    end_id = telling_end(tokens)
    report = export_tflite(
        trained_translator,
        new_path(),
        ["encode", "prefill", "decode"],
        source_length=SOURCE_LENGTH,
        prompt_length=4,
        max_length=MAX_LENGTH,
        start_id=START,
        end_id=end_id,
        batch_size=3,
    )
    model = load(report.path)
    expected = ended(tokens, 1, end_id)
    assert (expected[:, -1] == TARGET_PADDING).any()
    np.testing.assert_array_equal(model.generate(SOURCES).tokens, expected)
    # Prompts of 3 tokens, of which the prefill of 4 reads 2.
    inputs = {"source": PADDED[:3], "target": np.array([[START, 0, 6], [START, 9, 0], [START] * 3])}
    wanted = ended(generate(trained_translator, inputs, MAX_LENGTH).tokens, 3, end_id)
    np.testing.assert_array_equal(model.generate(inputs).tokens, wanted)
    steps = np.stack(list(model.stream(inputs)), axis=1)
    np.testing.assert_array_equal(steps, wanted[:, 3 : 3 + steps.shape[1]])


def test_prompts_are_padded_with_the_id(trained_translator):
    """On the left, where a file's loop and Keras's go on from prompts of several lengths."""
    report = export_tflite(
        trained_translator,
        new_path(),
        source_length=SOURCE_LENGTH,
        prompt_length=4,
        max_length=MAX_LENGTH,
        start_id=START,
    )
    prompts = [[START, 0, 3], [START], [START, 6, 0, 0], [START, 0]]
    expected = np.concatenate(
        [
            generate(
                trained_translator,
                {"source": np.array([row]), "target": [prompt]},
                max_length=MAX_LENGTH,
            ).tokens
            for row, prompt in zip(SOURCES, prompts, strict=True)
        ]
    )
    inputs = {"source": SOURCES, "target": prompts}
    np.testing.assert_array_equal(load(report.path).generate(inputs).tokens, expected)


@pytest.mark.parametrize(
    "strategy", [None, pytest.param(Beam(2), marks=pytest.mark.slow)], ids=["greedy", "beam"]
)
def test_after_the_end_rows_hold_the_id(trained_translator, strategy):
    end_id = telling_end(tokens_of(trained_translator, strategy=strategy))
    options = {"max_length": MAX_LENGTH, "start_id": START, "end_id": end_id}
    generated = generate(trained_translator, PADDED, strategy=strategy, **options).tokens
    np.testing.assert_array_equal(generated, ended(generated, 1, end_id))
    assert (generated[:, -1] == TARGET_PADDING).any()
    report = export_tflite(
        trained_translator, new_path(), source_length=SOURCE_LENGTH, strategy=strategy, **options
    )
    np.testing.assert_array_equal(load(report.path).generate(SOURCES).tokens, generated)


def test_a_saved_model_of_strings_pads_ragged_rows(trained_classifier):
    import tensorflow as tf

    class Digits(keras.layers.Layer):
        """One id a digit, ragged."""

        def call(self, strings):
            characters = tf.strings.unicode_split(strings, "UTF-8")
            return tf.ragged.map_flat_values(tf.strings.to_number, characters, tf.int32)

    path = export_saved_model(
        trained_classifier, new_path().with_suffix(""), ["predict_text"], tokenizer=Digits()
    )
    served = tf.saved_model.load(str(path))
    found = served.signatures["predict_text"](ids=tf.constant(["34060", "80", "0"]))["output"]
    expected = [alone(trained_classifier, row) for row in SOURCES[:3]]
    np.testing.assert_allclose(found, expected, **CLOSE)


def test_random_inputs_leave_out_the_id():
    request = Request(translator(), ["predict"], source_length=40, max_length=40, batch_size=50)
    (signature,) = make_signatures(request)
    from keras_tfm.runtime.inspection.random_inputs import random_inputs

    made = random_inputs(signature.manifest({}).inputs)
    assert set(made["source"].ravel()) == set(range(SOURCE_SIZE)) - {PADDING}
    assert set(made["target"].ravel()) == set(range(TARGET_SIZE)) - {TARGET_PADDING}


def test_random_inputs_have_the_end_token_whose_features_are_returned():
    from keras_tfm.runtime.inspection.random_inputs import random_inputs
    from keras_tfm.runtime.manifest.manifest import Input

    tokens = Input(
        shape=[2, 5], dtype="int32", kind="input", padded=True, vocabulary_size=99, pad_id=0,
        end_id=7,
    )  # fmt: skip
    assert (random_inputs({"tokens": tokens})["tokens"][:, -1] == 7).all()
