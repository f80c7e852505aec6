"""What test_detection.py runs in a process of its own: one device and two logical CPUs, as JSON."""

import json

import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

import keras  # noqa: E402
import numpy as np  # noqa: E402
from small_detectors import SIZE, detector, targets_of  # noqa: E402

from keras_tfm.training import DetectionLoss  # noqa: E402


def trained(strategy):
    """Losses and weights, after steps whose objects are nearly all on the first replica."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (8, *SIZE, 3)).astype("uint8")
    y = targets_of(rng, 8, [5, 4, 5, 3, 0, 0, 1, 0])
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = detector(auxiliary_outputs=True, frozen_batch_norm=True)
        model.compile(keras.optimizers.SGD(0.05), DetectionLoss())
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    history.append(model.evaluate(x, y, batch_size=8, verbose=0))
    return history, [float(np.sum(np.array(w) ** 2)) for w in model.trainable_weights]


if __name__ == "__main__":
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    print(json.dumps([trained(tf.distribute.get_strategy()), trained(two)]))
