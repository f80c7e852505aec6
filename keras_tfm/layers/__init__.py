"""Layers: ids, pixels or audio in, features out. Written in `keras.ops`, for all Keras backends."""

from keras_tfm.layers.activations import gelu_tanh, quick_gelu, squared_relu
from keras_tfm.layers.audio.log_mel_spectrogram import LogMelSpectrogram
from keras_tfm.layers.bottleneck_encoder_block import BottleneckEncoderBlock
from keras_tfm.layers.decoding.scope import DecodingScope
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.elementwise_affine import ElementwiseAffine
from keras_tfm.layers.embeddings.attention_pooling import AttentionPooling
from keras_tfm.layers.embeddings.concatenate_neighbors import ConcatenateNeighbors
from keras_tfm.layers.embeddings.concatenate_prefix import ConcatenatePrefix
from keras_tfm.layers.embeddings.end_token_pooling import EndTokenPooling
from keras_tfm.layers.embeddings.ngram_encoding import NGramEncoding
from keras_tfm.layers.embeddings.output_bias import OutputBias
from keras_tfm.layers.embeddings.prefix_tokens import PrefixTokens
from keras_tfm.layers.embeddings.remove_prefix import RemovePrefix
from keras_tfm.layers.embeddings.replace_placeholders import ReplacePlaceholders
from keras_tfm.layers.embeddings.segment_embedding import SegmentEmbedding
from keras_tfm.layers.embeddings.sequence_pooling import SequencePooling
from keras_tfm.layers.embeddings.token_embedding import TokenEmbedding
from keras_tfm.layers.feed_forward import FeedForward
from keras_tfm.layers.gallery.codebook_embedding import CodebookEmbedding
from keras_tfm.layers.gallery.grid_masks import ColumnMask, ConvolutionMask, GridMask, RowMask
from keras_tfm.layers.gallery.grid_position_embedding import GridPositionEmbedding
from keras_tfm.layers.gallery.gumbel_softmax import GumbelSoftmax
from keras_tfm.layers.gallery.image_denormalization import ImageDenormalization
from keras_tfm.layers.gallery.msa_block import MSABlock
from keras_tfm.layers.gallery.msa_column_attention import MSAColumnAttention
from keras_tfm.layers.gallery.msa_global_attention import MSAGlobalAttention
from keras_tfm.layers.gallery.msa_row_attention import MSARowAttention
from keras_tfm.layers.gallery.outer_product_mean import OuterProductMean
from keras_tfm.layers.gallery.pair_block import PairBlock
from keras_tfm.layers.gallery.pair_embedding import PairEmbedding
from keras_tfm.layers.gallery.region_embedding import RegionEmbedding
from keras_tfm.layers.gallery.triangle_attention import TriangleAttention
from keras_tfm.layers.gallery.triangle_multiplication import TriangleMultiplication
from keras_tfm.layers.images.image_normalization import ImageNormalization
from keras_tfm.layers.images.patch_embedding import PatchEmbedding
from keras_tfm.layers.images.pixel_shuffle import PixelShuffle
from keras_tfm.layers.images.random_resized_crop import RandomResizedCrop
from keras_tfm.layers.layer_normalization import LayerNormalization
from keras_tfm.layers.mixture_of_experts import MixtureOfExperts, Routing
from keras_tfm.layers.multi_head_attention.attention import attention
from keras_tfm.layers.multi_head_attention.attention_probe import AttentionProbe
from keras_tfm.layers.multi_head_attention.masks import segment_mask
from keras_tfm.layers.multi_head_attention.multi_head_cross_attention import MultiHeadCrossAttention
from keras_tfm.layers.multi_head_attention.multi_head_self_attention import MultiHeadSelfAttention
from keras_tfm.layers.positions.alibi import ALiBi
from keras_tfm.layers.positions.attention_position import (
    AttentionInputs,
    AttentionPosition,
    PositionTerms,
)
from keras_tfm.layers.positions.disentangled_position_embedding import DisentangledPositionEmbedding
from keras_tfm.layers.positions.position_embedding import PositionEmbedding
from keras_tfm.layers.positions.position_embedding_2d import PositionEmbedding2D
from keras_tfm.layers.positions.positional_encoding import PositionalEncoding
from keras_tfm.layers.positions.positional_encoding_2d import PositionalEncoding2D
from keras_tfm.layers.positions.relative_position_bias import RelativePositionBias, t5_buckets
from keras_tfm.layers.positions.relative_position_embedding import RelativePositionEmbedding
from keras_tfm.layers.positions.relative_position_table import RelativePositionTable
from keras_tfm.layers.positions.rotary_embedding import RotaryEmbedding
from keras_tfm.layers.positions.rotary_embedding_2d import RotaryEmbedding2D
from keras_tfm.layers.positions.rotary_scaling import (
    LinearScaling,
    Llama3Scaling,
    LongRoPEScaling,
    NTKScaling,
    ProportionalScaling,
    YaRNScaling,
)
from keras_tfm.layers.recurrent.gated_delta_net import GatedDeltaNet
from keras_tfm.layers.recurrent.mamba2 import Mamba2
from keras_tfm.layers.recurrent.short_convolution import ShortConvolution
from keras_tfm.layers.residual import Residual
from keras_tfm.layers.rms_normalization import RMSNormalization
from keras_tfm.layers.transformer_block import TransformerDecoderBlock, TransformerEncoderBlock

