"""The models of a file as one object, whose layers and weights are found by name or by value.

Example:

>>> import keras
>>> from keras_tfm.export.graph.model_group import ModelGroup
>>> x = keras.Input((2,))
>>> shared = keras.layers.Dense(3)(x)
>>> one, other = keras.Model(x, shared), keras.Model(x, keras.layers.Dense(5)(shared))
>>> group = ModelGroup({"one": one, "other": other})
>>> group.name, len(group.weights)  # two kernels and two biases
('one and other', 4)
"""

from collections.abc import Mapping

import keras


class ModelGroup(keras.layers.Layer):
    """Several models of one file.

    Args:
        models: dict of functional models by name.
    """

    def __init__(self, models: Mapping[str, keras.Model]):
        super().__init__(name=" and ".join(models))
        self.models = dict(models)
        self.built = True
