"""DistilBERT checkpoints: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name, dropout_rate
from keras_tfm.checkpoints.encoders.bert import (
    check_tied,
    classifiers,
    label_fields,
    read_pad_id,
    saved_pad_id,
)
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, norm

_LAYER = "transformer.layer.{i}"
_QKV = tuple(f"{_LAYER}.attention.{x}_lin" for x in "qkv")
TABLE = (
    Row("embedding/embeddings", ("embeddings.word_embeddings.weight",)),
    Row("positions/positions", ("embeddings.position_embeddings.weight",)),
    *norm("embedding_norm", "embeddings.LayerNorm"),
    *dense("encoder_{i}/self_attention/query_key_value", *_QKV),
    *dense("encoder_{i}/self_attention/output_projection", f"{_LAYER}.attention.out_lin"),
    *norm("encoder_{i}/self_attention_residual/norm", f"{_LAYER}.sa_layer_norm"),
    *dense("encoder_{i}/feed_forward/inner", f"{_LAYER}.ffn.lin1"),
    *dense("encoder_{i}/feed_forward/outer", f"{_LAYER}.ffn.lin2"),
    *norm("encoder_{i}/feed_forward_residual/norm", f"{_LAYER}.output_layer_norm"),
    *dense("pooler", "pre_classifier", head=True),
    *dense("classifier", "classifier", head=True),
    *dense("transform", "vocab_transform", head=True),
    *norm("transform_norm", "vocab_layer_norm", head=True),
    Row("output_bias/bias", ("vocab_projector.bias",), head=True),
    *dense("span", "qa_outputs", head=True),
)


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(pruned_heads={})
    check_tied(config, named)
    size = config.integer("vocab_size", 30522)
    return {
        "vocabulary_size": size,
        "dim": config.integer("dim", 768),
        "num_layers": config.integer("n_layers", 6, maximum=1000),
        "num_heads": config.integer("n_heads", 12),
        "intermediate_dim": config.integer("hidden_dim", 3072),
        "dropout": config.number("dropout", 0.1, 1),
        "attention_dropout": config.number("attention_dropout", 0.1, 1),
        "activation": config.activation("activation", "gelu"),
        "max_length": config.integer("max_position_embeddings", 512),
        "pad_id": read_pad_id(config, size),
    }


ARCHITECTURES = {
    "DistilBertModel": Architecture(),
    "DistilBertForMaskedLM": heads.masked_language_model("vocab_transform."),
    **classifiers(
        "DistilBert",
        ("pre_classifier.", "classifier."),
        dropout=lambda config: config.number("seq_classif_dropout", 0.2, 1),
        token_dropout=None,
    ),
}


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    fields: Fields = {
        "vocab_size": given["vocabulary_size"],
        "dim": given["dim"],
        "n_layers": given["num_layers"],
        "n_heads": given["num_heads"],
        "hidden_dim": given["intermediate_dim"],
        "dropout": given["dropout"],
        "attention_dropout": dropout_rate(given, given["attention_dropout"]),
        "activation": activation_name(given["activation"]),
        "max_position_embeddings": given["max_length"],
        "sinusoidal_pos_embds": False,
        "pad_token_id": saved_pad_id(model),
        "tie_word_embeddings": True,
    }
    if architecture.endswith("Classification"):
        fields["seq_classif_dropout"] = dropout_rate(given, model.head.arguments["dropout"])
        fields |= label_fields(model)
    return fields


DISTILBERT = Family(
    model_type="distilbert",
    builder=models.distilbert,
    table=lambda model: TABLE,
    arguments=_arguments,
    fields=_fields,
    architectures=ARCHITECTURES,
    names=Names(
        prefix="distilbert.",
        aliases={"vocab_projector.weight": "embeddings.word_embeddings.weight"},
        ignored=(r"embeddings\.position_ids",),
    ),
    aliases={
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    },
)
