"""Builders of related families whose arguments are one dataclass.

Example:

>>> from dataclasses import dataclass
>>> from keras_tfm.models.shared_arguments import with_arguments
>>> @dataclass(frozen=True)
... class Sizes:
...     dim: int
...     num_layers: int = 12
>>> @with_arguments(Sizes, num_layers=6)
... def area(arguments: Sizes) -> int:
...     return arguments.dim * arguments.num_layers
>>> area(2), area(2, num_layers=3)
(12, 6)
"""

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from keras_tfm.layers.types import Activation, DType

P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")


def with_arguments(
    kind: Callable[P, A], **defaults: Any
) -> Callable[[Callable[[A], R]], Callable[P, R]]:
    """Decorator of a function of a dataclass: it takes the arguments of the dataclass instead.

    Type checkers and `inspect.signature` see these arguments, with their types.

    Args:
        kind: the dataclass.
        defaults: values of the arguments in place of those of the dataclass.
    """
    shared = inspect.signature(kind)
    unknown = set(defaults) - set(shared.parameters)
    if unknown:
        raise ValueError(f"defaults must be of {list(shared.parameters)}, got {sorted(unknown)}")
    parameters = [
        x.replace(default=defaults.get(name, x.default)) for name, x in shared.parameters.items()
    ]

    def decorate(function: Callable[[A], R]) -> Callable[P, R]:
        result = inspect.signature(function).return_annotation
        signature = shared.replace(parameters=parameters, return_annotation=result)

        @functools.wraps(function)
        def build(*args: P.args, **kwargs: P.kwargs) -> R:
            by_place = list(signature.parameters)[: len(args)]
            others = {name: x for name, x in defaults.items() if name not in by_place}
            given: Any = {**others, **kwargs}
            try:
                arguments = kind(*args, **given)
            except TypeError as error:  # names the dataclass
                message = re.sub(r"^\w+\.__init__", function.__name__, str(error))
                raise TypeError(message) from None
            return function(arguments)

        vars(build).update(__signature__=signature, arguments_class=kind)
        return build

    return decorate


@dataclass(frozen=True, kw_only=True)
class EncoderArguments:
    """The arguments that builders of encoders share, see `bert`.

    >>> from keras_tfm.models.shared_arguments import EncoderArguments
    >>> EncoderArguments(dim=8, num_layers=1, num_heads=2, intermediate_dim=16, dropout=0.1,
    ...     attention_dropout=None, activation="gelu", layer_norm_epsilon=1e-5, dtype=None
    ... ).attention_rate
    0.1
    """

    dim: int
    num_layers: int
    num_heads: int
    intermediate_dim: int
    dropout: float
    attention_dropout: float | None
    activation: Activation
    layer_norm_epsilon: float
    dtype: DType

    @property
    def attention_rate(self) -> float:
        """The dropout rate of the attention weights."""
        return self.dropout if self.attention_dropout is None else self.attention_dropout
