"""The backend's fused attention: flash attention on a GPU under JAX and PyTorch."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_tfm.layers import masks
from keras_tfm.layers.heads import swap
from keras_tfm.layers.target import current_target

Tensor = Any


def is_fused(
    query: Tensor,
    value: Tensor,
    soft_cap: float | None,
    dropout: Callable[[Tensor], Tensor] | None,
    extra_values: Callable[[Tensor], Tensor] | None,
) -> bool:
    """Whether `fused_attention` gives the same result as `attention`, and is worth calling.

    On TensorFlow Keras's operation is no faster than `attention` and also stores the scores
    (B, H, T, S). Dropout, a probe and extra values need the attention weights. In float16 the CPU
    kernels multiply in float16, where scores of activations near 1e3 overflow.
    """
    if keras.backend.backend() not in ("jax", "torch") or current_target().is_edge:
        return False
    if soft_cap is not None or dropout is not None or extra_values is not None:
        return False
    if len(query.shape) != 4:
        return False
    if keras.backend.backend() == "jax" and query.shape[-1] != value.shape[-1]:
        return False  # JAX requires K = V
    return keras.backend.standardize_dtype(query.dtype) != "float16" or _is_on_gpu(query)


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    scale: float,
    causal: bool,
) -> Tensor:
    """softmax(QK^T scale + bias) V by `keras.ops.dot_product_attention`.

    Args:
        query: (B, H, T, K).
        key: (B, G, S, K).
        value: (B, G, S, V).
        mask: boolean, broadcastable to (B, H, T, S), or None. The result for a query that sees no
            key is undefined.
        bias: float, broadcastable to (B, H, T, S), or None.
        scale: float, factor of the scores.
        causal: bool, whether query t sees only keys 0 to t. Requires T = S and no mask.

    Returns:
        (B, H, T, V) in the dtype of `value`.
    """
    batch, heads, length, _ = query.shape
    if keras.backend.backend() == "torch" and key.shape[1] == 1:
        # PyTorch chooses no fused kernel for a broadcast head, whose stride is 0.
        key, value = (ops.repeat(x, heads, axis=1) for x in (key, value))
    if causal and scale <= 0:
        # PyTorch's causal kernel scales hidden scores, which are -inf: NaN or +inf.
        mask, causal = masks.causal(length), False
    full = (batch, heads, length, key.shape[-2])
    if bias is not None:
        visible = masks.causal(length) if causal else mask
        if visible is not None:  # PyTorch takes a mask or a bias, not both
            bias = ops.where(visible, bias, _lowest(query.dtype))
        mask, causal = None, False
        bias = ops.cast(ops.broadcast_to(bias, full), query.dtype)
    if mask is not None:
        # Both want four axes; JAX allows only sizes that are 1 or full.
        mask = ops.broadcast_to(mask, (*(1,) * (4 - len(mask.shape)), *mask.shape))
    y = ops.dot_product_attention(
        *(swap(x, -2, -3) for x in (query, key, value)),
        bias=bias,
        mask=mask,
        scale=scale,
        is_causal=causal,
    )
    return ops.cast(swap(y, -2, -3), value.dtype)


def _lowest(dtype: Any) -> float:
    """A finite number in `dtype`, far below any score."""
    return -3e4 if keras.backend.standardize_dtype(dtype) == "float16" else -1e30


def _is_on_gpu(x: Tensor) -> bool:
    if keras.backend.backend() == "torch":
        return bool(x.is_cuda)
    import jax

    return jax.default_backend() == "gpu"
