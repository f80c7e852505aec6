"""The features from which a model computes its logits, and that last step for other features."""

import keras

from keras_tfm.keras_internals import calls_of, producer
from keras_tfm.layers.types import Tensor


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
