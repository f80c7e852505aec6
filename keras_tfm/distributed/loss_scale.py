"""A loss scale for half precision, on any backend."""

import keras

from keras_tfm import keras_internals


def scale_loss_of_half_precision(model: keras.Model) -> None:
    """Gives a compiled model a `LossScaleOptimizer` if one of its layers computes in float16.

    Keras checks only the model's own policy, not that of layers with a `dtype` of their own.

    >>> import keras
    >>> from keras_tfm.distributed.loss_scale import scale_loss_of_half_precision
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype="mixed_float16")])
    >>> model.compile("sgd", "mse")
    >>> scale_loss_of_half_precision(model)
    >>> type(model.optimizer).__name__
    'LossScaleOptimizer'
    """
    optimizer = model.optimizer
    if optimizer is None or isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return
    layers = [model, *keras_internals.sublayers(model)]
    if any(layer.dtype_policy.name == "mixed_float16" for layer in layers):
        model.optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
