"""Small models of pictures: a classifier, and a detector whose answers are known."""

import keras
import numpy as np

from keras_tfm import layers, models
from keras_tfm.export import export_tflite
from keras_tfm.runtime import ImageProcessor

LABELS = ["ant", "bee", "cat", "dog", "eel"]
OBJECTS = ["ball", "car", "sky"]
# What the detector finds: label, probability, and the box's centre, width and height.
FOUND = [
    (1, 0.9, (0.5, 0.5, 0.25, 0.5)),
    (0, 0.7, (0.25, 0.75, 0.4, 0.4)),
    (2, 0.3, (0.5, 0.1, 1.0, 0.2)),
]


def classifier(size=32, channels=3):
    """Five classes; the answers differ from picture to picture."""
    keras.utils.set_random_seed(1)
    body = models.vit(
        size,
        8,
        dim=24,
        num_layers=2,
        num_heads=3,
        intermediate_dim=32,
        image_mean=(0.5,) * channels,
        image_std=(0.5,) * channels,
    )
    model = models.image_classifier(body, len(LABELS), labels=LABELS)
    model.set_weights([4 * w if w.ndim > 1 else w for w in model.get_weights()])
    return model


def detector(size=(32, 48)):
    """Finds FOUND in a white picture; in a black one the first object has a probability of 0.5."""
    pixels = keras.Input((*size, 3), dtype="uint8", name="pixels")
    x = layers.ImageNormalization([0.0] * 3, [1.0] * 3)(pixels)
    whiteness = keras.layers.GlobalAveragePooling2D()(x)  # 0 to 1
    count, classes = len(FOUND), len(OBJECTS) + 1
    to_logits = keras.layers.Dense(count * classes, name="to_logits")
    to_boxes = keras.layers.Dense(count * 4, activation="sigmoid", name="to_boxes")
    logits = keras.layers.Reshape((count, classes), name="logits")(to_logits(whiteness))
    boxes = keras.layers.Reshape((count, 4), name="boxes")(to_boxes(whiteness))
    model = keras.Model(pixels, {"logits": logits, "boxes": boxes}, name="detector")
    # The other classes are a thousand times less probable than "no object", the last.
    wanted = np.full((count, classes), 1e-6)
    for row, (label, probability, _) in zip(wanted, FOUND, strict=True):
        row[label], row[-1] = probability, 1 - probability
    kernel = np.zeros((3, count, classes))
    bias = np.log(wanted)
    bias[0, FOUND[0][0]] = bias[0, -1]  # as probable as no object
    kernel[:, 0, FOUND[0][0]] = np.log(9) / 3  # and in a white picture 9 times as probable
    centres = np.array([box for _, _, box in FOUND]).clip(1e-6, 1 - 1e-6)
    to_logits.set_weights([kernel.reshape(3, -1), bias.ravel()])
    to_boxes.set_weights([np.zeros((3, count * 4)), np.log(centres / (1 - centres)).ravel()])
    return model


def export_pictures(model, path, labels=None, verify=False, **rule):
    """The file of one of these models."""
    height, width, channels = model.inputs[0].shape[1:]
    processor = ImageProcessor((height, width), channels=channels, **rule)
    export_tflite(model, path, images=processor, labels=labels, verify=verify)
    return path
