"""Models: one functional builder per family, task heads, and the `Model` class."""

from keras_tfm.models.decoders.cohere import cohere
from keras_tfm.models.decoders.experts import Experts
from keras_tfm.models.decoders.falcon_h1 import falcon_h1
from keras_tfm.models.decoders.gemma import gemma
from keras_tfm.models.decoders.gemma4 import gemma4
from keras_tfm.models.decoders.glm import glm
from keras_tfm.models.decoders.gpt import gpt
from keras_tfm.models.decoders.gpt_neox import gpt_neox
from keras_tfm.models.decoders.granite import granite
from keras_tfm.models.decoders.granite4 import granite4
from keras_tfm.models.decoders.lfm2 import lfm2
from keras_tfm.models.decoders.llama import llama
from keras_tfm.models.decoders.mamba2 import mamba2
from keras_tfm.models.decoders.modernbert_decoder import modernbert_decoder
from keras_tfm.models.decoders.olmo2 import olmo2
from keras_tfm.models.decoders.phi3 import phi3
from keras_tfm.models.decoders.qwen3_5 import qwen3_5
from keras_tfm.models.decoders.smollm3 import smollm3
from keras_tfm.models.encoder_decoders.bart import bart
from keras_tfm.models.encoder_decoders.m2m_100 import m2m_100
from keras_tfm.models.encoder_decoders.marian import marian
from keras_tfm.models.encoder_decoders.mbart import mbart
from keras_tfm.models.encoder_decoders.moonshine import moonshine
from keras_tfm.models.encoder_decoders.moonshine_streaming import moonshine_streaming
from keras_tfm.models.encoder_decoders.pegasus import pegasus
from keras_tfm.models.encoder_decoders.t5 import t5
from keras_tfm.models.encoder_decoders.t5gemma import t5gemma
from keras_tfm.models.encoder_decoders.t5gemma2 import t5gemma2
from keras_tfm.models.encoder_decoders.transformer import transformer
from keras_tfm.models.encoder_decoders.vision_encoder_decoder import vision_encoder_decoder
from keras_tfm.models.encoder_decoders.whisper import whisper
from keras_tfm.models.encoders.albert import albert
from keras_tfm.models.encoders.bert import bert
from keras_tfm.models.encoders.deberta import deberta
from keras_tfm.models.encoders.distilbert import distilbert
from keras_tfm.models.encoders.electra import electra, replaced_token_detection
from keras_tfm.models.encoders.mobilebert import mobilebert
from keras_tfm.models.encoders.modernbert import modernbert
from keras_tfm.models.encoders.mpnet import mpnet
from keras_tfm.models.encoders.nomic_bert import nomic_bert
from keras_tfm.models.encoders.roberta import roberta
from keras_tfm.models.encoders.wav2vec2 import wav2vec2
from keras_tfm.models.features import features_of
from keras_tfm.models.gallery.alignment_heads import masked_msa, pair_classifier
from keras_tfm.models.gallery.dalle import dalle
from keras_tfm.models.gallery.dvae import dvae, dvae_decoder, dvae_encoder, dvae_parts
from keras_tfm.models.gallery.evoformer import evoformer
from keras_tfm.models.gallery.image_gpt import image_gpt
from keras_tfm.models.gallery.lxmert import lxmert
from keras_tfm.models.gallery.vilbert import vilbert
from keras_tfm.models.gallery.visual_heads import image_text_pretraining, visual_question_answering
from keras_tfm.models.heads.ctc_head import ctc_classifier
from keras_tfm.models.heads.draft_heads import with_draft_heads
from keras_tfm.models.heads.embedding_head import sentence_embedding
from keras_tfm.models.heads.image_head import image_classifier
from keras_tfm.models.heads.text_heads import (
    backbone,
    decoder,
    encoder,
    masked_language_model,
    multiple_choice,
    next_sentence,
    question_answering,
    sequence_classifier,
    token_classifier,
)
from keras_tfm.models.identity import describe
from keras_tfm.models.lora import enable_lora
from keras_tfm.models.model import Model
from keras_tfm.models.quantization_aware import (
    disable_quantization,
    enable_quantization,
    without_quantization,
)
from keras_tfm.models.resize import resize_vocabulary
from keras_tfm.models.vision.clip import clip, clip_towers
from keras_tfm.models.vision.clip_encoders import clip_image, clip_text
from keras_tfm.models.vision.depth_anything import depth_anything
from keras_tfm.models.vision.detr import detr, without_auxiliary_outputs
from keras_tfm.models.vision.gemma3 import gemma3
from keras_tfm.models.vision.lfm2_vl import lfm2_vl
from keras_tfm.models.vision.resnet import resnet
from keras_tfm.models.vision.siglip import siglip
from keras_tfm.models.vision.siglip_encoders import siglip_image, siglip_text
from keras_tfm.models.vision.smolvlm import smolvlm
from keras_tfm.models.vision.vit import vit
from keras_tfm.models.with_dtype import with_dtype

__all__ = [
    "Experts",
    "Model",
    "albert",
    "backbone",
    "bart",
    "bert",
    "clip",
    "clip_image",
    "clip_text",
    "clip_towers",
    "cohere",
    "ctc_classifier",
    "dalle",
    "deberta",
    "decoder",
    "depth_anything",
    "describe",
    "detr",
    "disable_quantization",
    "distilbert",
    "dvae",
    "dvae_decoder",
    "dvae_encoder",
    "dvae_parts",
    "electra",
    "enable_lora",
    "enable_quantization",
    "encoder",
    "evoformer",
    "falcon_h1",
    "features_of",
    "gemma",
    "gemma3",
    "gemma4",
    "glm",
    "gpt",
    "gpt_neox",
    "granite",
    "granite4",
    "image_classifier",
    "image_gpt",
    "image_text_pretraining",
    "lfm2",
    "lfm2_vl",
    "llama",
    "lxmert",
    "m2m_100",
    "mamba2",
    "marian",
    "masked_language_model",
    "masked_msa",
    "mbart",
    "mobilebert",
    "modernbert",
    "modernbert_decoder",
    "moonshine",
    "moonshine_streaming",
    "mpnet",
    "multiple_choice",
    "next_sentence",
    "nomic_bert",
    "olmo2",
    "pair_classifier",
    "pegasus",
    "phi3",
    "question_answering",
    "qwen3_5",
    "replaced_token_detection",
    "resize_vocabulary",
    "resnet",
    "roberta",
    "sentence_embedding",
    "sequence_classifier",
    "siglip",
    "siglip_image",
    "siglip_text",
    "smollm3",
    "smolvlm",
    "t5",
    "t5gemma",
    "t5gemma2",
    "token_classifier",
    "transformer",
    "vilbert",
    "vision_encoder_decoder",
    "visual_question_answering",
    "vit",
    "wav2vec2",
    "whisper",
    "with_draft_heads",
    "with_dtype",
    "without_auxiliary_outputs",
    "without_quantization",
]
