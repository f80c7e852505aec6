"""Decoder-only language models of KerasHub."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments
from keras_tfm.checkpoints.keras_hub.family import HubFamily
from keras_tfm.checkpoints.keras_hub.rows import (
    QUERY_KEY_VALUE,
    DepthwiseKernel,
    JoinedHeads,
    attention,
    block,
    dense,
    norm,
    rms_norm,
)
from keras_tfm.checkpoints.keras_hub.settings import (
    HubPart,
    Settings,
    refuse_encoders,
    text_arguments,
)
from keras_tfm.checkpoints.rows import Row
from keras_tfm.checkpoints.transforms import ByHead, Joined, Reshaped
from keras_tfm.keras_internals import sublayers
from keras_tfm.layers import (
    LinearScaling,
    Llama3Scaling,
    LongRoPEScaling,
    ProportionalScaling,
    gelu_tanh,
)
from keras_tfm.models.decoders.causal_decoder import each_window
from keras_tfm.models.decoders.gemma4 import shared_sources


def _attention(
    model: models.Model, path: str, layer: str, heads_first: bool = False
) -> tuple[Row, ...]:
    """The rows of a self-attention whose keys and values may have fewer heads than queries."""
    given = model.arguments
    heads, groups = given["num_heads"], given["num_key_value_heads"] or given["num_heads"]
    width = given.get("head_dim") or given["dim"] // heads
    return attention(
        path,
        layer,
        given["dim"],
        width,
        (heads * width, groups * width, groups * width),
        bias=bool(given.get("attention_bias")),
        output_bias=False,
        heads_first=heads_first,
    )


def _llama_table(
    model: models.Model,
    attention: str = "self_attention",
    norms: tuple[str, str] = ("self_attention_layernorm", "feedforward_layernorm"),
) -> tuple[Row, ...]:
    """The table of Llama, Mistral, Qwen and Phi-3.

    Args:
        attention: str, name of the attention in a block.
        norms: names of the norms before attention and before the feed-forward network.
    """
    path, layer = "decoder_{i}", "transformer_layer_{i}"
    gates = (f"{layer}/feedforward_gate_dense", f"{layer}/feedforward_intermediate_dense")
    return (
        Row("embedding/embeddings", ("token_embedding/embeddings",)),
        *_attention(model, f"{path}/self_attention", f"{layer}/{attention}"),
        *rms_norm(f"{path}/self_attention_residual/norm", f"{layer}/{norms[0]}"),
        *(
            row
            for x in ("query", "key")
            for row in rms_norm(
                f"{path}/self_attention/{x}_norm", f"{layer}/{attention}/{x}_dense_layernorm"
            )
        ),
        *dense(f"{path}/feed_forward/inner", *gates, bias=False),
        *dense(f"{path}/feed_forward/outer", f"{layer}/feedforward_output_dense", bias=False),
        *rms_norm(f"{path}/feed_forward_residual/norm", f"{layer}/{norms[1]}"),
        *rms_norm("decoder_norm", "sequence_output_layernorm"),
        Row("output/kernel", ("token_embedding/reverse_embeddings",)),
    )


def _decoder_arguments(settings: Settings) -> Arguments:
    """The builder's arguments that Llama and its relatives have in common."""
    return {
        **settings.rename(
            vocabulary_size="vocabulary_size",
            dim="hidden_dim",
            num_layers="num_layers",
            num_heads="num_query_heads",
            intermediate_dim="intermediate_dim",
            num_key_value_heads="num_key_value_heads",
            rms_norm_epsilon="layer_norm_epsilon",
            rope_theta="rope_max_wavelength",
            tie_output="tie_word_embeddings",
        ),
        "attention_dropout": settings["dropout"],
    }


def _llama_scaling(settings: Settings) -> Any:
    """The scaling of rotary positions of Llama 3; None if it is off."""
    settings.only(rope_position_scaling_factor=1.0)  # KerasHub's layer ignores it
    names = ("frequency_adjustment_factor", "pretraining_sequence_length")
    factor, length = (settings[f"rope_{name}"] for name in names)
    low, high = settings["rope_low_freq_factor"], settings["rope_high_freq_factor"]
    return None if factor is None else Llama3Scaling(factor, length, low_turns=low, high_turns=high)


def _llama_arguments(settings: Settings) -> Arguments:
    return {**_decoder_arguments(settings), "rope_scaling": _llama_scaling(settings)}


