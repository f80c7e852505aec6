"""BERT's checkpoints: names, configuration, heads."""

from typing import Any

import keras

from keras_tfm import models
from keras_tfm.checkpoints.config import Config, activation_name
from keras_tfm.checkpoints.mapping import Family, Named, Row
from keras_tfm.layers import (
    PositionEmbedding,
    SegmentEmbedding,
    TokenEmbedding,
    TransformerEncoderBlock,
)

_ATTENTION = "encoder.layer.{i}.attention"
_QKV = tuple(f"{_ATTENTION}.self.{x}" for x in ("query", "key", "value"))
_LAYER = "encoder.layer.{i}"


def _dense(weight: str, *tensors: str, head: bool = False) -> tuple[Row, Row]:
    return (
        Row(f"{weight}/kernel", tuple(f"{x}.weight" for x in tensors), transposed=True, head=head),
        Row(f"{weight}/bias", tuple(f"{x}.bias" for x in tensors), head=head),
    )


def _norm(weight: str, tensor: str, head: bool = False) -> tuple[Row, Row]:
    return (
        Row(f"{weight}/gamma", (f"{tensor}.weight",), head=head),
        Row(f"{weight}/beta", (f"{tensor}.bias",), head=head),
    )


TABLE = (
    Row("embedding/embeddings", ("embeddings.word_embeddings.weight",)),
    Row("segment_embedding/segments", ("embeddings.token_type_embeddings.weight",)),
    Row("positions/positions", ("embeddings.position_embeddings.weight",)),
    *_norm("embedding_norm", "embeddings.LayerNorm"),
    *_dense("encoder_{i}/self_attention/query_key_value", *_QKV),
    *_dense("encoder_{i}/self_attention/output_projection", f"{_ATTENTION}.output.dense"),
    *_norm("encoder_{i}/self_attention_residual/norm", f"{_ATTENTION}.output.LayerNorm"),
    *_dense("encoder_{i}/feed_forward/inner", f"{_LAYER}.intermediate.dense"),
    *_dense("encoder_{i}/feed_forward/outer", f"{_LAYER}.output.dense"),
    *_norm("encoder_{i}/feed_forward_residual/norm", f"{_LAYER}.output.LayerNorm"),
    *_dense("pooler", "pooler.dense"),
    *_dense("transform", "cls.predictions.transform.dense", head=True),
    *_norm("transform_norm", "cls.predictions.transform.LayerNorm", head=True),
    Row("output_bias/bias", ("cls.predictions.bias",), head=True),
    *_dense("next_sentence", "cls.seq_relationship", head=True),
    *_dense("classifier", "classifier", head=True),
    *_dense("span", "qa_outputs", head=True),
)


def _arguments(config: Config, named: Named) -> dict[str, Any]:
    config.only(
        position_embedding_type="absolute",
        is_decoder=False,
        add_cross_attention=False,
        pruned_heads={},
        pad_token_id=0,
        tie_word_embeddings=True,
    )
    return {
        "vocabulary_size": config.integer("vocab_size", 30522),
        "dim": config.integer("hidden_size", 768),
        "num_layers": config.integer("num_hidden_layers", 12, maximum=1000),
        "num_heads": config.integer("num_attention_heads", 12),
        "intermediate_dim": config.integer("intermediate_size", 3072),
        "dropout": config.number("hidden_dropout_prob", 0.1, 1),
        "attention_dropout": config.number("attention_probs_dropout_prob", 0.1, 1),
        "activation": config.activation("hidden_act", "gelu"),
        "layer_norm_epsilon": config.number("layer_norm_eps", 1e-12),
        "max_length": config.integer("max_position_embeddings", 512),
        "num_segments": config.integer("type_vocab_size", 2),
    }


def _classifier_dropout(config: Config) -> Any:
    return config.number("classifier_dropout", None, 1)


_MASKED, _NEXT = "cls.predictions.", "cls.seq_relationship."
ARCHITECTURES = {
    "BertModel": (lambda model, config: model, ("pooler.",)),
    "BertForPreTraining": (
        lambda model, config: models.masked_language_model(model, next_sentence=True),
        ("pooler.", _MASKED, _NEXT),
    ),
    "BertForMaskedLM": (
        lambda model, config: models.masked_language_model(model),
        (_MASKED,),
    ),
    "BertForNextSentencePrediction": (
        lambda model, config: models.next_sentence(model),
        ("pooler.", _NEXT),
    ),
    "BertForSequenceClassification": (
        lambda model, config: models.sequence_classifier(
            model, config.num_labels, _classifier_dropout(config)
        ),
        ("pooler.", "classifier."),
    ),
    "BertForTokenClassification": (
        lambda model, config: models.token_classifier(
            model, config.num_labels, _classifier_dropout(config)
        ),
        ("classifier.",),
    ),
    "BertForQuestionAnswering": (
        lambda model, config: models.question_answering(model),
        ("qa_outputs.",),
    ),
}


def _describe(model: keras.Model) -> tuple[str, dict[str, Any]] | None:
    layers = {layer.name: layer for layer in model.layers}
    blocks = [x for x in layers.values() if isinstance(x, TransformerEncoderBlock)]
    segments = layers.get("segment_embedding")
    embedding, positions = layers.get("embedding"), layers.get("positions")
    if not (
        blocks
        and isinstance(segments, SegmentEmbedding)
        and isinstance(embedding, TokenEmbedding)
        and isinstance(positions, PositionEmbedding)
    ):
        return None
    block, attention = blocks[0], blocks[0].attention_dropout
    config: dict[str, Any] = {
        "vocab_size": embedding.vocabulary_size,
        "hidden_size": embedding.dim,
        "num_hidden_layers": len(blocks),
        "num_attention_heads": block.num_heads,
        "intermediate_size": block.intermediate_dim,
        "hidden_act": activation_name(block.activation),
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": block.dropout if attention is None else attention,
        "max_position_embeddings": positions.max_length,
        "type_vocab_size": segments.num_segments,
        "layer_norm_eps": block.layer_norm_epsilon,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    }
    if "classifier" in layers:
        classes = layers["classifier"].units
        config["classifier_dropout"] = layers["classifier_dropout"].rate
        config["id2label"] = {str(i): f"LABEL_{i}" for i in range(classes)}
        config["label2id"] = {f"LABEL_{i}": i for i in range(classes)}
    return _architecture(model, layers), config


def _architecture(model: keras.Model, layers: dict[str, keras.layers.Layer]) -> str:
    if "classifier" in layers:
        rank = len(layers["classifier"].output.shape)
        return f"BertFor{'Token' if rank == 3 else 'Sequence'}Classification"
    if "span" in layers:
        return "BertForQuestionAnswering"
    if "transform" in layers:
        return "BertForPreTraining" if "next_sentence" in layers else "BertForMaskedLM"
    if "next_sentence" in layers:
        return "BertForNextSentencePrediction"
    if "pooler" in layers:
        return "BertModel"
    raise ValueError(
        f"{model.name} has neither a pooler nor a head, and every BERT checkpoint has one: save "
        "what models.bert or a head of keras_tfm.models made"
    )


BERT = Family(
    model_type="bert",
    builder=models.bert,
    table=lambda model: TABLE,
    arguments=_arguments,
    architectures=ARCHITECTURES,
    describe=_describe,
    prefix="bert.",
    base="BertModel",
    aliases={
        "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    ignored=(r"embeddings\.(position_ids|token_type_ids)",),
    # As Google's own checkpoints were first converted.
    renamed={r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"},
)
