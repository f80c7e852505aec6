"""The backend's fused attention: flash attention on a GPU under JAX and PyTorch."""

from collections.abc import Callable

import keras
from keras import ops

from keras_tfm.layers.dropout import DrawnDropout
from keras_tfm.layers.multi_head_attention import masks
from keras_tfm.layers.multi_head_attention.heads import swap
from keras_tfm.layers.multi_head_attention.masks import ScoreTerms
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import DType, Tensor, Window

# A mask of more values (B, T, S) is cut into blocks: half a GiB in bfloat16.
LARGE = 2**28


def is_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    soft_cap: float | None,
    dropout: Callable[[Tensor], Tensor] | None,
    extra_values: Callable[[Tensor], Tensor] | None,
) -> bool:
    """Whether `fused_attention` gives the same result as `attention`, and is worth calling.

    On TensorFlow Keras's operation is no faster than `attention` and also stores the scores
    (B, H, T, S). A probe, extra values and dropout by other functions than `Dropout` need the
    attention weights. In float16 the CPU kernels multiply in float16, where scores of activations
    near 1e3 overflow.
    """
    if keras.backend.backend() not in ("jax", "torch") or current_target.get().is_edge:
        return False
    if soft_cap is not None or extra_values is not None or len(query.shape) != 4:
        return False
    if dropout is not None:
        is_drawn = isinstance(dropout, DrawnDropout) and 0 < dropout.layer.rate < 1
        # On JAX the products are cast to float32 where that is necessary.
        return is_drawn and (keras.backend.backend() == "jax" or _is_safe(query))
    if keras.backend.backend() == "jax" and query.shape[-1] != value.shape[-1]:
        return False  # JAX requires K = V
    return _is_safe(query)


def stores_no_scores(
    query: Tensor,
    key: Tensor,
    given: tuple[Tensor | None, ...],
    window: Window | None,
    is_dropped: bool,
) -> bool:
    """Whether the memory of `fused_attention` grows with T and S instead of T x S.

    Where it does, there is no reason to call it for blocks of a long sequence.

    Args:
        query: (B, H, T, K), for which `is_fused` holds.
        key: (B, G, S, K).
        given: tuple of masks, those of keys and of pairs; each is optional (None).
        window: int or pair, window of the attention; optional.
        is_dropped: bool, whether the attention weights are dropped out.
    """
    backend = keras.backend.backend()
    if backend == "jax" and is_dropped:
        return True
    if not _is_on_gpu(query):
        return False
    is_masked = any(mask is not None for mask in given)
    if is_masked and query.shape[0] * query.shape[-2] * key.shape[-2] > LARGE:
        return False  # cuDNN's mask, or PyTorch's, is that large
    if backend == "torch":
        return window is None  # blocks of a window hold fewer pairs
    from keras_tfm.layers.jax.flash_attention import is_available

    return is_available(query, key) and (window is None or not is_masked)


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: ScoreTerms,
    dropout: DrawnDropout | None,
) -> Tensor:
    """dropout(softmax(QK^T scale + bias)) V by the backend's fused operation.

    On JAX that is cuDNN's flash attention for float16 and bfloat16 on an NVIDIA GPU, and elsewhere
    `jax.nn.dot_product_attention`; cuDNN's dropout has no seed that a program could choose, so that
    attention with dropout is computed by `dropped_attention`. On PyTorch it is
    `scaled_dot_product_attention`, dropout included.

    Args:
        query: (B, H, T, K).
        key: (B, G, S, K).
        value: (B, G, S, V).
        terms: `ScoreTerms`. A query that sees no key gets zeros.
        dropout: `DrawnDropout` of the attention weights; optional.

    Returns:
        (B, H, T, V) in the dtype of `value`.
    """
    compute = _on_torch if keras.backend.backend() == "torch" else _on_jax
    y = ops.cast(compute(query, key, value, terms, dropout), value.dtype)
    if terms.mask is None:  # every query sees its own key
        return y
    return y * _sees_any(terms, query.shape[-2], value.dtype)


def _on_torch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: ScoreTerms,
    dropout: DrawnDropout | None,
) -> Tensor:
    from keras_tfm.layers.torch import scaled_attention as sdpa

    rate = 0.0 if dropout is None else dropout.layer.rate
    if dropout is None or dropout.own_seed is None:
        return sdpa.scaled_attention(query, key, value, terms, rate)
    return sdpa.seeded_attention(query, key, value, terms, rate, dropout.own_seed)


def _on_jax(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: ScoreTerms,
    dropout: DrawnDropout | None,
) -> Tensor:
    import jax

    from keras_tfm.layers.jax import dropped_attention, flash_attention

    terms = terms._replace(mask=_four_axes(terms.mask), bias=_four_axes(terms.bias))
    if dropout is not None:
        rate, seed = dropout.layer.rate, dropout.seed
        return dropped_attention.dropped_attention(query, key, value, terms, rate, seed)
    dtype = jax.numpy.result_type(query, key, value)
    query, key, value = (x.astype(dtype) for x in (query, key, value))
    if flash_attention.is_available(query, key):
        return flash_attention.flash_attention(query, key, value, terms)
    is_causal = terms.causal and terms.mask is None and terms.window is None
    mask = None if is_causal else _four_axes(terms.whole_mask(query.shape[-2]))
    # Not Keras's operation: it prints a traceback where cuDNN refuses a call, and on a TPU it
    # takes a mask from the first example alone and attention without one for causal.
    y = jax.nn.dot_product_attention(
        *(swap(x, -2, -3) for x in (query, key, value)),
        bias=None if terms.bias is None else terms.bias.astype(dtype),
        mask=mask,
        scale=terms.scale,
        is_causal=is_causal,
        implementation="xla",
    )
    return swap(y, -2, -3)


def _four_axes(x: Tensor | None) -> Tensor | None:
    """A mask or bias with the axes that it lacks of (B, H, T, S)."""
    return None if x is None else ops.reshape(x, (*(1,) * (4 - len(x.shape)), *x.shape))


def _sees_any(terms: ScoreTerms, length: int, dtype: DType) -> Tensor:
    """1 where a query sees a key, 0 where it sees none: (..., T | 1, 1)."""
    mask = _four_axes(terms.mask)
    assert mask is not None
    if terms.causal and terms.window is None and mask.shape[-2] == 1:
        # Of keys alone: a running sum in place of a mask of pairs.
        seen = ops.greater(ops.cumsum(ops.cast(mask, "int32"), axis=-1), 0)
        return ops.cast(swap(seen, -1, -2), dtype)
    return masks.sees_any(terms.whole_mask(length), dtype)


def _is_safe(query: Tensor) -> bool:
    """Whether products cannot overflow: CPU kernels multiply float16 in float16."""
    return keras.backend.standardize_dtype(query.dtype) != "float16" or _is_on_gpu(query)


def _is_on_gpu(x: Tensor) -> bool:
    if keras.backend.backend() == "torch":
        return bool(x.is_cuda)
    from keras_tfm.layers.jax.flash_attention import platform

    return platform() == "gpu"
