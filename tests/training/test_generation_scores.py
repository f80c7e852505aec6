import functools
import importlib.util

import keras
import numpy as np
import pytest
from execution import saving, tensorflow_only
from small_models import START, encoder_decoder

from keras_tfm import layers
from keras_tfm.generation import Beam, generate
from keras_tfm.training import GenerationScores, LabelSmoothedCrossEntropy

pytestmark = tensorflow_only
sacrebleu = pytest.importorskip("sacrebleu")

SOURCES = np.array([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0], [2, 0, 0, 0, 0], [5, 5, 1, 10, 0]])
LENGTH, END = 9, 7
OPTIONS = {"max_length": LENGTH, "start_id": START, "end_id": END}
REFERENCES = ["a b c d", "d e f g h", "b a", "c d e f"]


def words(ids):
    return " ".join(chr(ord("a") + i - 1) for i in ids)


@functools.cache
def trained():
    """It learns nothing, so that all tests may share what is compiled for it."""
    model = encoder_decoder()
    model.compile(keras.optimizers.SGD(0.0), LabelSmoothedCrossEntropy())
    return model


def fit(model, *callbacks, epochs=1):
    batch = {"source": SOURCES, "target": SOURCES[:, :4]}
    return model.fit(batch, SOURCES[:, 1:], callbacks=callbacks, epochs=epochs, verbose=0).history


@functools.cache
def expected_texts(strategy=None):
    model = trained()
    texts = []
    for row in generate(model, SOURCES, strategy=strategy, **OPTIONS).tokens.tolist():
        row = row[1:]
        row = row[: row.index(END)] if END in row else row
        texts.append(words(i for i in row if i))
    return texts


@pytest.mark.parametrize(
    "strategy", [None, pytest.param(Beam(3), marks=pytest.mark.slow)], ids=["greedy", "beam"]
)
def test_the_scores_are_sacrebleu_s_of_what_is_generated(strategy):
    model = trained()
    callback = GenerationScores(
        SOURCES, REFERENCES, words, batch_size=3, strategy=strategy, **OPTIONS
    )
    history = fit(model, callback)
    assert callback.texts == expected_texts(strategy)
    bleu = sacrebleu.corpus_bleu(callback.texts, [REFERENCES]).score
    chrf = sacrebleu.corpus_chrf(callback.texts, [REFERENCES]).score
    assert history["val_bleu"] == [pytest.approx(bleu)]
    assert history["val_chrf"] == [pytest.approx(chrf)]
    assert 0 < chrf < 100


def test_the_answers_themselves_score_100():
    model = trained()
    texts = expected_texts()
    references = [["something else", x] if i else x for i, x in enumerate(texts)]
    callback = GenerationScores({"source": SOURCES}, references, words, **OPTIONS)
    history = fit(model, callback)
    assert history["val_bleu"] == [pytest.approx(100)]
    assert history["val_chrf"] == [pytest.approx(100)]


def test_references_are_texts_of_any_kind():
    """As Python, NumPy and TensorFlow's datasets have them."""
    tf = pytest.importorskip("tensorflow")
    texts = ["ä b", "b", "c", "d"]
    encoded = [x.encode() for x in texts]
    expected = [[x] for x in texts]
    for given in (texts, encoded, np.array(texts), np.array(encoded), tf.constant(texts)):
        assert GenerationScores(SOURCES, given, words, **OPTIONS).references == expected
    pairs = tf.constant([[x, "e"] for x in texts])
    callback = GenerationScores(SOURCES, pairs, words, **OPTIONS)
    assert callback.references == [[x, "e"] for x in texts]


class Shared:
    """A metric of one's own: the share of texts that are right."""

    score = 0.0

    def corpus_score(self, texts, references):
        self.score = np.mean([a == b for a, b in zip(texts, references[0], strict=True)])
        return self


def test_other_metrics_epochs_and_how_many():
    model = trained()
    texts = expected_texts()
    callback = GenerationScores(
        SOURCES, [texts[0], "?", *texts[2:]], words, max_examples=2, every=2, prefix="test_",
        metrics={"exact": Shared()}, **OPTIONS,
    )  # fmt: skip
    logs = []

    class Logs(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs_of_epoch=None):
            logs.append(logs_of_epoch.get("test_exact"))

    history = fit(model, callback, Logs(), epochs=4)
    assert logs == [None, 0.5, None, 0.5]
    assert history["test_exact"] == [0.5, 0.5] and "val_bleu" not in history


@pytest.mark.slow
@saving
def test_early_stopping_and_checkpoints_can_watch_them(tmp_path):
    model = trained()
    saving = keras.callbacks.ModelCheckpoint(
        tmp_path / "best.weights.h5", monitor="val_chrf", mode="max",
        save_best_only=True, save_weights_only=True,
    )  # fmt: skip
    stopping = keras.callbacks.EarlyStopping("val_chrf", mode="max", patience=2)
    scores = GenerationScores(SOURCES, REFERENCES, words, **OPTIONS)
    history = fit(model, scores, saving, stopping, epochs=6)
    assert len(history["loss"]) == 3  # nothing is learnt at a rate of 0
    assert (tmp_path / "best.weights.h5").exists()


