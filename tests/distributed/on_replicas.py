"""Trains on one device and on logical CPUs of one machine, and says what came out."""

import sys

import keras
import numpy as np
import small_training  # first: it quietens TensorFlow
import tensorflow as tf
from keras import ops
from keras.src.backend.tensorflow import trainer

import keras_tfm
from keras_tfm import layers, training

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)

LOSSES = {
    "smoothed": training.LabelSmoothedCrossEntropy(),
    "ignored": keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
    "by mask": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
}


def strategy_of(replicas):
    return training.distribution("mirrored", [f"CPU:{n}" for n in range(replicas)])


def trained(model, inputs, labels, batch_size=8, whole=False):
    """Two epochs; `whole`: with validation and predictions, each a program to trace."""
    history = model.fit(
        inputs,
        labels,
        batch_size=batch_size,
        epochs=2,
        shuffle=False,
        verbose=0,
        validation_data=(inputs, labels) if whole else None,
    ).history
    predictions = model.predict(inputs, batch_size=batch_size, verbose=0) if whole else ()
    return {
        "weights": small_training.weights(model),
        "history": history,
        "predictions": np.ravel(predictions).tolist(),
    }


def run(
    replicas,
    parts=1,
    batch_size=8,
    loss="smoothed",
    rows=None,
    make=small_training.embedding,
    whole=False,
    hidden=False,
    **options,
):
    """A training; of a model that is traced in a moment, where `make` does not say another."""
    inputs, labels = small_training.data()
    if hidden:  # labels behind the padding too, which the mask of the logits hides
        labels = np.full_like(labels, 3)
    with strategy_of(replicas).scope():
        keras.utils.set_random_seed(1)
        model = make()
        if parts > 1:
            options["gradient_accumulation_steps"] = parts
        small_training.compiled(model, LOSSES[loss], **options)
    inputs = {name: inputs[name][:rows] for name in model.input}
    return trained(model, inputs, labels[:rows], batch_size, whole)


def recurrent():
    """Layers whose operations TensorFlow gets wrong, or refuses, without rows."""
    target = keras.Input((None,), dtype="int32", name="target")
    table = layers.TokenEmbedding(small_training.SIZE, dim=8, mask_zero=True)
    x = layers.ShortConvolution()(table(target))
    x = layers.Mamba2(2, 4, 3)(layers.GatedDeltaNet(2, 4)(x))
    return keras_tfm.Model({"target": target}, table(x, reverse=True))


def convolutional():
    """Layers of Keras that fail without rows, and a quotient that is not finite for zeros."""
    target = keras.Input((None,), dtype="int32", name="target")
    table = layers.TokenEmbedding(small_training.SIZE, dim=8, mask_zero=True)
    x = keras.layers.Conv1D(8, 3, padding="causal")(table(target))
    x = keras.layers.MaxPooling1D(2, strides=1, padding="same")(x)
    x = x * 40 / ops.sum(ops.cast(target, "float32"), axis=1)[:, None, None]
    return keras_tfm.Model({"target": target}, table(x, reverse=True))


def keras_alone():
    model = small_training.embedding()
    return keras.Model(model.input, model.output)


def strings(replicas):
    """Words in, as strings; the second replica has the shorter rows."""
    words = np.array([["a", "b", "c"], ["b", "a", ""], ["c", "", ""], ["b", "", ""]])
    labels = np.array([[1, 2, 3], [2, 1, 0], [3, 0, 0], [2, 0, 0]])
    with strategy_of(replicas).scope():
        keras.utils.set_random_seed(1)
        lookup = keras.layers.StringLookup(vocabulary=["a", "b", "c"], mask_token="")
        tokens = keras.Input((3,), dtype="string")
        embedding = layers.TokenEmbedding(5, dim=4, mask_zero=True)
        model = keras_tfm.Model(tokens, embedding(embedding(lookup(tokens)), reverse=True))
        small_training.compiled(model)
    data = tf.data.Dataset.from_tensor_slices((words, labels)).batch(4)
    history = model.fit(data, epochs=3, verbose=0).history
    predictions = model.predict(data.map(lambda x, y: x), verbose=0)
    return {
        "weights": small_training.weights(model),
        "history": history,
        "predictions": predictions.ravel().tolist(),
    }


