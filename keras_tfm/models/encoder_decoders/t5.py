"""T5: "Exploring the Limits of Transfer Learning" (arXiv:1910.10683), and its version 1.1."""

from collections.abc import Sequence

import keras
from keras import ops

from keras_tfm import layers
from keras_tfm.layers.types import Activation, Arguments, DType, Tensor
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model

_V11: Arguments = {"gated": True, "activation": layers.gelu_tanh, "tie_output": False}
_MADLAD: Arguments = {**_V11, "pad_id": 1, "start_id": 0, "end_id": 2}

# Sections 2.1 and 3.7 of the paper. "v1.1...": the configurations released in
# github.com/google-research/text-to-text-transfer-transformer, released_checkpoints.md, with the
# feed-forward networks of "GLU Variants" (arXiv:2002.05202). Use: t5(32128, **SIZES["small"]).
# "mt5-..." (arXiv:2010.11934) and "umt5-..." (arXiv:2304.09151): the sizes of version 1.1, with
# 250,112 and 256,384 ids. "madlad-..." (arXiv:2309.04662): the configurations released as
# google/madlad400-3b-mt and so on, with 256,000 ids.
SIZES: dict[str, Arguments] = {
    "small": {
        "dim": 512, "num_layers": 6, "num_heads": 8, "head_dim": 64, "intermediate_dim": 2048,
    },
    "base": {
        "dim": 768, "num_layers": 12, "num_heads": 12, "head_dim": 64, "intermediate_dim": 3072,
    },
    "large": {
        "dim": 1024, "num_layers": 24, "num_heads": 16, "head_dim": 64, "intermediate_dim": 4096,
    },
    "3b": {
        "dim": 1024, "num_layers": 24, "num_heads": 32, "head_dim": 128, "intermediate_dim": 16384,
    },
    "11b": {
        "dim": 1024, "num_layers": 24, "num_heads": 128, "head_dim": 128,
        "intermediate_dim": 65536,
    },
    "v1.1-small": {
        "dim": 512, "num_layers": 8, "num_heads": 6, "head_dim": 64, "intermediate_dim": 1024,
        **_V11,
    },
    "v1.1-base": {
        "dim": 768, "num_layers": 12, "num_heads": 12, "head_dim": 64, "intermediate_dim": 2048,
        **_V11,
    },
    "v1.1-large": {
        "dim": 1024, "num_layers": 24, "num_heads": 16, "head_dim": 64, "intermediate_dim": 2816,
        **_V11,
    },
    "v1.1-xl": {
        "dim": 2048, "num_layers": 24, "num_heads": 32, "head_dim": 64, "intermediate_dim": 5120,
        **_V11,
    },
    "v1.1-xxl": {
        "dim": 4096, "num_layers": 24, "num_heads": 64, "head_dim": 64, "intermediate_dim": 10240,
        **_V11,
    },
    "madlad-3b": {
        "dim": 1024, "num_layers": 32, "num_heads": 16, "head_dim": 128, "intermediate_dim": 8192,
        **_MADLAD,
    },
    "madlad-7b": {
        "dim": 2048, "num_layers": 48, "num_heads": 16, "head_dim": 128, "intermediate_dim": 8192,
        **_MADLAD,
    },
    "madlad-10b": {
        "dim": 2048, "num_layers": 32, "num_heads": 32, "head_dim": 128, "intermediate_dim": 16384,
        **_MADLAD,
    },
}  # fmt: skip
SIZES |= {
    f"mt5-{x}": {**SIZES[f"v1.1-{x}"], "multilingual": True}
    for x in ("small", "base", "large", "xl", "xxl")
}
SIZES |= {
    f"umt5-{x}": {**SIZES[f"v1.1-{x}"], "shared_positions": False}
    for x in ("small", "base", "xl", "xxl")
}


