"""T5's checkpoints: names, configuration, heads."""

from typing import Any

import keras

from keras_tfm import models
from keras_tfm.checkpoints.config import ACTIVATIONS, Config, activation_name
from keras_tfm.checkpoints.mapping import Family, Named, Row
from keras_tfm.layers import (
    RelativePositionBias,
    TokenEmbedding,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
)

# "gated-gelu" has meant the approximation since before there was a name for it.
_GATES = {"gelu_new": "gelu", "gelu": "gelu_python"}


def _attention(weight: str, tensor: str, *fused: str) -> list[Row]:
    """One projection for each of `fused`, or one for them all, and the output's."""
    rows = [Row(f"{weight}/output_projection/kernel", (f"{tensor}.o.weight",), transposed=True)]
    if fused:
        names = tuple(f"{tensor}.{x}.weight" for x in fused)
        return [*rows, Row(f"{weight}/query_key_value/kernel", names, transposed=True)]
    return rows + [
        Row(f"{weight}/{name}/kernel", (f"{tensor}.{name[0]}.weight",), transposed=True)
        for name in ("query", "key", "value")
    ]


def _stack(stack: str, sublayers: tuple[str, ...]) -> list[Row]:
    block = f"{stack}.block.{{i}}.layer"
    own = f"{stack}_{{i}}"
    feed_forward = f"{block}.{len(sublayers) - 1}.DenseReluDense"
    table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return [
        *_attention(f"{own}/self_attention", f"{block}.0.SelfAttention", "q", "k", "v"),
        Row(f"{stack}_0/self_attention/{stack}_positions/table", (table,)),
        *(
            Row(f"{own}/{name}_residual/norm/scale", (f"{block}.{i}.layer_norm.weight",))
            for i, name in enumerate(sublayers)
        ),
        Row(f"{own}/feed_forward/outer/kernel", (f"{feed_forward}.wo.weight",), transposed=True),
        Row(f"{stack}_norm/scale", (f"{stack}.final_layer_norm.weight",)),
    ]


def _inner(*names: str) -> list[Row]:
    """Of both stacks; a gate is a matrix of its own, and the first half of the kernel here."""
    return [
        Row(
            f"{stack}_{{i}}/feed_forward/inner/kernel",
            tuple(f"{stack}.block.{{i}}.layer.{number}.DenseReluDense.{x}.weight" for x in names),
            transposed=True,
        )
        for stack, number in (("encoder", 1), ("decoder", 2))
    ]


TABLE = (
    Row("embedding/embeddings", ("shared.weight",)),
    *_stack("encoder", ("self_attention", "feed_forward")),
    *_stack("decoder", ("self_attention", "cross_attention", "feed_forward")),
    *_attention("decoder_{i}/cross_attention", "decoder.block.{i}.layer.1.EncDecAttention"),
    Row("output/kernel", ("lm_head.weight",), transposed=True, head=True),
)


def _arguments(config: Config, named: Named) -> dict[str, Any]:
    config.only(is_decoder=False, pad_token_id=0, pruned_heads={})
    form = str(config.text("feed_forward_proj", "relu"))
    gate, _, name = form.rpartition("-")
    if gate not in ("", "gated"):
        config.refuse("feed_forward_proj", form, "an activation, or gated- and an activation")
    default = "gelu_new" if form == "gated-gelu" else name
    if "dense_act_fn" not in config.fields and default not in ACTIVATIONS:
        config.refuse("feed_forward_proj", form, f"one of {list(ACTIVATIONS)}, or gated- and one")
    tied = config.flag("tie_word_embeddings", True)
    own = "lm_head.weight" in named.own and not named.same("lm_head.weight", "shared.weight")
    return {
        "vocabulary_size": config.integer("vocab_size", 32128),
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
        # Since version 5 of transformers the field says nothing about the output, which is its own
        # where it is another tensor, and a second field what it used to say of the scale.
        "tie_output": tied and not own,
        "scale_output": config.flag("scale_decoder_outputs", tied),
    }


def _encoder(model: keras.Model) -> keras.Model:
    """From the source to the context that the decoder reads."""
    output = model.get_layer("encoder_dropout").output
    return models.Model(model.input["source"], output, name=model.name)


ARCHITECTURES = {
    "T5ForConditionalGeneration": (lambda model, config: model, ("decoder.",)),
    "T5Model": (lambda model, config: models.backbone(model), ("decoder.",)),
    "T5EncoderModel": (lambda model, config: _encoder(model), ()),
}


def _describe(model: keras.Model) -> tuple[str, dict[str, Any]] | None:
    layers = {layer.name: layer for layer in model.layers}
    blocks = [x for x in layers.values() if isinstance(x, TransformerEncoderBlock)]
    decoders = [x for x in layers.values() if isinstance(x, TransformerDecoderBlock)]
    embedding = layers.get("embedding")
    bias = blocks[0].self_attention.position if blocks else None
    if not isinstance(embedding, TokenEmbedding) or not isinstance(bias, RelativePositionBias):
        return None
    block = blocks[0]
    activation = activation_name(block.activation)
    made_by = model.output._keras_history.operation.name  # not public, and no other record
    names = {"embedding": "T5ForConditionalGeneration", "output": "T5ForConditionalGeneration"}
    architecture = names.get(made_by, "T5Model" if decoders else "T5EncoderModel")
    tied = architecture != "T5ForConditionalGeneration" or made_by == "embedding"
    return architecture, {
        "vocab_size": embedding.vocabulary_size,
        "d_model": embedding.dim,
        "d_kv": block.head_dim or embedding.dim // block.num_heads,
        "d_ff": block.intermediate_dim,
        "num_layers": len(blocks),
        **({"num_decoder_layers": len(decoders)} if decoders else {}),
        "num_heads": block.num_heads,
        "relative_attention_num_buckets": bias.num_buckets,
        "relative_attention_max_distance": bias.max_distance,
        "dropout_rate": block.dropout,
        "layer_norm_epsilon": block.layer_norm_epsilon,
        "feed_forward_proj": f"gated-{_GATES.get(activation, activation)}"
        if block.gated
        else activation,
        "dense_act_fn": activation,
        "is_gated_act": block.gated,
        "tie_word_embeddings": tied,
        **({"scale_decoder_outputs": "output_scale" in layers} if made_by in names else {}),
        "is_encoder_decoder": bool(decoders),
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }


def _table(model: keras.Model) -> tuple[Row, ...]:
    gated = any(getattr(layer, "gated", False) for layer in model.layers)
    return (*TABLE, *_inner(*(("wi_0", "wi_1") if gated else ("wi",))))


T5 = Family(
    model_type="t5",
    builder=models.t5,
    table=_table,
    arguments=_arguments,
    architectures=ARCHITECTURES,
    describe=_describe,
    aliases={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
    },
    # Which the first released files have and no model reads.
    ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
)
