"""Features before the tokens of a decoder-only model, such as those of an image."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.decoding.scope import current_scope
from keras_tfm.layers.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class ConcatenatePrefix(RematerializedLayer):
    """Puts a prefix before the tokens: y = [p_1, ..., p_P, x_1, ..., x_T].

    A decoder-only model that continues image features with text: the projected features of an image
    encoder stand before the embedded tokens, as in LLaVA (arXiv:2304.08485). `RemovePrefix` takes
    them away again before the logits.

    Inside a `DecodingScope` the prefix is computed in the first step, along with its tokens, and
    then read from the KV caches, which have P more columns. Layers between the two number
    positions from the first vector of the prefix, so a token has the position P + t. Where rows are
    padded on the left, the padding stands before the prefix; the first step has to contain it.

    Call arguments:
        inputs: list of the prefix (B, P, D) and the embedded tokens (B, T, D), float tensors. To
            be stepped, a model needs a known P.

    Returns:
        Float tensor (B, P + T, D), with the masks of both: where only one has a mask, the other is
        not masked.

    Raises:
        ValueError: inputs that are not two tensors (B, P, D) and (B, T, D), or of different widths;
            inside a `DecodingScope`, a prefix of unknown length.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import ConcatenatePrefix
    >>> features, tokens = np.zeros((2, 5, 8), "float32"), np.ones((2, 3, 8), "float32")
    >>> tuple(ConcatenatePrefix()([features, tokens]).shape)
    (2, 8, 8)
    """

    def build(self, inputs_shape: Shape) -> None:
        """Checks the shapes; there are no weights."""
        check_pair(self.name, inputs_shape)
        self.built = True

    def call(self, inputs: Sequence[Tensor]) -> Tensor:
        """(B, P, D), (B, T, D) -> (B, P + T, D)."""
        prefix, x = inputs
        scope = current_scope.get()
        if scope is not None:
            scope.begin_prefix(known_length(self.name, prefix))
            if not scope.is_first:
                return x
        return _join(prefix, x)

    def compute_mask(
        self, inputs: Sequence[Tensor], previous_mask: Sequence[Tensor | None] | None = None
    ) -> Tensor | None:
        """The mask of the output, (B, P + T), if one of the inputs has a mask."""
        masks = list(previous_mask or (None, None))
        if all(mask is None for mask in masks):
            return None
        return JoinedMasks(name=f"{self.name}_mask")(*inputs, *masks)

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        """(B, P + T, D)."""
        prefix, x = inputs_shape
        length = None if None in (prefix[1], x[1]) else prefix[1] + x[1]
        return (x[0], length, x[2])


@keras.saving.register_keras_serializable("keras_tfm")
class JoinedMasks(keras.Operation):
    """The mask of a prefix and of the tokens, in one operation.

    Keras makes the operations of `compute_mask` a part of a functional model's graph. They have to
    read the `DecodingScope` there, like the layer.
    """

    def call(
        self,
        prefix: Tensor,
        x: Tensor,
        prefix_mask: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """(B, P, D), (B, T, D), (B, P) or None, (B, T) or None -> (B, P + T), or (B, T)."""
        real_prefix, real = (
            ops.ones_like(y[..., 0], dtype="bool") if known is None else ops.cast(known, "bool")
            for y, known in ((prefix, prefix_mask), (x, mask))
        )
        scope = current_scope.get()
        return real if scope is not None and not scope.is_first else _join(real_prefix, real)

    def compute_output_spec(
        self, prefix: Tensor, x: Tensor, *_: object, **__: object
    ) -> keras.KerasTensor:
        """(B, P + T), boolean."""
        lengths = prefix.shape[1], x.shape[1]
        length = None if None in lengths else sum(lengths)
        return keras.KerasTensor((x.shape[0], length), dtype="bool")


def check_pair(name: str, shapes: Any) -> None:
    """Raises unless `shapes` are those of a prefix (B, P, D) and a sequence (B, T, D)."""
    shapes = [tuple(shape) for shape in shapes] if isinstance(shapes, list | tuple) else shapes
    if not isinstance(shapes, list) or [len(shape) for shape in shapes] != [3, 3]:
        raise ValueError(f"{name}: expected [prefix (B, P, D), x (B, T, D)], got shapes {shapes}")
    if shapes[0][2] != shapes[1][2]:
        raise ValueError(
            f"{name}: the prefix must have the width of the tokens ({shapes[1][2]}), "
            f"got {shapes[0][2]}: project it"
        )


def known_length(name: str, prefix: Tensor) -> int:
    """The length of a prefix inside a `DecodingScope`."""
    shape = tuple(prefix.shape)
    if not isinstance(shape[1], int):
        raise ValueError(
            f"{name}: the prefix must have a known length to be stepped, got {shape}: declare it "
            "in keras.Input"
        )
    return shape[1]


def _join(prefix: Tensor, x: Tensor) -> Tensor:
    """(B, P, ...), (B, T, ...) -> (B, P + T, ...), with the rows' left padding in front."""
    joined = ops.concatenate([prefix, x], axis=1)
    scope = current_scope.get()
    if scope is None or scope.padding is None:
        return joined
    # A row [p_1, ..., p_P, padding, tokens] becomes [padding, p_1, ..., p_P, tokens].
    batch, length, *rest = ops.shape(joined)
    count, padding = prefix.shape[1], ops.expand_dims(scope.padding, 1)
    column = ops.expand_dims(ops.arange(length, dtype="int32"), 0)
    places = ops.where(column < padding + count, column - padding, column)
    places = ops.where(column < padding, column + count, places)
    places = places + ops.expand_dims(ops.arange(batch, dtype="int32") * length, 1)
    return ops.take(ops.reshape(joined, (batch * length, *rest)), places, axis=0)
