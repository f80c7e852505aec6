"""T5Gemma checkpoints: tensor names and configuration."""

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders.decoder_fields import FULL, SLIDING, Windows, read_windows
from keras_tfm.checkpoints.decoders.rope import read_rope, rope_fields
from keras_tfm.checkpoints.encoders.bert import label_fields
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, rms_norm
from keras_tfm.models.decoders.causal_decoder import each_window
from keras_tfm.models.encoder_decoders.shifted_source import has_decoder

# The fields of a stack that are sizes of their own in the other one, by the builder's argument.
SIZES = {
    "dim": ("hidden_size", 2304), "num_layers": ("num_hidden_layers", 26),
    "num_heads": ("num_attention_heads", 8), "num_key_value_heads": ("num_key_value_heads", 4),
    "intermediate_dim": ("intermediate_size", 9216),
}  # fmt: skip
WINDOW = 4096
OUTPUT = "lm_head.out_proj.weight"
CLASSIFIER = dense("classifier", "score.out_proj", head=True)


def stack_rows(model: models.Model, stack: str, sublayers: dict[str, str]) -> list[Row]:
    """Rows of a stack; `sublayers`: how each is called in the names of its norms."""
    given, path, layer = model.arguments, f"{stack}_{{i}}", f"{stack}.layers.{{i}}"
    prefix = "decoder_" if stack == "decoder" else ""
    heads = given[f"{prefix}num_heads"] or given["num_heads"]
    groups = given[f"{prefix}num_key_value_heads"] or given["num_key_value_heads"] or heads
    width, attention = given["head_dim"], f"{layer}.self_attn"
    rows = [
        *dense(
            f"{path}/self_attention/query_key_value",
            *(f"{attention}.{x}_proj" for x in "qkv"),
            widths=(heads * width, groups * width, groups * width),
        ),
        *dense(f"{path}/self_attention/output_projection", f"{attention}.o_proj"),
        *dense(f"{path}/feed_forward/inner", f"{layer}.mlp.gate_proj", f"{layer}.mlp.up_proj"),
        *dense(f"{path}/feed_forward/outer", f"{layer}.mlp.down_proj"),
        *rms_norm(f"{stack}_norm", f"{stack}.norm", 1.0),
    ]
    for sublayer, name in sublayers.items():
        for norm, when in (("norm", "pre"), ("output_norm", "post")):
            tensor = f"{layer}.{when}_{name}_layernorm"
            rows += rms_norm(f"{path}/{sublayer}_residual/{norm}", tensor, 1.0)
    return rows


def table(model: models.Model) -> tuple[Row, ...]:
    """A row for each tensor."""
    path, tensor = "decoder_{i}/cross_attention", "decoder.layers.{i}.cross_attn"
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output_projection": "o_proj"}
    sublayers = {"self_attention": "self_attn", "feed_forward": "feedforward"}
    return (
        Row("source_embedding/embeddings", ("encoder.embed_tokens.weight",)),
        Row("target_embedding/embeddings", ("decoder.embed_tokens.weight",)),
        *stack_rows(model, "encoder", sublayers),
        *stack_rows(model, "decoder", {**sublayers, "cross_attention": "cross_attn"}),
        *(row for name, x in names.items() for row in dense(f"{path}/{name}", f"{tensor}.{x}")),
        *dense("output", "lm_head.out_proj", bias=False, head=True),
        *CLASSIFIER,
    )


def _arguments(config: Config, named: Named) -> Arguments:
    is_encoder = named.begins("encoder.") and not named.begins("decoder.")
    config.only(is_encoder_decoder=not is_encoder)
    encoder, decoder = config.part("encoder"), config.part("decoder")
    decoder.only(is_causal=True)
    first, second = _equal_fields(encoder), _equal_fields(decoder)
    check_equal_fields(decoder, first, second)
    size = first["vocab_size"]
    arguments = {**read_sizes(encoder, decoder), **read_ids(config, encoder, decoder, size)}
    tied = config.flag("tie_word_embeddings", True)
    untied = OUTPUT in named.own and not named.same(OUTPUT, "decoder.embed_tokens.weight")
    return {
        **arguments,
        "vocabulary_size": size,
        "head_dim": first["head_dim"],
        "activation": first["hidden_activation"],
        "rms_norm_epsilon": first["rms_norm_eps"],
        **first["rope_parameters"],
        "windows": _windows(encoder, arguments["num_layers"], 1),
        "decoder_windows": _windows(decoder, arguments["decoder_num_layers"], 0),
        "query_pre_attention_scalar": first["query_pre_attn_scalar"],
        "attention_logit_soft_cap": first["attn_logit_softcapping"],
        "final_logit_soft_cap": read_cap(decoder, "final_logit_softcapping", 30.0),
        "attention_bias": first["attention_bias"],
        "dropout": config.number("dropout_rate", 0.0, 1),
        "attention_dropout": config.number("attention_dropout", 0.0, 1),
        "tie_output": tied and not untied,
        "max_length": decoder.integer("max_position_embeddings", 8192),
    }


