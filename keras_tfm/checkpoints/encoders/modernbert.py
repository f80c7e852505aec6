"""Checkpoints of ModernBERT, encoder and decoder: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders.decoder_fields import (
    FULL,
    SLIDING,
    Windows,
    is_tied,
    read_windows,
    window_of,
)
from keras_tfm.checkpoints.decoders.rope import read_rope_by_layer_type
from keras_tfm.checkpoints.encoders.bert import check_tied, classifier_dropout, label_fields
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense

_LAYER = "layers.{i}"
_PAD_ID = 50283
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


def _shared_arguments(config: Config) -> Arguments:
    """The arguments that the encoder and the decoder have in common."""
    config.only(
        norm_bias=False,
        attention_bias=False,
        mlp_bias=False,
        classifier_bias=False,
        rope_scaling={},
    )
    rope = read_rope_by_layer_type(
        config, ("global_rope_theta", 160000.0), ("local_rope_theta", 10000.0)
    )
    if rope.pop("rope_scaling") is not None:
        config.refuse("rope_parameters", config.fields["rope_parameters"], "without a scaling")
    theta, local = rope["rope_theta"], rope["local_rope_theta"]
    return {
        "vocabulary_size": config.integer("vocab_size", 50368),
        "dim": config.integer("hidden_size", 768),
        "num_layers": config.integer("num_hidden_layers", 22, maximum=1000),
        "num_heads": config.integer("num_attention_heads", 12),
        "intermediate_dim": config.integer("intermediate_size", 1152),
        "embedding_dropout": config.number("embedding_dropout", 0.0, 1),
        "attention_dropout": config.number("attention_dropout", 0.0, 1),
        "activation_dropout": config.number("mlp_dropout", 0.0, 1),
        "activation": config.activation("hidden_activation", "gelu"),
        "head_activation": config.activation("classifier_activation", "gelu"),
        "layer_norm_epsilon": config.number("norm_eps", 1e-5),
        "rope_theta": theta,
        "local_rope_theta": theta if local is None else local,
        "max_length": config.integer("max_position_embeddings", 8192),
    }


def _pad_id(config: Config, arguments: Arguments) -> int:
    return config.integer("pad_token_id", _PAD_ID, 0, arguments["vocabulary_size"] - 1)


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(decoder_bias=True)
    check_tied(config, named)
    arguments = _shared_arguments(config)
    return {
        **arguments,
        "window": config.integer("local_attention", 128, minimum=0),
        "global_every": _global_every(config, arguments["num_layers"]),
        "pad_id": _pad_id(config, arguments),
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


# The prefixes of the tensors of a classifier.
_CLASSIFIER = ("head.", "classifier.")
ARCHITECTURES = {
    "ModernBertModel": Architecture(),
    "ModernBertForMaskedLM": heads.masked_language_model("head.", "decoder."),
    "ModernBertForSequenceClassification": heads.sequence_classifier(
        _pooling, *_CLASSIFIER, dropout=_dropout
    ),
    "ModernBertForTokenClassification": heads.token_classifier(*_CLASSIFIER, dropout=_dropout),
    "ModernBertForQuestionAnswering": heads.question_answering(*_CLASSIFIER),
    "ModernBertForMultipleChoice": heads.multiple_choice(_pooling, *_CLASSIFIER, dropout=_dropout),
}


def _shared_fields(model: models.Model, architecture: str) -> Fields:
    """The fields that the encoder and the decoder have in common."""
    given = model.arguments
    theta = given["rope_theta"]
    local = theta if given["local_rope_theta"] is None else given["local_rope_theta"]
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
        # Both forms: of version 5 of transformers, and of earlier ones.
        "rope_parameters": {
            FULL: {"rope_theta": theta, "rope_type": "default"},
            SLIDING: {"rope_theta": local, "rope_type": "default"},
        },
        "global_rope_theta": theta,
        "local_rope_theta": local,
        "max_position_embeddings": given["max_length"],
    }
    if architecture.endswith("Classification"):
        fields |= label_fields(model)
    if architecture.endswith(("Classification", "MultipleChoice")):
        fields["classifier_dropout"] = model.head.arguments["dropout"] or 0.0
    return fields


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    fields = {
        **_shared_fields(model, architecture),
        "local_attention": given["window"],
        "global_attn_every_n_layers": given["global_every"],
        "layer_types": _layer_types(given["global_every"], given["num_layers"]),
        "pad_token_id": given["pad_id"],
        "tie_word_embeddings": True,
    }
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
)


_EMBEDDING = "embeddings.tok_embeddings.weight"


def _decoder_table(model: models.Model) -> tuple[Row, ...]:
    """The encoder's, with queries, keys and values in three tensors, and the names of each head."""
    path, attention = "decoder_{i}", f"{_LAYER}.attn"
    joined = f"{path}/self_attention/query_key_value"
    is_language_model = model.head is not None and model.head.kind == "language_model"
    head = "lm_head" if is_language_model else "head"
    blocks = (
        Row(row.weight.replace("encoder_", "decoder_"), row.tensors, row.transform)
        for row in TABLE
        if not row.head
    )
    return (
        *(row for row in blocks if not row.weight.startswith(joined)),
        *dense(joined, *(f"{attention}.{x}_proj" for x in "qkv"), bias=False),
        *dense("transform", f"{head}.dense", bias=False, head=True),
        Row("transform_norm/gamma", (f"{head}.norm.weight",), head=True),
        *dense("output", "decoder", bias=False, head=True),
        Row("output_bias/bias", ("decoder.bias",), head=True),
        *dense("classifier", "classifier", bias=False, head=True),
    )


