"""The embedding of a codebook: of codes, or of weights of all codes."""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers.embeddings.lookup import is_integer
from keras_tfm.layers.embeddings.token_embedding import TokenEmbedding
from keras_tfm.layers.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class CodebookEmbedding(TokenEmbedding):
    """Looks up a vector for each code, or mixes the vectors of all codes by their weights.

    E[code] for integers, w E for weights w of all codes, such as those of a `GumbelSoftmax`. Both
    are equal for one-hot weights: the decoder of a discrete VAE is trained on weights and runs on
    codes. A convolution of window 1 over weights in the original.

    Args:
        vocabulary_size: int, number of codes (V).
        dim: int, width of a vector (D).
        **kwargs: the other arguments of `TokenEmbedding`.

    Call arguments:
        inputs: (...), integers, codes; or float (..., V), weights.
        reverse: bool, as in `TokenEmbedding`: inputs are features (..., D).

    Returns:
        Float tensor (..., D), or logits (..., V) with `reverse=True`.

    Raises:
        ValueError: as `TokenEmbedding`; or weights of another number of codes.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import CodebookEmbedding
    >>> layer = CodebookEmbedding(vocabulary_size=3, dim=4)
    >>> of_weights = layer(np.eye(3, dtype="float32"))
    >>> bool(np.all(of_weights == layer(np.array([0, 1, 2]))))
    True
    """

    def __call__(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Calls the layer; floats are weights, never ids."""
        return keras.layers.Layer.__call__(self, inputs, *args, **kwargs)

    def call(self, inputs: Tensor, reverse: bool = False) -> Tensor:
        """Codes (...) or weights (..., V) -> (..., D)."""
        if reverse or is_integer(inputs):
            return super().call(inputs, reverse)
        self._check_weights(inputs)
        return self._scale_vectors(ops.matmul(inputs, ops.cast(self.embeddings, inputs.dtype)))

    def compute_output_shape(self, inputs_shape: Shape, reverse: bool = False) -> Shape:
        """That of weights, (..., V) -> (..., D); with `reverse`, (..., D) -> (..., V)."""
        return (*inputs_shape[:-1], self.vocabulary_size if reverse else self.dim)

    def compute_output_spec(self, inputs: Tensor, reverse: bool = False) -> keras.KerasTensor:
        """Shape and dtype of the result."""
        if reverse:
            return super().compute_output_spec(inputs, reverse)
        if is_integer(inputs):
            return keras.KerasTensor((*inputs.shape, self.dim), dtype=self.compute_dtype)
        self._check_weights(inputs)
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=self.compute_dtype)

    def _check_weights(self, weights: Tensor) -> None:
        if weights.shape[-1] != self.vocabulary_size:
            raise ValueError(
                f"{self.name}: weights must have shape (..., {self.vocabulary_size}), "
                f"got {tuple(weights.shape)}"
            )
