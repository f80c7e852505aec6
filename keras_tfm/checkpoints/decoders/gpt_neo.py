"""GPT-Neo checkpoints: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name, dropout_rate
from keras_tfm.checkpoints.decoders.decoder_fields import (
    architectures,
    check_saved,
    classifier_fields,
    classifier_rows,
    is_tied,
    read_pad_id,
    window_of,
)
from keras_tfm.checkpoints.decoders.gpt import OF_OPT
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, norm

_ATTENTION = "h.{i}.attn.attention"
_ROWS = (
    Row("embedding/embeddings", ("wte.weight",)),
    Row("positions/positions", ("wpe.weight",)),
    *dense(
        "decoder_{i}/self_attention/query_key_value",
        *(f"{_ATTENTION}.{x}_proj" for x in "qkv"),
        bias=False,
    ),
    *dense("decoder_{i}/self_attention/output_projection", f"{_ATTENTION}.out_proj"),
    *norm("decoder_{i}/self_attention_residual/norm", "h.{i}.ln_1"),
    *dense("decoder_{i}/feed_forward/inner", "h.{i}.mlp.c_fc"),
    *dense("decoder_{i}/feed_forward/outer", "h.{i}.mlp.c_proj"),
    *norm("decoder_{i}/feed_forward_residual/norm", "h.{i}.ln_2"),
    *norm("decoder_norm", "ln_f"),
    *dense("output", "lm_head", bias=False, head=True),
)
_GLOBAL, _LOCAL, _WINDOW = "global", "local", 256


def _kinds(config: Config, num_layers: int) -> list[str]:
    """The kind of each block.

    `attention_types` [[["global", "local"], 2]] means global, local, global, local.
    `attention_layers`, which is this list, has priority, as in transformers.
    """
    field, types = "attention_types", config.fields.get("attention_types")
    types = [[[_GLOBAL, _LOCAL], 12]] if types is None else types
    example = '[[["global", "local"], 12]]'
    if config.fields.get("attention_layers") is not None:
        field, types = "attention_layers", config.fields["attention_layers"]
        example = '["global", "local"]'
    try:
        pairs: list[tuple[list[str], int]]
        pairs = types if field == "attention_types" else [(types, 1)]
        kinds = [kind for names, count in pairs for _ in range(count) for kind in names]
    except (TypeError, ValueError):
        kinds = []
    if not kinds or not all(kind in (_GLOBAL, _LOCAL) for kind in kinds):
        config.refuse(field, types, f"a list such as {example}")
    if len(kinds) != num_layers:
        config.refuse(field, types, f"one kind for each of {num_layers} blocks")
    return kinds


def _arguments(config: Config, named: Named) -> Arguments:
    dim = config.integer("hidden_size", 2048)
    num_layers = config.integer("num_layers", 24, maximum=1000)
    kinds = _kinds(config, num_layers)
    window = config.integer("window_size", _WINDOW)
    config.only(is_causal=True)
    return {
        "vocabulary_size": config.integer("vocab_size", 50257),
        "dim": dim,
        "num_layers": num_layers,
        "num_heads": config.integer("num_heads", 16),
        "intermediate_dim": config.integer("intermediate_size", None) or 4 * dim,
        "dropout": config.number("resid_dropout", 0.0, 1),
        "attention_dropout": config.number("attention_dropout", 0.0, 1),
        "embedding_dropout": config.number("embed_dropout", 0.0, 1),
        "activation": config.activation("activation_function", "gelu_new"),
        "layer_norm_epsilon": config.number("layer_norm_epsilon", 1e-5),
        "max_length": config.integer("max_position_embeddings", 2048),
        "windows": [window if kind == _LOCAL else None for kind in kinds],
        "attention_bias": ["output"],
        "scale_scores": False,
        "tie_output": is_tied(config, named, True, "wte.weight"),
        "pad_id": read_pad_id(config, named),
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    check_saved(
        model,
        "GPT-Neo",
        attention_bias=(["output"], ("output",), {"output"}),
        scale_scores=False,
        scale_scores_by_layer=False,
        **OF_OPT,
    )
    given = model.arguments
    window, each = window_of(model)
    kinds = [_GLOBAL if x is None else _LOCAL for x in each]
    return {
        "vocab_size": given["vocabulary_size"],
        "hidden_size": given["dim"],
        "num_layers": given["num_layers"],
        "num_heads": given["num_heads"],
        "intermediate_size": given["intermediate_dim"],
        "resid_dropout": given["dropout"],
        "attention_dropout": dropout_rate(given, given["attention_dropout"]),
        "embed_dropout": dropout_rate(given, given["embedding_dropout"]),
        "activation_function": activation_name(given["activation"]),
        "layer_norm_epsilon": given["layer_norm_epsilon"],
        "max_position_embeddings": given["max_length"],
        "window_size": window or _WINDOW,
        "attention_types": [[kinds, 1]],
        "attention_layers": kinds,
        "tie_word_embeddings": given["tie_output"] or model.head is None,
        **classifier_fields(model, architecture),
    }


def _is_neo(model: models.Model) -> bool:
    given = model.arguments
    is_other = given["windows"] is not None or not isinstance(given["attention_bias"], bool)
    return bool(given["normalize_first"] and is_other)


GPT_NEO = Family(
    model_type="gpt_neo",
    builder=models.gpt,
    table=lambda model: (*_ROWS, *classifier_rows(model)),
    arguments=_arguments,
    fields=_fields,
    architectures=architectures(
        "GPTNeo", classifies_tokens=True, of_tokens="classifier", answers="transformer."
    ),
    is_of=_is_neo,
    names=Names(
        prefix="transformer.",
        aliases={"lm_head.weight": "wte.weight"},
        # Causal masks, which older versions of transformers saved.
        ignored=(r"h\.\d+\.attn\.attention\.(masked_)?bias",),
    ),
    aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
)
