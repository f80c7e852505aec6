"""ModernBERT as a causal decoder: Ettin (arXiv:2507.11412)."""

from collections.abc import Sequence

import keras

from keras_tfm import layers
from keras_tfm.arguments import check_positive
from keras_tfm.layers.types import Activation, Arguments, DType, Tensor
from keras_tfm.models.decoders.causal_decoder import CausalDecoder, initializer
from keras_tfm.models.encoders import modernbert
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model


def _with_windows(size: Arguments) -> Arguments:
    return {**size, "windows": [64 if i % 3 else None for i in range(size["num_layers"])]}


# The sizes of the encoders with which the decoders are paired.
# modernbert_decoder(50368, **SIZES["ettin-32m"]).
SIZES: dict[str, Arguments] = {
    name: _with_windows(size) for name, size in modernbert.SIZES.items() if name.startswith("ettin")
}


@builder
def modernbert_decoder(
    vocabulary_size: int,
    dim: int = 768,
    num_layers: int = 22,
    num_heads: int = 12,
    intermediate_dim: int = 1152,
    embedding_dropout: float = 0.0,
    attention_dropout: float = 0.0,
    activation_dropout: float = 0.0,
    activation: Activation = "gelu",
    head_activation: Activation = "gelu",
    layer_norm_epsilon: float = 1e-5,
    windows: int | Sequence[int | None] | None = None,
    rope_theta: float = 160000.0,
    local_rope_theta: float | None = 10000.0,
    tie_output: bool = True,
    output_bias: bool = True,
    max_length: int = 8192,
    pad_id: int | None = None,
    name: str = "modernbert_decoder",
    dtype: DType = None,
) -> Model:
    """ModernBERT as a decoder-only language model, from token ids to logits of the next token.

    The blocks of `modernbert` with causal attention: pre-norm, with rotary positions and GeGLU; no
    layer but the output has a bias, and the first block has no normalisation before its attention.
    The output begins with a dense layer and a normalisation, as every other head does.

    Args:
        embedding_dropout: float, dropout rate after the embeddings.
        attention_dropout: float, dropout rate of the attention weights and of attention's output.
        head_activation: str or function, activation of the dense layer with which heads begin.
        local_rope_theta: float, `rope_theta` of the blocks with a window. Default: `rope_theta`.
        output_bias: bool, whether the logits have a bias.

    Returns:
        A functional model from `tokens` (B, T), int32, to logits (B, T, V).

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import modernbert_decoder
    >>> model = modernbert_decoder(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> generate(model, [[3, 4, 5]], max_length=6).tokens.shape
    (1, 6)
    """
    check_positive("local_rope_theta", local_rope_theta, optional=True)
    parts = CausalDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, windows=windows,
        tie_output=tie_output, output_bias=output_bias, pad_id=pad_id, name=name, dtype=dtype,
    )  # fmt: skip

    def norm(name: str) -> layers.LayerNormalization:
        return layers.LayerNormalization(
            epsilon=layer_norm_epsilon, center=False, dtype=dtype, name=name
        )

    def block(i: int, window: int | None) -> layers.TransformerDecoderBlock:
        theta = rope_theta if window is None or local_rope_theta is None else local_rope_theta
        return layers.TransformerDecoderBlock(
            self_attention=layers.MultiHeadSelfAttention(
                num_heads, causal=True, window=window, dropout=attention_dropout, use_bias=False,
                position=layers.RotaryEmbedding(theta, dtype=dtype), dtype=dtype,
                kernel_initializer=initializer(), name="self_attention",
            ),
            cross_attention=False,
            feed_forward=layers.FeedForward(
                intermediate_dim, activation=activation, gated=True, dropout=activation_dropout,
                use_bias=False, kernel_initializer=initializer(), dtype=dtype, name="feed_forward",
            ),
            residual={
                "self_attention": layers.Residual(
                    input_norm=norm("norm") if i else None, dropout=attention_dropout, dtype=dtype
                ),
                "feed_forward": layers.Residual(input_norm=norm("norm"), dtype=dtype),
            },
            dtype=dtype,
            name=f"decoder_{i}",
        )  # fmt: skip

    def begin(x: Tensor) -> Tensor:
        x = norm("embedding_norm")(x)
        return layers.Dropout(embedding_dropout, dtype=dtype, name="embedding_dropout")(x)

    def transform(x: Tensor) -> Tensor:
        x = keras.layers.Dense(
            dim, activation=head_activation, use_bias=False, kernel_initializer=initializer(),
            dtype=dtype, name="transform",
        )(x)  # fmt: skip
        return norm("transform_norm")(x)

    return parts.build(block, begin, norm("final_norm"), transform=transform)
