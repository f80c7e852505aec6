"""Checkpoints of the text model of Gemma 4: tensor names, configuration and heads."""

from collections.abc import Iterator

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders import llama
from keras_tfm.checkpoints.decoders.decoder_fields import (
    FULL,
    SLIDING,
    architectures,
    check_saved,
    read_windows,
    window_of,
)
from keras_tfm.checkpoints.decoders.rope import read_rope_by_layer_type, rope_fields_by_layer_type
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import Row, dense, rms_norm
from keras_tfm.models.decoders.causal_decoder import each_window
from keras_tfm.models.decoders.gemma4 import shared_sources

# Values of fields that are missing in `config.json`.
_DEFAULTS: Arguments = {
    "vocab_size": 262144, "hidden_size": 2304, "num_hidden_layers": 30, "num_attention_heads": 8,
    "intermediate_size": 9216, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 131072, "tie_word_embeddings": True,
}  # fmt: skip
_GLOBAL_HEAD_DIM, _WINDOW, _INPUT_DIM, _PATTERN = 512, 512, 256, 6
_BASES = (1e6, 1e4)
_ROPE = {
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": _BASES[0]},
    SLIDING: {"rope_type": "default", "rope_theta": _BASES[1]},
}
# Fields of single blocks, which are those of all blocks without a window.
_OWN = ("head_dim", "num_key_value_heads")


def _table(model: models.Model) -> tuple[Row, ...]:
    """Llama's with Gemma's norms; each block's projections are as wide as its heads."""
    inputs, layer = "layer_input_{i}", "layers.{i}"
    rows = llama.table(model, post_norm=True)
    return (
        *(row for row in rows if "/query_key_value/" not in row.weight),
        *(row for rows in _projections(model) for row in rows),
        Row("layer_embedding/embeddings", ("embed_tokens_per_layer.weight",)),
        *dense("layer_inputs/projection", "per_layer_model_projection", bias=False),
        *rms_norm("layer_inputs/norm", "per_layer_projection_norm"),
        *dense(f"{inputs}/gate", f"{layer}.per_layer_input_gate", bias=False),
        *dense(f"{inputs}/output_projection", f"{layer}.per_layer_projection", bias=False),
        *rms_norm(f"{inputs}/norm", f"{layer}.post_per_layer_input_norm"),
        Row(f"{inputs}/scale", (f"{layer}.layer_scalar",)),
    )


def _projections(model: models.Model) -> Iterator[tuple[Row, ...]]:
    """The rows of queries, keys and values of each block."""
    given = model.arguments
    windows = each_window(given["windows"], given["num_layers"])
    shared = shared_sources(windows, given["num_shared_layers"])
    heads = given["num_heads"]
    for i, window in enumerate(windows):
        tensors = f"layers.{i}.self_attn"
        if i in shared:
            yield dense(f"decoder_{i}/self_attention/query", f"{tensors}.q_proj")
            continue
        groups, width = given["num_key_value_heads"] or heads, given["head_dim"]
        if window is None:
            groups = given["global_num_key_value_heads"] or groups
            width = given["global_head_dim"]
        letters = "qk" if given["tied_values"] and window is None else "qkv"
        yield dense(
            f"decoder_{i}/self_attention/query_key_value",
            *(f"{tensors}.{x}_proj" for x in letters),
            widths=tuple((heads if x == "q" else groups) * width for x in letters),
        )


def _kinds(config: Config, num_layers: int) -> object:
    """The kind of each block; the last one has no window, as transformers makes it."""
    kinds = config.fields.get("layer_types")
    if kinds is None:
        kinds = [SLIDING if (i + 1) % _PATTERN else FULL for i in range(num_layers)]
    return [*kinds[:-1], FULL] if isinstance(kinds, list) and kinds else kinds


