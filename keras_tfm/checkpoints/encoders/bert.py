"""BERT checkpoints: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name, dropout_rate
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, norm

_ATTENTION = "encoder.layer.{i}.attention"
_QKV = tuple(f"{_ATTENTION}.self.{x}" for x in ("query", "key", "value"))
_LAYER = "encoder.layer.{i}"


_DEFAULTS = {
    "vocab_size": 30522, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072,
    "type_vocab_size": 2, "pad_token_id": 0,
}  # fmt: skip
# The rows of the encoder, which RoBERTa and ELECTRA share.
ENCODER = (
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
)
TABLE = (
    *ENCODER,
    *dense("pooler", "pooler.dense"),
    *dense("transform", "cls.predictions.transform.dense", head=True),
    *norm("transform_norm", "cls.predictions.transform.LayerNorm", head=True),
    Row("output_bias/bias", ("cls.predictions.bias",), head=True),
    *dense("next_sentence", "cls.seq_relationship", head=True),
    *dense("classifier", "classifier", head=True),
    *dense("span", "qa_outputs", head=True),
)


def encoder_arguments(
    config: Config, named: Named, min_segments: int = 1, **defaults: int
) -> Arguments:
    """The builder's arguments that BERT and its successors have in common.

    Args:
        config, named: the configuration and the tensors' names.
        min_segments: int, the smallest number of segments.
        **defaults: values of fields that are missing in `config.json`, if they are not BERT's.
    """
    defaults = {**_DEFAULTS, **defaults}
    config.only(
        position_embedding_type="absolute",
        is_decoder=False,
        add_cross_attention=False,
        pruned_heads={},
    )
    check_tied(config, named)
    size = config.integer("vocab_size", defaults["vocab_size"])
    return {
        "vocabulary_size": size,
        "dim": config.integer("hidden_size", defaults["hidden_size"]),
        "num_layers": config.integer("num_hidden_layers", 12, maximum=1000),
        "num_heads": config.integer("num_attention_heads", defaults["num_attention_heads"]),
        "intermediate_dim": config.integer("intermediate_size", defaults["intermediate_size"]),
        "dropout": config.number("hidden_dropout_prob", 0.1, 1),
        "attention_dropout": config.number("attention_probs_dropout_prob", 0.1, 1),
        "activation": config.activation("hidden_act", "gelu"),
        "layer_norm_epsilon": config.number("layer_norm_eps", 1e-12),
        "max_length": config.integer("max_position_embeddings", 512),
        "num_segments": config.integer(
            "type_vocab_size", defaults["type_vocab_size"], minimum=min_segments
        ),
        "pad_id": read_pad_id(config, size, defaults["pad_token_id"]),
    }


def read_pad_id(config: Config, vocabulary_size: int, default: int = 0) -> int:
    """The padding id of an encoder."""
    return config.integer("pad_token_id", default, minimum=0, maximum=vocabulary_size - 1)


def saved_pad_id(model: models.Model) -> int | None:
    """The field `pad_token_id`.

    Raises:
        ValueError: the model pads with an id that is not in the vocabulary.
    """
    pad_id = model.arguments["pad_id"]
    if pad_id is not None and pad_id < 0:
        raise ValueError(
            f"{model.name}: transformers pads with an id of the vocabulary, and the model with "
            f"{pad_id}: give the builder the pad_id of the tokenizer"
        )
    return pad_id


def check_tied(config: Config, named: Named) -> None:
    """Raises if the output over the vocabulary has a table of its own; other heads have none."""
    outputs = [x.removesuffix(".weight").removesuffix(".decoder") for x in named.names.aliases]
    if any(named.begins(f"{output}.") for output in outputs):
        config.only(tie_word_embeddings=True)


def _arguments(config: Config, named: Named) -> Arguments:
    return {**encoder_arguments(config, named), "pooler": has_pooler(named)}


def has_pooler(named: Named) -> bool:
    """Whether the files have a pooler, or a head: files of a head may lack the pooler."""
    known = ("pooler.", _MASKED, _NEXT, "classifier.", "qa_outputs.")
    return any(named.begins(x) for x in known)


def classifier_dropout(config: Config) -> float | None:
    """The dropout rate of a classifier; None for the encoder's."""
    return config.number("classifier_dropout", None, 1)


def classifiers(
    name: str,
    prefixes: tuple[str, ...],
    dropout: heads.Rate = classifier_dropout,
    token_dropout: heads.Rate = classifier_dropout,
) -> dict[str, Architecture]:
    """The classes of a family for classes of texts and of tokens, and for question answering.

    Args:
        name: str, the first part of their names.
        prefixes: those of the tensors of the classifier of texts.
        dropout, token_dropout: the dropout rates of the two classifiers, or functions that read
            them.
    """
    return {
        f"{name}ForSequenceClassification": heads.sequence_classifier(
            "first", *prefixes, dropout=dropout
        ),
        f"{name}ForTokenClassification": heads.token_classifier(
            "classifier.", dropout=token_dropout
        ),
        f"{name}ForQuestionAnswering": heads.question_answering("qa_outputs."),
    }


_MASKED, _NEXT = "cls.predictions.", "cls.seq_relationship."
ARCHITECTURES = {
    "BertModel": Architecture(prefixes=("pooler.",)),
    "BertForPreTraining": heads.masked_language_model(
        "pooler.", _MASKED, _NEXT, next_sentence=True
    ),
    "BertForMaskedLM": heads.masked_language_model(_MASKED),
    "BertForNextSentencePrediction": Architecture(
        lambda model, config: models.next_sentence(model),
        "next_sentence",
        prefixes=("pooler.", _NEXT),
    ),
    **classifiers("Bert", ("pooler.", "classifier.")),
}


def encoder_fields(model: models.Model, architecture: str) -> Fields:
    """The fields of `config.json` that BERT and its successors have in common."""
    given = model.arguments
    fields: Fields = {
        "vocab_size": given["vocabulary_size"],
        "hidden_size": given["dim"],
        "num_hidden_layers": given["num_layers"],
        "num_attention_heads": given["num_heads"],
        "intermediate_size": given["intermediate_dim"],
        "hidden_act": activation_name(given["activation"]),
        "hidden_dropout_prob": given["dropout"],
        "attention_probs_dropout_prob": dropout_rate(given, given["attention_dropout"]),
        "max_position_embeddings": given["max_length"],
        "type_vocab_size": given.get("num_segments", 0),
        "layer_norm_eps": given["layer_norm_epsilon"],
        "pad_token_id": saved_pad_id(model),
        "tie_word_embeddings": True,
    }
    if architecture.endswith("Classification"):
        fields["classifier_dropout"] = dropout_rate(given, model.head.arguments["dropout"])
        fields |= label_fields(model)
    return fields


def label_fields(model: models.Model) -> Fields:
    """The fields of a classifier's class names."""
    given = model.head.arguments
    labels = given["labels"] or [f"LABEL_{i}" for i in range(given["num_classes"])]
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }


BERT = Family(
    model_type="bert",
    builder=models.bert,
    table=lambda model: TABLE,
    arguments=_arguments,
    fields=encoder_fields,
    architectures=ARCHITECTURES,
    names=Names(
        prefix="bert.",
        aliases={
            "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        ignored=(r"embeddings\.(position_ids|token_type_ids)",),
        # Old names, from the first conversion of Google's checkpoints.
        renamed={r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"},
    ),
)
