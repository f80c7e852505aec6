"""T5: "Exploring the Limits of Transfer Learning" (arXiv:1910.10683), and its version 1.1."""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers import (
    Dropout,
    FeedForward,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    RelativePositionBias,
    Residual,
    RMSNormalization,
    TokenEmbedding,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
    gelu_tanh,
)
from keras_tfm.models.identity import EncodedMarker, FeaturesMarker, HeadMarker
from keras_tfm.models.model import Model

_V11: dict[str, Any] = {"gated": True, "activation": gelu_tanh, "tie_output": False}

# Sections 2.1 and 3.7 of the paper; "v1.1...": the configurations that were released with it,
# github.com/google-research/text-to-text-transfer-transformer, released_checkpoints.md, whose
# feed-forward networks are those of "GLU Variants" (arXiv:2002.05202). t5(32128, **SIZES["small"]).
SIZES: dict[str, dict[str, Any]] = {
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
}  # fmt: skip


def t5(
    vocabulary_size: int,
    dim: int = 512,
    num_layers: int = 6,
    num_heads: int = 8,
    intermediate_dim: int = 2048,
    num_decoder_layers: int | None = None,
    head_dim: int | None = None,
    dropout: float = 0.1,
    activation: Any = "relu",
    gated: bool = False,
    layer_norm_epsilon: float = 1e-6,
    num_buckets: int = 32,
    max_distance: int = 128,
    tie_output: bool = True,
    scale_output: bool | None = None,
    name: str = "t5",
    dtype: Any = None,
) -> Model:
    """An encoder-decoder with relative positions, from token ids to logits.

    Pre-norm blocks with RMS norms, no biases, scores that are not divided by sqrt(K), and one
    `RelativePositionBias` for each stack. Id 0 is padding in the source. In the target it is the
    start token, so that nothing there is masked: padding stands after a text, where nobody sees it.
    Train on targets that begin with 0, `[[0, ...]]`, and a loss that ignores class 0.

    Args:
        vocabulary_size: V, of source and target.
        dim: D.
        num_layers: blocks in the encoder.
        num_heads: H.
        intermediate_dim: F.
        num_decoder_layers: blocks in the decoder; as many as in the encoder by default.
        head_dim: K; D / H by default.
        dropout: rate after each sublayer, inside the feed-forward networks, of the attention
            weights, and before and after each stack.
        activation: of the feed-forward networks, or of their gates.
        gated: gated feed-forward networks, as in version 1.1.
        layer_norm_epsilon: of every normalisation.
        num_buckets: of both position biases.
        max_distance: where their last bucket begins.
        tie_output: whether the logits are made with the embedding's table, or one of their own.
        scale_output: whether features are divided by sqrt(D) before logits are made of them; by
            default where the output is tied.
        name: the model's name.
        dtype: a dtype or dtype policy for every layer.

    Returns:
        A functional model of `source` (B, S) and `target` (B, T), int32, which gives logits
        (B, T, V).

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import t5
    >>> model = t5(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> generate(model, [[3, 4, 1]], max_length=5, start_id=0, end_id=1).tokens.shape
    (1, 5)
    """
    arguments = dict(locals())
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1, got {num_layers}")
    attention: dict[str, Any] = {
        "head_dim": head_dim,
        "dropout": dropout,
        "scale": 1.0,
        "use_bias": False,
        "dtype": dtype,
    }

    def parts(bias: RelativePositionBias, causal: bool) -> dict[str, Any]:
        """The parts that the blocks of both stacks have."""
        return {
            "self_attention": MultiHeadSelfAttention(
                num_heads, causal=causal, position=bias, name="self_attention", **attention
            ),
            "feed_forward": FeedForward(
                intermediate_dim,
                activation=activation,
                gated=gated,
                dropout=dropout,
                use_bias=False,
                dtype=dtype,
                name="feed_forward",
            ),
            "residual": Residual(
                "pre", norm="rms_norm", epsilon=layer_norm_epsilon, dropout=dropout, dtype=dtype
            ),
            "dtype": dtype,
        }

    def positions(name: str) -> RelativePositionBias:
        return RelativePositionBias(num_buckets, max_distance, dtype=dtype, name=name)

    def ending(x: Any, stack: str) -> Any:
        norm = RMSNormalization(epsilon=layer_norm_epsilon, dtype=dtype, name=f"{stack}_norm")
        return Dropout(dropout, dtype=dtype, name=f"{stack}_dropout")(norm(x))

    embedding = TokenEmbedding(vocabulary_size, dim, dtype=dtype, name="embedding")
    embedding_dropout = Dropout(dropout, dtype=dtype, name="embedding_dropout")

    source = keras.Input((None,), dtype="int32", name="source")
    # Not the embedding's mask, which would hide the target's first token, too.
    mask = ops.not_equal(source, 0)
    x, bias = embedding_dropout(embedding(source)), positions("encoder_positions")
    for i in range(num_layers):
        x = TransformerEncoderBlock(**parts(bias, causal=False), name=f"encoder_{i}")(x, mask=mask)
    encoders = [f"encoder_{i}" for i in range(num_layers)]
    context = EncodedMarker(
        "t5", arguments, "embedding", encoders, dtype=dtype, name="encoded_marker"
    )(ending(x, "encoder"))

    target = keras.Input((None,), dtype="int32", name="target")
    x, bias = embedding_dropout(embedding(target)), positions("decoder_positions")
    decoders = num_layers if num_decoder_layers is None else num_decoder_layers
    for i in range(decoders):
        x = TransformerDecoderBlock(
            **parts(bias, causal=True),
            cross_attention=MultiHeadCrossAttention(num_heads, name="cross_attention", **attention),
            name=f"decoder_{i}",
        )(x, context, context_mask=mask)
    blocks = [*encoders, *(f"decoder_{i}" for i in range(decoders))]
    x = FeaturesMarker("t5", arguments, "embedding", blocks, dtype=dtype, name="features_marker")(
        ending(x, "decoder")
    )
    x = HeadMarker("language_model", dtype=dtype, name="head_marker")(x)
    if tie_output if scale_output is None else scale_output:
        x = keras.layers.Rescaling(dim**-0.5, dtype=dtype, name="output_scale")(x)
    if tie_output:
        logits = embedding(x, reverse=True)
    else:
        logits = keras.layers.Dense(vocabulary_size, use_bias=False, dtype=dtype, name="output")(x)
    return Model({"source": source, "target": target}, logits, name=name)
