import math

import keras
import numpy as np
import pytest
import reference
from compare import assert_close, to_numpy
from execution import EVERY_MODE, execute, gradients, saving, tensorflow_only
from grids import first_of
from keras import ops

from keras_tfm.keras_internals import set_mask
from keras_tfm.layers import TokenEmbedding
from keras_tfm.training import LabelSmoothedCrossEntropy, RegionKLDivergence

B, T, V = 2, 5, 7
LABELS = np.array([[3, 6, 1, 0, 0], [2, 0, 0, 0, 0]])
# Float32 rounds at 6e-8; a sum over 7 classes and one over 10 labels.
FLOAT32 = 1e-6


@pytest.fixture
def logits():
    return 3.0 * np.random.default_rng(5).normal(size=(B, T, V)).astype("float32")


def each(labels, logits, label_smoothing):
    """The loss of each label by itself, none ignored."""
    return np.array(
        [
            [
                reference.label_smoothed_cross_entropy([a], [b], label_smoothing, None)
                for a, b in zip(*row, strict=True)
            ]
            for row in zip(labels, logits, strict=True)
        ]
    )


def test_by_hand():
    # Probabilities 1/4, 1/2, 1/4; smoothed by 0.3, q = (0.1, 0.8, 0.1).
    logits = math.log(2) * np.array([[[-2.0, -1.0, -2.0], [9.0, 9.0, 9.0]]])
    loss = LabelSmoothedCrossEntropy(0.3)
    expected = (0.1 * 2 + 0.8 * 1 + 0.1 * 2) * math.log(2)
    assert_close(loss(np.array([[1, 0]]), logits), expected, FLOAT32)


@pytest.mark.parametrize("ignore_class", [0, 3, -100, None])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("mode", EVERY_MODE)
def test_equals_the_float64_reference(logits, mode, label_smoothing, ignore_class):
    labels = np.where(LABELS == 6, ignore_class, LABELS) if ignore_class else LABELS
    loss = LabelSmoothedCrossEntropy(label_smoothing, ignore_class=ignore_class)
    actual = execute(mode, loss, labels.astype("int32"), logits)
    expected = reference.label_smoothed_cross_entropy(labels, logits, label_smoothing, ignore_class)
    assert_close(actual, expected, FLOAT32)


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_the_label_minus_100_may_be_the_one_that_is_ignored(logits, mode):
    loss = LabelSmoothedCrossEntropy(ignore_class=-100)
    labels = np.where(LABELS == 0, -100, LABELS)
    actual = execute(mode, loss, labels, logits)
    expected = LabelSmoothedCrossEntropy()(LABELS, logits)
    assert_close(actual, expected, FLOAT32)


@tensorflow_only
@pytest.mark.parametrize("bad", [-1, -V, -100, V, V + 1])
def test_other_labels_out_of_range_are_an_error(logits, bad):
    """-1 is not the last class."""
    import tensorflow as tf

    labels = np.where(LABELS == 6, bad, LABELS)
    expected = ValueError, tf.errors.InvalidArgumentError
    with pytest.raises(expected, match=r"in 0\.\.6|is not in \[0, 7\)"):
        LabelSmoothedCrossEntropy()(labels, logits)


@tensorflow_only
@pytest.mark.parametrize("weights", [None, np.ones((B, T), "float32")], ids=["", "weights"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("ignore_class", [0, -100])
def test_all_ignored_is_a_loss_of_0_with_finite_gradients(logits, ignore_class, dtype, weights):
    loss = LabelSmoothedCrossEntropy(ignore_class=ignore_class)
    labels = np.full((B, T), ignore_class)
    logits = ops.cast(logits, dtype)
    assert float(loss(labels, logits, weights)) == 0.0
    _, (gradient,) = gradients(lambda x: loss(labels, x, weights), [], logits)
    np.testing.assert_array_equal(to_numpy(gradient), 0.0)


@pytest.mark.parametrize("ignore_class", [0, None])
@pytest.mark.parametrize(
    "weights",
    [
        np.array([2.0, 0.5]),
        np.array([[2.0], [0.5]]),
        np.array([[1.0, 0.0, 2.0, 3.0, 1.0], [0.5, 4.0, 0.0, 1.0, 1.0]]),
        np.array([[1, 0, 2, 3, 1], [1, 4, 0, 1, 1]]),
        np.zeros((B, T)),
    ],
    ids=["rows", "columns", "labels", "integers", "zeros"],
)
def test_sample_weights(logits, weights, ignore_class):
    loss = LabelSmoothedCrossEntropy(0.1, ignore_class=ignore_class)
    actual = loss(LABELS, logits, sample_weight=weights)
    full = np.broadcast_to(weights if weights.ndim == 2 else weights[:, None], (B, T))
    if ignore_class is not None:
        full = full * np.not_equal(LABELS, ignore_class)
    total = np.sum(full * each(LABELS, logits, 0.1))
    assert_close(actual, total / full.sum() if full.any() else 0.0, FLOAT32)


@pytest.mark.parametrize("reduction", [None, "sum", "sum_over_batch_size"])
def test_other_reductions(logits, reduction):
    actual = LabelSmoothedCrossEntropy(0.1, reduction=reduction)(LABELS, logits)
    expected = each(LABELS, logits, 0.1) * (LABELS != 0)
    if reduction is not None:
        expected = expected.sum() / (1 if reduction == "sum" else B * T)
    assert_close(actual, expected, FLOAT32)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("float16", 6e4),  # the last exponential of float16 is of 11
        ("bfloat16", 1e6),
        ("float32", 1e6),
        ("float16", 3.0),
        ("bfloat16", 3.0),
    ],
)
def test_half_precision_logits_are_computed_in_float32(logits, dtype, size):
    logits = ops.cast(size * logits / np.abs(logits).max(), dtype)
    actual = LabelSmoothedCrossEntropy()(LABELS, logits)
    assert keras.backend.standardize_dtype(actual.dtype) == "float32"
    expected = reference.label_smoothed_cross_entropy(LABELS, to_numpy(logits))
    assert_close(actual, expected, FLOAT32)


