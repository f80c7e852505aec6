"""The encoder that BERT and its successors share: embeddings, post-norm blocks, pooler."""

from collections.abc import Mapping
from typing import Any

import keras

from keras_tfm.layers import (
    Dropout,
    LayerNormalization,
    MultiHeadSelfAttention,
    PositionEmbedding,
    SegmentEmbedding,
    TokenEmbedding,
    TransformerEncoderBlock,
)
from keras_tfm.models.heads.head_base import token
from keras_tfm.models.identity import FeaturesMarker, PooledMarker
from keras_tfm.models.model import Model


def bidirectional_encoder(
    family: str,
    given: Mapping[str, Any],
    pad_id: int = 0,
    position_offset: int = 0,
    segments: bool = False,
    shared_block: bool = False,
    pooler: bool = False,
) -> Model:
    """Builds the encoder of a family from its builder's arguments.

    Args:
        family: str, name of the builder.
        given: the builder's arguments by name: `vocabulary_size`, `dim`, `num_layers`, `num_heads`,
            `intermediate_dim`, `dropout`, `attention_dropout`, `activation`, `layer_norm_epsilon`,
            `max_length`, `name` and `dtype`; optionally `embedding_dim` and `num_segments`, 0 for
            no segments.
        pad_id: int, id of padding tokens.
        position_offset: int, row of the position table for the first position.
        segments: bool, whether the model has the input `segments`.
        shared_block: bool, whether all blocks share the weights of one, as in ALBERT.
        pooler: bool, whether there is an output "pooled".

    Returns:
        The model: features (B, T, D), or with a pooler "features" and "pooled".
    """
    dim, dtype = given["dim"], given["dtype"]
    embedding_dim = given.get("embedding_dim") or dim
    inputs, x = embed_tokens(given, pad_id, position_offset, segments)
    x = normalize_embeddings(x, given)
    if shared_block or embedding_dim != dim:
        x = project_embeddings(x, given)
    names = ["encoder"] if shared_block else [f"encoder_{i}" for i in range(given["num_layers"])]
    blocks = [encoder_block(given, name) for name in names]
    for i in range(given["num_layers"]):
        x = blocks[i % len(blocks)](x)
    x = FeaturesMarker(
        family, given, embedding="embedding", blocks=names, dtype=dtype, name="features_marker"
    )(x)
    if not pooler:
        return Model(inputs, x, name=given["name"])
    dense = keras.layers.Dense(
        dim, activation="tanh", kernel_initializer=initializer(), dtype=dtype, name="pooler"
    )
    pooled = PooledMarker(dtype=dtype, name="pooled_marker")(dense(token(x, 0)))
    return Model(inputs, {"features": x, "pooled": pooled}, name=given["name"])


def initializer() -> Any:
    """BERT's initializer of every kernel."""
    return keras.initializers.TruncatedNormal(stddev=0.02)


def embed_tokens(
    given: Mapping[str, Any],
    pad_id: int = 0,
    position_offset: int = 0,
    segments: bool = False,
    positions: bool = True,
) -> tuple[dict[str, Any], Any]:
    """The inputs of the model, and the sum of the embeddings of tokens, segments and positions.

    Args:
        given, pad_id, position_offset, segments: see `bidirectional_encoder`.
        positions: bool, whether learned absolute positions are added.

    Returns:
        A dict of symbolic ids (B, T), and (B, T, E).
    """
    dim, dtype = given.get("embedding_dim") or given["dim"], given["dtype"]
    num_segments = given.get("num_segments", 0)
    if given["num_layers"] < 1:
        raise ValueError(f"num_layers must be at least 1, got {given['num_layers']}")
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    inputs = {"tokens": tokens}
    x = TokenEmbedding(
        given["vocabulary_size"],
        dim,
        mask_id=pad_id,
        padding="ends",
        embeddings_initializer=initializer(),
        dtype=dtype,
        name="embedding",
    )(tokens)
    if segments:
        inputs["segments"] = keras.Input((None,), dtype="int32", name="segments")
    if num_segments:
        table = SegmentEmbedding(num_segments, dtype=dtype, name="segment_embedding")
        x = table(x, inputs.get("segments"))
    if positions:
        x = PositionEmbedding(
            given["max_length"], offset=position_offset, dtype=dtype, name="positions"
        )(x)
    return inputs, x


def normalize_embeddings(x: Any, given: Mapping[str, Any]) -> Any:
    """Layer normalisation and dropout: (B, T, E) -> the same."""
    epsilon, dtype = given["layer_norm_epsilon"], given["dtype"]
    x = LayerNormalization(epsilon=epsilon, dtype=dtype, name="embedding_norm")(x)
    return Dropout(given["dropout"], dtype=dtype, name="embedding_dropout")(x)


def project_embeddings(x: Any, given: Mapping[str, Any], use_bias: bool = True) -> Any:
    """(B, T, E) -> (B, T, D)."""
    return keras.layers.Dense(
        given["dim"],
        use_bias=use_bias,
        kernel_initializer=initializer(),
        dtype=given["dtype"],
        name="embedding_projection",
    )(x)


def encoder_block(given: Mapping[str, Any], name: str, **attention: Any) -> TransformerEncoderBlock:
    """One post-norm block with the arguments of the builder.

    Args:
        given: see `bidirectional_encoder`.
        name: str, name of the block.
        attention: further arguments of its `MultiHeadSelfAttention`.
    """
    attention_dropout = given["attention_dropout"]
    self_attention = MultiHeadSelfAttention(
        given["num_heads"],
        dropout=given["dropout"] if attention_dropout is None else attention_dropout,
        kernel_initializer=initializer(),
        dtype=given["dtype"],
        name="self_attention",
        **attention,
    )
    return TransformerEncoderBlock(
        given["intermediate_dim"],
        self_attention=self_attention,
        dropout=given["dropout"],
        activation=given["activation"],
        layer_norm_epsilon=given["layer_norm_epsilon"],
        kernel_initializer=initializer(),
        dtype=given["dtype"],
        name=name,
    )
