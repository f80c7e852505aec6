"""ALBERT checkpoints: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields
from keras_tfm.checkpoints.encoders.bert import classifiers, encoder_arguments, encoder_fields
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, norm

_BLOCK = "encoder.albert_layer_groups.0.albert_layers.0"
_QKV = tuple(f"{_BLOCK}.attention.{x}" for x in ("query", "key", "value"))
TABLE = (
    Row("embedding/embeddings", ("embeddings.word_embeddings.weight",)),
    Row("segment_embedding/segments", ("embeddings.token_type_embeddings.weight",)),
    Row("positions/positions", ("embeddings.position_embeddings.weight",)),
    *norm("embedding_norm", "embeddings.LayerNorm"),
    *dense("embedding_projection", "encoder.embedding_hidden_mapping_in"),
    *dense("encoder/self_attention/query_key_value", *_QKV),
    *dense("encoder/self_attention/output_projection", f"{_BLOCK}.attention.dense"),
    *norm("encoder/self_attention_residual/norm", f"{_BLOCK}.attention.LayerNorm"),
    *dense("encoder/feed_forward/inner", f"{_BLOCK}.ffn"),
    *dense("encoder/feed_forward/outer", f"{_BLOCK}.ffn_output"),
    *norm("encoder/feed_forward_residual/norm", f"{_BLOCK}.full_layer_layer_norm"),
    *dense("pooler", "pooler"),
    *dense("transform", "predictions.dense", head=True),
    *norm("transform_norm", "predictions.LayerNorm", head=True),
    Row("output_bias/bias", ("predictions.bias",), head=True),
    *dense("next_sentence", "sop_classifier.classifier", head=True),
    *dense("classifier", "classifier", head=True),
    *dense("span", "qa_outputs", head=True),
)

# Values of fields that are missing in `config.json`: those of ALBERT xxlarge.
_DEFAULTS = {
    "vocab_size": 30000, "hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384,
}  # fmt: skip


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(num_hidden_groups=1, inner_group_num=1)
    known = ("pooler.", "predictions.", "classifier.", "qa_outputs.")
    return {
        **encoder_arguments(config, named, **_DEFAULTS),
        "activation": config.activation("hidden_act", "gelu_new"),
        "dropout": config.number("hidden_dropout_prob", 0.0, 1),
        "attention_dropout": config.number("attention_probs_dropout_prob", 0.0, 1),
        "embedding_dim": config.integer("embedding_size", 128),
        "pooler": any(named.begins(x) for x in known),
    }


def _dropout(config: Config) -> float | None:
    return config.number("classifier_dropout_prob", 0.1, 1)


ARCHITECTURES = {
    "AlbertModel": Architecture(prefixes=("pooler.",)),
    "AlbertForPreTraining": heads.masked_language_model(
        "pooler.", "predictions.", "sop_classifier.", next_sentence=True
    ),
    "AlbertForMaskedLM": heads.masked_language_model("predictions."),
    **classifiers("Albert", ("pooler.", "classifier."), _dropout, _dropout),
}


def _fields(model: models.Model, architecture: str) -> Fields:
    fields = encoder_fields(model, architecture)
    if "classifier_dropout" in fields:
        fields["classifier_dropout_prob"] = fields.pop("classifier_dropout")
    return {
        **fields,
        "embedding_size": model.arguments["embedding_dim"],
        "num_hidden_groups": 1,
        "inner_group_num": 1,
    }


ALBERT = Family(
    model_type="albert",
    builder=models.albert,
    table=lambda model: TABLE,
    arguments=_arguments,
    fields=_fields,
    architectures=ARCHITECTURES,
    names=Names(
        prefix="albert.",
        aliases={
            "predictions.decoder.weight": "embeddings.word_embeddings.weight",
            "predictions.decoder.bias": "predictions.bias",
        },
        ignored=(r"embeddings\.(position_ids|token_type_ids)",),
    ),
)
