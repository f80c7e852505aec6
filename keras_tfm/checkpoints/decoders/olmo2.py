"""Checkpoints of OLMo 2 and 3 and EXAONE 4.0: tensor names, configuration and heads."""

import warnings
from collections.abc import Callable
from functools import partial

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders import llama
from keras_tfm.checkpoints.decoders.decoder_fields import (
    FULL,
    SLIDING,
    Windows,
    architectures,
    check_heads,
    check_saved,
    read_pad_id,
    read_windows,
    window_of,
)
from keras_tfm.checkpoints.decoders.rope import (
    read_rope,
    read_rope_by_layer_type,
    rope_fields,
    rope_fields_by_layer_type,
)
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import Row, rms_norm
from keras_tfm.checkpoints.transforms import Reshaped, Same

# Values of fields that are missing in `config.json`.
_DEFAULTS = {**llama.LLAMA_DEFAULTS, "vocab_size": 50304, "rms_norm_eps": 1e-5}
_EXAONE_DEFAULTS = {
    **_DEFAULTS, "vocab_size": 102400, "intermediate_size": 16384, "num_key_value_heads": 32,
}  # fmt: skip
_WINDOW, _PATTERN, _THETA = 4096, 4, 500000.0


def _table(model: models.Model) -> tuple[Row, ...]:
    """Llama's without its norms, and those of queries, keys and the sublayers' outputs."""
    given, path, layer = model.arguments, "decoder_{i}", "layers.{i}"
    heads, groups = given["num_heads"], given["num_key_value_heads"] or given["num_heads"]
    width = given["dim"] // heads
    norms = {
        f"{path}/self_attention_residual/norm": f"{layer}.post_attention_layernorm",
        f"{path}/feed_forward_residual/norm": f"{layer}.post_feedforward_layernorm",
    }
    return (
        *(row for row in llama.table(model) if "norm/" not in row.weight),
        *(row for weight, tensor in norms.items() for row in rms_norm(weight, tensor)),
        *(
            Row(
                f"{path}/self_attention/{name}/scale",
                (f"{layer}.self_attn.{name[0]}_norm.weight",),
                Same() if _is_exaone(model) else Reshaped((count * width,), (count, width)),
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
    return read_windows(config, kinds, num_layers, window)


def _exaone_windows(config: Config, num_layers: int) -> Arguments:
    """The window of each block. If there are windows, the others have no rotary positions.

    That is what transformers does if `sliding_window` is a number, whatever `layer_types` says.
    """
    missing = "sliding_window" not in config.fields
    window = _WINDOW if missing else config.integer("sliding_window", None)
    kinds = config.fields.get("layer_types")
    if kinds is None:
        pattern = config.fields.get("sliding_window_pattern", _PATTERN)
        if window is not None and (type(pattern) is not int or pattern < 1):
            config.refuse("sliding_window_pattern", pattern, "an integer, without layer_types")
        is_local = [window is not None and (i + 1) % pattern != 0 for i in range(num_layers)]
        kinds = [SLIDING if x else FULL for x in is_local]
    return {
        "windows": read_windows(config, kinds, num_layers, window),
        "global_rotary": window is None,
    }


def _exaone_arguments(config: Config, named: Named) -> Arguments:
    arguments = llama.shared_arguments(config, named, _EXAONE_DEFAULTS)
    del arguments["attention_bias"]  # which transformers does not read
    return {
        **arguments,
        "activation": config.activation("hidden_act", "silu"),
        **read_rope(config),
        **_exaone_windows(config, arguments["num_layers"]),
        "head_norm": True,
        "pad_id": read_pad_id(config, named),
    }


def _arguments(config: Config, named: Named, is_third: bool) -> Arguments:
    arguments = llama.shared_arguments(config, named, _DEFAULTS)
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


def _exaone_fields(model: models.Model, architecture: str) -> Fields:
    check_saved(model, "exaone4", local_rope_theta=None, attention_bias=False)
    window, each = window_of(model)
    rotary = model.arguments["global_rotary"]
    if rotary and window is not None and None in each:
        raise ValueError(
            f"{model.name}: global_rotary must be False to be saved as exaone4 with windows in "
            f"some blocks, got True with the windows {each}"
        )
    fields = {
        **llama.shared_fields(model, architecture),
        "hidden_act": activation_name(model.arguments["activation"]),
        **rope_fields(model),
        "sliding_window": None if rotary and window is None else window or _WINDOW,
        "layer_types": [FULL if x is None else SLIDING for x in each],
    }
    del fields["attention_bias"]
    return fields


def _fields(model: models.Model, architecture: str, is_third: bool) -> Fields:
    kind = "olmo3" if is_third else "olmo2"
    check_heads(model, kind)
    head_dim = model.arguments["dim"] // model.arguments["num_heads"]
    check_saved(model, kind, head_dim=(None, head_dim), global_rotary=True)
    fields = {
        **llama.shared_fields(model, architecture),
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


def _family(
    model_type: str,
    name: str,
    arguments: Callable[[Config, Named], Arguments],
    fields: Callable[[models.Model, str], Fields],
) -> Family:
    return Family(
        model_type=model_type,
        builder=models.olmo2,
        table=_table,
        arguments=arguments,
        fields=fields,
        architectures=architectures(
            name,
            classifies_tokens=model_type == "exaone4",
            answers=llama.OLD_PREFIX if model_type == "exaone4" else None,
        ),
        is_of=lambda model: model_type == _type_of(model),
        names=llama.NAMES,
    )


def _type_of(model: models.Model) -> str:
    given = model.arguments
    if _is_exaone(model):
        return "exaone4"
    is_third = given["windows"] is not None or given["local_rope_theta"] is not None
    return "olmo3" if is_third else "olmo2"


def _is_exaone(model: models.Model) -> bool:
    return bool(model.arguments.get("head_norm"))  # models saved before it are OLMo's


OLMO3 = _family(
    "olmo3", "Olmo3", partial(_arguments, is_third=True), partial(_fields, is_third=True)
)
OLMO2 = _family(
    "olmo2", "Olmo2", partial(_arguments, is_third=False), partial(_fields, is_third=False)
)
EXAONE4 = _family("exaone4", "Exaone4", _exaone_arguments, _exaone_fields)
