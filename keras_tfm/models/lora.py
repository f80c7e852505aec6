"""LoRA fine-tuning of a whole model."""

from collections.abc import Iterable

import keras

from keras_tfm.arguments import check_integer
from keras_tfm.keras_internals import own_trainable_variables, sublayers
from keras_tfm.models.heads.text_heads import backbone
from keras_tfm.models.model import Model


def enable_lora(
    model: Model, rank: int, alpha: float | None = None, names: Iterable[str] | None = None
) -> int:
    """Freezes a model and adds low-rank adapters to the projections of its blocks.

    The kernel W of each adapted `keras.layers.Dense` becomes W + (alpha / rank) A B, where A
    (in, rank) and B (rank, out) are trained; B starts at zero. "LoRA: Low-Rank Adaptation of Large
    Language Models" (arXiv:2106.09685). All other weights of the embedding and the blocks are
    frozen, biases too; a head stays trainable. Call it before `compile`. Layers multiply with A and
    B one after the other, so a step of training computes no gradient of W.

    Adapters cost nothing on a device: `.keras` files, `export_tflite`, `save_huggingface` and
    `with_dtype` merge them into the kernels. `export_tflite(..., separate_adapters=True)` and
    `save_adapter` keep them in files of their own; `checkpoints.save_peft` writes them for PEFT.

    Args:
        model: `keras.Model` made by a builder of `keras_tfm.models`, with or without a head. It
            is changed.
        rank: int, rank of the adapters.
        alpha: float, scale of the adapters. Default: `rank`, a scale of 1.
        names: list of str, names of the projections to adapt, such as
            `("query_key_value", "output_projection")` for attention only. Default: all in the
            blocks.

    Returns:
        The number of adapted projections.

    Raises:
        TypeError: the model was not made by a builder, or rank is not an integer.
        ValueError: a name is not that of a projection in the blocks, or the rank is not positive,
            or the model has adapters already.

    Example:

    >>> import numpy as np
    >>> from keras_tfm import models
    >>> bert = models.bert(50, dim=16, num_layers=2, num_heads=2, max_length=8)
    >>> classifier = models.sequence_classifier(bert, 3)
    >>> models.enable_lora(classifier, rank=2)
    8
    >>> sum(int(np.prod(x.shape)) for x in classifier.trainable_weights) < classifier.count_params()
    True
    """
    check_integer("rank", rank, minimum=1)
    if not isinstance(model, Model) or not getattr(model, "blocks", None):
        raise TypeError(
            "expected a model made by a builder of keras_tfm.models, got "
            f"{model.name if isinstance(model, keras.Model) else type(model).__name__}; for others "
            "call enable_lora of the layers"
        )
    projections = [
        layer
        for block in model.blocks
        for layer in sublayers(block)
        if isinstance(layer, keras.layers.Dense)
    ]
    if any(layer.lora_enabled for layer in projections):
        raise ValueError(f"{model.name} has adapters already")
    known = dict.fromkeys(layer.name for layer in projections)
    if not known:
        raise ValueError(f"{model.name} has no blocks with dense layers, which adapters are for")
    wanted = known if names is None else list(names)
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise ValueError(f"names must be of {', '.join(known)}, got {unknown or wanted}")
    # A model of two towers, such as `clip`, has no features: all of it is the backbone.
    # Blocks of regions may be outside the backbone, which ends in the features of the text.
    for part in (model if model.features is None else backbone(model), *model.blocks):
        for layer in sublayers(part):
            for variable in own_trainable_variables(layer):
                variable.trainable = False
    adapted = [layer for layer in projections if layer.name in wanted]
    for layer in adapted:
        layer.enable_lora(rank, lora_alpha=alpha)
    return len(adapted)
