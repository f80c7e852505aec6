"""What checkpoints of vision-language models share: SigLIP's encoder, and the parts of a table.

Example:

>>> from keras_tfm.checkpoints.rows import Row
>>> from keras_tfm.checkpoints.vision.image_tokens import part_rows
>>> part_rows([Row("embedding/embeddings", ("embed_tokens.weight",))], "language_model.")[0].tensors
('language_model.embed_tokens.weight',)
"""

import dataclasses
import math
from collections.abc import Iterable

import numpy as np

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import Row, convolution, norm
from keras_tfm.checkpoints.transforms import Transform
from keras_tfm.checkpoints.vision.clip import block_rows, side, tower_arguments
from keras_tfm.layers.types import Shape
from keras_tfm.models.vision.image_tokens import image_encoder_arguments


class PatchMatrix(Transform):
    """The kernel (height, width, C, D) of a convolution, of a matrix (D, height width C)."""

    def __init__(self, window: tuple[int, ...]):
        self.window = window

    def _shape(self, shape: Shape) -> Shape:
        return (shape[-1], math.prod(shape[:-1]))

    def _load(self, array: np.ndarray) -> np.ndarray:
        return array.T.reshape(*self.window, -1)

    def _save(self, value: np.ndarray) -> np.ndarray:
        return value.reshape(-1, value.shape[-1]).T


def image_rows(prefix: str, window: tuple[int, int, int] | None = None) -> tuple[Row, ...]:
    """The rows of SigLIP's encoder without pooling.

    Args:
        prefix: str, with which the tensors begin.
        window: height, width and channels of a patch, for the encoder of SigLIP 2 NaFlex.
    """
    patches = f"{prefix}embeddings.patch_embedding"
    kernel, bias = convolution("image_patches/projection", patches)
    if window is not None:
        kernel = dataclasses.replace(kernel, transform=PatchMatrix(window))
    return (
        kernel,
        bias,
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
    patch_size = side("patch_size", given["patch_size"])
    if "position_size" in given:  # of NaFlex, whose images may have any size
        rows = side("position_size", given["position_size"]) // patch_size
        size = {"num_patches": rows**2}
    else:
        size = {"image_size": side("image_size", given["image_size"])}
    return {
        "hidden_size": tower["dim"],
        "num_hidden_layers": tower["num_layers"],
        "num_attention_heads": tower["num_heads"],
        "intermediate_size": tower["intermediate_dim"],
        "hidden_act": activation_name(tower["activation"]),
        "layer_norm_eps": tower["layer_norm_epsilon"],
        "attention_dropout": tower["attention_dropout"],
        **size,
        "patch_size": patch_size,
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
