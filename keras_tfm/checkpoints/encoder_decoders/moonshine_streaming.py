"""Moonshine v2 (streaming) checkpoints: tensor names and configuration."""

from typing import Any

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders.decoder_fields import is_tied
from keras_tfm.checkpoints.decoders.rope import partial_rope_fields, read_partial_rope
from keras_tfm.checkpoints.encoder_decoders.moonshine import check_extractor, save_preprocessor
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, convolution, dense
from keras_tfm.checkpoints.transforms import Offset, ValueFirst
from keras_tfm.models.encoder_decoders.moonshine_streaming import SAMPLE_RATE

# The window (16, 0) of transformers sees no feature after its own, as (16, 1) here.
_WINDOWS = [[16, 4], [16, 4], [16, 0], [16, 0], [16, 4], [16, 4]]
_CROSS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output_projection": "o_proj"}
_INNER = ("decoder_{i}/feed_forward/inner", "decoder.layers.{i}.mlp.fc1")


def _encoder_norm(path: str, tensor: str) -> Row:
    return Row(f"{path}/gamma", (f"{tensor}.gamma",), Offset(1.0))


def _decoder_norm(path: str, tensor: str) -> Row:
    return Row(f"{path}/gamma", (f"{tensor}.weight",))


def _table(model: models.Model) -> tuple[Row, ...]:
    given = model.arguments
    groups = given["num_key_value_heads"] or given["num_heads"]
    size = given["head_dim"] or given["dim"] // given["num_heads"]
    widths = (given["num_heads"] * size, groups * size, groups * size)
    own, bias = given["encoder_attention_bias"], given["attention_bias"]
    encoder, decoder = "encoder.layers.{i}", "decoder.layers.{i}"
    projected = (given["decoder_dim"] or given["dim"]) != given["dim"]
    return (
        Row("frames/compression", ("encoder.embedder.comp.log_k",)),
        *dense("frames/projection", "encoder.embedder.linear", bias=False),
        *convolution("frames/convolution_1", "encoder.embedder.conv1"),
        *convolution("frames/convolution_2", "encoder.embedder.conv2"),
        *dense(
            "encoder_{i}/self_attention/query_key_value",
            *(f"{encoder}.self_attn.{x}_proj" for x in "qkv"),
            bias=own,
            widths=widths,
        ),
        *dense(
            "encoder_{i}/self_attention/output_projection", f"{encoder}.self_attn.o_proj", bias=own
        ),
        _encoder_norm("encoder_{i}/self_attention_residual/norm", f"{encoder}.input_layernorm"),
        *dense("encoder_{i}/feed_forward/inner", f"{encoder}.mlp.fc1"),
        *dense("encoder_{i}/feed_forward/outer", f"{encoder}.mlp.fc2"),
        _encoder_norm(
            "encoder_{i}/feed_forward_residual/norm", f"{encoder}.post_attention_layernorm"
        ),
        _encoder_norm("encoder_norm", "encoder.final_norm"),
        Row("memory_positions/positions", ("decoder.pos_emb.weight",)),
        *(dense("memory_projection", "decoder.proj", bias=False) if projected else ()),
        Row("embedding/embeddings", ("decoder.embed_tokens.weight",)),
        *dense(
            "decoder_{i}/self_attention/query_key_value",
            *(f"{decoder}.self_attn.{x}_proj" for x in "qkv"),
            bias=bias,
        ),
        *dense(
            "decoder_{i}/self_attention/output_projection",
            f"{decoder}.self_attn.o_proj",
            bias=False,
        ),
        *(
            row
            for name, x in _CROSS.items()
            for row in dense(
                f"decoder_{{i}}/cross_attention/{name}",
                f"{decoder}.encoder_attn.{x}",
                bias=bias and name != "output_projection",
            )
        ),
        _decoder_norm("decoder_{i}/self_attention_residual/norm", f"{decoder}.input_layernorm"),
        _decoder_norm(
            "decoder_{i}/cross_attention_residual/norm", f"{decoder}.post_attention_layernorm"
        ),
        _decoder_norm("decoder_{i}/feed_forward_residual/norm", f"{decoder}.final_layernorm"),
        Row(f"{_INNER[0]}/kernel", (f"{_INNER[1]}.weight",), ValueFirst()),
        Row(f"{_INNER[0]}/bias", (f"{_INNER[1]}.bias",), ValueFirst()),
        *dense("decoder_{i}/feed_forward/outer", f"{decoder}.mlp.fc2"),
        _decoder_norm("decoder_norm", "decoder.norm"),
        *(() if given["tied"] else dense("logits", "proj_out", bias=False, head=True)),
    )


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(is_causal=True, is_encoder_decoder=True)
    part = config.part("encoder_config")
    check_extractor(config)
    part.only(sample_rate=SAMPLE_RATE)
    dim, heads = part.integer("hidden_size", 320), part.integer("num_attention_heads", 8)
    size = part.integer("head_dim", None) or _head_width(part, dim, heads)
    groups = part.integer("num_key_value_heads", 8)
    if heads % groups:
        part.refuse("num_key_value_heads", groups, f"a divisor of num_attention_heads ({heads})")
    layers = part.integer("num_hidden_layers", 6, maximum=1000)
    width, own = config.integer("hidden_size", 320), config.integer("num_attention_heads", 8)
    own_size = config.integer("head_dim", None) or _head_width(config, width, own)
    if config.integer("num_key_value_heads", own) != own:
        expected = f"num_attention_heads ({own})"  # transformers shapes queries by it
        config.refuse("num_key_value_heads", config.fields.get("num_key_value_heads"), expected)
    has_rope = any(config.fields.get(x) is not None for x in ("rope_parameters", "rope_scaling"))
    rope = read_partial_rope(config, own_size, default_part=1.0 if has_rope else 0.8)
    frame = part.number("frame_ms", 5.0)
    return {
        "vocabulary_size": config.integer("vocab_size", 32768),
        "dim": dim,
        "num_layers": layers,
        "num_heads": heads,
        "intermediate_dim": part.integer("intermediate_size", 1280),
        "windows": _windows(part, layers),
        "decoder_dim": width,
        "num_decoder_layers": config.integer("num_hidden_layers", 6, maximum=1000),
        "num_decoder_heads": own,
        "decoder_intermediate_dim": config.integer("intermediate_size", 1280),
        "num_key_value_heads": groups,
        "head_dim": size,
        "decoder_head_dim": own_size,
        "activation": part.activation("hidden_act", "gelu"),
        "decoder_activation": config.activation("hidden_act", "silu"),
        "frame_length": max(1, round(SAMPLE_RATE * frame / 1000)),
        **rope,
        "rotary_dim": rope["rotary_dim"] or own_size,
        "encoder_attention_bias": part.flag("attention_bias", False),
        "attention_bias": config.flag("attention_bias", False),
        "attention_dropout": config.number("attention_dropout", 0.0, 1),
        "max_features": config.integer("max_position_embeddings", 4096),
        "max_length": config.integer("max_position_embeddings", 4096),
        "tied": is_tied(config, named, False, "decoder.embed_tokens.weight", "proj_out.weight"),
        "pad_id": config.fields.get("pad_token_id", 0),
        "start_id": config.integer(
            "decoder_start_token_id", config.fields.get("bos_token_id", 1), minimum=0
        ),
        "end_id": config.fields.get("eos_token_id", 2),
    }


