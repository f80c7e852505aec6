"""Checkpoints of BART, mBART, Pegasus, Marian and M2M-100: tensors, configuration and heads."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name, dropout_rate
from keras_tfm.checkpoints.encoders.bert import label_fields
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, norm
from keras_tfm.checkpoints.transforms import Reshaped
from keras_tfm.layers.positions.sinusoids import angular_frequencies, exact_sinusoids

# The ids that tell `generate` of transformers how a text starts and ends, by builder's argument.
_IDS = {
    "start_id": "decoder_start_token_id",
    "end_id": "eos_token_id",
    "forced_first_id": "forced_bos_token_id",
    "forced_last_id": "forced_eos_token_id",
}


# Version 5 of transformers added the last one.
ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "encoder_attention_heads",
    "num_hidden_layers": "encoder_layers",
}


def stack(name: str) -> list[Row]:
    """The rows of the encoder or the decoder, which DETR has, too, but for positions and norms."""
    block, path = f"{name}.layers.{{i}}", f"{name}_{{i}}"
    attention = f"{block}.self_attn"
    joined = tuple(f"{attention}.{x}_proj" for x in "qkv")
    return [
        Row(f"{name}_positions/positions", (f"{name}.embed_positions.weight",)),
        *norm(f"{name}_embedding_norm", f"{name}.layernorm_embedding"),
        *dense(f"{path}/self_attention/query_key_value", *joined),
        *dense(f"{path}/self_attention/output_projection", f"{attention}.out_proj"),
        *norm(f"{path}/self_attention_residual/norm", f"{block}.self_attn_layer_norm"),
        *dense(f"{path}/feed_forward/inner", f"{block}.fc1"),
        *dense(f"{path}/feed_forward/outer", f"{block}.fc2"),
        *norm(f"{path}/feed_forward_residual/norm", f"{block}.final_layer_norm"),
        *norm(f"{name}_norm", f"{name}.layer_norm"),
    ]


def cross_attention() -> list[Row]:
    """The rows of the decoder's attention to the encoder, which DETR has, too."""
    path, tensor = "decoder_{i}/cross_attention", "decoder.layers.{i}.encoder_attn"
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output_projection": "out_proj"}
    rows = [row for name, x in names.items() for row in dense(f"{path}/{name}", f"{tensor}.{x}")]
    return [*rows, *norm(f"{path}_residual/norm", f"{tensor}_layer_norm")]


_BIAS = Row("output_bias/bias", ("final_logits_bias",), Reshaped((1, -1), (-1,)), head=True)
TABLE = (
    Row("embedding/embeddings", ("shared.weight",)),
    Row("source_embedding/embeddings", ("encoder.embed_tokens.weight",)),
    Row("target_embedding/embeddings", ("decoder.embed_tokens.weight",)),
    *stack("encoder"),
    *stack("decoder"),
    *cross_attention(),
    _BIAS,
    *dense("pooler", "classification_head.dense", head=True),
    *dense("classifier", "classification_head.out_proj", head=True),
    *dense("span", "qa_outputs", head=True),
)


def _sinusoids(model: models.Model) -> dict[str, np.ndarray]:
    """The position tables, which are stored although they are constant: sines, then cosines."""
    dim, length = model.arguments["dim"], model.arguments["max_length"]
    pairs = exact_sinusoids(np.arange(length), angular_frequencies(dim, 10000.0))
    table = np.concatenate([pairs[..., 0], pairs[..., 1]], axis=-1)[:, :dim].astype("float32")
    return {f"{stack}.embed_positions.weight": table for stack in ("encoder", "decoder")}