def check_equal_fields(decoder: Config, first: Arguments, second: Arguments) -> None:
    """Raises unless values of the decoder, `second`, are those of the encoder, `first`."""
    for name, x in first.items():
        if x != second[name]:
            found, wanted = (activation_name(y) if callable(y) else y for y in (second[name], x))
            decoder.refuse(f"decoder.{name}", found, f"that of the encoder, {wanted}")


def read_sizes(encoder: Config, decoder: Config) -> Arguments:
    """The builder's arguments that are sizes of either stack."""
    return {
        f"{prefix}{name}": stack.integer(field, default)
        for prefix, stack in (("", encoder), ("decoder_", decoder))
        for name, (field, default) in SIZES.items()
    }


def read_ids(config: Config, encoder: Config, decoder: Config, size: int) -> Arguments:
    """The ids of padding, start and end; `size` is that of the vocabulary."""
    arguments: Arguments = {}
    ids = {"pad_id": ("pad_token_id", 0), "start_id": ("bos_token_id", 2)}
    for name, (field, default) in ids.items():
        default = decoder.integer(field, default, minimum=0, maximum=size - 1)
        owner = encoder if name == "pad_id" else config
        arguments[name] = owner.integer(field, default, minimum=0, maximum=size - 1)
    for owner in (decoder, config):  # of chats, there are two
        arguments["end_id"] = owner.ids("eos_token_id", arguments.get("end_id", 1), size)
    start = config.integer("decoder_start_token_id", None, minimum=0, maximum=size - 1)
    arguments["start_id"] = arguments["start_id"] if start is None else start
    return arguments


def _equal_fields(config: Config) -> Arguments:
    """The values that must be equal in both stacks, by field."""
    return {
        "vocab_size": config.integer("vocab_size", 256000),
        "head_dim": config.integer("head_dim", 256),
        "hidden_activation": config.activation("hidden_activation", "gelu_pytorch_tanh"),
        "rms_norm_eps": config.number("rms_norm_eps", 1e-6),
        "query_pre_attn_scalar": config.number("query_pre_attn_scalar", 256),
        "attn_logit_softcapping": read_cap(config, "attn_logit_softcapping", 50.0),
        "attention_bias": config.flag("attention_bias", False),
        "rope_parameters": read_rope(config),
    }


def read_cap(config: Config, name: str, default: float | None) -> float | None:
    """A soft cap; null means none."""
    return config.number(name, None) if name in config.fields else default


def _windows(config: Config, num_layers: int, more: int) -> Windows:
    """The window of each block; that of the encoder counts tokens of one side, without itself."""
    kinds = config.fields.get("layer_types")
    if kinds is None:
        kinds = [FULL if i % 2 else SLIDING for i in range(num_layers)]
    window = config.integer("sliding_window", None)
    if "sliding_window" not in config.fields:
        window = WINDOW
    return read_windows(config, kinds, num_layers, None if window is None else window + more)


def shared_fields(model: models.Model) -> Fields:
    """The fields that the configurations of both stacks have, but for sizes and positions."""
    given = model.arguments
    name = activation_name(given["activation"])
    scalar = given["query_pre_attention_scalar"] or given["head_dim"]
    if int(scalar) != scalar:
        raise ValueError(
            f"{model.name}: query_pre_attention_scalar must be an integer to be saved, got {scalar}"
        )
    if given["attention_bias"] not in (True, False):
        raise ValueError(
            f"{model.name}: attention_bias must be True or False to be saved, got "
            f"{given['attention_bias']!r}"
        )
    return {
        "vocab_size": given["vocabulary_size"],
        "head_dim": given["head_dim"],
        "hidden_activation": "gelu_pytorch_tanh" if name == "gelu_new" else name,
        "rms_norm_eps": given["rms_norm_epsilon"],
        "query_pre_attn_scalar": int(scalar),
        "attn_logit_softcapping": given.get("attention_logit_soft_cap"),
        "final_logit_softcapping": given["final_logit_soft_cap"],
        "attention_bias": given["attention_bias"],
        "dropout_rate": given["dropout"],
        "attention_dropout": given["attention_dropout"],
        "max_position_embeddings": given["max_length"],
        "pad_token_id": given["pad_id"],
        "bos_token_id": given["start_id"],
        "eos_token_id": given["end_id"],
        "tie_word_embeddings": given.get("tie_output", True),
    }


