"""Encoder-decoder models of KerasHub: T5, BART, Whisper."""

import keras

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments
from keras_tfm.checkpoints.keras_hub.family import HubFamily
from keras_tfm.checkpoints.keras_hub.rows import (
    QUERY_KEY_VALUE,
    Positions,
    block,
    cross_attention,
    dense,
    norm,
    projections,
    rms_norm,
)
from keras_tfm.checkpoints.keras_hub.settings import Settings
from keras_tfm.checkpoints.rows import Row
from keras_tfm.layers.types import Tensor

_INPUTS = {"source": "encoder_token_ids", "target": "decoder_token_ids"}
_OUTPUTS = {"features": "decoder_sequence_output"}
_ENCODER, _DECODER = "transformer_encoder_layer_{i}", "transformer_decoder_layer_{i}"


def _blocks(backbone: keras.Model) -> list[keras.Layer]:
    return [*backbone.encoder_transformer_layers, *backbone.decoder_transformer_layers]


def _t5_arguments(settings: Settings) -> Arguments:
    arguments = settings.rename(
        vocabulary_size="vocabulary_size",
        dim="hidden_dim",
        num_layers="num_layers",
        num_heads="num_heads",
        intermediate_dim="intermediate_dim",
        head_dim="key_value_dim",
        dropout="dropout",
        activation="activation",
        gated="use_gated_activation",
        layer_norm_epsilon="layer_norm_epsilon",
        tie_output="tie_embedding_weights",
    )
    return {**arguments, "pad_id": settings.pad_id_or(0)}


def _t5_stack(stack: str, layer: str, sublayers: tuple[str, ...], gated: bool) -> list[Row]:
    path, attention = f"{stack}_{{i}}", f"{layer}/self_attention"
    inner = ("input_projector", *["gate_projector"] * gated)
    parts = (f"{attention}/{x}_projector" for x in QUERY_KEY_VALUE)
    table = f"{layer.replace('{i}', '0')}/self_attention/embeddings"
    rows = [
        *dense(f"{path}/self_attention/query_key_value", *parts, bias=False),
        *dense(
            f"{path}/self_attention/output_projection", f"{attention}/output_projector", bias=False
        ),
        Row(f"{stack}_0/self_attention/{stack}_positions/table", (table,)),
        *dense(f"{path}/feed_forward/inner", *(f"{layer}/{x}" for x in inner), bias=False),
        *dense(f"{path}/feed_forward/outer", f"{layer}/output_projector", bias=False),
        *rms_norm(f"{stack}_norm", f"{stack}_output_layer_norm", name="weight"),
    ]
    for sublayer in sublayers:
        prefix = "" if sublayer == "feed_forward" else f"{sublayer}_"
        rows += rms_norm(
            f"{path}/{sublayer}_residual/norm", f"{layer}/{prefix}layer_norm", name="weight"
        )
    return rows


def _t5_table(model: models.Model) -> tuple[Row, ...]:
    gated = model.arguments["gated"]
    cross, layer = "decoder_{i}/cross_attention", f"{_DECODER}/cross_attention"
    parts = QUERY_KEY_VALUE
    return (
        Row("embedding/embeddings", ("token_embedding/embeddings",)),
        *_t5_stack("encoder", _ENCODER, ("self_attention", "feed_forward"), gated),
        *_t5_stack(
            "decoder", _DECODER, ("self_attention", "cross_attention", "feed_forward"), gated
        ),
        *(
            row
            for x in parts
            for row in dense(f"{cross}/{x}", f"{layer}/{x}_projector", bias=False)
        ),
        *dense(f"{cross}/output_projection", f"{layer}/output_projector", bias=False),
        Row("output/kernel", ("token_embedding/reverse_embeddings",)),
    )


def _t5_logits(backbone: keras.Model, x: Tensor) -> Tensor:
    scale = backbone.hidden_dim**-0.5 if backbone.tie_embedding_weights else 1.0
    return backbone.token_embedding(x * scale, reverse=True)


T5 = HubFamily(
    backbone="T5Backbone",
    builder=models.t5,
    arguments=_t5_arguments,
    table=_t5_table,
    inputs=_INPUTS,
    blocks=_blocks,
    outputs=_OUTPUTS,
    logits=_t5_logits,
)