def _head_width(config: Config, dim: int, heads: int) -> int:
    if dim % heads:
        config.refuse("num_attention_heads", heads, f"a divisor of hidden_size ({dim})")
    return dim // heads


def _windows(config: Config, layers: int) -> list[tuple[int, int]]:
    """The windows as those of attention, which count the feature itself on both sides."""
    found: Any = config.fields.get("sliding_windows", _WINDOWS)
    expected = f"a list of {layers} pairs of integers, the first at least 1"
    if not isinstance(found, list) or len(found) < layers:
        config.refuse("sliding_windows", found, expected)
    for pair in found:
        is_pair = isinstance(pair, list) and len(pair) == 2 and all(type(x) is int for x in pair)
        if not is_pair or pair[0] < 1 or pair[1] < 0:
            config.refuse("sliding_windows", found, expected)
    return [(left, max(right, 1)) for left, right in found[:layers]]


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    layers, heads, dim = given["num_layers"], given["num_heads"], given["dim"]
    width, own = given["decoder_dim"] or dim, given["num_decoder_heads"] or heads
    size = given["decoder_head_dim"] or width // own
    return {
        "encoder_config": {
            "model_type": "moonshine_streaming_encoder",
            "hidden_size": dim,
            "intermediate_size": given["intermediate_dim"],
            "hidden_act": activation_name(given["activation"]),
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": given["num_key_value_heads"] or heads,
            "head_dim": given["head_dim"] or dim // heads,
            "max_position_embeddings": given["max_features"],
            "attention_dropout": given["attention_dropout"],
            "attention_bias": given["encoder_attention_bias"],
            "sample_rate": SAMPLE_RATE,
            "frame_ms": 1000 * given["frame_length"] / SAMPLE_RATE,
            "sliding_windows": [
                [left, right if right > 1 else 0] for left, right in given["windows"]
            ],
        },
        "vocab_size": given["vocabulary_size"],
        "hidden_size": width,
        "intermediate_size": given["decoder_intermediate_dim"] or given["intermediate_dim"],
        "num_hidden_layers": given["num_decoder_layers"] or layers,
        "num_attention_heads": own,
        "num_key_value_heads": own,
        "head_dim": size,
        "hidden_act": activation_name(given["decoder_activation"]),
        **partial_rope_fields(model, max(2, 8 * size // 20 * 2), size),
        "attention_bias": given["attention_bias"],
        "attention_dropout": given["attention_dropout"],
        "max_position_embeddings": given["max_features"],
        "is_encoder_decoder": True,
        "tie_word_embeddings": given["tied"],
        "pad_token_id": given["pad_id"],
        "bos_token_id": given["start_id"],
        "eos_token_id": given["end_id"],
        "decoder_start_token_id": given["start_id"],
    }


MOONSHINE_STREAMING = Family(
    model_type="moonshine_streaming",
    builder=models.moonshine_streaming,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures={
        "MoonshineStreamingForConditionalGeneration": Architecture(kind="language_model"),
        "MoonshineStreamingModel": heads.backbone(),
    },
    names=Names(prefix="model.", aliases={"proj_out.weight": "decoder.embed_tokens.weight"}),
    preprocessor=save_preprocessor,
)
