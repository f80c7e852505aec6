"""Granite 3, dense and with experts (https://github.com/ibm-granite/granite-3.1-language-models)."""

from keras_tfm.arguments import check_positive
from keras_tfm.layers import Residual, RotaryEmbedding, Routing, TransformerDecoderBlock
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.decoders.causal_decoder import RotaryDecoder
from keras_tfm.models.decoders.experts import Experts
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model

# From the models' configurations on the Hugging Face hub. granite(49159, **SIZES["3.3-2b"]).
SIZES: dict[str, Arguments] = {
    "3.3-2b": {
        "dim": 2048, "num_layers": 40, "num_heads": 32, "num_key_value_heads": 8,
        "intermediate_dim": 8192, "rms_norm_epsilon": 1e-5, "rope_theta": 1e7, "tie_output": True,
        "embedding_multiplier": 12.0, "attention_multiplier": 0.015625,
        "residual_multiplier": 0.22, "logits_scaling": 8.0, "max_length": 131072,
    },
    "3.0-1b-a400m": {
        "dim": 1024, "num_layers": 24, "num_heads": 16, "num_key_value_heads": 8,
        "intermediate_dim": 512, "experts": Experts(Routing(32, 8)), "tie_output": True,
        "embedding_multiplier": 12.0, "attention_multiplier": 0.015625,
        "residual_multiplier": 0.22, "logits_scaling": 6.0, "max_length": 4096,
    },
}  # fmt: skip


@builder
def granite(
    vocabulary_size: int,
    dim: int = 4096,
    num_layers: int = 32,
    num_heads: int = 32,
    intermediate_dim: int = 11008,
    num_key_value_heads: int | None = None,
    head_dim: int | None = None,
    activation: Activation = "silu",
    rms_norm_epsilon: float = 1e-6,
    rope_theta: float = 10000.0,
    rope_scaling: RotaryScaling | None = None,
    embedding_multiplier: float = 1.0,
    attention_multiplier: float = 1.0,
    residual_multiplier: float = 1.0,
    logits_scaling: float = 1.0,
    attention_bias: bool = False,
    experts: Experts | None = None,
    feed_forward_bias: bool = False,
    attention_dropout: float = 0.0,
    tie_output: bool = False,
    max_length: int = 2048,
    pad_id: int | None = None,
    name: str = "granite",
    dtype: DType = None,
) -> Model:
    """Granite, a decoder-only language model: from token ids to logits of the next token.

    Llama's blocks with four constant factors, as in muP (arXiv:2203.03466): of embedded tokens,
    attention scores, the sublayers' outputs and logits.

    Args:
        embedding_multiplier: float, factor of the embedded tokens.
        attention_multiplier: float, factor of the attention scores, in place of 1/sqrt(K).
        residual_multiplier: float, factor of the sublayers' outputs: x + factor f(norm(x)).
        logits_scaling: float, logits are divided by it.
        attention_bias: bool, whether the attention's projections add a bias.

    Returns:
        A functional model from `tokens` (B, T), int32, to logits (B, T, V).

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import granite
    >>> model = granite(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> generate(model, [[3, 4, 5]], max_length=6).tokens.shape
    (1, 6)
    """
    check_positive("logits_scaling", logits_scaling)
    parts = RotaryDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, num_key_value_heads=num_key_value_heads,
        head_dim=head_dim, activation=activation, rms_norm_epsilon=rms_norm_epsilon,
        attention_bias=attention_bias, feed_forward_bias=feed_forward_bias,
        attention_dropout=attention_dropout, experts=experts, tie_output=tie_output, pad_id=pad_id,
        scale_embedding=embedding_multiplier, logits_scaling=logits_scaling, name=name, dtype=dtype,
    )  # fmt: skip

    def block(i: int, window: int | None) -> TransformerDecoderBlock:
        position = RotaryEmbedding(rope_theta, scaling=rope_scaling, dtype=dtype)
        norm = parts.norm("norm")
        residual = Residual(input_norm=norm, output_scale=residual_multiplier, dtype=dtype)
        return parts.block(i, window, position, residual, scale=attention_multiplier)

    return parts.build(block, norm=parts.norm("decoder_norm"))
