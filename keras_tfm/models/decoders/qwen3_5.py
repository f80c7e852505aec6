"""Qwen3.5, for text (https://huggingface.co/Qwen)."""

from collections.abc import Sequence
from typing import Any

from keras_tfm.layers import GatedDeltaNet, Residual, RotaryEmbedding, TransformerDecoderBlock
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.decoders.causal_decoder import RotaryDecoder, each_flag, initializer
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model

# From the configurations in ExecuTorch, examples/models/qwen3_5/config, and, for 9b, the default
# one of transformers. They do not say which sizes tie the table: as in Qwen3, those up to 4b.
# qwen3_5(248320, **SIZES["0.8b"]).
SIZES: dict[str, Arguments] = {
    "0.8b": {
        "dim": 1024, "num_layers": 24, "num_heads": 8, "num_key_value_heads": 2,
        "intermediate_dim": 3584, "delta_heads": 16, "delta_key_heads": 16, "tie_output": True,
    },
    "2b": {
        "dim": 2048, "num_layers": 24, "num_heads": 8, "num_key_value_heads": 2,
        "intermediate_dim": 6144, "delta_heads": 16, "delta_key_heads": 16, "tie_output": True,
    },
    "4b": {
        "dim": 2560, "num_layers": 32, "num_heads": 16, "num_key_value_heads": 4,
        "intermediate_dim": 9216, "delta_heads": 32, "delta_key_heads": 16, "tie_output": True,
    },
    "9b": {
        "dim": 4096, "num_layers": 32, "num_heads": 16, "num_key_value_heads": 4,
        "intermediate_dim": 12288, "delta_heads": 32, "delta_key_heads": 16, "tie_output": False,
    },
}  # fmt: skip


@builder
def qwen3_5(
    vocabulary_size: int,
    dim: int = 4096,
    num_layers: int = 32,
    num_heads: int = 16,
    intermediate_dim: int = 12288,
    num_key_value_heads: int | None = None,
    head_dim: int = 256,
    rotary_dim: int | None = 64,
    attends: Sequence[bool] | None = None,
    delta_heads: int = 32,
    delta_key_heads: int = 16,
    delta_head_dim: int = 128,
    delta_value_dim: int = 128,
    kernel_size: int = 4,
    activation: Activation = "silu",
    rms_norm_epsilon: float = 1e-6,
    rope_theta: float = 10000000.0,
    rope_scaling: RotaryScaling | None = None,
    attention_bias: bool = False,
    attention_dropout: float = 0.0,
    tie_output: bool = False,
    max_length: int = 262144,
    pad_id: int | None = None,
    name: str = "qwen3_5",
    dtype: DType = None,
) -> Model:
    """Qwen3.5, a decoder-only language model: from token ids to logits of the next token.

    Three of four blocks have linear attention by the gated delta rule, see `layers.GatedDeltaNet`:
    its state does not grow with the tokens. The others have attention with normalised queries and
    keys, of which a quarter of each head is rotated, and a gate on its output. This is the model of
    text, without the encoder of images.

    Args:
        rotary_dim: int, the first dimensions of each head, which are rotated. None: all.
        attends: list of bool, whether each block has attention; the others have the gated delta
            rule. Default: every fourth has attention.
        delta_heads, delta_key_heads: int, number of heads of values, and of queries and keys, in
            the blocks with the gated delta rule.
        delta_head_dim, delta_value_dim: int, width of their heads of queries and keys, and of
            values.
        kernel_size: int, number of tokens that their convolutions read.
        activation: str or function, activation of the feed-forward networks and the convolutions.
        attention_bias: bool, whether the attention's projections add a bias.

    Returns:
        A functional model from `tokens` (B, T), int32, to logits (B, T, V).

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import qwen3_5
    >>> model = qwen3_5(
    ...     11, dim=8, num_layers=4, num_heads=2, intermediate_dim=16, head_dim=8, rotary_dim=4,
    ...     delta_heads=2, delta_key_heads=1, delta_head_dim=4, delta_value_dim=4,
    ... )
    >>> generate(model, [[3, 4, 5]], max_length=6).tokens.shape
    (1, 6)
    """
    parts = RotaryDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, num_key_value_heads=num_key_value_heads,
        head_dim=head_dim, activation=activation, rms_norm_epsilon=rms_norm_epsilon,
        attention_bias=attention_bias, attention_dropout=attention_dropout, tie_output=tie_output,
        pad_id=pad_id, name=name, dtype=dtype,
    )  # fmt: skip
    attending = each_flag("attends", attends, num_layers, interval=4)

    def block(i: int, window: int | None) -> TransformerDecoderBlock:
        residual = Residual(input_norm=parts.norm("norm"), dtype=dtype)
        if attending[i]:
            position = RotaryEmbedding(
                rope_theta, rotary_dim=rotary_dim, scaling=rope_scaling, dtype=dtype
            )
            attention: Any = {**parts.head_norms(), "gate": "query"}
            return parts.block(i, window, position, residual, **attention)
        mixer = GatedDeltaNet(
            delta_heads, delta_head_dim, delta_value_dim, delta_key_heads, kernel_size, activation,
            rms_norm_epsilon, kernel_initializer=initializer(), dtype=dtype, name="gated_delta_net",
        )  # fmt: skip
        return parts.block(i, None, None, residual, mixer=mixer)

    return parts.build(block, norm=parts.norm("decoder_norm"))
