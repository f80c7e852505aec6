"""Checkpoints of HunYuan's dense models: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders import llama
from keras_tfm.checkpoints.decoders.decoder_fields import architectures, check_saved, read_pad_id
from keras_tfm.checkpoints.decoders.rope import for_every_version, read_rope, rope_fields
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import Row, rms_norm
from keras_tfm.layers import NTKScaling

# Values of fields that are missing in `config.json`.
_DEFAULTS = {**llama.LLAMA_DEFAULTS, "vocab_size": 290943, "rms_norm_eps": 1e-5}
_PAD_ID, _DYNAMIC, _ALPHA = 0, "dynamic", "alpha"


def _table(model: models.Model) -> tuple[Row, ...]:
    """Llama's table; the norms of queries and keys have other names."""
    norms = {"query_norm": "query_layernorm", "key_norm": "key_layernorm"}
    rows = (x for x in llama.table(model) if x.weight.split("/")[-2] not in norms)
    path, attention = "decoder_{i}/self_attention", "layers.{i}.self_attn"
    own = (rms_norm(f"{path}/{x}", f"{attention}.{name}") for x, name in norms.items())
    return (*rows, *(row for both in own for row in both))


def _rope(config: Config) -> Arguments:
    """Rotary positions. "dynamic" with `alpha` is a larger base, whatever the sequence length."""
    fields = config.fields
    name = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
    rope = fields.get(name)
    if (
        not isinstance(rope, dict)
        or rope.get("rope_type", rope.get("type")) != _DYNAMIC
        or not rope.get(_ALPHA)
    ):
        return read_rope(config)
    plain = {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}
    found = read_rope(Config.of(config.file, {**fields, name: {**plain, "rope_type": "default"}}))
    try:
        return {**found, "rope_scaling": NTKScaling(rope[_ALPHA])}
    except (TypeError, ValueError):
        config.refuse(_ALPHA, rope[_ALPHA], "a number of at least 1")


def _arguments(config: Config, named: Named) -> Arguments:
    return {
        **llama.shared_arguments(config, named, _DEFAULTS),
        "activation": config.activation("hidden_act", "silu"),
        **_rope(config),
        "query_key_norm": True,
        "rotate_first": True,
        "pad_id": read_pad_id(config, named, _PAD_ID),
    }


def _rope_fields(model: models.Model) -> Fields:
    scaling = model.arguments["rope_scaling"]
    if not isinstance(scaling, NTKScaling):
        return rope_fields(model)
    theta = model.arguments["rope_theta"]
    return for_every_version(
        {"rope_theta": theta, "rope_type": _DYNAMIC, _ALPHA: scaling.factor, "factor": 1.0}
    )


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    check_saved(
        model, "hunyuan_v1_dense", attention_bias=(True, False), causal=True,
        feed_forward_bias=False, interleaved=False, gated=True, model_type=None,
        query_beta=None, query_key_norm=True, windows=None,
    )  # fmt: skip
    return {
        **llama.shared_fields(model, architecture),
        "hidden_act": activation_name(given["activation"]),
        **_rope_fields(model),
    }


HUNYUAN = Family(
    model_type="hunyuan_v1_dense",
    builder=models.llama,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures=architectures("HunYuanDenseV1"),
    is_of=lambda model: bool(model.arguments.get("rotate_first")),
    names=llama.NAMES,
)
