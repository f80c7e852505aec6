"""A training of seconds, with more padding in some rows than in others."""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import keras_tfm
from keras_tfm import layers, models, training

ROWS, SOURCE, TARGET, SIZE = 22, 7, 5, 11


def data():
    """Inputs and labels: 1 to 5 of 5 tokens, the short ones first, so that replicas differ."""
    rng = np.random.default_rng(0)
    source, target = (rng.integers(1, SIZE, (ROWS, n)).astype("int32") for n in (SOURCE, TARGET))
    for row in range(ROWS):
        target[row, 1 + 4 * (row % 8) // 7 :] = 0
    labels = np.roll(target, -1, axis=1) * (target > 0)
    return {"source": source, "target": target}, labels


def model(dropout=0.0, dtype=None):
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16}
    return models.transformer(SIZE, **sizes, dropout=dropout, dtype=dtype)


def rounded(dropout=0.0, dtype=None):
    """`embedding`, 32 wide, with weights of 4 bits and rounded activations."""
    result = embedding(dropout, dtype, dim=32)
    models.enable_quantization(result, "int4", activations=True)
    return result


def embedding(dropout=0.0, dtype=None, dim=8):
    """A table that is read backwards: traced in a moment, its logits masked as a transformer's."""
    target = keras.Input((None,), dtype="int32", name="target")
    table = layers.TokenEmbedding(SIZE, dim=dim, mask_zero=True, dtype=dtype)
    x = layers.Dropout(dropout, dtype=dtype)(table(target))
    logits = table(keras.layers.Dense(dim, dtype=dtype)(x), reverse=True)
    return keras_tfm.Model({"target": target}, logits)


def compiled(small, loss=None, optimizer=None, **options):
    if callable(optimizer):
        optimizer = optimizer(small)
    # SGD: Adam divides the rounding of small gradients by themselves.
    small.compile(
        optimizer or keras.optimizers.SGD(0.5),
        loss or training.LabelSmoothedCrossEntropy(),
        metrics=[training.MaskedAccuracy()],
        **options,
    )
    return small


def weights(small):
    """All trainable weights as one vector."""
    return np.concatenate([v.numpy().ravel() for v in small.trainable_variables]).tolist()


def say(**results):
    """The last line that a program prints."""
    print("RESULT " + json.dumps(results), flush=True)


def heard(output):
    """What `say` said; the last of several."""
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    assert lines, output
    return json.loads(lines[-1].removeprefix("RESULT "))


if __name__ == "__main__":
    sys.exit("this file is imported by programs")
