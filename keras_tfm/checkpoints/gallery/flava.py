"""FLAVA's image codebook, the encoder of a discrete VAE: tensor names and configuration."""

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields
from keras_tfm.checkpoints.family import Architecture, Family
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import Row, convolution

# The class has as many, whatever its configuration says.
_GROUPS = 4


def _table(model: models.Model) -> tuple[Row, ...]:
    per_group = model.arguments["num_blocks"]
    rows = [
        *convolution("encoder_input", "blocks.input"),
        *convolution("encoder_output", "blocks.output.conv"),
    ]
    for i in range(_GROUPS * per_group):
        group, block = i // per_group + 1, i % per_group + 1
        theirs, ours = f"blocks.group_{group}.group.block_{block}", f"encoder_{i}"
        rows += convolution(f"{ours}/shortcut", f"{theirs}.id_path")
        for j in range(4):
            tensor = f"{theirs}.res_path.path.conv_{j + 1}"
            rows += convolution(f"{ours}/convolution_{j}", tensor)
    return tuple(rows)


def _arguments(config: Config, named: Named) -> Arguments:
    # Their product scales the residuals.
    config.only(num_groups=_GROUPS, input_channels=3)
    return {
        "image_size": None,
        "vocabulary_size": config.integer("vocab_size", 8192),
        "dim": config.integer("hidden_size", 256),
        "num_groups": _GROUPS,
        "num_blocks": config.integer("num_blocks_per_group", 2),
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    channels = len(given["image_mean"])
    if given["num_groups"] != _GROUPS or channels != 3:
        raise ValueError(
            f"{model.name}: a codebook of FLAVA has {_GROUPS} groups and 3 channels, "
            f"got num_groups={given['num_groups']} and {channels} channels"
        )
    return {
        "vocab_size": given["vocabulary_size"],
        "hidden_size": given["dim"],
        "num_groups": _GROUPS,
        "num_blocks_per_group": given["num_blocks"],
        "input_channels": channels,
    }


FLAVA_CODEBOOK = Family(
    model_type="flava_image_codebook",
    builder=models.dvae_encoder,
    table=_table,
    arguments=_arguments,
    fields=_fields,
    architectures={"FlavaImageCodebook": Architecture()},
)
