"""Checkpoints of Granite 4.0, Falcon-H1 and Mamba-2: tensors, fields and heads.

Two things that `transformers` computes in a state space are not computed here: it applies
`time_step_limit` to prompts, but not to the tokens that it generates, and with `mamba_proj_bias`
the convolution reads that bias at the padding before a text.
"""

import math
from dataclasses import replace

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders import llama
from keras_tfm.checkpoints.decoders.decoder_fields import FULL, architectures, is_tied, read_attends
from keras_tfm.checkpoints.decoders.experts import (
    STACKED,
    check_experts,
    expert_width,
    experts_of,
    read_numbers,
    stacked_rows,
)
from keras_tfm.checkpoints.decoders.granite import EXPERTS, FACTORS
from keras_tfm.checkpoints.decoders.rope import read_rope, rope_fields
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, rms_norm
from keras_tfm.checkpoints.transforms import Transposed
from keras_tfm.layers import Routing
from keras_tfm.layers.arguments import biased_parts
from keras_tfm.models.decoders.causal_decoder import each_flag

_LINEAR, _INTERVAL = "linear_attention", 10
# Names of the published folders, which every version of transformers knows.
_KINDS = {"mamba": _LINEAR, "attention": FULL}
_NUM_EXPERTS, _INNER = 8, 1024
_INFINITY = {"__float__": "Infinity"}  # in JSON, as transformers writes it
# Names of fields and arguments, with the default.
_MAMBA = {
    "mamba_n_heads": ("mamba_heads", 128),
    "mamba_d_state": ("state_dim", 256),
    "mamba_n_groups": ("num_groups", 1),
}


def _mixer(mamba: str, mixer: str = "decoder_{i}/mamba2") -> tuple[Row, ...]:
    """The rows of a state space, by its name in a checkpoint and its path."""
    weights = {
        "bias": "conv1d.bias", "time_step_bias": "dt_bias", "log_rate": "A_log", "skip": "D",
        "scale": "norm.weight",
    }  # fmt: skip
    return (
        *dense(f"{mixer}/input_projection", f"{mamba}.in_proj"),
        *dense(f"{mixer}/output_projection", f"{mamba}.out_proj"),
        Row(f"{mixer}/kernel", (f"{mamba}.conv1d.weight",), Transposed((2, 1, 0))),
        *(Row(f"{mixer}/{ours}", (f"{mamba}.{theirs}",)) for ours, theirs in weights.items()),
    )


def _table(model: models.Model) -> tuple[Row, ...]:
    """Llama's table with joined gate and input, and the blocks with a state space."""
    forward, shared = "decoder_{i}/feed_forward", "layers.{i}.shared_mlp"
    return (
        *(x for x in llama.table(model) if not x.weight.startswith(f"{forward}/")),
        *dense(f"{forward}/inner", f"{shared}.input_linear", bias=False),
        *dense(f"{forward}/outer", f"{shared}.output_linear", bias=False),
        *dense(f"{forward}/shared_expert/inner", f"{shared}.input_linear", bias=False),
        *dense(f"{forward}/shared_expert/outer", f"{shared}.output_linear", bias=False),
        *stacked_rows(EXPERTS),
        *_mixer("layers.{i}.mamba"),
    )


def _attends(config: Config, num_layers: int) -> list[bool]:
    """Whether each block has attention; none has it if the field is missing."""
    kinds = config.fields.get("layer_types")
    if isinstance(kinds, list):
        kinds = [_KINDS.get(x, x) if isinstance(x, str) else x for x in kinds]
        config.fields["layer_types"] = kinds
    return read_attends(config, num_layers, _LINEAR, [_LINEAR] * num_layers)


