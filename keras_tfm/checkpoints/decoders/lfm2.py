"""Checkpoints of LFM2, LFM2.5 and LFM3: tensor names, configuration and heads."""

from dataclasses import replace
from functools import partial

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields
from keras_tfm.checkpoints.decoders import llama
from keras_tfm.checkpoints.decoders.decoder_fields import (
    FULL,
    SLIDING,
    architectures,
    check_heads,
    read_attends,
)
from keras_tfm.checkpoints.decoders.experts import (
    blocks_with_experts,
    check_experts,
    expert_rows,
    expert_width,
    experts_of,
    read_numbers,
)
from keras_tfm.checkpoints.decoders.rope import (
    read_rope,
    read_rope_by_layer_type,
    rope_fields,
    rope_fields_by_layer_type,
)
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import Row, dense, rms_norm
from keras_tfm.checkpoints.transforms import Transposed
from keras_tfm.layers import Routing
from keras_tfm.models.decoders.causal_decoder import each_flag, each_window

# Values of fields that are missing in `config.json`.
_DEFAULTS: Arguments = {
    "vocab_size": 65536, "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 12288, "num_key_value_heads": 8, "head_dim": None,
    "max_position_embeddings": 128000, "tie_word_embeddings": True,
}  # fmt: skip
_LFM3_DEFAULTS: Arguments = {
    "vocab_size": 128000, "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 7680, "num_key_value_heads": 4, "head_dim": 128,
    "max_position_embeddings": 128000, "tie_word_embeddings": True,
}  # fmt: skip
_MOE_DEFAULTS: Arguments = {**_DEFAULTS, "hidden_size": 2048, "intermediate_size": 7168}
_CONVOLUTION, _THETA, _WINDOW = "conv", 1000000.0, 256
_LFM3_IDS = {"bos_token_id": 124894, "eos_token_id": 124900}
_LFM3_ROPE = {
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": _THETA},
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
}
# Names of the first folders, which transformers prefers.
_OLDER = {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}


def table(model: models.Model, is_third: bool = False) -> tuple[Row, ...]:
    """The table of LFM2 and 3."""
    layer, path = "layers.{i}", "decoder_{i}"
    given = model.arguments
    heads, groups = given["num_heads"], given["num_key_value_heads"] or given["num_heads"]
    width = given.get("head_dim") or given["dim"] // heads
    widths = (heads * width, groups * width, groups * width)
    attention, convolution = f"{layer}.self_attn", f"{layer}.conv"
    norm, output = ("norm", "o_proj") if is_third else ("layernorm", "out_proj")
    norms = {
        f"{path}/self_attention/query_norm": f"{attention}.q_{norm}",
        f"{path}/self_attention/key_norm": f"{attention}.k_{norm}",
        f"{path}/self_attention_residual/norm": f"{layer}.operator_norm",
        f"{path}/self_attention_residual/output_norm": f"{layer}.post_operator_norm",
        f"{path}/feed_forward_residual/norm": f"{layer}.ffn_norm",
        f"{path}/feed_forward_residual/output_norm": f"{layer}.post_ffn_norm",
        "decoder_norm": "embedding_norm",
    }
    projections = (f"{attention}.{x}_proj" for x in "qkv")
    mixer, forward = f"{path}/short_convolution", f"{layer}.feed_forward"
    return (
        Row("embedding/embeddings", ("embed_tokens.weight",)),
        *dense(f"{path}/self_attention/query_key_value", *projections, widths=widths),
        *dense(f"{path}/self_attention/output_projection", f"{attention}.{output}"),
        *dense(f"{path}/self_attention/gate", f"{attention}.gate_proj", bias=False),
        *dense(f"{mixer}/input_projection", f"{convolution}.in_proj"),
        Row(f"{mixer}/kernel", (f"{convolution}.conv.weight",), Transposed((2, 1, 0))),
        Row(f"{mixer}/bias", (f"{convolution}.conv.bias",)),
        *dense(f"{mixer}/output_projection", f"{convolution}.out_proj"),
        *dense(f"{path}/feed_forward/inner", f"{forward}.w1", f"{forward}.w3", bias=False),
        *dense(f"{path}/feed_forward/outer", f"{forward}.w2", bias=False),
        *expert_rows(forward, ("w1", "w3"), "w2"),
        Row(f"{path}/feed_forward/selection_bias", (f"{forward}.expert_bias",)),
        *(row for x, name in norms.items() for row in rms_norm(x, name)),
        *dense("output", "lm_head", bias=False, head=True),
    )  # fmt: skip