LLAMA = HubFamily("LlamaBackbone", models.llama, _llama_arguments, _llama_table)
LLAMA3 = replace(LLAMA, backbone="Llama3Backbone")


def _linear_scaling(settings: Settings) -> LinearScaling | None:
    factor = settings["rope_scaling_factor"]
    return None if factor == 1.0 else LinearScaling(factor)


def _mistral_arguments(settings: Settings) -> Arguments:
    settings.fields.setdefault("tie_word_embeddings", False)
    return {
        **_decoder_arguments(settings),
        "rope_scaling": _linear_scaling(settings),
        "windows": settings["sliding_window"],
        "head_dim": settings["head_dim"],
    }


MISTRAL = replace(LLAMA, backbone="MistralBackbone", arguments=_mistral_arguments)


def _qwen_arguments(settings: Settings) -> Arguments:
    window = settings["sliding_window_size"]
    return {
        **_decoder_arguments(settings),
        "rope_scaling": _linear_scaling(settings),
        "attention_bias": ["query", "key", "value"],
        "windows": window if settings["use_sliding_window_attention"] else None,
    }


QWEN = replace(LLAMA, backbone="QwenBackbone", arguments=_qwen_arguments)


def _qwen3_arguments(settings: Settings) -> Arguments:
    return {
        **_decoder_arguments(settings),
        "rope_scaling": _linear_scaling(settings),
        "head_dim": settings["head_dim"],
        "windows": settings["sliding_window_size"],
        "query_key_norm": True,
    }


def _set_qwen3_epsilon(model: models.Model) -> None:
    """KerasHub's norms of queries and keys have their layer's default, whatever the others have."""
    for layer in model.blocks:
        layer.self_attention.query_norm.epsilon = 1e-5
        layer.self_attention.key_norm.epsilon = 1e-5


QWEN3 = replace(
    LLAMA, backbone="Qwen3Backbone", arguments=_qwen3_arguments, adjust=_set_qwen3_epsilon
)


def _gemma_rows(offset: float) -> tuple[Row, ...]:
    """The rows that all Gemmas have, besides attention; `offset`: 1 if norms' scale is 1 + w."""
    path, layer = "decoder_{i}", "decoder_block_{i}"
    norms = {
        f"{path}/self_attention_residual/norm": f"{layer}/pre_attention_norm",
        f"{path}/self_attention_residual/output_norm": f"{layer}/post_attention_norm",
        f"{path}/self_attention/query_norm": f"{layer}/attention/query_norm",
        f"{path}/self_attention/key_norm": f"{layer}/attention/key_norm",
        f"{path}/feed_forward_residual/norm": f"{layer}/pre_ffw_norm",
        f"{path}/feed_forward_residual/output_norm": f"{layer}/post_ffw_norm",
        "decoder_norm": "final_normalization",
    }
    gates = (f"{layer}/ffw_gating", f"{layer}/ffw_gating_2")
    return (
        Row("embedding/embeddings", ("token_embedding/embeddings",)),
        *dense(f"{path}/feed_forward/inner", *gates, bias=False),
        *dense(f"{path}/feed_forward/outer", f"{layer}/ffw_linear", bias=False),
        *(row for weight, name in norms.items() for row in rms_norm(weight, name, offset)),
    )


def _gemma_table(model: models.Model) -> tuple[Row, ...]:
    path, layer = "decoder_{i}/self_attention", "decoder_block_{i}/attention"
    return (*_gemma_rows(offset=1.0), *_attention(model, path, layer, heads_first=True))


# The builder's names of sizes that all Gemmas have, and KerasHub's.
_GEMMA_SIZES = {
    "vocabulary_size": "vocabulary_size",
    "dim": "hidden_dim",
    "num_layers": "num_layers",
    "num_heads": "num_query_heads",
    "intermediate_dim": "intermediate_dim",
    "num_key_value_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "rms_norm_epsilon": "layer_norm_epsilon",
    "attention_dropout": "dropout",
    "final_logit_soft_cap": "final_logit_soft_cap",
}


def _shared_gemma_arguments(settings: Settings) -> Arguments:
    settings.only(layer_norm_epsilon=1e-6)  # KerasHub's blocks have that one, whatever it says
    settings["query_head_dim_normalize"]  # KerasHub's blocks take it to be true
    settings.only(use_post_ffw_norm=settings["use_post_attention_norm"])
    return settings.rename(
        post_norm="use_post_attention_norm",
        attention_logit_soft_cap="attention_logit_soft_cap",
        **_GEMMA_SIZES,
    )


