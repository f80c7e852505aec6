"""`generate`, which keeps its generators with the model."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_tfm.generation.generator import Generated, Generator
from keras_tfm.generation.strategies import Strategy

# The maximum number of generators that a model keeps for `generate`.
MAX_KEPT = 8


def generate(
    model: keras.Model,
    inputs: Any,
    max_length: int | None = None,
    start_id: int | None = None,
    end_id: int | Sequence[int] | None = None,
    strategy: Strategy | None = None,
    target: str | None = None,
    max_new_tokens: int | None = None,
) -> Generated:
    """Generates tokens with a trained model.

    The model keeps the generators of the last calls with their compiled loops, so a second call
    with the same arguments compiles nothing.

    Args:
        model: see `Generator`.
        inputs: see `Generator.__call__`.
        max_length, start_id, end_id, strategy, target, max_new_tokens: see `Generator`.

    Returns:
        A `Generated` of tokens and scores.

    Raises:
        ValueError: the model cannot be stepped, or an argument or input is out of range.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import transformer
    >>> model = transformer(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> int(generate(model, np.array([[3, 4, 5]]), max_length=4, start_id=1).tokens[0, 0])
    1
    """
    arguments = (max_length, start_id, _hashable(end_id), strategy, target, max_new_tokens)
    return _kept_generator(model, arguments)(inputs)


def _kept_generator(model: keras.Model, arguments: tuple[Any, ...]) -> Generator:
    """The generator of an earlier call with the same arguments, or a new one."""
    # In `vars`, because Keras would track an attribute.
    kept = vars(model).setdefault("_keras_tfm_generators", {})
    try:
        generator = kept.pop(arguments, None)
    except TypeError:  # a custom strategy that cannot be hashed
        return Generator(model, *arguments)
    if generator is None:
        generator = Generator(model, *arguments)
    kept[arguments] = generator  # the most recently used is last
    while len(kept) > MAX_KEPT:
        kept.pop(next(iter(kept)))
    return generator


def _hashable(end_id: Any) -> Any:
    return end_id if end_id is None or np.ndim(end_id) == 0 else tuple(end_id)
