"""DETR checkpoints: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name, dropout_rate
from keras_tfm.checkpoints.encoder_decoders.bart import ALIASES, cross_attention, stack
from keras_tfm.checkpoints.encoders.bert import label_fields
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.image_settings import image_statistics
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, convolution, dense, norm
from keras_tfm.checkpoints.vision.resnet import (
    check_last_stage,
    grid_arguments,
    grid_fields,
    grid_rows,
)
from keras_tfm.models.vision.resnet import SIZES

_BACKBONE = "backbone.conv_encoder.model."
# Names in checkpoints whose ResNet was made by timm, such as facebook/detr-resnet-50.
_TIMM = {
    rf"^{_BACKBONE}conv1\.": f"{_BACKBONE}embedder.embedder.convolution.",
    rf"^{_BACKBONE}bn1\.": f"{_BACKBONE}embedder.embedder.normalization.",
    **{rf"^{_BACKBONE}layer{i + 1}\.": f"{_BACKBONE}encoder.stages.{i}.layers." for i in range(4)},
    **{
        rf"^({_BACKBONE}encoder.*)\.{theirs}{j + 1}\.": rf"\1.layer.{j}.{name}."
        for theirs, name in (("conv", "convolution"), ("bn", "normalization"))
        for j in range(3)
    },
    rf"^({_BACKBONE}encoder.*)\.downsample\.0\.": r"\1.shortcut.convolution.",
    rf"^({_BACKBONE}encoder.*)\.downsample\.1\.": r"\1.shortcut.normalization.",
}


def _backbone(model: models.Model) -> Arguments:
    """The arguments of the ResNet, defaults included."""
    given = model.arguments["backbone"]
    defaults = {"stem_dim": 64, **SIZES["50"]}
    return defaults if given is None else {**defaults, **given}


def _table(model: models.Model) -> tuple[Row, ...]:
    return (
        *grid_rows(_backbone(model), _BACKBONE),
        *convolution("projection", "input_projection"),
        Row("queries/queries", ("query_position_embeddings.weight",)),
        *stack("encoder"),
        *stack("decoder"),
        *cross_attention(),
        *norm("final_norm", "decoder.layernorm"),
        *dense("classifier", "class_labels_classifier", head=True),
        *(
            row
            for i in range(3)
            for row in dense(f"box_{i}", f"bbox_predictor.layers.{i}", head=True)
        ),
    )


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(
        position_embedding_type="sine",
        # transformers then feeds each decoder layer's normalised output to the next one.
        auxiliary_loss=False,
    )
    dim, backbone = config.integer("d_model", 256), config.part("backbone_config")
    return {
        "image_size": config.size("image_size", 800),  # our own field
        "num_classes": config.num_labels,
        "labels": config.labels,
        "num_queries": config.integer("num_queries", 100),
        "dim": dim,
        "num_layers": config.integer("encoder_layers", 6, maximum=1000),
        "num_decoder_layers": config.integer("decoder_layers", 6, maximum=1000),
        "num_heads": _heads(config, "encoder_attention_heads", dim),
        "num_decoder_heads": _heads(config, "decoder_attention_heads", dim),
        "intermediate_dim": config.integer("encoder_ffn_dim", 2048),
        "decoder_intermediate_dim": config.integer("decoder_ffn_dim", 2048),
        "dropout": config.number("dropout", 0.1, 1),
        "attention_dropout": config.number("attention_dropout", 0.0, 1),
        "activation_dropout": config.number("activation_dropout", 0.0, 1),
        "activation": config.activation("activation_function", "relu"),
        "backbone": _backbone_arguments(config),
        **image_statistics(backbone if backbone.fields else config),  # for `num_channels`
    }


def _heads(config: Config, name: str, dim: int) -> int:
    """A number of heads; for others than divisors of the width, transformers computes with more."""
    heads: int = config.integer(name, 8)
    if dim % heads:
        config.refuse(name, heads, f"a divisor of d_model, {dim}")
    return heads


def _backbone_arguments(config: Config) -> Arguments:
    """The ResNet of `backbone_config`, or of timm by its name."""
    part = config.part("backbone_config")
    kind = part.text("model_type", "timm_backbone")
    if kind == "resnet":
        return grid_arguments(part)
    config.only(dilation=False)
    part.only(output_stride=32)
    check_last_stage(part, 4)
    name = part.text("backbone", config.text("backbone", "resnet50"))
    size = name.removeprefix("resnet")
    if kind != "timm_backbone" or size not in SIZES:
        config.refuse("backbone_config", part.fields or name, "a ResNet without dilation")
    return {"stem_dim": 64, **SIZES[size]}


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    channels = len(given["image_mean"])
    decoders = given["num_decoder_layers"]
    fields = {
        "backbone_config": {"model_type": "resnet", **grid_fields(_backbone(model), channels)},
        "use_timm_backbone": False,
        "use_pretrained_backbone": False,  # version 4 of transformers asks for a name otherwise
        "image_size": given["image_size"],
        "num_channels": channels,
        "num_queries": given["num_queries"],
        "d_model": given["dim"],
        "encoder_layers": given["num_layers"],
        "decoder_layers": decoders or given["num_layers"],
        "encoder_attention_heads": given["num_heads"],
        "decoder_attention_heads": given["num_decoder_heads"] or given["num_heads"],
        "encoder_ffn_dim": given["intermediate_dim"],
        "decoder_ffn_dim": given["decoder_intermediate_dim"] or given["intermediate_dim"],
        "dropout": given["dropout"],
        "attention_dropout": dropout_rate(given, given["attention_dropout"]),
        "activation_dropout": given["activation_dropout"],
        "activation_function": activation_name(given["activation"]),
        "position_embedding_type": "sine",
        "auxiliary_loss": False,
        "is_encoder_decoder": True,
    }
    return fields | label_fields(model) if "Detection" in architecture else fields


DETR = Family(
    model_type="detr",
    builder=models.detr,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures={
        "DetrModel": heads.backbone(),
        "DetrForObjectDetection": Architecture(
            kind="object_detector",
            prefixes=("class_labels_classifier.", "bbox_predictor."),
        ),
    },
    names=Names(prefix="model.", ignored=(r".*\.num_batches_tracked",), renamed=_TIMM),
    aliases=ALIASES,
)
