"""Models: functional builders over the layers, one file a family, and the heads they end with."""

from keras_tfm.models.bert import bert
from keras_tfm.models.gpt import gpt
from keras_tfm.models.heads import (
    backbone,
    masked_language_model,
    next_sentence,
    question_answering,
    sequence_classifier,
    token_classifier,
)
from keras_tfm.models.t5 import t5
from keras_tfm.models.transformer import transformer

__all__ = [
    "backbone",
    "bert",
    "gpt",
    "masked_language_model",
    "next_sentence",
    "question_answering",
    "sequence_classifier",
    "t5",
    "token_classifier",
    "transformer",
]