@pytest.mark.slow
def test_prompts_are_no_part_of_the_answers():
    model = trained()
    inputs = {"source": SOURCES, "target": [[1, 4], [1], [1, 2, 3], [1, 5]]}
    callback = GenerationScores(inputs, REFERENCES, words, max_length=LENGTH, batch_size=4)
    fit(model, callback)
    tokens = generate(model, inputs, max_length=LENGTH).tokens.tolist()
    rows = [row[len(prompt) :] for row, prompt in zip(tokens, inputs["target"], strict=True)]
    assert callback.texts == [words(np.trim_zeros(row, "b")) for row in rows]


@pytest.mark.parametrize("prompts", [[[1], [1, 2, 3]], np.array([[1, 7, 7], [1, 2, 3]])])
def test_padding_is_the_id_that_the_target_s_embedding_masks(prompts):
    """Padding is 7 here, and 0 a token, the only one that the model generates."""
    target = keras.Input((None,), dtype="int32", name="target")
    x = layers.TokenEmbedding(11, 6, mask_id=7)(target)
    bias = keras.initializers.Constant(np.eye(11)[0])
    logits = keras.layers.Dense(11, kernel_initializer="zeros", bias_initializer=bias)(x)
    model = keras.Model(target, logits)
    # The result of the first is padded by 2.
    assert generate(model, prompts, max_new_tokens=2).tokens.tolist() == [
        [1, 0, 0, 7, 7],
        [1, 2, 3, 0, 0],
    ]
    callback = GenerationScores(
        prompts, ["0 0", "0 0"], lambda ids: " ".join(map(str, ids)), max_new_tokens=2,
        metrics={"exact": Shared()}, batch_size=2,
    )  # fmt: skip
    callback.set_model(model)
    callback.on_train_begin()
    assert callback.score() == {"exact": 1.0}
    assert callback.texts == ["0 0", "0 0"]


def test_it_follows_the_weights():
    model = trained()
    callback = GenerationScores(SOURCES, REFERENCES, words, **OPTIONS)
    fit(model, callback)
    assert callback.texts == list(expected_texts())
    weights = model.get_weights()
    model.set_weights([-w for w in weights])
    callback.score()
    assert callback.texts != list(expected_texts())
    model.set_weights(weights)
    callback.score()
    assert callback.texts == list(expected_texts())


class HuggingFace:
    def decode_batch(self, rows):
        return [words(row) for row in rows]


class SentencePiece:
    def decode(self, row):
        return words(row)


class KerasHub:
    def __call__(self, text):
        raise AssertionError

    def detokenize(self, rows):
        return [words(row).encode() for row in rows]


@pytest.mark.parametrize("decode", [HuggingFace(), SentencePiece(), KerasHub()])
def test_tokenizers_of_several_kinds(decode):
    from keras_tfm.training.generation_scores import _decoder

    assert _decoder(decode)([[1, 2], []]) == ["a b", ""]


def test_what_is_no_text_is_not_scored():
    from keras_tfm.training.generation_scores import _decoder

    with pytest.raises(TypeError, match=r"decode must return a text .* got None"):
        _decoder(lambda ids: None)([[1, 2]])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"references": ["a"]}, ValueError, r"got \[4\] rows and 1 references"),
        ({"decode": 3}, TypeError, "decode must be a function from ids to text, .* got int"),
        ({"every": 0}, ValueError, "every must be at least 1, got 0"),
        ({"max_examples": 0}, ValueError, "max_examples must be at least 1, got 0"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"batch_size": 2.0}, TypeError, "batch_size must be an integer, got 2.0"),
        ({"references": "abcd"}, TypeError, "must be a list with a text for each row, got 'abcd'"),
        ({"references": ["a", None, "c", "d"]}, TypeError, "must be texts.*got None in row 1"),
        ({"references": [["a"], [3, 4], "c", "d"]}, TypeError, "must be texts.*got 3 in row 1"),
        ({"references": [["a"], [], "c", "d"]}, ValueError, r"at least one text.*\[\] in row 1"),
        ({"metrics": ["bleu"]}, TypeError, r"metrics must be a dict .* got \['bleu'\]"),
        ({"metrics": {"exact": "equal"}}, TypeError, "corpus_score.*got 'equal' for 'exact'"),
    ],
)
def test_what_does_not_fit_is_refused(options, error, message):
    arguments = {"inputs": SOURCES, "references": REFERENCES, "decode": words, **OPTIONS}
    with pytest.raises(error, match=message):
        GenerationScores(**{**arguments, **options})


def test_a_model_that_cannot_be_stepped_is_refused_before_it_is_trained():
    ids = keras.Input((None,), dtype="int32", name="target")
    x = keras.layers.Conv1D(11, 3, padding="same")(keras.layers.Embedding(11, 8)(ids))
    model = keras.Model(ids, x)
    model.compile("sgd", LabelSmoothedCrossEntropy())
    before = model.get_weights()
    callback = GenerationScores(SOURCES[:, :2], REFERENCES, words, max_length=5)
    with pytest.raises(ValueError, match=r"layer 'conv1d.*' gives another result"):
        model.fit(SOURCES, SOURCES, callbacks=[callback], verbose=0)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


def test_sacrebleu_is_asked_for_by_name(monkeypatch):
    import sys

    assert importlib.util.find_spec("sacrebleu")
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*sacrebleu.*extra .scores"):
        GenerationScores(SOURCES, REFERENCES, words, **OPTIONS)
