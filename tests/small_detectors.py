"""A small DETR, and random targets for it. Sizes are small primes where they may be."""

import numpy as np

from keras_tfm import models

CLASSES, QUERIES, OBJECTS = 3, 7, 5
SIZE = (48, 40)
BACKBONE = {"stem_dim": 4, "dims": (6, 8), "depths": (1, 1), "bottleneck": False}


def detector(size=SIZE, **options):
    given = {
        "num_queries": QUERIES, "dim": 12, "num_layers": 2, "num_heads": 3, "intermediate_dim": 11,
        "backbone": BACKBONE, "frozen_batch_norm": False, "dropout": 0.0, **options,
    }  # fmt: skip
    return models.detr(size, CLASSES, **given)


def boxes_of(rng, *shape):
    """Random boxes, (*shape, 4), whose centres are in the image."""
    return np.concatenate(
        [rng.uniform(0.1, 0.9, (*shape, 2)), rng.uniform(0.05, 0.6, (*shape, 2))], -1
    ).astype("float32")


def targets_of(rng, batch, counts=None):
    """Classes (B, M) and boxes (B, M, 4), padded, the padding anywhere."""
    counts = rng.integers(0, OBJECTS + 1, batch) if counts is None else counts
    classes = rng.integers(0, CLASSES, (batch, OBJECTS)).astype("int32")
    for row, count in zip(classes, counts, strict=True):
        row[rng.permutation(OBJECTS)[count:]] = -1
    return {"classes": classes, "boxes": boxes_of(rng, batch, OBJECTS)}


def outputs_of(rng, batch, layers=1):
    """Random outputs of a model, with those of `layers` - 1 decoder blocks before the last."""
    outputs = {
        "logits": 2 * rng.normal(size=(batch, QUERIES, CLASSES + 1)).astype("float32"),
        "boxes": boxes_of(rng, batch, QUERIES),
    }
    if layers > 1:
        shape = (batch, layers - 1, QUERIES)
        logits = 2 * rng.normal(size=(*shape, CLASSES + 1)).astype("float32")
        outputs |= {"auxiliary_logits": logits, "auxiliary_boxes": boxes_of(rng, *shape)}
    return outputs
