"""Gemma (arXiv:2403.08295), Gemma 2 (arXiv:2408.00118) and Gemma 3 (arXiv:2503.19786), for text.

And EmbeddingGemma (arXiv:2509.20354), a Gemma 3 without causality that embeds texts.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from keras_tfm.arguments import check_positive
from keras_tfm.layers import Residual, RotaryEmbedding, TransformerDecoderBlock, gelu_tanh
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.decoders.causal_decoder import RotaryDecoder
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model


def _gemma2(num_layers: int, **more: Any) -> Arguments:
    windows = [None if i % 2 else 4096 for i in range(num_layers)]
    caps = {"attention_logit_soft_cap": 50.0, "final_logit_soft_cap": 30.0}
    return {"num_layers": num_layers, "windows": windows, "post_norm": True, **caps, **more}


def _gemma3(num_layers: int, window: int = 512, **more: Any) -> Arguments:
    windows = [window if (i + 1) % 6 else None for i in range(num_layers)]
    rope = {"rope_theta": 1e6, "local_rope_theta": 1e4}
    norms = {"post_norm": True, "query_key_norm": True}
    sizes = {"num_heads": 4, "num_key_value_heads": 1, "max_length": 32768}
    return {"num_layers": num_layers, "windows": windows, **norms, **rope, **sizes, **more}


# From the models' configurations on the Hugging Face hub. gemma(262144, **SIZES["gemma3-1b"]);
# Gemma 1 and 2 have 256,000 token ids.
SIZES: dict[str, Arguments] = {
    "gemma-2b": {
        "dim": 2048, "num_layers": 18, "num_heads": 8, "num_key_value_heads": 1,
        "intermediate_dim": 16384,
    },
    "gemma-7b": {"dim": 3072, "num_layers": 28, "num_heads": 16, "intermediate_dim": 24576},
    "gemma2-2b": _gemma2(
        26, dim=2304, num_heads=8, num_key_value_heads=4, intermediate_dim=9216
    ),
    "gemma2-9b": _gemma2(
        42, dim=3584, num_heads=16, num_key_value_heads=8, intermediate_dim=14336
    ),
    "gemma2-27b": _gemma2(
        46, dim=4608, num_heads=32, num_key_value_heads=16, intermediate_dim=36864, head_dim=128,
        query_pre_attention_scalar=144,
    ),
    "gemma3-270m": _gemma3(18, dim=640, intermediate_dim=2048),
    "gemma3-1b": _gemma3(26, dim=1152, intermediate_dim=6912),
    # A window of 512 in `config.json`, of which `Gemma3TextConfig` of transformers makes
    # 512 // 2 + 1: the token itself, and 256 to each side. The vectors are
    # sentence_embedding(..., projection_dim=[3072, 768], projection_bias=False).
    "embeddinggemma-300m": _gemma3(
        24, window=257, dim=768, num_heads=3, intermediate_dim=1152, max_length=2048,
        causal=False, pad_id=0,
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GemmaDecoder(RotaryDecoder):
    """The parts of a Gemma, see `gemma`."""

    head_dim: int
    rope_theta: float
    rope_scaling: RotaryScaling | None
    post_norm: bool = True
    query_key_norm: bool = True
    local_rope_theta: float | None = None
    query_pre_attention_scalar: float | None = None
    attention_logit_soft_cap: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        scalar, theta = self.query_pre_attention_scalar, self.local_rope_theta
        check_positive("query_pre_attention_scalar", scalar, optional=True)
        check_positive("local_rope_theta", theta, optional=True)
        check_positive("final_logit_soft_cap", self.soft_cap, optional=True)

    def gemma_block(self, i: int, window: int | None) -> TransformerDecoderBlock:
        """Block i, with its entry of `windows`."""
        theta, scaling = self.rope_theta, self.rope_scaling
        if window is not None and self.local_rope_theta is not None:
            theta, scaling = self.local_rope_theta, None
        residual = Residual(
            input_norm=self.norm("norm"),
            output_norm=self.norm("output_norm") if self.post_norm else None,
            dtype=self.dtype,
        )
        return self.block(
            i,
            window,
            RotaryEmbedding(theta, scaling=scaling, dtype=self.dtype),
            residual,
            scale=(self.query_pre_attention_scalar or self.head_dim) ** -0.5,
            soft_cap=self.attention_logit_soft_cap,
            **(self.head_norms() if self.query_key_norm else {}),
        )


@builder
def gemma(
    vocabulary_size: int,
    dim: int = 2048,
    num_layers: int = 18,
    num_heads: int = 8,
    intermediate_dim: int = 16384,
    num_key_value_heads: int | None = None,
    head_dim: int = 256,
    activation: Activation = gelu_tanh,
    rms_norm_epsilon: float = 1e-6,
    post_norm: bool = False,
    query_key_norm: bool = False,
    rope_theta: float = 10000.0,
    rope_scaling: RotaryScaling | None = None,
    local_rope_theta: float | None = None,
    windows: int | Sequence[int | None] | None = None,
    query_pre_attention_scalar: float | None = None,
    attention_logit_soft_cap: float | None = None,
    final_logit_soft_cap: float | None = None,
    attention_bias: bool | Collection[str] = False,
    attention_dropout: float = 0.0,
    causal: bool = True,
    tie_output: bool = True,
    max_length: int = 8192,
    pad_id: int | None = None,
    name: str = "gemma",
    dtype: DType = None,
) -> Model:
    """Gemma, a decoder-only language model: from token ids to logits of the next token.

    Llama's blocks with GEGLU and embeddings times sqrt(D). Gemma 2 also normalises the output of
    each sublayer, caps scores and logits, and has windows in every second block. Gemma 3 normalises
    queries and keys instead of capping scores, and has windows in five of six blocks.
    EmbeddingGemma is a Gemma 3 whose tokens see later ones too (`causal=False`). Norms multiply by
    their `scale`, which checkpoints store minus 1.

    Args:
        head_dim: int, width of a head (K).
        post_norm: bool, whether the output of each sublayer is normalised too (Gemma 2 and 3).
        query_key_norm: bool, whether queries and keys are normalised (Gemma 3).
        local_rope_theta: float, `rope_theta` of the blocks with a window, which are not scaled
            (Gemma 3). Default: `rope_theta` and `rope_scaling` apply to all blocks.
        query_pre_attention_scalar: float, scores are divided by its square root. Default: K.
        attention_logit_soft_cap: float, c in c tanh(score / c) (Gemma 2). Default: no cap.
        final_logit_soft_cap: float, likewise for the logits (Gemma 2). Default: no cap.

    Returns:
        A functional model from `tokens` (B, T), int32, to logits (B, T, V).

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import gemma
    >>> model = gemma(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, head_dim=4)
    >>> generate(model, [[3, 4, 5]], max_length=6).tokens.shape
    (1, 6)
    """
    parts = GemmaDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, num_key_value_heads=num_key_value_heads,
        head_dim=head_dim, activation=activation, rms_norm_epsilon=rms_norm_epsilon,
        windows=windows, attention_bias=attention_bias, attention_dropout=attention_dropout,
        causal=causal, tie_output=tie_output, pad_id=pad_id, scale_embedding=True,
        soft_cap=final_logit_soft_cap, name=name, dtype=dtype, rope_theta=rope_theta,
        rope_scaling=rope_scaling, local_rope_theta=local_rope_theta, post_norm=post_norm,
        query_key_norm=query_key_norm, query_pre_attention_scalar=query_pre_attention_scalar,
        attention_logit_soft_cap=attention_logit_soft_cap,
    )  # fmt: skip
    return parts.build(parts.gemma_block, norm=parts.norm("decoder_norm"))