def _ids(config: Config, defaults: Arguments, sizes: tuple[int, int]) -> Arguments:
    """The padding id, and the ids of `_IDS`: those of `generation_config.json`, if it exists."""
    pad_id = config.integer("pad_token_id", defaults["pad_id"], 0, min(sizes) - 1)
    result: Arguments = {"pad_id": pad_id}
    generation = config.generation_fields
    for argument, name in _IDS.items():
        value = config.fields.get(name, defaults[argument])
        if generation is not None and (name in generation or argument.startswith("forced")):
            value = generation.get(name)
        each = value if isinstance(value, list) and argument != "start_id" else [value]
        if value is not None and not all(
            isinstance(x, int) and not isinstance(x, bool) and 0 <= x < sizes[1] for x in each
        ):
            config.refuse(name, value, f"an id from 0 to {sizes[1] - 1}")
        result[argument] = value
    if result["end_id"] is None:
        config.refuse("eos_token_id", None, "an id")
    if config.fields["model_type"] == "m2m_100" and result["start_id"] == pad_id:
        # Positions count tokens other than padding, so that such a start would have none.
        config.refuse("decoder_start_token_id", pad_id, f"another id than {pad_id}, the padding id")
    return result


def _arguments(
    config: Config,
    named: Named,
    forms: Mapping[str, bool],
    defaults: Arguments,
    fields: Fields,
    buffers: bool,
) -> Arguments:
    config.only(
        is_causal=True,
        is_decoder=False,
        is_encoder_decoder=True,
        pruned_heads={},
        tie_word_embeddings=True,
        add_bias_logits=False,
        **forms,
    )
    size = config.integer("vocab_size", defaults["vocabulary_size"])
    layers = config.integer("encoder_layers", 12, maximum=1000)
    heads, width = "attention_heads", "ffn_dim"
    arguments = {
        "vocabulary_size": size,
        "dim": config.integer("d_model", 1024),
        "num_layers": layers,
        "num_heads": config.integer(f"encoder_{heads}", 16),
        "intermediate_dim": config.integer(f"encoder_{width}", 4096),
        "num_decoder_layers": config.integer("decoder_layers", 12, maximum=1000),
        "num_decoder_heads": config.integer(f"decoder_{heads}", 16),
        "decoder_intermediate_dim": config.integer(f"decoder_{width}", 4096),
        "dropout": config.number("dropout", 0.1, 1),
        "attention_dropout": config.number("attention_dropout", fields["attention_dropout"], 1),
        "activation_dropout": config.number("activation_dropout", 0.0, 1),
        "activation": config.activation("activation_function", fields["activation_function"]),
        "scale_embedding": config.flag("scale_embedding", fields["scale_embedding"]),
        "max_length": config.integer("max_position_embeddings", 1024),
        "output_bias": buffers and "final_logits_bias" in named.own,
    }
    target_size = config.integer("decoder_vocab_size", size)
    if not config.flag("share_encoder_decoder_embeddings", True):
        if config.fields["model_type"] != "marian":
            config.refuse("share_encoder_decoder_embeddings", False, "True")
        arguments["target_vocabulary_size"] = target_size
    else:
        target_size = size  # whatever decoder_vocab_size says
    return {**arguments, **_ids(config, defaults, (size, target_size))}


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    heads, layers = given["num_heads"], given["num_layers"]
    width, target_size = given["intermediate_dim"], given.get("target_vocabulary_size")
    fields = {
        "vocab_size": given["vocabulary_size"],
        "d_model": given["dim"],
        "encoder_layers": layers,
        "encoder_attention_heads": heads,
        "encoder_ffn_dim": width,
        "decoder_layers": given["num_decoder_layers"] or layers,
        "decoder_attention_heads": given["num_decoder_heads"] or heads,
        "decoder_ffn_dim": given["decoder_intermediate_dim"] or width,
        "dropout": given["dropout"],
        "attention_dropout": given["attention_dropout"],
        "activation_dropout": given["activation_dropout"],
        "activation_function": activation_name(given["activation"]),
        "scale_embedding": given["scale_embedding"],
        "max_position_embeddings": given["max_length"],
        "tie_word_embeddings": True,
        "is_encoder_decoder": True,
        "pad_token_id": given["pad_id"],
        **{name: given[argument] for argument, name in _IDS.items()},
    }
    if "target_vocabulary_size" in given:
        fields["share_encoder_decoder_embeddings"] = target_size is None
        fields["decoder_vocab_size"] = target_size or given["vocabulary_size"]
    if architecture.endswith("SequenceClassification"):
        fields["classifier_dropout"] = dropout_rate(given, model.head.arguments["dropout"])
        fields |= label_fields(model)
    return fields


