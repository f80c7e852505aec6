"""Falcon-H1 (arXiv:2507.22448): attention and a state space side by side in every block."""

from collections.abc import Collection, Sequence
from typing import Any

import keras

from keras_tfm import layers
from keras_tfm.arguments import check_number, check_numbers, check_positive
from keras_tfm.layers.arguments import serialize_part
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.recurrent.token_mixer import TokenMixer
from keras_tfm.layers.types import Activation, Arguments, Config, DType, Shape, Tensor
from keras_tfm.models.decoders.causal_decoder import RotaryDecoder, initializer
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model

# From a copy of the model's configuration, not from the hub. falcon_h1(32784, **SIZES["0.5b"]).
SIZES: dict[str, Arguments] = {
    "0.5b": {
        "dim": 1024, "num_layers": 36, "num_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
        "intermediate_dim": 2048, "mamba_heads": 24, "mamba_head_dim": 64, "state_dim": 128,
        "rope_theta": 1e11, "max_length": 16384, "embedding_multiplier": 5.656854249492381,
        "lm_head_multiplier": 0.0390625, "key_multiplier": 0.39062499999999994,
        "attention_out_multiplier": 0.9375, "ssm_in_multiplier": 1.25,
        "ssm_out_multiplier": 0.23570226039551587,
        "ssm_multipliers": [
            0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738,
        ],
        "mlp_multipliers": [0.8838834764831844, 0.5859375],
    },
}  # fmt: skip


@keras.saving.register_keras_serializable("keras_tfm")
class HybridMixer(TokenMixer):
    """Attention and a state space that read the same tokens: a attention(b x) + c mamba2(d x).

    Args:
        attention: causal `MultiHeadSelfAttention`.
        mamba2: `Mamba2`.
        attention_scales, mamba2_scales: list of two floats, the factors of the input and of the
            output of each: (b, a) and (d, c).
        **kwargs: of `keras.layers.Layer`.
    """

    def __init__(
        self,
        attention: keras.Layer | Config,
        mamba2: keras.Layer | Config,
        attention_scales: Sequence[float] = (1.0, 1.0),
        mamba2_scales: Sequence[float] = (1.0, 1.0),
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_numbers("attention_scales", attention_scales, 2)
        check_numbers("mamba2_scales", mamba2_scales, 2)
        self.attention = _as_part("attention", attention, layers.MultiHeadSelfAttention)
        self.mamba2 = _as_part("mamba2", mamba2, layers.Mamba2)
        self.attention_scales = list(attention_scales)
        self.mamba2_scales = list(mamba2_scales)

    def build(self, x_shape: Shape) -> None:
        """Creates the weights for inputs of width D."""
        self._check_input(x_shape)
        self.attention.build(x_shape)
        self.mamba2.build(x_shape)
        self.built = True

    def _mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        y = [
            _multiply(layer(_multiply(x, scales[0]), mask=mask), scales[1])
            for layer, scales in (
                (self.attention, self.attention_scales),
                (self.mamba2, self.mamba2_scales),
            )
        ]
        return y[0] + y[1]

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "attention": serialize_part(self.attention),
            "mamba2": serialize_part(self.mamba2),
            "attention_scales": self.attention_scales,
            "mamba2_scales": self.mamba2_scales,
        }


def _as_part(name: str, part: keras.Layer | Config, kind: type[keras.Layer]) -> Any:
    if isinstance(part, dict):
        part = keras.saving.deserialize_keras_object(part)
    if not isinstance(part, kind) or not part.causal:
        raise TypeError(f"{name} must be a causal {kind.__name__}, got {part!r}")
    return part