__all__ = [
    "ALiBi",
    "AttentionInputs",
    "AttentionPooling",
    "AttentionPosition",
    "AttentionProbe",
    "BottleneckEncoderBlock",
    "CodebookEmbedding",
    "ColumnMask",
    "ConcatenateNeighbors",
    "ConcatenatePrefix",
    "ConvolutionMask",
    "DecodingScope",
    "DisentangledPositionEmbedding",
    "Dropout",
    "ElementwiseAffine",
    "EndTokenPooling",
    "FeedForward",
    "GatedDeltaNet",
    "GridMask",
    "GridPositionEmbedding",
    "GumbelSoftmax",
    "ImageDenormalization",
    "ImageNormalization",
    "LayerNormalization",
    "LinearScaling",
    "Llama3Scaling",
    "LogMelSpectrogram",
    "LongRoPEScaling",
    "MSABlock",
    "MSAColumnAttention",
    "MSAGlobalAttention",
    "MSARowAttention",
    "Mamba2",
    "MixtureOfExperts",
    "MultiHeadCrossAttention",
    "MultiHeadSelfAttention",
    "NGramEncoding",
    "NTKScaling",
    "OuterProductMean",
    "OutputBias",
    "PairBlock",
    "PairEmbedding",
    "PatchEmbedding",
    "PixelShuffle",
    "PositionEmbedding",
    "PositionEmbedding2D",
    "PositionTerms",
    "PositionalEncoding",
    "PositionalEncoding2D",
    "PrefixTokens",
    "ProportionalScaling",
    "RMSNormalization",
    "RandomResizedCrop",
    "RegionEmbedding",
    "RelativePositionBias",
    "RelativePositionEmbedding",
    "RelativePositionTable",
    "RemovePrefix",
    "ReplacePlaceholders",
    "Residual",
    "RotaryEmbedding",
    "RotaryEmbedding2D",
    "Routing",
    "RowMask",
    "SegmentEmbedding",
    "SequencePooling",
    "ShortConvolution",
    "TokenEmbedding",
    "TransformerDecoderBlock",
    "TransformerEncoderBlock",
    "TriangleAttention",
    "TriangleMultiplication",
    "YaRNScaling",
    "attention",
    "gelu_tanh",
    "quick_gelu",
    "segment_mask",
    "squared_relu",
    "t5_buckets",
]
