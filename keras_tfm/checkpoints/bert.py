"""BERT's checkpoints: names, configuration, heads."""

from typing import Any

from keras_tfm import models
from keras_tfm.checkpoints.config import Config, activation_name
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, norm
from keras_tfm.models.identity import pooled_of

_ATTENTION = "encoder.layer.{i}.attention"
_QKV = tuple(f"{_ATTENTION}.self.{x}" for x in ("query", "key", "value"))
_LAYER = "encoder.layer.{i}"


TABLE = (
    Row("embedding/embeddings", ("embeddings.word_embeddings.weight",)),
    Row("segment_embedding/segments", ("embeddings.token_type_embeddings.weight",)),
    Row("positions/positions", ("embeddings.position_embeddings.weight",)),
    *norm("embedding_norm", "embeddings.LayerNorm"),
    *dense("encoder_{i}/self_attention/query_key_value", *_QKV),
    *dense("encoder_{i}/self_attention/output_projection", f"{_ATTENTION}.output.dense"),
    *norm("encoder_{i}/self_attention_residual/norm", f"{_ATTENTION}.output.LayerNorm"),
    *dense("encoder_{i}/feed_forward/inner", f"{_LAYER}.intermediate.dense"),
    *dense("encoder_{i}/feed_forward/outer", f"{_LAYER}.output.dense"),
    *norm("encoder_{i}/feed_forward_residual/norm", f"{_LAYER}.output.LayerNorm"),
    *dense("pooler", "pooler.dense"),
    *dense("transform", "cls.predictions.transform.dense", head=True),
    *norm("transform_norm", "cls.predictions.transform.LayerNorm", head=True),
    Row("output_bias/bias", ("cls.predictions.bias",), head=True),
    *dense("next_sentence", "cls.seq_relationship", head=True),
    *dense("classifier", "classifier", head=True),
    *dense("span", "qa_outputs", head=True),
)


def _arguments(config: Config, named: Named) -> dict[str, Any]:
    config.only(
        position_embedding_type="absolute",
        is_decoder=False,
        add_cross_attention=False,
        pruned_heads={},
        pad_token_id=0,
        tie_word_embeddings=True,
    )
    return {
        "vocabulary_size": config.integer("vocab_size", 30522),
        "dim": config.integer("hidden_size", 768),
        "num_layers": config.integer("num_hidden_layers", 12, maximum=1000),
        "num_heads": config.integer("num_attention_heads", 12),
        "intermediate_dim": config.integer("intermediate_size", 3072),
        "dropout": config.number("hidden_dropout_prob", 0.1, 1),
        "attention_dropout": config.number("attention_probs_dropout_prob", 0.1, 1),
        "activation": config.activation("hidden_act", "gelu"),
        "layer_norm_epsilon": config.number("layer_norm_eps", 1e-12),
        "max_length": config.integer("max_position_embeddings", 512),
        "num_segments": config.integer("type_vocab_size", 2),
    }


def _classifier_dropout(config: Config) -> Any:
    return config.number("classifier_dropout", None, 1)


_MASKED, _NEXT = "cls.predictions.", "cls.seq_relationship."
ARCHITECTURES = {
    "BertModel": Architecture(lambda model, config: model, prefixes=("pooler.",)),
    "BertForPreTraining": Architecture(
        lambda model, config: models.masked_language_model(model, next_sentence=True),
        "masked_language_model",
        {"next_sentence": True},
        ("pooler.", _MASKED, _NEXT),
    ),
    "BertForMaskedLM": Architecture(
        lambda model, config: models.masked_language_model(model),
        "masked_language_model",
        {"next_sentence": False},
        (_MASKED,),
    ),
    "BertForNextSentencePrediction": Architecture(
        lambda model, config: models.next_sentence(model),
        "next_sentence",
        prefixes=("pooler.", _NEXT),
    ),
    "BertForSequenceClassification": Architecture(
        lambda model, config: models.sequence_classifier(
            model, config.num_labels, _classifier_dropout(config), labels=config.labels
        ),
        "sequence_classifier",
        prefixes=("pooler.", "classifier."),
    ),
    "BertForTokenClassification": Architecture(
        lambda model, config: models.token_classifier(
            model, config.num_labels, _classifier_dropout(config), labels=config.labels
        ),
        "token_classifier",
        prefixes=("classifier.",),
    ),
    "BertForQuestionAnswering": Architecture(
        lambda model, config: models.question_answering(model),
        "question_answering",
        prefixes=("qa_outputs.",),
    ),
}


def _fields(model: models.Model, architecture: str) -> dict[str, Any]:
    if model.head is None and pooled_of(model) is None:
        raise ValueError(
            f"{model.name} has neither a pooler nor a head, and every BERT checkpoint has one: "
            "expected what models.bert or a head of keras_tfm.models made"
        )
    given = model.arguments
    attention = given["attention_dropout"]
    fields: dict[str, Any] = {
        "vocab_size": given["vocabulary_size"],
        "hidden_size": given["dim"],
        "num_hidden_layers": given["num_layers"],
        "num_attention_heads": given["num_heads"],
        "intermediate_size": given["intermediate_dim"],
        "hidden_act": activation_name(given["activation"]),
        "hidden_dropout_prob": given["dropout"],
        "attention_probs_dropout_prob": given["dropout"] if attention is None else attention,
        "max_position_embeddings": given["max_length"],
        "type_vocab_size": given["num_segments"],
        "layer_norm_eps": given["layer_norm_epsilon"],
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    }
    if architecture.endswith("Classification"):
        classes, dropout = (model.head.arguments[name] for name in ("num_classes", "dropout"))
        fields["classifier_dropout"] = given["dropout"] if dropout is None else dropout
        labels = model.head.arguments["labels"] or [f"LABEL_{i}" for i in range(classes)]
        fields["id2label"] = {str(i): label for i, label in enumerate(labels)}
        fields["label2id"] = {label: i for i, label in enumerate(labels)}
    return fields


BERT = Family(
    model_type="bert",
    builder=models.bert,
    table=lambda model: TABLE,
    arguments=_arguments,
    fields=_fields,
    architectures=ARCHITECTURES,
    names=Names(
        prefix="bert.",
        aliases={
            "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        ignored=(r"embeddings\.(position_ids|token_type_ids)",),
        # As Google's own checkpoints were first converted.
        renamed={r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"},
    ),
    base="BertModel",
)
