"""OLMo 2 (arXiv:2501.00656), OLMo 3 (arXiv:2512.13961) and EXAONE 4.0 (arXiv:2507.11407)."""

from collections.abc import Sequence
from typing import Any

from keras_tfm.arguments import check_positive
from keras_tfm.layers import Residual, RotaryEmbedding, TransformerDecoderBlock
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.decoders.causal_decoder import RotaryDecoder
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model


def _olmo3(num_layers: int, **more: Any) -> Arguments:
    windows = [None if i % 4 == 3 else 4096 for i in range(num_layers)]
    return {"num_layers": num_layers, "windows": windows, "max_length": 65536, **more}


def _exaone4(num_layers: int, **more: Any) -> Arguments:
    return {
        "num_layers": num_layers, "num_key_value_heads": 8, "rms_norm_epsilon": 1e-5,
        "rope_theta": 1e6, "head_norm": True, **more,
    }  # fmt: skip


# OLMo 2: the configurations of its checkpoints (arXiv:2501.00656). OLMo 3: config.json of
# Olmo-3-1025-7B and Olmo-3-1125-32B, compared with ch05/13_olmo3 of the repository
# rasbt/LLMs-from-scratch. olmo2(100352, **SIZES["1b"]). OLMo 3's blocks without a window have
# YaRNScaling(8.0, 8192) besides, and local_rope_theta=500000. EXAONE 4.0: config.json of both
# models, compared with copies in tests of TensorRT-LLM and in public repositories; with
# Llama3Scaling(16.0, 8192) besides. olmo2(102400, **SIZES["exaone4-1.2b"]).
SIZES: dict[str, Arguments] = {
    "1b": {"dim": 2048, "num_layers": 16, "num_heads": 16, "intermediate_dim": 8192},
    "7b": {"dim": 4096, "num_layers": 32, "num_heads": 32, "intermediate_dim": 11008},
    "13b": {"dim": 5120, "num_layers": 40, "num_heads": 40, "intermediate_dim": 13824},
    "olmo3-7b": _olmo3(32, dim=4096, num_heads=32, intermediate_dim=11008),
    "olmo3-32b": _olmo3(64, dim=5120, num_heads=40, num_key_value_heads=8, intermediate_dim=27648),
    "exaone4-1.2b": _exaone4(
        30, dim=2048, num_heads=32, intermediate_dim=4096, tie_output=True, max_length=65536
    ),
    "exaone4-32b": _exaone4(
        64, dim=5120, num_heads=40, intermediate_dim=27392, max_length=131072,
        windows=[None if i % 4 == 3 else 4096 for i in range(64)], global_rotary=False,
    ),
}  # fmt: skip


@builder
def olmo2(
    vocabulary_size: int,
    dim: int = 4096,
    num_layers: int = 32,
    num_heads: int = 32,
    intermediate_dim: int = 11008,
    num_key_value_heads: int | None = None,
    head_dim: int | None = None,
    activation: Activation = "silu",
    rms_norm_epsilon: float = 1e-6,
    rope_theta: float = 500000.0,
    rope_scaling: RotaryScaling | None = None,
    local_rope_theta: float | None = None,
    windows: int | Sequence[int | None] | None = None,
    global_rotary: bool = True,
    head_norm: bool = False,
    attention_bias: bool = False,
    attention_dropout: float = 0.0,
    tie_output: bool = False,
    max_length: int = 4096,
    pad_id: int | None = None,
    name: str = "olmo2",
    dtype: DType = None,
) -> Model:
    """OLMo 2 and 3 and EXAONE 4.0, decoder-only: from token ids to logits of the next token.

    Llama's blocks with the norms elsewhere: on the outputs of the sublayers, x + norm(f(x)), and on
    the queries and keys of all heads together, or of each head in EXAONE 4.0. OLMo 3 and the large
    EXAONE 4.0 have windows in three of four blocks.

    Args:
        local_rope_theta: float, `rope_theta` of the blocks with a window, which are not scaled
            (OLMo 3). Default: `rope_theta` and `rope_scaling` apply to all blocks.
        global_rotary: bool, whether blocks without a window have rotary positions. False in an
            EXAONE 4.0 with windows.
        head_norm: bool, whether the queries and keys of each head are normalised by themselves, as
            in EXAONE 4.0, instead of those of all heads together.
        attention_bias: bool, whether the attention's projections add a bias.

    Returns:
        A functional model from `tokens` (B, T), int32, to logits (B, T, V).

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import olmo2
    >>> model = olmo2(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> generate(model, [[3, 4, 5]], max_length=6).tokens.shape
    (1, 6)
    """
    check_positive("local_rope_theta", local_rope_theta, optional=True)
    parts = RotaryDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, num_key_value_heads=num_key_value_heads,
        head_dim=head_dim, activation=activation, rms_norm_epsilon=rms_norm_epsilon,
        attention_bias=attention_bias, windows=windows, attention_dropout=attention_dropout,
        tie_output=tie_output, pad_id=pad_id, name=name, dtype=dtype,
    )  # fmt: skip

    def block(i: int, window: int | None) -> TransformerDecoderBlock:
        theta, scaling = rope_theta, rope_scaling
        if window is not None and local_rope_theta is not None:
            theta, scaling = local_rope_theta, None
        position = None
        if global_rotary or window is not None:
            position = RotaryEmbedding(theta, scaling=scaling, dtype=dtype)
        residual = Residual(output_norm=parts.norm("norm"), dtype=dtype)
        norms = parts.head_norms(axis=-1 if head_norm else (-2, -1))
        return parts.block(i, window, position, residual, **norms)

    return parts.build(block, norm=parts.norm("decoder_norm"))
