import keras
import numpy as np
import pytest
from execution import saving

from keras_tfm.layers import TokenEmbedding
from keras_tfm.training import MaskedAccuracy, Perplexity

# Predictions 1, 2, 1 and 0, 2, 0.
LOGITS = np.eye(3, dtype="float32")[np.array([[1, 2, 1], [0, 2, 0]])]


def accuracy(labels, weights=None, logits=LOGITS, **options):
    metric = MaskedAccuracy(**options)
    metric.update_state(np.array(labels), logits, sample_weight=weights)
    return float(metric.result())


@pytest.mark.parametrize(
    ("labels", "options", "expected"),
    [
        ([[1, 2, 2], [0, 0, 0]], {}, 2 / 3),
        ([[1, 2, 1], [1, 2, 1]], {}, 4 / 6),
        ([[1, 2, 2], [0, 0, 0]], {"ignore_class": None}, 4 / 6),
        ([[1, -100, 2], [-100, 2, -100]], {"ignore_class": -100}, 2 / 3),
        ([[1, 2, 2], [0, 0, 0]], {"ignore_class": 2}, 3 / 4),
    ],
)
def test_by_hand(labels, options, expected):
    assert accuracy(labels, **options) == pytest.approx(expected)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_logits_of_any_precision(dtype):
    labels = [[1, 2, 2], [0, 0, 0]]
    assert accuracy(labels, logits=LOGITS.astype(dtype)) == pytest.approx(2 / 3)


def test_nothing_counted_is_0():
    assert accuracy([[0, 0, 0], [0, 0, 0]]) == 0.0
    assert accuracy([[1, 2, 1], [1, 1, 1]], weights=np.zeros(2)) == 0.0
    assert float(MaskedAccuracy().result()) == 0.0


@pytest.mark.parametrize("ignore_class", [0, None])
@pytest.mark.parametrize("weights", [[3.0, 1.0], [[3.0], [1.0]], [[3.0] * 3, [1.0] * 3]])
def test_sample_weights(weights, ignore_class):
    # Right, right, wrong, each 3; right, wrong, and one that is not ignored but wrong, each 1.
    labels = [[1, 2, 2], [0, 1, 1]]
    expected = 6 / 11 if ignore_class == 0 else 7 / 12
    actual = accuracy(labels, weights=np.array(weights), ignore_class=ignore_class)
    assert actual == pytest.approx(expected)


def test_batches_add_up_by_labels_and_not_by_batches():
    metric = MaskedAccuracy()
    metric.update_state(np.array([[1, 0, 0]]), LOGITS[:1])
    metric.update_state(np.array([[2, 1, 1], [1, 2, 0]]), LOGITS)
    assert float(metric.result()) == pytest.approx((1 + 1 + 1) / (1 + 3 + 2))
    metric.reset_state()
    metric.update_state(np.array([[2, 2, 2]]), LOGITS[:1])
    assert float(metric.result()) == pytest.approx(1 / 3)


def test_batches_of_different_lengths_add_up_by_labels():
    """Keras's Mean takes the mean of each row first: there, a label of a long batch weighs less."""
    metric = MaskedAccuracy()
    metric.update_state(np.array([[1, 2]]), LOGITS[:1, :2])  # 2 of 2
    long = np.repeat(LOGITS[:1], 5, axis=1)  # 1 five times, 2 five times, 1 five times
    metric.update_state(np.array([[2] * 14 + [0]]), long)  # 5 of 14
    assert float(metric.result()) == pytest.approx(7 / 16)
    assert float(metric.count) == 16


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="counts in float32")
def test_more_labels_than_float32_can_count():
    """2^24 + 1 is not a float32: a counter of them stands still."""
    metric, keras_s = MaskedAccuracy(), keras.metrics.Mean()
    for x in (metric, keras_s):
        x.total.assign(2.0**24)
        x.count.assign(2.0**24)
    for _ in range(3):
        metric.update_state(np.array([[2]]), LOGITS[:1, :1])  # wrong
        metric.update_state(np.array([[1]]), LOGITS[:1, :1])  # right
        keras_s.update_state(1.0)
    assert (float(metric.total), float(metric.count)) == (2**24 + 3, 2**24 + 6)
    assert float(keras_s.count) == 2**24


