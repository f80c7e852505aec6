"""ResNet checkpoints: tensor names, configuration and heads."""

import numpy as np

from keras_tfm import models
from keras_tfm.checkpoints import heads
from keras_tfm.checkpoints.config import Arguments, Config, Fields
from keras_tfm.checkpoints.encoders.bert import label_fields
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.image_settings import image_statistics
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, batch_norm, convolution, dense


def grid_rows(given: Arguments, prefix: str = "") -> tuple[Row, ...]:
    """The rows of the layers between pixels and the feature map.

    Args:
        given: the arguments `depths` and `bottleneck` of `models.resnet`.
        prefix: str, prefix of the tensors' names.
    """

    def pair(ours: tuple[str, str], tensor: str) -> tuple[Row, ...]:
        return (
            *convolution(ours[0], f"{prefix}{tensor}.convolution", bias=False),
            *batch_norm(ours[1], f"{prefix}{tensor}.normalization"),
        )

    rows = [*pair(("stem", "stem_norm"), "embedder.embedder")]
    for stage, depth in enumerate(given["depths"]):
        for i in range(depth):
            block = f"stage_{stage}_block_{i}"
            tensor = f"encoder.stages.{stage}.layers.{i}"
            for j in range(3 if given["bottleneck"] else 2):
                names = f"{block}/convolution_{j}", f"{block}/norm_{j}"
                rows += pair(names, f"{tensor}.layer.{j}")
            rows += pair((f"{block}/shortcut", f"{block}/shortcut_norm"), f"{tensor}.shortcut")
    return tuple(rows)


def _table(model: models.Model) -> tuple[Row, ...]:
    return (*grid_rows(model.arguments), *dense("classifier", "classifier.1", head=True))


def grid_arguments(config: Config) -> Arguments:
    """The builder's arguments of the layers between pixels and the feature map."""
    config.only(hidden_act="relu", downsample_in_first_stage=False)
    layer_type = config.text("layer_type", "bottleneck")
    if layer_type == "bottleneck":
        config.only(downsample_in_bottleneck=False)
    if layer_type not in ("basic", "bottleneck"):
        config.refuse("layer_type", layer_type, "'basic' or 'bottleneck'")
    dims = config.integers("hidden_sizes", (256, 512, 1024, 2048))
    depths = config.integers("depths", (3, 4, 6, 3))
    if len(dims) != len(depths):
        config.refuse("depths", list(depths), f"a list of {len(dims)}, as hidden_sizes is")
    features = config.fields.get("out_features")
    if features is not None and features[-1:] != [f"stage{len(depths)}"]:
        config.refuse("out_features", features, f"a list that ends with 'stage{len(depths)}'")
    check_last_stage(config, len(depths))
    return {
        "stem_dim": config.integer("embedding_size", 64),
        "dims": dims,
        "depths": depths,
        "bottleneck": layer_type == "bottleneck",
    }


def check_last_stage(config: Config, stages: int) -> None:
    """Raises if `out_indices` chooses another map than that of the last stage; 0 is the stem."""
    indices = config.fields.get("out_indices")
    last = indices[-1:] if isinstance(indices, list) else None
    if indices is not None and last not in ([stages], [-1]):
        config.refuse("out_indices", indices, f"a list that ends with {stages}")


def grid_fields(given: Arguments, channels: int) -> Fields:
    """The fields of `config.json` for these layers."""
    stages = [f"stage{i + 1}" for i in range(len(given["depths"]))]
    return {
        "num_channels": channels,
        "embedding_size": given["stem_dim"],
        "hidden_sizes": list(given["dims"]),
        "depths": list(given["depths"]),
        "layer_type": "bottleneck" if given["bottleneck"] else "basic",
        "hidden_act": "relu",
        "downsample_in_first_stage": False,
        "downsample_in_bottleneck": False,
        "out_features": stages[-1:],
        "out_indices": [len(stages)],
        "stage_names": ["stem", *stages],
    }


def _arguments(config: Config, named: Named) -> Arguments:
    size = config.size("image_size", 224)  # our own field
    return {"image_size": size, **grid_arguments(config), **image_statistics(config)}


def _fields(model: models.Model, architecture: str) -> Fields:
    fields = grid_fields(model.arguments, len(model.arguments["image_mean"]))
    fields["image_size"] = model.arguments["image_size"]
    return fields | label_fields(model) if "Classification" in architecture else fields


def _batches(model: models.Model) -> dict[str, np.ndarray]:
    """PyTorch's counts of training batches, which `transformers` expects and nothing reads."""
    ends = ".normalization.running_var"
    weights = {x.path for x in model.weights}
    rows = [row for row in grid_rows(model.arguments) if row.weight in weights]
    names = [name for row in rows for name in row.tensors if name.endswith(ends)]
    counted = [name.removesuffix("running_var") + "num_batches_tracked" for name in names]
    return {name: np.zeros((), "int64") for name in counted}


RESNET = Family(
    model_type="resnet",
    builder=models.resnet,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures={
        "ResNetModel": Architecture(),
        "ResNetForImageClassification": heads.image_classifier("mean", "classifier."),
    },
    names=Names(prefix="resnet.", ignored=(r".*\.num_batches_tracked",)),
    constants=_batches,
)
