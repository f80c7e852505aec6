"""Mamba-2 (arXiv:2405.21060): state spaces alone, without attention."""

from collections.abc import Sequence

from keras_tfm.layers import Mamba2, Residual, RMSNormalization, TransformerDecoderBlock
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.decoders.causal_decoder import CausalDecoder, initializer
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model


def _size(dim: int, num_layers: int) -> Arguments:
    return {"dim": dim, "num_layers": num_layers, "num_heads": dim // 32, "tie_output": True}


# The models that were published with the paper, whose heads have 64 channels.
# mamba2(50288, **SIZES["130m"]).
SIZES: dict[str, Arguments] = {
    "130m": _size(768, 24),
    "370m": _size(1024, 48),
    "780m": _size(1536, 48),
    "1.3b": _size(2048, 48),
    "2.7b": _size(2560, 64),
}


@builder
def mamba2(
    vocabulary_size: int,
    dim: int = 768,
    num_layers: int = 24,
    num_heads: int = 24,
    head_dim: int = 64,
    state_dim: int = 128,
    num_groups: int = 1,
    kernel_size: int = 4,
    activation: Activation = "silu",
    rms_norm_epsilon: float = 1e-5,
    use_bias: bool = False,
    convolution_bias: bool = True,
    time_step_limit: Sequence[float] | None = None,
    tie_output: bool = False,
    pad_id: int | None = None,
    name: str = "mamba2",
    dtype: DType = None,
) -> Model:
    """Mamba-2, a decoder-only language model: from token ids to logits of the next token.

    A block is x + state_space(norm(x)), see `layers.Mamba2`: there is no attention, and no
    feed-forward network. What a step reads of the tokens before does not grow with them.

    Args:
        num_heads, head_dim: int, number of heads of a state space, and their width.
        state_dim: int, width of its keys and queries.
        num_groups: int, number of groups of its heads that share keys and queries.
        kernel_size: int, number of tokens that its convolution reads.
        activation: str or function, activation of the convolutions.
        use_bias: bool, whether the projections add a bias.
        convolution_bias: bool, whether the convolutions add a bias.
        time_step_limit: tuple of two floats, the least and the largest time step. Default: no
            limits.

    Returns:
        A functional model from `tokens` (B, T), int32, to logits (B, T, V).

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import mamba2
    >>> model = mamba2(11, dim=8, num_layers=1, num_heads=2, head_dim=8, state_dim=4)
    >>> generate(model, [[3, 4, 5]], max_length=6).tokens.shape
    (1, 6)
    """
    parts = CausalDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, tie_output=tie_output,
        pad_id=pad_id, name=name, dtype=dtype,
    )  # fmt: skip

    def norm(name: str) -> RMSNormalization:
        return RMSNormalization(epsilon=rms_norm_epsilon, dtype=dtype, name=name)

    def block(i: int, window: int | None) -> TransformerDecoderBlock:
        mixer = Mamba2(
            num_heads, head_dim, state_dim, num_groups, kernel_size, activation, rms_norm_epsilon,
            use_bias, convolution_bias, time_step_limit, kernel_initializer=initializer(),
            dtype=dtype, name="mamba2",
        )  # fmt: skip
        return TransformerDecoderBlock(
            self_attention=mixer,
            cross_attention=False,
            feed_forward=False,
            residual=Residual(input_norm=norm("norm"), dtype=dtype),
            dtype=dtype,
            name=f"decoder_{i}",
        )

    return parts.build(block, norm=norm("decoder_norm"))