def _windows(settings: Settings, period: int) -> list[int | None] | None:
    """The window of each block: all but every `period`-th have one."""
    size, layers = settings["sliding_window_size"], settings["num_layers"]
    if not settings["use_sliding_window_attention"]:
        return None
    return [None if i % period == period - 1 else size for i in range(layers)]


def _gemma_arguments(settings: Settings) -> Arguments:
    arguments = _shared_gemma_arguments(settings)
    # KerasHub's number is that of both projections together.
    arguments["intermediate_dim"] //= 2
    return {**arguments, "windows": _windows(settings, 2)}


def _gemma3_arguments(settings: Settings) -> Arguments:
    refuse_encoders(settings, "Gemma 3", "vision_encoder")
    settings["image_size"]  # of the vision
    settings.only(
        use_bidirectional_attention=False, is_embedding_model=False, local_rope_scaling_factor=1.0
    )
    factor = settings["global_rope_scaling_factor"]
    return {
        **_shared_gemma_arguments(settings),
        "query_key_norm": settings["use_query_key_norm"],
        "windows": _windows(settings, 6),
        "rope_theta": 1e6,
        "local_rope_theta": 1e4,
        "rope_scaling": None if factor == 1.0 else LinearScaling(factor),
    }


GEMMA = HubFamily("GemmaBackbone", models.gemma, _gemma_arguments, _gemma_table)
GEMMA3 = replace(GEMMA, backbone="Gemma3Backbone", arguments=_gemma3_arguments)


def _gpt2_arguments(settings: Settings) -> Arguments:
    return {**text_arguments(settings), "max_length": settings["max_sequence_length"]}


def _gpt2_table(model: models.Model) -> tuple[Row, ...]:
    sizes = model.arguments["dim"], model.arguments["num_heads"]
    return (
        Row("embedding/embeddings", ("token_embedding/embeddings",)),
        Row("positions/positions", ("position_embedding/embeddings",)),
        *block("decoder_{i}", "transformer_layer_{i}", *sizes, "self_attention"),
        *norm("decoder_norm", "layer_norm"),
    )


GPT2 = HubFamily("GPT2Backbone", models.gpt, _gpt2_arguments, _gpt2_table)


