"""Writes a web page that runs an exported file in the browser; without Keras and TensorFlow."""

from keras_tfm.web.page import Page, write_page

__all__ = ["Page", "write_page"]
