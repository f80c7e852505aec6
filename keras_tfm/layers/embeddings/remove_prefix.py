"""The tokens of a decoder-only model without the features that stand before them."""

from collections.abc import Sequence

import keras
from keras import ops

from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.decoding.scope import current_scope
from keras_tfm.layers.embeddings.concatenate_prefix import check_pair, known_length
from keras_tfm.layers.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class RemovePrefix(RematerializedLayer):
    """Removes what `ConcatenatePrefix` put before the tokens: y = [x_P+1, ..., x_P+T].

    Inside a `DecodingScope` only the first step has a prefix to remove.

    Call arguments:
        inputs: list of the prefix (B, P, D), of which only the length P is read, and the sequence
            (B, P + T, D).

    Returns:
        Float tensor (B, T, D), with the tokens' part of the mask.

    Raises:
        ValueError: inputs that are not two tensors (B, P, D) and (B, T, D), or of different widths;
            a sequence that is shorter than the prefix or, inside a `DecodingScope`, has none.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import ConcatenatePrefix, RemovePrefix
    >>> features, tokens = np.zeros((2, 5, 8), "float32"), np.ones((2, 3, 8), "float32")
    >>> x = ConcatenatePrefix()([features, tokens])
    >>> bool(np.array_equal(RemovePrefix()([features, x]), tokens))
    True
    """

    def build(self, inputs_shape: Shape) -> None:
        """Checks the shapes; there are no weights."""
        check_pair(self.name, inputs_shape)
        (_, count, _), (_, length, _) = inputs_shape
        if None not in (count, length) and length < count:
            raise ValueError(f"{self.name}: a sequence of {length} has no prefix of {count}")
        self.built = True

    def call(self, inputs: Sequence[Tensor]) -> Tensor:
        """(B, P, D), (B, P + T, D) -> (B, T, D)."""
        prefix, x = inputs
        scope = current_scope.get()
        if scope is not None:
            scope.end_prefix(known_length(self.name, prefix))
        return _after(prefix, x)

    def compute_mask(
        self, inputs: Sequence[Tensor], previous_mask: Sequence[Tensor | None] | None = None
    ) -> Tensor | None:
        """The tokens' part of the mask, (B, T)."""
        mask = previous_mask[1] if previous_mask else None
        return None if mask is None else TokensMask(name=f"{self.name}_mask")(inputs[0], mask)

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        """(B, T, D)."""
        (_, count, _), (batch, length, dim) = inputs_shape
        return (batch, None if None in (count, length) else length - count, dim)


@keras.saving.register_keras_serializable("keras_tfm")
class TokensMask(keras.Operation):
    """The part of a mask behind a prefix, in one operation that reads the `DecodingScope`."""

    def call(self, prefix: Tensor, mask: Tensor) -> Tensor:
        """(B, P, D), (B, P + T) -> (B, T)."""
        return _after(prefix, mask)

    def compute_output_spec(self, prefix: Tensor, mask: Tensor) -> keras.KerasTensor:
        """(B, T), boolean."""
        count, length = prefix.shape[1], mask.shape[1]
        length = None if None in (count, length) else length - count
        return keras.KerasTensor((mask.shape[0], length), dtype=mask.dtype)


def _after(prefix: Tensor, x: Tensor) -> Tensor:
    """(B, P, ...), (B, P + T, ...) -> (B, T, ...); in later steps there is no prefix."""
    scope = current_scope.get()
    if scope is not None and not scope.is_first:
        return x
    count = prefix.shape[1]
    return x[:, count if isinstance(count, int) else ops.shape(prefix)[1] :]
