"""Attention within many rows (..., R, H, T, K), in blocks of rows, recomputed in the backward pass.

Example:

>>> import numpy as np
>>> from keras_tfm.layers.multi_head_attention.row_blocks import row_blocks
>>> query = np.ones((1, 256, 8, 512, 4), "float32")
>>> len(row_blocks(query, query))
16
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_tfm.layers.multi_head_attention.blockwise import cut

Tensor = Any


def row_blocks(query: Tensor, key: Tensor) -> list[slice]:
    """Blocks of the last leading axis where there are several and the scores are many.

    A single slice of everything is returned if they are few, or known only at run time.
    """
    if len(query.shape) < 5:
        return [slice(None)]
    rows, heads, length, _ = query.shape[-4:]
    sizes = heads, length, key.shape[-2]
    known = all(isinstance(size, int) for size in sizes)
    return cut(rows, heads * length * key.shape[-2] if known else None)


def attend_to_rows(
    attend: Callable[..., Tensor],
    rows: list[slice],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    attention_mask: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """Computes attention block by block of rows and concatenates the results.

    Args:
        attend: function of one block's queries, keys, values, masks and bias.
        rows: list of slices, from `row_blocks`.
        query: (..., R, H, T, K).
        key: (..., R, G, S, K).
        value: (..., R, G, S, V).
        key_mask: (..., R, S), boolean, or None.
        attention_mask: (..., R | 1, T, S), boolean, or None.
        bias: (..., R | 1, H | 1, T, S), or None.

    Returns:
        (..., R, H, T, V).
    """
    results = []
    for part in rows:
        keys = None if key_mask is None else key_mask[..., part, :]
        pairs = attention_mask
        if pairs is not None and pairs.shape[-3] != 1:
            pairs = pairs[..., part, :, :]

        def one(
            query: Tensor,
            key: Tensor,
            value: Tensor,
            *biases: Tensor,
            keys: Tensor | None = keys,
            pairs: Tensor | None = pairs,
        ) -> Tensor:
            return attend(query, key, value, keys, pairs, *(biases or (None,)))

        given = [x[..., part, :, :, :] for x in (query, key, value)]
        if bias is not None:
            given.append(bias if bias.shape[-4] == 1 else bias[..., part, :, :, :])
        results.append(keras.remat(one)(*given))  # `remat` differentiates only its arguments
    return ops.concatenate(results, axis=-4)
