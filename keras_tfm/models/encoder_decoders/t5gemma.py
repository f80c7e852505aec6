"""T5Gemma: "Encoder-Decoder Gemma" (arXiv:2504.06225), of the blocks of Gemma 2."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import keras
from keras import ops

from keras_tfm import layers
from keras_tfm.arguments import check_positive
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Activation, Arguments, DType, Tensor, Window
from keras_tfm.models.decoders.causal_decoder import each_window, initializer
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model

_2B: Arguments = {
    "dim": 2304, "num_layers": 26, "num_heads": 8, "num_key_value_heads": 4,
    "intermediate_dim": 9216,
}  # fmt: skip
_GEMMA2: Arguments = {
    "query_pre_attention_scalar": 256, "attention_logit_soft_cap": 50.0,
    "final_logit_soft_cap": 30.0,
}  # fmt: skip


def _alternating(window: int, num_layers: int) -> list[int | None]:
    return [window if i % 2 == 0 else None for i in range(num_layers)]


# Table 1 of the paper: "2b-2b" and "9b-9b" have the sizes of Gemma 2, "9b-2b" the encoder of one
# and the decoder of the other. t5gemma(256000, **SIZES["2b-2b"]).
SIZES: dict[str, Arguments] = {
    "2b-2b": {
        **_2B, **_GEMMA2, "windows": _alternating(4097, 26),
        "decoder_windows": _alternating(4096, 26),
    },
    "9b-2b": {
        "dim": 3584, "num_layers": 42, "num_heads": 16, "num_key_value_heads": 8,
        "intermediate_dim": 14336, **{f"decoder_{key}": x for key, x in _2B.items()}, **_GEMMA2,
        "windows": _alternating(4097, 42), "decoder_windows": _alternating(4096, 26),
    },
    "9b-9b": {
        "dim": 3584, "num_layers": 42, "num_heads": 16, "num_key_value_heads": 8,
        "intermediate_dim": 14336, **_GEMMA2, "windows": _alternating(4097, 42),
        "decoder_windows": _alternating(4096, 42),
    },
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GemmaStack:
    """The parts of the encoder or the decoder of T5Gemma and T5Gemma 2.

    Attributes:
        is_second: bool, whether queries and keys are normalised, and the decoder's self-attention
            sees the encoder's output, too (merged attention), as in T5Gemma 2.
    """

    name: str
    dim: int
    num_heads: int
    num_key_value_heads: int | None
    intermediate_dim: int
    windows: Sequence[Window | None]
    attention: Arguments
    position: Callable[[Window | None], layers.RotaryEmbedding]
    activation: Activation
    rms_norm_epsilon: float
    dropout: float
    dtype: DType
    is_second: bool = False

    @property
    def blocks(self) -> list[str]:
        """The names of the blocks."""
        return [f"{self.name}_{i}" for i in range(len(self.windows))]

    def norm(self, name: str) -> layers.RMSNormalization:
        """A norm."""
        return layers.RMSNormalization(epsilon=self.rms_norm_epsilon, dtype=self.dtype, name=name)

    def parts(self, window: Window | None, causal: bool) -> Arguments:
        """The arguments shared by encoder and decoder blocks."""
        own: Arguments = {}
        if self.is_second:
            norms = {x: self.norm(x) for x in ("query_norm", "key_norm")}
            own = {**norms, "merged": causal}
        return {
            "self_attention": layers.MultiHeadSelfAttention(
                self.num_heads, causal=causal, window=window, name="self_attention",
                num_key_value_heads=self.num_key_value_heads,
                position=self.position(window), **self.attention, **own,
            ),
            "feed_forward": layers.FeedForward(
                self.intermediate_dim, activation=self.activation, gated=True, use_bias=False,
                dropout=self.dropout, kernel_initializer=initializer(), dtype=self.dtype,
                name="feed_forward",
            ),
            "residual": layers.Residual(
                input_norm=self.norm("norm"), output_norm=self.norm("output_norm"),
                dropout=self.dropout, dtype=self.dtype,
            ),
            "dtype": self.dtype,
        }  # fmt: skip

    def cross_attention(self) -> layers.MultiHeadCrossAttention | bool:
        """The cross-attention of a block of the decoder; False if it has none."""
        if self.is_second:
            return False
        return layers.MultiHeadCrossAttention(
            self.num_heads,
            num_key_value_heads=self.num_key_value_heads,
            name="cross_attention",
            **self.attention,
        )

    def drop(self, x: Tensor, name: str) -> Tensor:
        """Dropout, named after the stack."""
        return layers.Dropout(self.dropout, dtype=self.dtype, name=f"{self.name}_{name}")(x)


def gemma_stacks(
    encoder: GemmaStack,
    decoder: GemmaStack,
    table_of: Callable[[GemmaStack], layers.TokenEmbedding],
) -> tuple[dict[str, Tensor], Tensor, layers.TokenEmbedding]:
    """The inputs `source` and `target`, the decoder's features (B, T, D) and its table of tokens.

    `table_of`: function of a stack that returns its table.
    """
    source = keras.Input((None,), dtype="int32", name="source")
    table = table_of(encoder)
    x = encoder.drop(table(source), "embedding_dropout")
    for block, window in zip(encoder.blocks, encoder.windows, strict=True):
        x = layers.TransformerEncoderBlock(**encoder.parts(window, causal=False), name=block)(x)
    x = encoder.drop(encoder.norm("encoder_norm")(x), "dropout")
    marker = Marker("encoded", embedding=table.name, blocks=encoder.blocks, dtype=encoder.dtype)
    context = marker(x)

    target = keras.Input((None,), dtype="int32", name="target")
    table = table_of(decoder)
    # An operation drops the padding mask: padding comes after the text.
    x = decoder.drop(ops.copy(table(target)), "embedding_dropout")
    for block, window in zip(decoder.blocks, decoder.windows, strict=True):
        x = layers.TransformerDecoderBlock(
            **decoder.parts(window, causal=True),
            cross_attention=decoder.cross_attention(),
            name=block,
        )(x, context)
    x = decoder.drop(decoder.norm("decoder_norm")(x), "dropout")
    blocks = [*encoder.blocks, *decoder.blocks]
    x = Marker("features", embedding=table.name, blocks=blocks, dtype=decoder.dtype)(x)
    x = Marker("head", "language_model", dtype=decoder.dtype)(x)
    return {"source": source, "target": target}, x, table


@builder
def t5gemma(
    vocabulary_size: int,
    dim: int = 2304,
    num_layers: int = 26,
    num_heads: int = 8,
    intermediate_dim: int = 9216,
    num_key_value_heads: int | None = None,
    decoder_dim: int | None = None,
    decoder_num_layers: int | None = None,
    decoder_num_heads: int | None = None,
    decoder_intermediate_dim: int | None = None,
    decoder_num_key_value_heads: int | None = None,
    head_dim: int = 256,
    activation: Activation = layers.gelu_tanh,
    rms_norm_epsilon: float = 1e-6,
    rope_theta: float = 10000.0,
    rope_scaling: RotaryScaling | None = None,
    windows: int | Sequence[int | None] | None = None,
    decoder_windows: int | Sequence[int | None] | None = None,
    query_pre_attention_scalar: float | None = None,
    attention_logit_soft_cap: float | None = None,
    final_logit_soft_cap: float | None = None,
    attention_bias: bool | Collection[str] = False,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    tie_output: bool = True,
    max_length: int = 8192,
    pad_id: int = 0,
    start_id: int = 2,
    end_id: int | Sequence[int] = 1,
    name: str = "t5gemma",
    dtype: DType = None,
) -> Model:
    """T5Gemma, an encoder-decoder of Gemma 2's blocks, from token ids to logits.

    The encoder's blocks are those of `gemma` with `post_norm`, without causality; the decoder's
    have a cross-attention, without positions, between the other sublayers. Both stacks have a
    table of token embeddings, times sqrt(D), and the output shares that of the decoder. In the
    source, `pad_id` is padding. The target is not masked: its padding comes after the text, where
    causal attention does not see it.

    Args:
        windows: int, a token of the source sees only those less than that many positions away; or
            a list with an int or None for each block. Default: no windows.
        decoder_windows: int, or list of int or None, likewise for the target. Default: no windows.
        attention_logit_soft_cap: float, c in c tanh(score / c). Default: no cap.
        final_logit_soft_cap: float, likewise for the logits. Default: no cap.

    `start_id` and `end_id` do not change the model. They are kept in `model.arguments`, loaded and
    saved with a checkpoint.

    Returns:
        A functional model from `source` (B, S) and `target` (B, T), int32, to logits (B, T, V).

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import t5gemma
    >>> model = t5gemma(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, head_dim=4)
    >>> generate(model, [[3, 4, 1]], max_length=5, start_id=2, end_id=1).tokens.shape
    (1, 5)
    """
    check_positive("query_pre_attention_scalar", query_pre_attention_scalar, optional=True)
    check_positive("final_logit_soft_cap", final_logit_soft_cap, optional=True)
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1, got {num_layers}")
    scalar = head_dim if query_pre_attention_scalar is None else query_pre_attention_scalar
    shared: Arguments = {
        "attention": {
            "head_dim": head_dim, "scale": scalar**-0.5, "soft_cap": attention_logit_soft_cap,
            "use_bias": attention_bias, "dropout": attention_dropout,
            "kernel_initializer": initializer(), "dtype": dtype,
        },
        "position": lambda window: layers.RotaryEmbedding(
            rope_theta, scaling=rope_scaling, dtype=dtype
        ),
        "activation": activation, "rms_norm_epsilon": rms_norm_epsilon, "dropout": dropout,
        "dtype": dtype,
    }  # fmt: skip
    decoder_layers = decoder_num_layers or num_layers
    encoder = GemmaStack(
        name="encoder", dim=dim, num_heads=num_heads, num_key_value_heads=num_key_value_heads,
        intermediate_dim=intermediate_dim, windows=each_window(windows, num_layers), **shared,
    )  # fmt: skip
    decoder = GemmaStack(
        name="decoder", dim=decoder_dim or dim, num_heads=decoder_num_heads or num_heads,
        num_key_value_heads=decoder_num_key_value_heads or num_key_value_heads,
        intermediate_dim=decoder_intermediate_dim or intermediate_dim,
        windows=each_window(decoder_windows, decoder_layers), **shared,
    )  # fmt: skip

    def table_of(stack: GemmaStack) -> layers.TokenEmbedding:
        return layers.TokenEmbedding(
            vocabulary_size, stack.dim, scale=True, mask_id=pad_id, padding="ends",
            embeddings_initializer=initializer(), dtype=dtype,
            name="source_embedding" if stack is encoder else "target_embedding",
        )  # fmt: skip

    inputs, x, table = gemma_stacks(encoder, decoder, table_of)
    if tie_output:
        logits = table(x, reverse=True)
    else:
        logits = keras.layers.Dense(
            vocabulary_size, use_bias=False, kernel_initializer=initializer(), dtype=dtype,
            name="output",
        )(x)  # fmt: skip
    if final_logit_soft_cap is not None:
        logits = final_logit_soft_cap * ops.tanh(logits / final_logit_soft_cap)
    return Model(inputs, logits, name=name)
