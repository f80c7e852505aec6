"""Training on several devices and machines: what `keras_tfm.Model` adds to Keras on TensorFlow.

Losses are divided by the token count of all replicas, and gradients are summed over replicas before
they are clipped. `keras_tfm.training.distribution` makes the strategies.
"""
