"""What test_contrastive_loss.py runs: one logical CPU and N, largest differences as JSON."""

import json
import sys

import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)

import keras  # noqa: E402
import numpy as np  # noqa: E402
from small_clip import pairs, small_clip, small_siglip  # noqa: E402

from keras_tfm.training import ContrastiveLoss, SigmoidLoss  # noqa: E402

LOSSES = {x.__name__: x for x in (ContrastiveLoss, SigmoidLoss)}


def trained(strategy, loss):
    """Weights after three steps; the texts of some rows belong to the same thing."""
    with strategy.scope():
        model = small_siglip() if loss is SigmoidLoss else small_clip()
        model.compile(keras.optimizers.SGD(0.01 if loss is SigmoidLoss else 0.1), loss())
    before = model.get_weights()
    things = np.array([0, 1, 2, 3, 4, 1, 6, 7] * 3)
    model.fit(pairs(24), things, batch_size=8, epochs=1, shuffle=False, verbose=0)
    return before, model.get_weights()


def distance(ones, others):
    return float(np.max([np.abs(a - b).max() for a, b in zip(ones, others, strict=True)]))


if __name__ == "__main__":
    # TensorFlow gathers in groups of one size, and from one model, in a process.
    devices = [f"CPU:{i}" for i in range(int(sys.argv[1]))]
    loss = LOSSES[sys.argv[2]]
    before, one = trained(tf.distribute.get_strategy(), loss)
    _, several = trained(tf.distribute.MirroredStrategy(devices), loss)
    print(json.dumps({"changed": distance(before, one), "apart": distance(one, several)}))
