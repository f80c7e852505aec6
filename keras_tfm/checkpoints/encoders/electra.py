"""ELECTRA checkpoints, generators and discriminators: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields
from keras_tfm.checkpoints.encoders.bert import (
    ENCODER,
    classifiers,
    encoder_arguments,
    encoder_fields,
)
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, norm


def _table(model: models.Model) -> tuple[Row, ...]:
    kind = None if model.head is None else model.head.kind
    # The layers of two heads have the same names here.
    transform = {
        "masked_language_model": "generator_predictions.dense",
        "replaced_token_detection": "discriminator_predictions.dense",
    }.get(kind or "", "")
    last = "classifier.out_proj" if kind == "sequence_classifier" else "classifier"
    return (
        *ENCODER,
        *dense("embedding_projection", "embeddings_project"),
        *dense("pooler", "classifier.dense", head=True),
        *dense("classifier", last, head=True),
        *dense("transform", transform, head=True),
        *norm("transform_norm", "generator_predictions.LayerNorm", head=True),
        Row("output_bias/bias", ("generator_lm_head.bias",), head=True),
        *dense("detector", "discriminator_predictions.dense_prediction", head=True),
        *dense("span", "qa_outputs", head=True),
    )


def _arguments(config: Config, named: Named) -> Arguments:
    return {
        **encoder_arguments(
            config, named, hidden_size=256, num_attention_heads=4, intermediate_size=1024
        ),
        "embedding_dim": config.integer("embedding_size", 128),
    }


ARCHITECTURES = {
    "ElectraModel": Architecture(),
    "ElectraForPreTraining": Architecture(
        lambda model, config: models.replaced_token_detection(model),
        "replaced_token_detection",
        prefixes=("discriminator_predictions.",),
    ),
    "ElectraForMaskedLM": heads.masked_language_model("generator_predictions.", activation="gelu"),
    **classifiers("Electra", ("classifier.", "classifier.dense.")),
}


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    embedding_dim = given["embedding_dim"] or given["dim"]
    return {**encoder_fields(model, architecture), "embedding_size": embedding_dim}


ELECTRA = Family(
    model_type="electra",
    builder=models.electra,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures=ARCHITECTURES,
    names=Names(
        prefix="electra.",
        aliases={"generator_lm_head.weight": "embeddings.word_embeddings.weight"},
        ignored=(r"embeddings\.(position_ids|token_type_ids)",),
    ),
)
