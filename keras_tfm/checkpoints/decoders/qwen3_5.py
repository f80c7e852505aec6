"""Checkpoints of Qwen3.5 (text): tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders import llama
from keras_tfm.checkpoints.decoders.decoder_fields import (
    FULL,
    architectures,
    read_attends,
    read_pad_id,
)
from keras_tfm.checkpoints.decoders.rope import partial_rope_fields, read_partial_rope
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, rms_norm
from keras_tfm.checkpoints.transforms import Transposed
from keras_tfm.models.decoders.causal_decoder import each_flag

# Values of fields that are missing in `config.json`.
_DEFAULTS: Arguments = {
    "vocab_size": 248320, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 16,
    "intermediate_size": 12288, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 32768, "tie_word_embeddings": False,
}  # fmt: skip
_LINEAR, _INTERVAL, _PART = "linear_attention", 4, 0.25
_OF_IMAGES = ("mrope_section", "mrope_interleaved")
# Names of fields and arguments, with the default.
_DELTA = {
    "linear_num_value_heads": ("delta_heads", 32),
    "linear_num_key_heads": ("delta_key_heads", 16),
    "linear_key_head_dim": ("delta_head_dim", 128),
    "linear_value_head_dim": ("delta_value_dim", 128),
    "linear_conv_kernel_dim": ("kernel_size", 4),
}


def _table(model: models.Model) -> tuple[Row, ...]:
    """Llama's, with gates beside the queries, and the blocks with the gated delta rule."""
    given = model.arguments
    heads, width = given["num_heads"], given["head_dim"]
    groups = (given["num_key_value_heads"] or heads) * width
    mixer, linear = "decoder_{i}/gated_delta_net", "layers.{i}.linear_attn"
    attention = "decoder_{i}/self_attention/query_key_value"
    parts = tuple(f"layers.{{i}}.self_attn.{x}_proj" for x in "qkv")
    projections = {
        "query_key_value": "in_proj_qkv", "gate": "in_proj_z", "beta": "in_proj_b",
        "decay": "in_proj_a", "output_projection": "out_proj",
    }  # fmt: skip
    return (
        *dense(attention, *parts, widths=(2 * heads * width, groups, groups)),
        *(x for x in llama.table(model, offset=1.0) if not x.weight.startswith(attention)),
        *(
            row
            for ours, theirs in projections.items()
            for row in dense(f"{mixer}/{ours}", f"{linear}.{theirs}", bias=False)
        ),
        Row(f"{mixer}/kernel", (f"{linear}.conv1d.weight",), Transposed((2, 1, 0))),
        Row(f"{mixer}/log_rate", (f"{linear}.A_log",)),
        Row(f"{mixer}/bias", (f"{linear}.dt_bias",)),
        *rms_norm(f"{mixer}/norm", f"{linear}.norm"),
    )


def _arguments(config: Config, named: Named) -> Arguments:
    for name in ("rope_parameters", "rope_scaling"):  # of images: texts have one position
        rope = config.fields.get(name)
        if isinstance(rope, dict):
            config.fields[name] = {x: y for x, y in rope.items() if x not in _OF_IMAGES}
    arguments = llama.shared_arguments(config, named, _DEFAULTS)
    count = arguments["num_layers"]
    interval = config.integer("full_attention_interval", _INTERVAL)
    flags = each_flag("attends", None, count, interval)
    kinds = [FULL if x else _LINEAR for x in flags]
    return {
        **arguments,
        "activation": config.activation("hidden_act", "silu"),
        **read_partial_rope(config, arguments["head_dim"], default_part=_PART),
        "attends": read_attends(config, count, _LINEAR, kinds),
        **{ours: config.integer(name, default) for name, (ours, default) in _DELTA.items()},
        "pad_id": read_pad_id(config, named),
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    attends = each_flag("attends", given["attends"], given["num_layers"], _INTERVAL)
    return {
        **llama.shared_fields(model, architecture),
        "hidden_act": activation_name(given["activation"]),
        **partial_rope_fields(model),
        "layer_types": [FULL if x else _LINEAR for x in attends],
        **{name: given[ours] for name, (ours, _) in _DELTA.items()},
    }


QWEN3_5 = Family(
    model_type="qwen3_5_text",
    builder=models.qwen3_5,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures=architectures("Qwen3_5Text", "Qwen3_5ForCausalLM"),
    names=Names(
        prefix="model.",
        aliases={"lm_head.weight": "embed_tokens.weight"},
        ignored=(r".*rotary_emb\.inv_freq", r"(mtp|visual)\..*"),
        renamed={r"^language_model\.": ""},
    ),
)
