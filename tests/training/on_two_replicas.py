"""What test_on_two_replicas.py runs in a process of its own: two logical CPUs, results as JSON."""

import json
import sys

import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

import keras  # noqa: E402
import numpy as np  # noqa: E402

from keras_tfm import models, training  # noqa: E402
from keras_tfm.layers import TokenEmbedding  # noqa: E402
from keras_tfm.models import Model  # noqa: E402
from keras_tfm.training.gradients import GradientWatch  # noqa: E402

ONE = tf.distribute.get_strategy()
TWO = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

# Seven labels that count on one replica, one on the other.
LABELS = np.array([[3, 6, 1, 2], [2, 4, 5, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
LOGITS = 3.0 * np.random.default_rng(5).normal(size=(4, 4, 7)).astype("float32")
LOGITS[0, 0, 3] = LOGITS[0, 1, 6] = LOGITS[2, 0, 1] = 20.0  # right, on either replica
X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(4, 2)).astype("float32")


def metrics(strategy):
    """Each replica counts its half, or the one its whole."""
    with strategy.scope():
        found = {"perplexity": training.Perplexity(), "accuracy": training.MaskedAccuracy()}
    count = strategy.num_replicas_in_sync
    for name, x in found.items():
        rows = 4 // count
        parts = [(LABELS[i:][:rows], LOGITS[i:][:rows]) for i in range(0, 4, rows)]
        values = [
            strategy.experimental_distribute_values_from_function(
                lambda context, k=k, parts=parts: tf.constant(
                    parts[context.replica_id_in_sync_group][k]
                )
            )
            for k in (0, 1)
        ]
        for _ in range(2):
            strategy.run(tf.function(x.update_state), values)
        found[name] = float(x.result()), float(keras.ops.convert_to_numpy(x.count))
    return found


def model_of(strategy, optimizer):
    with strategy.scope():
        x = keras.Input((3,), name="x")
        dense = keras.layers.Dense(2, use_bias=False, kernel_initializer="ones", name="dense")
        model = keras.Model(x, dense(x))
        model.compile(optimizer(), "mse")
    return model


def clipped(strategy):
    """How far a clipped step goes, and the norm."""
    model = model_of(strategy, lambda: keras.optimizers.SGD(1.0, global_clipnorm=0.5))
    watch = GradientWatch.of(model)
    model.fit(X, Y, batch_size=4, verbose=0)
    moved = float(np.linalg.norm(1.0 - model.get_weights()[0]))
    return moved, float(keras.ops.convert_to_numpy(watch.norm))


def momentum(strategy):
    """Three steps of Adam with a watch, the loss scaled and not."""
    weights = []
    for scaled in (False, True):

        def optimizer(scaled=scaled):
            adam = keras.optimizers.Adam(0.1)
            return keras.optimizers.LossScaleOptimizer(adam) if scaled else adam

        model = model_of(strategy, optimizer)
        GradientWatch.of(model).guard = True
        model.fit(X, Y, batch_size=4, epochs=3, verbose=0)
        weights.append(model.get_weights()[0].tolist())
    return weights


class OwnStep(Model):
    """It leaves a step to the base class."""

    def train_step(self, data):
        return super().train_step(data)


class OwnGradients(Model):
    """It applies gradients itself."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def own_steps(strategy):
    """The norm, weights and moving means with a watch, and weights after a step without it."""
    found = []
    for kind in (OwnStep, OwnGradients):
        with strategy.scope():
            x = keras.Input((3,), name="x")
            dense = keras.layers.Dense(2, kernel_initializer="ones", name="dense")
            norm = keras.layers.BatchNormalization(trainable=kind is OwnGradients, name="norm")
            model = kind(x, dense(norm(x)))
            model.compile(keras.optimizers.SGD(0.1), "mse")
        watch = GradientWatch.of(model)
        model.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
        means = norm.moving_mean
        means = [np.ravel(v).tolist() for v in getattr(means.value, "values", [means.value])]
        first = np.ravel(dense.kernel).tolist()
        watch.remove()
        model.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
        weights = np.ravel(dense.kernel).tolist()
        found.append([float(keras.ops.convert_to_numpy(watch.norm)), first, weights, means])
    return found


def not_finite(strategy):
    """A row on the second replica; the error, and the weights afterwards."""
    model = model_of(strategy, lambda: keras.optimizers.SGD(0.1))
    x = X.copy()
    x[3, 1] = np.inf
    try:
        model.fit(x, Y, batch_size=4, verbose=0, callbacks=[training.TerminateOnNaN()])
    except FloatingPointError as error:
        return str(error), model.get_weights()[0].tolist()


def generated(strategy):
    """Scores of a model under a strategy."""
    with strategy.scope():
        keras.utils.set_random_seed(1)
        ids = keras.Input((None,), dtype="int32", name="target")
        embedding = TokenEmbedding(7, 8)
        model = Model(ids, embedding(embedding(ids), reverse=True))
        model.compile(keras.optimizers.SGD(0.0), training.LabelSmoothedCrossEntropy(0.0))
    scores = training.GenerationScores(
        np.array([[3, 4], [5, 6]]),
        ["4 4 4 4 4 4", "6 6 6 6 5"],
        lambda ids: " ".join(map(str, ids)),
        max_length=5,
    )
    return model.fit(LABELS, LABELS, batch_size=4, verbose=0, callbacks=[scores]).history


def dino(strategy, **options):
    """Centre and prototypes after two steps, with crops that are not random."""
    keras.utils.set_random_seed(3)
    sizes = {"dim": 12, "num_layers": 1, "num_heads": 3, "intermediate_dim": 16}
    with strategy.scope():
        model = training.DINO(
            models.vit(None, 4, position_size=16, **sizes),
            keras.layers.CenterCrop(16, 16),
            keras.layers.CenterCrop(8, 8),
            num_local_crops=1,
            num_prototypes=6,
            hidden_dim=8,
            bottleneck_dim=5,
            **options,
        )
        model.compile(keras.optimizers.SGD(0.5))
    pixels = np.random.default_rng(4).integers(0, 256, (4, 20, 24, 3)).astype("uint8")
    model.fit(pixels, batch_size=4, epochs=2, shuffle=False, verbose=0)
    values = [keras.ops.convert_to_numpy(x) for x in (model.center, model.prototypes)]
    return [np.ravel(x).tolist() for x in values] + [int(keras.ops.convert_to_numpy(model.step))]


if __name__ == "__main__":
    cases = {
        "metrics": metrics,
        "clipped": clipped,
        "momentum": momentum,
        "own_steps": own_steps,
        "not_finite": not_finite,
        "generated": generated,
        "dino": dino,
        "sinkhorn": lambda x: dino(x, centering="sinkhorn_knopp", head_batch_norm=True),
    }
    strategies = {"one": ONE, "two": TWO}
    results = {
        name: {case: cases[case](strategy) for case in sys.argv[1:]}
        for name, strategy in strategies.items()
    }
    json.dump(results, sys.stdout)
