"""Shifts token ids right by one position."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.lookup import as_integers
from keras_tfm.layers.rematerialized import RematerializedLayer

Tensor = Any


@keras.saving.register_keras_serializable("keras_tfm")
class ShiftRight(RematerializedLayer):
    """Shifts token ids by one position: y_0 is the start token, y_t = x_(t-1).

    For a classifier on an encoder-decoder model whose decoder reads the source again, as in BART
    (arXiv:1910.13461, section 3.1).

    Args:
        start_id: int, the first token. Default: each row's last token that is not padding, which is
            the language token in the sources of mBART (arXiv:2001.08210).
        pad_id: int, the padding id, which is only used without a `start_id`.

    Call arguments:
        inputs: ids (B, T), integers.

    Returns:
        int32 (B, T).

    Raises:
        TypeError: ids that are not integers.
        ValueError: an argument out of range.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import ShiftRight
    >>> ids = np.array([[5, 6, 2, 9], [7, 2, 8, 1]])
    >>> np.asarray(ShiftRight(start_id=2)(ids)).tolist()
    [[2, 5, 6, 2], [2, 7, 2, 8]]
    >>> np.asarray(ShiftRight(pad_id=1)(ids)).tolist()
    [[9, 5, 6, 2], [8, 7, 2, 8]]
    """

    def __init__(self, start_id: int | None = None, pad_id: int = 0, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)
        check_integer("start_id", start_id, minimum=0, optional=True)
        check_integer("pad_id", pad_id, minimum=0)
        self.start_id = start_id
        self.pad_id = pad_id

    def call(self, inputs: Tensor) -> Tensor:
        """(B, T) -> (B, T)."""
        ids = ops.cast(as_integers(inputs, "ShiftRight: ids"), "int32")
        if self.start_id is not None:
            first = ops.full_like(ids[:, :1], self.start_id)
        else:
            real = ops.cast(ops.not_equal(ids, self.pad_id), "int32")
            last = ops.maximum(ops.sum(real, axis=1, keepdims=True) - 1, 0)
            first = ops.take_along_axis(ids, last, axis=1)
        return ops.concatenate([first, ids[:, :-1]], axis=1)

    def compute_output_spec(self, inputs: Tensor) -> keras.KerasTensor:
        """Shape and dtype of the result."""
        return keras.KerasTensor(inputs.shape, dtype="int32")

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "start_id": self.start_id, "pad_id": self.pad_id}