def _global_heads(config: Config, arguments: Arguments, kinds: object, tied: bool) -> Arguments:
    """Width and groups of the heads of blocks without a window."""
    width = config.integer("global_head_dim", _GLOBAL_HEAD_DIM)
    groups = config.integer("num_global_key_value_heads", None) if tied else None
    own = config.fields.get("per_layer_config")
    if "per_layer_config" in config.fields and isinstance(kinds, list):
        whole = [i for i, kind in enumerate(kinds) if kind == FULL]
        given: Fields = own if isinstance(own, dict) else {"": own}
        is_known = all(
            str(key).isdigit() and int(key) in whole and isinstance(x, dict) and set(x) <= {*_OWN}
            for key, x in given.items()
        )
        blocks = {int(key): x for key, x in given.items()} if is_known else {}
        each = [tuple(blocks.get(i, {}).get(x) for x in _OWN) for i in whole]
        if not is_known or len(set(each)) > 1:
            config.refuse(
                "per_layer_config", own, f"{list(_OWN)} of the blocks without a window, all alike"
            )
        part = Config.of(config.file, dict(zip(_OWN, each[0], strict=True)) if each else {})
        width = part.integer("head_dim", arguments["head_dim"])
        groups = part.integer("num_key_value_heads", None)
    return {"global_head_dim": width, "global_num_key_value_heads": groups}


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(enable_moe_block=False, use_bidirectional_attention="vision", rope_scaling={})
    arguments = llama.shared_arguments(config, named, _DEFAULTS)
    size, num_layers = arguments["vocabulary_size"], arguments["num_layers"]
    input_dim = config.integer("hidden_size_per_layer_input", _INPUT_DIM, minimum=0)
    name = "vocab_size_per_layer_input"
    rows = config.integer(name, _DEFAULTS["vocab_size"])
    if input_dim and rows != size:
        config.refuse(name, rows, f"vocab_size ({size})")
    if config.fields.get("rope_parameters") is None:
        config = Config.of(config.file, {**config.fields, "rope_parameters": _ROPE})
    kinds = _kinds(config, num_layers)
    tied = config.flag("attention_k_eq_v", False)
    num_shared = config.integer("num_kv_shared_layers", 0, minimum=0)
    # Releases have the tensors all the same, which nothing reads.
    shared = range(max(0, num_layers - num_shared), num_layers)
    left_out = [
        f"layers.{i}.self_attn.{x}.weight"
        for i in shared
        for x in ("k_proj", "v_proj", "k_norm", "v_norm")
    ]
    named.leave_out(left_out)
    wide = config.flag("use_double_wide_mlp", False) and num_shared > 0
    return {
        **arguments,
        "activation": config.activation("hidden_activation", "gelu_pytorch_tanh"),
        "windows": read_windows(
            config, kinds, num_layers, config.integer("sliding_window", _WINDOW)
        ),
        **_global_heads(config, arguments, kinds, tied),
        "tied_values": tied,
        "num_shared_layers": num_shared,
        "shared_intermediate_dim": 2 * arguments["intermediate_dim"] if wide else None,
        "layer_input_dim": input_dim or None,
        **read_rope_by_layer_type(config, (None, _BASES[0]), (None, _BASES[1])),
        "final_logit_soft_cap": config.number("final_logit_softcapping", None),
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    wide = 2 * given["intermediate_dim"]
    check_saved(model, "Gemma 4", shared_intermediate_dim=(None, given["intermediate_dim"], wide))
    groups = given["global_num_key_value_heads"]
    if not given["tied_values"]:
        equal = (None, given["num_key_value_heads"] or given["num_heads"])
        check_saved(model, "Gemma 4 without tied_values", global_num_key_value_heads=equal)
        groups = None
    window, each = window_of(model)
    if each[-1] is not None:
        raise ValueError(
            f"{model.name}: the last block must have no window to be saved as Gemma 4, got {each}"
        )
    rope = rope_fields_by_layer_type(model, window is not None, "Gemma 4")
    return {
        **llama.shared_fields(model, architecture),
        "head_dim": given["head_dim"],
        "hidden_activation": activation_name(given["activation"]),
        "sliding_window": window or _WINDOW,
        "layer_types": [FULL if x is None else SLIDING for x in each],
        "global_head_dim": given["global_head_dim"],
        "num_global_key_value_heads": groups,
        "attention_k_eq_v": given["tied_values"],
        "num_kv_shared_layers": given["num_shared_layers"],
        "use_double_wide_mlp": given["shared_intermediate_dim"] == wide,
        "hidden_size_per_layer_input": given["layer_input_dim"] or 0,
        "vocab_size_per_layer_input": given["vocabulary_size"],
        "rope_parameters": rope["rope_parameters"],
        "final_logit_softcapping": given["final_logit_soft_cap"],
    }


GEMMA4 = Family(
    model_type="gemma4_text",
    builder=models.gemma4,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures=architectures("Gemma4Text", "Gemma4ForCausalLM", classifies_texts=False),
    names=llama.PART_NAMES,
    has_own_blocks=True,
)
