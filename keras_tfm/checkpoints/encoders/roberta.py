"""RoBERTa, XLM-R and CamemBERT checkpoints: tensor names, configuration and heads."""

from dataclasses import replace

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


def head_rows(model: models.Model) -> tuple[Row, ...]:
    """The rows of the pooler and the heads, which MPNet shares."""
    heads: tuple[Row, ...] = dense("classifier", "classifier", head=True)
    pooler = dense("pooler", "pooler.dense")
    if model.head is not None and model.head.kind == "sequence_classifier":
        heads = dense("classifier", "classifier.out_proj", head=True)
        pooler = dense("pooler", "classifier.dense", head=True)
    return (
        *pooler,
        *heads,
        *dense("transform", "lm_head.dense", head=True),
        *norm("transform_norm", "lm_head.layer_norm", head=True),
        Row("output_bias/bias", ("lm_head.bias",), head=True),
        *dense("span", "qa_outputs", head=True),
    )


def _arguments(config: Config, named: Named) -> Arguments:
    model_type = config.text("model_type", None)
    vocab_size = 50265 if model_type == "roberta" else 30522  # if the field is missing
    arguments = encoder_arguments(config, named, vocab_size=vocab_size, pad_token_id=1)
    pad_id = arguments["pad_id"]
    rows = config.integer("max_position_embeddings", 512, minimum=pad_id + 2)
    return {
        **arguments,
        "max_length": rows - pad_id - 1,
        "pooler": named.begins("pooler."),
        "multilingual": model_type == "xlm-roberta",
        "model_type": "camembert" if model_type == "camembert" else None,
    }


def architectures(name: str) -> dict[str, Architecture]:
    """The classes of a family by name, which MPNet has, too.

    Args:
        name: str, the first part of their names, such as "Roberta".
    """
    return {
        f"{name}Model": Architecture(),
        f"{name}ForMaskedLM": heads.masked_language_model("lm_head.", activation="gelu"),
        **classifiers(name, ("classifier.", "classifier.dense.")),
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    rows = given["max_length"] + given["pad_id"] + 1
    fields = encoder_fields(model, architecture)
    return {**fields, "max_position_embeddings": rows}


def _is_camembert(model: models.Model) -> bool:
    return model.arguments.get("model_type") == "camembert"  # models saved before it are others


ROBERTA = Family(
    model_type="roberta",
    builder=models.roberta,
    table=lambda model: (*ENCODER, *head_rows(model)),
    arguments=_arguments,
    fields=_fields,
    architectures=architectures("Roberta"),
    is_of=lambda model: not model.arguments["multilingual"] and not _is_camembert(model),
    names=Names(
        prefix="roberta.",
        aliases={
            "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        ignored=(r"embeddings\.(position_ids|token_type_ids)",),
    ),
)
XLM_ROBERTA = replace(
    ROBERTA,
    model_type="xlm-roberta",
    architectures=architectures("XLMRoberta"),
    is_of=lambda model: model.arguments["multilingual"],
)
CAMEMBERT = replace(
    ROBERTA,
    model_type="camembert",
    architectures=architectures("Camembert"),
    is_of=_is_camembert,
)
