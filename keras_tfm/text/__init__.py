"""Text: trains vocabularies, and makes reproducible batches of token ids. Does not import Keras."""

from keras_tfm.text.alignments import alignment_profile, crop_alignment, encode_alignment
from keras_tfm.text.batches import Batches, Padding
from keras_tfm.text.bucketed_batches import BucketedBatches
from keras_tfm.text.captioned_images import CaptionedImages
from keras_tfm.text.mask_alignments import MaskAlignments
from keras_tfm.text.mask_regions import MaskRegions
from keras_tfm.text.mask_tokens import MaskTokens
from keras_tfm.text.packed_batches import PackedBatches, segment_mask
from keras_tfm.text.rows import Rows
from keras_tfm.text.sentence_piece import train_sentence_piece
from keras_tfm.text.teacher_forcing import teacher_forcing
from keras_tfm.text.word_piece import train_word_piece

__all__ = [
    "Batches",
    "BucketedBatches",
    "CaptionedImages",
    "MaskAlignments",
    "MaskRegions",
    "MaskTokens",
    "PackedBatches",
    "Padding",
    "Rows",
    "alignment_profile",
    "crop_alignment",
    "encode_alignment",
    "segment_mask",
    "teacher_forcing",
    "train_sentence_piece",
    "train_word_piece",
]
