import math

import keras
import numpy as np
import pytest
import reference
from compare import assert_close
from execution import MODES, compiled, saving

from keras_tfm.layers import TokenEmbedding
from keras_tfm.training import LabelSmoothedCrossEntropy, MaskedAccuracy, Perplexity

B, T, V = 2, 5, 7
LABELS = np.array([[3, 6, 1, 0, 0], [2, 0, 0, 0, 0]])
FLOAT32 = 1e-6


@pytest.fixture
def logits():
    return 3.0 * np.random.default_rng(5).normal(size=(B, T, V)).astype("float32")


def perplexity(labels, logits, weights=None, **options):
    metric = Perplexity(**options)
    metric.update_state(np.array(labels), logits, weights)
    return float(metric.result())


def test_by_hand():
    # Probabilities 1/2, 1/4 and, ignored, 1/100: the geometric mean of 2 and 4.
    logits = np.log([[[2, 1, 1], [2, 1, 1], [1, 49, 50]]]).astype("float32")
    assert perplexity([[0, 1, 0]], logits, ignore_class=None) == pytest.approx(
        (2 * 4 * 100) ** (1 / 3), rel=FLOAT32
    )
    assert perplexity([[2, 1, 0]], logits) == pytest.approx(4, rel=FLOAT32)


def test_of_equal_probabilities_it_is_their_number():
    assert perplexity(LABELS, np.zeros((B, T, V))) == pytest.approx(V, rel=FLOAT32)


@pytest.mark.parametrize("ignore_class", [0, 3, None])
def test_equals_the_float64_reference(logits, ignore_class):
    expected = reference.label_smoothed_cross_entropy(LABELS, logits, 0.0, ignore_class)
    actual = perplexity(LABELS, logits, ignore_class=ignore_class)
    assert actual == pytest.approx(math.exp(expected), rel=FLOAT32)


def test_batches_add_up_by_labels_and_not_by_batches(logits):
    """Of different lengths, too."""
    metric = Perplexity()
    metric.update_state(LABELS[:1, :2], logits[:1, :2])
    metric.update_state(LABELS[:, 2:], logits[:, 2:])
    metric.update_state(LABELS[1:, :2], logits[1:, :2])
    expected = reference.label_smoothed_cross_entropy(LABELS, logits, 0.0, 0)
    assert float(metric.result()) == pytest.approx(math.exp(expected), rel=FLOAT32)
    metric.reset_state()
    assert float(metric.result()) == 1.0


def test_weights(logits):
    weights = np.array([[1.0, 0.0, 2.0, 3.0, 1.0], [0.5, 4.0, 0.0, 1.0, 1.0]])
    each = [
        [reference.label_smoothed_cross_entropy([y], [x], 0.0, None) for y, x in zip(*row)]  # noqa: B905
        for row in zip(LABELS, logits, strict=True)
    ]
    full = weights * (LABELS != 0)
    expected = math.exp(np.sum(full * each) / full.sum())
    assert perplexity(LABELS, logits, weights) == pytest.approx(expected, rel=FLOAT32)


def test_nothing_counted_is_1(logits):
    assert perplexity(np.zeros((B, T), int), logits) == 1.0
    assert perplexity(LABELS, logits, np.zeros(B)) == 1.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_logits_are_computed_in_float32(logits, dtype):
    logits = keras.ops.cast(logits, dtype)
    exact = keras.ops.convert_to_numpy(keras.ops.cast(logits, "float32"))
    expected = reference.label_smoothed_cross_entropy(LABELS, exact, 0.0, 0)
    assert perplexity(LABELS, logits) == pytest.approx(math.exp(expected), rel=FLOAT32)


@pytest.mark.parametrize("mode", MODES)
def test_eager_graph_and_xla_agree(logits, mode):
    metric = Perplexity()
    compiled(mode, lambda y, x: metric.update_state(y, x))(
        keras.ops.convert_to_tensor(LABELS), keras.ops.convert_to_tensor(logits)
    )
    expected = reference.label_smoothed_cross_entropy(LABELS, logits, 0.0, 0)
    assert float(metric.result()) == pytest.approx(math.exp(expected), rel=FLOAT32)


def test_after_fit_it_is_the_exponential_of_the_plain_loss_whatever_the_smoothing():
    ids = keras.Input((None,), dtype="int32")
    x = TokenEmbedding(11, V, mask_zero=True)(ids)
    model = keras.Model(ids, keras.layers.Dense(V)(x))
    rows = np.array([[3, 4, 0, 5, 6], [7, 8, 0, 0, 0]])
    model.compile("sgd", LabelSmoothedCrossEntropy(0.3), metrics=[Perplexity()])
    smoothed, found = model.evaluate(rows, LABELS, verbose=0, batch_size=1)
    model.compile("sgd", LabelSmoothedCrossEntropy(0.0))
    plain = model.evaluate(rows, LABELS, verbose=0)[0]
    assert_close(math.log(found), plain, FLOAT32)
    assert abs(smoothed - plain) > 1e-3


@saving
def test_the_configuration_makes_the_metric_again():
    metric = Perplexity(ignore_class=-100, name="here")
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert type(again) is Perplexity
    assert again.get_config() == {"name": "here", "dtype": None, "ignore_class": -100}


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX's arrays carry no note of it")
def test_probabilities_are_refused():
    x = keras.activations.softmax(keras.ops.convert_to_tensor(np.ones((1, 2, 3), "float32")))
    with pytest.raises(ValueError, match="needs logits, got probabilities: remove the softmax"):
        Perplexity().update_state(np.array([[1, 2]]), x)


@pytest.mark.parametrize("metric", [Perplexity, MaskedAccuracy])
def test_nan_logits_of_ignored_labels_do_not_count(logits, metric):
    results = []
    for fill in (0.0, np.nan):
        x = metric()
        x.update_state(LABELS, np.where(LABELS[..., None] == 0, np.float32(fill), logits))
        results.append(float(x.result()))
    assert results[0] == pytest.approx(results[1], rel=1e-6)
