"""Small files that hear audio in pieces."""

import keras
from keras_weights import randomize
from small_exports import once_a_run
from small_tokenizers import WORDS, words

from keras_tfm import models
from keras_tfm.export import export_tflite
from keras_tfm.models.encoder_decoders.moonshine_streaming import FrameEmbedding

LABELS = ["", "on", "off", "light", "music"]


@once_a_run
def _live(path, quantization):
    model = models.moonshine_streaming(
        len(WORDS), dim=16, num_layers=2, num_heads=2, intermediate_dim=16, decoder_dim=12,
        windows=[(5, 3), (4, 1)], max_features=40, pad_id=0, end_id=7,
    )  # fmt: skip
    randomize(model)
    return export_tflite(
        {"encoder": models.encoder(model), "decoder": models.decoder(model)}, path,
        {"encoder": ["stream"], "decoder": ["generate"]}, quantization, piece_length=960,
        source_length={"decoder": 40}, max_length=9, start_id=1, end_id=7, tokenizer=words(),
        verify=False,
    )  # fmt: skip


@once_a_run
def _ctc(path, quantization):
    return export_tflite(
        recogniser(), path, ["stream"], quantization, piece_length=960, labels=LABELS, verify=False
    )


def recogniser():
    """(B, samples) to scores of `LABELS` (B, positions, 5)."""
    audio = keras.Input((None,), name="audio")
    x = keras.ops.copy(FrameEmbedding(8)(audio))
    x = keras.layers.Conv1D(8, 3, padding="causal", activation="silu")(x)
    return randomize(keras.Model(audio, keras.layers.Dense(len(LABELS))(x)))


def live_file(quantization):
    """The path of a file of Moonshine v2's encoder and decoder, with random weights."""
    return _live(quantization).path


def ctc_file(quantization):
    """The path of a file of `recogniser`."""
    return _ctc(quantization).path