@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("labels_dtype", ["int32", "uint16", "int64"])
def test_label_ids_are_exact(labels_dtype, dtype):
    """Float16 ends at 65,504 and counts by 32 from 32,768 on; bfloat16 by 256."""
    size = 40_003
    labels = np.array([[257, 32_769, 39_999, size - 1]], labels_dtype)
    logits = np.zeros((1, 4, size), "float32")
    logits[0, np.arange(4), labels[0]] = 20.0
    loss = LabelSmoothedCrossEntropy(0.0, dtype=dtype)(labels, logits)
    # log(1 + 40,002 e^-20), where any other label would have 20.
    assert_close(loss, 8.245e-05, 1e-6)


def test_the_label_may_be_one_axis_and_the_batch_none(logits):
    loss = LabelSmoothedCrossEntropy()
    expected = reference.label_smoothed_cross_entropy(LABELS[0], logits[0])
    assert_close(loss(LABELS[0], logits[0]), expected, FLOAT32)
    assert float(loss(LABELS[:0], logits[:0])) == 0.0  # fault 23
    assert float(loss(LABELS[:, :0], logits[:, :0])) == 0.0


def logits_model():
    """Ids to logits that carry the mask of the ids."""
    ids = keras.Input((None,), dtype="int32")
    x = TokenEmbedding(11, V, mask_zero=True)(ids)
    return keras.Model(ids, keras.layers.Dense(V)(x))


IDS = np.array([[3, 4, 0, 5, 6], [7, 8, 0, 0, 0]])


@pytest.mark.parametrize(
    ("weighted", "jit_compile"),
    first_of([(True, True), (False, False), (True, False), (False, True)], count=2),
)
def test_fit_and_evaluate_with_an_implicit_mask(weighted, jit_compile):
    """What counts is neither masked in the input nor ignored as a label."""
    model = logits_model()
    model.compile(
        keras.optimizers.SGD(0.0), LabelSmoothedCrossEntropy(0.1), jit_compile=jit_compile
    )
    weights = np.array([2.0, 0.5]) if weighted else np.ones(2)
    full = (LABELS != 0) * (IDS != 0) * weights[:, None]
    assert full.sum() != (LABELS != 0).sum()  # the mask of the input takes some away
    losses = each(LABELS, to_numpy(model(IDS)), 0.1)
    expected = np.sum(full * losses) / full.sum()
    keywords = {"sample_weight": weights} if weighted else {}
    actual = model.evaluate(IDS, LABELS, verbose=0, **keywords)
    assert_close(actual, expected, FLOAT32)
    history = model.fit(IDS, LABELS, verbose=0, **keywords).history
    assert_close(history["loss"][0], expected, FLOAT32)


@saving
def test_a_compiled_model_keeps_the_loss(tmp_path):
    model = logits_model()
    loss = LabelSmoothedCrossEntropy(0.25, ignore_class=3, reduction="sum", name="here")
    model.compile("sgd", loss)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.loss) is LabelSmoothedCrossEntropy
    assert loaded.loss.get_config() == loss.get_config()
    assert (loaded.loss.label_smoothing, loaded.loss.ignore_class) == (0.25, 3)
    assert_close(
        loaded.evaluate(IDS, LABELS, verbose=0), model.evaluate(IDS, LABELS, verbose=0), 0.0
    )


@pytest.mark.parametrize("label_smoothing", [-0.1, 1.0, 1.5])
def test_impossible_smoothing_is_refused(label_smoothing):
    message = rf"label_smoothing must be in \[0, 1\), got {label_smoothing}"
    with pytest.raises(ValueError, match=message):
        LabelSmoothedCrossEntropy(label_smoothing)


