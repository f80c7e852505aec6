"""SmolLM3 (https://huggingface.co/blog/smollm3)."""

from collections.abc import Sequence

from keras_tfm.layers import Residual, RotaryEmbedding, TransformerDecoderBlock
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.decoders.causal_decoder import RotaryDecoder, each_flag
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model

# From the model's configuration on the Hugging Face hub. smollm3(128256, **SIZES["3b"]).
SIZES: dict[str, Arguments] = {
    "3b": {
        "dim": 2048, "num_layers": 36, "num_heads": 16, "num_key_value_heads": 4,
        "intermediate_dim": 11008, "rope_theta": 5e6, "max_length": 65536,
    },
}  # fmt: skip


@builder
def smollm3(
    vocabulary_size: int,
    dim: int = 2048,
    num_layers: int = 36,
    num_heads: int = 16,
    intermediate_dim: int = 11008,
    num_key_value_heads: int | None = None,
    head_dim: int | None = None,
    activation: Activation = "silu",
    rms_norm_epsilon: float = 1e-6,
    rope_theta: float = 2000000.0,
    rope_scaling: RotaryScaling | None = None,
    rotary: Sequence[bool] | None = None,
    windows: int | Sequence[int | None] | None = None,
    attention_bias: bool = False,
    feed_forward_bias: bool = False,
    attention_dropout: float = 0.0,
    tie_output: bool = True,
    max_length: int = 32768,
    pad_id: int | None = None,
    name: str = "smollm3",
    dtype: DType = None,
) -> Model:
    """SmolLM3, a decoder-only language model: from token ids to logits of the next token.

    Llama's blocks, of which every fourth has no positions (NoPE, arXiv:2501.18795): its queries and
    keys are not rotated, and order comes from the causal mask alone.

    Args:
        rotary: list of bool, whether each block has rotary positions. Default: all but every
            fourth.
        attention_bias: bool, whether the attention's projections add a bias.

    Returns:
        A functional model from `tokens` (B, T), int32, to logits (B, T, V).

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import smollm3
    >>> model = smollm3(11, dim=8, num_layers=4, num_heads=2, intermediate_dim=16)
    >>> generate(model, [[3, 4, 5]], max_length=6).tokens.shape
    (1, 6)
    """
    parts = RotaryDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, num_key_value_heads=num_key_value_heads,
        head_dim=head_dim, activation=activation, rms_norm_epsilon=rms_norm_epsilon,
        windows=windows, attention_bias=attention_bias, feed_forward_bias=feed_forward_bias,
        attention_dropout=attention_dropout, tie_output=tie_output, pad_id=pad_id, name=name,
        dtype=dtype,
    )  # fmt: skip
    rotates = each_rotary(rotary, num_layers)

    def block(i: int, window: int | None) -> TransformerDecoderBlock:
        position = None
        if rotates[i]:
            position = RotaryEmbedding(rope_theta, scaling=rope_scaling, dtype=dtype)
        residual = Residual(input_norm=parts.norm("norm"), dtype=dtype)
        return parts.block(i, window, position, residual)

    return parts.build(block, norm=parts.norm("decoder_norm"))


def each_rotary(rotary: Sequence[bool] | None, num_layers: int, interval: int = 4) -> list[bool]:
    """Whether each block has rotary positions: all but every `interval`th if `rotary` is None."""
    if rotary is None:
        return [not x for x in each_flag("rotary", None, num_layers, interval)]
    return each_flag("rotary", rotary, num_layers, interval)
