"""Granite 4.0: dense, hybrid, and with experts (https://github.com/ibm-granite/granite-4.0-language-models)."""

from collections.abc import Sequence

from keras_tfm.arguments import check_positive
from keras_tfm.layers import Mamba2, Residual, RotaryEmbedding, Routing, TransformerDecoderBlock
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.decoders.causal_decoder import RotaryDecoder, each_flag, initializer
from keras_tfm.models.decoders.experts import Experts
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model

# From the models' configurations on the Hugging Face hub; the epsilon of h-micro is that of the
# others. granite4(100352, **SIZES["h-350m"]).
SIZES: dict[str, Arguments] = {
    "h-350m": {
        "dim": 768, "num_layers": 32, "num_heads": 12, "num_key_value_heads": 4,
        "intermediate_dim": 2048, "attends": [i in (10, 13, 17, 27) for i in range(32)],
        "mamba_heads": 48, "mamba_head_dim": 32, "state_dim": 128, "rms_norm_epsilon": 1e-5,
        "tie_output": True, "embedding_multiplier": 12.0, "attention_multiplier": 0.015625,
        "residual_multiplier": 0.246, "logits_scaling": 3.0, "max_length": 32768,
    },
    "h-micro": {
        "dim": 2048, "num_layers": 40, "num_heads": 32, "num_key_value_heads": 8,
        "intermediate_dim": 8192, "attends": [i in (5, 15, 25, 35) for i in range(40)],
        "mamba_heads": 64, "mamba_head_dim": 64, "state_dim": 128, "rms_norm_epsilon": 1e-5,
        "tie_output": True, "embedding_multiplier": 12.0, "attention_multiplier": 0.015625,
        "residual_multiplier": 0.22, "logits_scaling": 8.0, "max_length": 131072,
    },
    "h-tiny": {
        "dim": 1536, "num_layers": 40, "num_heads": 12, "num_key_value_heads": 4,
        "intermediate_dim": 1024,
        "experts": Experts(Routing(64, 6), intermediate_dim=512, shared_dim=1024),
        "attends": [i in (5, 15, 25, 35) for i in range(40)],
        "mamba_heads": 48, "mamba_head_dim": 64, "state_dim": 128, "rms_norm_epsilon": 1e-5,
        "tie_output": True, "embedding_multiplier": 12.0, "attention_multiplier": 0.0078125,
        "residual_multiplier": 0.22, "logits_scaling": 6.0, "max_length": 131072,
    },
}  # fmt: skip


@builder
def granite4(
    vocabulary_size: int,
    dim: int = 4096,
    num_layers: int = 32,
    num_heads: int = 32,
    intermediate_dim: int = 1024,
    num_key_value_heads: int | None = None,
    head_dim: int | None = None,
    attends: Sequence[bool] | None = None,
    mamba_heads: int = 128,
    mamba_head_dim: int = 64,
    state_dim: int = 256,
    num_groups: int = 1,
    kernel_size: int = 4,
    activation: Activation = "silu",
    rms_norm_epsilon: float = 1e-6,
    rotary: bool = False,
    rope_theta: float = 10000.0,
    rope_scaling: RotaryScaling | None = None,
    embedding_multiplier: float = 1.0,
    attention_multiplier: float = 1.0,
    residual_multiplier: float = 1.0,
    logits_scaling: float = 1.0,
    attention_bias: bool = False,
    mamba_bias: bool = False,
    convolution_bias: bool = True,
    time_step_limit: Sequence[float] | None = None,
    experts: Experts | None = None,
    attention_dropout: float = 0.0,
    tie_output: bool = False,
    max_length: int = 2048,
    pad_id: int | None = None,
    name: str = "granite4",
    dtype: DType = None,
) -> Model:
    """Granite 4.0, a decoder-only language model: from token ids to logits of the next token.

    Granite's blocks, see `granite`, of which most have the state space of Mamba-2 in place of
    attention, see `layers.Mamba2`: its state does not grow with the tokens. Attention has no
    positions: their order comes from the state spaces. With attention in every block and rotary
    positions, these are the dense models. Those with experts have a shared expert, too:
    `shared_dim` of `experts`.

    Args:
        attends: list of bool, whether each block has attention; the others have a state space.
            Default: every tenth has attention.
        rotary: bool, whether the attention has rotary positions.
        embedding_multiplier: float, factor of the embedded tokens.
        attention_multiplier: float, factor of the attention scores, in place of 1/sqrt(K).
        residual_multiplier: float, factor of the sublayers' outputs: x + factor f(norm(x)).
        logits_scaling: float, logits are divided by it.
        attention_bias: bool, whether the attention's projections add a bias.
        mamba_bias: bool, whether the projections of a state space add a bias.

    Returns:
        A functional model from `tokens` (B, T), int32, to logits (B, T, V).

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import granite4
    >>> model = granite4(
    ...     11, dim=8, num_layers=2, num_heads=2, intermediate_dim=16, attends=[False, True],
    ...     mamba_heads=2, mamba_head_dim=8, state_dim=4,
    ... )
    >>> generate(model, [[3, 4, 5]], max_length=6).tokens.shape
    (1, 6)
    """
    check_positive("logits_scaling", logits_scaling)
    if rope_scaling is not None and not rotary:
        raise ValueError(f"rope_scaling must be None without rotary, got {rope_scaling}")
    parts = RotaryDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, num_key_value_heads=num_key_value_heads,
        head_dim=head_dim, activation=activation, rms_norm_epsilon=rms_norm_epsilon,
        attention_bias=attention_bias, attention_dropout=attention_dropout, experts=experts,
        tie_output=tie_output, pad_id=pad_id, scale_embedding=embedding_multiplier,
        logits_scaling=logits_scaling, name=name, dtype=dtype,
    )  # fmt: skip
    attending = each_flag("attends", attends, num_layers, interval=10)

    def block(i: int, window: int | None) -> TransformerDecoderBlock:
        residual = Residual(
            input_norm=parts.norm("norm"), output_scale=residual_multiplier, dtype=dtype
        )
        if attending[i]:
            position = None
            if rotary:
                position = RotaryEmbedding(rope_theta, scaling=rope_scaling, dtype=dtype)
            return parts.block(i, window, position, residual, scale=attention_multiplier)
        mixer = Mamba2(
            mamba_heads, mamba_head_dim, state_dim, num_groups, kernel_size, activation,
            rms_norm_epsilon, mamba_bias, convolution_bias, time_step_limit,
            kernel_initializer=initializer(), dtype=dtype, name="mamba2",
        )  # fmt: skip
        return parts.block(i, None, None, residual, mixer=mixer)

    return parts.build(block, norm=parts.norm("decoder_norm"))
