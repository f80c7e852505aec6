"""GTE checkpoints (gte-multilingual): tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields
from keras_tfm.checkpoints.decoders.decoder_fields import check_saved
from keras_tfm.checkpoints.encoders.nomic_bert import architectures, shared_arguments, shared_fields
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, norm
from keras_tfm.checkpoints.transforms import ValueFirst

_LAYER = "encoder.layer.{i}"
TABLE = (
    Row("embedding/embeddings", ("embeddings.word_embeddings.weight",)),
    Row("segment_embedding/segments", ("embeddings.token_type_embeddings.weight",)),
    *norm("embedding_norm", "embeddings.LayerNorm"),
    *dense("encoder_{i}/self_attention/query_key_value", f"{_LAYER}.attention.qkv_proj"),
    *dense("encoder_{i}/self_attention/output_projection", f"{_LAYER}.attention.o_proj"),
    *norm("encoder_{i}/self_attention_residual/norm", f"{_LAYER}.attn_ln"),
    Row(
        "encoder_{i}/feed_forward/inner/kernel",
        (f"{_LAYER}.mlp.up_gate_proj.weight",),
        ValueFirst(),
    ),
    *dense("encoder_{i}/feed_forward/outer", f"{_LAYER}.mlp.down_proj"),
    *norm("encoder_{i}/feed_forward_residual/norm", f"{_LAYER}.mlp_ln"),
    *dense("pooler", "pooler.dense"),
    *dense("transform", "lm_head.dense", head=True),
    *norm("transform_norm", "lm_head.norm", head=True),
    Row("output_bias/bias", ("lm_head.decoder.bias",), head=True),
    *dense("classifier", "classifier", head=True),
)


def _arguments(config: Config, named: Named) -> Arguments:
    # Of the authors' own code, which transformers does not read.
    config.only(layer_norm_type="layer_norm", logn_attention_scale=False, pack_qkv=True)
    config.only(position_embedding_type="rope")
    _take_ntk(config)
    sizes = {"vocab_size": 250048, "type_vocab_size": 1, "pad_token_id": 1}
    arguments = shared_arguments(config, named, 160000.0, min_segments=0, **sizes)
    return {
        **arguments,
        "activation_dropout": arguments["dropout"],
        "attention_bias": True,
        "feed_forward_bias": ["outer"],
        "max_length": config.integer("max_position_embeddings", 8192),
    }


def _take_ntk(config: Config) -> None:
    """Replaces the scaling "ntk" of the authors' code by a base and a linear one.

    Angles of an axis i of d are theta^(-2i/d) f^(-2(i+1)/d) (kexue.fm/archives/9706): those of the
    base f theta, divided by f^(2/d).
    """
    rope = config.fields.get("rope_scaling")
    if not isinstance(rope, dict) or rope.get("rope_type", rope.get("type")) != "ntk":
        return
    part = config.part("rope_scaling")
    part.only(mixed_b=None)
    factor = part.number("factor", 1.0)
    if factor < 1:
        part.refuse("factor of rope_scaling", factor, "at least 1")
    dim = config.integer("hidden_size", 768) // config.integer("num_attention_heads", 12)
    dim = config.integer("head_dim", dim)
    theta = factor * config.number("rope_theta", 10000.0)
    config.fields["rope_theta"] = theta
    config.fields["rope_scaling"] = {"rope_type": "linear", "factor": factor ** (2 / dim)}


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    check_saved(
        model, "gte", attention_bias=True, feed_forward_bias=(["outer"], ("outer",)),
        activation_dropout=given["dropout"],
    )  # fmt: skip
    return shared_fields(model, architecture)


GTE = Family(
    model_type="gte",
    builder=models.nomic_bert,
    table=lambda model: TABLE,
    arguments=_arguments,
    fields=_fields,
    architectures=architectures("Gte", heads.masked_language_model("lm_head.", activation="gelu")),
    is_of=lambda model: model.arguments["attention_bias"],
    names=Names(
        prefix="gte.",
        aliases={"lm_head.decoder.weight": "embeddings.word_embeddings.weight"},
        # The prefix in files of the authors' code.
        renamed={r"^new\.": ""},
    ),
)
