"""Checkpoints of Phi-3 and Phi-4-mini: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders import llama
from keras_tfm.checkpoints.decoders.decoder_fields import architectures, read_pad_id
from keras_tfm.checkpoints.decoders.rope import partial_rope_fields, read_partial_rope
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import Row, dense

# Values of fields that are missing in `config.json`.
_DEFAULTS: Arguments = {
    "vocab_size": 32064, "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 8192, "num_key_value_heads": None, "head_dim": None,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
_TRAINED, _PAD_ID = 4096, 32000


def _table(model: models.Model) -> tuple[Row, ...]:
    """Llama's table; queries, keys and values are one tensor, and so are gate and input."""
    joined = {
        "decoder_{i}/self_attention/query_key_value": "layers.{i}.self_attn.qkv_proj",
        "decoder_{i}/feed_forward/inner": "layers.{i}.mlp.gate_up_proj",
    }
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
    architectures=architectures("Phi3", "Phi3ForCausalLM", "Phi3Model"),
    names=llama.NAMES,
    base="Phi3Model",
    not_saved=("long_texts",),
)
