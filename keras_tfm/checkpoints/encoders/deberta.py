"""DeBERTa v2 and v3 checkpoints: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.encoders.bert import check_tied, classifiers, encoder_fields, read_pad_id
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, convolution, dense, norm

_LAYER = "encoder.layer.{i}"
_ATTENTION = f"{_LAYER}.attention"
_QKV = tuple(f"{_ATTENTION}.self.{x}_proj" for x in ("query", "key", "value"))
_BLOCK = "encoder_{i}/self_attention"
_TABLE = "encoder_0/self_attention/relative_positions"
_HEAD = "cls.predictions"
TABLE = (
    Row("embedding/embeddings", ("embeddings.word_embeddings.weight",)),
    Row("segment_embedding/segments", ("embeddings.token_type_embeddings.weight",)),
    Row("positions/positions", ("embeddings.position_embeddings.weight",)),
    *dense("embedding_projection", "embeddings.embed_proj", bias=False),
    *norm("embedding_norm", "embeddings.LayerNorm"),
    Row(f"{_TABLE}/table", ("encoder.rel_embeddings.weight",)),
    *norm(f"{_TABLE}/norm", "encoder.LayerNorm"),
    *dense(f"{_BLOCK}/query_key_value", *_QKV),
    *dense(f"{_BLOCK}/position_key", f"{_ATTENTION}.self.pos_key_proj"),
    *dense(f"{_BLOCK}/position_query", f"{_ATTENTION}.self.pos_query_proj"),
    *dense(f"{_BLOCK}/output_projection", f"{_ATTENTION}.output.dense"),
    *norm(f"{_BLOCK}_residual/norm", f"{_ATTENTION}.output.LayerNorm"),
    *dense("encoder_{i}/feed_forward/inner", f"{_LAYER}.intermediate.dense"),
    *dense("encoder_{i}/feed_forward/outer", f"{_LAYER}.output.dense"),
    *norm("encoder_{i}/feed_forward_residual/norm", f"{_LAYER}.output.LayerNorm"),
    *convolution("convolution/convolution", "encoder.conv.conv"),
    *norm("convolution/norm", "encoder.conv.LayerNorm"),
    *dense("pooler", "pooler.dense", head=True),
    *dense("classifier", "classifier", head=True),
    *dense("transform", f"{_HEAD}.transform.dense", head=True),
    *norm("transform_norm", f"{_HEAD}.transform.LayerNorm", head=True),
    Row("output_bias/bias", (f"{_HEAD}.bias",), head=True),
    *dense("span", "qa_outputs", head=True),
)


def _arguments(config: Config, named: Named) -> Arguments:
    dim = config.integer("hidden_size", 1536)
    num_heads = config.integer("num_attention_heads", 24)
    config.only(
        conv_groups=1,
        pooler_hidden_size=dim,
        attention_head_size=dim // num_heads,
    )
    check_tied(config, named)
    terms = _terms(config)
    absolute = config.flag("position_biased_input", True)
    if not absolute:  # some checkpoints have the table all the same
        named.own.pop("embeddings.position_embeddings.weight", None)
    max_length = config.integer("max_position_embeddings", 512)
    kernel_size = config.integer("conv_kernel_size", 0, minimum=0)
    if kernel_size and kernel_size % 2 == 0:
        config.refuse("conv_kernel_size", kernel_size, "0 or odd")
    size = config.integer("vocab_size", 128100)
    return {
        "vocabulary_size": size,
        "dim": dim,
        "num_layers": config.integer("num_hidden_layers", 24, maximum=1000),
        "num_heads": num_heads,
        "intermediate_dim": config.integer("intermediate_size", 6144),
        "embedding_dim": config.integer("embedding_size", dim),
        "dropout": config.number("hidden_dropout_prob", 0.1, 1),
        "attention_dropout": config.number("attention_probs_dropout_prob", 0.1, 1),
        "activation": config.activation("hidden_act", "gelu"),
        "layer_norm_epsilon": config.number("layer_norm_eps", 1e-7),
        "max_length": max_length,
        "pad_id": read_pad_id(config, size),
        "absolute_positions": absolute,
        **_distances(config, max_length),
        "content_to_position": "c2p" in terms,
        "position_to_content": "p2c" in terms,
        "position_projections": bool(terms) and not config.flag("share_att_key", False),
        "normalize_positions": _has_relative_norm(config, bool(terms)),
        "kernel_size": kernel_size or None,
        "kernel_activation": config.activation("conv_act", "tanh"),
        "num_segments": config.integer("type_vocab_size", 0, minimum=0),
        "pooler_activation": config.activation("pooler_hidden_act", "gelu"),
        "pooler_dropout": config.number("pooler_dropout", 0.0, 1),
    }


def _terms(config: Config) -> list[str]:
    """The terms of the relative positions, "c2p" and "p2c"."""
    value = config.fields.get("pos_att_type") or []
    terms = [x.strip() for x in value.lower().split("|")] if isinstance(value, str) else value
    relative = config.flag("relative_attention", False)
    allowed = ["c2p", "p2c"] if relative else []
    if not isinstance(terms, list) or any(x not in allowed for x in terms):
        config.refuse(
            "pos_att_type", value, f"a list of {allowed} with relative_attention={relative}"
        )
    if relative and not terms:
        config.refuse("pos_att_type", value, '"c2p", "p2c" or both with relative_attention=True')
    return list(terms)


def _distances(config: Config, max_length: int) -> Arguments:
    """The arguments `num_buckets` and `max_distance`; numbers below 1 are the defaults."""
    num_buckets = config.integer("position_buckets", -1, minimum=-(2**31))
    given = config.integer("max_relative_positions", -1, minimum=-(2**31))
    max_distance = given if given > 0 else max_length
    if num_buckets == 1:
        config.refuse("position_buckets", num_buckets, "-1 or at least 2")
    if num_buckets > 1 and max_distance <= num_buckets // 2 + 1:
        config.refuse(
            "max_relative_positions",
            max_distance,
            f"more than {num_buckets // 2 + 1} with position_buckets={num_buckets}",
        )
    return {
        "num_buckets": num_buckets if num_buckets > 0 else None,
        "max_distance": given if given > 0 else None,
    }


def _has_relative_norm(config: Config, relative: bool) -> bool:
    """Whether the table of relative positions is normalised."""
    value = config.text("norm_rel_ebd", "none")
    kinds = [x.strip() for x in value.lower().split("|")]
    if kinds not in (["none"], ["layer_norm"]) or (kinds == ["layer_norm"] and not relative):
        known = '"layer_norm" or "none"' if relative else '"none" without relative_attention'
        config.refuse("norm_rel_ebd", value, known)
    return kinds == ["layer_norm"]


ARCHITECTURES = {
    "DebertaV2Model": Architecture(),
    "DebertaV2ForMaskedLM": heads.masked_language_model(f"{_HEAD}."),
    **classifiers(
        "DebertaV2",
        ("pooler.", "classifier."),
        dropout=lambda config: config.number("cls_dropout", None, 1),
        token_dropout=None,
    ),
}


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    terms = {"c2p": given["content_to_position"], "p2c": given["position_to_content"]}
    relative = any(terms.values())
    fields = encoder_fields(model, architecture)
    if "classifier_dropout" in fields:
        fields["cls_dropout"] = fields.pop("classifier_dropout")
    fields |= {
        "embedding_size": given["embedding_dim"] or given["dim"],
        "position_biased_input": given["absolute_positions"],
        "relative_attention": relative,
        "pos_att_type": [name for name, is_used in terms.items() if is_used],
        "position_buckets": given["num_buckets"] or -1,
        "max_relative_positions": given["max_distance"] or -1,
        "share_att_key": not given["position_projections"],
        "norm_rel_ebd": "layer_norm" if relative and given["normalize_positions"] else "none",
        "pooler_hidden_act": activation_name(given["pooler_activation"]),
        "pooler_hidden_size": given["dim"],
        "pooler_dropout": given["pooler_dropout"],
        "legacy": True,
    }
    if given["kernel_size"]:
        fields["conv_kernel_size"] = given["kernel_size"]
        fields["conv_act"] = activation_name(given["kernel_activation"])
    return fields


DEBERTA = Family(
    model_type="deberta-v2",
    builder=models.deberta,
    table=lambda model: TABLE,
    arguments=_arguments,
    fields=_fields,
    architectures=ARCHITECTURES,
    names=Names(
        prefix="deberta.",
        aliases={
            f"{_HEAD}.decoder.weight": "embeddings.word_embeddings.weight",
            f"{_HEAD}.decoder.bias": f"{_HEAD}.bias",
        },
        # Of v3's pre-training: the discriminator, and what is added to the generator's embeddings.
        ignored=(
            r"embeddings\.position_ids",
            r"mask_predictions\..*",
            r"embeddings\.\w+_embeddings\._weight",
        ),
        # v3's names (`legacy=False`) for the same head.
        renamed={
            r"^lm_predictions\.lm_head\.bias$": f"{_HEAD}.bias",
            r"^lm_predictions\.lm_head\.": f"{_HEAD}.transform.",
        },
    ),
)
