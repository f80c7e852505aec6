"""Runs an exported file with numpy and LiteRT alone: neither Keras nor TensorFlow is imported."""

from keras_tfm.runtime.model import Generated, Model, load
from keras_tfm.runtime.text import Hypothesis

__all__ = ["Generated", "Hypothesis", "Model", "load"]
