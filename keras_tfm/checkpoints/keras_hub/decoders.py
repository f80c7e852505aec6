"""Decoder-only language models of KerasHub."""

from typing import Any

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments
from keras_tfm.checkpoints.keras_hub.family import HubFamily
from keras_tfm.checkpoints.keras_hub.rows import attention, dense, rms_norm
from keras_tfm.checkpoints.keras_hub.settings import Settings
from keras_tfm.checkpoints.rows import Row
from keras_tfm.layers import Llama3Scaling


def _llama_table(model: models.Model) -> tuple[Row, ...]:
    """The table of Llama, Mistral and Qwen."""
    given = model.arguments
    path, layer = "decoder_{i}", "transformer_layer_{i}"
    heads, groups = given["num_heads"], given["num_key_value_heads"] or given["num_heads"]
    width = given.get("head_dim") or given["dim"] // heads
    return (
        Row("embedding/embeddings", ("token_embedding/embeddings",)),
        *attention(
            f"{path}/self_attention",
            f"{layer}/self_attention",
            given["dim"],
            width,
            (heads * width, groups * width, groups * width),
            bias=bool(given["attention_bias"]),
            output_bias=False,
        ),
        *rms_norm(f"{path}/self_attention_residual/norm", f"{layer}/self_attention_layernorm"),
        *dense(
            f"{path}/feed_forward/inner",
            f"{layer}/feedforward_gate_dense",
            f"{layer}/feedforward_intermediate_dense",
            bias=False,
        ),
        *dense(f"{path}/feed_forward/outer", f"{layer}/feedforward_output_dense", bias=False),
        *rms_norm(f"{path}/feed_forward_residual/norm", f"{layer}/feedforward_layernorm"),
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
    """The scaling of rotary positions of Llama 3, or none."""
    settings.only(rope_position_scaling_factor=1.0)  # KerasHub's layer ignores it
    names = ("frequency_adjustment_factor", "pretraining_sequence_length")
    factor, length = (settings[f"rope_{name}"] for name in names)
    low, high = settings["rope_low_freq_factor"], settings["rope_high_freq_factor"]
    return None if factor is None else Llama3Scaling(factor, length, low_turns=low, high_turns=high)


def _llama_arguments(settings: Settings) -> Arguments:
    return {**_decoder_arguments(settings), "rope_scaling": _llama_scaling(settings)}


def _llama(backbone: str) -> HubFamily:
    return HubFamily(
        backbone=backbone,
        builder=models.llama,
        arguments=_llama_arguments,
        table=_llama_table,
    )


LLAMA = _llama("LlamaBackbone")
LLAMA3 = _llama("Llama3Backbone")