@builder
def t5(
    vocabulary_size: int,
    dim: int = 512,
    num_layers: int = 6,
    num_heads: int = 8,
    intermediate_dim: int = 2048,
    num_decoder_layers: int | None = None,
    head_dim: int | None = None,
    dropout: float = 0.1,
    activation: Activation = "relu",
    gated: bool = False,
    layer_norm_epsilon: float = 1e-6,
    num_buckets: int = 32,
    max_distance: int = 128,
    tie_output: bool = True,
    scale_output: bool | None = None,
    pad_id: int = 0,
    start_id: int | None = None,
    end_id: int | Sequence[int] = 1,
    shared_positions: bool = True,
    multilingual: bool = False,
    name: str = "t5",
    dtype: DType = None,
) -> Model:
    """T5, mT5, uMT5 or MADLAD, encoder-decoders with relative positions, from ids to logits.

    Pre-norm blocks with RMS norms, no biases, scores that are not divided by sqrt(K), and one
    `RelativePositionBias` per stack, or in uMT5 per block. In the source, `pad_id` is padding. In
    the target it is also the start token of most checkpoints, so the target is not masked: its
    padding comes after the text, where causal attention does not see it. For training, let targets
    start with `start_id` and ignore class `pad_id` in the loss.

    Args:
        vocabulary_size: int, number of token ids of source and target (V).
        num_heads: int, number of attention heads (H).
        intermediate_dim: int, inner width of the feed-forward networks (F).
        head_dim: int, width of a head's queries and keys (K). Default: D / H.
        dropout: float, dropout rate after each sublayer, inside the feed-forward networks, of the
            attention weights, and before and after each stack.
        activation: str or function, activation of the feed-forward networks, or of their gates.
        gated: bool, gated feed-forward networks, as in version 1.1.
        num_buckets: int, number of buckets of both position biases.
        max_distance: int, start of their last bucket.
        scale_output: bool, whether features are divided by sqrt(D) before the output layer.
            Default: `tie_output`.
        start_id: int, the token with which a target starts. It does not change the model; it is
            loaded and saved with a checkpoint. Default: `pad_id`.
        end_id: int or sequence of int, the tokens at which a text ends; as `start_id`.
        shared_positions: bool, whether all blocks of a stack share a `RelativePositionBias` (True),
            or each has its own, as in uMT5, which is then the type of a saved checkpoint.
        multilingual: bool, whether a saved checkpoint is of type "mt5". The model is the same.

    Returns:
        A functional model from `source` (B, S) and `target` (B, T), int32, to logits (B, T, V).

    Raises:
        ValueError: an argument out of range; `num_heads` does not divide `dim` and `head_dim` is
            not given.

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import t5
    >>> model = t5(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> generate(model, [[3, 4, 1]], max_length=5, start_id=0, end_id=1).tokens.shape
    (1, 5)
    """
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1, got {num_layers}")
    attention: Arguments = {
        "head_dim": head_dim,
        "dropout": dropout,
        "scale": 1.0,
        "use_bias": False,
        "dtype": dtype,
    }

    def parts(bias: layers.RelativePositionBias, causal: bool) -> Arguments:
        """The arguments shared by encoder and decoder blocks."""
        return {
            "self_attention": layers.MultiHeadSelfAttention(
                num_heads, causal=causal, position=bias, name="self_attention", **attention
            ),
            "feed_forward": layers.FeedForward(
                intermediate_dim,
                activation=activation,
                gated=gated,
                dropout=dropout,
                use_bias=False,
                dtype=dtype,
                name="feed_forward",
            ),
            "residual": layers.Residual(
                input_norm=layers.RMSNormalization(
                    epsilon=layer_norm_epsilon, dtype=dtype, name="norm"
                ),
                dropout=dropout,
                dtype=dtype,
            ),
            "dtype": dtype,
        }

    def positions(name: str) -> layers.RelativePositionBias:
        return layers.RelativePositionBias(num_buckets, max_distance, dtype=dtype, name=name)

    def ending(x: Tensor, stack: str) -> Tensor:
        norm = layers.RMSNormalization(
            epsilon=layer_norm_epsilon, dtype=dtype, name=f"{stack}_norm"
        )
        return layers.Dropout(dropout, dtype=dtype, name=f"{stack}_dropout")(norm(x))

    embedding = layers.TokenEmbedding(
        vocabulary_size, dim, mask_id=pad_id, padding="ends", dtype=dtype, name="embedding"
    )
    embedding_dropout = layers.Dropout(dropout, dtype=dtype, name="embedding_dropout")

    source = keras.Input((None,), dtype="int32", name="source")
    x, bias = embedding_dropout(embedding(source)), positions("encoder_positions")
    for i in range(num_layers):
        bias = bias if shared_positions else positions("encoder_positions")
        x = layers.TransformerEncoderBlock(**parts(bias, causal=False), name=f"encoder_{i}")(x)
    encoders = [f"encoder_{i}" for i in range(num_layers)]
    x = ending(x, "encoder")
    context = Marker("encoded", embedding="embedding", blocks=encoders, dtype=dtype)(x)

    target = keras.Input((None,), dtype="int32", name="target")
    # An operation drops the padding mask: the target's start token may be the padding id.
    x = embedding_dropout(ops.copy(embedding(target)))
    bias = positions("decoder_positions")
    decoders = num_layers if num_decoder_layers is None else num_decoder_layers
    for i in range(decoders):
        bias = bias if shared_positions else positions("decoder_positions")
        x = layers.TransformerDecoderBlock(
            **parts(bias, causal=True),
            cross_attention=layers.MultiHeadCrossAttention(
                num_heads, name="cross_attention", **attention
            ),
            name=f"decoder_{i}",
        )(x, context)
    blocks = [*encoders, *(f"decoder_{i}" for i in range(decoders))]
    x = ending(x, "decoder")
    x = Marker("features", embedding="embedding", blocks=blocks, dtype=dtype)(x)
    x = Marker("head", "language_model", dtype=dtype)(x)
    if tie_output if scale_output is None else scale_output:
        x = keras.layers.Rescaling(dim**-0.5, dtype=dtype, name="output_scale")(x)
    if tie_output:
        logits = embedding(x, reverse=True)
    else:
        logits = keras.layers.Dense(vocabulary_size, use_bias=False, dtype=dtype, name="output")(x)
    return Model({"source": source, "target": target}, logits, name=name)
