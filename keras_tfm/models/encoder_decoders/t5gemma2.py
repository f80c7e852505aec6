"""T5Gemma 2: "Seeing, Reading, and Understanding Longer" (arXiv:2512.14856), for text."""

from collections.abc import Collection, Sequence
from typing import Any

from keras import ops

from keras_tfm.arguments import check_positive
from keras_tfm.layers import LinearScaling, RotaryEmbedding, TokenEmbedding, gelu_tanh
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Activation, Arguments, DType, Window
from keras_tfm.models.decoders.causal_decoder import each_window, initializer
from keras_tfm.models.encoder_decoders.t5gemma import GemmaStack, gemma_stacks
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model


def _size(num_layers: int, window: int, **more: Any) -> Arguments:
    windows = [window if (i + 1) % 6 else None for i in range(num_layers)]
    return {"num_layers": num_layers, "windows": windows, "decoder_windows": windows, **more}


# Encoder and decoder have the sizes of the text models of Gemma 3 (arXiv:2503.19786), from which
# they are initialized; parameters as in `transformers`, less its vision tower.
# t5gemma2(262144, **SIZES["270m-270m"]).
SIZES: dict[str, Arguments] = {
    "270m-270m": _size(
        18, 512, dim=640, num_heads=4, num_key_value_heads=1, intermediate_dim=2048
    ),
    "1b-1b": _size(26, 512, dim=1152, num_heads=4, num_key_value_heads=1, intermediate_dim=6912),
    "4b-4b": _size(
        34, 1024, dim=2560, num_heads=8, num_key_value_heads=4, intermediate_dim=10240,
        rope_scaling=LinearScaling(8.0),
    ),
}  # fmt: skip


@builder
def t5gemma2(
    vocabulary_size: int,
    dim: int = 640,
    num_layers: int = 18,
    num_heads: int = 4,
    intermediate_dim: int = 2048,
    num_key_value_heads: int | None = None,
    decoder_num_layers: int | None = None,
    decoder_num_heads: int | None = None,
    decoder_intermediate_dim: int | None = None,
    decoder_num_key_value_heads: int | None = None,
    head_dim: int = 256,
    activation: Activation = gelu_tanh,
    rms_norm_epsilon: float = 1e-6,
    rope_theta: float = 1e6,
    rope_scaling: RotaryScaling | None = None,
    local_rope_theta: float = 10000.0,
    windows: int | Sequence[int | None] | None = None,
    decoder_windows: int | Sequence[int | None] | None = None,
    query_pre_attention_scalar: float | None = None,
    final_logit_soft_cap: float | None = None,
    attention_bias: bool | Collection[str] = False,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    max_length: int = 131072,
    pad_id: int = 0,
    start_id: int = 2,
    end_id: int | Sequence[int] = 1,
    name: str = "t5gemma2",
    dtype: DType = None,
) -> Model:
    """T5Gemma 2 for text, an encoder-decoder of Gemma 3's blocks, from token ids to logits.

    The encoder's blocks are those of `gemma` with `post_norm` and `query_key_norm`, without
    causality. The decoder's have no sublayer for cross-attention: their self-attention sees the
    encoder's output, too, in one softmax and with the same projections (merged attention). Encoder,
    decoder and output share one table of token embeddings, which are multiplied by sqrt(D). In the
    source, `pad_id` is padding. The target is not masked: its padding comes after the text, where
    causal attention does not see it.

    Args:
        rope_theta: float, longest wavelength of the rotary positions divided by 2 pi, in blocks
            without a window.
        local_rope_theta: float, likewise in blocks with a window, which are not scaled.
        windows: int, number of tokens of the source that each one sees, itself included, half of
            them on each side; or a list with an int or None for each block. Default: no windows.
        decoder_windows: int, a token of the target sees only those less than that many positions
            before it, and the whole source; or a list of int or None. Default: no windows.

    `start_id` and `end_id` do not change the model. They are kept in `model.arguments`, loaded and
    saved with a checkpoint.

    Returns:
        A functional model from `source` (B, S) and `target` (B, T), int32, to logits (B, T, V).

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import t5gemma2
    >>> model = t5gemma2(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, head_dim=4)
    >>> generate(model, [[3, 4, 1]], max_length=5, start_id=2, end_id=1).tokens.shape
    (1, 5)
    """
    check_positive("query_pre_attention_scalar", query_pre_attention_scalar, optional=True)
    check_positive("final_logit_soft_cap", final_logit_soft_cap, optional=True)
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1, got {num_layers}")
    scalar = head_dim if query_pre_attention_scalar is None else query_pre_attention_scalar

    def position(window: Window | None) -> RotaryEmbedding:
        theta, scaling = (rope_theta, rope_scaling) if window is None else (local_rope_theta, None)
        return RotaryEmbedding(theta, scaling=scaling, dtype=dtype)

    shared: Arguments = {
        "dim": dim,
        "attention": {
            "head_dim": head_dim, "scale": scalar**-0.5, "use_bias": attention_bias,
            "dropout": attention_dropout, "kernel_initializer": initializer(), "dtype": dtype,
        },
        "position": position, "activation": activation, "rms_norm_epsilon": rms_norm_epsilon,
        "dropout": dropout, "dtype": dtype, "is_second": True,
    }  # fmt: skip
    encoder = GemmaStack(
        name="encoder", num_heads=num_heads, num_key_value_heads=num_key_value_heads,
        intermediate_dim=intermediate_dim, **shared,
        windows=[
            # Half of the tokens are before each one, which counts among them.
            None if window is None else ((window + 1) // 2, window // 2 + 1)
            for window in each_window(windows, num_layers)
        ],
    )  # fmt: skip
    decoder = GemmaStack(
        name="decoder", num_heads=decoder_num_heads or num_heads,
        num_key_value_heads=decoder_num_key_value_heads or num_key_value_heads,
        intermediate_dim=decoder_intermediate_dim or intermediate_dim, **shared,
        windows=each_window(decoder_windows, decoder_num_layers or num_layers),
    )  # fmt: skip
    table = TokenEmbedding(
        vocabulary_size, dim, scale=True, mask_id=pad_id, padding="ends",
        embeddings_initializer=initializer(), dtype=dtype, name="embedding",
    )  # fmt: skip
    inputs, x, _ = gemma_stacks(encoder, decoder, lambda stack: table)
    logits = table(x, reverse=True)
    if final_logit_soft_cap is not None:
        logits = final_logit_soft_cap * ops.tanh(logits / final_logit_soft_cap)
    return Model(inputs, logits, name=name)
