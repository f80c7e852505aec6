"""Padding of texts to one length, for models that see their padding."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class PadTokens(RematerializedLayer):
    """Appends padding to rows of token ids up to a length: (B, T) -> (B, length).

    The texts of SigLIP (arXiv:2303.15343) have 64 tokens each, and attention sees the padding as
    any other token. With this layer in the model, a text has the same features whether its row is
    padded or not, in a batch of any length and in a file.

    Args:
        length: int, number of tokens of the result. Longer rows are an error.
        pad_id: int, id of the padding.
        vocabulary_size: int, number of token ids of the `TokenEmbedding` that follows.

    Call arguments:
        tokens: integer tensor (B, T), with T up to `length`.

    Returns:
        int32 tensor (B, length).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or a row that is longer. If T is known only at run
            time, TensorFlow raises InvalidArgumentError.

    >>> import numpy as np
    >>> from keras_tfm.layers.embeddings.pad_tokens import PadTokens
    >>> np.asarray(PadTokens(4, pad_id=1, vocabulary_size=9)(np.array([[5, 7]]))).tolist()
    [[5, 7, 1, 1]]
    """

    def __init__(self, length: int, pad_id: int, vocabulary_size: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = False  # the output has another shape
        check_integer("length", length)
        check_integer("vocabulary_size", vocabulary_size)
        check_integer("pad_id", pad_id, minimum=0)
        if pad_id >= vocabulary_size:
            raise ValueError(
                f"pad_id must be in the vocabulary, 0..{vocabulary_size - 1}, got {pad_id}"
            )
        self.length, self.pad_id, self.vocabulary_size = length, pad_id, vocabulary_size
        self.built = True

    def call(self, tokens: Tensor) -> Tensor:
        """(B, T) -> (B, length)."""
        rows = ops.cast(tokens, "int32")
        length = rows.shape[1]
        if length is not None and length > self.length:
            raise ValueError(f"{self.name}: expected at most {self.length} tokens, got {length}")
        if length == self.length:
            return rows
        shape = ops.shape(rows)
        padding = ops.full((shape[0], self.length - shape[1]), self.pad_id, "int32")
        return ops.reshape(ops.concatenate([rows, padding], axis=1), (-1, self.length))

    def compute_output_spec(self, tokens: Tensor) -> keras.KerasTensor:
        """Shape and dtype of the result."""
        return keras.KerasTensor((tokens.shape[0], self.length), dtype="int32")

    def compute_output_shape(self, tokens_shape: Shape) -> Shape:
        """(B, length)."""
        return (tokens_shape[0], self.length)
