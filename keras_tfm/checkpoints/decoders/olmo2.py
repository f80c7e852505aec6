"""Checkpoints of OLMo 2 and 3: tensor names, configuration and heads."""

import warnings
from functools import partial

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders.decoder_fields import (
    FULL,
    SLIDING,
    Windows,
    architectures,
    check_heads,
    read_pad_id,
    read_windows,
    window_of,
)
from keras_tfm.checkpoints.decoders.llama import NAMES, shared_arguments, shared_fields
from keras_tfm.checkpoints.decoders.llama import table as llama_table
from keras_tfm.checkpoints.decoders.rope import (
    read_rope,
    read_rope_by_layer_type,
    rope_fields,
    rope_fields_by_layer_type,
)
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import Row, rms_norm
from keras_tfm.checkpoints.transforms import Reshaped

# Values of fields that are missing in `config.json`.
_DEFAULTS: Arguments = {
    "vocab_size": 50304, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 11008, "num_key_value_heads": None, "head_dim": None,
    "max_position_embeddings": 2048, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
}  # fmt: skip
_WINDOW, _THETA = 4096, 500000.0


def _table(model: models.Model) -> tuple[Row, ...]:
    """Llama's without its norms, and the norms of all heads and of the sublayers' outputs."""
    given, path, layer = model.arguments, "decoder_{i}", "layers.{i}"
    heads, groups = given["num_heads"], given["num_key_value_heads"] or given["num_heads"]
    width = given["dim"] // heads
    norms = {
        f"{path}/self_attention_residual/norm": f"{layer}.post_attention_layernorm",
        f"{path}/feed_forward_residual/norm": f"{layer}.post_feedforward_layernorm",
    }
    return (
        *(row for row in llama_table(model) if "norm/" not in row.weight),
        *(row for weight, tensor in norms.items() for row in rms_norm(weight, tensor)),
        *(
            Row(
                f"{path}/self_attention/{name}/scale",
                (f"{layer}.self_attn.{name[0]}_norm.weight",),
                Reshaped((count * width,), (count, width)),
            )
            for name, count in (("query_norm", heads), ("key_norm", groups))
        ),
        *rms_norm("decoder_norm", "norm"),
    )


def _windows(config: Config, num_layers: int) -> Windows:
    """The window of each block: all but every fourth, unless `layer_types` says otherwise."""
    window = config.integer("sliding_window", None)
    if "sliding_window" not in config.fields:
        window = _WINDOW
    kinds = config.fields.get("layer_types")
    if kinds is None:
        kinds = [SLIDING if (i + 1) % 4 else FULL for i in range(num_layers)]
    if window is None and SLIDING in kinds:
        config.refuse("sliding_window", window, f"an integer, for the {SLIDING} in layer_types")
    return read_windows(config, kinds, window)


def _arguments(config: Config, named: Named, is_third: bool) -> Arguments:
    arguments = shared_arguments(config, named, _DEFAULTS)
    dim, heads, head_dim = (arguments[x] for x in ("dim", "num_heads", "head_dim"))
    del arguments["head_dim"]
    if head_dim not in (None, dim // heads):
        config.refuse("head_dim", head_dim, f"hidden_size / num_attention_heads, {dim // heads}")
    arguments |= {
        "activation": config.activation("hidden_act", "silu"),
        "pad_id": read_pad_id(config, named, default=1),
    }
    if not is_third:
        return {**arguments, **read_rope(config)}
    # transformers takes `rope_theta` for the blocks without a window alone.
    rope = read_rope_by_layer_type(config, ("rope_theta", _THETA), (None, _THETA))
    return {**arguments, **rope, "windows": _windows(config, arguments["num_layers"])}


def _fields(model: models.Model, architecture: str, is_third: bool) -> Fields:
    check_heads(model, "olmo3" if is_third else "olmo2")
    fields = {
        **shared_fields(model, architecture),
        "hidden_act": activation_name(model.arguments["activation"]),
    }
    del fields["head_dim"]
    if not is_third:
        rope = rope_fields(model)
        scaling = rope.get("rope_scaling", {})
        if scaling.get("rope_type") == "linear":  # version 4 reads two fields of this name alone
            rope["rope_scaling"] = {"type": "linear", "factor": scaling["factor"]}
        return {**fields, **rope}
    window, each = window_of(model)
    local = model.arguments["local_rope_theta"]
    if window is not None and local not in (None, model.arguments["rope_theta"]):
        warnings.warn(
            f"{model.name}: transformers before version 5 has one rope_theta for all blocks of "
            "OLMo 3, so it will read another model than this one",
            stacklevel=2,
        )
    return {
        "pad_token_id": None,
        **fields,
        **rope_fields_by_layer_type(model, window is not None, "OLMo 3"),
        "sliding_window": window or _WINDOW,
        "layer_types": [FULL if x is None else SLIDING for x in each],
    }


def _family(model_type: str, name: str, is_third: bool) -> Family:
    return Family(
        model_type=model_type,
        builder=models.olmo2,
        table=_table,
        arguments=partial(_arguments, is_third=is_third),
        fields=partial(_fields, is_third=is_third),
        architectures=architectures(name, f"{name}ForCausalLM", f"{name}Model"),
        is_of=lambda model: is_third is _is_third(model),
        names=NAMES,
        base=f"{name}Model",
    )


def _is_third(model: models.Model) -> bool:
    given = model.arguments
    return given["windows"] is not None or given["local_rope_theta"] is not None


OLMO3 = _family("olmo3", "Olmo3", True)
OLMO2 = _family("olmo2", "Olmo2", False)
