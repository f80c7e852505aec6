"""The features inside a model: those of its blocks, and those from which it computes its logits."""

from collections.abc import Sequence

import keras

from keras_tfm.arguments import check_integer
from keras_tfm.keras_internals import calls_of, producer
from keras_tfm.layers.types import Tensor
from keras_tfm.models.derived_model import derived_model
from keras_tfm.models.identity import blocks_of, identity_of, outputs_in
from keras_tfm.models.model import Model


def with_features(model: keras.Model) -> keras.Model:
    """The model with a second output: the input of the layer that computes the logits.

    >>> from keras_tfm.models import gpt
    >>> from keras_tfm.models.features import with_features
    >>> model = gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> [x.shape for x in with_features(model).outputs]
    [(None, None, 11), (None, None, 8)]
    """
    (logits,) = model.outputs
    features = getattr(model, "features", None)
    if features is None:
        made = producer(logits)
        features = calls_of(made.operation)[made.node_index].input_tensors[0]
    return keras.Model(model.input, [logits, features])


def recompute(output: Tensor, features: Tensor, replacement: Tensor) -> Tensor:
    """A symbolic tensor, computed by the same layers from other features.

    Args:
        output: symbolic tensor of a functional model.
        features: symbolic tensor of the same model, from which `output` is computed.
        replacement: symbolic tensor that takes the place of `features`.

    >>> import keras
    >>> from keras_tfm.models.features import recompute
    >>> x = keras.Input((8,))
    >>> y = keras.layers.Dense(3)(x)
    >>> recompute(y, x, keras.layers.Reshape((2, 8))(keras.Input((16,)))).shape
    (None, 2, 3)
    """
    known: dict[int, Tensor] = {id(features): replacement}

    def again(x: Tensor) -> Tensor:
        if id(x) not in known:
            made = producer(x)
            node = calls_of(made.operation)[made.node_index]
            new = [again(before) for before in node.input_tensors]
            if all(a is b for a, b in zip(new, node.input_tensors, strict=True)):
                known[id(x)] = x
            else:
                args, kwargs = keras.tree.map_structure(
                    lambda a: again(a) if isinstance(a, keras.KerasTensor) else a,
                    (node.arguments.args, node.arguments.kwargs),
                )
                outputs = keras.tree.flatten(made.operation(*args, **kwargs))
                known[id(x)] = outputs[made.tensor_index]
        return known[id(x)]

    return again(output)


def features_of(model: keras.Model, blocks: Sequence[int]) -> Model:
    """A model that returns the features of some blocks: what these blocks return.

    For dense heads and probes, such as DPT's for depth (arXiv:2103.13413), that read several
    resolutions or depths of a backbone. The layers are shared with `model`, and blocks behind the
    last requested one are left out. Pre-norm models apply a norm behind the last block,
    which is not part of these features.

    Args:
        model: model of a builder of `keras_tfm.models`, of texts, images or both.
        blocks: list of int, numbers of blocks: 0 is the first, -1 the last. Of a model with an
            encoder and a decoder, those of the decoder.

    Returns:
        A functional model with the inputs of `model` and a list of features, (B, T, D) or
        (B, H, W, D) of models with feature maps.

    Raises:
        TypeError: a number is not an integer.
        ValueError: the model has no such block, or was not made by a builder.

    Example:

    >>> from keras_tfm.models import features_of, vit
    >>> model = vit(32, 8, dim=12, num_layers=3, num_heads=3, intermediate_dim=16)
    >>> [x.shape for x in features_of(model, [0, -1]).outputs]
    [(None, 17, 12), (None, 17, 12)]
    """
    layers = blocks_of(model, identity_of(model))
    if not layers:
        raise ValueError(f"expected a model of a builder, with blocks, got {model.name!r}")
    # The first output: Gemma 4's blocks may return keys and values, too.
    outputs = [outputs_in(model, layers[i])[0] for i in block_numbers(blocks, len(layers))]
    return derived_model(model, model.input, outputs, f"{model.name}_features")


def block_numbers(blocks: Sequence[int], count: int) -> list[int]:
    """Numbers of blocks from 0, of which the given ones may count from the end.

    >>> from keras_tfm.models.features import block_numbers
    >>> block_numbers([0, -1], 12)
    [0, 11]
    """
    for number in blocks:
        check_integer("each of the blocks", number, minimum=-count)
        if number >= count:
            raise ValueError(f"the model has the blocks 0 to {count - 1}, got {number}")
    if not len(blocks):
        raise ValueError("blocks must be at least one number, got none")
    return [number % count for number in blocks]
