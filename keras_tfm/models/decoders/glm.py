"""GLM-4 (arXiv:2406.12793), GLM-Edge and GLM-4-0414."""

from keras_tfm.layers import Residual, RotaryEmbedding, TransformerDecoderBlock
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.decoders.causal_decoder import RotaryDecoder
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model

_9B: Arguments = {
    "dim": 4096, "num_layers": 40, "num_heads": 32, "intermediate_dim": 13696,
    "num_key_value_heads": 2, "head_dim": 128, "rotary_dim": 64,
}  # fmt: skip
# The defaults of `GlmConfig` and `Glm4Config` in transformers; GLM-4-9B-0414 has another epsilon,
# and 32768 positions. glm(151552, **SIZES["4-9b"]).
SIZES: dict[str, Arguments] = {
    "4-9b": {**_9B, "rms_norm_epsilon": 1.5625e-7, "max_length": 131072},
    "4-9b-0414": {**_9B, "post_norm": True, "max_length": 32768},
}


@builder
def glm(
    vocabulary_size: int,
    dim: int = 4096,
    num_layers: int = 40,
    num_heads: int = 32,
    intermediate_dim: int = 13696,
    num_key_value_heads: int | None = None,
    head_dim: int | None = None,
    activation: Activation = "silu",
    rms_norm_epsilon: float = 1e-5,
    rope_theta: float = 10000.0,
    rotary_dim: int | None = None,
    rope_scaling: RotaryScaling | None = None,
    post_norm: bool = False,
    attention_bias: bool = True,
    attention_dropout: float = 0.0,
    tie_output: bool = False,
    max_length: int = 32768,
    pad_id: int | None = None,
    name: str = "glm",
    dtype: DType = None,
) -> Model:
    """GLM-4 and GLM-4-0414, a decoder-only language model: from token ids to logits of the next.

    Llama's blocks with rotary positions of neighbouring pairs, in half of each head, and biases of
    queries, keys and values. GLM-4-0414 also normalises the output of each sublayer.

    Args:
        rotary_dim: int, even, number of dimensions of a head that are rotated. Default: all.
        post_norm: bool, whether the output of each sublayer is normalised too.
        attention_bias: bool, whether queries, keys and values have a bias.

    Returns:
        A functional model from `tokens` (B, T), int32, to logits (B, T, V).

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import glm
    >>> model = glm(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, rotary_dim=2)
    >>> generate(model, [[3, 4, 5]], max_length=6).tokens.shape
    (1, 6)
    """
    parts = RotaryDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, num_key_value_heads=num_key_value_heads,
        head_dim=head_dim, activation=activation, rms_norm_epsilon=rms_norm_epsilon,
        attention_bias=["query", "key", "value"] if attention_bias else False,
        attention_dropout=attention_dropout, tie_output=tie_output, pad_id=pad_id, name=name,
        dtype=dtype,
    )  # fmt: skip

    def block(i: int, window: int | None) -> TransformerDecoderBlock:
        position = RotaryEmbedding(
            rope_theta, rotary_dim=rotary_dim, interleaved=True, scaling=rope_scaling, dtype=dtype
        )
        output_norm = parts.norm("output_norm") if post_norm else None
        residual = Residual(input_norm=parts.norm("norm"), output_norm=output_norm, dtype=dtype)
        return parts.block(i, window, position, residual)

    return parts.build(block, norm=parts.norm("decoder_norm"))
