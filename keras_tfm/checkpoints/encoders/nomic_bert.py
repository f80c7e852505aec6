"""NomicBERT checkpoints: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields
from keras_tfm.checkpoints.decoders.decoder_fields import check_saved
from keras_tfm.checkpoints.decoders.rope import read_rope, rope_fields
from keras_tfm.checkpoints.encoders.bert import ARCHITECTURES, encoder_arguments, encoder_fields
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, norm

_LAYER = "encoder.layers.{i}"
TABLE = (
    Row("embedding/embeddings", ("embeddings.word_embeddings.weight",)),
    Row("segment_embedding/segments", ("embeddings.token_type_embeddings.weight",)),
    *norm("embedding_norm", "emb_ln"),
    *dense("encoder_{i}/self_attention/query_key_value", f"{_LAYER}.attn.Wqkv", bias=False),
    *dense("encoder_{i}/self_attention/output_projection", f"{_LAYER}.attn.out_proj", bias=False),
    *norm("encoder_{i}/self_attention_residual/norm", f"{_LAYER}.norm1"),
    # The second one is the gate's.
    *dense(
        "encoder_{i}/feed_forward/inner", f"{_LAYER}.mlp.fc12", f"{_LAYER}.mlp.fc11", bias=False
    ),
    *dense("encoder_{i}/feed_forward/outer", f"{_LAYER}.mlp.fc2", bias=False),
    *norm("encoder_{i}/feed_forward_residual/norm", f"{_LAYER}.norm2"),
    *dense("pooler", "pooler.dense"),
    *dense("transform", "cls.predictions.transform.dense", head=True),
    *norm("transform_norm", "cls.predictions.transform.layer_norm", head=True),
    Row("output_bias/bias", ("cls.predictions.bias",), head=True),
    *dense("classifier", "classifier", head=True),
)
# The fields of Nomic's own code, which its folders on the hub have. transformers reads none of
# them: its defaults are the values of nomic-embed-text.
_OWN_FIELDS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
    "resid_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob",
}
_GATED = {"swiglu": "silu", "geglu": "gelu"}


def shared_arguments(
    config: Config, named: Named, default_theta: float, **defaults: int
) -> Arguments:
    """The builder's arguments that NomicBERT and GTE have in common.

    Args:
        config, named, **defaults: as in `encoder_arguments` of BERT.
        default_theta: float, the base of the rotary positions if no field names it.
    """
    config.fields.pop("position_embedding_type", None)  # of other code: "rope"
    return {
        **encoder_arguments(config, named, **defaults),
        "head_dim": config.integer("head_dim", None),
        "attention_dropout": config.number("attention_probs_dropout_prob", 0.0, 1),
        **read_rope(config, default_theta),
    }


def _arguments(config: Config, named: Named) -> Arguments:
    _take_own_fields(config)
    return {
        **shared_arguments(config, named, 1000.0, vocab_size=30528),
        "dropout": config.number("hidden_dropout_prob", 0.0, 1),
        "activation": config.activation("hidden_act", "silu"),
        "max_length": config.integer("max_position_embeddings", 2048),
    }


def _take_own_fields(config: Config) -> None:
    """Reads the fields of Nomic's own code where those of transformers are missing."""
    fields = config.fields
    config.only(
        causal=False,
        mlp_fc1_bias=False,
        mlp_fc2_bias=False,
        num_experts=0,
        parallel_block=False,
        prenorm=False,
        qkv_proj_bias=False,
        rotary_emb_fraction=1,
        rotary_emb_interleaved=False,
        scale_attn_weights=True,
        use_rms_norm=False,
    )
    factor = fields.get("rotary_scaling_factor")
    if factor is not None:
        expected = "null: texts longer than those in training have other positions with it"
        config.refuse("rotary_scaling_factor", factor, expected)
    for own, name in _OWN_FIELDS.items():
        if fields.get(name) is None and fields.get(own) is not None:
            fields[name] = fields[own]
    config.only(embd_pdrop=fields.get("hidden_dropout_prob", 0))
    activation = config.text("activation_function", None)
    if activation is not None and fields.get("hidden_act") is None:
        if activation not in _GATED:
            config.refuse("activation_function", activation, f"one of {list(_GATED)}")
        fields["hidden_act"] = _GATED[activation]


def architectures(name: str, masked: Architecture) -> dict[str, Architecture]:
    """The classes of a family by name.

    Args:
        name: str, the first part of their names, such as "Gte".
        masked: the masked language model.
    """
    return {
        f"{name}Model": Architecture(),
        f"{name}ForMaskedLM": masked,
        f"{name}ForSequenceClassification": ARCHITECTURES["BertForSequenceClassification"],
        f"{name}ForTokenClassification": ARCHITECTURES["BertForTokenClassification"],
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    check_saved(model, "nomic_bert", feed_forward_bias=False, activation_dropout=0.0)
    if model.arguments["num_segments"] == 0:
        raise ValueError(
            f"{model.name}: num_segments must be at least 1 to be saved as nomic_bert, got 0"
        )
    return shared_fields(model, architecture)


def shared_fields(model: models.Model, architecture: str) -> Fields:
    """The fields of `config.json` that NomicBERT and GTE have in common."""
    given = model.arguments
    return {
        **encoder_fields(model, architecture),
        "head_dim": given["head_dim"] or given["dim"] // given["num_heads"],
        **rope_fields(model),
    }


NOMIC_BERT = Family(
    model_type="nomic_bert",
    builder=models.nomic_bert,
    table=lambda model: TABLE,
    arguments=_arguments,
    fields=_fields,
    architectures=architectures("NomicBert", ARCHITECTURES["BertForMaskedLM"]),
    is_of=lambda model: not model.arguments["attention_bias"],
    names=Names(
        prefix="nomic_bert.",
        aliases={
            "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        # The prefix in files of Nomic's own code.
        renamed={r"^bert\.": ""},
    ),
)
