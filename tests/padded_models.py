"""Small models whose padding ids are not 0: 7 in a source, 5 in a target. There 0 is a token."""

import keras
from blocks import decoder_block, encoder_block
from small_models import BLOCK, DIM, SOURCE_SIZE, TARGET_SIZE

from keras_tfm import layers

PADDING, TARGET_PADDING = 7, 5
CLASSES = 3


def embedded(ids, size, mask_id, name):
    x = layers.TokenEmbedding(size, DIM, scale=True, mask_id=mask_id, name=name)(ids)
    return layers.PositionalEncoding()(x)


def classifier():
    """Class scores of the mean over the tokens that are not padding."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = embedded(ids, SOURCE_SIZE, PADDING, "ids_embedding")
    x = encoder_block(**BLOCK, name="encoder")(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model({"ids": ids}, keras.layers.Dense(CLASSES)(x), name="classifier")


def translator():
    """Two inputs with two padding ids."""
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    context = embedded(source, SOURCE_SIZE, PADDING, "source_embedding")
    context = encoder_block(**BLOCK, name="encoder")(context)
    x = embedded(target, TARGET_SIZE, TARGET_PADDING, "target_embedding")
    x = decoder_block(**BLOCK, name="decoder")(x, context)
    logits = keras.layers.Dense(TARGET_SIZE, name="head")(x)
    return keras.Model({"source": source, "target": target}, logits, name="translator")