def test_what_the_mask_of_the_logits_hides_does_not_count():
    logits = keras.ops.convert_to_tensor(LOGITS)
    logits._keras_mask = keras.ops.convert_to_tensor([[True, False, True], [False, True, True]])
    # Right, hidden, wrong; hidden, right, and one that is ignored.
    assert accuracy([[1, 2, 2], [1, 2, 0]], logits=logits) == pytest.approx(2 / 3)


def test_argmax_is_of_large_vocabularies_too():
    """Float32 would be exact to 16 million; float16 and bfloat16 labels would not."""
    size = 40_003
    labels = np.array([[39_999, 40_001, 32_769, size - 1]])
    logits = np.zeros((1, 4, size), "float32")
    logits[0, np.arange(4), [39_999, 40_000, 32_769, size - 1]] = 1.0
    assert accuracy(labels, logits=logits, dtype="float32") == 0.75


@pytest.mark.parametrize("jit_compile", [False, True])
def test_fit_reports_it(jit_compile):
    ids = keras.Input((None,), dtype="int32")
    embedding = TokenEmbedding(3, 3, mask_zero=True)
    model = keras.Model(ids, embedding(ids))
    embedding.embeddings.assign(np.eye(3))  # predicts the id itself
    inputs, labels = np.array([[1, 2, 2], [2, 1, 0]]), np.array([[1, 2, 1], [1, 2, 0]])
    model.compile(
        keras.optimizers.SGD(0.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[MaskedAccuracy(name="plain")],
        weighted_metrics=[MaskedAccuracy(name="weighted")],
        jit_compile=jit_compile,
    )
    history = model.fit(
        inputs, labels, sample_weight=np.array([3.0, 1.0]), batch_size=1, verbose=0
    ).history
    assert history["plain"][0] == pytest.approx(2 / 5)
    assert history["weighted"][0] == pytest.approx(6 / 11)


@saving
def test_the_configuration_makes_the_metric_again(tmp_path):
    metric = MaskedAccuracy(ignore_class=-100, name="here", dtype="float32")
    assert metric.get_config() == {"name": "here", "dtype": "float32", "ignore_class": -100}
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert type(again) is MaskedAccuracy
    assert again.get_config() == metric.get_config()
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, TokenEmbedding(3, 3)(ids))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True), metrics=[metric])
    model.fit(np.array([[1, 2]]), np.array([[1, -100]]) % 3, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    loaded.fit(np.array([[1, 2]]), np.array([[1, 2]]), verbose=0)
    assert "here" in [m.name for m in loaded.metrics[1].metrics]


@pytest.mark.parametrize("metric", [MaskedAccuracy, Perplexity])
def test_a_trailing_axis_of_one_changes_nothing(metric):
    labels = np.array([[1, 2, 2], [1, 0, 0]])
    weights = np.array([[1.0, 2.0, 4.0], [8.0, 1.0, 1.0]], "float32")
    results = []
    for y_true, weight in ((labels, weights), (labels[..., None], weights[..., None])):
        value = metric()
        value.update_state(y_true, LOGITS, weight)
        results.append((float(value.result()), float(value.count)))
    assert results[0] == results[1]
    rows = metric()
    rows.update_state(labels[:, :1], LOGITS[:, 0])
    assert float(rows.count) == 2.0


@pytest.mark.parametrize("metric", [MaskedAccuracy, Perplexity])
def test_labels_of_another_shape_are_refused(metric):
    with pytest.raises(ValueError, match=r"need labels of shape \(2, 3\), .* got \(2, 2\)"):
        metric().update_state(np.ones((2, 2), "int32"), LOGITS)
