"""Smaller learning rates for lower blocks."""

import keras

from keras_tfm import keras_internals, optimizer_internals
from keras_tfm.arguments import check_positive
from keras_tfm.distributed.optimizer import innermost
from keras_tfm.layers import AttentionPosition
from keras_tfm.layers.transformer_block import TransformerBlock


def layer_decay(
    optimizer: keras.optimizers.Optimizer, model: keras.Model, rate: float = 0.75
) -> keras.optimizers.Optimizer:
    """Lets lower blocks learn more slowly than upper ones when a trained model is fine-tuned.

    The learning rate of block l of L, counted from 1, is multiplied by rate^(L + 1 - l); that of
    embeddings and of everything before the first block by rate^(L + 1); that of everything after
    the last block, such as the head, by 1. Weight decay is scaled with it. The blocks of an encoder
    and of a decoder are counted in one row. "ELECTRA" (arXiv:2003.10555), appendix A; "BEiT"
    (arXiv:2106.08254) and MAE (arXiv:2111.06377) use it for images, with rates of 0.65 to 0.75.

    Call it when you compile the model:

        model.compile(layer_decay(keras.optimizers.AdamW(1e-3), model, 0.75), ...)

    Keras does not save the factors in a .keras file: after loading a model, call it again on
    `model.optimizer` before `fit`.

    Args:
        optimizer: `keras.optimizers.Optimizer`, or a `LossScaleOptimizer` around one.
        model: `keras.Model` that it trains, already built.
        rate: float, above 0 and at most 1, the factor from one block to the one below.

    Returns:
        The same optimizer.

    Raises:
        TypeError: `rate` is not a number.
        ValueError: `rate` is out of range, the model has no weights yet or no transformer blocks,
            or the optimizer has factors already.

    Example:

    >>> import keras
    >>> from keras_tfm import models, training
    >>> body = models.vit(32, 8, dim=12, num_layers=2, num_heads=3, intermediate_dim=16)
    >>> model = models.image_classifier(body, num_classes=5)
    >>> optimizer = training.layer_decay(keras.optimizers.AdamW(1e-3), model, rate=0.5)
    """
    check_positive("rate", rate)
    if rate > 1:
        raise ValueError(f"rate must be at most 1, got {rate}")
    if not model.weights:
        raise ValueError(f"expected a model that is built, got {model.name} without weights")
    inner = innermost(optimizer)
    if optimizer_internals.updates_are_scaled(inner):
        raise ValueError(f"layer_decay was called for this optimizer before: {inner.name}")
    depths, blocks = _depths(model)
    if not blocks:
        raise ValueError(f"expected a model with transformer blocks, got {model.name} without any")
    groups: dict[int, list[keras.Variable]] = {}
    for variable in model.trainable_weights:
        # A weight of the model itself, such as DINO's prototypes, is behind the blocks.
        groups.setdefault(depths.get(id(variable), blocks + 1), []).append(variable)
    factors = [(rate ** (blocks + 1 - depth), group) for depth, group in groups.items()]
    optimizer_internals.scale_updates(inner, factors)
    return optimizer


def _depths(model: keras.Model) -> tuple[dict[int, int], int]:
    """The depth of each trainable weight, by its id, and the number of blocks."""
    depths: dict[int, int] = {}
    blocks, waiting = 0, list(model.layers)
    above: list[keras.Variable] = []  # the weights behind the last block so far
    while waiting:
        layer = waiting.pop(0)
        if isinstance(layer, keras.Model):
            waiting = [*layer.layers, *waiting]
            continue
        weights = [x for x in layer.trainable_weights if id(x) not in depths]
        if isinstance(layer, TransformerBlock):
            blocks += 1
            above = []
            depths |= {id(x): blocks for x in weights}
        elif blocks and not _is_embedding(layer):
            above += weights
            depths |= {id(x): blocks for x in weights}
        else:
            depths |= {id(x): 0 for x in weights}
    return depths | {id(x): blocks + 1 for x in above}, blocks


def _is_embedding(layer: keras.layers.Layer) -> bool:
    parts = [layer, *keras_internals.sublayers(layer)]
    return any(isinstance(x, AttentionPosition) or "Embedding" in type(x).__name__ for x in parts)
