"""Tokens from a model: `generate`, and `Generator`, which keeps what it compiled."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.generation.loop import generation_loop
from keras_tfm.generation.model_inputs import (
    find_target,
    input_names,
    input_specs,
    vocabulary_sizes,
)
from keras_tfm.generation.stepping import check_stepping
from keras_tfm.generation.strategies import Greedy


class Generated(NamedTuple):
    """What was generated: `tokens` (B, T), int32, start token or prompt first, 0 after the end; and
    `scores` (B,), float32, the sum of the log-probabilities of the generated tokens."""

    tokens: np.ndarray
    scores: np.ndarray


class Generator:
    """Generates tokens with a trained model, compiled once for each shape of input.

    Args:
        model: a functional model whose output is logits (B, T, V) over the ids of the input that is
            stepped.
        max_length: T, the most tokens a row gets, prompt included.
        start_id: the token that every row begins with, where `inputs` bring no prompt.
        end_id: the token that ends a row; None never stops early.
        strategy: how the next token is chosen.
        target: the name of the input that is stepped; "target", or the only one, by default.

    Raises:
        ValueError: the model cannot be stepped (the error names the layer), or an argument is out
            of range.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.generation import Generator
    >>> from keras_tfm.models import transformer
    >>> model = transformer(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> generator = Generator(model, max_length=5, start_id=1)
    >>> generator({"source": np.array([[3, 4, 5], [6, 7, 0]])}).tokens.shape
    (2, 5)
    """

    def __init__(
        self,
        model: keras.Model,
        max_length: int,
        start_id: int | None = None,
        end_id: int | None = None,
        strategy: Greedy | None = None,
        target: str | None = None,
    ):
        self.model = model
        self.target = find_target(model, target)
        check_ids(model, self.target, max_length, start_id, end_id)
        check_stepping(model, self.target, length=max_length)
        self.max_length = max_length
        self.start_id = start_id
        self.end_id = end_id
        self.strategy = strategy or Greedy()
        self._specs = input_specs(model)
        self._vocabulary_sizes = vocabulary_sizes(model)
        self._loop = _compiled(self._run)

    def __call__(self, inputs: Any) -> Generated:
        """Generates a row for each row of `inputs`.

        Args:
            inputs: the model's inputs by name, without the stepped one, or with it as a prompt
                (B, P); or one array, where the model has one input besides the stepped one (or
                none: the prompt).
        """
        arrays = self._named(inputs)
        prompt = arrays.pop(self.target, None)
        if prompt is None:
            if self.start_id is None:
                raise ValueError(f"give a start_id, or a prompt as the input {self.target!r}")
            if not arrays:
                raise ValueError(f"inputs must have a prompt, {self.target!r}: got none")
            batch = len(next(iter(arrays.values())))
            prompt = np.full((batch, 1), self.start_id, "int32")
        if prompt.ndim != 2 or not 0 < prompt.shape[1] < self.max_length:
            raise ValueError(
                f"a prompt must have shape (B, P) with 0 < P < max_length ({self.max_length}), "
                f"got {prompt.shape}"
            )
        rows = {name: len(array) for name, array in {**arrays, self.target: prompt}.items()}
        if len(set(rows.values())) != 1:
            raise ValueError(f"all inputs must have the same number of rows, got {rows}")
        result = self._loop(arrays, prompt)
        return Generated(*(ops.convert_to_numpy(result[name]) for name in ("tokens", "scores")))

    def _run(self, inputs: dict[str, Any], prompt: Any) -> dict[str, Any]:
        return generation_loop(
            self.model, inputs, self.target, prompt, self.max_length, self.end_id, self.strategy
        )

    def _named(self, inputs: Any) -> dict[str, np.ndarray]:
        names = input_names(self.model)
        others = [name for name in names if name != self.target]
        if not isinstance(inputs, dict):
            if len(others) > 1:
                raise ValueError(f"the model has inputs {others}: give a dictionary of arrays")
            inputs = {(others or [self.target])[0]: inputs}
        missing = [name for name in others if name not in inputs]
        surplus = [name for name in inputs if name not in names]
        if missing or surplus:
            raise ValueError(
                f"inputs must be {others} and may have {self.target!r}; "
                f"missing: {missing}, unknown: {surplus}"
            )
        arrays = {}
        for name, x in inputs.items():
            array, wanted = np.asarray(ops.convert_to_numpy(x)), self._specs[name].dtype
            if "int" in wanted and not np.issubdtype(array.dtype, np.integer):
                raise TypeError(f"input {name!r} must be integers, got {array.dtype}")
            if wanted == "bool" and array.dtype.kind not in "biu":
                raise TypeError(f"input {name!r} must be bool, got {array.dtype}")
            if name != self.target and array.ndim != len(self._specs[name].shape):
                raise ValueError(
                    f"input {name!r} must have shape {tuple(self._specs[name].shape)}, "
                    f"got {array.shape}"
                )
            size = self._vocabulary_sizes.get(name)
            if size is not None and array.size and (array.min() < 0 or array.max() >= size):
                raise ValueError(
                    f"{name}: ids must be in 0..{size - 1}, got {array.min()}..{array.max()}"
                )
            arrays[name] = array.astype(wanted)
        return arrays


def generate(
    model: keras.Model,
    inputs: Any,
    max_length: int,
    start_id: int | None = None,
    end_id: int | None = None,
    strategy: Greedy | None = None,
    target: str | None = None,
) -> Generated:
    """Generates once; for more than one call make a `Generator`, which compiles once.

    The arguments are those of `Generator` and of its call.

    >>> import numpy as np
    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import transformer
    >>> model = transformer(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> generate(model, np.array([[3, 4, 5]]), max_length=4, start_id=1).tokens[0, 0]
    np.int32(1)
    """
    return Generator(model, max_length, start_id, end_id, strategy, target)(inputs)


def check_ids(
    model: keras.Model, target: str, max_length: int, start_id: int | None, end_id: int | None
) -> None:
    """Raises unless lengths and special tokens can be right for the model's logits."""
    if max_length < 2:
        raise ValueError(
            f"max_length must be at least 2, the start token included, got {max_length}"
        )
    if len(model.outputs) != 1:
        raise ValueError(
            f"a model that generates has one output, its logits; got {len(model.outputs)}"
        )
    size = model.outputs[0].shape[-1]
    taken = vocabulary_sizes(model).get(target, size)
    if taken < size:
        raise ValueError(
            f"the logits are over {size} ids, but the input {target!r} takes only {taken}"
        )
    for name, value in (("start_id", start_id), ("end_id", end_id)):
        if value is not None and not 0 <= value < size:
            raise ValueError(f"{name} must be in 0..{size - 1}, got {value}")


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A graph on TensorFlow. On JAX and PyTorch the loop runs as it is."""
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    return tf.function(function, autograph=False)
