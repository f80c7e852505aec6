"""Gradients that are accumulated over the parts of a batch are those of the whole batch."""

import keras
import numpy as np
import pytest

import keras_tfm
from keras_tfm import layers, training

if keras.backend.backend() != "tensorflow":
    pytest.skip("accumulation needs TensorFlow", allow_module_level=True)

ROWS, BATCH = 10, 8  # the last batch has two rows, fewer than parts
IDS = np.random.default_rng(0).integers(1, 9, (ROWS, 5))
for _row in range(ROWS):
    IDS[_row, 1 + _row % 5 :] = 0
CLASSES = np.arange(ROWS) % 3
ADDED, FACTOR = keras.regularizers.L2(0.1), 0.1


class Own(keras_tfm.Model):
    """A term beside the compiled loss, and a metric that the loss updates."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        term = keras.ops.mean(keras.ops.square(y_pred))
        self.seen.assign_add(1.0)
        return 2.0 * loss + FACTOR * term


class Alone(keras_tfm.Model):
    """A loss of its own, compiled without one."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.square(y_pred))


class Adds(keras.layers.Layer):
    def call(self, x):
        self.add_loss(FACTOR * keras.ops.mean(keras.ops.square(x)))
        return x


DENSE = {
    "activity regularizer": {"activity_regularizer": ADDED},
    "kernel regularizer": {"kernel_regularizer": ADDED},
}


def build(kind):
    keras.utils.set_random_seed(0)
    ids = keras.Input((None,), dtype="int32", name="ids")
    embedding = layers.TokenEmbedding(9, 8, mask_zero=True)
    tokens = layers.FeedForward(16)(embedding(ids))
    x = layers.SequencePooling()(tokens)
    if kind == "add_loss":
        x = Adds()(x)
    if kind == "BatchNormalization":
        x = keras.layers.BatchNormalization()(x)
    logits = keras.layers.Dense(3, name="row", **DENSE.get(kind, {}))(x)
    if kind == "tokens":
        return keras_tfm.Model(ids, embedding(tokens, reverse=True))
    if kind == "two outputs":
        return keras_tfm.Model(ids, {"row": logits, "tokens": embedding(tokens, reverse=True)})
    model = {"compute_loss": Own, "no compiled loss": Alone}.get(kind, keras_tfm.Model)(ids, logits)
    if kind == "compute_loss":
        model.seen = keras.Variable(0.0, trainable=False)
    return model


def fit(kind, parts, **options):
    model = build(kind)
    reduction = {"sum": "sum", "sample weights": "mean_with_sample_weight"}
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=reduction.get(kind, "sum_over_batch_size")
    )
    tokens = training.LabelSmoothedCrossEntropy()
    losses = {
        "tokens": tokens,
        "two outputs": {"row": loss, "tokens": tokens},
        "no compiled loss": None,
    }
    labels = {"tokens": IDS, "two outputs": {"row": CLASSES, "tokens": IDS}}
    model.compile(
        keras.optimizers.SGD(0.1),
        losses.get(kind, loss),
        gradient_accumulation_steps=parts,
        **{"run_eagerly": True, **options},
    )
    weights = np.linspace(0.1, 2.0, ROWS) if kind == "sample weights" else None
    history = model.fit(
        IDS,
        labels.get(kind, CLASSES),
        sample_weight=weights,
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
    ).history
    return model, np.concatenate([w.ravel() for w in model.get_weights()]), history


KINDS = [
    "rows",
    "sum",
    "sample weights",
    "tokens",
    "two outputs",
    "compute_loss",
    "no compiled loss",
    "add_loss",
    "activity regularizer",
    "kernel regularizer",
]


def assert_equal(kind, **options):
    whole, expected, history = fit(kind, 1, **options)
    for parts in (3, 11):  # unequal ones; more than any batch has rows
        _, weights, other = fit(kind, parts, **options)
        np.testing.assert_allclose(weights, expected, atol=2e-6)  # float32, other sums
        for name, values in history.items():
            np.testing.assert_allclose(other[name], values, rtol=1e-5)
    return whole


# By default what differs in how it is counted; the others are like one of these.
DEFAULT = ("sample weights", "tokens", "two outputs", "add_loss", "kernel regularizer")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(x, marks=[pytest.mark.slow] * (x not in DEFAULT))
        for x in KINDS
        if x != "compute_loss"
    ],
)
def test_parts_are_the_whole_batch(kind):
    assert_equal(kind)


def test_an_overridden_loss_is_called_once_a_part():
    """Counting the labels calls it too: what it changes then is dropped."""
    _, expected, history = fit("compute_loss", 1)
    model, weights, other = fit("compute_loss", 3)
    assert float(model.seen) == 3 + 2
    np.testing.assert_allclose(weights[1:], expected[1:], atol=2e-6)
    np.testing.assert_allclose(other["loss"], history["loss"], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [x for x in KINDS if x != "compute_loss"])
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_parts_in_a_graph(kind, jit):
    assert_equal(kind, run_eagerly=False, jit_compile=jit)


def test_batch_normalization_sees_parts_with_rows():
    model, weights, history = fit("BatchNormalization", 4)
    assert np.isfinite(weights).all() and np.isfinite(history["loss"]).all()
    assert np.isfinite(model.predict(IDS, verbose=0)).all()


@pytest.mark.parametrize("weights", [None, "(B, T)", "(B, T, 1)"])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight"])
def test_losses_of_keras_with_labels_in_a_column(reduction, weights):
    """Of a masked output, with a label to ignore; as many rows as tokens, which broadcast."""
    rng = np.random.default_rng(0)
    ids, labels = IDS[:5], rng.integers(0, 3, (5, 5, 1))
    weights = weights and rng.random((5, 5) if weights == "(B, T)" else (5, 5, 1))
    ends = []
    for model_class, options in (
        (keras.Model, {}),
        (keras_tfm.Model, {}),
        (keras_tfm.Model, {"gradient_accumulation_steps": 3}),
    ):
        keras.utils.set_random_seed(0)
        x = keras.Input((None,), dtype="int32")
        tokens = layers.TokenEmbedding(9, 8, mask_zero=True)(x)
        model = model_class(x, keras.layers.Dense(3)(tokens))
        loss = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=0, reduction=reduction
        )
        model.compile(keras.optimizers.SGD(0.5), loss, run_eagerly=True, **options)
        value = model.train_on_batch(ids, labels, sample_weight=weights)
        ends.append([*model.get_weights(), value])
    for others in ends[1:]:
        for one, other in zip(ends[0], others, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