def _multiply(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else x * factor


@builder
def falcon_h1(
    vocabulary_size: int,
    dim: int = 4096,
    num_layers: int = 32,
    num_heads: int = 32,
    intermediate_dim: int = 14336,
    num_key_value_heads: int | None = None,
    head_dim: int | None = None,
    mamba_heads: int = 128,
    mamba_head_dim: int = 8,
    state_dim: int = 256,
    num_groups: int = 1,
    kernel_size: int = 4,
    activation: Activation = "silu",
    rms_norm_epsilon: float = 1e-5,
    mamba_norm: str | None = None,
    rope_theta: float = 10000.0,
    rope_scaling: RotaryScaling | None = None,
    embedding_multiplier: float = 1.0,
    lm_head_multiplier: float = 1.0,
    key_multiplier: float = 1.0,
    attention_in_multiplier: float = 1.0,
    attention_out_multiplier: float = 1.0,
    ssm_in_multiplier: float = 1.0,
    ssm_out_multiplier: float = 1.0,
    ssm_multipliers: Sequence[float] = (1.0, 1.0, 1.0, 1.0, 1.0),
    mlp_multipliers: Sequence[float] = (1.0, 1.0),
    attention_bias: bool = False,
    mamba_bias: bool | Collection[str] = False,
    convolution_bias: bool = True,
    feed_forward_bias: bool = False,
    time_step_limit: Sequence[float] | None = None,
    attention_dropout: float = 0.0,
    tie_output: bool = False,
    max_length: int = 8192,
    pad_id: int | None = None,
    name: str = "falcon_h1",
    dtype: DType = None,
) -> Model:
    """Falcon-H1, a decoder-only language model: from token ids to logits of the next token.

    In each block, attention with rotary positions and the state space of Mamba-2, see
    `layers.Mamba2`, read the same normalised input, and both outputs are added to the block's
    input. A gated feed-forward network follows. The multipliers are those of the learning rates in
    muP, section 3.2 of the paper.

    Args:
        mamba_norm: str or None, see `norm` of `layers.Mamba2`.
        embedding_multiplier, lm_head_multiplier: float, factors of the embedded tokens and of the
            logits.
        key_multiplier: float, factor of the keys of attention.
        attention_in_multiplier, attention_out_multiplier: float, factors of the input and the
            output of attention.
        ssm_in_multiplier, ssm_out_multiplier: float, factors of the input and the output of a state
            space.
        ssm_multipliers: list of five floats, see `projection_scales` of `layers.Mamba2`.
        mlp_multipliers: list of two floats, factors of the gate and the output of a feed-forward
            network.
        attention_bias: bool, whether the attention's projections add a bias.
        mamba_bias: bool, or a list of "input_projection" and "output_projection", whether these
            projections of a state space add a bias.
        feed_forward_bias: bool, whether the feed-forward networks add biases.

    Returns:
        A functional model from `tokens` (B, T), int32, to logits (B, T, V).

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import falcon_h1
    >>> model = falcon_h1(
    ...     11, dim=8, num_layers=2, num_heads=2, intermediate_dim=16, mamba_heads=2,
    ...     mamba_head_dim=8, state_dim=4,
    ... )
    >>> generate(model, [[3, 4, 5]], max_length=6).tokens.shape
    (1, 6)
    """
    check_positive("lm_head_multiplier", lm_head_multiplier)
    check_number("key_multiplier", key_multiplier)
    check_numbers("ssm_multipliers", ssm_multipliers, 5)
    check_numbers("mlp_multipliers", mlp_multipliers, 2)
    gate_scale, output_scale = mlp_multipliers
    parts = RotaryDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, num_key_value_heads=num_key_value_heads,
        head_dim=head_dim, activation=activation, rms_norm_epsilon=rms_norm_epsilon,
        attention_bias=attention_bias, attention_dropout=attention_dropout, tie_output=tie_output,
        feed_forward_bias=feed_forward_bias, gate_scale=gate_scale, pad_id=pad_id,
        scale_embedding=embedding_multiplier, logits_scaling=1 / lm_head_multiplier,
        name=name, dtype=dtype,
    )  # fmt: skip
    scale = key_multiplier / (head_dim or dim // num_heads) ** 0.5

    def block(i: int, window: int | None) -> layers.TransformerDecoderBlock:
        attention = layers.MultiHeadSelfAttention(
            num_heads, causal=True, head_dim=head_dim, num_key_value_heads=num_key_value_heads,
            dropout=attention_dropout, use_bias=attention_bias, scale=scale,
            position=layers.RotaryEmbedding(rope_theta, scaling=rope_scaling, dtype=dtype),
            kernel_initializer=initializer(), dtype=dtype, name="self_attention",
        )  # fmt: skip
        mamba2 = layers.Mamba2(
            mamba_heads, mamba_head_dim, state_dim, num_groups, kernel_size, activation,
            rms_norm_epsilon, mamba_bias, convolution_bias, time_step_limit, mamba_norm,
            ssm_multipliers, kernel_initializer=initializer(), dtype=dtype, name="mamba2",
        )  # fmt: skip
        mixer = HybridMixer(
            attention, mamba2, (attention_in_multiplier, attention_out_multiplier),
            (ssm_in_multiplier, ssm_out_multiplier), dtype=dtype, name="mixer",
        )  # fmt: skip
        residual = {
            "self_attention": layers.Residual(input_norm=parts.norm("norm"), dtype=dtype),
            "feed_forward": layers.Residual(
                input_norm=parts.norm("norm"), output_scale=output_scale, dtype=dtype
            ),
        }
        return parts.block(i, None, None, residual, mixer=mixer)

    return parts.build(block, norm=parts.norm("decoder_norm"))
