"""LFM2, dense and with experts, and LFM2.5 (arXiv:2511.23404), and LFM3."""

from collections.abc import Sequence
from dataclasses import dataclass

from keras_tfm import layers
from keras_tfm.arguments import check_positive
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Arguments, DType
from keras_tfm.models.decoders.causal_decoder import RotaryDecoder, each_flag, initializer
from keras_tfm.models.decoders.experts import Experts
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model

_ATTENTION = ("query", "key", "value", "output")
_ATTENDS = [i in (2, 5, 8, 10, 12, 14) for i in range(16)]
# From the configurations in ExecuTorch, examples/models/lfm2/config: those of LFM2.5 are the same.
# `max_length` is the default of transformers. LFM3: the defaults of its configuration there.
# lfm2(65536, **SIZES["350m"]), lfm2(128000, **SIZES["lfm3-1.7b"]).
SIZES: dict[str, Arguments] = {
    "350m": {
        "dim": 1024, "num_layers": 16, "num_heads": 16, "num_key_value_heads": 8,
        "intermediate_dim": 4608, "attends": _ATTENDS, "max_length": 128000,
    },
    "700m": {
        "dim": 1536, "num_layers": 16, "num_heads": 24, "num_key_value_heads": 8,
        "intermediate_dim": 6912, "attends": _ATTENDS, "max_length": 128000,
    },
    "1.2b": {
        "dim": 2048, "num_layers": 16, "num_heads": 32, "num_key_value_heads": 8,
        "intermediate_dim": 8192, "attends": _ATTENDS, "max_length": 128000,
    },
    "8b-a1b": {
        "dim": 2048, "num_layers": 24, "num_heads": 32, "num_key_value_heads": 8,
        "intermediate_dim": 7168, "attends": [i in (2, 6, 10, 14, 18, 21) for i in range(24)],
        "experts": Experts(
            layers.Routing(32, 4, "sigmoid", selection_bias=True), intermediate_dim=1792,
            blocks=[i > 1 for i in range(24)],
        ),
        "max_length": 128000,
    },
    "lfm3-1.7b": {
        "dim": 2048, "num_layers": 24, "num_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
        "intermediate_dim": 7680, "attends": [i % 2 == 0 and i > 0 for i in range(24)],
        "windows": [256 if i % 4 == 0 and i > 0 else None for i in range(24)], "kernel_size": 7,
        "post_norm": True, "attention_gate": True, "local_rope_theta": 10000.0,
        "rope_scaling": layers.ProportionalScaling(part=0.5), "max_length": 128000,
    },
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Lfm2Decoder(RotaryDecoder):
    """The parts of an LFM2 or 3, see `lfm2`."""

    attends: Sequence[bool] | None
    kernel_size: int
    convolution_bias: bool
    rope_theta: float
    rope_scaling: RotaryScaling | None
    post_norm: bool = False
    attention_gate: bool = False
    local_rope_theta: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("local_rope_theta", self.local_rope_theta, optional=True)
        each_flag("attends", self.attends, self.num_layers, interval=3)

    def lfm2_block(self, i: int, window: int | None) -> layers.TransformerDecoderBlock:
        """Block i, with its entry of `windows`."""
        residual = layers.Residual(
            input_norm=self.norm("norm"),
            output_norm=self.norm("output_norm") if self.post_norm else None,
            dtype=self.dtype,
        )
        if each_flag("attends", self.attends, self.num_layers, interval=3)[i]:
            theta, scaling = self.rope_theta, self.rope_scaling
            if window is not None and self.local_rope_theta is not None:
                theta, scaling = self.local_rope_theta, None
            position = layers.RotaryEmbedding(theta, scaling=scaling, dtype=self.dtype)
            options: Arguments = self.head_norms()
            if self.attention_gate:
                options["gate"] = "head"
            return self.block(i, window, position, residual, **options)
        mixer = layers.ShortConvolution(
            self.kernel_size, self.convolution_bias, kernel_initializer=initializer(),
            dtype=self.dtype, name="short_convolution",
        )  # fmt: skip
        return self.block(i, None, None, residual, mixer=mixer)


@builder
def lfm2(
    vocabulary_size: int,
    dim: int = 2048,
    num_layers: int = 16,
    num_heads: int = 32,
    intermediate_dim: int = 8192,
    num_key_value_heads: int | None = None,
    head_dim: int | None = None,
    attends: Sequence[bool] | None = None,
    windows: int | Sequence[int | None] | None = None,
    kernel_size: int = 3,
    convolution_bias: bool = False,
    rms_norm_epsilon: float = 1e-5,
    post_norm: bool = False,
    attention_gate: bool = False,
    rope_theta: float = 1000000.0,
    rope_scaling: RotaryScaling | None = None,
    local_rope_theta: float | None = None,
    attention_bias: bool = False,
    experts: Experts | None = None,
    attention_dropout: float = 0.0,
    tie_output: bool = True,
    max_length: int = 128000,
    pad_id: int | None = None,
    name: str = "lfm2",
    dtype: DType = None,
) -> Model:
    """LFM2 and 3, a decoder-only language model: from token ids to logits of the next token.

    Llama's blocks with normalised queries and keys, of which most have a gated short convolution in
    place of attention, see `layers.ShortConvolution`: its state does not grow with the tokens. LFM3
    also normalises the output of each sublayer, multiplies each head's result by a gate, and has
    windows in half of the blocks with attention.

    Args:
        attends: list of bool, whether each block has attention; the others have a convolution.
            Default: every third has attention.
        windows: as in `llama`, of the blocks with attention: entries of the others are not used.
        kernel_size: int, number of tokens that a convolution reads.
        convolution_bias: bool, whether the convolutions and their projections add a bias.
        post_norm: bool, whether the output of each sublayer is normalised too (LFM3).
        attention_gate: bool, whether each head's result is multiplied by a sigmoid of the
            attention's input, `gate="head"` (LFM3).
        local_rope_theta: float, `rope_theta` of the blocks with a window, which are not scaled
            (LFM3). Default: `rope_theta` and `rope_scaling` apply to all blocks.
        attention_bias: bool, whether the attention's projections add a bias, but for the gate's.

    Returns:
        A functional model from `tokens` (B, T), int32, to logits (B, T, V).

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import lfm2
    >>> model = lfm2(11, dim=8, num_layers=3, num_heads=2, intermediate_dim=16)
    >>> generate(model, [[3, 4, 5]], max_length=6).tokens.shape
    (1, 6)
    """
    parts = Lfm2Decoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, num_key_value_heads=num_key_value_heads,
        head_dim=head_dim, activation="silu", rms_norm_epsilon=rms_norm_epsilon, windows=windows,
        attention_bias=_ATTENTION if attention_bias else False, attention_dropout=attention_dropout,
        experts=experts, tie_output=tie_output, pad_id=pad_id, name=name, dtype=dtype,
        attends=attends, kernel_size=kernel_size, convolution_bias=convolution_bias,
        rope_theta=rope_theta, rope_scaling=rope_scaling, post_norm=post_norm,
        attention_gate=attention_gate, local_rope_theta=local_rope_theta,
    )  # fmt: skip
    return parts.build(parts.lfm2_block, norm=parts.norm("decoder_norm"))
