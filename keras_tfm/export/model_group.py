"""The models of a file as one object, whose layers and weights are found by name or by value.

Example:

>>> import keras
>>> from keras_tfm.export.model_group import ModelGroup
>>> x = keras.Input((2,))
>>> dense = keras.layers.Dense(3)
>>> group = ModelGroup({"one": keras.Model(x, dense(x)), "other": keras.Model(x, dense(dense(x[:, :2])[:, :2]))})
>>> group.name, len(group.weights)
('one and other', 2)
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
