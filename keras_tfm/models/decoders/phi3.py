"""Phi-3 (arXiv:2404.14219), Phi-3.5 and Phi-4-mini (arXiv:2503.01743)."""

from dataclasses import replace

from keras_tfm.layers import LongRoPEScaling, Residual, RotaryEmbedding, TransformerDecoderBlock
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.decoders.causal_decoder import RotaryDecoder
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model

# Phi-3-mini with 4096 positions: section 2 of arXiv:2404.14219, and the defaults of `Phi3Config`.
# Phi-4-mini: section 2 of arXiv:2503.01743; heads and the part that is rotated are compared with
# examples/models/phi_4_mini/config/config.json of pytorch/executorch. The checkpoint's config.json
# has the factors of LongRoPE besides. phi3(32064, **SIZES["mini-4k"]).
SIZES: dict[str, Arguments] = {
    "mini-4k": {
        "dim": 3072, "num_layers": 32, "num_heads": 32, "intermediate_dim": 8192,
        "max_length": 4096,
    },
    "4-mini": {
        "dim": 3072, "num_layers": 32, "num_heads": 24, "num_key_value_heads": 8,
        "intermediate_dim": 8192, "rotary_dim": 96, "tie_output": True, "max_length": 131072,
    },
}  # fmt: skip


@builder
def phi3(
    vocabulary_size: int,
    dim: int = 3072,
    num_layers: int = 32,
    num_heads: int = 32,
    intermediate_dim: int = 8192,
    num_key_value_heads: int | None = None,
    activation: Activation = "silu",
    rms_norm_epsilon: float = 1e-5,
    rope_theta: float = 10000.0,
    rotary_dim: int | None = None,
    rope_scaling: LongRoPEScaling | None = None,
    long_texts: bool = False,
    window: int | None = None,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    tie_output: bool = False,
    max_length: int = 4096,
    pad_id: int | None = None,
    name: str = "phi3",
    dtype: DType = None,
) -> Model:
    """Phi-3 and Phi-4-mini, a decoder-only language model: from token ids to logits of the next.

    Llama's blocks. In Phi-4-mini, three quarters of each head are rotated. Models for 128,000
    tokens were extended by LongRoPE.

    Args:
        num_heads: int, number of attention heads (H). Must divide D.
        rotary_dim: int, even, number of dimensions of a head that are rotated. Default: all.
        rope_scaling: `layers.LongRoPEScaling`. Default: no scaling.
        long_texts: bool, whether texts may exceed `rope_scaling.original_length` tokens, 4096 in
            the published models: whether LongRoPE's long factors are used instead of the short
            ones. A checkpoint does not say it; `transformers` decides in each call.
        window: int, attend to that many last positions only. Default: no window.
        dropout: float, dropout rate after each sublayer.

    Returns:
        A functional model from `tokens` (B, T), int32, to logits (B, T, V).

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; a call with a longer
            text than LongRoPE's short factors are for.

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import phi3
    >>> model = phi3(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> generate(model, [[3, 4, 5]], max_length=6).tokens.shape
    (1, 6)
    """
    if rope_scaling is not None and not isinstance(rope_scaling, LongRoPEScaling):
        raise TypeError(
            f"rope_scaling must be a LongRoPEScaling, got {type(rope_scaling).__name__}"
        )
    scaling = None if rope_scaling is None else replace(rope_scaling, is_long=long_texts)
    parts = RotaryDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, num_key_value_heads=num_key_value_heads,
        activation=activation, rms_norm_epsilon=rms_norm_epsilon,
        windows=window, attention_bias=False, attention_dropout=attention_dropout,
        tie_output=tie_output, pad_id=pad_id, name=name, dtype=dtype,
    )  # fmt: skip

    def block(i: int, window: int | None) -> TransformerDecoderBlock:
        position = RotaryEmbedding(rope_theta, rotary_dim=rotary_dim, scaling=scaling, dtype=dtype)
        residual = Residual(input_norm=parts.norm("norm"), dropout=dropout, dtype=dtype)
        return parts.block(i, window, position, residual)

    return parts.build(block, norm=parts.norm("decoder_norm"))
