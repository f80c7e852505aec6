"""Checkpoints of Llama, Mistral, Qwen2 and Qwen3: tensor names, configuration and heads."""

from functools import partial
from typing import Any

from keras_tfm import models
from keras_tfm.checkpoints.config import Config, activation_name
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, rms_norm
from keras_tfm.layers import LinearScaling, Llama3Scaling, YaRNScaling

_QKV = ["query", "key", "value"]
# Fields of `rope_parameters` by its `rope_type`, and the scaling's arguments.
_SCALINGS: dict[str, tuple[Any, dict[str, str]]] = {
    "linear": (LinearScaling, {"factor": "factor"}),
    "yarn": (
        YaRNScaling,
        {
            "factor": "factor",
            "original_max_position_embeddings": "original_length",
            "beta_fast": "beta_fast",
            "beta_slow": "beta_slow",
        },
    ),
    "llama3": (
        Llama3Scaling,
        {
            "factor": "factor",
            "original_max_position_embeddings": "original_length",
            "low_freq_factor": "low_turns",
            "high_freq_factor": "high_turns",
        },
    ),
}


def _table(model: models.Model) -> tuple[Row, ...]:
    given = model.arguments
    layer, path = "layers.{i}", "decoder_{i}"
    heads, groups = given["num_heads"], given["num_key_value_heads"] or given["num_heads"]
    width = given["head_dim"] or given["dim"] // heads
    attention = f"{layer}.self_attn"
    parts = tuple(f"{attention}.{x}_proj" for x in "qkv")
    widths = (heads * width, groups * width, groups * width)
    return (
        Row("embedding/embeddings", ("embed_tokens.weight",)),
        *dense(f"{path}/self_attention/query_key_value", *parts, widths=widths),
        *dense(f"{path}/self_attention/output_projection", f"{attention}.o_proj"),
        *rms_norm(f"{path}/self_attention/query_norm", f"{attention}.q_norm"),
        *rms_norm(f"{path}/self_attention/key_norm", f"{attention}.k_norm"),
        *rms_norm(f"{path}/self_attention_residual/norm", f"{layer}.input_layernorm"),
        *dense(f"{path}/feed_forward/inner", f"{layer}.mlp.gate_proj", f"{layer}.mlp.up_proj"),
        *dense(f"{path}/feed_forward/outer", f"{layer}.mlp.down_proj"),
        *rms_norm(f"{path}/feed_forward_residual/norm", f"{layer}.post_attention_layernorm"),
        *rms_norm("decoder_norm", "norm"),
        *dense("output", "lm_head", bias=False, head=True),
    )


def _rope(config: Config) -> dict[str, Any]:
    """Base and scaling of the rotary positions, in the newer form of `config.json` or the older."""
    newer = config.fields.get("rope_parameters")
    rope = newer if newer is not None else config.fields.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        config.refuse("rope_parameters", rope, "a dictionary")
    theta = rope.get("rope_theta", config.fields.get("rope_theta", 10000.0))
    if not isinstance(theta, int | float) or isinstance(theta, bool) or not theta > 0:
        config.refuse("rope_theta", theta, "a positive number")
    kind = rope.get("rope_type", rope.get("type", "default"))
    fields = {key: x for key, x in rope.items() if key not in ("rope_type", "type", "rope_theta")}
    if kind == "default":
        names: dict[str, str] = {}
    elif kind in _SCALINGS:
        names = _SCALINGS[kind][1]
    else:
        config.refuse("rope_type", kind, f"one of {['default', *_SCALINGS]}")
    known = {key: x for key, x in fields.items() if key in names and x is not None}
    other = {key: x for key, x in fields.items() if key not in names and x is not None}
    if other:
        config.refuse("rope_parameters", fields, f"of the fields {list(names)}")
    if kind == "default":
        return {"rope_theta": theta, "rope_scaling": None}
    if kind == "yarn" and "original_max_position_embeddings" not in known:
        known["original_max_position_embeddings"] = config.integer("max_position_embeddings", None)
    try:
        scaling = _SCALINGS[kind][0](**{names[key]: x for key, x in known.items()})
    except TypeError:
        config.refuse("rope_parameters", rope, f"of the fields {list(names)}")
    return {"rope_theta": theta, "rope_scaling": scaling}


def _windows(config: Config, num_layers: int) -> Any:
    """The window of each block, from `layer_types` or `use_sliding_window`."""
    window = config.integer("sliding_window", None)
    if not config.flag("use_sliding_window", config.fields.get("model_type") == "mistral"):
        window = None
    if window is None:
        return None
    kinds = config.fields.get("layer_types")
    if kinds is None:  # older files
        first = config.integer("max_window_layers", 0, minimum=0)
        return [None if i < first else window for i in range(num_layers)] if first else window
    if not isinstance(kinds, list) or not set(kinds) <= {"full_attention", "sliding_attention"}:
        config.refuse("layer_types", kinds, "a list of full_attention and sliding_attention")
    each = [window if kind == "sliding_attention" else None for kind in kinds]
    return each[0] if len(set(each)) == 1 else each


