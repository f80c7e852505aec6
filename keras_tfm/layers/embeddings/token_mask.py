"""Which ids of a row are tokens, and which are padding.

A padding id is often a token, too: GPT-2's is its end token, and "[PAD]" may be a word of a text.
So a padding id is padding only where it can be: see `PADDINGS`.
"""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.decoding.scope import current_scope
from keras_tfm.layers.multi_head_attention.masks import as_boolean
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Tensor
from keras_tfm.runtime.decoding.special_ids import REAL_PAD

# The padding id of rows whose padding is no token of the vocabulary.
NO_TOKEN = -1
# Where the padding id is padding: everywhere, as in Keras's `Embedding`; only before the first and
# after the last other id; or, of tokenizers that append it to each text, not the first of those
# after the last other id.
PADDINGS = ("anywhere", "ends", "after_end")


def token_mask(ids: Tensor, pad_id: int, padding: str = "anywhere") -> Tensor:
    """True for tokens, False for padding: (B, T).

    Args:
        ids: (..., T), integers. `REAL_PAD` is a token, and so is never padding.
        pad_id: int, the padding id.
        padding: str, one of `PADDINGS`.

    >>> import numpy as np
    >>> from keras_tfm.layers.embeddings.token_mask import token_mask
    >>> ids = np.array([[0, 3, 0, 4, 0, 0]])
    >>> {x: np.array(token_mask(ids, 0, x)).astype(int).tolist()[0] for x in ("anywhere", "ends")}
    {'anywhere': [0, 1, 0, 1, 0, 0], 'ends': [0, 1, 1, 1, 0, 0]}
    >>> np.array(token_mask(ids, 0, "after_end")).astype(int).tolist()
    [[0, 1, 1, 1, 1, 0]]
    """
    other = ops.not_equal(ids, pad_id)
    if padding == "anywhere" or pad_id < 0:
        return other
    counted = ops.cumsum(ops.cast(other, "int32"), axis=-1)
    total = counted[..., -1:]
    # Of those up to the last other id: that id itself is the first with the whole count.
    before_last = ops.logical_or(ops.less(counted, total), other)
    inside = ops.logical_and(ops.greater(counted, 0), before_last)
    if padding == "ends":
        return inside
    # The end token follows the last other id, unless that is the end token itself, as `REAL_PAD`.
    # A row of padding alone is an empty text: its first id is the end token.
    followed = ops.logical_and(inside, ops.not_equal(ids, REAL_PAD))[..., :-1]
    return ops.logical_or(inside, ops.concatenate([ops.equal(total, 0), followed], axis=-1))


def current_mask(ids: Tensor, mask: Tensor | None, pad_id: int, padding: str) -> Tensor:
    """`mask`, or without one `token_mask`, in a step of decoding and in a file, too: (B, T)."""
    if mask is not None:
        return as_boolean(mask, "mask")
    if padding != "anywhere":
        if current_scope.get() is not None:
            # A step has no ends. The scope knows the padding of its rows.
            return ops.ones_like(ids, dtype="bool")
        if current_target.get().is_edge:
            padding = "anywhere"  # the runtime passes a token `pad_id` as `REAL_PAD`
    return token_mask(ids, pad_id, padding)


@keras.saving.register_keras_serializable("keras_tfm")
class TokenMask(RematerializedLayer):
    """The mask of a `TokenEmbedding` in the graph of a functional model: (B, T) -> (B, T).

    A layer and not an operation, because a mask that the ids carry takes the place of its own, and
    because the mask of a step and of a file is another one.

    Args:
        pad_id, padding: see `token_mask`.

    Call arguments:
        inputs: (B, T), integers, ids.
        mask: boolean tensor (B, T), the mask that Keras attached to the ids; optional.

    >>> import numpy as np
    >>> from keras_tfm.layers.embeddings.token_mask import TokenMask
    >>> np.array(TokenMask(pad_id=0)(np.array([[3, 0]]))).tolist()
    [[True, False]]
    """

    def __init__(self, pad_id: int, padding: str = "anywhere", **kwargs: Any):
        super().__init__(**kwargs)
        self.pad_id, self.padding = pad_id, padding
        self.built = True

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T), integers -> (B, T), boolean, True for tokens."""
        return current_mask(inputs, mask, self.pad_id, self.padding)

    def compute_mask(self, inputs: Tensor, mask: Tensor | None = None) -> None:
        """None: the result is a mask itself."""
        return

    def compute_output_spec(self, inputs: Tensor, mask: Tensor | None = None) -> keras.KerasTensor:
        """Shape and dtype of the result."""
        return keras.KerasTensor(inputs.shape, dtype="bool")