def stack_fields(model: models.Model, prefix: str, more: int = 0) -> Fields:
    """The sizes and windows of a stack.

    Args:
        model: the model.
        prefix: str, "" for the encoder and "decoder_" for the decoder.
        more: int, what the builder's window has more than the field.
    """
    given = model.arguments
    sizes = {field: given.get(f"{prefix}{x}") or given[x] for x, (field, _) in SIZES.items()}
    sizes["num_key_value_heads"] = sizes["num_key_value_heads"] or sizes["num_attention_heads"]
    if sizes["hidden_size"] % sizes["num_attention_heads"]:
        raise ValueError(
            f"{model.name}: num_heads must divide dim ({sizes['hidden_size']}) to be saved, "
            f"got {sizes['num_attention_heads']}"
        )
    each = each_window(given[f"{prefix}windows"], sizes["num_hidden_layers"])
    used = {x for x in each if x is not None}
    if len(used) > 1:
        raise ValueError(f"{model.name}: a stack has one window for all blocks, got {each}")
    window = max(used, default=None)
    return {
        **sizes,
        # transformers requires a window even if no block has one.
        "sliding_window": WINDOW if window is None else window - more,
        "layer_types": [FULL if x is None else SLIDING for x in each],
    }


def own_fields(model: models.Model) -> Fields:
    """The fields besides the configurations of both stacks."""
    given = model.arguments
    return {
        "vocab_size": given["vocabulary_size"],
        "dropout_rate": given["dropout"],
        "attention_dropout": given["attention_dropout"],
        "tie_word_embeddings": given.get("tie_output", True),
        "pad_token_id": given["pad_id"],
        "bos_token_id": given["start_id"],
        "decoder_start_token_id": given["start_id"],
        "eos_token_id": given["end_id"],
    }


def classifiers(name: str, decoder: str = "", whole: bool | None = None) -> dict[str, Architecture]:
    """The classifiers of texts and of tokens.

    Args:
        name: str, how the classes of transformers begin.
        decoder: str, the prefix of the decoder's tensors, without which a file is of an encoder.
        whole: bool, whether the models always have a decoder. Default: not always.
    """

    def base(model: models.Model, config: Config) -> models.Model:
        return model if whole or config.flag("is_encoder_decoder", True) else models.encoder(model)

    def dropout(config: Config) -> float:
        return config.number("classifier_dropout_rate", 0.0, 1)

    prefixes = (decoder, "score.") if decoder else ("score.",)
    return {
        f"{name}ForSequenceClassification": Architecture(
            lambda model, config: models.sequence_classifier(
                base(model, config), config.num_labels, dropout(config), labels=config.labels
            ),
            "sequence_classifier",
            {"pooling": "last"},
            prefixes=prefixes,
            decoder=whole,
        ),
        f"{name}ForTokenClassification": Architecture(
            lambda model, config: models.token_classifier(
                base(model, config), config.num_labels, dropout(config), labels=config.labels
            ),
            "token_classifier",
            prefixes=prefixes,
            decoder=whole,
        ),
    }


def classifier_fields(model: models.Model, architecture: str) -> Fields:
    """The fields of a classifier; none of another model."""
    if not architecture.endswith("Classification"):
        return {}
    rate = model.head.arguments["dropout"]
    rate = model.arguments["dropout"] if rate is None else rate
    return {"classifier_dropout_rate": rate, **label_fields(model)}


def _fields(model: models.Model, architecture: str) -> Fields:
    shared = {**shared_fields(model), "model_type": "t5_gemma_module", **rope_fields(model)}
    encoder = {**shared, **stack_fields(model, "", more=1)}
    decoder = {
        **shared, **stack_fields(model, "decoder_"), "is_decoder": True,
        "cross_attention_hidden_size": encoder["hidden_size"],
    }  # fmt: skip
    return {
        "encoder": encoder,
        "decoder": decoder,
        "is_encoder_decoder": has_decoder(model),
        **own_fields(model),
        **classifier_fields(model, architecture),
    }


T5GEMMA = Family(
    model_type="t5gemma",
    builder=models.t5gemma,
    table=table,
    arguments=_arguments,
    fields=_fields,
    architectures={
        "T5GemmaForConditionalGeneration": Architecture(
            kind="language_model", prefixes=("decoder.",)
        ),
        "T5GemmaModel": Architecture(
            lambda model, config: models.backbone(model), prefixes=("decoder.",)
        ),
        "T5GemmaEncoderModel": Architecture(lambda model, config: models.encoder(model), "encoder"),
        **classifiers("T5Gemma", decoder="decoder."),
    },
    names=Names(
        prefix="model.",
        aliases={OUTPUT: "decoder.embed_tokens.weight"},
        ignored=(r".*rotary_emb\.inv_freq",),
    ),
)
