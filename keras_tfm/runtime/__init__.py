"""Runs an exported file with only NumPy and LiteRT; imports neither Keras nor TensorFlow."""

from keras_tfm.runtime.chat_template import ChatTemplate
from keras_tfm.runtime.constraints import JsonSchema, Regex
from keras_tfm.runtime.detection import Detection
from keras_tfm.runtime.drafts import PromptLookup
from keras_tfm.runtime.drawing import Drawing
from keras_tfm.runtime.generate_signature import Generated
from keras_tfm.runtime.image_processor import ImageProcessor
from keras_tfm.runtime.model import Model, load
from keras_tfm.runtime.sampling import Sampler
from keras_tfm.runtime.session import Reply, Session
from keras_tfm.runtime.text import Hypothesis
from keras_tfm.runtime.zero_shot import Classification, ZeroShotClassifier

__all__ = [
    "ChatTemplate",
    "Classification",
    "Detection",
    "Drawing",
    "Generated",
    "Hypothesis",
    "ImageProcessor",
    "JsonSchema",
    "Model",
    "PromptLookup",
    "Regex",
    "Reply",
    "Sampler",
    "Session",
    "ZeroShotClassifier",
    "load",
]
