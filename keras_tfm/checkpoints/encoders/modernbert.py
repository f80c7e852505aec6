"""ModernBERT checkpoints: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders.decoder_fields import FULL, SLIDING
from keras_tfm.checkpoints.decoders.rope import read_rope_by_layer_type
from keras_tfm.checkpoints.encoders.bert import check_tied, classifier_dropout, label_fields
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense

_LAYER = "layers.{i}"
# The names of the poolings of a classifier.
_POOLING = {"first": "cls", "mean": "mean"}
TABLE = (
    Row("embedding/embeddings", ("embeddings.tok_embeddings.weight",)),
    Row("embedding_norm/gamma", ("embeddings.norm.weight",)),
    Row("encoder_{i}/self_attention_residual/norm/gamma", (f"{_LAYER}.attn_norm.weight",)),
    *dense("encoder_{i}/self_attention/query_key_value", f"{_LAYER}.attn.Wqkv", bias=False),
    *dense("encoder_{i}/self_attention/output_projection", f"{_LAYER}.attn.Wo", bias=False),
    Row("encoder_{i}/feed_forward_residual/norm/gamma", (f"{_LAYER}.mlp_norm.weight",)),
    *dense("encoder_{i}/feed_forward/inner", f"{_LAYER}.mlp.Wi", bias=False),
    *dense("encoder_{i}/feed_forward/outer", f"{_LAYER}.mlp.Wo", bias=False),
    Row("final_norm/gamma", ("final_norm.weight",)),
    *dense("transform", "head.dense", bias=False, head=True),
    Row("transform_norm/gamma", ("head.norm.weight",), head=True),
    Row("output_bias/bias", ("decoder.bias",), head=True),
    *dense("classifier", "classifier", head=True),
    *dense("span", "classifier", head=True),
)


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(
        norm_bias=False,
        attention_bias=False,
        mlp_bias=False,
        classifier_bias=False,
        decoder_bias=True,
        rope_scaling={},
    )
    check_tied(config, named)
    vocabulary_size = config.integer("vocab_size", 50368)
    num_layers = config.integer("num_hidden_layers", 22, maximum=1000)
    rope = read_rope_by_layer_type(
        config, ("global_rope_theta", 160000.0), ("local_rope_theta", 10000.0)
    )
    if rope.pop("rope_scaling") is not None:
        config.refuse("rope_parameters", config.fields["rope_parameters"], "without a scaling")
    theta, local = rope["rope_theta"], rope["local_rope_theta"]
    return {
        "vocabulary_size": vocabulary_size,
        "dim": config.integer("hidden_size", 768),
        "num_layers": num_layers,
        "num_heads": config.integer("num_attention_heads", 12),
        "intermediate_dim": config.integer("intermediate_size", 1152),
        "embedding_dropout": config.number("embedding_dropout", 0.0, 1),
        "attention_dropout": config.number("attention_dropout", 0.0, 1),
        "activation_dropout": config.number("mlp_dropout", 0.0, 1),
        "activation": config.activation("hidden_activation", "gelu"),
        "head_activation": config.activation("classifier_activation", "gelu"),
        "layer_norm_epsilon": config.number("norm_eps", 1e-5),
        "window": config.integer("local_attention", 128, minimum=0),
        "global_every": _global_every(config, num_layers),
        "rope_theta": theta,
        "local_rope_theta": theta if local is None else local,
        "max_length": config.integer("max_position_embeddings", 8192),
        "pad_id": config.integer("pad_token_id", 50283, minimum=0, maximum=vocabulary_size - 1),
    }


def _global_every(config: Config, num_layers: int) -> int:
    """One block in how many is global, from `layer_types` or `global_attn_every_n_layers`."""
    given = config.fields.get("layer_types")
    if given is None:
        return config.integer("global_attn_every_n_layers", 3)
    patterns = {tuple(_layer_types(every, num_layers)): every for every in range(num_layers, 0, -1)}
    if not isinstance(given, list) or tuple(map(str, given)) not in patterns:
        config.refuse("layer_types", given, f"{FULL} at every n-th block from the first on")
    return patterns[tuple(given)]


def _layer_types(global_every: int, num_layers: int) -> list[str]:
    return [SLIDING if i % global_every else FULL for i in range(num_layers)]


def _pooling(config: Config) -> str:
    pooling = config.text("classifier_pooling", "cls")
    known = {name: ours for ours, name in _POOLING.items()}
    if pooling not in known:
        config.refuse("classifier_pooling", pooling, f"one of {list(known)}")
    return known[pooling]


def _dropout(config: Config) -> float:
    return classifier_dropout(config) or 0.0


ARCHITECTURES = {
    "ModernBertModel": Architecture(lambda model, config: model),
    "ModernBertForMaskedLM": Architecture(
        lambda model, config: models.masked_language_model(model),
        "masked_language_model",
        {"next_sentence": False},
        ("head.", "decoder."),
    ),
    "ModernBertForSequenceClassification": Architecture(
        lambda model, config: models.sequence_classifier(
            model,
            config.num_labels,
            _dropout(config),
            labels=config.labels,
            pooling=_pooling(config),
        ),
        "sequence_classifier",
        prefixes=("head.", "classifier."),
    ),
    "ModernBertForTokenClassification": Architecture(
        lambda model, config: models.token_classifier(
            model, config.num_labels, _dropout(config), labels=config.labels
        ),
        "token_classifier",
        prefixes=("head.", "classifier."),
    ),
    "ModernBertForQuestionAnswering": Architecture(
        lambda model, config: models.question_answering(model),
        "question_answering",
        prefixes=("head.", "classifier."),
    ),
    "ModernBertForMultipleChoice": Architecture(
        lambda model, config: models.multiple_choice(
            model, _dropout(config), pooling=_pooling(config)
        ),
        "multiple_choice",
        prefixes=("head.", "classifier."),
    ),
}


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    theta, local = given["rope_theta"], given["local_rope_theta"]
    fields: Fields = {
        "vocab_size": given["vocabulary_size"],
        "hidden_size": given["dim"],
        "num_hidden_layers": given["num_layers"],
        "num_attention_heads": given["num_heads"],
        "intermediate_size": given["intermediate_dim"],
        "hidden_activation": activation_name(given["activation"]),
        "classifier_activation": activation_name(given["head_activation"]),
        "embedding_dropout": given["embedding_dropout"],
        "attention_dropout": given["attention_dropout"],
        "mlp_dropout": given["activation_dropout"],
        "norm_eps": given["layer_norm_epsilon"],
        "local_attention": given["window"],
        "global_attn_every_n_layers": given["global_every"],
        "layer_types": _layer_types(given["global_every"], given["num_layers"]),
        # Both forms: of version 5 of transformers, and of earlier ones.
        "rope_parameters": {
            FULL: {"rope_theta": theta, "rope_type": "default"},
            SLIDING: {"rope_theta": local, "rope_type": "default"},
        },
        "global_rope_theta": theta,
        "local_rope_theta": local,
        "max_position_embeddings": given["max_length"],
        "pad_token_id": given["pad_id"],
        "tie_word_embeddings": True,
    }
    if architecture.endswith("Classification"):
        fields |= label_fields(model)
    if architecture.endswith(("Classification", "MultipleChoice")):
        fields["classifier_dropout"] = model.head.arguments["dropout"] or 0.0
    if architecture.endswith(("SequenceClassification", "MultipleChoice")):
        pooling = model.head.arguments["pooling"]
        if pooling not in _POOLING:
            raise ValueError(
                f"{model.name}: pooling must be one of {list(_POOLING)} to be saved as ModernBERT, "
                f"got {pooling!r}"
            )
        fields["classifier_pooling"] = _POOLING[pooling]
    return fields


MODERNBERT = Family(
    model_type="modernbert",
    builder=models.modernbert,
    table=lambda model: TABLE,
    arguments=_arguments,
    fields=_fields,
    architectures=ARCHITECTURES,
    names=Names(
        prefix="model.",
        aliases={"decoder.weight": "embeddings.tok_embeddings.weight"},
    ),
    base="ModernBertModel",
)