def _bart_arguments(settings: Settings) -> Arguments:
    return {
        **settings.rename(
            vocabulary_size="vocabulary_size",
            dim="hidden_dim",
            num_layers="num_layers",
            num_heads="num_heads",
            intermediate_dim="intermediate_dim",
            dropout="dropout",
            attention_dropout="dropout",
            max_length="max_sequence_length",
        ),
        "activation": "gelu",
        "output_bias": False,
        "pad_id": settings.pad_id_or(1),
    }


def _stacks(model: models.Model, biases: tuple[str, ...]) -> tuple[Row, ...]:
    """The rows of the blocks of both stacks.

    Args:
        model: the model.
        biases: the projections of attention that have biases.
    """
    sizes = model.arguments["dim"], model.arguments["num_heads"]
    return (
        *block("encoder_{i}", _ENCODER, *sizes),
        *block("decoder_{i}", _DECODER, *sizes, "self_attention"),
        *cross_attention("decoder_{i}", _DECODER, *sizes, biases),
    )


def _bart_table(model: models.Model) -> tuple[Row, ...]:
    rows = [Row("embedding/embeddings", ("token_embedding/embeddings",))]
    for stack in ("encoder", "decoder"):
        positions = (f"{stack}_position_embedding/embeddings",)
        rows.append(Row(f"{stack}_positions/positions", positions, Positions(2)))
        rows += norm(f"{stack}_embedding_norm", f"{stack}_embeddings_layer_norm")
    return (
        *rows,
        *_stacks(model, QUERY_KEY_VALUE),
    )


BART = HubFamily(
    backbone="BartBackbone",
    builder=models.bart,
    arguments=_bart_arguments,
    table=_bart_table,
    inputs=_INPUTS,
    blocks=_blocks,
    outputs=_OUTPUTS,
)


def _whisper_arguments(settings: Settings) -> Arguments:
    length = settings["max_encoder_sequence_length"]
    if length % 2:
        settings.refuse("max_encoder_sequence_length", length, "even")
    return {
        **settings.rename(
            vocabulary_size="vocabulary_size",
            dim="hidden_dim",
            num_layers="num_layers",
            num_heads="num_heads",
            intermediate_dim="intermediate_dim",
            num_mels="num_mels",
            dropout="dropout",
            attention_dropout="dropout",
            max_length="max_decoder_sequence_length",
        ),
        "max_source_length": length // 2,
        "activation": "gelu",
    }


def _whisper_table(model: models.Model) -> tuple[Row, ...]:
    """Projections of keys have no bias, so that those of self-attention are not joined."""
    biases = ("query", "value")
    dim, heads = model.arguments["dim"], model.arguments["num_heads"]
    embeddings = "decoder_token_and_position_embedding"
    rows = [row for row in _stacks(model, biases) if "self_attention/" not in row.weight]
    attentions = {
        "encoder_{i}/self_attention": f"{_ENCODER}/self_attention_layer",
        "decoder_{i}/self_attention": f"{_DECODER}/self_attention",
    }
    for path, layer in attentions.items():
        rows += projections(path, layer, dim, heads, biases)
    return (
        *dense("convolution_0", "encoder_token_embedding_conv_layer_1"),
        *dense("convolution_1", "encoder_token_embedding_conv_layer_2"),
        Row("encoder_positions/positions", ("encoder_position_embedding/embeddings",)),
        Row("embedding/embeddings", (f"{embeddings}/token_embedding/embeddings",)),
        Row("decoder_positions/positions", (f"{embeddings}/position_embedding/embeddings",)),
        *rows,
        *norm("encoder_norm", "encoder_layer_norm"),
        *norm("decoder_norm", "decoder_layer_norm"),
    )


WHISPER = HubFamily(
    backbone="WhisperBackbone",
    builder=models.whisper,
    arguments=_whisper_arguments,
    table=_whisper_table,
    inputs={"audio": "encoder_features", "target": "decoder_token_ids"},
    blocks=_blocks,
    outputs=_OUTPUTS,
)
