"""Depth Anything checkpoints, versions 1 and 2: tensor names and configuration."""

from dataclasses import replace

import numpy as np

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, convolution
from keras_tfm.checkpoints.transforms import Transposed
from keras_tfm.checkpoints.vision import dinov2

_FACTORS, _STAGES = [4, 2, 1, 0.5], range(4)
_FUSION = "neck.fusion_stage.layers"
# What the builder has, with other names or shapes than DINOv2's.
_OWN = ("distillation_token", "num_registers", "antialias")


def _table(model: models.Model) -> tuple[Row, ...]:
    backbone = (
        replace(row, tensors=tuple(f"backbone.{name}" for name in row.tensors))
        for row in dinov2.table(model)
    )
    return (*backbone, *(row for i in _STAGES for row in _neck(i)), *_head())


def _neck(i: int) -> tuple[Row, ...]:
    """The rows of one of the four maps; fusion goes from the last to the first."""
    layer = f"neck.reassemble_stage.layers.{i}"
    resize = convolution(f"resize_{i}", f"{layer}.resize")
    if i < 2:  # a transposed convolution: (in, out, height, width)
        kernel = Row(f"resize_{i}/kernel", (f"{layer}.resize.weight",), Transposed((2, 3, 1, 0)))
        resize = (kernel, resize[1])
    return (
        *convolution(f"reassemble_{i}", f"{layer}.projection"),
        *resize,
        *convolution(f"neck_{i}", f"neck.convs.{i}", bias=False),
        *convolution(f"fusion_{i}_projection", f"{_FUSION}.{i}.projection"),
        *(
            row
            for j in range(2)
            for k in range(2)
            for row in convolution(
                f"fusion_{i}_residual_{j}_{k}",
                f"{_FUSION}.{i}.residual_layer{j + 1}.convolution{k + 1}",
            )
        ),
    )


def _head() -> tuple[Row, ...]:
    return tuple(row for i in range(3) for row in convolution(f"depth_{i}", f"head.conv{i + 1}"))


def _unread_tensors(model: models.Model) -> dict[str, np.ndarray]:
    """The convolutions of a finer map in the first fusion, which has one map alone."""
    dim = model.arguments["fusion_dim"]
    shapes = {"weight": (dim, dim, 3, 3), "bias": (dim,)}
    return {
        f"{_FUSION}.0.residual_layer1.convolution{k}.{name}": np.zeros(shape, "float32")
        for k in (1, 2)
        for name, shape in shapes.items()
    }


# The backbone of a configuration without one.
_BACKBONE: Fields = {
    "model_type": "dinov2", "hidden_size": 384, "num_attention_heads": 6, "image_size": 518,
    "out_indices": [9, 10, 11, 12], "reshape_hidden_states": False,
}  # fmt: skip


def _blocks(config: Config, part: Config, num_layers: int) -> list[int]:
    """The numbers of the blocks, from `out_indices` or `out_features`, in which 0 is no block."""
    found = part.fields.get("out_indices")
    if found is None:
        names = part.fields.get("out_features")
        known = {f"stage{i}": i for i in range(1, num_layers + 1)}
        found = [known.get(x) for x in names] if isinstance(names, list) else names
    elif isinstance(found, list):  # negative numbers count from the end
        found = [x + num_layers + 1 if type(x) is int and x < 0 else x for x in found]
    if (
        not isinstance(found, list)
        or len(found) != len(_FACTORS)
        or not all(type(x) is int and 0 < x <= num_layers for x in found)
        or sorted(set(found)) != found
    ):
        name = "out_indices" if "out_indices" in part.fields else "out_features"
        expected = f"four numbers of blocks from 1 to {num_layers}, in increasing order"
        config.refuse(name, part.fields.get(name), expected)
    return [x - 1 for x in found]


def _arguments(config: Config, named: Named) -> Arguments:
    config.only(
        reassemble_factors=_FACTORS, head_in_index=-1, backbone=None, use_timm_backbone=False
    )
    part = config.part("backbone_config")
    part.fields = part.fields or _BACKBONE
    part.only(model_type="dinov2", apply_layernorm=True)
    for name, expected in (("model_type", "dinov2"), ("reshape_hidden_states", False)):
        if part.fields.get(name) != expected:
            config.refuse(name, part.fields.get(name), repr(expected))
    arguments = dinov2.arguments(part, named)
    dim, patch = arguments["dim"], part.integer("patch_size", 14)
    for name, value in (("reassemble_hidden_size", dim), ("patch_size", patch)):
        found = config.integer(name, 384 if name != "patch_size" else 14)
        if found != value:
            config.refuse(name, found, f"that of backbone_config, {value}")
    kind = config.text("depth_estimation_type", "relative")
    if kind not in ("relative", "metric"):
        config.refuse("depth_estimation_type", kind, "relative or metric")
    return {
        **{name: x for name, x in arguments.items() if name not in _OWN},
        "patch_size": patch,
        "features_of": _blocks(config, part, arguments["num_layers"]),
        "reassemble_dims": list(config.integers("neck_hidden_sizes", (48, 96, 192, 384))),
        "fusion_dim": config.integer("fusion_hidden_size", 64),
        "head_dim": config.integer("head_hidden_size", 32),
        "metric": kind == "metric",
        "max_depth": config.number("max_depth", 1),
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    depth = given["max_depth"]
    if int(depth) != depth:
        raise ValueError(f"{model.name}: max_depth must be an integer to be saved, got {depth}")
    backbone = {
        "model_type": "dinov2",
        **dinov2.fields(model, ""),
        "out_indices": [i % given["num_layers"] + 1 for i in given["features_of"]],
        "apply_layernorm": True,
        "reshape_hidden_states": False,
    }
    return {
        "backbone_config": backbone,
        "backbone": None,
        "patch_size": given["patch_size"],
        "reassemble_hidden_size": given["dim"],
        "reassemble_factors": _FACTORS,
        "neck_hidden_sizes": given["reassemble_dims"],
        "fusion_hidden_size": given["fusion_dim"],
        "head_in_index": -1,
        "head_hidden_size": given["head_dim"],
        "depth_estimation_type": "metric" if given["metric"] else "relative",
        "max_depth": int(depth),
    }


DEPTH_ANYTHING = Family(
    model_type="depth_anything",
    builder=models.depth_anything,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures={"DepthAnythingForDepthEstimation": Architecture(kind="depth_estimator")},
    names=Names(ignored=(r"backbone\.embeddings\.mask_token",)),
    unused=_unread_tensors,
)
