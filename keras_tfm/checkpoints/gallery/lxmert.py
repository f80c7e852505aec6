"""LXMERT checkpoints: tensor names, configuration and heads."""

import numpy as np

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name, dropout_rate
from keras_tfm.checkpoints.encoders.bert import ENCODER, check_tied
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, entries, norm

_QKV = ("query", "key", "value")
_EPSILON = 1e-12  # transformers has no field for it


def _block(ours: str, attention: str, inner: str, outer: str) -> tuple[Row, ...]:
    """The rows of one self-attention block."""
    return (
        *dense(f"{ours}/self_attention/query_key_value", *(f"{attention}.self.{x}" for x in _QKV)),
        *dense(f"{ours}/self_attention/output_projection", f"{attention}.output.dense"),
        *norm(f"{ours}/self_attention_residual/norm", f"{attention}.output.LayerNorm"),
        *dense(f"{ours}/feed_forward/inner", f"{inner}.dense"),
        *dense(f"{ours}/feed_forward/outer", f"{outer}.dense"),
        *norm(f"{ours}/feed_forward_residual/norm", f"{outer}.LayerNorm"),
    )


def _of_cross(ours: str, theirs: str) -> tuple[Row, ...]:
    """The rows of one stream's block after the cross-attention."""
    block = f"encoder.x_layers.{{i}}.{theirs}"
    return _block(f"{ours}_{{i}}", f"{block}_self_att", f"{block}_inter", f"{block}_output")


_REGIONS = "encoder.visn_fc"
_RELATED = "encoder.r_layers.{i}"
_SHARED = "encoder.x_layers.{i}.visual_attention"
_OBJECTS = "obj_predict_head"
_ANSWER = "answer_head.logit_fc"
TABLE = (
    *ENCODER,
    *dense("region_embedding/feature_projection", f"{_REGIONS}.visn_fc"),
    *norm("region_embedding/norm", f"{_REGIONS}.visn_layer_norm"),
    *dense("region_embedding/box_projection", f"{_REGIONS}.box_fc"),
    *norm("region_embedding/box_norm", f"{_REGIONS}.box_layer_norm"),
    *_block(
        "visual_encoder_{i}", f"{_RELATED}.attention", f"{_RELATED}.intermediate",
        f"{_RELATED}.output",
    ),
    *(
        row
        for x in _QKV
        for row in dense(f"cross_{{i}}/cross_attention/{x}", f"{_SHARED}.att.{x}")
    ),
    *dense("cross_{i}/cross_attention/output_projection", f"{_SHARED}.output.dense"),
    *norm("cross_{i}/cross_attention_residual/norm", f"{_SHARED}.output.LayerNorm"),
    *_of_cross("cross_text", "lang"),
    *_of_cross("cross_visual", "visn"),
    *dense("pooler", "pooler.dense"),
    *dense("transform", "cls.predictions.transform.dense", head=True),
    *norm("transform_norm", "cls.predictions.transform.LayerNorm", head=True),
    Row("output_bias/bias", ("cls.predictions.bias",), head=True),
    *dense("matching", "cls.seq_relationship", head=True),
    *dense("region_transform", f"{_OBJECTS}.transform.dense", head=True),
    *norm("region_transform_norm", f"{_OBJECTS}.transform.LayerNorm", head=True),
    *dense("region_classes", f"{_OBJECTS}.decoder_dict.obj", head=True),
    *dense("region_attributes", f"{_OBJECTS}.decoder_dict.attr", head=True),
    *dense("region_regression", f"{_OBJECTS}.decoder_dict.feat", head=True),
    *dense("answer_inner", f"{_ANSWER}.0", head=True),
    *norm("answer_norm", f"{_ANSWER}.2", head=True),
    *dense("answer", f"{_ANSWER}.3", head=True),
)  # fmt: skip


