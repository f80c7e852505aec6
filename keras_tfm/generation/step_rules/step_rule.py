"""Rules for layers of other packages that read earlier tokens, and the register of them.

Layers of this package read the `DecodingScope` in which they are called. A layer of Keras, or one
of a user, does not know of it: a rule says what it remembers of the tokens before a step, and
computes its outputs for the tokens of a step. `SteppedModel` gives each such layer its rule.
"""

from types import MethodType
from typing import Any

import keras
from keras import ops

from keras_tfm.keras_internals import child_layers, run_recurrently
from keras_tfm.layers.decoding.scope import DecodingScope, current_scope
from keras_tfm.layers.decoding.state import check_state
from keras_tfm.layers.types import Size, Tensor


class StepRule:
    """How a layer with a recurrent state is stepped, a few tokens at a time.

    A rule defines `begin`, the state before the first token, and `token`, or `step` if several
    tokens can be computed at once. A state is a tensor with a row for each row of the batch, or
    nested tensors. The state, the outputs and all else that differs between two layers of one class
    is computed from the layer, so one rule serves all of them.

    >>> import keras, numpy as np
    >>> from keras import ops
    >>> from keras_tfm import generation, layers
    >>> class RunningSum(keras.layers.Layer):
    ...     def call(self, x):  # (B, T, D), whole rows
    ...         return ops.cumsum(x, axis=1)
    >>> class SumRule(generation.StepRule):
    ...     def begin(self, layer, x, rows):
    ...         return ops.zeros((rows, x.shape[-1]), dtype=x.dtype)
    ...     def token(self, layer, x, state):  # (B, D), one token of each row
    ...         return x + state, x + state
    >>> generation.register_step(RunningSum, SumRule())
    >>> tokens = keras.Input((None,), dtype="int32")
    >>> x = RunningSum()(layers.TokenEmbedding(11, 8)(tokens))
    >>> model = keras.Model(tokens, keras.layers.Dense(11)(x))
    >>> generation.generate(model, np.array([[3, 4]]), max_length=6).tokens.shape
    (1, 6)
    """

    def begin(self, layer: keras.Layer, x: Tensor, rows: Size) -> Tensor:
        """The state before the first token.

        Args:
            layer: `keras.layers.Layer`.
            x: tensor (B, T, ...), the layer's input in this step, for its sizes and dtype.
            rows: int or () int32, the number of rows of the state, which may be more than B.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define begin(layer, x, rows)")

    def token(self, layer: keras.Layer, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs (R, ...) for one token of each row, (R, ...), and the state after it."""
        raise NotImplementedError(
            f"{type(self).__name__} defines neither token(layer, x, state) nor "
            "step(layer, x, state, mask)"
        )

    def step(
        self, layer: keras.Layer, x: Tensor, state: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The outputs (R, N, ...) for N tokens of each row, and the state after them.

        Args:
            layer: `keras.layers.Layer`.
            x: tensor (R, N, ...).
            state: tensor or nested tensors, the state before the tokens.
            mask: boolean tensor (R, N), True = token, False = padding, which leaves the state as it
                is; None if all are tokens.
        """

        def token(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            y, after = self.token(layer, x, state)
            check_state(layer.name, state, after)
            return y, after

        if x.shape[1] != 1:
            return run_recurrently(token, x, state, mask)
        y, after = token(ops.squeeze(x, 1), state)
        return ops.expand_dims(y, 1), after if mask is None else choose_rows(mask, after, state)

    def call(self, layer: keras.Layer, scope: DecodingScope, *args: Any, **kwargs: Any) -> Any:
        """The layer's outputs for the tokens of a step, from the arguments of its call."""
        x, mask = args[0], kwargs.get("mask")
        return scope.recur(
            layer.name,
            lambda x, state, mask: self.step(layer, x, state, mask),
            x,
            lambda rows: self.begin(layer, x, rows),
            mask,
        )


def choose_rows(mask: Tensor, after: Tensor, before: Tensor) -> Tensor:
    """The state `after` of the rows whose only token is one, mask (R, 1), else `before`."""

    def choose(new: Tensor, old: Tensor) -> Tensor:
        return ops.where(ops.reshape(mask, (-1, *(1 for _ in new.shape[1:]))), new, old)

    return keras.tree.map_structure(choose, after, before)


_RULES: dict[type, StepRule] = {}
_WRAPPERS = (keras.layers.Wrapper, keras.layers.Bidirectional)


def register_step(layer_class: type, rule: StepRule) -> None:
    """Registers how the layers of a class are stepped, so that models with them can generate.

    The rule also holds for subclasses that do not define a `call` of their own. A rule of a class
    that has one is replaced.

    Args:
        layer_class: `keras.layers.Layer`, a class of layers. Keras's recurrent layers, causal
            convolutions and causal attention have rules already; see docs/matrix.md.
        rule: `StepRule`.

    Raises:
        TypeError: no class of layers, or no `StepRule`.

    Example (`StepRule` has a whole one):

    >>> import keras
    >>> from keras import ops
    >>> from keras_tfm import generation
    >>> class Previous(keras.layers.Layer):
    ...     def call(self, x):  # the token before each one
    ...         return ops.pad(x, [(0, 0), (1, 0), (0, 0)])[:, :-1]
    >>> class PreviousRule(generation.StepRule):
    ...     def begin(self, layer, x, rows):
    ...         return ops.zeros((rows, x.shape[-1]), dtype=x.dtype)
    ...     def token(self, layer, x, state):
    ...         return state, x
    >>> generation.register_step(Previous, PreviousRule())
    """
    if not isinstance(layer_class, type) or not issubclass(layer_class, keras.Operation):
        raise TypeError(f"layer_class must be a class of keras.layers.Layer, got {layer_class!r}")
    if not isinstance(rule, StepRule):
        raise TypeError(f"rule must be a StepRule, got {rule!r}")
    _RULES[layer_class] = rule


def find_rule(layer: keras.Layer) -> StepRule | None:
    """The rule of a layer's class; None if it has none."""
    for base in type(layer).__mro__:
        if base in _RULES:
            same = getattr(type(layer), "call", None) is getattr(base, "call", None)
            return _RULES[base] if same else None
    return None


def give_rules(layer: keras.Layer) -> None:
    """Makes a layer, and the layers inside it, follow their rules inside a `DecodingScope`.

    Outside of scopes they compute what they always do. What `TimeDistributed` and `Bidirectional`
    wrap does not see the sequence of tokens.
    """
    rule = find_rule(layer)
    if rule is None:
        if isinstance(layer, keras.Layer) and not isinstance(layer, _WRAPPERS):
            for child in child_layers(layer):
                give_rules(child)
        return

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        scope, rule = current_scope.get(), find_rule(self)
        if scope is None or rule is None:
            return type(self).call(self, *args, **kwargs)
        return rule.call(self, scope, *args, **kwargs)

    layer.call = MethodType(call, layer)  # a copy of the layer gets a copy of the method