def two_outputs(replicas, parts):
    """Logits of tokens and, for the rows, of classes."""
    inputs, labels = small_training.data()
    with strategy_of(replicas).scope():
        keras.utils.set_random_seed(1)
        tokens = keras.Input((None,), dtype="int32", name="target")
        embedding = layers.TokenEmbedding(small_training.SIZE, dim=8, mask_zero=True)
        x = embedding(tokens)
        outputs = {
            "tokens": embedding(x, reverse=True),
            "row": keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(x)),
        }
        model = keras_tfm.Model(tokens, outputs)
        model.compile(
            keras.optimizers.SGD(0.5),
            {
                "tokens": training.LabelSmoothedCrossEntropy(),
                "row": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            },
            loss_weights={"tokens": 1.0, "row": 0.3},
            gradient_accumulation_steps=parts,
        )
    rows = np.arange(small_training.ROWS) % 3
    return trained(model, inputs["target"], {"tokens": labels, "row": rows})


class Added(keras_tfm.Model):
    """A term beside the compiled loss, a mean over rows, which is doubled."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return 2 * loss + ops.mean(ops.square(y_pred))


def with_own_losses(replicas, parts=1):
    """Terms beside the compiled loss; the last batch has three rows, and with 4 replicas a 0."""
    inputs, _ = small_training.data()
    with strategy_of(replicas).scope():
        keras.utils.set_random_seed(1)
        tokens = keras.Input((None,), dtype="int32", name="target")
        x = layers.TokenEmbedding(small_training.SIZE, dim=8, mask_zero=True)(tokens)
        l2 = keras.regularizers.L2(0.3)
        x = keras.layers.GlobalAveragePooling1D()(x)
        x = keras.layers.Dense(8, activity_regularizer=l2)(x)
        x = keras.layers.Dense(3, kernel_regularizer=l2)(x)
        model = Added(tokens, x)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.SGD(0.5)
        model.compile(optimizer, loss, gradient_accumulation_steps=parts)
    return trained(model, inputs["target"][:19], np.arange(19) % 3)


def dropout():
    """The logits of two replicas that got the same rows, in training."""
    strategy = strategy_of(2)
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = small_training.model(dropout=0.5)
    inputs, _ = small_training.data()
    inputs = {name: tf.constant(array[:2]) for name, array in inputs.items()}
    logits = strategy.run(lambda: model(inputs, training=True))
    return [value.numpy().ravel().tolist() for value in strategy.experimental_local_results(logits)]


def stopped(replicas):
    """The numbers that are not finite after a batch with an infinite one, and what was said."""
    x = np.ones((8, 3), "float32")
    with strategy_of(replicas).scope():
        numbers = keras.Input((3,))
        y = keras.layers.Normalization()(numbers)
        y = keras.layers.BatchNormalization()(keras.layers.Dense(4)(y))
        model = keras_tfm.Model(numbers, keras.layers.Dense(1)(y))
        model.compile(keras.optimizers.Adam(0.1), "mse")
    stop = training.TerminateOnNaN(raise_error=False)
    x[6, 1] = np.inf
    model.fit(x, np.ones(8), batch_size=4, shuffle=False, verbose=0, callbacks=[stop])
    wrong = [v.path for v in model.variables if not np.isfinite(np.array(v)).all()]
    return {"wrong": [path for path in wrong if "loss" not in path], "message": stop.message}


class OwnStep(keras_tfm.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True), training=True)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return self.get_metrics_result()


class ParentsStep(keras_tfm.Model):
    def train_step(self, data):
        return super().train_step(data)


def moving_statistics(replicas, of_class=keras_tfm.Model, rows=9, **options):
    """Those of each replica; after nine rows in batches of eight, one replica has no last row."""
    strategy = strategy_of(replicas)
    with strategy.scope():
        numbers = keras.Input((3,))
        normalized = keras.layers.BatchNormalization(momentum=0.5, **options)(numbers)
        model = of_class(numbers, keras.layers.Dense(1)(normalized))
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(5, 2, (rows, 3))
    model.fit(x, np.ones(rows), batch_size=8, shuffle=False, verbose=0)
    statistics = [
        strategy.experimental_local_results(v.value) for v in model.layers[1].non_trainable_weights
    ]
    return [[x.numpy().tolist() for x in of_all] for of_all in statistics]


def own_step(replicas, of_class=OwnStep):
    """The kernel on each replica after two steps."""
    strategy = strategy_of(replicas)
    with strategy.scope():
        keras.utils.set_random_seed(1)
        x = keras.Input((3,))
        model = of_class(x, keras.layers.Dense(2)(x))
        model.compile(keras.optimizers.SGD(0.1), "mse")
    rng = np.random.default_rng(0)
    model.fit(rng.normal(size=(12, 3)), rng.normal(size=(12, 2)), 6, shuffle=False, verbose=0)
    kernels = strategy.experimental_local_results(model.layers[1].kernel.value)
    return [kernel.numpy().tolist() for kernel in kernels]


def message(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def refused():
    inputs, labels = small_training.data()
    del inputs["source"]
    strategy = strategy_of(2)

    def fit(batch_size=8, **options):
        with strategy.scope():
            model = small_training.compiled(small_training.embedding(), **options)
        model.fit(inputs, labels, batch_size=batch_size, verbose=0)

    def outside():
        model = small_training.embedding()
        with strategy.scope():
            small_training.compiled(model)

    def layer_outside():
        dense = keras.layers.Dense(3, name="outside")
        dense.build((None, 2))
        with strategy.scope():
            x = keras.Input((2,))
            small_training.compiled(keras_tfm.Model(x, dense(x)))

    def small_dataset():
        with strategy.scope():
            model = small_training.compiled(small_training.embedding())
        batches = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(1, drop_remainder=True)
        model.fit(batches, verbose=0)

    def synchronized():
        with strategy.scope():
            x = keras.Input((2,))
            layer = keras.layers.BatchNormalization(synchronized=True, name="norm")
            model = keras_tfm.Model(x, layer(x))
            small_training.compiled(model, gradient_accumulation_steps=2)

    return {
        "synchronized in parts": message(synchronized),
        "jit": message(lambda: fit(jit_compile=True)),
        "steps_per_execution": message(lambda: fit(steps_per_execution=2)),
        "small batch": message(lambda: fit(batch_size=1)),
        "small dataset batch": message(small_dataset),
        "outside": message(outside),
        "a layer outside": message(layer_outside),
        "optimizer": message(
            lambda: fit(optimizer=keras.optimizers.SGD(gradient_accumulation_steps=2))
        ),
    }


def keras_fails():
    """What `DistributedModel` overrides, as it is in Keras."""

    class BuiltByKeras(keras_tfm.Model):
        _maybe_symbolic_build = keras.Model._maybe_symbolic_build

    def built_by_keras():
        model = small_training.embedding()
        return BuiltByKeras(model.input, model.output)

    def scalar_logs():
        strategy = strategy_of(2)
        value = strategy.run(lambda: tf.constant(1.0))
        trainer._collective_all_reduce_multi_worker = lambda strategy: True
        trainer.reduce_per_replica(value, strategy, "mean")

    return {
        "odd first batch": message(lambda: run(2, batch_size=5, make=built_by_keras)),
        "scalar logs": message(scalar_logs),
    }


def clipped(replicas, **options):
    """Gradients of some 0.3 to 0.7, cut to a global norm of 0.1."""
    return run(replicas, optimizer=keras.optimizers.SGD(0.5, global_clipnorm=0.1), **options)


def all_at_once(replicas, parts):
    return clipped(replicas, parts=parts, batch_size=5, rows=11, hidden=True, whole=True)


def half(replicas):
    """Half precision, with the loss scaled."""
    return run(replicas, make=lambda: small_training.embedding(dtype="mixed_float16"))


def lower_rates(model):
    """Rates and weight decay by the depth of a block."""
    return training.layer_decay(keras.optimizers.SGD(0.5, weight_decay=0.1), model, 0.5)


TRANSFORMER = {"make": small_training.model, "optimizer": lower_rates}
FAST = {
    "1": lambda: run(1, **TRANSFORMER),
    "2": lambda: run(2, **TRANSFORMER),
    "all at once 1": lambda: all_at_once(1, 1),
    "all at once 2, 2 parts": lambda: all_at_once(2, 2),
    "rounded 1": lambda: run(1, make=small_training.rounded),
    "rounded 2, 2 parts": lambda: run(2, parts=2, make=small_training.rounded),
    "two outputs": lambda: two_outputs(1, 1),
    "two outputs, 2 replicas, 2 parts": lambda: two_outputs(2, 2),
    "own losses 1": lambda: with_own_losses(1),
    "own losses 4, 2 parts": lambda: with_own_losses(4, 2),
    "no rows 1": lambda: run(1, rows=9, make=recurrent),
    "no rows 2": lambda: run(2, rows=9, make=recurrent),
    "no rows, convolutions 1": lambda: run(1, rows=9, make=convolutional, whole=True),
    "no rows, convolutions 2": lambda: run(2, rows=9, make=convolutional, whole=True),
    "dropout": dropout,
    "stopped": lambda: stopped(2),
    "own step 1": lambda: own_step(1),
    "own step 2": lambda: own_step(2),
    "parent's step 2": lambda: own_step(2, ParentsStep),
    "moving statistics 1": lambda: moving_statistics(1),
    "moving statistics 2": lambda: moving_statistics(2),
    "moving statistics of an own step 2": lambda: moving_statistics(2, OwnStep, 8, renorm=True),
    "refused": refused,
}
# What looks like a fast one, and what a new version of Keras may change.
SLOW = {
    "small 1": lambda: run(1),
    "4": lambda: run(4),
    "ignored 1": lambda: run(1, loss="ignored"),
    "ignored 2": lambda: run(2, loss="ignored"),
    "odd batches 1": lambda: run(1, batch_size=5, rows=11, whole=True),
    "odd batches 2": lambda: run(2, batch_size=5, rows=11, whole=True),
    "hidden 1": lambda: run(1, hidden=True),
    "hidden 2": lambda: run(2, hidden=True),
    "2 replicas, 2 parts": lambda: run(2, parts=2),
    "clipped 1": lambda: clipped(1),
    "clipped 2": lambda: clipped(2),
    "strings 1": lambda: strings(1),
    "strings 2": lambda: strings(2),
    "by mask 1": lambda: run(1, loss="by mask"),
    "by mask 2": lambda: run(2, loss="by mask"),
    "3 parts": lambda: run(1, parts=3),
    "keras alone 1": lambda: run(1, make=keras_alone),
    "keras alone 2": lambda: run(2, make=keras_alone),
    "half 1": lambda: half(1),
    "half 2": lambda: half(2),
    "no rows 1": FAST["no rows 1"],
    "no rows 4": lambda: run(4, rows=9, make=recurrent),
    "no rows, convolutions 1": FAST["no rows, convolutions 1"],
    "no rows, convolutions 4": lambda: run(4, rows=9, make=convolutional, whole=True),
    "own losses 1": FAST["own losses 1"],
    "own losses 4": lambda: with_own_losses(4),
    "keras fails": keras_fails,
}

if __name__ == "__main__":
    cases = SLOW if sys.argv[1] == "slow" else FAST
    small_training.say(**{name: case() for name, case in cases.items()})
