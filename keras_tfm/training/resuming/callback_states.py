"""The state of the callbacks of a `fit`, as values that a checkpoint can hold."""

import hashlib
import json
import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import numpy as np

# What JSON can hold, with arrays and tuples in another form.
Json: TypeAlias = Any


# Callbacks that only show the training; their attributes are handles and clocks.
DISPLAYS = (keras.callbacks.ProgbarLogger, keras.callbacks.TensorBoard)


class CallbackStates:
    """The attributes of callbacks that have changed since an instance of this class was made.

    An attribute is saved if it is a number, a string, None, a NumPy array, or a list, tuple or
    dictionary of these. Attributes that do not change, such as `patience`, are the program's.

    Args:
        callbacks: those of a `fit`, after their `on_train_begin`.

    >>> import keras
    >>> from keras_tfm.training.resuming.callback_states import CallbackStates
    >>> stopping = keras.callbacks.EarlyStopping(patience=3)
    >>> states = CallbackStates([stopping])
    >>> stopping.wait = 2
    >>> states.changes([])
    {'EarlyStopping 0': {'wait': 2}}
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]):
        self._callbacks: dict[str, keras.callbacks.Callback] = {}
        for callback in callbacks:
            if not isinstance(callback, DISPLAYS):
                kind = type(callback).__name__
                count = sum(type(x).__name__ == kind for x in self._callbacks.values())
                self._callbacks[f"{kind} {count}"] = callback
        # The objects, too, because their ids are compared.
        self._first = {
            name: {key: (_fingerprint(x), x) for key, x in _attributes(callback).items()}
            for name, callback in self._callbacks.items()
        }
        self._reported: set[tuple[str, str]] = set()

    def changes(self, arrays: list[np.ndarray]) -> dict[str, dict[str, Json]]:
        """The changed attributes by callback, as JSON values; their arrays go into `arrays`."""
        result: dict[str, dict[str, Json]] = {}
        for name, callback in self._callbacks.items():
            first = self._first[name]
            for key, value in _attributes(callback).items():
                if key in first and first[key][0] == _fingerprint(value):
                    continue
                its_arrays = list(arrays)
                try:
                    encoded = _encode(value, its_arrays)
                except TypeError:
                    self._report(name, key, value)
                    continue
                arrays[:] = its_arrays
                result.setdefault(name, {})[key] = encoded
        return result

    def restore(self, saved: dict[str, dict[str, Json]], arrays: Sequence[np.ndarray]) -> None:
        """Sets the attributes that `changes` returned, of callbacks that are still there."""
        for name, attributes in saved.items():
            for key, value in attributes.items():
                if name in self._callbacks:
                    setattr(self._callbacks[name], key, _decode(value, arrays))

    def _report(self, name: str, key: str, value: Json) -> None:
        """Warns once that an attribute is not saved; Keras's own callbacks make theirs again."""
        package = type(self._callbacks[name]).__module__.split(".")[0]
        known = package in ("keras", "keras_tfm") or key.startswith("_")
        if not known and (name, key) not in self._reported:
            self._reported.add((name, key))
            warnings.warn(
                f"Resume does not save {name.split()[0]}.{key}, expected numbers, strings, arrays, "
                f"lists or dictionaries, got {type(value).__name__}: after an interruption it "
                "starts anew",
                stacklevel=2,
            )


def _attributes(callback: keras.callbacks.Callback) -> dict[str, Json]:
    skipped = {"params", "_model", "model"}
    if hasattr(callback, "monitor_op"):
        skipped.add("min_delta")  # Keras changes its sign whenever it sets `monitor_op`
    return {key: value for key, value in vars(callback).items() if key not in skipped}


def _fingerprint(value: Json) -> Json:
    """Equal for equal values; of other objects their identity."""
    arrays: list[np.ndarray] = []
    try:
        text = json.dumps(_encode(value, arrays))
    except TypeError:
        return id(value)
    digest = hashlib.sha256(text.encode())
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _encode(value: Json, arrays: list[np.ndarray]) -> Json:
    """A JSON value, in which an array is its index in `arrays`; TypeError for other objects."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.kind not in "biufcV" or array.dtype != np.dtype(array.dtype.name):
            raise TypeError(f"expected an array of numbers, got {array.dtype}")
        arrays.append(array)
        return {"array" if kind is np.ndarray else "scalar": len(arrays) - 1}
    if kind in (list, tuple):
        return {kind.__name__: [_encode(x, arrays) for x in value]}
    if kind is dict:
        items = [[_encode(k, arrays), _encode(x, arrays)] for k, x in value.items()]
        return {"dict": items}
    raise TypeError(f"expected a plain value, got {kind.__name__}")


def _decode(value: Json, arrays: Sequence[np.ndarray]) -> Json:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "array":
        return arrays[content]
    if kind == "scalar":
        return arrays[content][()]
    if kind == "dict":
        return {_decode(k, arrays): _decode(x, arrays) for k, x in content}
    values = [_decode(x, arrays) for x in content]
    return tuple(values) if kind == "tuple" else values
