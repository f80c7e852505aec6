"""MobileBERT checkpoints: tensor names, configuration and heads."""

import re

import numpy as np

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields, dropout_rate
from keras_tfm.checkpoints.encoders.bert import (
    ARCHITECTURES,
    classifier_dropout,
    encoder_arguments,
    encoder_fields,
    has_pooler,
)
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, norm

_LAYER, _OURS = "encoder.layer.{i}", "encoder_{i}"
_SELF = f"{_LAYER}.attention.self"
_EMBEDDING = "embeddings.embedding_transformation"
_QUERY_KEY = re.compile(r"encoder\.layer\.\d+\.bottleneck\.attention\..*")
_NORMS = {"no_norm": False, "layer_norm": True}


def _feed_forward(ours: str, theirs: str) -> tuple[Row, ...]:
    return (
        *dense(f"{_OURS}/{ours}/inner", f"{theirs}.intermediate.dense"),
        *dense(f"{_OURS}/{ours}/outer", f"{theirs}.output.dense"),
        *norm(f"{_OURS}/{ours}_residual/norm", f"{theirs}.output.LayerNorm"),
    )


def _table(model: models.Model) -> tuple[Row, ...]:
    stacked = range(model.arguments["num_feed_forward"] - 1)
    return (
        Row("embedding/embeddings", ("embeddings.word_embeddings.weight",)),
        Row("segment_embedding/segments", ("embeddings.token_type_embeddings.weight",)),
        Row("positions/positions", ("embeddings.position_embeddings.weight",)),
        *dense("embedding_projection", _EMBEDDING),
        *norm("embedding_norm", "embeddings.LayerNorm"),
        *dense(f"{_OURS}/bottleneck_projection", f"{_LAYER}.bottleneck.input.dense"),
        *norm(f"{_OURS}/bottleneck_norm", f"{_LAYER}.bottleneck.input.LayerNorm"),
        *dense(f"{_OURS}/query_key_projection", f"{_LAYER}.bottleneck.attention.dense"),
        *norm(f"{_OURS}/query_key_norm", f"{_LAYER}.bottleneck.attention.LayerNorm"),
        # One kernel, unless values have an input of another width.
        *dense(
            f"{_OURS}/self_attention/query_key_value",
            *(f"{_SELF}.{x}" for x in ("query", "key", "value")),
        ),
        *(
            row
            for x in ("query", "key", "value")
            for row in dense(f"{_OURS}/self_attention/{x}", f"{_SELF}.{x}")
        ),
        *dense(f"{_OURS}/self_attention/output_projection", f"{_LAYER}.attention.output.dense"),
        *norm(f"{_OURS}/self_attention_residual/norm", f"{_LAYER}.attention.output.LayerNorm"),
        *(row for j in stacked for row in _feed_forward(f"feed_forward_{j}", f"{_LAYER}.ffn.{j}")),
        *_feed_forward("feed_forward", _LAYER),
        *dense(f"{_OURS}/expansion", f"{_LAYER}.output.bottleneck.dense"),
        *norm(f"{_OURS}/output_residual/norm", f"{_LAYER}.output.bottleneck.LayerNorm"),
        *dense("pooler", "pooler.dense"),
        *dense("transform", "cls.predictions.transform.dense", head=True),
        *norm("transform_norm", "cls.predictions.transform.LayerNorm", head=True),
        # (D - E, V) there, too.
        *dense("output", "cls.predictions.dense", bias=False, transposed=False, head=True),
        Row("output_bias/bias", ("cls.predictions.bias",), head=True),
        *dense("next_sentence", "cls.seq_relationship", head=True),
        *dense("classifier", "classifier", head=True),
        *dense("span", "qa_outputs", head=True),
    )


def _arguments(config: Config, named: Named) -> Arguments:
    given = encoder_arguments(
        config, named, hidden_size=512, num_attention_heads=4, intermediate_size=512
    )
    dim, embedding_dim = given["dim"], config.integer("embedding_size", 128)
    kind = config.text("normalization_type", "no_norm")
    if kind not in _NORMS:
        config.refuse("normalization_type", kind, f"one of {list(_NORMS)}")
    bottleneck = config.flag("use_bottleneck", True)
    all_narrow = config.flag("use_bottleneck_attention", False)
    shared = config.flag("key_query_shared_bottleneck", True)
    if bottleneck and not all_narrow and not shared:
        expected = "true, unless use_bottleneck_attention is true or use_bottleneck false"
        config.refuse("key_query_shared_bottleneck", shared, expected)
    if all_narrow:  # there are such tensors all the same, which nothing reads
        named.leave_out([x for x in named.own if _QUERY_KEY.fullmatch(x)])
    if embedding_dim == dim:  # of shape (0, V)
        named.leave_out(["cls.predictions.dense.weight"])
    pooler_dense = config.flag("classifier_activation", True)
    return {
        **given,
        "num_layers": config.integer("num_hidden_layers", 24, maximum=1000),
        "dropout": config.number("hidden_dropout_prob", 0.0, 1),
        "activation": config.activation("hidden_act", "relu"),
        "embedding_dim": embedding_dim,
        "trigram": config.flag("trigram_input", True),
        "bottleneck_dim": config.integer("intra_bottleneck_size", 128) if bottleneck else None,
        "query_key_bottleneck": not all_narrow,
        "num_feed_forward": config.integer("num_feedforward_networks", 4, maximum=1000),
        "layer_norm": _NORMS[kind],
        "pooler": not pooler_dense or has_pooler(named),
        "pooler_dense": pooler_dense,
    }


_ARCHITECTURES = {
    **{name.replace("Bert", "MobileBert"): x for name, x in ARCHITECTURES.items()},
    "MobileBertForMultipleChoice": heads.multiple_choice(
        "first", "pooler.", "classifier.", dropout=classifier_dropout
    ),
}


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    width = given["bottleneck_dim"]
    fields = {
        **encoder_fields(model, architecture),
        "embedding_size": given["embedding_dim"],
        "trigram_input": given["trigram"],
        "use_bottleneck": width is not None,
        "use_bottleneck_attention": not given["query_key_bottleneck"],
        "key_query_shared_bottleneck": given["query_key_bottleneck"],
        "num_feedforward_networks": given["num_feed_forward"],
        "normalization_type": "layer_norm" if given["layer_norm"] else "no_norm",
        "classifier_activation": given["pooler_dense"],
    }
    if width is not None:
        fields["intra_bottleneck_size"] = width
    if architecture.endswith("MultipleChoice"):
        fields["classifier_dropout"] = dropout_rate(given, model.head.arguments["dropout"])
    return fields


def _unused_tensors(model: models.Model) -> dict[str, np.ndarray]:
    """The projection of embeddings that need none, which every file has."""
    dim, embedding_dim = model.arguments["dim"], model.arguments["embedding_dim"]
    if model.arguments["trigram"] or embedding_dim != dim:
        return {}
    return {
        f"{_EMBEDDING}.weight": np.zeros((dim, embedding_dim), "float32"),
        f"{_EMBEDDING}.bias": np.zeros(dim, "float32"),
    }


MOBILEBERT = Family(
    model_type="mobilebert",
    builder=models.mobilebert,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures=_ARCHITECTURES,
    names=Names(
        prefix="mobilebert.",
        aliases={
            "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        ignored=(r"embeddings\.(position_ids|token_type_ids)",),
    ),
    unused=_unused_tensors,
)