def ignored_by(how, labels):
    """What makes the loss ignore labels 0 besides `ignore_class`: arguments and a Keras mask."""
    kept = labels != 0
    loss = LabelSmoothedCrossEntropy(0.1, ignore_class=0 if how == "ignore_class" else None)
    weight = kept.astype("float32") if how == "sample_weight" else None
    return loss, weight, kept if how == "mask" else None


@pytest.mark.parametrize("how", ["ignore_class", "sample_weight", "mask"])
@tensorflow_only
def test_nan_logits_of_ignored_labels_reach_neither_loss_nor_gradients(logits, how):
    loss, weight, mask = ignored_by(how, LABELS)

    def of(x):
        x = ops.convert_to_tensor(x) + 0.0
        if mask is not None:
            set_mask(x, ops.convert_to_tensor(mask))
        return loss(LABELS, x, sample_weight=weight)

    expected, (_, (wanted,)) = of(logits), gradients(of, [], logits)
    spoiled = np.where(LABELS[..., None] == 0, np.float32(np.nan), logits)
    assert_close(of(spoiled), expected, FLOAT32)
    _, (found,) = gradients(of, [], spoiled)
    assert_close(found, wanted, FLOAT32)


def test_nan_logits_of_tokens_are_seen(logits):
    spoiled = np.where(LABELS[..., None] == 3, np.float32(np.nan), logits)
    assert np.isnan(to_numpy(LabelSmoothedCrossEntropy()(LABELS, spoiled)))


# Shapes of labels and weights


@pytest.mark.parametrize("weights", [None, (B,), (B, 1), (B, T), (B, T, 1)], ids=str)
def test_a_trailing_axis_of_one_changes_nothing(logits, weights):
    loss = LabelSmoothedCrossEntropy()
    if weights is not None:
        weights = np.random.default_rng(1).random(weights).astype("float32")
    by_label = np.broadcast_to(1.0 if weights is None else np.reshape(weights, (B, -1)), (B, T))
    counts = by_label * (LABELS != 0)
    expected = np.sum(counts * each(LABELS, logits, 0.1)) / np.sum(counts)
    for labels in (LABELS, LABELS[..., np.newaxis]):
        assert_close(loss(labels, logits, weights), expected, FLOAT32)
        assert_close(loss.count(labels, logits, weights), np.sum(counts), FLOAT32)


@pytest.mark.parametrize("weights", [None, (B,), (B, 1)], ids=str)
def test_labels_of_rows_as_a_column(logits, weights):
    """(B, 1) for logits (B, V), as tables of numbers have them."""
    loss = LabelSmoothedCrossEntropy(ignore_class=None)
    weights = None if weights is None else np.array([1.0, 3.0], "float32").reshape(weights)
    losses = each(LABELS[:, :1], logits[:, :1], 0.1)[:, 0]
    expected = np.average(losses, weights=None if weights is None else [1.0, 3.0])
    for labels in (LABELS[:, 0], LABELS[:, :1]):
        assert_close(loss(labels, logits[:, 0], weights), expected, FLOAT32)


@pytest.mark.parametrize("shape", [(T,), (B, T + 1), (1, T), (B, T, V), (B, T, 1, 1)], ids=str)
def test_labels_of_another_shape_are_refused(logits, shape):
    message = rf"loss: logits of shape \({B}, {T}, {V}\) need labels of shape \({B}, {T}\), .* got"
    with pytest.raises(ValueError, match=message):
        LabelSmoothedCrossEntropy(name="loss")(np.ones(shape, "int32"), logits)


@pytest.mark.parametrize("shape", [(T,), (1, T), (B, T + 1), (B, T, V)], ids=str)
def test_weights_of_another_shape_are_refused(logits, shape):
    message = rf"labels of shape \({B}, {T}\) need a sample_weight of shape \({B},\) or"
    with pytest.raises(ValueError, match=message):
        LabelSmoothedCrossEntropy()(LABELS, logits, np.ones(shape, "float32"))


def test_probabilities_of_regions_have_the_shape_of_logits():
    loss = RegionKLDivergence()
    with pytest.raises(ValueError, match=r"must have the same shape \(B, N, K\), got"):
        loss(np.ones((2, 1, 4), "float32"), np.zeros((2, 3, 4), "float32"))


def test_the_divergence_of_regions_counts_what_the_mask_shows():
    rng = np.random.default_rng(0)
    y_true = np.full((2, 3, 4), 0.25, "float32")
    y_pred = keras.ops.convert_to_tensor(rng.normal(size=(2, 3, 4)).astype("float32"))
    set_mask(y_pred, keras.ops.convert_to_tensor([[True, True, False], [True, False, False]]))
    weights = np.array([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]], "float32")
    for reduction, expected in (("mean_with_sample_weight", 11), ("sum_over_batch_size", 3)):
        loss = RegionKLDivergence(reduction=reduction)
        assert float(loss.count(y_true, y_pred, weights)) == expected
    assert float(RegionKLDivergence().count(y_true, y_pred)) == 3
