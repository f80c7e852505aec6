"""Checkpoints of Granite 4.0 without experts: tensor names, configuration and heads.

Two things that `transformers` computes in a state space are not computed here: it applies
`time_step_limit` to prompts, but not to the tokens that it generates, and with `mamba_proj_bias`
the convolution reads that bias at the padding before a text.
"""

import math

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders import llama
from keras_tfm.checkpoints.decoders.decoder_fields import FULL, architectures, read_attends
from keras_tfm.checkpoints.decoders.granite import FACTORS
from keras_tfm.checkpoints.decoders.rope import read_rope, rope_fields
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import Row, dense
from keras_tfm.checkpoints.transforms import Transposed
from keras_tfm.models.decoders.causal_decoder import each_flag

# Values of fields that are missing in `config.json`.
_DEFAULTS: Arguments = {
    "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 11008, "num_key_value_heads": None, "head_dim": None,
    "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip
_LINEAR, _INTERVAL = "linear_attention", 10
# Names of the published folders, which every version of transformers knows.
_KINDS = {"mamba": _LINEAR, "attention": FULL}
_EXPERTS, _INNER = 8, 1024
_INFINITY = {"__float__": "Infinity"}  # in JSON, as transformers writes it
# Names of fields and arguments, with the default.
_MAMBA = {
    "mamba_n_heads": ("mamba_heads", 128),
    "mamba_d_state": ("state_dim", 256),
    "mamba_n_groups": ("num_groups", 1),
}


def _table(model: models.Model) -> tuple[Row, ...]:
    """Llama's table with joined gate and input, and the blocks with a state space."""
    forward, shared = "decoder_{i}/feed_forward", "layers.{i}.shared_mlp"
    mixer, mamba = "decoder_{i}/mamba2", "layers.{i}.mamba"
    weights = {
        "bias": "conv1d.bias", "time_step_bias": "dt_bias", "log_rate": "A_log", "skip": "D",
        "scale": "norm.weight",
    }  # fmt: skip
    return (
        *(x for x in llama.table(model) if not x.weight.startswith(f"{forward}/")),
        *dense(f"{forward}/inner", f"{shared}.input_linear", bias=False),
        *dense(f"{forward}/outer", f"{shared}.output_linear", bias=False),
        *dense(f"{mixer}/input_projection", f"{mamba}.in_proj"),
        *dense(f"{mixer}/output_projection", f"{mamba}.out_proj"),
        Row(f"{mixer}/kernel", (f"{mamba}.conv1d.weight",), Transposed((2, 1, 0))),
        *(Row(f"{mixer}/{ours}", (f"{mamba}.{theirs}",)) for ours, theirs in weights.items()),
    )


def _attends(config: Config, num_layers: int) -> list[bool]:
    """Whether each block has attention; none has it if the field is missing."""
    kinds = config.fields.get("layer_types")
    if isinstance(kinds, list):
        kinds = [_KINDS.get(x, x) if isinstance(x, str) else x for x in kinds]
        config.fields["layer_types"] = kinds
    return read_attends(config, num_layers, _LINEAR, [_LINEAR] * num_layers)


def _head_dim(config: Config, dim: int, heads: int) -> int:
    """The width of a head of a state space, which the configuration may say indirectly."""
    inner = config.integer("mamba_expand", 2) * dim
    if inner % heads:
        config.refuse("mamba_n_heads", heads, f"a divisor of mamba_expand * hidden_size ({inner})")
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


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(normalization_function="rmsnorm")
    experts = config.integer("num_local_experts", _EXPERTS, minimum=0)
    if experts:
        config.refuse("num_local_experts", experts, "0: sparse experts are not supported")
    arguments = llama.shared_arguments(config, named, _DEFAULTS)
    mamba = {ours: config.integer(name, default) for name, (ours, default) in _MAMBA.items()}
    rotary = config.fields.get("position_embedding_type") == "rope"
    return {
        **arguments,
        "intermediate_dim": config.integer("shared_intermediate_size", _INNER),
        "activation": config.activation("hidden_act", "silu"),
        "attends": _attends(config, arguments["num_layers"]),
        **mamba,
        "mamba_head_dim": _head_dim(config, arguments["dim"], mamba["mamba_heads"]),
        "kernel_size": config.integer("mamba_d_conv", 4, minimum=2),
        "mamba_bias": config.flag("mamba_proj_bias", False),
        "convolution_bias": config.flag("mamba_conv_bias", True),
        "time_step_limit": _time_step_limit(config),
        "rotary": rotary,
        **(read_rope(config) if rotary else {}),
        **{name: config.number(name, 1.0) for name in FACTORS},
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
    limit: Fields = {}
    if given["time_step_limit"] is not None:
        pair = given["time_step_limit"]
        limit["time_step_limit"] = [_INFINITY if x == math.inf else x for x in pair]
    return {
        **llama.shared_fields(model, architecture),
        "shared_intermediate_size": given["intermediate_dim"],
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "hidden_act": activation_name(given["activation"]),
        "layer_types": ["attention" if x else "mamba" for x in attends],
        **{name: given[ours] for name, (ours, _) in _MAMBA.items()},
        "mamba_d_head": given["mamba_head_dim"],
        "mamba_expand": inner // dim,
        "mamba_d_conv": given["kernel_size"],
        "mamba_proj_bias": given["mamba_bias"],
        "mamba_conv_bias": given["convolution_bias"],
        **limit,
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
    architectures=architectures(None, "GraniteMoeHybridForCausalLM", "GraniteMoeHybridModel"),
    names=llama.NAMES,
    base="GraniteMoeHybridModel",
    aliases={"layers_block_type": "layer_types"},
)