def _head_dim(config: Config, heads: int, inner: int) -> int:
    """The width of a head of a state space of `inner` channels, which may not be a field."""
    if inner % heads:
        config.refuse("mamba_n_heads", heads, f"a divisor of the inner width ({inner})")
    width = config.fields.get("mamba_d_head")
    if width not in (None, "auto", inner // heads):
        config.refuse("mamba_d_head", width, f'"auto" or {inner // heads} for mamba_n_heads')
    return inner // heads


def _time_step_limit(config: Config) -> list[float] | None:
    """The limits; None if no time step can exceed them. Infinity may be a dictionary."""
    limit = config.fields.get("time_step_limit")
    if limit is None:
        return None
    pair = limit if isinstance(limit, list) else []
    pair = [math.inf if x == _INFINITY else x for x in pair]
    if (
        len(pair) != 2
        or not all(type(x) in (int, float) for x in pair)
        or not max(pair[0], 0) <= pair[1]
    ):
        config.refuse("time_step_limit", limit, "the least and the largest time step")
    low, high = max(float(pair[0]), 0.0), float(pair[1])
    return None if low == 0 and high == math.inf else [low, high]


def _limit_fields(model: models.Model) -> Fields:
    pair = model.arguments["time_step_limit"]
    if pair is None:
        return {}
    return {"time_step_limit": [_INFINITY if x == math.inf else x for x in pair]}


def _mamba_arguments(config: Config, inner: int) -> Arguments:
    """The arguments of state spaces of `inner` channels."""
    mamba = {ours: config.integer(name, default) for name, (ours, default) in _MAMBA.items()}
    return {
        **mamba,
        "mamba_head_dim": _head_dim(config, mamba["mamba_heads"], inner),
        "kernel_size": config.integer("mamba_d_conv", 4, minimum=2),
        "convolution_bias": config.flag("mamba_conv_bias", True),
        "time_step_limit": _time_step_limit(config),
    }


def _mamba_fields(model: models.Model) -> Fields:
    given = model.arguments
    return {
        **{name: given[ours] for name, (ours, _) in _MAMBA.items()},
        "mamba_d_head": given["mamba_head_dim"],
        "mamba_d_conv": given["kernel_size"],
        "mamba_conv_bias": given["convolution_bias"],
        **_limit_fields(model),
    }


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(normalization_function="rmsnorm")
    arguments = llama.shared_arguments(config, named, llama.LLAMA_DEFAULTS)
    inner, experts = config.integer("shared_intermediate_size", _INNER), None
    if config.integer("num_local_experts", _NUM_EXPERTS, minimum=0):
        experts = models.Experts(
            Routing(*read_numbers(config, _NUM_EXPERTS, 2)),
            arguments["intermediate_dim"],
            shared_dim=inner,
        )
    rotary = config.fields.get("position_embedding_type") == "rope"
    return {
        **arguments,
        "intermediate_dim": inner,
        "experts": experts,
        "activation": config.activation("hidden_act", "silu"),
        "attends": _attends(config, arguments["num_layers"]),
        **_mamba_arguments(config, config.integer("mamba_expand", 2) * arguments["dim"]),
        "mamba_bias": config.flag("mamba_proj_bias", False),
        "rotary": rotary,
        **(read_rope(config) if rotary else {}),
        **{name: config.number(name, 1.0) for name in FACTORS},
    }


def _expert_fields(model: models.Model) -> Fields:
    width = model.arguments["intermediate_dim"]
    if experts_of(model) is None:
        return {
            "shared_intermediate_size": width, "num_local_experts": 0, "num_experts_per_tok": 0,
        }  # fmt: skip
    experts = check_experts(model, "granitemoehybrid", ["shared_dim"])
    if experts.shared_dim is None:
        raise ValueError(
            f"{model.name}: experts must have a shared_dim to be saved as granitemoehybrid, got "
            "None"
        )
    return {
        "intermediate_size": expert_width(model),
        "shared_intermediate_size": experts.shared_dim,
        "num_local_experts": experts.routing.num_experts,
        "num_experts_per_tok": experts.routing.top_k,
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    dim, inner = given["dim"], given["mamba_heads"] * given["mamba_head_dim"]
    if inner % dim:
        raise ValueError(
            f"{model.name}: mamba_heads * mamba_head_dim must be a multiple of dim ({dim}) to be "
            f"saved as granitemoehybrid, got {inner}"
        )
    attends = each_flag("attends", given["attends"], given["num_layers"], _INTERVAL)
    return {
        **llama.shared_fields(model, architecture),
        **_expert_fields(model),
        "hidden_act": activation_name(given["activation"]),
        "layer_types": ["attention" if x else "mamba" for x in attends],
        **_mamba_fields(model),
        "mamba_expand": inner // dim,
        "mamba_proj_bias": given["mamba_bias"],
        "position_embedding_type": "rope" if given["rotary"] else "nope",
        **rope_fields(model),
        **{name: given[name] for name in FACTORS},
    }


GRANITE4 = Family(
    model_type="granitemoehybrid",
    builder=models.granite4,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures=architectures("GraniteMoeHybrid", classifies_texts=False),
    names=replace(llama.NAMES, stacked=STACKED),
    aliases={"layers_block_type": "layer_types"},
)


_FALCON_DEFAULTS: Arguments = {
    **llama.LLAMA_DEFAULTS, "vocab_size": 128000, "intermediate_size": 14336,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192,
}  # fmt: skip
_FALCON_FACTORS = (
    "embedding_multiplier", "lm_head_multiplier", "key_multiplier", "attention_in_multiplier",
    "attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier",
)  # fmt: skip
_FALCON_LISTS = {"ssm_multipliers": 5, "mlp_multipliers": 2}  # with the number of factors
# Fields of the biases of a state space's projections.
_PROJECTIONS = {"mamba_proj_bias": "input_projection", "projectors_bias": "output_projection"}


def _falcon_h1_table(model: models.Model) -> tuple[Row, ...]:
    """Llama's table with attention and a state space in a mixer, and other names."""
    path, layer = "decoder_{i}", "layers.{i}"
    renamed = {"mlp.": "feed_forward.", "post_attention_layernorm": "pre_ff_layernorm"}
    rows = []
    for row in llama.table(model):
        tensors = row.tensors
        for theirs, falcon in renamed.items():
            tensors = tuple(x.replace(theirs, falcon) for x in tensors)
        weight = row.weight.replace(f"{path}/self_attention/", f"{path}/mixer/self_attention/")
        rows.append(replace(row, weight=weight, tensors=tensors))
    return (
        *(x for x in rows if not x.weight.startswith("decoder_norm/")),
        *rms_norm("decoder_norm", "final_layernorm"),
        *_mixer(f"{layer}.mamba", f"{path}/mixer/mamba2"),
    )


def _factors(config: Config, name: str, count: int) -> list[float]:
    """A list of `count` factors; null or no field: 1."""
    factors = config.fields.get(name)
    if factors is None:
        return [1.0] * count
    if (
        not isinstance(factors, list)
        or len(factors) != count
        or not all(type(x) in (int, float) and math.isfinite(x) for x in factors)
    ):
        config.refuse(name, factors, f"a list of {count} numbers")
    return [float(x) for x in factors]


def _falcon_h1_arguments(config: Config, named: Named) -> Arguments:
    arguments = llama.shared_arguments(config, named, _FALCON_DEFAULTS)
    factors = {name: config.number(name, 1.0, minimum=-math.inf) for name in _FALCON_FACTORS}
    if factors["lm_head_multiplier"] <= 0:
        config.refuse("lm_head_multiplier", factors["lm_head_multiplier"], "a positive number")
    expanded = config.integer("mamba_expand", 2) * arguments["dim"]  # if the field is null
    inner = config.integer("mamba_d_ssm", expanded if "mamba_d_ssm" in config.fields else 1024)
    missing = "mamba_norm_before_gate" not in config.fields  # null is false
    before = config.flag("mamba_norm_before_gate", missing)
    norm = "before_gate" if before else "after_gate"
    return {
        **arguments,
        "activation": config.activation("hidden_act", "silu"),
        **_mamba_arguments(config, inner),
        "mamba_norm": norm if config.flag("mamba_rms_norm", False) else None,
        "mamba_bias": [ours for name, ours in _PROJECTIONS.items() if config.flag(name, False)],
        "feed_forward_bias": config.flag("mlp_bias", False),
        **read_rope(config),
        **factors,
        **{name: _factors(config, name, count) for name, count in _FALCON_LISTS.items()},
    }


def _falcon_h1_fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    biased = biased_parts(given["mamba_bias"], _PROJECTIONS.values())
    return {
        **llama.shared_fields(model, architecture),
        "hidden_act": activation_name(given["activation"]),
        **_mamba_fields(model),
        "mamba_d_ssm": given["mamba_heads"] * given["mamba_head_dim"],
        "mamba_rms_norm": given["mamba_norm"] is not None,
        "mamba_norm_before_gate": given["mamba_norm"] == "before_gate",
        **{name: ours in biased for name, ours in _PROJECTIONS.items()},
        "mlp_bias": given["feed_forward_bias"],
        **rope_fields(model),
        **{name: given[name] for name in _FALCON_FACTORS},
        **{name: list(given[name]) for name in _FALCON_LISTS},
    }


FALCON_H1 = Family(
    model_type="falcon_h1",
    builder=models.falcon_h1,
    table=_falcon_h1_table,
    arguments=_falcon_h1_arguments,
    fields=_falcon_h1_fields,
    architectures=architectures("FalconH1", classifies_texts=False),
    names=llama.NAMES,
    aliases={"layer_types": "layers_block_type"},
)


def _mamba2_table(model: models.Model) -> tuple[Row, ...]:
    return (
        Row("embedding/embeddings", ("embeddings.weight",)),
        *rms_norm("decoder_{i}/self_attention_residual/norm", "layers.{i}.norm"),
        *_mixer("layers.{i}.mixer"),
        *rms_norm("decoder_norm", "norm_f"),
        *dense("output", "lm_head", bias=False, head=True),
    )


def _mamba2_arguments(config: Config, named: Named) -> Arguments:
    # With it, transformers 5 divides weights that it has loaded, as if they were initial ones.
    config.only(rescale_prenorm_residual=False)
    dim, heads = config.integer("hidden_size", 4096), config.integer("num_heads", 128)
    width, inner = config.integer("head_dim", 64), config.integer("expand", 2) * dim
    if heads * width != inner:
        config.refuse("num_heads", heads, f"expand * hidden_size / head_dim ({inner} / {width})")
    return {
        "vocabulary_size": config.integer("vocab_size", 32768),
        "dim": dim,
        "num_layers": config.integer("num_hidden_layers", 64, maximum=1000),
        "num_heads": heads,
        "head_dim": width,
        "state_dim": config.integer("state_size", 128),
        "num_groups": config.integer("n_groups", 8),
        "kernel_size": config.integer("conv_kernel", 4, minimum=2),
        "activation": config.activation("hidden_act", "silu"),
        "rms_norm_epsilon": config.number("layer_norm_epsilon", 1e-5),
        "use_bias": config.flag("use_bias", False),
        "convolution_bias": config.flag("use_conv_bias", True),
        "time_step_limit": _time_step_limit(config),
        "tie_output": is_tied(config, named, False, "embeddings.weight"),
    }


def _mamba2_fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    inner = given["num_heads"] * given["head_dim"]
    if inner % given["dim"]:
        raise ValueError(
            f"{model.name}: num_heads * head_dim must be a multiple of dim ({given['dim']}) to be "
            f"saved as mamba2, got {inner}"
        )
    return {
        "vocab_size": given["vocabulary_size"],
        "hidden_size": given["dim"],
        "expand": inner // given["dim"],
        "num_hidden_layers": given["num_layers"],
        "num_heads": given["num_heads"],
        "head_dim": given["head_dim"],
        "state_size": given["state_dim"],
        "n_groups": given["num_groups"],
        "conv_kernel": given["kernel_size"],
        "hidden_act": activation_name(given["activation"]),
        "layer_norm_epsilon": given["rms_norm_epsilon"],
        "use_bias": given["use_bias"],
        "use_conv_bias": given["convolution_bias"],
        **_limit_fields(model),
        "tie_word_embeddings": given["tie_output"],
    }


MAMBA2 = Family(
    model_type="mamba2",
    builder=models.mamba2,
    table=_mamba2_table,
    arguments=_mamba2_arguments,
    fields=_mamba2_fields,
    architectures=architectures("Mamba2", classifies_texts=False),
    names=Names(
        prefix="backbone.",
        aliases={"lm_head.weight": "embeddings.weight"},
        renamed={r"^embedding\.": "embeddings."},  # of the original code
    ),
)
