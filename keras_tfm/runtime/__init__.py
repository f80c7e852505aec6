"""Runs an exported file with only NumPy and LiteRT; imports neither Keras nor TensorFlow."""

from keras_tfm.runtime.decoding.drafts import PromptLookup
from keras_tfm.runtime.decoding.generate import Generated
from keras_tfm.runtime.decoding.sampling import Sampler
from keras_tfm.runtime.media.image_processor import ImageProcessor
from keras_tfm.runtime.media.tile_processor import TileProcessor
from keras_tfm.runtime.model import Model, load
from keras_tfm.runtime.tasks.best_path import best_path
from keras_tfm.runtime.tasks.drawing import Drawing
from keras_tfm.runtime.tasks.listener import Listener
from keras_tfm.runtime.tasks.pictures import Detection
from keras_tfm.runtime.tasks.session import Reply, Session
from keras_tfm.runtime.tasks.source_stream import FileStream
from keras_tfm.runtime.tasks.text import Hypothesis
from keras_tfm.runtime.tasks.zero_shot import Classification, ZeroShotClassifier
from keras_tfm.runtime.tokenizers.chat_template import ChatTemplate
from keras_tfm.runtime.tokenizers.constraints import JsonSchema, Regex

__all__ = [
    "ChatTemplate",
    "Classification",
    "Detection",
    "Drawing",
    "FileStream",
    "Generated",
    "Hypothesis",
    "ImageProcessor",
    "JsonSchema",
    "Listener",
    "Model",
    "PromptLookup",
    "Regex",
    "Reply",
    "Sampler",
    "Session",
    "TileProcessor",
    "ZeroShotClassifier",
    "best_path",
    "load",
]
