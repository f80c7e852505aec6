"""Checkpoints of T5, mT5 and uMT5: tensor names, configuration and heads."""

import warnings
from collections.abc import Callable
from functools import partial

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import (
    ACTIVATIONS,
    Arguments,
    Config,
    Fields,
    activation_name,
    dropout_rate,
)
from keras_tfm.checkpoints.encoders.bert import label_fields, saved_pad_id
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, rms_norm
from keras_tfm.models.encoder_decoders.shifted_source import has_decoder

# "gated-gelu" means the tanh approximation: it is older than the name "gelu_new".
_GATES = {"gelu_new": "gelu", "gelu": "gelu_python"}
_dense = partial(dense, bias=False)


def _stack(stack: str, sublayers: tuple[str, ...], gated: bool) -> list[Row]:
    block = f"{stack}.block.{{i}}.layer"
    path = f"{stack}_{{i}}"
    attention = f"{block}.0.SelfAttention"
    feed_forward = f"{block}.{len(sublayers) - 1}.DenseReluDense"
    # A gate is a separate matrix in the checkpoint, and the first half of the kernel here.
    inner = ("wi_0", "wi_1") if gated else ("wi",)
    rows = [
        *_dense(f"{path}/self_attention/query_key_value", *(f"{attention}.{x}" for x in "qkv")),
        *_dense(f"{path}/self_attention/output_projection", f"{attention}.o"),
        Row(
            f"{path}/self_attention/{stack}_positions/table",
            (f"{attention}.relative_attention_bias.weight",),  # in T5, of the first block
        ),
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
    # Of texts, or of tokens.
    classifier = "classification_head.out_proj" if has_decoder(model) else "classifier"
    return (
        Row("embedding/embeddings", ("shared.weight",)),
        *_stack("encoder", ("self_attention", "feed_forward"), gated),
        *_stack("decoder", ("self_attention", "cross_attention", "feed_forward"), gated),
        *_cross_attention(),
        *_dense("output", "lm_head", head=True),
        *dense("pooler", "classification_head.dense", head=True),
        *dense("classifier", classifier, head=True),
        *dense("span", "qa_outputs", head=True),
    )


def _distances(config: Config, decoder: bool) -> Arguments:
    """The arguments `num_buckets` and `max_distance`."""
    # The encoder, which looks in both directions, has half of the buckets for each of them, and
    # half of those are of one distance.
    num_buckets = config.integer("relative_attention_num_buckets", 32, minimum=4)
    max_distance = config.integer("relative_attention_max_distance", 128)
    exact = num_buckets // (2 if decoder else 4)
    if max_distance <= exact:
        config.refuse(
            "relative_attention_max_distance",
            max_distance,
            f"more than {exact} with relative_attention_num_buckets={num_buckets}",
        )
    return {"num_buckets": num_buckets, "max_distance": max_distance}


def _arguments(config: Config, named: Named, own: Arguments, defaults: Fields) -> Arguments:
    config.only(is_decoder=False, pruned_heads={}, is_causal=True)
    if named.begins("decoder."):
        config.only(is_encoder_decoder=True)
    form = config.text("feed_forward_proj", defaults["feed_forward_proj"])
    gate, _, name = form.rpartition("-")
    if gate not in ("", "gated"):
        config.refuse("feed_forward_proj", form, "an activation, or gated- and an activation")
    default = "gelu_new" if form == "gated-gelu" else name
    if "dense_act_fn" not in config.fields and default not in ACTIVATIONS:
        config.refuse("feed_forward_proj", form, f"one of {list(ACTIVATIONS)}, or gated- and one")
    size = config.integer("vocab_size", defaults["vocab_size"])
    pad_id = config.integer("pad_token_id", 0, minimum=0, maximum=size - 1)
    start = config.integer("decoder_start_token_id", pad_id, minimum=0, maximum=size - 1)
    tied = config.flag("tie_word_embeddings", True)
    untied = "lm_head.weight" in named.own and not named.same("lm_head.weight", "shared.weight")
    return {
        "vocabulary_size": size,
        "dim": config.integer("d_model", 512),
        "num_layers": config.integer("num_layers", defaults["num_layers"], maximum=1000),
        "num_decoder_layers": config.integer("num_decoder_layers", None, maximum=1000),
        "num_heads": config.integer("num_heads", defaults["num_heads"]),
        "head_dim": config.integer("d_kv", 64),
        "intermediate_dim": config.integer("d_ff", defaults["d_ff"]),
        "dropout": config.number("dropout_rate", 0.1, 1),
        "activation": config.activation("dense_act_fn", default),
        "gated": config.flag("is_gated_act", gate == "gated"),
        "layer_norm_epsilon": config.number("layer_norm_epsilon", 1e-6),
        **_distances(config, named.begins("decoder.")),
        # Since version 5 of transformers `tie_word_embeddings` does not tell whether the output is
        # tied: it is not if the files have another tensor. A second field gives the output's scale.
        "tie_output": not untied and (tied or "lm_head.weight" not in named.own),
        "scale_output": config.fields["model_type"] != "mt5"
        and config.flag(  # null means false, as in transformers
            "scale_decoder_outputs", tied and "scale_decoder_outputs" not in config.fields
        ),
        "pad_id": pad_id,
        "start_id": start,
        "end_id": config.ids("eos_token_id", 1, size),
        **own,
    }


def _architectures(name: str) -> dict[str, Architecture]:
    return {
        f"{name}ForConditionalGeneration": Architecture(
            kind="language_model", prefixes=("decoder.",), prefix=""
        ),
        f"{name}Model": heads.backbone("decoder.", prefix=""),
        f"{name}EncoderModel": Architecture(
            lambda model, config: models.encoder(model), "encoder", prefix=""
        ),
        f"{name}ForSequenceClassification": heads.sequence_classifier(
            "first", "decoder.", "classification_head.", dropout=_classifier_dropout, decoder=True
        ),
        f"{name}ForTokenClassification": heads.token_classifier(
            "classifier.", dropout=_classifier_dropout, decoder=False
        ),
        f"{name}ForQuestionAnswering": heads.question_answering(
            "decoder.", "qa_outputs.", decoder=True, prefix=""
        ),
    }


def _classifier_dropout(config: Config) -> float:
    return config.number("classifier_dropout", 0.0, 1)


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    activation = activation_name(given["activation"])
    logits = architecture.endswith("ForConditionalGeneration")
    decoder = not architecture.endswith("EncoderModel")
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
        "eos_token_id": given.get("end_id", 1),  # models saved before it was an argument
        "decoder_start_token_id": given["pad_id"] if start is None else start,
    }
    if decoder:
        fields["num_decoder_layers"] = given["num_layers"] if layers is None else layers
    if logits:
        fields["scale_decoder_outputs"] = tied if scaled is None else scaled
    if architecture.endswith("Classification"):
        fields["classifier_dropout"] = dropout_rate(given, model.head.arguments["dropout"])
        fields |= label_fields(model)
    return fields


