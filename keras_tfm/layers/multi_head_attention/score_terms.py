"""What attention does to the products of queries and keys before the softmax.

Example:

>>> from keras_tfm.layers.multi_head_attention.score_terms import ScoreTerms
>>> ScoreTerms(scale=0.5, causal=True).mask is None
True
"""

from typing import Any, NamedTuple

from keras_tfm.layers.multi_head_attention import masks

Tensor = Any


class ScoreTerms(NamedTuple):
    """The factor of the products, the bias that is added, and which scores are hidden.

    Attributes:
        scale: float, factor of the products.
        mask: boolean, broadcastable to (B, H, T, S), True = attend; optional.
        bias: float, broadcastable to (B, H, T, S); optional.
        causal: bool, whether query t sees only keys 0 to t. Requires T = S.
        window: int, query t sees only keys less than `window` away. Requires T = S; optional.
    """

    scale: float
    mask: Tensor | None = None
    bias: Tensor | None = None
    causal: bool = False
    window: int | None = None

    def whole_mask(self, length: Any) -> Tensor | None:
        """The mask with causality and window among T positions, or None if nothing is hidden."""
        return masks.combine(masks.visible(length, self.causal, self.window), self.mask)
