"""Text encoders of KerasHub."""

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments
from keras_tfm.checkpoints.keras_hub.family import HubFamily
from keras_tfm.checkpoints.keras_hub.rows import HEADS, attention, dense, norm
from keras_tfm.checkpoints.keras_hub.settings import Settings
from keras_tfm.checkpoints.rows import Row
from keras_tfm.layers import gelu_tanh


def block(model: models.Model, path: str, layer: str) -> tuple[Row, ...]:
    """The rows of a `TransformerEncoder` of KerasHub."""
    dim, heads = model.arguments["dim"], model.arguments["num_heads"]
    return (
        *attention(
            f"{path}/self_attention",
            f"{layer}/self_attention_layer",
            dim,
            dim // heads,
            (dim, dim, dim),
        ),
        *norm(f"{path}/self_attention_residual/norm", f"{layer}/self_attention_layer_norm"),
        *dense(f"{path}/feed_forward/inner", f"{layer}/feedforward_intermediate_dense"),
        *dense(f"{path}/feed_forward/outer", f"{layer}/feedforward_output_dense"),
        *norm(f"{path}/feed_forward_residual/norm", f"{layer}/feedforward_layer_norm"),
    )


def encoder_arguments(settings: Settings) -> Arguments:
    """The builder's arguments that BERT and its successors have in common."""
    return settings.rename(
        vocabulary_size="vocabulary_size",
        dim="hidden_dim",
        num_layers="num_layers",
        num_heads="num_heads",
        intermediate_dim="intermediate_dim",
        dropout="dropout",
        max_length="max_sequence_length",
    )


def _bert_table(model: models.Model) -> tuple[Row, ...]:
    return (
        Row("embedding/embeddings", ("token_embedding/embeddings",)),
        Row("segment_embedding/segments", ("segment_embedding/embeddings",)),
        Row("positions/positions", ("position_embedding/embeddings",)),
        *norm("embedding_norm", "embeddings_layer_norm"),
        *block(model, "encoder_{i}", "transformer_layer_{i}"),
        *HEADS,
    )


def _bert_arguments(settings: Settings) -> Arguments:
    settings.check_pad_id(0)
    return {
        **encoder_arguments(settings),
        "num_segments": settings["num_segments"],
        "activation": gelu_tanh,
        "layer_norm_epsilon": 1e-12,
    }


BERT = HubFamily(
    backbone="BertBackbone",
    builder=models.bert,
    arguments=_bert_arguments,
    table=_bert_table,
    inputs={"tokens": "token_ids", "segments": "segment_ids"},
    outputs={"features": "sequence_output", "pooled": "pooled_output"},
)
