"""Copies the weights of KerasHub's layers to the layers of this library."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.checkpoints import rows
from keras_tfm.checkpoints.keras_hub.rows import block, cross_attention
from keras_tfm.checkpoints.keras_hub.variables import Variables
from keras_tfm.layers import (
    PositionEmbedding,
    TokenEmbedding,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
)

# KerasHub's layer -> ours.
LAYERS = {
    "TransformerEncoder": TransformerEncoderBlock,
    "TransformerDecoder": TransformerDecoderBlock,
    "PositionEmbedding": PositionEmbedding,
    "ReversibleEmbedding": TokenEmbedding,  # of Keras itself
}
TABLES = {TokenEmbedding: "embeddings", PositionEmbedding: "positions"}


def copy_keras_hub_weights(source: keras.layers.Layer, target: keras.layers.Layer) -> None:
    """Copies the weights of a KerasHub layer to the corresponding layer of this library.

    The two layers then return the same values for the same inputs and masks. LoRA adapters are
    merged. KerasHub itself is not imported.

    Args:
        source: built `TransformerEncoder`, `TransformerDecoder`, `PositionEmbedding` or
            `ReversibleEmbedding` of `keras_hub.layers`. Of a `TokenAndPositionEmbedding` copy
            `token_embedding` and `position_embedding`.
        target: built `TransformerEncoderBlock`, `TransformerDecoderBlock`, `TokenEmbedding` or
            `PositionEmbedding` with the same arguments.

    Raises:
        TypeError: the layers do not correspond.
        ValueError: a layer is not built; an argument or a shape differs (the error names it), or
            the embedding's output weights are not tied.

    Example:

    ```python
    old = keras_hub.layers.TransformerEncoder(intermediate_dim=64, num_heads=4)
    new = keras_tfm.layers.TransformerEncoderBlock(intermediate_dim=64, num_heads=4)
    old.build((None, None, 32))
    new.build((None, None, 32))
    checkpoints.copy_keras_hub_weights(old, new)
    ```

    KerasHub's `ReversibleEmbedding` is the one of Keras:

    >>> import keras
    >>> import numpy as np
    >>> from keras_tfm import checkpoints, layers
    >>> old, new = keras.layers.ReversibleEmbedding(11, 4), layers.TokenEmbedding(11, 4)
    >>> ids = np.array([[3, 1, 4]])
    >>> x, y = old(ids), new(ids)
    >>> checkpoints.copy_keras_hub_weights(old, new)
    >>> np.allclose(old(ids), new(ids))
    True
    """
    kind: Any = LAYERS.get(type(source).__name__)
    if kind is None or type(source).__module__.split(".")[0] not in ("keras", "keras_hub"):
        raise TypeError(f"source must be one of KerasHub's {list(LAYERS)}, got {_kind(source)}")
    if not isinstance(target, kind):
        raise TypeError(
            f"a {type(source).__name__} needs a {kind.__name__} as target, got {_kind(target)}"
        )
    for layer in (source, target):
        if not layer.built:
            raise ValueError(f"{layer.name} has no weights yet: build it, or call it once")
    if kind is TokenEmbedding:
        _check_embedding(source, target)
    if kind not in TABLES:
        _check_block(source, target)
    variables = Variables(source)
    entries = rows.entries(_rows(source, target, kind), target, "KerasHub")
    taken = {name for entry in entries for name in entry.tensors}
    if taken != set(variables.paths):
        raise ValueError(
            f"{source.name} and {target.name} have other weights: "
            f"{sorted(taken ^ set(variables.paths))}"
        )
    values = {name: variables.value(name) for name in taken}
    for entry in entries:
        for name, shape in entry.shapes.items():
            if values[name].shape != shape:
                raise ValueError(
                    f"{source.name} and {target.name} have other shapes: {entry.weight.name} is "
                    f"{values[name].shape} and {shape}"
                )
    for entry in entries:
        entry.weight.assign(entry.load(values[name] for name in entry.tensors))


def _rows(
    source: keras.layers.Layer, target: keras.layers.Layer, kind: type
) -> tuple[rows.Row, ...]:
    """The table of one layer."""
    ours, theirs = target.path, source.name
    if kind in TABLES:
        return (rows.Row(f"{ours}/{TABLES[kind]}", (f"{theirs}/embeddings",)),)
    # The first weight is the queries' kernel, (D, H, K).
    sizes = int(source.weights[0].shape[0]), source.num_heads
    if kind is TransformerEncoderBlock:
        return block(ours, theirs, *sizes)
    both = block(ours, theirs, *sizes, "self_attention")
    return (*both, *cross_attention(ours, theirs, *sizes))


def _kind(layer: keras.layers.Layer) -> str:
    return f"{type(layer).__module__.split('.')[0]}.{type(layer).__name__}"


def _check_embedding(source: keras.layers.Layer, target: keras.layers.Layer) -> None:
    if not source.tie_weights or source.logit_soft_cap is not None:
        raise ValueError(
            f"{source.name} has tie_weights={source.tie_weights} and "
            f"logit_soft_cap={source.logit_soft_cap}; TokenEmbedding has tied weights and no cap"
        )
    if target.scale is not False:
        raise ValueError(f"{target.name} has a scale, KerasHub's embedding does not scale vectors")
    if source.mask_zero != (target.mask_id == 0):
        raise ValueError(
            f"{source.name} has mask_zero={source.mask_zero}, {target.name} "
            f"mask_id={target.mask_id}"
        )


def _check_block(source: keras.layers.Layer, target: keras.layers.Layer) -> None:
    """Other arguments would give other values without an error."""
    theirs, ours = source.get_config(), target.get_config()
    for name in ("intermediate_dim", "num_heads", "normalize_first", "layer_norm_epsilon"):
        if theirs[name] != ours[name]:
            raise ValueError(
                f"{source.name} has {name}={theirs[name]}, {target.name} {name}={ours[name]}"
            )
    plain = type(target)(
        **{name: ours[name] for name in ("intermediate_dim", "num_heads", "normalize_first")},
        cross_attention=target.cross_attention is not None,
    ).get_config()
    given = ("self_attention", "cross_attention", "feed_forward", "residual", "causal")
    for name in given:
        if plain.get(name) != ours.get(name):
            raise ValueError(
                f"{target.name} has another {name} than KerasHub's layer: {ours[name]}"
            )
    x = np.linspace(-4, 4, 33, dtype="float32")
    before, after = (ops.convert_to_numpy(layer.activation(x)) for layer in (source, target))
    if not np.allclose(before, after, atol=1e-6):
        raise ValueError(
            f"{source.name} has activation={theirs['activation']!r}, "
            f"{target.name} activation={ours['activation']!r}"
        )
