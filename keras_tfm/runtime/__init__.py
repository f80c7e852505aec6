"""Runs an exported file with numpy and LiteRT alone: neither Keras nor TensorFlow is imported."""

from keras_tfm.runtime.model import Generated, Model, load

__all__ = ["Generated", "Model", "load"]
