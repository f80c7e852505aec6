"""Checkpoints of Phi-3, Phi-4-mini, GLM-4 and GLM-4-0414: tensors, configuration and heads.

In all of them, the gate and the other half of a feed-forward network's first layer are one tensor.
"""

from collections.abc import Mapping
from functools import partial

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders import llama
from keras_tfm.checkpoints.decoders.decoder_fields import architectures, read_pad_id
from keras_tfm.checkpoints.decoders.rope import partial_rope_fields, read_partial_rope
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import Row, dense, rms_norm

# Values of fields that are missing in `config.json`.
_DEFAULTS: Arguments = {
    "vocab_size": 32064, "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 8192, "num_key_value_heads": None, "head_dim": None,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
_TRAINED, _PAD_ID = 4096, 32000


_QKV = {"decoder_{i}/self_attention/query_key_value": "layers.{i}.self_attn.qkv_proj"}
_GATED = {"decoder_{i}/feed_forward/inner": "layers.{i}.mlp.gate_up_proj"}


def _table(model: models.Model, joined: Mapping[str, str] = {**_QKV, **_GATED}) -> tuple[Row, ...]:
    """Llama's table, in which some layers are one tensor: by the path of the layer, its name."""
    rows = (x for x in llama.table(model) if x.weight.rpartition("/")[0] not in joined)
    return (*rows, *(row for x, name in joined.items() for row in dense(x, name, bias=False)))


def _arguments(config: Config, named: Named) -> Arguments:
    arguments = llama.shared_arguments(config, named, _DEFAULTS)
    del arguments["attention_bias"]  # which transformers does not read
    head_dim = arguments["dim"] // arguments["num_heads"]
    if arguments.pop("head_dim") not in (None, head_dim):
        config.refuse("head_dim", config.fields["head_dim"], f"hidden_size / heads ({head_dim})")
    return {
        **arguments,
        "activation": config.activation("hidden_act", "silu"),
        **read_partial_rope(config, head_dim, trained=_TRAINED),
        "window": config.integer("sliding_window", None),
        "dropout": config.number("resid_pdrop", 0.0, 1),
        "pad_id": read_pad_id(config, named, _PAD_ID),
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    return {
        "pad_token_id": None,  # the default, 32000, must be in the vocabulary; a classifier's is
        **llama.shared_fields(model, architecture),
        "hidden_act": activation_name(given["activation"]),
        **_rope_fields(model),
        "sliding_window": given["window"],
        "resid_pdrop": given["dropout"],
    }


def _rope_fields(model: models.Model) -> Fields:
    """Before version 5, `transformers` computes the factors of LongRoPE, and refuses others."""
    scaling, fields = model.arguments["rope_scaling"], partial_rope_fields(model)
    if scaling is None:
        return fields
    rope, length = fields["rope_parameters"], model.arguments["max_length"]
    older = {"type": "longrope", **{x: rope[x] for x in ("short_factor", "long_factor")}}
    fields["original_max_position_embeddings"] = scaling.original_length
    del fields["rope_scaling"]
    is_known = scaling.factor == max(1.0, length / scaling.original_length)
    if is_known and scaling.attention_factor is None:
        fields["rope_scaling"] = older
    return fields


PHI3 = Family(
    model_type="phi3",
    builder=models.phi3,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures=architectures("Phi3", classifies_tokens=True),
    names=llama.NAMES,
    not_saved=("long_texts",),
)


# Values of fields that are missing in `config.json`.
_GLM_DEFAULTS: Arguments = {
    "vocab_size": 151552, "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32,
    "intermediate_size": 13696, "num_key_value_heads": 2, "head_dim": 128,
    "rms_norm_eps": 1.5625e-7, "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip
_GLM_PAD_ID, _GLM_PART = 151329, 0.5


def _glm_table(model: models.Model) -> tuple[Row, ...]:
    """The same with three tensors of queries, keys and values, and norms of outputs."""
    path, layer = "decoder_{i}", "layers.{i}"
    return (
        *_table(model, _GATED),
        *rms_norm(
            f"{path}/self_attention_residual/output_norm", f"{layer}.post_self_attn_layernorm"
        ),
        *rms_norm(f"{path}/feed_forward_residual/output_norm", f"{layer}.post_mlp_layernorm"),
    )


def _glm_arguments(config: Config, named: Named, post_norm: bool) -> Arguments:
    arguments = llama.shared_arguments(config, named, _GLM_DEFAULTS)
    head_dim = arguments["head_dim"] or arguments["dim"] // arguments["num_heads"]
    return {
        **arguments,
        "activation": config.activation("hidden_act", "silu"),
        **read_partial_rope(config, head_dim, default_part=_GLM_PART),
        "post_norm": post_norm,
        "attention_bias": config.flag("attention_bias", True),
        "pad_id": read_pad_id(config, named, _GLM_PAD_ID),
    }


def _glm_fields(model: models.Model, architecture: str) -> Fields:
    return {
        "pad_token_id": None,  # the default must be in the vocabulary; a classifier's is
        **llama.shared_fields(model, architecture),
        "hidden_act": activation_name(model.arguments["activation"]),
        **partial_rope_fields(model),
    }


def _glm_family(model_type: str, name: str, post_norm: bool) -> Family:
    return Family(
        model_type=model_type,
        builder=models.glm,
        table=_glm_table,
        arguments=partial(_glm_arguments, post_norm=post_norm),
        fields=_glm_fields,
        architectures=architectures(name, classifies_tokens=True),
        is_of=lambda model: model.arguments["post_norm"] == post_norm,
        names=llama.NAMES,
    )


GLM4 = _glm_family("glm4", "Glm4", True)
GLM = _glm_family("glm", "Glm", False)