def _family(
    model_type: str, is_of: Callable[[models.Model], bool], own: Arguments, **defaults: object
) -> Family:
    """A type of checkpoint.

    Args:
        model_type: str, in `config.json`.
        is_of: see `Family`.
        own: the arguments that tell it from the other types.
        defaults: of the fields of `config.json` in which the types differ.
    """
    return Family(
        model_type=model_type,
        builder=models.t5,
        table=_table,
        arguments=partial(_arguments, own=own, defaults=defaults),
        fields=_fields,
        architectures=_architectures({"t5": "T5", "mt5": "MT5", "umt5": "UMT5"}[model_type]),
        is_of=is_of,
        names=Names(
            prefix="transformer.",  # of the classifiers
            aliases={
                "encoder.embed_tokens.weight": "shared.weight",
                "decoder.embed_tokens.weight": "shared.weight",
                "lm_head.weight": "shared.weight",
            },
            # An unused tensor of the first released files.
            ignored=(
                r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
            ),
        ),
        aliases={
            "hidden_size": "d_model",
            "num_attention_heads": "num_heads",
            "num_hidden_layers": "num_layers",
            "head_dim": "d_kv",
        },
    )


_MULTILINGUAL: Fields = {
    "vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
}  # fmt: skip
T5 = _family(
    "t5", lambda model: True, {},
    vocab_size=32128, d_ff=2048, num_layers=6, num_heads=8, feed_forward_proj="relu",
)  # fmt: skip
MT5 = _family(
    "mt5", lambda model: model.arguments.get("multilingual", False), {"multilingual": True},
    **_MULTILINGUAL,
)  # fmt: skip
UMT5 = _family(
    "umt5", lambda model: not model.arguments.get("shared_positions", True),
    {"shared_positions": False}, **_MULTILINGUAL,
)  # fmt: skip
