"""Excludes biases, norms and embeddings from weight decay."""

import keras

from keras_tfm import keras_internals
from keras_tfm.distributed.optimizer import innermost
from keras_tfm.layers import AttentionPosition

# Parts of the names of layers whose own weights are scales of norms, or vectors that are looked up,
# each learned for a token or a place.
_NORMS = ("Normalization",)
_TABLES = ("Embedding", "Position", "PrefixTokens", "ObjectQueries", "AttentionPooling")


def exclude_from_weight_decay(
    optimizer: keras.optimizers.Optimizer, model: keras.Model, embeddings: bool = True
) -> keras.optimizers.Optimizer:
    """Excludes biases, norm scales and embeddings from weight decay, so that only kernels decay.

    It excludes every weight with fewer than two axes, every bias, the scales of norms, and the
    tables of embeddings and positions, with learned tokens and queries. Call it when you compile
    the model:

        model.compile(exclude_from_weight_decay(keras.optimizers.AdamW(1e-3), model), ...)

    Keras does not save the exclusion in a .keras file: after loading a model, call it again on
    `model.optimizer` before `fit`.

    Args:
        optimizer: `keras.optimizers.Optimizer` with weight decay, or a `LossScaleOptimizer` around
            one.
        model: `keras.Model` that it trains, already built.
        embeddings: bool, whether to exclude the tables of embeddings and positions, learned tokens
            and learned queries too. BERT does not exclude them (arXiv:1810.04805).

    Returns:
        The same optimizer.

    Raises:
        ValueError: the optimizer has no weight decay, or the model has no weights yet.

    Example:

    >>> import keras
    >>> from keras_tfm.models import transformer
    >>> from keras_tfm.training import exclude_from_weight_decay
    >>> model = transformer(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> optimizer = exclude_from_weight_decay(keras.optimizers.AdamW(weight_decay=0.1), model)
    """
    inner = innermost(optimizer)
    if inner.weight_decay is None:
        raise ValueError(f"expected an optimizer with a weight_decay, got {inner.name} with none")
    if not model.weights:
        raise ValueError(f"expected a model that is built, got {model.name} without weights")
    excluded = [x for x in model.trainable_weights if len(x.shape) < 2 or "bias" in x.name]
    parts = (*_NORMS, *_TABLES) if embeddings else _NORMS
    for layer in keras_internals.sublayers(model):
        is_position = embeddings and isinstance(layer, AttentionPosition)
        if is_position or any(part in type(layer).__name__ for part in parts):
            excluded += keras_internals.own_trainable_variables(layer)
    inner.exclude_from_weight_decay(var_list=excluded)
    return optimizer
