"""T5 checkpoints: tensor names, configuration and heads."""

import warnings
from functools import partial

from keras_tfm import models
from keras_tfm.checkpoints.config import ACTIVATIONS, Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.encoders.bert import saved_pad_id
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, rms_norm

# "gated-gelu" means the tanh approximation: it is older than the name "gelu_new".
_GATES = {"gelu_new": "gelu", "gelu": "gelu_python"}
_dense = partial(dense, bias=False)


def _stack(stack: str, sublayers: tuple[str, ...], gated: bool) -> list[Row]:
    block = f"{stack}.block.{{i}}.layer"
    path = f"{stack}_{{i}}"
    attention = f"{block}.0.SelfAttention"
    feed_forward = f"{block}.{len(sublayers) - 1}.DenseReluDense"
    table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    # A gate is a separate matrix in the checkpoint, and the first half of the kernel here.
    inner = ("wi_0", "wi_1") if gated else ("wi",)
    rows = [
        *_dense(f"{path}/self_attention/query_key_value", *(f"{attention}.{x}" for x in "qkv")),
        *_dense(f"{path}/self_attention/output_projection", f"{attention}.o"),
        Row(f"{stack}_0/self_attention/{stack}_positions/table", (table,)),
        *_dense(f"{path}/feed_forward/inner", *(f"{feed_forward}.{x}" for x in inner)),
        *_dense(f"{path}/feed_forward/outer", f"{feed_forward}.wo"),
        *rms_norm(f"{stack}_norm", f"{stack}.final_layer_norm"),
    ]
    for i, name in enumerate(sublayers):
        rows += rms_norm(f"{path}/{name}_residual/norm", f"{block}.{i}.layer_norm")
    return rows


def _cross_attention() -> list[Row]:
    path, tensor = "decoder_{i}/cross_attention", "decoder.block.{i}.layer.1.EncDecAttention"
    names = {"query": "q", "key": "k", "value": "v", "output_projection": "o"}
    return [row for name, x in names.items() for row in _dense(f"{path}/{name}", f"{tensor}.{x}")]


def _table(model: models.Model) -> tuple[Row, ...]:
    gated = model.arguments["gated"]
    return (
        Row("embedding/embeddings", ("shared.weight",)),
        *_stack("encoder", ("self_attention", "feed_forward"), gated),
        *_stack("decoder", ("self_attention", "cross_attention", "feed_forward"), gated),
        *_cross_attention(),
        *_dense("output", "lm_head", head=True),
    )


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(is_decoder=False, pruned_heads={}, is_causal=True)
    if named.begins("decoder."):
        config.only(is_encoder_decoder=True)
    form = config.text("feed_forward_proj", "relu")
    gate, _, name = form.rpartition("-")
    if gate not in ("", "gated"):
        config.refuse("feed_forward_proj", form, "an activation, or gated- and an activation")
    default = "gelu_new" if form == "gated-gelu" else name
    if "dense_act_fn" not in config.fields and default not in ACTIVATIONS:
        config.refuse("feed_forward_proj", form, f"one of {list(ACTIVATIONS)}, or gated- and one")
    size = config.integer("vocab_size", 32128)
    pad_id = config.integer("pad_token_id", 0, minimum=0, maximum=size - 1)
    start = config.integer("decoder_start_token_id", pad_id, minimum=0, maximum=size - 1)
    tied = config.flag("tie_word_embeddings", True)
    untied = "lm_head.weight" in named.own and not named.same("lm_head.weight", "shared.weight")
    return {
        "vocabulary_size": size,
        "dim": config.integer("d_model", 512),
        "num_layers": config.integer("num_layers", 6, maximum=1000),
        "num_decoder_layers": config.integer("num_decoder_layers", None, maximum=1000),
        "num_heads": config.integer("num_heads", 8),
        "head_dim": config.integer("d_kv", 64),
        "intermediate_dim": config.integer("d_ff", 2048),
        "dropout": config.number("dropout_rate", 0.1, 1),
        "activation": config.activation("dense_act_fn", default),
        "gated": config.flag("is_gated_act", gate == "gated"),
        "layer_norm_epsilon": config.number("layer_norm_epsilon", 1e-6),
        "num_buckets": config.integer("relative_attention_num_buckets", 32),
        "max_distance": config.integer("relative_attention_max_distance", 128),
        # Since version 5 of transformers `tie_word_embeddings` does not tell whether the output is
        # tied: it is not if the files have another tensor. A second field gives the output's scale.
        "tie_output": not untied and (tied or "lm_head.weight" not in named.own),
        "scale_output": config.flag(  # null means false, as in transformers
            "scale_decoder_outputs", tied and "scale_decoder_outputs" not in config.fields
        ),
        "pad_id": pad_id,
        "start_id": start,
    }


ARCHITECTURES = {
    "T5ForConditionalGeneration": Architecture(
        lambda model, config: model, "language_model", prefixes=("decoder.",)
    ),
    "T5Model": Architecture(lambda model, config: models.backbone(model), prefixes=("decoder.",)),
    "T5EncoderModel": Architecture(lambda model, config: models.encoder(model), "encoder"),
}


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    activation = activation_name(given["activation"])
    logits, decoder = architecture == "T5ForConditionalGeneration", architecture != "T5EncoderModel"
    layers, tied, scaled = given["num_decoder_layers"], given["tie_output"], given["scale_output"]
    start = given["start_id"]
    if logits and scaled not in (None, tied):
        warnings.warn(
            f"{model.name}: transformers before version 5 scales the output only if it is tied, "
            f"so it will read another model than this one (scale_output={scaled})",
            stacklevel=2,
        )
    fields = {
        "vocab_size": given["vocabulary_size"],
        "d_model": given["dim"],
        "d_kv": given["head_dim"] or given["dim"] // given["num_heads"],
        "d_ff": given["intermediate_dim"],
        "num_layers": given["num_layers"],
        "num_heads": given["num_heads"],
        "relative_attention_num_buckets": given["num_buckets"],
        "relative_attention_max_distance": given["max_distance"],
        "dropout_rate": given["dropout"],
        "layer_norm_epsilon": given["layer_norm_epsilon"],
        "feed_forward_proj": f"gated-{_GATES.get(activation, activation)}"
        if given["gated"]
        else activation,
        "dense_act_fn": activation,
        "is_gated_act": given["gated"],
        "tie_word_embeddings": tied or not logits,
        "is_encoder_decoder": decoder,
        "pad_token_id": saved_pad_id(model),
        "eos_token_id": 1,
        "decoder_start_token_id": given["pad_id"] if start is None else start,
    }
    if decoder:
        fields["num_decoder_layers"] = given["num_layers"] if layers is None else layers
    if logits:
        fields["scale_decoder_outputs"] = tied if scaled is None else scaled
    return fields


T5 = Family(
    model_type="t5",
    builder=models.t5,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures=ARCHITECTURES,
    names=Names(
        aliases={
            "encoder.embed_tokens.weight": "shared.weight",
            "decoder.embed_tokens.weight": "shared.weight",
            "lm_head.weight": "shared.weight",
        },
        # An unused tensor of the first released files.
        ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    ),
    aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    },
)
