"""A constraint by a Python function."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import keras
import numpy as np
from keras import ops

from keras_tfm.generation.processors.processor import NEVER, Processor
from keras_tfm.generation.strategies.strategy import Context
from keras_tfm.layers.types import Tensor


@dataclass(frozen=True)
class PrefixConstrained(Processor):
    """Allows the tokens that a Python function returns for the tokens so far.

    The same as `prefix_allowed_tokens_fn` in transformers. The function is called once per row and
    step, in Python; neither XLA nor an exported file can do that. There use `Grammar`, or a
    function of tensors as a processor.

    Args:
        function: from the index of the input row (int) and the tokens of the row, prompt included
            (int32, (N,)), to the ids that may follow. It is not called for rows that have ended.

    >>> from keras import ops
    >>> from keras_tfm.generation import Context
    >>> from keras_tfm.generation.processors import PrefixConstrained
    >>> greater = PrefixConstrained(lambda row, tokens: range(tokens[-1] + 1, 4))
    >>> context = Context(ops.array([[1, 0]]), ops.array([[True, False]]), 0, None)
    >>> greater(ops.array([[0.0, 0.5, 1.0, 1.5]]), context).numpy().tolist()
    [[-inf, -inf, 1.0, 1.5]]
    """

    function: Callable[[int, np.ndarray], Iterable[int]]
    calls_python: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"function must be callable, got {self.function!r}")

    def __call__(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> logits (B, V), -inf for tokens that are not allowed."""
        size = logits.shape[-1]

        def find_allowed(tokens: Tensor, written: np.ndarray, new_length: np.ndarray) -> np.ndarray:
            tokens, written = np.asarray(tokens), np.asarray(written)
            written = np.broadcast_to(written, tokens.shape)
            result = np.zeros((len(tokens), size), bool)
            for row, line in enumerate(tokens):
                line = line[written[row]]
                if np.isin(line[len(line) - int(new_length) :], context.end_ids).any():
                    result[row] = True
                    continue
                ids = list(self.function(row // context.copies, line))
                if not ids or min(ids) < 0 or max(ids) >= size:
                    raise ValueError(
                        f"the function of PrefixConstrained must return ids in 0..{size - 1}, at "
                        f"least one, got {ids} for row {row // context.copies}"
                    )
                result[row, ids] = True
            return result

        length = ops.convert_to_tensor(context.new_length, dtype="int32")
        mask = _in_python(find_allowed, logits, context.tokens, context.written, length)
        return ops.where(mask, logits, NEVER)


def _in_python(function: Callable[..., np.ndarray], like: Tensor, *arguments: Tensor) -> Tensor:
    """A function of arrays that returns booleans with the shape of `like`."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        result = tf.numpy_function(function, arguments, tf.bool, stateful=False)
        result.set_shape(like.shape)
        return result
    if keras.backend.backend() == "jax":
        import jax

        shape = jax.ShapeDtypeStruct(like.shape, "bool")
        return jax.pure_callback(function, shape, *arguments)
    return ops.convert_to_tensor(function(*map(ops.convert_to_numpy, arguments)))