def _arguments(config: Config, named: Named, bias: Any) -> dict[str, Any]:
    config.only(pruned_heads={}, is_decoder=False, add_cross_attention=False)
    dim, heads = config.integer("hidden_size", 4096), config.integer("num_attention_heads", 32)
    num_layers = config.integer("num_hidden_layers", 32, maximum=1000)
    untied = "lm_head.weight" in named.own and not named.same(
        "lm_head.weight", "embed_tokens.weight"
    )
    return {
        "vocabulary_size": config.integer("vocab_size", 32000),
        "dim": dim,
        "num_layers": num_layers,
        "num_heads": heads,
        "intermediate_dim": config.integer("intermediate_size", 11008),
        "num_key_value_heads": config.integer("num_key_value_heads", heads),
        "head_dim": config.integer("head_dim", None),
        "activation": config.activation("hidden_act", "silu"),
        "rms_norm_epsilon": config.number("rms_norm_eps", 1e-6),
        **_rope(config),
        "windows": _windows(config, num_layers),
        "attention_bias": config.flag("attention_bias", False) if bias is None else bias,
        "feed_forward_bias": config.flag("mlp_bias", False),
        "query_key_norm": config.fields.get("model_type") == "qwen3",
        "attention_dropout": config.number("attention_dropout", 0.0, 1),
        "tie_output": config.flag("tie_word_embeddings", False) and not untied,
        "max_length": config.integer("max_position_embeddings", 2048),
    }


def _fields(model: models.Model, architecture: str) -> dict[str, Any]:
    given = model.arguments
    heads = given["num_heads"]
    rope: dict[str, Any] = {"rope_type": "default"}
    scaling = given["rope_scaling"]
    for kind, (cls, names) in _SCALINGS.items():
        if isinstance(scaling, cls):
            rope = {"rope_type": kind, **{key: getattr(scaling, x) for key, x in names.items()}}
    if scaling is not None and rope["rope_type"] == "default":
        raise ValueError(
            f"{model.name}: rope_scaling must be one of "
            f"{[cls.__name__ for cls, _ in _SCALINGS.values()]} to be saved, "
            f"got {type(scaling).__name__}"
        )
    windows, layers = given["windows"], given["num_layers"]
    each = windows if isinstance(windows, list | tuple) else [windows] * layers
    used = {window for window in each if window is not None}
    if len(used) > 1:
        raise ValueError(f"{model.name}: a checkpoint has one window for all blocks, got {each}")
    fields: dict[str, Any] = {
        "vocab_size": given["vocabulary_size"],
        "hidden_size": given["dim"],
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": given["intermediate_dim"],
        "num_key_value_heads": given["num_key_value_heads"] or heads,
        "head_dim": given["head_dim"] or given["dim"] // heads,
        "hidden_act": activation_name(given["activation"]),
        "rms_norm_eps": given["rms_norm_epsilon"],
        "rope_parameters": {"rope_theta": given["rope_theta"], **rope},
        "rope_theta": given["rope_theta"],
        "sliding_window": max(used, default=None),
        "attention_bias": given["attention_bias"] is True,
        "mlp_bias": given["feed_forward_bias"],
        "attention_dropout": given["attention_dropout"],
        "tie_word_embeddings": given["tie_output"],
        "max_position_embeddings": given["max_length"],
    }
    if (used and None in each) or _is_qwen(model):
        kinds = {None: "full_attention"}
        fields["layer_types"] = [kinds.get(window, "sliding_attention") for window in each]
        fields["use_sliding_window"] = bool(used)
    return fields


def _biased(model: models.Model) -> Any:
    bias = model.arguments["attention_bias"]
    return sorted(bias) if not isinstance(bias, bool) else bias


def _is_qwen(model: models.Model) -> bool:
    return model.arguments["query_key_norm"] or _biased(model) == sorted(_QKV)


def _family(model_type: str, name: str, is_of: Any, bias: Any = None) -> Family:
    return Family(
        model_type=model_type,
        builder=models.llama,
        table=_table,
        arguments=partial(_arguments, bias=bias),
        fields=_fields,
        architectures={
            f"{name}ForCausalLM": Architecture(lambda model, config: model, "language_model"),
            f"{name}Model": Architecture(lambda model, config: models.backbone(model)),
        },
        is_of=is_of,
        names=Names(
            prefix="model.",
            aliases={"lm_head.weight": "embed_tokens.weight"},
            ignored=(r".*rotary_emb\.inv_freq",),
        ),
        base=f"{name}Model",
    )


QWEN3 = _family("qwen3", "Qwen3", lambda model: model.arguments["query_key_norm"])
QWEN2 = _family("qwen2", "Qwen2", lambda model: _biased(model) == sorted(_QKV), _QKV)
MISTRAL = _family("mistral", "Mistral", lambda model: model.arguments["windows"] is not None, False)
LLAMA = _family("llama", "Llama", lambda model: isinstance(_biased(model), bool))
