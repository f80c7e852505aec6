"""Encoder-decoder models of KerasHub: T5, BART, Whisper, T5Gemma and T5Gemma 2."""

from collections.abc import Iterator
from functools import partial

import keras

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments
from keras_tfm.checkpoints.keras_hub.family import HubFamily
from keras_tfm.checkpoints.keras_hub.rows import (
    QUERY_KEY_VALUE,
    Equal,
    Positions,
    attention,
    block,
    cross_attention,
    dense,
    norm,
    projections,
    rms_norm,
)
from keras_tfm.checkpoints.keras_hub.settings import Settings, refuse_encoders, text_arguments
from keras_tfm.checkpoints.rows import Row
from keras_tfm.checkpoints.transforms import Reshaped
from keras_tfm.layers import LinearScaling, gelu_tanh
from keras_tfm.layers.types import Tensor
from keras_tfm.models.decoders.causal_decoder import each_window

_INPUTS = {"source": "encoder_token_ids", "target": "decoder_token_ids"}
_family = partial(HubFamily, inputs=_INPUTS, outputs={"features": "decoder_sequence_output"})
_ENCODER, _DECODER = "transformer_encoder_layer_{i}", "transformer_decoder_layer_{i}"


def _blocks(backbone: keras.Model) -> list[keras.Layer]:
    return [*backbone.encoder_transformer_layers, *backbone.decoder_transformer_layers]


def _t5_arguments(settings: Settings) -> Arguments:
    return {
        **text_arguments(settings),
        **settings.rename(
            head_dim="key_value_dim",
            activation="activation",
            gated="use_gated_activation",
            layer_norm_epsilon="layer_norm_epsilon",
            tie_output="tie_embedding_weights",
        ),
        "pad_id": settings.pad_id_or(0),
    }


def _t5_stack(stack: str, layer: str, sublayers: tuple[str, ...], gated: bool) -> list[Row]:
    path, attention = f"{stack}_{{i}}", f"{layer}/self_attention"
    inner = ("input_projector", *["gate_projector"] * gated)
    parts = (f"{attention}/{x}_projector" for x in QUERY_KEY_VALUE)
    table = f"{layer.replace('{i}', '0')}/self_attention/embeddings"
    rows = [
        *dense(f"{path}/self_attention/query_key_value", *parts, bias=False),
        *dense(
            f"{path}/self_attention/output_projection", f"{attention}/output_projector", bias=False
        ),
        Row(f"{stack}_0/self_attention/{stack}_positions/table", (table,)),
        *dense(f"{path}/feed_forward/inner", *(f"{layer}/{x}" for x in inner), bias=False),
        *dense(f"{path}/feed_forward/outer", f"{layer}/output_projector", bias=False),
        *rms_norm(f"{stack}_norm", f"{stack}_output_layer_norm", name="weight"),
    ]
    for sublayer in sublayers:
        prefix = "" if sublayer == "feed_forward" else f"{sublayer}_"
        rows += rms_norm(
            f"{path}/{sublayer}_residual/norm", f"{layer}/{prefix}layer_norm", name="weight"
        )
    return rows


def _t5_table(model: models.Model) -> tuple[Row, ...]:
    gated = model.arguments["gated"]
    cross, layer = "decoder_{i}/cross_attention", f"{_DECODER}/cross_attention"
    return (
        Row("embedding/embeddings", ("token_embedding/embeddings",)),
        *_t5_stack("encoder", _ENCODER, ("self_attention", "feed_forward"), gated),
        *_t5_stack(
            "decoder", _DECODER, ("self_attention", "cross_attention", "feed_forward"), gated
        ),
        *(
            row
            for x in QUERY_KEY_VALUE
            for row in dense(f"{cross}/{x}", f"{layer}/{x}_projector", bias=False)
        ),
        *dense(f"{cross}/output_projection", f"{layer}/output_projector", bias=False),
        Row("output/kernel", ("token_embedding/reverse_embeddings",)),
    )


def _t5_logits(backbone: keras.Model, x: Tensor) -> Tensor:
    scale = backbone.hidden_dim**-0.5 if backbone.tie_embedding_weights else 1.0
    return backbone.token_embedding(x * scale, reverse=True)


T5 = _family(
    backbone="T5Backbone",
    builder=models.t5,
    arguments=_t5_arguments,
    table=_t5_table,
    blocks=_blocks,
    logits=_t5_logits,
)


