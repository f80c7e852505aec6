"""The encoder-decoder that BART, mBART, Pegasus and Marian share."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm.layers import (
    Dropout,
    FeedForward,
    LayerNormalization,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    OutputBias,
    PositionalEncoding,
    PositionEmbedding,
    TokenEmbedding,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
)
from keras_tfm.models.identity import EncodedMarker, FeaturesMarker, HeadMarker
from keras_tfm.models.model import Model

Tensor = Any


def encoder_decoder(
    family: str,
    given: Mapping[str, Any],
    normalize_first: bool = False,
    learned_positions: bool = False,
    embedding_norm: bool = False,
) -> Model:
    """Builds the model of a family from its builder's arguments.

    Args:
        family: str, name of the builder.
        given: the builder's arguments by name, see `bart`; optionally `target_vocabulary_size`.
        normalize_first: bool, pre-norm blocks, and one more normalisation after each stack.
        learned_positions: bool, learned positions (True), or sinusoids, sines first.
        embedding_norm: bool, whether the sum of embedding and position is normalised.

    Returns:
        The model from `source` and `target` to logits.
    """
    dim, dtype, target_size = given["dim"], given["dtype"], given.get("target_vocabulary_size")
    if given["num_layers"] < 1:
        raise ValueError(f"num_layers must be at least 1, got {given['num_layers']}")
    initializer = keras.initializers.RandomNormal(stddev=0.02)

    def embedding(size: int, name: str) -> TokenEmbedding:
        return TokenEmbedding(
            size,
            dim,
            scale=given["scale_embedding"],
            mask_id=given["pad_id"],
            padding="ends",
            embeddings_initializer=initializer,
            dtype=dtype,
            name=name,
        )

    def norm(x: Tensor, name: str) -> Tensor:
        return LayerNormalization(epsilon=1e-5, dtype=dtype, name=name)(x)

    def placed(x: Tensor, stack: str) -> Tensor:
        """Adds positions to embedded tokens."""
        if learned_positions:
            layer: Any = PositionEmbedding(
                given["max_length"],
                initializer=initializer,
                offset=2,
                dtype=dtype,
                name=f"{stack}_positions",
            )
        else:
            layer = PositionalEncoding(interleaved=False, dtype=dtype, name=f"{stack}_positions")
        x = norm(layer(x), f"{stack}_embedding_norm") if embedding_norm else layer(x)
        return Dropout(given["dropout"], dtype=dtype, name=f"{stack}_dropout")(x)

    if target_size is None:
        tables = (embedding(given["vocabulary_size"], "embedding"),) * 2
    else:
        tables = (
            embedding(given["vocabulary_size"], "source_embedding"),
            embedding(target_size, "target_embedding"),
        )
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    x = placed(tables[0](source), "encoder")
    encoders = [f"encoder_{i}" for i in range(given["num_layers"])]
    for name in encoders:
        x = TransformerEncoderBlock(
            **block_parts(given, initializer, normalize_first, decoder=False), name=name
        )(x)
    x = norm(x, "encoder_norm") if normalize_first else x
    context = EncodedMarker(
        family, given, tables[0].name, encoders, dtype=dtype, name="encoded_marker"
    )(x)

    # An operation drops the padding mask: the start token may be the padding id.
    x = placed(ops.copy(tables[1](target)), "decoder")
    decoders = [f"decoder_{i}" for i in range(given["num_decoder_layers"] or len(encoders))]
    for name in decoders:
        x = TransformerDecoderBlock(
            **block_parts(given, initializer, normalize_first, decoder=True), name=name
        )(x, context)
    x = norm(x, "decoder_norm") if normalize_first else x
    x = FeaturesMarker(
        family, given, tables[1].name, [*encoders, *decoders], dtype=dtype, name="features_marker"
    )(x)
    x = HeadMarker("language_model", dtype=dtype, name="head_marker")(x)
    x = tables[1](x, reverse=True)
    if given["output_bias"]:  # a buffer in the checkpoints: not trained
        x = OutputBias(trainable=False, dtype=dtype, name="output_bias")(x)
    return Model({"source": source, "target": target}, x, name=given["name"])


def block_parts(
    given: Mapping[str, Any],
    initializer: Any,
    normalize_first: bool,
    decoder: bool,
    use_bias: bool | Sequence[str] = True,
) -> dict[str, Any]:
    """The arguments of a block.

    Args:
        given: the builder's arguments by name, see `bart`.
        initializer: initializer of the kernels.
        normalize_first: bool, pre-norm.
        decoder: bool, whether it is a block of the decoder.
        use_bias: as in `MultiHeadAttention`.
    """
    heads, width = given["num_heads"], given["intermediate_dim"]
    if decoder:
        heads = given["num_decoder_heads"] or heads
        width = given["decoder_intermediate_dim"] or width
    shared = {"kernel_initializer": initializer, "dtype": given["dtype"]}
    attention = {"dropout": given["attention_dropout"], "use_bias": use_bias, **shared}
    parts: dict[str, Any] = {
        "self_attention": MultiHeadSelfAttention(
            heads, causal=decoder, name="self_attention", **attention
        ),
        "feed_forward": FeedForward(
            width,
            activation=given["activation"],
            dropout=given["activation_dropout"],
            name="feed_forward",
            **shared,
        ),
        "dropout": given["dropout"],
        "normalize_first": normalize_first,
        "dtype": given["dtype"],
    }
    if decoder:
        parts["cross_attention"] = MultiHeadCrossAttention(
            heads, name="cross_attention", **attention
        )
    return parts