def _unused_tensors(model: models.Model) -> dict[str, np.ndarray]:
    """The last block of regions in a model whose head reads the text alone."""
    given = model.arguments
    name = f"cross_visual_{given['num_cross_layers'] - 1}"
    if any(layer.name == name for layer in model.layers):
        return {}
    # The text's block beside it has the same shapes.
    twin = [
        x
        for x in entries(TABLE, model, "lxmert")
        if x.weight.path.startswith(f"cross_text_{given['num_cross_layers'] - 1}/")
    ]
    return {
        tensor.replace(".lang_", ".visn_"): np.full(
            shape, float(entry.weight.path.endswith("gamma")), "float32"
        )
        for entry in twin
        for tensor, shape in entry.shapes.items()
    }


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(visual_pos_dim=4)
    check_tied(config, named)
    return {
        "vocabulary_size": config.integer("vocab_size", 30522),
        "dim": config.integer("hidden_size", 768),
        "num_layers": config.integer("l_layers", 9, maximum=1000),
        "num_visual_layers": config.integer("r_layers", 5, minimum=0, maximum=1000),
        "num_cross_layers": config.integer("x_layers", 5, maximum=1000),
        "num_heads": config.integer("num_attention_heads", 12),
        "intermediate_dim": config.integer("intermediate_size", 3072),
        "dropout": config.number("hidden_dropout_prob", 0.1, 1),
        "attention_dropout": config.number("attention_probs_dropout_prob", 0.1, 1),
        "activation": config.activation("hidden_act", "gelu"),
        "max_length": config.integer("max_position_embeddings", 512),
        "num_segments": config.integer("type_vocab_size", 2),
        "region_dim": config.integer("visual_feat_dim", 2048),
        "num_regions": config.integer("num_regions", None),  # our own fields
        "region_mask": config.flag("region_mask", False),
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    if given["layer_norm_epsilon"] != _EPSILON:
        raise ValueError(
            f"layer_norm_epsilon must be {_EPSILON} to be saved, the only one that transformers "
            f"has for LXMERT, got {given['layer_norm_epsilon']}"
        )
    fields = {
        "vocab_size": given["vocabulary_size"],
        "hidden_size": given["dim"],
        "l_layers": given["num_layers"],
        "r_layers": given["num_visual_layers"],
        "x_layers": given["num_cross_layers"],
        "num_attention_heads": given["num_heads"],
        "intermediate_size": given["intermediate_dim"],
        "hidden_dropout_prob": given["dropout"],
        "attention_probs_dropout_prob": dropout_rate(given, given["attention_dropout"]),
        "hidden_act": activation_name(given["activation"]),
        "max_position_embeddings": given["max_length"],
        "type_vocab_size": given["num_segments"],
        "visual_feat_dim": given["region_dim"],
        "visual_pos_dim": 4,
        "num_regions": given["num_regions"],
        "region_mask": given["region_mask"],
    }
    return fields if model.head is None else fields | _head_fields(model.head.arguments)


def _head_fields(given: Arguments) -> Fields:
    """The fields of a head; absent tasks have no number of labels."""
    answers, attributes = given["num_answers"], given.get("num_region_attributes")
    fields = {"task_qa": answers is not None, "num_qa_labels": answers}
    if "num_region_classes" in given:
        fields |= {
            "num_object_labels": given["num_region_classes"],
            "visual_attr_loss": attributes is not None,
            "num_attr_labels": attributes,
            "visual_feat_loss": given["region_features"],
        }
    return {name: value for name, value in fields.items() if value is not None}


def _pretraining(model: models.Model, config: Config) -> models.Model:
    config.only(task_obj_predict=True, visual_obj_loss=True)
    has_attributes = config.flag("visual_attr_loss", True)
    has_answers = config.flag("task_qa", True)
    return models.image_text_pretraining(
        model,
        config.integer("num_object_labels", 1600),
        config.integer("num_attr_labels", 400) if has_attributes else None,
        config.flag("visual_feat_loss", True),
        config.integer("num_qa_labels", 9500) if has_answers else None,
    )


LXMERT = Family(
    model_type="lxmert",
    builder=models.lxmert,
    table=lambda model: TABLE,
    arguments=_arguments,
    fields=_fields,
    architectures={
        "LxmertModel": Architecture(),
        "LxmertForQuestionAnswering": Architecture(
            lambda model, config: models.visual_question_answering(
                model, config.integer("num_qa_labels", 9500)
            ),
            "visual_question_answering",
            prefixes=("answer_head.",),
        ),
        "LxmertForPreTraining": Architecture(_pretraining, "image_text_pretraining"),
    },
    names=Names(
        prefix="lxmert.",
        aliases={"cls.predictions.decoder.weight": "embeddings.word_embeddings.weight"},
    ),
    unused=_unused_tensors,
)
