"""Checkpoints of LFM2 and LFM2.5: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields
from keras_tfm.checkpoints.decoders import llama
from keras_tfm.checkpoints.decoders.decoder_fields import (
    FULL,
    architectures,
    check_heads,
    read_attends,
)
from keras_tfm.checkpoints.decoders.rope import read_rope, rope_fields
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import Row, dense, rms_norm
from keras_tfm.checkpoints.transforms import Transposed
from keras_tfm.models.decoders.causal_decoder import each_flag

# Values of fields that are missing in `config.json`.
_DEFAULTS: Arguments = {
    "vocab_size": 65536, "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 12288, "num_key_value_heads": 8, "head_dim": None,
    "max_position_embeddings": 128000, "tie_word_embeddings": True,
}  # fmt: skip
_CONVOLUTION, _THETA = "conv", 1000000.0
# Names of the first folders, which transformers prefers.
_OLDER = {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}


def _table(model: models.Model) -> tuple[Row, ...]:
    layer, path = "layers.{i}", "decoder_{i}"
    given = model.arguments
    width = given["dim"] // given["num_heads"]
    groups = given["num_key_value_heads"] or given["num_heads"]
    widths = (given["dim"], groups * width, groups * width)
    attention, convolution = f"{layer}.self_attn", f"{layer}.conv"
    norms = {
        f"{path}/self_attention/query_norm": f"{attention}.q_layernorm",
        f"{path}/self_attention/key_norm": f"{attention}.k_layernorm",
        f"{path}/self_attention_residual/norm": f"{layer}.operator_norm",
        f"{path}/feed_forward_residual/norm": f"{layer}.ffn_norm",
        "decoder_norm": "embedding_norm",
    }
    projections = (f"{attention}.{x}_proj" for x in "qkv")
    mixer, forward = f"{path}/short_convolution", f"{layer}.feed_forward"
    return (
        Row("embedding/embeddings", ("embed_tokens.weight",)),
        *dense(f"{path}/self_attention/query_key_value", *projections, bias=False, widths=widths),
        *dense(
            f"{path}/self_attention/output_projection", f"{attention}.out_proj", bias=False
        ),
        *dense(f"{mixer}/input_projection", f"{convolution}.in_proj"),
        Row(f"{mixer}/kernel", (f"{convolution}.conv.weight",), Transposed((2, 1, 0))),
        Row(f"{mixer}/bias", (f"{convolution}.conv.bias",)),
        *dense(f"{mixer}/output_projection", f"{convolution}.out_proj"),
        *dense(f"{path}/feed_forward/inner", f"{forward}.w1", f"{forward}.w3", bias=False),
        *dense(f"{path}/feed_forward/outer", f"{forward}.w2", bias=False),
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


def _arguments(config: Config, named: Named) -> Arguments:
    config.rename(_OLDER)
    arguments = llama.shared_arguments(config, named, _DEFAULTS)
    for name in ("attention_bias", "attention_dropout"):  # which transformers does not read
        del arguments[name]
    head_dim = arguments["dim"] // arguments["num_heads"]
    if arguments.pop("head_dim") not in (None, head_dim):
        config.refuse("head_dim", config.fields["head_dim"], f"hidden_size / heads ({head_dim})")
    return {
        **arguments,
        "intermediate_dim": _intermediate_dim(config, arguments["intermediate_dim"]),
        "attends": _attends(config, arguments["num_layers"]),
        "kernel_size": config.integer("conv_L_cache", 3, minimum=2),
        "convolution_bias": config.flag("conv_bias", False),
        "rms_norm_epsilon": config.number("norm_eps", 1e-5),
        **read_rope(config, _THETA),
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    check_heads(model, "lfm2")
    given = model.arguments
    attends = each_flag("attends", given["attends"], given["num_layers"], interval=3)
    shared = llama.shared_fields(model, architecture)
    for name in ("attention_bias", "attention_dropout", "head_dim", "rms_norm_eps"):
        shared.pop(name, None)
    return {
        "pad_token_id": None,
        **shared,
        "norm_eps": given["rms_norm_epsilon"],
        **rope_fields(model),
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": given["kernel_size"],
        "conv_bias": given["convolution_bias"],
        "layer_types": [FULL if x else _CONVOLUTION for x in attends],
        "full_attn_idxs": [i for i, x in enumerate(attends) if x],
    }


LFM2 = Family(
    model_type="lfm2",
    builder=models.lfm2,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures=architectures(None, "Lfm2ForCausalLM", "Lfm2Model"),
    names=llama.NAMES,
    base="Lfm2Model",
)