def _bart_arguments(settings: Settings) -> Arguments:
    return {
        **text_arguments(settings),
        "attention_dropout": settings["dropout"],
        "max_length": settings["max_sequence_length"],
        "activation": "gelu",
        "output_bias": False,
        "pad_id": settings.pad_id_or(1),
    }


def _stacks(model: models.Model, biases: tuple[str, ...]) -> tuple[Row, ...]:
    """The rows of the blocks of both stacks; `biases`: the projections that have biases."""
    sizes = model.arguments["dim"], model.arguments["num_heads"]
    return (
        *block("encoder_{i}", _ENCODER, *sizes),
        *block("decoder_{i}", _DECODER, *sizes, "self_attention"),
        *cross_attention("decoder_{i}", _DECODER, *sizes, biases),
    )


def _bart_table(model: models.Model) -> tuple[Row, ...]:
    rows = [Row("embedding/embeddings", ("token_embedding/embeddings",))]
    for stack in ("encoder", "decoder"):
        positions = (f"{stack}_position_embedding/embeddings",)
        rows.append(Row(f"{stack}_positions/positions", positions, Positions(2)))
        rows += norm(f"{stack}_embedding_norm", f"{stack}_embeddings_layer_norm")
    return (*rows, *_stacks(model, QUERY_KEY_VALUE))


BART = _family(
    backbone="BartBackbone",
    builder=models.bart,
    arguments=_bart_arguments,
    table=_bart_table,
    blocks=_blocks,
)


def _whisper_arguments(settings: Settings) -> Arguments:
    length = settings["max_encoder_sequence_length"]
    if length % 2:
        settings.refuse("max_encoder_sequence_length", length, "even")
    return {
        **text_arguments(settings),
        "num_mels": settings["num_mels"],
        "attention_dropout": settings["dropout"],
        "max_length": settings["max_decoder_sequence_length"],
        "max_source_length": length // 2,
        "activation": "gelu",
    }


def _whisper_table(model: models.Model) -> tuple[Row, ...]:
    """Projections of keys have no bias, so that those of self-attention are not joined."""
    biases = ("query", "value")
    dim, heads = model.arguments["dim"], model.arguments["num_heads"]
    embeddings = "decoder_token_and_position_embedding"
    rows = [row for row in _stacks(model, biases) if "self_attention/" not in row.weight]
    attentions = {
        "encoder_{i}/self_attention": f"{_ENCODER}/self_attention_layer",
        "decoder_{i}/self_attention": f"{_DECODER}/self_attention",
    }
    for path, layer in attentions.items():
        rows += projections(path, layer, dim, heads, biases)
    return (
        *dense("convolution_0", "encoder_token_embedding_conv_layer_1"),
        *dense("convolution_1", "encoder_token_embedding_conv_layer_2"),
        Row("encoder_positions/positions", ("encoder_position_embedding/embeddings",)),
        Row("embedding/embeddings", (f"{embeddings}/token_embedding/embeddings",)),
        Row("decoder_positions/positions", (f"{embeddings}/position_embedding/embeddings",)),
        *rows,
        *norm("encoder_norm", "encoder_layer_norm"),
        *norm("decoder_norm", "decoder_layer_norm"),
    )


WHISPER = _family(
    backbone="WhisperBackbone",
    builder=models.whisper,
    arguments=_whisper_arguments,
    table=_whisper_table,
    inputs={"audio": "encoder_features", "target": "decoder_token_ids"},
    blocks=_blocks,
)


# Sizes that both stacks of T5Gemma have: the builder's name and KerasHub's.
_SIZES = {
    "dim": "hidden_dim",
    "num_layers": "num_layers",
    "num_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "intermediate_dim": "intermediate_dim",
}
_SLIDING = "sliding_attention"


def _gemma_arguments(settings: Settings) -> Arguments:
    """The builder's arguments that T5Gemma and T5Gemma 2 have in common."""
    settings.only(decoder_head_dim=settings["encoder_head_dim"])
    for name in ("initializer_range", "cross_attention_hidden_size"):
        settings[name]  # they change nothing
    activation = settings["hidden_activation"]
    return {
        **settings.rename(
            vocabulary_size="vocabulary_size",
            head_dim="encoder_head_dim",
            rms_norm_epsilon="rms_norm_eps",
            query_pre_attention_scalar="query_pre_attn_scalar",
            final_logit_soft_cap="final_logit_softcapping",
            attention_bias="attention_bias",
            dropout="dropout_rate",
            attention_dropout="attention_dropout",
            **{ours: f"encoder_{x}" for ours, x in _SIZES.items()},
            **{f"decoder_{ours}": f"decoder_{x}" for ours, x in _SIZES.items() if ours != "dim"},
        ),
        "activation": gelu_tanh if activation == "gelu_approximate" else activation,
        "pad_id": settings.pad_id_or(0),
    }