def _decoder_windows(config: Config, num_layers: int) -> Windows:
    """The window of each block: `sliding_window`, or half of `local_attention`."""
    kinds, window = config.fields.get("layer_types"), None
    if kinds is None:
        kinds = _layer_types(config.integer("global_attn_every_n_layers", 3), num_layers)
    # Without such blocks, transformers writes a window of -1 for no `local_attention`.
    if isinstance(kinds, list) and SLIDING in kinds:
        if config.fields.get("local_attention", 0) is None:
            config.refuse("local_attention", None, f"an integer, for the {SLIDING} in layer_types")
        half = config.integer("local_attention", 128, minimum=2) // 2
        window = config.integer("sliding_window", half)
    return read_windows(config, kinds, num_layers, window)


def _decoder_arguments(config: Config, named: Named) -> Arguments:
    config.only(is_causal=True)
    arguments = _shared_arguments(config)
    dim, heads = arguments["dim"], arguments["num_heads"]
    if dim % (2 * heads):
        config.refuse(
            "num_attention_heads", heads, f"a divisor of half the hidden_size ({dim // 2})"
        )
    is_classifier = named.begins("classifier.")
    return {
        **arguments,
        "windows": _decoder_windows(config, arguments["num_layers"]),
        "tie_output": is_tied(config, named, True, _EMBEDDING, "decoder.weight"),
        "output_bias": config.flag("decoder_bias", True),
        "pad_id": _pad_id(config, arguments) if is_classifier else None,
    }


def _decoder_fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    window, each = window_of(model)
    pad_id = given["pad_id"]
    if pad_id is None:  # the field is required, and read by classifiers alone
        pad_id = min(_PAD_ID, given["vocabulary_size"] - 1)
    return {
        "eos_token_id": None,  # the default may exceed the vocabulary
        **_shared_fields(model, architecture),
        "local_attention": 2 * (window or 64),
        "layer_types": [FULL if x is None else SLIDING for x in each],
        "decoder_bias": given["output_bias"],
        "pad_token_id": pad_id,
        "tie_word_embeddings": given["tie_output"],
    }


MODERNBERT_DECODER = Family(
    model_type="modernbert-decoder",
    builder=models.modernbert_decoder,
    table=_decoder_table,
    arguments=_decoder_arguments,
    fields=_decoder_fields,
    architectures={
        "ModernBertDecoderForCausalLM": Architecture(kind="language_model", prefixes=("lm_head.",)),
        "ModernBertDecoderModel": heads.backbone(),
        "ModernBertDecoderForSequenceClassification": heads.sequence_classifier(
            "last", *_CLASSIFIER, dropout=_dropout
        ),
    },
    names=Names(prefix="model.", aliases={"decoder.weight": _EMBEDDING}),
)