def _intermediate_dim(config: Config, width: int) -> int:
    """The width of the feed-forward networks, which the configuration may say indirectly."""
    if not config.flag("block_auto_adjust_ff_dim", True):
        return width
    width = int(2 * width / 3)
    if config.fields.get("block_ffn_dim_multiplier", 1.0) is None:
        return width
    width = int(config.number("block_ffn_dim_multiplier", 1.0) * width)
    multiple = config.integer("block_multiple_of", 256)
    return multiple * -(-width // multiple)


def _attends(config: Config, num_layers: int) -> list[bool]:
    """Whether each block has attention: by `layer_types`, or else `full_attn_idxs`."""
    indices = config.fields.get("full_attn_idxs")
    if config.fields.get("layer_types") is not None or indices is None:
        return read_attends(config, num_layers, _CONVOLUTION, [FULL] * num_layers)
    if not isinstance(indices, list) or not all(type(x) is int for x in indices):
        config.refuse("full_attn_idxs", indices, "a list of integers")
    return [i in indices for i in range(num_layers)]


def _blocks(config: Config, num_layers: int) -> Arguments:
    """Which blocks of LFM3 have attention, and their windows."""
    known = (FULL, SLIDING, _CONVOLUTION)
    kinds = config.fields.get("layer_types")
    if kinds is None:  # convolutions, but for every second block from the third on
        kinds = [
            _CONVOLUTION if i % 2 or i == 0 else SLIDING if i % 4 == 0 else FULL
            for i in range(num_layers)
        ]
    if (
        not isinstance(kinds, list)
        or len(kinds) != num_layers
        or not all(kind in known for kind in kinds)
    ):
        config.refuse("layer_types", kinds, f"{num_layers} of {', '.join(known)}")
    missing = "sliding_window" not in config.fields
    window = _WINDOW if missing else config.integer("sliding_window", None)
    if window is None and SLIDING in kinds:
        config.refuse("sliding_window", window, f"an integer, for the {SLIDING} in layer_types")
    windows = [window if kind == SLIDING else None for kind in kinds]
    return {
        "attends": [kind != _CONVOLUTION for kind in kinds],
        "windows": windows if SLIDING in kinds else None,
    }


def text_arguments(config: Config, named: Named) -> Arguments:
    """The builder's arguments of LFM2."""
    config.rename(_OLDER)
    arguments = _shared_arguments(config, named, _DEFAULTS)
    intermediate_dim = _intermediate_dim(config, arguments["intermediate_dim"])
    attends = _attends(config, arguments["num_layers"])
    return {**arguments, "intermediate_dim": intermediate_dim, "attends": attends}


def _shared_arguments(config: Config, named: Named, defaults: Arguments) -> Arguments:
    """The arguments of LFM2, with and without experts."""
    arguments = llama.shared_arguments(config, named, defaults)
    for name in ("attention_bias", "attention_dropout"):  # which transformers does not read
        del arguments[name]
    head_dim = arguments["dim"] // arguments["num_heads"]
    if arguments.pop("head_dim") not in (None, head_dim):
        config.refuse("head_dim", config.fields["head_dim"], f"hidden_size / heads ({head_dim})")
    return {
        **arguments,
        "kernel_size": config.integer("conv_L_cache", 3, minimum=2),
        "convolution_bias": config.flag("conv_bias", False),
        "rms_norm_epsilon": config.number("norm_eps", 1e-5),
        **read_rope(config, _THETA),
    }


def _moe_arguments(config: Config, named: Named) -> Arguments:
    config.rename({"tie_embedding": "tie_word_embeddings"})
    arguments = _shared_arguments(config, named, _MOE_DEFAULTS)
    blocks = arguments["num_layers"]
    dense_blocks = config.integer("num_dense_layers", 2, minimum=0)
    return {
        **arguments,
        "attends": read_attends(config, blocks, _CONVOLUTION, [FULL] * blocks),
        "experts": models.Experts(
            Routing(
                *read_numbers(config, 32, 4, "num_experts"),
                scores="sigmoid",
                normalize=config.flag("norm_topk_prob", True),
                scale=config.number("routed_scaling_factor", 1.0),
                selection_bias=config.flag("use_expert_bias", True),
            ),
            config.integer("moe_intermediate_size", 1792),
            blocks=[i >= dense_blocks for i in range(blocks)],
        ),
    }


def _lfm3_arguments(config: Config, named: Named) -> Arguments:
    config.only(rope_scaling={})  # which would replace those of both kinds
    if config.fields.get("rope_parameters") is None:
        config = Config.of(config.file, {**config.fields, "rope_parameters": _LFM3_ROPE})
    arguments = llama.shared_arguments(config, named, _LFM3_DEFAULTS)
    base = ("rope_theta", _THETA)  # of both kinds, if a dictionary has none
    return {
        **arguments,
        **_blocks(config, arguments["num_layers"]),
        "kernel_size": config.integer("conv_L_cache", 7, minimum=2),
        "convolution_bias": config.flag("conv_bias", False),
        "rms_norm_epsilon": config.number("norm_eps", 1e-5),
        "post_norm": config.flag("use_sandwich_norm", True),
        "attention_gate": config.flag("use_attention_gate", True),
        **read_rope_by_layer_type(config, base, base),
    }


def _shared_fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    shared = llama.shared_fields(model, architecture)
    del shared["rms_norm_eps"]
    return {
        "pad_token_id": None,
        **shared,
        "norm_eps": given["rms_norm_epsilon"],
        "conv_L_cache": given["kernel_size"],
        "conv_bias": given["convolution_bias"],
    }


def _attends_of(model: models.Model) -> list[bool]:
    given = model.arguments
    return each_flag("attends", given["attends"], given["num_layers"], interval=3)


def text_fields(model: models.Model, architecture: str) -> Fields:
    """The fields of `config.json` of LFM2."""
    fields = _second_fields(model, architecture, "lfm2")
    attends = [i for i, x in enumerate(_attends_of(model)) if x]
    return {**fields, "block_auto_adjust_ff_dim": False, "full_attn_idxs": attends}


def _second_fields(model: models.Model, architecture: str, kind: str) -> Fields:
    """The fields of LFM2, with and without experts."""
    check_heads(model, kind)
    shared = _shared_fields(model, architecture)
    for name in ("attention_bias", "attention_dropout", "head_dim"):
        del shared[name]
    kinds = [FULL if x else _CONVOLUTION for x in _attends_of(model)]
    return {**shared, **rope_fields(model), "layer_types": kinds}


def _moe_fields(model: models.Model, architecture: str) -> Fields:
    saved = ("normalize", "scale", "selection_bias", "blocks")
    routing = check_experts(model, "lfm2_moe", saved, scores="sigmoid").routing
    blocks = blocks_with_experts(model)
    first = blocks.index(True) if any(blocks) else len(blocks)
    if not all(blocks[first:]):
        raise ValueError(
            f"{model.name}: the blocks with experts must be the last ones to be saved as lfm2_moe, "
            f"got {blocks}"
        )
    return {
        **_second_fields(model, architecture, "lfm2_moe"),
        "num_dense_layers": first,
        "num_experts": routing.num_experts,
        "num_experts_per_tok": routing.top_k,
        "moe_intermediate_size": expert_width(model),
        "norm_topk_prob": routing.normalize,
        "routed_scaling_factor": routing.scale,
        "use_expert_bias": routing.selection_bias,
    }


def _lfm3_fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    windows = each_window(given["windows"], given["num_layers"])
    blocks = list(zip(_attends_of(model), windows, strict=True))
    used = {window for attends, window in blocks if attends and window is not None}
    if len(used) > 1:
        raise ValueError(
            f"{model.name}: the windows of the blocks with attention must be equal to be saved as "
            f"lfm3, got {windows}"
        )
    rope = rope_fields_by_layer_type(model, bool(used), "lfm3")
    return {
        **{name: None for name, x in _LFM3_IDS.items() if x >= given["vocabulary_size"]},
        **_shared_fields(model, architecture),
        "rope_parameters": rope["rope_parameters"],
        "sliding_window": max(used, default=_WINDOW),
        "layer_types": [
            _CONVOLUTION if not attends else FULL if window is None else SLIDING
            for attends, window in blocks
        ],
        "use_sandwich_norm": given["post_norm"],
        "use_attention_gate": given["attention_gate"],
    }


def _is_third(model: models.Model) -> bool:
    """Whether a model has an option that LFM2 does not have."""
    given = model.arguments
    flags = (
        "windows", "post_norm", "attention_gate", "local_rope_theta", "attention_bias",
        "attention_dropout",
    )  # fmt: skip
    head_dim = given["dim"] / given["num_heads"]
    # Models saved before these were arguments are LFM2's.
    return any(given.get(x) for x in flags) or given.get("head_dim") not in (None, head_dim)


LFM2_MOE = Family(
    model_type="lfm2_moe",
    builder=models.lfm2,
    table=table,
    arguments=_moe_arguments,
    fields=_moe_fields,
    architectures=architectures("Lfm2Moe", classifies_texts=False),
    is_of=lambda model: experts_of(model) is not None and not _is_third(model),
    names=llama.NAMES,
)
LFM3 = Family(
    model_type="lfm3",
    builder=models.lfm2,
    table=partial(table, is_third=True),
    arguments=_lfm3_arguments,
    fields=_lfm3_fields,
    architectures=architectures("Lfm3", classifies_texts=False),
    is_of=_is_third,
    # As in the class of transformers, which renames it when it reads and writes a folder.
    names=replace(
        llama.NAMES,
        renamed={r"\.g_proj\.": ".gate_proj."},
        modules={r"\.self_attn\.gate_proj\.": ".self_attn.g_proj."},
    ),
    aliases={"rms_norm_eps": "norm_eps"},
)
LFM2 = Family(
    model_type="lfm2",
    builder=models.lfm2,
    table=table,
    arguments=text_arguments,
    fields=text_fields,
    architectures=architectures("Lfm2", classifies_texts=False),
    is_of=lambda model: not _is_third(model),
    names=llama.NAMES,
)
