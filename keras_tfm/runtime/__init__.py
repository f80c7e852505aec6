"""Runs an exported file with only NumPy and LiteRT; imports neither Keras nor TensorFlow."""

from keras_tfm.runtime.chat_template import ChatTemplate
from keras_tfm.runtime.model import Generated, Model, load
from keras_tfm.runtime.text import Hypothesis

__all__ = ["ChatTemplate", "Generated", "Hypothesis", "Model", "load"]
