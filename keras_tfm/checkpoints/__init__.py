"""Loads and saves Hugging Face checkpoints, without network access and without pickle."""

from keras_tfm.checkpoints.huggingface import load_huggingface, save_huggingface
from keras_tfm.checkpoints.image_settings import load_image_processor
from keras_tfm.checkpoints.keras_hub import copy_keras_hub_weights
from keras_tfm.checkpoints.sentence_transformers import load_sentence_transformer
from keras_tfm.checkpoints.tokenizers.chat_templates import load_chat_template
from keras_tfm.checkpoints.tokenizers.tokenizer_files import load_tokenizer

__all__ = [
    "copy_keras_hub_weights",
    "load_chat_template",
    "load_huggingface",
    "load_image_processor",
    "load_sentence_transformer",
    "load_tokenizer",
    "save_huggingface",
]
