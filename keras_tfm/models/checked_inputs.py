"""Refuses inputs whose names are not those of the model.

Example:

>>> import keras
>>> from keras_tfm.models.checked_inputs import check_inputs
>>> i, j = keras.Input((3,), name="tokens"), keras.Input((3,), name="segments")
>>> model = keras.Model([i, j], keras.layers.Concatenate()([i, j]), name="joined")
>>> check_inputs(model, {"tokens": 0, "segments": 0, "attention_mask": 0})
Traceback (most recent call last):
...
ValueError: joined expects the inputs ['tokens', 'segments'], got 'attention_mask' too: remove it
"""

from collections.abc import Mapping
from typing import Any

import keras


def check_inputs(model: keras.Model, inputs: Any) -> None:
    """Raises unless the dictionaries in `inputs` have the keys of the model's inputs.

    Keras 3.15 assigns the values of a dictionary with surplus keys to the inputs in alphabetical
    order, with no more than a warning, or ignores what could be a mask.

    Args:
        model: functional model.
        inputs: what it is called with: a tensor, or dictionaries and lists of them.

    Raises:
        ValueError: a key is missing or is no input of the model, or a tensor is ragged.
    """
    for x in keras.tree.flatten(inputs):
        if type(x).__name__ == "RaggedTensor":
            raise ValueError(
                f"{model.name} expects dense inputs, got a ragged tensor: pad it, x.to_tensor()"
            )
    _check(model, model.input, inputs, "")


def _check(model: keras.Model, struct: Any, inputs: Any, place: str) -> None:
    if isinstance(inputs, Mapping):
        expected = _by_name(struct)
        if expected is None:  # a list of lists: Keras compares the number of tensors
            return
        check_keys(model.name + place, list(expected), list(inputs))
        for name, value in expected.items():
            if isinstance(inputs[name], Mapping) or isinstance(value, Mapping | list | tuple):
                _check(model, value, inputs[name], f"{place}[{name!r}]")
    elif isinstance(inputs, list | tuple) and isinstance(struct, list | tuple):
        for i, (part, value) in enumerate(zip(struct, inputs, strict=False)):
            _check(model, part, value, f"{place}[{i}]")


def _by_name(struct: Any) -> dict[str, Any] | None:
    """The inputs by name: the keys of a dictionary, otherwise the names of the tensors."""
    if isinstance(struct, Mapping):
        return dict(struct)
    values = struct if isinstance(struct, list | tuple) else [struct]
    if not all(isinstance(x, keras.KerasTensor) for x in values):
        return None
    return {x.name: x for x in values}


def check_keys(owner: str, expected: list[str], received: list[str]) -> None:
    """Raises a ValueError unless the keys of a dictionary are those that its owner expects."""
    surplus = [name for name in received if name not in expected]
    missing = [name for name in expected if name not in received]
    if missing:
        raise ValueError(f"{owner} expects the inputs {expected}, got {received}")
    if surplus:
        named = ", ".join(map(repr, surplus))
        raise ValueError(
            f"{owner} expects the inputs {expected}, got {named} too: remove "
            + ("it" if len(surplus) == 1 else "them")
        )
