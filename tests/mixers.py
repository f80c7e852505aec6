"""Models with a layer that mixes positions of the target, which `check_stepping` refuses."""

import re

import keras
import pytest
from blocks import decoder_block, encoder_block
from keras import layers
from small_models import BLOCK, DIM, TARGET_SIZE, randomize

from keras_tfm.generation import check_stepping
from keras_tfm.layers import MultiHeadSelfAttention, PositionalEncoding, TokenEmbedding

HEADS = {"num_heads": 2, "head_dim": 3}


def ids(name="target"):
    return keras.Input((None,), dtype="int32", name=name)


def head(x):
    return layers.Dense(TARGET_SIZE, name="head")(x)


def decoder(mix, positions=True):
    """Embedding, positions, `mix`, a causal block, logits."""
    target = ids()
    x = TokenEmbedding(TARGET_SIZE, DIM, name="embedding")(target)
    if positions:
        x = PositionalEncoding(name="positions")(x)
    x = decoder_block(cross_attention=False, **BLOCK, name="block")(mix(x))
    return randomize(keras.Model(target, head(x), name="model"), seed=0)


def translator(mix=lambda x, context: x, encode=lambda x: x):
    """An encoder-decoder: `encode` on the source, `mix` on the target, which attends to it."""
    source, target = ids("source"), ids()
    context, x = (
        TokenEmbedding(TARGET_SIZE, DIM, mask_zero=False, name=f"embedding_{i}")(y)
        for i, y in enumerate((source, target))
    )
    context = encode(context)
    x = decoder_block(**BLOCK, name="block")(mix(x, context), context)
    return randomize(keras.Model({"source": source, "target": target}, head(x), name="model"), 0)


def refusal(model, **options):
    """The layer that the refusal names."""
    with pytest.raises(ValueError, match="cannot be stepped") as caught:
        check_stepping(model, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{model.name} cannot be stepped")
    return re.search(r"layer '(\w+)'", message)[1]


class OwnConvolution(layers.Conv1D):
    """A convolution with a `call` of its own, which the rule of `Conv1D` does not cover."""

    def call(self, inputs):
        return super().call(inputs)


class OwnLSTM(layers.LSTM):
    """Likewise."""

    def call(self, sequences, initial_state=None, mask=None, training=False):
        return super().call(sequences, initial_state, mask, training)


MIXERS = {
    "conv_same": lambda: layers.Conv1D(DIM, 3, padding="same", name="mixer"),
    "conv_causal": lambda: OwnConvolution(DIM, 2, padding="causal", name="mixer"),
    "max_pooling": lambda: layers.MaxPooling1D(2, 1, padding="same", name="mixer"),
    "bidirectional": lambda: MultiHeadSelfAttention(**HEADS, name="mixer"),
    "encoder_block": lambda: encoder_block(**BLOCK, name="mixer"),
    "lstm": lambda: OwnLSTM(DIM, return_sequences=True, name="mixer"),
    "both_ways": lambda: layers.Bidirectional(layers.GRU(DIM, return_sequences=True), name="mixer"),
    "group_norm": lambda: layers.GroupNormalization(1, name="mixer"),
}
