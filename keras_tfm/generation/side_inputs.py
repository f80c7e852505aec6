"""Inputs with a value for each token of the stepped input: a step of decoding has none."""

from typing import Any

import keras
import numpy as np

from keras_tfm.generation.model_inputs import call_model, input_specs, vocabulary_sizes

# Neither may be 1, which would be broadcast; position tables may be short.
_LONG, _SHORT = 3, 2


def check_side_inputs(model: keras.Model, target: str) -> None:
    """Raises if another input must be as long as the stepped one.

    An `attention_mask` or `position_ids` of a model ported from `transformers`, for instance: who
    generates has no value of it for a token that is not chosen yet.

    Raises:
        ValueError: there are such inputs; the error names them.

    Example:

    >>> import keras
    >>> from keras_tfm import layers
    >>> from keras_tfm.generation.side_inputs import check_side_inputs
    >>> ids, places = (keras.Input((None,), dtype="int32", name=x) for x in ("ids", "places"))
    >>> x = layers.TokenEmbedding(7, 4)(ids) + keras.layers.Embedding(9, 4)(places)
    >>> check_side_inputs(keras.Model([ids, places], x, name="ported"), "ids")
    Traceback (most recent call last):
    ValueError: ported cannot be stepped: it reads ['places'] for each token of 'ids', and there \
are none for new tokens: build the model without them; generation hides the padding of prompts, \
layers such as PositionEmbedding count positions, and other values can be computed from the \
tokens inside the model
    """
    found = side_inputs(model, target)
    if found:
        raise ValueError(
            f"{model.name} cannot be stepped: it reads {found} for each token of {target!r}, and "
            "there are none for new tokens: build the model without them; generation hides the "
            "padding of prompts, layers such as PositionEmbedding count positions, and other "
            "values can be computed from the tokens inside the model"
        )


def side_inputs(model: keras.Model, target: str) -> list[str]:
    """The inputs that must be as long as the stepped one. Found by calling the model."""
    specs = input_specs(model)
    others = [x for name, x in specs.items() if name != target and x.shape[1:2] == (None,)]
    names = [name for name, x in specs.items() if any(x is other for other in others)]
    if not names or specs[target].shape[1:2] != (None,):
        return []
    known = vars(model).setdefault("_keras_tfm_side_inputs", {})
    if target not in known:
        known[target] = _side_inputs(model, names)
    return list(known[target])


def _side_inputs(model: keras.Model, names: list[str]) -> list[str]:
    if _accepts(model, names) or not _accepts(model, []):
        return []
    # As long as each other, such as a source and its mask: not as the target.
    free = {
        name
        for name in names
        if _accepts(model, [name])
        or any(_accepts(model, [name, other]) for other in names if other != name)
    }
    return [name for name in names if name not in free] or names


def _accepts(model: keras.Model, shorter: list[str]) -> bool:
    """Whether the model can be called with some inputs that are shorter than all others."""
    sizes = vocabulary_sizes(model)
    inputs: dict[str, Any] = {}
    for name, x in input_specs(model).items():
        length = _SHORT if name in shorter else _LONG
        shape = (1, *(length if d is None else d for d in x.shape[1:]))
        value = 1 if sizes.get(name, 2) > 1 else 0
        inputs[name] = np.full(shape, value).astype(x.dtype)
    try:
        call_model(model, inputs)
    except Exception:
        return False
    return True