def _gemma_sizes(model: models.Model, stack: str) -> tuple[int, int, int]:
    """The width of a stack, and of its queries and keys."""
    given = model.arguments
    prefix = "decoder_" if stack == "decoder" else ""
    heads = given[f"{prefix}num_heads"] or given["num_heads"]
    groups = given[f"{prefix}num_key_value_heads"] or given["num_key_value_heads"] or heads
    dim = given.get(f"{prefix}dim") or given["dim"]
    return dim, heads * given["head_dim"], groups * given["head_dim"]


def _gemma_stack(model: models.Model, stack: str, sublayers: tuple[str, ...]) -> Iterator[Row]:
    """The rows of a stack of T5Gemma: "encoder" or "decoder".

    `sublayers`: those that have norms, besides the feed-forward network.
    """
    given, (dim, queries, keys) = model.arguments, _gemma_sizes(model, stack)
    path, layer = f"{stack}_{{i}}", f"{stack}_layer_{{i}}"
    prefix = "decoder_" if stack == "decoder" else ""
    yield from attention(
        f"{path}/self_attention", f"{layer}/self_attention", dim, given["head_dim"],
        (queries, keys, keys), bool(given["attention_bias"]),
    )  # fmt: skip
    gates = (f"{layer}/mlp/gate_proj", f"{layer}/mlp/up_proj")
    yield from dense(f"{path}/feed_forward/inner", *gates, bias=False)
    yield from dense(f"{path}/feed_forward/outer", f"{layer}/mlp/down_proj", bias=False)
    for sublayer in (*sublayers, "feed_forward"):
        name = "feedforward" if sublayer == "feed_forward" else sublayer
        for norm_name, when in (("norm", "pre"), ("output_norm", "post")):
            theirs = f"{layer}/{prefix}{when}_{name}_layernorm"
            yield from rms_norm(f"{path}/{sublayer}_residual/{norm_name}", theirs, offset=1.0)
    yield from rms_norm(f"{stack}_norm", f"{stack}_norm", offset=1.0)


def _gemma_blocks(backbone: keras.Model) -> list[keras.Layer]:
    return [*backbone.encoder_layers, *backbone.decoder_layers]


def _gemma_logits(backbone: keras.Model, x: Tensor) -> Tensor:
    logits = backbone.decoder_token_embedding(x, reverse=True)
    cap = backbone.final_logit_softcapping
    return logits if cap is None else cap * keras.ops.tanh(logits / cap)


def _t5gemma_arguments(settings: Settings) -> Arguments:
    settings["encoder_layer_types"]  # KerasHub's encoder has no windows, whatever they say
    window, kinds = settings["sliding_window"], settings["decoder_layer_types"]
    return {
        **_gemma_arguments(settings),
        **settings.rename(
            decoder_dim="decoder_hidden_dim",
            rope_theta="rope_max_wavelength",
            attention_logit_soft_cap="attn_logit_softcapping",
            tie_output="tie_word_embeddings",
        ),
        # A token of KerasHub's decoder also sees the one that is exactly `window` before it.
        "decoder_windows": [window + 1 if x == _SLIDING else None for x in kinds],
    }


def _gemma_projections(model: models.Model, path: str, layer: str, source: int) -> Iterator[Row]:
    """The rows of the decoder's separate queries, keys and values, and of the output.

    Args:
        path, layer: str, the paths of our attention and KerasHub's.
        source: int, the width of what the keys and values are projected from.
    """
    width, (dim, queries, keys) = model.arguments["head_dim"], _gemma_sizes(model, "decoder")
    sizes = {"query": (dim, queries), "key": (source, keys), "value": (source, keys)}
    for name, (inputs, outputs) in sizes.items():
        kernel = Reshaped((inputs, -1, width), (inputs, outputs))
        yield Row(f"{path}/{name}/kernel", (f"{layer}/{name}/kernel",), kernel)
        yield Row(
            f"{path}/{name}/bias", (f"{layer}/{name}/bias",), Reshaped((-1, width), (outputs,))
        )
    ours, theirs = f"{path}/output_projection", f"{layer}/attention_output"
    yield Row(f"{ours}/kernel", (f"{theirs}/kernel",), Reshaped((-1, width, dim), (-1, dim)))
    yield Row(f"{ours}/bias", (f"{theirs}/bias",))