def _architectures(name: str, logits: str, others: bool, buffers: bool) -> dict[str, Architecture]:
    found = {
        f"{name}{logits}": Architecture(
            kind="language_model", prefixes=("final_logits_bias",) if buffers else ()
        ),
        f"{name}Model": heads.backbone(),
    }
    if others:
        found[f"{name}ForSequenceClassification"] = heads.sequence_classifier(
            "first",
            "classification_head.",
            dropout=lambda config: config.number("classifier_dropout", 0.0, 1),
            decoder=True,
        )
        found[f"{name}ForQuestionAnswering"] = heads.question_answering("qa_outputs.", decoder=True)
    return found


def _family(
    builder: Callable[..., models.Model],
    name: str,
    normalize_first: bool,
    learned: bool,
    logits: str = "ForConditionalGeneration",
    fields: Fields | None = None,
    buffers: bool = True,
    **defaults: object,
) -> Family:
    """A type of checkpoint.

    Args:
        builder: the function of `models`, named like the `model_type`.
        name: str, how the classes of transformers begin.
        normalize_first: bool, whether blocks are pre-norm.
        learned: bool, whether positions are learned.
        logits: str, how the name of the class with logits ends.
        fields: defaults of fields of `config.json` that differ from BART's.
        buffers: bool, whether files have sinusoids and the bias of logits, which are not trained.
        defaults: of the builder's arguments.
    """
    # Fields of older files. transformers ignores them, but other values mean another model.
    forms = {
        "normalize_before": normalize_first,
        "add_final_layer_norm": normalize_first,
        "normalize_embedding": learned,
        "static_position_embeddings": not learned,
    }
    defaults = {"vocabulary_size": 50265, "forced_first_id": None, **defaults}
    defaults.setdefault("forced_last_id", defaults["end_id"])
    stored = {"attention_dropout": 0.0, "activation_function": "gelu", "scale_embedding": False}
    return Family(
        model_type=builder.__name__,
        builder=builder,
        table=lambda model: TABLE if buffers else tuple(x for x in TABLE if x is not _BIAS),
        arguments=partial(
            _arguments,
            forms=forms,
            defaults=defaults,
            fields=stored | (fields or {}),
            buffers=buffers,
        ),
        fields=_fields,
        architectures=_architectures(name, logits, others=learned, buffers=buffers),
        constants=(lambda model: {}) if learned or not buffers else _sinusoids,
        names=Names(
            prefix="model.",
            # In this order: without a shared table, the output shares that of the target.
            aliases={
                "lm_head.weight": "decoder.embed_tokens.weight",
                "decoder.embed_tokens.weight": "shared.weight",
                "encoder.embed_tokens.weight": "shared.weight",
            },
            ignored=(r"(encoder|decoder)\.(version|embed_positions\.weights)",),  # of old files
        ),
        aliases=ALIASES,
    )


BART = _family(models.bart, "Bart", False, True, pad_id=1, start_id=2, end_id=2)
MBART = _family(models.mbart, "MBart", True, True, pad_id=1, start_id=None, end_id=2)
PEGASUS = _family(models.pegasus, "Pegasus", True, False, pad_id=0, start_id=0, end_id=1)
MARIAN = _family(
    models.marian, "Marian", False, False, "MTModel",
    vocabulary_size=58101, pad_id=58100, start_id=58100, end_id=0,
)  # fmt: skip
M2M_100 = _family(
    models.m2m_100, "M2M100", True, False, buffers=False, vocabulary_size=128112, pad_id=1,
    start_id=2, end_id=2, forced_last_id=None, fields={
        "attention_dropout": 0.1, "activation_function": "relu", "scale_embedding": True,
    },
)  # fmt: skip
