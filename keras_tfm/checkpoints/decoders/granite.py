"""Checkpoints of Granite: tensor names, configuration and heads."""

from dataclasses import replace

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders import llama
from keras_tfm.checkpoints.decoders.decoder_fields import architectures, check_saved
from keras_tfm.checkpoints.decoders.experts import (
    STACKED,
    check_experts,
    expert_width,
    experts_of,
    read_numbers,
    stacked_rows,
)
from keras_tfm.checkpoints.decoders.rope import read_rope, rope_fields
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named
from keras_tfm.layers import Routing

FACTORS = (
    "embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling",
)  # fmt: skip


# The module of experts in a block.
EXPERTS = "layers.{i}.block_sparse_moe"


def _arguments(config: Config, named: Named) -> Arguments:
    bias = config.flag("mlp_bias", False)
    return {**_shared_arguments(config, named), "feed_forward_bias": bias}


def _moe_arguments(config: Config, named: Named) -> Arguments:
    experts = models.Experts(Routing(*read_numbers(config, 8, 2)))
    return {**_shared_arguments(config, named), "experts": experts}


def _shared_arguments(config: Config, named: Named) -> Arguments:
    return {
        **llama.shared_arguments(config, named, llama.LLAMA_DEFAULTS),
        "activation": config.activation("hidden_act", "silu"),
        **read_rope(config),
        **{name: config.number(name, 1.0) for name in FACTORS},
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    bias = model.arguments["feed_forward_bias"]
    return {**_shared_fields(model, architecture), "mlp_bias": bias}


def _moe_fields(model: models.Model, architecture: str) -> Fields:
    check_saved(model, "granitemoe", feed_forward_bias=False)
    experts = check_experts(model, "granitemoe")
    return {
        **_shared_fields(model, architecture),
        "intermediate_size": expert_width(model),
        "num_local_experts": experts.routing.num_experts,
        "num_experts_per_tok": experts.routing.top_k,
    }


def _shared_fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    return {
        **llama.shared_fields(model, architecture),
        "hidden_act": activation_name(given["activation"]),
        **rope_fields(model),
        **{name: given[name] for name in FACTORS},
    }


GRANITE_MOE = Family(
    model_type="granitemoe",
    builder=models.granite,
    table=lambda model: (*llama.table(model), *stacked_rows(EXPERTS)),
    arguments=_moe_arguments,
    fields=_moe_fields,
    architectures=architectures("GraniteMoe", classifies_texts=False),
    is_of=lambda model: experts_of(model) is not None,
    names=replace(llama.NAMES, stacked=STACKED),
)
GRANITE = Family(
    model_type="granite",
    builder=models.granite,
    table=llama.table,
    arguments=_arguments,
    fields=_fields,
    architectures=architectures("Granite", classifies_texts=False),
    names=llama.NAMES,
)
