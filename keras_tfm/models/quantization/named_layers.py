"""Layers by name, as the arguments `keep_float` and `keep_int8` give them.

>>> import keras
>>> from keras_tfm.models.quantization.named_layers import has_name
>>> has_name(keras.layers.Dense(3, name="head"), ["head"])
True
"""

import difflib
from collections.abc import Sequence

import keras

from keras_tfm.keras_internals import sublayers


def named_weights(
    model: keras.Layer, names: Sequence[str], option: str
) -> dict[str, list[keras.Variable]]:
    """The weights of rank 2 and higher of the layers of each name.

    Args:
        model: `keras.Model`.
        names: layer names, paths, or consecutive parts of paths: "self_attention/key" means the
            layer "key" of every layer "self_attention".
        option: str, the argument that has the names, for errors.

    Raises:
        TypeError: `names` is one string.
        ValueError: no layer has one of the names (the error lists similar names), or its layers
            have only vectors such as biases, which are never quantised.
    """
    if isinstance(names, str):
        raise TypeError(f"{option} must be a sequence of layer names, got the string {names!r}")
    paths: dict[str, list[keras.Variable]] = {}
    for layer in sublayers(model):
        for known in {_path(layer), layer.name}:
            paths.setdefault(known, []).extend(layer.weights)
    found = {}
    for name in names:
        matching = [weights for path, weights in paths.items() if _is_part(name, path)]
        if not matching:
            known = {*paths, *(part for path in paths for part in path.split("/"))}
            near = difflib.get_close_matches(name, sorted(known), 5, 0.4)
            raise ValueError(
                f"{option}: {model.name} has no layer {name!r}; "
                + (f"similar names are {near}" if near else f"it has {sorted(paths)[:10]}")
            )
        unique = {id(weight): weight for weights in matching for weight in weights}
        found[name] = [weight for weight in unique.values() if len(weight.shape) > 1]
        if not found[name]:
            raise ValueError(
                f"{option}: {name!r} has no matrix among its weights; "
                "others are never quantised, leave it out"
            )
    return found


def has_name(layer: keras.Layer, names: Sequence[str]) -> bool:
    """Whether `named_weights` finds the layer by one of the names."""
    return any(_is_part(name, known) for name in names for known in (_path(layer), layer.name))


def _path(layer: keras.Layer) -> str:
    return getattr(layer, "path", None) or layer.name


def _is_part(name: str, path: str) -> bool:
    return f"/{name}/" in f"/{path}/"
