"""Takes the inputs of a model by their names.

Example:

>>> import warnings, keras
>>> from keras_tfm.models.checked_inputs import known_inputs
>>> i, j = keras.Input((3,), name="tokens"), keras.Input((3,), name="segments")
>>> model = keras.Model([i, j], keras.layers.Concatenate()([i, j]), name="joined")
>>> with warnings.catch_warnings(record=True) as caught:
...     warnings.simplefilter("always")
...     known_inputs(model, {"tokens": 1, "segments": 2, "labels": 3})
{'tokens': 1, 'segments': 2}
>>> print(caught[0].message)
joined expects the inputs ['tokens', 'segments']; ignored: 'labels'
"""

import warnings
from collections.abc import Mapping
from typing import Any

import keras


def known_inputs(model: keras.Model, inputs: Any) -> Any:
    """`inputs` without the values of dictionaries that are no inputs of the model.

    Keras 3.15 gives the values of a dictionary with surplus keys to the inputs in alphabetical
    order, with no more than a warning. Here they are ignored, with a warning that names them.

    Args:
        model: functional model.
        inputs: what it is called with: a tensor, or dictionaries and lists of them.

    Raises:
        ValueError: an input of the model is missing, or a tensor is ragged.
    """
    for x in keras.tree.flatten(inputs):
        if type(x).__name__ == "RaggedTensor":
            raise ValueError(
                f"{model.name} expects dense inputs, got a ragged tensor: pad it, x.to_tensor()"
            )
    return _take_known(model, model.input, inputs, "")


def check_class_weight(model: keras.Model, x: Any = None, y: Any = None) -> None:
    """Raises if Keras would misread `class_weight`, which it turns into weights of rows.

    Keras 3.15 takes integers (B, T) for one-hot rows: it would silently weigh each row by the
    position of its largest label. Of `tf.data`, it weighs labels with a last axis one by one.

    Args:
        model: a model of `fit(class_weight=)`.
        x, y: the data of `fit`.

    Raises:
        ValueError: the model has an output for each token or pixel, and labels for them.
    """
    shape = tuple(model.outputs[0].shape) if len(getattr(model, "outputs", ())) == 1 else ()
    if len(shape) < 3:
        return
    spec: Any = getattr(x, "element_spec", None)  # of `tf.data`
    is_dataset = isinstance(spec, tuple) and len(spec) > 1
    labels = getattr(spec[1] if is_dataset else y, "shape", None)
    if labels is None:  # of a `PyDataset`, for instance
        is_right = shape[1:-1] == (1,)
    else:
        is_right = len(labels) == 1 or tuple(labels[1:]) == (1,)
        is_right |= is_dataset and len(labels) == len(shape)
    if is_right:
        return
    raise ValueError(
        f"class_weight needs a model with one output for each row, got outputs {shape}: give the "
        "weight of each label instead, sample_weight=class_weights[labels], an array of the "
        "labels' shape"
    )


def _take_known(model: keras.Model, struct: Any, inputs: Any, place: str) -> Any:
    if isinstance(inputs, Mapping):
        expected = _by_name(struct)
        if expected is None:  # a list of lists: Keras compares the number of tensors
            return inputs
        check_keys(model.name + place, list(expected), list(inputs))
        # In the order of the model's: PyTorch's trees take dictionaries as they come.
        return {
            name: _take_known(model, value, inputs[name], f"{place}[{name!r}]")
            for name, value in expected.items()
        }
    if isinstance(inputs, list | tuple) and isinstance(struct, list | tuple):
        parts = (
            _take_known(model, part, value, f"{place}[{i}]")
            for i, (part, value) in enumerate(zip(struct, inputs, strict=False))
        )
        return [*parts, *inputs[len(struct) :]]
    return inputs


def _by_name(struct: Any) -> dict[str, Any] | None:
    """The inputs by name: the keys of a dictionary, otherwise the names of the tensors."""
    if isinstance(struct, Mapping):
        return dict(struct)
    values = struct if isinstance(struct, list | tuple) else [struct]
    if not all(isinstance(x, keras.KerasTensor) for x in values):
        return None
    return {x.name: x for x in values}


def check_keys(owner: str, expected: list[str], received: list[str]) -> None:
    """Raises a ValueError if a key of a dictionary is missing, and warns of surplus ones."""
    if not set(expected) <= set(received):
        raise ValueError(f"{owner} expects the inputs {expected}, got {received}")
    surplus = [name for name in received if name not in expected]
    if surplus:
        named = ", ".join(map(repr, surplus))
        warnings.warn(f"{owner} expects the inputs {expected}; ignored: {named}", stacklevel=2)
