"""What checkpoints of vision-language models share: SigLIP's encoder, and the parts of a table.

Example:

>>> from keras_tfm.checkpoints.rows import Row
>>> from keras_tfm.checkpoints.vision.image_tokens import part_rows
>>> part_rows([Row("embedding/embeddings", ("embed_tokens.weight",))], "language_model.")[0].tensors
('language_model.embed_tokens.weight',)
"""

import dataclasses
from collections.abc import Iterable

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import Row, convolution, norm
from keras_tfm.checkpoints.vision.clip import block_rows, side, tower_arguments
from keras_tfm.models.vision.image_tokens import image_encoder_arguments


def image_rows(prefix: str) -> tuple[Row, ...]:
    """The rows of SigLIP's encoder without pooling, whose tensors begin with `prefix`."""
    return (
        *convolution("image_patches/projection", f"{prefix}embeddings.patch_embedding"),
        Row("image_positions/positions", (f"{prefix}embeddings.position_embedding.weight",)),
        *block_rows("image", prefix),
        *norm("image_final_norm", f"{prefix}post_layernorm"),
    )


def part_rows(rows: Iterable[Row], prefix: str) -> tuple[Row, ...]:
    """The rows of a language model, with a prefix for the tensors outside the head."""
    return tuple(
        row
        if row.head
        else dataclasses.replace(row, tensors=tuple(prefix + x for x in row.tensors))
        for row in rows
    )


def encoder_arguments(config: Config, dim: int = 768, heads: int = 12) -> Arguments:
    """The arguments of the image encoder, with the defaults of transformers."""
    arguments = tower_arguments(
        config, dim=dim, heads=heads, width=3072, activation="gelu_pytorch_tanh", epsilon=1e-6
    )
    del arguments["dropout"]
    return arguments


def encoder_fields(model: models.Model) -> Fields:
    """The fields of `vision_config` for the arguments of the image encoder."""
    given = model.arguments
    tower = image_encoder_arguments(given["image"])
    return {
        "hidden_size": tower["dim"],
        "num_hidden_layers": tower["num_layers"],
        "num_attention_heads": tower["num_heads"],
        "intermediate_size": tower["intermediate_dim"],
        "hidden_act": activation_name(tower["activation"]),
        "layer_norm_eps": tower["layer_norm_epsilon"],
        "attention_dropout": tower["attention_dropout"],
        "image_size": side("image_size", given["image_size"]),
        "patch_size": side("patch_size", given["patch_size"]),
        "num_channels": len(given["image_mean"]),
    }


def read_image_id(
    config: Config, named: Named, field: str, default: int, size: int, embeddings: str
) -> int:
    """The placeholder token, which must be in the vocabulary of a folder with weights.

    Args:
        config, named: the configuration and the tensors' names.
        field: str, the name of the field.
        default: int, its value if it is missing.
        size: int, the size of the vocabulary.
        embeddings: str, the tensor of the embeddings.
    """
    image_id = config.integer(field, default, minimum=0)
    if embeddings in named.own and image_id >= size:
        config.refuse(field, image_id, f"an id of the vocabulary, 0 to {size - 1}")
    return image_id
