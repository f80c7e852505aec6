"""Cohere's Command R (https://cohere.com/blog/command-r) and Command R7B (Cohere 2)."""

from collections.abc import Sequence

from keras_tfm import layers
from keras_tfm.arguments import check_positive
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.decoders.causal_decoder import CausalDecoder, initializer
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model

# "command-r": the defaults of `CohereConfig` in transformers, which are those of
# c4ai-command-r-v01, and rope_theta and 128K tokens of its own config.json. "r7b": config.json of
# c4ai-command-r7b-12-2024. Compared with copies of both files in public repositories.
# cohere(256000, **SIZES["r7b"]).
SIZES: dict[str, Arguments] = {
    "command-r": {
        "dim": 8192, "num_layers": 40, "num_heads": 64, "intermediate_dim": 22528,
        "rope_theta": 8e6, "logit_scale": 0.0625, "max_length": 131072,
    },
    "r7b": {
        "dim": 4096, "num_layers": 32, "num_heads": 32, "num_key_value_heads": 8,
        "intermediate_dim": 14336, "rope_theta": 50000.0, "logit_scale": 0.25,
        "windows": [None if i % 4 == 3 else 4096 for i in range(32)], "global_rotary": False,
        "max_length": 132096,
    },
}  # fmt: skip


@builder
def cohere(
    vocabulary_size: int,
    dim: int = 8192,
    num_layers: int = 40,
    num_heads: int = 64,
    intermediate_dim: int = 22528,
    num_key_value_heads: int | None = None,
    activation: Activation = "silu",
    layer_norm_epsilon: float = 1e-5,
    rope_theta: float = 10000.0,
    rope_scaling: RotaryScaling | None = None,
    windows: int | Sequence[int | None] | None = None,
    global_rotary: bool = True,
    logit_scale: float = 0.0625,
    attention_bias: bool = False,
    attention_dropout: float = 0.0,
    tie_output: bool = True,
    max_length: int = 8192,
    pad_id: int | None = None,
    name: str = "cohere",
    dtype: DType = None,
) -> Model:
    """Cohere and Cohere 2, a decoder-only language model: from token ids to logits of the next.

    Attention and SwiGLU network side by side behind one layer normalisation without offset,
    x + attention(norm(x)) + feed_forward(norm(x)), and rotary positions of neighbouring pairs. In
    Cohere 2, three of four blocks have a window, and the others have no positions.

    Args:
        num_heads: int, number of attention heads (H). Must divide D.
        global_rotary: bool, whether blocks without a window have rotary positions.
        logit_scale: float, factor of the logits.
        attention_bias: bool, whether the attention's projections add a bias.

    Returns:
        A functional model from `tokens` (B, T), int32, to logits (B, T, V).

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import cohere
    >>> model = cohere(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> generate(model, [[3, 4, 5]], max_length=6).tokens.shape
    (1, 6)
    """
    check_positive("logit_scale", logit_scale)
    parts = CausalDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, windows=windows,
        tie_output=tie_output, pad_id=pad_id, logits_scaling=1 / logit_scale, name=name,
        dtype=dtype,
    )  # fmt: skip

    def norm(name: str) -> layers.LayerNormalization:
        return layers.LayerNormalization(
            epsilon=layer_norm_epsilon, center=False, dtype=dtype, name=name
        )

    def block(i: int, window: int | None) -> layers.TransformerDecoderBlock:
        position = None
        if global_rotary or window is not None:
            position = layers.RotaryEmbedding(
                rope_theta, interleaved=True, scaling=rope_scaling, dtype=dtype
            )
        return layers.TransformerDecoderBlock(
            self_attention=layers.MultiHeadSelfAttention(
                num_heads, causal=True, window=window, num_key_value_heads=num_key_value_heads,
                dropout=attention_dropout, use_bias=attention_bias, position=position,
                kernel_initializer=initializer(), dtype=dtype, name="self_attention",
            ),
            cross_attention=False,
            feed_forward=layers.FeedForward(
                intermediate_dim, activation=activation, gated=True, use_bias=False,
                kernel_initializer=initializer(), dtype=dtype, name="feed_forward",
            ),
            residual=layers.Residual(input_norm=norm("norm"), dtype=dtype),
            parallel="one_residual",
            dtype=dtype,
            name=f"decoder_{i}",
        )  # fmt: skip

    return parts.build(block, norm=norm("decoder_norm"))
