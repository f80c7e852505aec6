"""Text encoders of KerasHub."""

from dataclasses import replace

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments
from keras_tfm.checkpoints.keras_hub.family import HubFamily
from keras_tfm.checkpoints.keras_hub.rows import HEADS, Positions, block, dense, norm
from keras_tfm.checkpoints.keras_hub.settings import Settings, text_arguments
from keras_tfm.checkpoints.rows import Row
from keras_tfm.checkpoints.transforms import Same
from keras_tfm.layers import gelu_tanh


def _sizes(model: models.Model) -> tuple[int, int]:
    return model.arguments["dim"], model.arguments["num_heads"]


def _table(model: models.Model, embeddings: str = "", offset: int = 0) -> tuple[Row, ...]:
    """The table of BERT and its successors.

    Args:
        embeddings: str, path of the layer of the embeddings and a slash, if there is one.
        offset: int, rows before the first of the table of positions, which KerasHub lacks.
    """
    positions = Positions(offset) if offset else Same()
    return (
        Row("embedding/embeddings", (f"{embeddings}token_embedding/embeddings",)),
        Row("segment_embedding/segments", ("segment_embedding/embeddings",)),
        Row("positions/positions", (f"{embeddings}position_embedding/embeddings",), positions),
        *norm("embedding_norm", "embeddings_layer_norm"),
        *block("encoder_{i}", "transformer_layer_{i}", *_sizes(model)),
        *HEADS,
    )


def _arguments(settings: Settings, pad_id: int = 0) -> Arguments:
    """The builder's arguments that BERT and its successors have in common.

    `pad_id`: the padding id of a backbone without a preprocessor.
    """
    return {
        **text_arguments(settings),
        "max_length": settings["max_sequence_length"],
        "pad_id": settings.pad_id_or(pad_id),
    }


def _bert_arguments(settings: Settings) -> Arguments:
    arguments = {"activation": gelu_tanh, "layer_norm_epsilon": 1e-12}
    return {**_arguments(settings), "num_segments": settings["num_segments"], **arguments}


BERT = HubFamily(
    backbone="BertBackbone",
    builder=models.bert,
    arguments=_bert_arguments,
    table=_table,
    inputs={"tokens": "token_ids", "segments": "segment_ids"},
    outputs={"features": "sequence_output", "pooled": "pooled_output"},
)


def _roberta_arguments(settings: Settings, multilingual: bool = False) -> Arguments:
    return {
        **_arguments(settings, pad_id=1),
        "activation": "gelu",
        "layer_norm_epsilon": 1e-5,
        "num_segments": 0,
        "multilingual": multilingual,
    }


ROBERTA = HubFamily(
    backbone="RobertaBackbone",
    builder=models.roberta,
    arguments=_roberta_arguments,
    table=lambda model: _table(model, "embeddings/", offset=model.arguments["pad_id"] + 1),
)
XLM_ROBERTA = replace(
    ROBERTA,
    backbone="XLMRobertaBackbone",
    arguments=lambda settings: _roberta_arguments(settings, multilingual=True),
)


def _distilbert_arguments(settings: Settings) -> Arguments:
    arguments = {"activation": "gelu", "layer_norm_epsilon": 1e-12, "pooler_activation": "relu"}
    return {**_arguments(settings), **arguments}


DISTILBERT = HubFamily(
    backbone="DistilBertBackbone",
    builder=models.distilbert,
    arguments=_distilbert_arguments,
    table=lambda model: _table(model, "embeddings/"),
)


def _albert_arguments(settings: Settings) -> Arguments:
    settings.only(num_groups=1, num_inner_repetitions=1)
    return {**_bert_arguments(settings), "embedding_dim": settings["embedding_dim"]}


def _albert_table(model: models.Model) -> tuple[Row, ...]:
    rows = [row for row in _table(model) if not row.weight.startswith("encoder_")]
    projection = dense("embedding_projection", "embedding_projection")
    return (*rows, *projection, *block("encoder", "group_0_inner_layer_0", *_sizes(model)))


ALBERT = replace(
    BERT,
    backbone="AlbertBackbone",
    builder=models.albert,
    arguments=_albert_arguments,
    table=_albert_table,
)


def _electra_arguments(settings: Settings) -> Arguments:
    settings.fields["vocabulary_size"] = settings["vocab_size"]
    return {**_bert_arguments(settings), "embedding_dim": settings["embedding_dim"]}


ELECTRA = replace(
    BERT,
    backbone="ElectraBackbone",
    builder=models.electra,
    arguments=_electra_arguments,
    table=lambda model: (
        *_table(model),
        *dense("embedding_projection", "embeddings_projection"),
    ),
)


def _deberta_arguments(settings: Settings) -> Arguments:
    return {
        **_arguments(settings),
        "activation": "gelu",
        "layer_norm_epsilon": 1e-7,
        "num_buckets": settings["bucket_size"],
        "max_distance": settings["max_sequence_length"],
        "pooler_activation": "gelu",
    }


def _deberta_table(model: models.Model) -> tuple[Row, ...]:
    path, layer = "encoder_{i}", "disentangled_attention_encoder_layer_{i}"
    output = "self_attention/output_projection"
    rows = [row for row in block(path, layer, *_sizes(model)) if output not in row.weight]
    table = "encoder_0/self_attention/relative_positions"  # one for all blocks
    return (
        Row("embedding/embeddings", ("token_embedding/embeddings",)),
        *norm("embedding_norm", "embeddings_layer_norm"),
        Row(f"{table}/table", ("rel_embedding/rel_embedding",)),
        *norm(f"{table}/norm", "rel_embedding/rel_embeddings_layer_norm"),
        *rows,
        *dense(f"{path}/{output}", f"{layer}/self_attention_layer/attention_output"),
        *HEADS,
    )


DEBERTA = HubFamily(
    backbone="DebertaV3Backbone",
    builder=models.deberta,
    arguments=_deberta_arguments,
    table=_deberta_table,
)
