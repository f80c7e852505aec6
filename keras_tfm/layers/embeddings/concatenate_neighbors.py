"""Each token's vector beside those of its neighbours."""

import keras
from keras import ops

from keras_tfm.layers.arguments import check_sequence
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class ConcatenateNeighbors(RematerializedLayer):
    """Concatenates the vectors of the next token, the token itself and the previous token.

    y_t = [x_t+1; x_t; x_t-1], with zeros beyond both ends. A dense layer after it is a convolution
    over three tokens: the trigram input of MobileBERT (arXiv:2004.02984), section "Embedding
    Factorization", in the order of its released checkpoints.

    The mask is passed on and has no other effect: as in `transformers`, the vector of padding is a
    neighbour like any other. So the last token of a text reads padding if there is some after it,
    and zeros otherwise.

    Call arguments:
        x: float tensor (B, T, D).

    Returns:
        Float tensor (B, T, 3 D).

    Raises:
        ValueError: an input without a sequence axis.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import ConcatenateNeighbors
    >>> x = np.array([[[1.0], [2.0], [3.0]]], "float32")
    >>> ConcatenateNeighbors()(x).numpy().tolist()
    [[[2.0, 1.0, 0.0], [3.0, 2.0, 1.0], [0.0, 3.0, 2.0]]]
    """

    def build(self, x_shape: Shape) -> None:
        """Checks the shape: there are no weights."""
        check_sequence(self, "x", x_shape)
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, 3 D)."""
        padded = ops.pad(x, [[0, 0]] * (len(x.shape) - 2) + [[1, 1], [0, 0]])
        return ops.concatenate([padded[..., 2:, :], x, padded[..., :-2, :]], axis=-1)

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """(B, T, D) -> (B, T, 3 D)."""
        return (*x_shape[:-1], 3 * x_shape[-1])
