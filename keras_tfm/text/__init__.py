"""Text: vocabularies from texts, and batches of token ids."""

from keras_tfm.text.bucketed_batches import BucketedBatches, Padding
from keras_tfm.text.rows import Rows
from keras_tfm.text.word_piece import train_word_piece

__all__ = ["BucketedBatches", "Padding", "Rows", "train_word_piece"]
