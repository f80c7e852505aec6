"""MPNet checkpoints: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields, dropout_rate
from keras_tfm.checkpoints.encoders.bert import (
    classifier_dropout,
    encoder_arguments,
    encoder_fields,
)
from keras_tfm.checkpoints.encoders.roberta import architectures, head_rows
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, norm
from keras_tfm.models.encoders.mpnet import FIRST_POSITION

_LAYER = "encoder.layer.{i}"
_ATTENTION = f"{_LAYER}.attention"
_ENCODER = (
    Row("embedding/embeddings", ("embeddings.word_embeddings.weight",)),
    Row("positions/positions", ("embeddings.position_embeddings.weight",)),
    *norm("embedding_norm", "embeddings.LayerNorm"),
    *dense(
        "encoder_{i}/self_attention/query_key_value", *(f"{_ATTENTION}.attn.{x}" for x in "qkv")
    ),
    *dense("encoder_{i}/self_attention/output_projection", f"{_ATTENTION}.attn.o"),
    # All blocks share it, and its path is that of the first one.
    Row(
        "encoder_{i}/self_attention/relative_positions/table",
        ("encoder.relative_attention_bias.weight",),
    ),
    *norm("encoder_{i}/self_attention_residual/norm", f"{_ATTENTION}.LayerNorm"),
    *dense("encoder_{i}/feed_forward/inner", f"{_LAYER}.intermediate.dense"),
    *dense("encoder_{i}/feed_forward/outer", f"{_LAYER}.output.dense"),
    *norm("encoder_{i}/feed_forward_residual/norm", f"{_LAYER}.output.LayerNorm"),
)
# What transformers computes with, whatever the configuration says: it reads these buckets of a
# table of any size, and numbers positions by this padding id.
_BUCKETS, _PAD_ID = 32, 1


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(relative_attention_num_buckets=_BUCKETS, pad_token_id=_PAD_ID)
    arguments = encoder_arguments(config, named, vocab_size=30527, pad_token_id=_PAD_ID)
    del arguments["num_segments"]
    rows = config.integer("max_position_embeddings", 512, minimum=FIRST_POSITION + 1)
    return {
        **arguments,
        "max_length": rows - FIRST_POSITION,
        "pooler": named.begins("pooler."),
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    if given["pad_id"] != _PAD_ID:
        raise ValueError(
            f"{model.name}: pad_id must be {_PAD_ID} to be saved, by which transformers numbers "
            f"MPNet's positions, got {given['pad_id']}"
        )
    fields = encoder_fields(model, architecture)
    del fields["type_vocab_size"]
    if architecture == _CHOICE:
        fields["classifier_dropout"] = dropout_rate(given, model.head.arguments["dropout"])
    return {
        **fields,
        "max_position_embeddings": given["max_length"] + FIRST_POSITION,
        "relative_attention_num_buckets": _BUCKETS,
    }


_CHOICE = "MPNetForMultipleChoice"
MPNET = Family(
    model_type="mpnet",
    builder=models.mpnet,
    table=lambda model: (*_ENCODER, *head_rows(model)),
    arguments=_arguments,
    fields=_fields,
    architectures={
        **architectures("MPNet"),
        _CHOICE: heads.multiple_choice("first", "classifier.", dropout=classifier_dropout),
    },
    names=Names(
        prefix="mpnet.",
        aliases={
            "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        ignored=(r"embeddings\.position_ids",),
    ),
)