def _t5gemma_table(model: models.Model) -> tuple[Row, ...]:
    path, layer = "decoder_{i}/cross_attention", "decoder_layer_{i}/cross_attention"
    return (
        Row("source_embedding/embeddings", ("encoder_token_embedding/embeddings",)),
        Row("target_embedding/embeddings", ("decoder_token_embedding/embeddings",)),
        Row("output/kernel", ("decoder_token_embedding/reverse_embeddings",)),
        *_gemma_stack(model, "encoder", ("self_attention",)),
        *_gemma_stack(model, "decoder", ("self_attention", "cross_attention")),
        *_gemma_projections(model, path, layer, model.arguments["dim"]),
    )


def _t5gemma_notes(model: models.Model) -> list[str]:
    """What KerasHub's T5Gemma with windows computes in another way than transformers."""
    given = model.arguments
    each = each_window(given["decoder_windows"], given["decoder_num_layers"])
    windows = [x for x in each if x is not None]
    if not windows or given["windows"] is not None:
        return []
    window = max(windows)
    return [
        f"as in KerasHub, the encoder has no windows and the decoder windows of {window} tokens; "
        f"in transformers both have windows, the decoder of {window - 1}, so that texts of "
        f"{window} tokens or more may differ"
    ]


T5GEMMA = _family(
    backbone="T5GemmaBackbone",
    builder=models.t5gemma,
    arguments=_t5gemma_arguments,
    table=_t5gemma_table,
    blocks=_gemma_blocks,
    logits=_gemma_logits,
    notes=_t5gemma_notes,
)


def _t5gemma2_arguments(settings: Settings) -> Arguments:
    refuse_encoders(settings, "T5Gemma 2", "vision_encoder")
    settings["eoi_token_index"]  # of images
    wavelength, factor = settings["rope_max_wavelength"], settings["global_rope_scaling_factor"]
    settings.only(
        decoder_hidden_dim=settings["encoder_hidden_dim"], attn_logit_softcapping=None,
        use_query_key_norm=True, tie_word_embeddings=True,
        encoder_rope_max_wavelength=(None, wavelength),
        encoder_global_rope_scaling_factor=(None, factor),
    )  # fmt: skip
    window = settings["sliding_window"]
    windows = {
        stack: [window if x == _SLIDING else None for x in settings[f"{stack}_layer_types"]]
        for stack in ("encoder", "decoder")
    }
    return {
        **_gemma_arguments(settings),
        "rope_theta": 1e6,
        "rope_scaling": None if factor == 1.0 else LinearScaling(factor),
        "local_rope_theta": wavelength,
        "windows": windows["encoder"],
        "decoder_windows": windows["decoder"],
    }


def _t5gemma2_table(model: models.Model) -> tuple[Row, ...]:
    tables = tuple(f"{x}_token_embedding/embeddings" for x in ("encoder", "decoder"))
    attentions = {"encoder": "self_attention", "decoder": "merged_attention"}
    merged = ("decoder_{i}/self_attention", "decoder_layer_{i}/merged_attention")
    return (
        Row("embedding/embeddings", tables, Equal(2)),
        *_gemma_projections(model, *merged, model.arguments["dim"]),  # before those of the stack
        *(row for x in attentions for row in _gemma_stack(model, x, ("self_attention",))),
        *(
            row
            for stack, layer in attentions.items()
            for x in ("query_norm", "key_norm")
            for row in rms_norm(
                f"{stack}_{{i}}/self_attention/{x}", f"{stack}_layer_{{i}}/{layer}/{x}", offset=1.0
            )
        ),
    )


T5GEMMA2 = _family(
    backbone="T5Gemma2Backbone",
    builder=models.t5gemma2,
    arguments=_t5gemma2_arguments,
    table=_t5gemma2_table,
    blocks=_gemma_blocks,
    logits=_gemma_logits,
)
