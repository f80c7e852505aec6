"""Checkpoints of OLMo 2: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders.decoder_fields import architectures, check_heads, read_pad_id
from keras_tfm.checkpoints.decoders.llama import NAMES, shared_arguments, shared_fields
from keras_tfm.checkpoints.decoders.llama import table as llama_table
from keras_tfm.checkpoints.decoders.rope import read_rope, rope_fields
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import Row, rms_norm
from keras_tfm.checkpoints.transforms import Reshaped

# Values of fields that are missing in `config.json`.
_DEFAULTS: Arguments = {
    "vocab_size": 50304, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 11008, "num_key_value_heads": None, "head_dim": None,
    "max_position_embeddings": 2048, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
}  # fmt: skip


def _table(model: models.Model) -> tuple[Row, ...]:
    """Llama's without its norms, and the norms of all heads and of the sublayers' outputs."""
    given, path, layer = model.arguments, "decoder_{i}", "layers.{i}"
    heads, groups = given["num_heads"], given["num_key_value_heads"] or given["num_heads"]
    width = given["dim"] // heads
    norms = {
        f"{path}/self_attention_residual/norm": f"{layer}.post_attention_layernorm",
        f"{path}/feed_forward_residual/norm": f"{layer}.post_feedforward_layernorm",
    }
    return (
        *(row for row in llama_table(model) if "norm/" not in row.weight),
        *(row for weight, tensor in norms.items() for row in rms_norm(weight, tensor)),
        *(
            Row(
                f"{path}/self_attention/{name}/scale",
                (f"{layer}.self_attn.{name[0]}_norm.weight",),
                Reshaped((count * width,), (count, width)),
            )
            for name, count in (("query_norm", heads), ("key_norm", groups))
        ),
        *rms_norm("decoder_norm", "norm"),
    )


def _arguments(config: Config, named: Named) -> Arguments:
    arguments = shared_arguments(config, named, _DEFAULTS)
    dim, heads, head_dim = (arguments[x] for x in ("dim", "num_heads", "head_dim"))
    del arguments["head_dim"]
    if head_dim not in (None, dim // heads):
        config.refuse("head_dim", head_dim, f"hidden_size / num_attention_heads, {dim // heads}")
    return {
        **arguments,
        "activation": config.activation("hidden_act", "silu"),
        **read_rope(config),
        "pad_id": read_pad_id(config, named, default=1),
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    check_heads(model, "olmo2")
    fields = {
        **shared_fields(model, architecture),
        "hidden_act": activation_name(model.arguments["activation"]),
        **rope_fields(model),
    }
    del fields["head_dim"]
    return fields


OLMO2 = Family(
    model_type="olmo2",
    builder=models.olmo2,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures=architectures("Olmo2", "Olmo2ForCausalLM", "Olmo2Model"),
    names=NAMES,
    base="Olmo2Model",
)
