"""Training on several devices and machines: what `keras_tfm.Model` adds to Keras on TensorFlow.

Losses are divided by the counts of all replicas, gradients are summed over them before they are
clipped. The strategies themselves are made by `keras_tfm.training.distribution`.
"""
