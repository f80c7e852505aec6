"""A program that trains with `Resume`, and is interrupted."""

import threading

import keras
import numpy as np
import tensorflow as tf

import keras_tfm
from keras_tfm import models, training

ROWS, LENGTH, SIZE, EPOCHS, STEPS = 22, 3, 7, 3, 6  # batches of 4: the last has 2 rows
IDS = np.random.default_rng(2).integers(1, SIZE, (ROWS, LENGTH))
LABELS = IDS[:, ::-1].copy()


class Interrupted(BaseException):
    """What a kill is to the program: nothing below catches it."""


class InterruptAt(keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self.left = step

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            raise Interrupted


class Sequence(keras.utils.PyDataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        return IDS[4 * index : 4 * index + 4], LABELS[4 * index : 4 * index + 4]


# The last that was started. In a process of tests, threads of an interrupted one still read ahead.
last_program = object()
lock = threading.Lock()


def endless():
    """Batches that NumPy's global state draws; of a program that was killed, none any more."""
    program = last_program
    while True:
        with lock:
            if program is not last_program:
                return
            rows = np.random.randint(0, ROWS, 4)  # noqa: NPY002  what set_random_seed seeds
        yield IDS[rows], LABELS[rows]


def data_of(kind):
    """The arguments of `fit`: data that are shuffled anew in each epoch."""
    if kind == "arrays":
        return {"x": IDS, "y": LABELS, "batch_size": 4}
    if kind == "sequence":
        return {"x": Sequence()}
    if kind == "generator":
        return {"x": endless(), "steps_per_epoch": STEPS}
    rows = tf.data.Dataset.from_tensor_slices((IDS, LABELS)).shuffle(9)
    if kind == "unknown length":
        rows = rows.filter(lambda x, y: True)
    rows = rows.batch(4)
    return {"x": rows.repeat(), "steps_per_epoch": STEPS} if kind == "repeated" else {"x": rows}


KINDS = ["arrays", "dataset", "unknown length", "repeated", "generator", "sequence"]


def program(
    folder,
    kind="arrays",
    *others,
    dim=5,
    rate=0.01,
    dropout=0.3,
    quantization=None,
    metrics=("accuracy",),
    epochs=EPOCHS,
    fit_options=None,
    **options,
):
    """What a user starts, and starts again: the model at its end, with its history."""
    global last_program
    with lock:
        last_program = object()
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Dropout(dropout)(keras.layers.Embedding(SIZE, dim)(tokens))
    model = keras_tfm.Model(tokens, keras.layers.Dense(SIZE)(x))
    if quantization:
        models.enable_quantization(model, quantization)
    model.compile(
        rate if isinstance(rate, keras.optimizers.Optimizer) else keras.optimizers.Adam(rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=list(metrics),
    )
    resume = training.Resume(folder, **options) if folder else None
    callbacks = [*([resume] if resume else []), *others]
    return fit(model, callbacks, kind, epochs=epochs, **(fit_options or {}))


def fit(model, callbacks, kind="arrays", **options):
    options = {**data_of(kind), "validation_data": (IDS, LABELS), "verbose": 0, **options}
    model.fit(**options, callbacks=callbacks)
    return model


def bits(model):
    variables = [*model.variables, *model.optimizer.variables]
    return b"".join(variable.numpy().tobytes() for variable in variables)
