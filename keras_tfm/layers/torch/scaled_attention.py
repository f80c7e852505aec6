"""PyTorch's scaled dot-product attention: flash or memory-efficient kernels on a GPU."""

import torch

from keras_tfm.layers.multi_head_attention.masks import ScoreTerms
from keras_tfm.layers.torch.random_state import temporary_seed
from keras_tfm.layers.types import Tensor


@torch.compiler.disable  # seeding a generator breaks a compiled graph in any case
def seeded_attention(
    query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, rate: float, seed: Tensor
) -> Tensor:
    """`scaled_attention` with dropout of the attention weights from a seed."""
    with temporary_seed(seed, query.device):
        return scaled_attention(query, key, value, terms, rate)


def scaled_attention(
    query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, dropout: float = 0.0
) -> Tensor:
    """softmax(QK^T scale + bias) V by `torch.nn.functional.scaled_dot_product_attention`.

    Args:
        query: (B, H, T, K).
        key: (B, G, S, K).
        value: (B, G, S, V).
        terms: `ScoreTerms`. The result for a query that sees no key is finite.
        dropout: float, dropout rate of the attention weights.

    Returns:
        (B, H, T, V).
    """
    # PyTorch takes a mask or causality; and its causal kernel scales hidden scores, which are -inf:
    # NaN or +inf where the scale is not positive.
    hides_more = terms.window is not None or terms.mask is not None
    causal = terms.causal and terms.scale > 0 and terms.bias is None and not hides_more
    mask = None if causal else terms.whole_mask(query.shape[-2])
    heads, groups = query.shape[1], key.shape[1]
    dtype = torch.promote_types(query.dtype, torch.promote_types(key.dtype, value.dtype))
    query, key, value = (x.to(dtype) for x in (query, key, value))
    if heads != groups:
        # Repeated: with `enable_gqa`, or for a broadcast head, whose stride is 0, PyTorch chooses
        # no fused kernel where there is a mask.
        key, value = (torch.repeat_interleave(x, heads // groups, dim=1) for x in (key, value))
    added = None if terms.bias is None else terms.bias.to(dtype)
    if mask is not None:
        # Finite: -inf gives NaN where a query sees no key.
        hidden = torch.tensor(_lowest(dtype), dtype=dtype, device=query.device)
        added = torch.where(mask, torch.zeros_like(hidden) if added is None else added, hidden)
    if added is not None:
        added = added[(None,) * (4 - added.dim())].contiguous()
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, added, dropout, causal, scale=terms.scale
    )


def _lowest(dtype: torch.dtype) -> float:
    """A finite number in `dtype`, far below any score."""
    return -3e4 if dtype == torch.float16 else -1e30
