"""The decoder-only model that GPT, Llama and Gemma share: embedding, causal blocks, logits."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm.layers import (
    FeedForward,
    MultiHeadSelfAttention,
    Residual,
    RMSNormalization,
    RotaryEmbedding,
    TokenEmbedding,
    TransformerDecoderBlock,
)
from keras_tfm.models.identity import FeaturesMarker, HeadMarker
from keras_tfm.models.model import Model


def initializer() -> keras.initializers.Initializer:
    """The initializer of every kernel and embedding, as in the GPT papers."""
    return keras.initializers.RandomNormal(stddev=0.02)


def causal_decoder(
    family: str,
    given: Mapping[str, Any],
    block: Callable[[int, int | None], keras.layers.Layer],
    positions: keras.layers.Layer | None = None,
    norm: keras.layers.Layer | None = None,
    scale_embedding: bool = False,
    soft_cap: float | None = None,
    tie_output: bool | None = None,
    vocabulary_size: int | None = None,
    output_size: int | None = None,
) -> Model:
    """Builds the language model of a family from its builder's arguments.

    Args:
        family: str, name of the builder.
        given: the builder's arguments by name: `vocabulary_size`, `dim`, `num_layers`, `windows`,
            `tie_output`, `pad_id`, `name` and `dtype` are read here. A family may lack those
            that are arguments here too, `windows` and `pad_id`.
        block: function of a block's number and window that returns the block.
        positions: layer that adds positions to the embedding, if any.
        norm: normalisation after the last block, if any.
        scale_embedding: bool, whether embeddings are multiplied by sqrt(D).
        soft_cap: float, c in c tanh(logits / c). Default: no cap.
        tie_output, vocabulary_size: instead of the builder's arguments.
        output_size: int, number of logits of an output that is not tied. Default: the number of
            ids.

    Returns:
        The model: from `tokens` (B, T), int32, to logits (B, T, V).
    """
    dtype, num_layers = given["dtype"], given["num_layers"]
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1, got {num_layers}")
    windows = each_window(given.get("windows"), num_layers)
    vocabulary_size = vocabulary_size or given["vocabulary_size"]
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    embedding = TokenEmbedding(
        vocabulary_size,
        given["dim"],
        scale=scale_embedding,
        mask_id=given.get("pad_id"),
        padding="ends",
        embeddings_initializer=initializer(),
        dtype=dtype,
        name="embedding",
    )
    x = embedding(tokens)
    if positions is not None:
        x = positions(x)
    blocks = [block(i, window) for i, window in enumerate(windows)]
    for layer in blocks:
        x = layer(x)
    if norm is not None:
        x = norm(x)
    x = FeaturesMarker(
        family,
        given,
        embedding="embedding",
        blocks=[layer.name for layer in blocks],
        dtype=dtype,
        name="features_marker",
    )(x)
    x = HeadMarker("language_model", dtype=dtype, name="head_marker")(x)
    if given["tie_output"] if tie_output is None else tie_output:
        logits = embedding(x, reverse=True)
    else:
        logits = keras.layers.Dense(
            output_size or vocabulary_size,
            use_bias=False,
            kernel_initializer=initializer(),
            dtype=dtype,
            name="output",
        )(x)
    if soft_cap is not None:
        logits = soft_cap * ops.tanh(logits / soft_cap)
    return Model(tokens, logits, name=given["name"])


def each_window(windows: int | Sequence[int | None] | None, num_layers: int) -> list[int | None]:
    """The window of each block, from one for all or a list."""
    if windows is None or isinstance(windows, int):
        return [windows] * num_layers
    if len(windows) != num_layers:
        raise ValueError(
            f"windows must have one entry for each of {num_layers} blocks, got {list(windows)}"
        )
    return list(windows)


def rms_norm(given: Mapping[str, Any], name: str, **options: Any) -> RMSNormalization:
    """An RMS normalisation with the builder's epsilon and dtype."""
    return RMSNormalization(
        epsilon=given["rms_norm_epsilon"], dtype=given["dtype"], name=name, **options
    )


def head_norms(given: Mapping[str, Any], axis: int | tuple[int, ...] = -1) -> dict[str, Any]:
    """The arguments `query_norm` and `key_norm` of attention; see there for `axis`."""
    return {name: rms_norm(given, name, axis=axis) for name in ("query_norm", "key_norm")}


def rotary_block(
    given: Mapping[str, Any],
    name: str,
    window: int | None,
    position: RotaryEmbedding,
    residual: Residual,
    **attention_options: Any,
) -> TransformerDecoderBlock:
    """A block with rotary positions and a gated feed-forward network.

    Args:
        given: the builder's arguments by name.
        name: str, the block's name.
        window: int, window of the attention, or None.
        position: the rotary positions.
        residual: the residual connection, with its norms.
        attention_options: further arguments of the attention.
    """
    dtype = given["dtype"]
    attention = MultiHeadSelfAttention(
        given["num_heads"],
        causal=True,
        window=window,
        head_dim=given.get("head_dim"),
        num_key_value_heads=given["num_key_value_heads"],
        dropout=given["attention_dropout"],
        use_bias=given["attention_bias"],
        position=position,
        kernel_initializer=initializer(),
        dtype=dtype,
        name="self_attention",
        **attention_options,
    )
    feed_forward = FeedForward(
        given["intermediate_dim"],
        activation=given["activation"],
        gated=True,
        use_bias=given.get("feed_forward_bias", False),
        kernel_initializer=initializer(),
        dtype=dtype,
        name="feed_forward",
    )
    return TransformerDecoderBlock(
        self_attention=attention,
        cross_attention=False,
        feed_forward=feed_forward,
        residual=residual,
        dtype=dtype,
        name=name,
    )