def _gpt_neox_arguments(settings: Settings) -> Arguments:
    dim, heads = settings["hidden_dim"], settings["num_heads"]
    return {
        **_gpt2_arguments(settings),
        "activation": gelu_tanh,
        "layer_norm_epsilon": settings["layer_norm_epsilon"],
        "attention_dropout": settings["dropout"],
        "rope_theta": settings["rotary_max_wavelength"],
        "rotary_dim": int(dim // heads * settings["rotary_percentage"]),
        "tie_output": True,
    }


def _gpt_neox_table(model: models.Model) -> tuple[Row, ...]:
    dim, heads = model.arguments["dim"], model.arguments["num_heads"]
    path, layer = "decoder_{i}", "transformer_layer_{i}"
    joined, theirs = f"{path}/self_attention/query_key_value", f"{layer}/self_attention"
    kernel, bias = Reshaped((dim, heads, -1), (dim, -1)), Reshaped((heads, -1), (-1,))
    return (
        Row("embedding/embeddings", ("token_embedding/embeddings",)),
        Row(f"{joined}/kernel", (f"{theirs}/query_key_value/kernel",), ByHead(heads, each=kernel)),
        Row(f"{joined}/bias", (f"{theirs}/query_key_value/bias",), ByHead(heads, each=bias)),
        *dense(f"{path}/self_attention/output_projection", f"{theirs}/attention_output"),
        *dense(f"{path}/feed_forward/inner", f"{layer}/feedforward_intermediate_dense"),
        *dense(f"{path}/feed_forward/outer", f"{layer}/feedforward_output_dense"),
        *norm(f"{path}/self_attention_residual/norm", f"{layer}/self_attention_layer_norm"),
        *norm(f"{path}/feed_forward_residual/norm", f"{layer}/feedforward_layer_norm"),
        *norm("decoder_norm", "layer_norm"),
    )


GPT_NEOX = HubFamily("GPTNeoXBackbone", models.gpt_neox, _gpt_neox_arguments, _gpt_neox_table)


def _phi3_arguments(settings: Settings) -> Arguments:
    settings.fields.setdefault("tie_word_embeddings", False)
    length, trained = settings["max_sequence_length"], settings["pretraining_sequence_length"]
    short, long = (settings[f"rope_scaling_{x}_factor"] for x in ("short", "long"))
    settings.only(rope_scaling_type=(None, "su"))
    scaling = None
    if settings["rope_scaling_type"] == "su":
        ratio = max(1.0, length / trained)
        factor = math.sqrt(1 + math.log(ratio, trained))
        scaling = LongRoPEScaling(
            ratio, trained, tuple(short), tuple(long), attention_factor=factor
        )
    return {**_decoder_arguments(settings), "rope_scaling": scaling, "max_length": length}


def _phi3_longest(model: models.Model) -> int:
    """The number of tokens that the chosen factors of LongRoPE are for."""
    given = model.arguments
    limited = given["rope_scaling"] is not None and not given["long_texts"]
    trained = given["rope_scaling"].original_length if limited else given["max_length"]
    return int(min(trained, given["max_length"]))


def _phi3_notes(model: models.Model) -> list[str]:
    """Which factors of LongRoPE the model has, if it is for texts of either kind."""
    given, scaling = model.arguments, model.arguments["rope_scaling"]
    if scaling is None or given["max_length"] <= scaling.original_length:
        return []
    length = scaling.original_length
    if given["long_texts"]:
        return [
            "it has LongRoPE's long factors for every text, and KerasHub only for texts of more "
            f"than {length} tokens"
        ]
    return [
        f"it has LongRoPE's short factors, for texts of at most {length} tokens: "
        "from_keras_hub(..., long_texts=True) takes the long ones, as KerasHub does for longer "
        "texts"
    ]


@contextmanager
def _with_long_factors(model: models.Model, backbone: HubPart) -> Iterator[None]:
    """The backbone with LongRoPE's long factors at every length, if the model has them."""
    name = "pretraining_sequence_length"
    layers = [x for x in sublayers(backbone) if hasattr(x, "inverese_freq_long_factor")]
    before = [getattr(x, name) for x in layers]
    for layer in layers if model.arguments["long_texts"] else ():
        setattr(layer, name, 0)
    try:
        yield
    finally:
        for layer, length in zip(layers, before, strict=True):
            setattr(layer, name, length)


PHI3 = HubFamily(
    "Phi3Backbone",
    models.phi3,
    _phi3_arguments,
    partial(
        _llama_table,
        attention="attention",
        norms=("pre_attention_layernorm", "post_attention_layernorm"),
    ),
    longest=_phi3_longest,
    comparable=_with_long_factors,
    notes=_phi3_notes,
)


def _smollm3_arguments(settings: Settings) -> Arguments:
    settings.only(attention_bias=False, partial_rotary_factor=1.0)
    settings["layer_types"]  # KerasHub's attention is full, whatever they say
    layers, rotary = settings["num_layers"], settings["rope_layer_enabled_list"]
    return {
        **settings.rename(
            vocabulary_size="vocabulary_size",
            dim="hidden_dim",
            num_layers="num_layers",
            num_heads="num_attention_heads",
            num_key_value_heads="num_key_value_heads",
            intermediate_dim="intermediate_dim",
            rms_norm_epsilon="layer_norm_epsilon",
            attention_dropout="attention_dropout",
            feed_forward_bias="mlp_bias",
            rope_theta="rope_theta",
            max_length="max_position_embeddings",
        ),
        "rotary": [bool(x) for x in (*rotary, *[True] * layers)][:layers],
    }


def _smollm3_table(model: models.Model) -> tuple[Row, ...]:
    given = model.arguments
    width, dim, bias = given["dim"] // given["num_heads"], given["dim"], given["feed_forward_bias"]
    groups = given["num_key_value_heads"] * width
    path, layer = "decoder_{i}", "transformer_layer_{i}"
    parts = tuple(f"{layer}/self_attn/{x}_proj/kernel" for x in "qkv")
    return (
        Row("embedding/embeddings", ("token_embedding/embeddings",)),
        Row(f"{path}/self_attention/query_key_value/kernel", parts, Joined((dim, groups, groups))),
        Row(
            f"{path}/self_attention/output_projection/kernel",
            (f"{layer}/self_attn/o_proj/kernel",),
            Reshaped((-1, width, dim), (-1, dim)),
        ),
        *dense(
            f"{path}/feed_forward/inner",
            f"{layer}/mlp/gate_proj",
            f"{layer}/mlp/up_proj",
            bias=bias,
        ),
        *dense(f"{path}/feed_forward/outer", f"{layer}/mlp/down_proj", bias=bias),
        *rms_norm(f"{path}/self_attention_residual/norm", f"{layer}/input_layernorm"),
        *rms_norm(f"{path}/feed_forward_residual/norm", f"{layer}/post_attention_layernorm"),
        *rms_norm("decoder_norm", "sequence_output_layernorm"),
    )


SMOLLM3 = HubFamily(
    "SmolLM3Backbone",
    models.smollm3,
    _smollm3_arguments,
    _smollm3_table,
    ignored=(r".*/rotary_emb/inv_freq",),
)


FULL = "full_attention"


def _gemma4_arguments(settings: Settings) -> Arguments:
    refuse_encoders(settings, "Gemma 4", "vision_encoder", "audio_encoder")
    for name in (
        "image_size", "num_audio_tokens_per_clip", "use_vision_bidirectional_attention",  # of both
        "query_head_dim_normalize",  # KerasHub's queries have a norm, whatever it says
        "pooling_intermediate_dim", "embedding_dim",  # of is_embedding_model
        "num_experts", "expert_intermediate_dim", "num_experts_per_token",  # of enable_moe_block
        "sliding_window_pattern",  # `layer_types` tells the blocks
    ):  # fmt: skip
        settings[name]
    size = settings["vocabulary_size"]
    settings.only(
        use_bidirectional_attention=False, is_embedding_model=False, enable_moe_block=False,
        use_sliding_window_attention=True, attention_logit_soft_cap=None,
        local_rope_scaling_factor=1.0, vocab_size_per_layer_input=(None, size),
    )  # fmt: skip
    window, shared = settings["sliding_window_size"], settings["num_kv_shared_layers"]
    groups, width = settings["num_global_key_value_heads"], settings["global_head_dim"]
    wide = settings["use_double_wide_mlp"] and shared > 0
    return {
        **settings.rename(**_GEMMA_SIZES),
        "global_num_key_value_heads": groups,
        "global_head_dim": settings["head_dim"] if width is None else width,
        "tied_values": groups is not None,
        "num_shared_layers": shared,
        "shared_intermediate_dim": 2 * settings["intermediate_dim"] if wide else None,
        "layer_input_dim": settings["hidden_size_per_layer_input"] or None,
        "windows": [None if x == FULL else window for x in settings["layer_types"]],
        "rope_theta": settings["global_rope_wavelength"] or 1e6,
        "local_rope_theta": settings["local_rope_wavelength"] or 1e4,
        "rope_scaling": _proportional_scaling(settings),
    }


def _proportional_scaling(settings: Settings) -> LinearScaling | ProportionalScaling | None:
    """The scaling of the rotary positions of Gemma 4's blocks without a window."""
    factor, part = (
        settings[f"global_rope_{x}"] for x in ("scaling_factor", "partial_rotary_factor")
    )
    width = settings["global_head_dim"] or settings["head_dim"]
    if not 2 <= int(part * width) <= width:  # KerasHub rotates at least one pair
        settings.refuse(
            "global_rope_partial_rotary_factor",
            part,
            f"from {2 / width:g} to 1 with {width} wide heads",
        )
    if part < 1.0:
        return ProportionalScaling(factor, part)
    return None if factor == 1.0 else LinearScaling(factor)


def _gemma4_table(model: models.Model) -> tuple[Row, ...]:
    layer, inputs = "decoder_block_{i}", "layer_input_{i}"
    projections = {
        f"{inputs}/gate": f"{layer}/per_layer_input_gate",
        f"{inputs}/output_projection": f"{layer}/per_layer_up_proj",
        "layer_inputs/projection": "per_layer_model_projection",
    }
    return (
        *_gemma_rows(offset=0.0),
        *(row for rows in _gemma4_attentions(model) for row in rows),
        Row("layer_embedding/embeddings", ("per_layer_token_embedding/embeddings",)),
        *_without_bias(projections),
        *rms_norm("layer_inputs/norm", "per_layer_projection_norm"),
        *rms_norm(f"{inputs}/norm", f"{layer}/post_per_layer_input_norm"),
        Row(f"{inputs}/scale", (f"{layer}/layer_scalar",), Reshaped((), (1,))),
    )


def _without_bias(layers: Mapping[str, str]) -> Iterator[Row]:
    """The rows of dense layers without bias: our path to KerasHub's."""
    return (row for weight, layer in layers.items() for row in dense(weight, layer, bias=False))


def _gemma4_attentions(model: models.Model) -> Iterator[tuple[Row, ...]]:
    """The rows of the attention of each block, whose projections are as wide as its heads."""
    given = model.arguments
    windows = each_window(given["windows"], given["num_layers"])
    shared = shared_sources(windows, given["num_shared_layers"])
    for i, window in enumerate(windows):
        groups, width = given["num_key_value_heads"], given["head_dim"]
        if window is None:
            groups = given["global_num_key_value_heads"] or groups
            width = given["global_head_dim"]
        widths = [given["num_heads"] * width, groups * width, groups * width]
        if i in shared:
            widths = widths[:1]
        elif given["tied_values"] and window is None:
            widths = widths[:2]
        yield attention(
            f"decoder_{i}/self_attention", f"decoder_block_{i}/attention", given["dim"], width,
            tuple(widths), bias=False, heads_first=True,
        )  # fmt: skip


GEMMA4 = HubFamily("Gemma4Backbone", models.gemma4, _gemma4_arguments, _gemma4_table)


def _qwen3_5_arguments(settings: Settings) -> Arguments:
    refuse_encoders(settings, "Qwen3.5", "vision_encoder")
    settings["mrope_section"]  # of images: texts have one position
    width, window = settings["head_dim"], settings["sliding_window_size"]
    return {
        **_decoder_arguments(settings),
        **settings.rename(
            delta_heads="linear_num_value_heads",
            delta_key_heads="linear_num_key_heads",
            delta_head_dim="linear_key_head_dim",
            delta_value_dim="linear_value_head_dim",
            kernel_size="linear_conv_kernel_dim",
        ),
        "head_dim": width,
        "rotary_dim": int(width * settings["partial_rotary_factor"]),
        "rope_scaling": _linear_scaling(settings),
        "attends": [x == FULL for x in settings["layer_types"]],
        # KerasHub's attention has a window, and the original does not.
        **({"max_length": window} if window else {}),
    }


def _qwen3_5_table(model: models.Model) -> tuple[Row, ...]:
    given = model.arguments
    heads, width = given["num_heads"], given["head_dim"]
    groups = given["num_key_value_heads"] or heads
    path, layer = "decoder_{i}", "transformer_layer_{i}"
    ours, theirs = f"{path}/self_attention", f"{layer}/self_attention"
    mixer, linear = f"{path}/gated_delta_net", f"{layer}/linear_attn"
    joined = JoinedHeads(((heads, 2 * width), (groups, width), (groups, width)))  # with gates
    norms = {
        f"{path}/self_attention_residual/norm": f"{layer}/input_layernorm",
        f"{path}/feed_forward_residual/norm": f"{layer}/post_attention_layernorm",
        f"{ours}/query_norm": f"{theirs}/query_norm",
        f"{ours}/key_norm": f"{theirs}/key_norm",
        "decoder_norm": "sequence_output_layernorm",
    }
    projections = {
        f"{mixer}/query_key_value": f"{linear}/in_proj_qkv",
        f"{mixer}/gate": f"{linear}/in_proj_z",
        f"{mixer}/beta": f"{linear}/in_proj_b",
        f"{mixer}/decay": f"{linear}/in_proj_a",
        f"{mixer}/output_projection": f"{linear}/out_proj",
        f"{path}/feed_forward/outer": f"{layer}/feedforward_output_dense",
    }
    gates = (f"{layer}/feedforward_gate_dense", f"{layer}/feedforward_intermediate_dense")
    parts = tuple(f"{theirs}/{x}/kernel" for x in QUERY_KEY_VALUE)
    output = Reshaped((-1, width, given["dim"]), (-1, given["dim"]))
    return (
        Row("embedding/embeddings", ("token_embedding/embeddings",)),
        Row(f"{ours}/query_key_value/kernel", parts, joined),
        Row(f"{ours}/output_projection/kernel", (f"{theirs}/attention_output/kernel",), output),
        *dense(f"{path}/feed_forward/inner", *gates, bias=False),
        *_without_bias(projections),
        *(row for weight, name in norms.items() for row in rms_norm(weight, name, offset=1.0)),
        *rms_norm(f"{mixer}/norm", f"{linear}/norm"),
        Row(f"{mixer}/kernel", (f"{linear}/conv1d_kernel",), DepthwiseKernel()),
        Row(f"{mixer}/log_rate", (f"{linear}/A_log",)),
        Row(f"{mixer}/bias", (f"{linear}/dt_bias",)),
        Row("output/kernel", ("token_embedding/reverse_embeddings",)),
    )


QWEN3_5 = HubFamily("Qwen3_5Backbone", models.qwen3_5, _qwen3_5_arguments, _qwen3_5_table)
