"""EuroBERT checkpoints: Llama's tensors, without causality, and heads of their own."""

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders import llama
from keras_tfm.checkpoints.decoders.decoder_fields import check_heads, check_saved, read_pad_id
from keras_tfm.checkpoints.decoders.rope import read_rope, rope_fields
from keras_tfm.checkpoints.encoders.bert import label_fields
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import Row, dense

_DEFAULTS: Arguments = {
    "vocab_size": 128256, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "num_key_value_heads": None, "head_dim": None,
    "max_position_embeddings": 8192, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
}  # fmt: skip
_PAD_ID = 128001  # if the field is missing
# The names of the poolings of a classifier.
_POOLING = {"first": "bos", "mean": "mean", "late": "late"}
_MASKED = "EuroBertForMaskedLM"


def _table(model: models.Model) -> tuple[Row, ...]:
    return (
        *(row for row in llama.table(model) if not row.weight.startswith("classifier/")),
        *dense("pooler", "dense", head=True),
        *dense("classifier", "classifier", head=True),
    )


def _arguments(config: Config, named: Named) -> Arguments:
    arguments = llama.shared_arguments(config, named, _DEFAULTS, is_causal=False)
    return {
        **arguments,
        "causal": False,
        "classifier_activation": "gelu",
        "activation": config.activation("hidden_act", "silu"),
        **read_rope(config),
        "feed_forward_bias": config.flag("mlp_bias", False),
        "pad_id": read_pad_id(config, named, _PAD_ID, causal=False),
    }


def _pooling(config: Config) -> str:
    # The name of the field in EuroBERT's own code.
    pooling = config.text("classifier_pooling", config.text("clf_pooling", "late"))
    known = {name: ours for ours, name in _POOLING.items()}
    if pooling not in known:
        config.refuse("classifier_pooling", pooling, f"one of {list(known)}")
    return known[pooling]


def _masked_language_model(model: models.Model, config: Config) -> models.Model:
    config.only(mlp_bias=False)  # the output over the vocabulary would have one, too
    return model


ARCHITECTURES = {
    _MASKED: Architecture(_masked_language_model, "language_model"),
    "EuroBertModel": heads.backbone(),
    "EuroBertForSequenceClassification": heads.sequence_classifier(
        _pooling, "dense.", "classifier."
    ),
    "EuroBertForTokenClassification": heads.token_classifier("classifier."),
}


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    check_heads(model, "eurobert")
    check_saved(
        model, "eurobert", causal=False, attention_bias=(False, True), interleaved=False,
        query_beta=None, query_key_norm=False, windows=None, gated=True, model_type=None,
    )  # fmt: skip
    if activation_name(given["classifier_activation"]) != "gelu":
        check_saved(model, "eurobert", classifier_activation="gelu")
    if architecture == _MASKED:
        check_saved(model, "eurobert", feed_forward_bias=False)
    fields = {
        **llama.shared_fields(model, architecture),
        "hidden_act": activation_name(given["activation"]),
        **rope_fields(model),
        "mlp_bias": given["feed_forward_bias"],
        # Those of the class may exceed the vocabulary.
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if architecture.endswith("ForTokenClassification"):
        fields |= label_fields(model)
    if architecture.endswith("ForSequenceClassification"):
        pooling = model.head.arguments["pooling"]
        if pooling not in _POOLING:
            raise ValueError(
                f"{model.name}: pooling must be one of {list(_POOLING)} to be saved as EuroBERT, "
                f"got {pooling!r}"
            )
        fields["classifier_pooling"] = _POOLING[pooling]
    return fields


EUROBERT = Family(
    model_type="eurobert",
    builder=models.llama,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures=ARCHITECTURES,
    # Models that were saved earlier do not have the argument.
    is_of=lambda model: model.arguments.get("classifier_activation") is not None,
    names=llama.NAMES,
)
