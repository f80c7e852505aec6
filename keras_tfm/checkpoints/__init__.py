"""Loads and saves Hugging Face checkpoints, without network access or PyTorch."""

from keras_tfm.checkpoints.generation_config import load_generation_config
from keras_tfm.checkpoints.huggingface import load_huggingface, save_huggingface
from keras_tfm.checkpoints.image_settings import load_image_processor
from keras_tfm.checkpoints.keras_hub.conversion import KerasHubImport, from_keras_hub, to_keras_hub
from keras_tfm.checkpoints.keras_hub.layer_weights import copy_keras_hub_weights
from keras_tfm.checkpoints.keras_hub.preprocessing import Preprocessing
from keras_tfm.checkpoints.save_peft import save_peft
from keras_tfm.checkpoints.sentence_transformers import (
    load_sentence_transformer,
    save_sentence_transformer,
)
from keras_tfm.checkpoints.tokenizers.chat_templates import load_chat_template
from keras_tfm.checkpoints.tokenizers.jinja_template import JinjaTemplate, load_jinja_template
from keras_tfm.checkpoints.tokenizers.tokenizer_files import load_tokenizer
from keras_tfm.checkpoints.trim import TrimmedVocabulary, trim_vocabulary

__all__ = [
    "JinjaTemplate",
    "KerasHubImport",
    "Preprocessing",
    "TrimmedVocabulary",
    "copy_keras_hub_weights",
    "from_keras_hub",
    "load_chat_template",
    "load_generation_config",
    "load_huggingface",
    "load_image_processor",
    "load_jinja_template",
    "load_sentence_transformer",
    "load_tokenizer",
    "save_huggingface",
    "save_peft",
    "save_sentence_transformer",
    "to_keras_hub",
    "trim_vocabulary",
]
