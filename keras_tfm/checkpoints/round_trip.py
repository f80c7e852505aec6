"""Compares a saved model with what is loaded from its files.

Example:

>>> from keras_tfm.checkpoints.round_trip import check_equal
>>> from keras_tfm.models import gpt
>>> model = gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
>>> check_equal(model, model)
"""

import keras
import numpy as np
from keras import ops

from keras_tfm.checkpoints.config import Arguments
from keras_tfm.layers.images.patch_embedding import as_pair
from keras_tfm.models import Model

# Relative tolerance: a rebuilt model sums a few hundred products in another order.
TOLERANCE = 1e-4


# Why a model that was loaded from its own files gives other outputs.
_CAUSE = (
    "so it was changed after it was built, as by calibrate, or has an option that transformers "
    "does not support"
)


def check_equal(model: Model, again: Model, cause: str = _CAUSE) -> None:
    """Raises a ValueError unless both models give the same outputs for random inputs.

    Args:
        model, again: the two models.
        cause: str, the end of the message, what other outputs come from.
    """
    rng = np.random.default_rng(0)
    given = model.arguments
    arrays = _images(given, rng) if "image_size" in given else {}
    if any(x.name in ("audio", "features") for x in model.inputs):
        arrays |= _speech(given, rng)
    if "vocabulary_size" in given:
        arrays |= _ids(model, again, rng)
    if "image_id" in given:
        arrays["target"] = place_image(model, arrays["target"])
    if "region_dim" in given:
        arrays |= _regions(given, rng)

    def outputs(model: keras.Model) -> list[np.ndarray]:
        inputs = keras.tree.map_structure(lambda x: arrays[x.name], model.input)
        found = model(inputs, training=False)
        if isinstance(found, dict):  # auxiliary outputs are for training alone
            found = {key: x for key, x in found.items() if not key.startswith("auxiliary_")}
        return [ops.convert_to_numpy(y) for y in keras.tree.flatten(found)]

    first, second = outputs(model), outputs(again)
    if [x.shape for x in first] != [x.shape for x in second]:
        raise ValueError(
            f"{model.name} cannot be saved: expected outputs of shapes "
            f"{[x.shape for x in second]}, got {[x.shape for x in first]}"
        )
    for a, b in zip(first, second, strict=True):
        difference = float(np.max(np.abs(a - b), initial=0.0))
        if not difference <= TOLERANCE * max(1.0, float(np.abs(a).max())):
            raise ValueError(
                f"{model.name} cannot be saved: after loading, its outputs differ by "
                f"{difference:.2g}, {cause}"
            )


def _ids(model: Model, again: Model, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random ids for each input of a model of texts."""
    given = model.arguments
    length = min(9, given.get("max_length", 9))
    ids = rng.integers(0, given["vocabulary_size"], (2, 3, length), "int32")
    pad_id, end_id = given.get("pad_id"), given.get("end_id")
    if isinstance(end_id, int):  # a random text rarely has one, and CLIP pools there
        ids[:, 0, length // 2] = end_id
    if pad_id == again.arguments.get("pad_id"):
        ids[:, 1, length // 2 :] = pad_id or 0
    else:  # checkpoints of causal language models have no padding id: compare without padding
        ids[ids == pad_id] = (pad_id + 1) % given["vocabulary_size"]
    segments = np.zeros_like(ids[0])
    if any(x.name == "segments" for x in model.inputs):
        segments = rng.integers(0, given["num_segments"], segments.shape, "int32")
    return {
        "source": ids[0],
        "target": ids[1] % (given.get("target_vocabulary_size") or given["vocabulary_size"]),
        "tokens": ids[0],
        "segments": segments,
        "mask_positions": np.tile(np.arange(length, dtype="int32"), (3, 1)),
    }


def _regions(given: Arguments, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random regions of images; the last ones of the second image are padding."""
    count = given["num_regions"] or 7
    mask = np.ones((3, count), "int32")
    mask[1, count // 2 + 1 :] = 0
    return {
        "region_features": rng.normal(size=(3, count, given["region_dim"])).astype("float32"),
        "region_boxes": rng.uniform(size=(3, count, 4)).astype("float32"),
        "region_mask": mask,
    }


def _images(given: Arguments, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random pixels."""
    size = given["image_size"] or given.get("position_size") or 67
    size = as_pair("image_size", size)
    pixels = rng.integers(0, 256, (3, *size, len(given["image_mean"]))).astype("float32")
    if given.get("num_images") is not None:
        pixels = np.repeat(pixels[:, np.newaxis], given["num_images"], axis=1)
    return {"pixels": pixels}


def place_image(model: Model, target: np.ndarray) -> np.ndarray:
    """Texts (B, T) with an image each: its tokens behind the first id, and no other of them.

    Args:
        model: a model with the arguments of `models.smolvlm`.
        target: the texts, ids of its vocabulary.
    """
    image_id, size = model.arguments["image_id"], model.arguments["vocabulary_size"]
    target = np.where(target == image_id, (image_id + 1) % size, target)
    count = model.get_layer("connector").output.shape[1]
    image = np.full((len(target), count), image_id, target.dtype)
    return np.concatenate([target[:, :1], image, target[:, 1:]], axis=1)


def _speech(given: Arguments, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Noise, as samples and as features."""
    shape = (3, 2 * given.get("max_source_length", 9), given.get("num_mels", 1))
    return {
        "audio": rng.uniform(-0.5, 0.5, (3, 160 * shape[1])).astype("float32"),
        "features": rng.normal(size=shape).astype("float32"),
    }
