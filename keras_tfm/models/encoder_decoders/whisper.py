"""Whisper: "Robust Speech Recognition via Large-Scale Weak Supervision" (arXiv:2212.04356)."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm import layers
from keras_tfm.arguments import check_integer
from keras_tfm.layers.types import Activation, Arguments, Config, DType, Tensor
from keras_tfm.models.encoder_decoders.encoder_decoder import Blocks
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model

_LARGE: Arguments = {
    "dim": 1280, "num_layers": 32, "num_heads": 20, "intermediate_dim": 5120,
}  # fmt: skip
# Table 1 of the paper; "large-v3" and its "turbo": the configurations released in
# github.com/openai/whisper. Use: whisper(51865, **SIZES["tiny"]); 51866 ids from v3 on, 51864 in
# the models of English alone.
SIZES: dict[str, Arguments] = {
    "tiny": {"dim": 384, "num_layers": 4, "num_heads": 6, "intermediate_dim": 1536},
    "base": {"dim": 512, "num_layers": 6, "num_heads": 8, "intermediate_dim": 2048},
    "small": {"dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072},
    "medium": {"dim": 1024, "num_layers": 24, "num_heads": 16, "intermediate_dim": 4096},
    "large": _LARGE,
    "large-v3": {**_LARGE, "num_mels": 128},
    "large-v3-turbo": {**_LARGE, "num_mels": 128, "num_decoder_layers": 4},
}
# Samples of the waveform per position of the encoder: a hop of 160, and a convolution of stride 2.
SAMPLES_PER_POSITION = 320


@builder
def whisper(
    vocabulary_size: int = 51865,
    dim: int = 384,
    num_layers: int = 4,
    num_heads: int = 6,
    intermediate_dim: int = 1536,
    num_decoder_layers: int | None = None,
    num_decoder_heads: int | None = None,
    decoder_intermediate_dim: int | None = None,
    num_mels: int = 80,
    max_source_length: int = 1500,
    max_length: int = 448,
    audio: bool = True,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    activation_dropout: float = 0.0,
    activation: Activation = "gelu",
    pad_id: int | None = None,
    start_id: int | None = None,
    end_id: int | Sequence[int] | None = None,
    suppressed_ids: Sequence[int] | None = None,
    suppressed_first_ids: Sequence[int] | None = None,
    no_timestamps_id: int | None = None,
    name: str = "whisper",
    dtype: DType = None,
) -> Model:
    """Whisper, an encoder-decoder from speech to token logits.

    The encoder reads log-mel features with two convolutions, the second of which has stride 2, adds
    sinusoids, which are stored and not trained, and has pre-norm blocks. The decoder has learned
    positions, and its output shares the table of its embedding. No projection of keys has a bias.

    The first layer computes the features from samples at 16 kHz (`LogMelSpectrogram`), so that an
    exported file takes audio. Audio shorter than `max_source_length` positions of 20 ms is padded
    with silence, as in the original; longer audio is an error.

    Args:
        num_mels: int, number of mel bands (M).
        max_source_length: int, number of positions of the encoder (S), 20 ms or 320 samples each:
            1500 are 30 seconds. A model of short commands is faster with fewer.
        max_length: int, maximum number of tokens of a target.
        audio: bool, whether the input is audio (True), or features that were computed before.
        activation: str or function, activation of the feed-forward networks. That of the
            convolutions is GELU.
        pad_id: int, id of padding tokens, behind the end of a target. Default: 0.
        start_id: int, the first token of a target, "<|startoftranscript|>".
        suppressed_ids: list of int, tokens that are never generated.
        suppressed_first_ids: list of int, tokens that are not generated first.
        no_timestamps_id: int, the token "<|notimestamps|>". The ids behind it are timestamps,
            20 ms apart.

    The ids from `start_id` on do not change the model. They are kept in `model.arguments`, and
    loaded and saved with a checkpoint.

    Returns:
        A functional model from `audio` (B, samples), float32, values from -1 to 1 at 16 kHz, or
        from `features` (B, 2 S, M), and `target` (B, T), int32, to logits (B, T, V).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or the heads do not divide `dim`.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import whisper
    >>> sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16}
    >>> model = whisper(11, **sizes, max_source_length=50, max_length=7)
    >>> second = np.sin(np.arange(16000) * 0.1).astype("float32")
    >>> generate(model, second[np.newaxis], max_length=5, start_id=1, end_id=2).tokens.shape
    (1, 5)
    """
    check_integer("num_layers", num_layers)
    check_integer("num_decoder_layers", num_decoder_layers, optional=True)
    check_integer("max_source_length", max_source_length)
    stacks = Blocks(
        num_layers=num_layers, num_heads=num_heads, intermediate_dim=intermediate_dim,
        num_decoder_layers=num_decoder_layers, num_decoder_heads=num_decoder_heads,
        decoder_intermediate_dim=decoder_intermediate_dim, dropout=dropout,
        attention_dropout=attention_dropout, activation_dropout=activation_dropout,
        activation=activation, normalize_first=True, use_bias=["query", "value", "output"],
        # By the kernels' width: a small model with the 0.02 of large ones hardly hears its audio.
        initializer=keras.initializers.GlorotUniform(), dtype=dtype,
    )  # fmt: skip
    initializer = keras.initializers.RandomNormal(stddev=0.02)
    if audio:
        source = keras.Input((None,), name="audio")
        length = max_source_length * SAMPLES_PER_POSITION
        x = layers.LogMelSpectrogram(num_mels, length, name="log_mel")(source)
    else:
        x = source = keras.Input((2 * max_source_length, num_mels), name="features")
    x = _convolve(x, dim, dtype)
    sinusoids = layers.PositionEmbedding(
        max_source_length,
        initializer=Sinusoids(),
        dropout=dropout,
        trainable=False,
        dtype=dtype,
        name="encoder_positions",
    )
    x = sinusoids(x)
    for block in stacks.encoders:
        x = stacks.encoder_block(block)(x)
    x = layers.LayerNormalization(epsilon=1e-5, dtype=dtype, name="encoder_norm")(x)
    context = Marker("encoded", blocks=stacks.encoders, dtype=dtype)(x)

    embedding = layers.TokenEmbedding(
        vocabulary_size,
        dim,
        mask_id=pad_id,
        embeddings_initializer=initializer,
        dtype=dtype,
        name="embedding",
    )
    target = keras.Input((None,), dtype="int32", name="target")
    # An operation drops the padding mask: padding comes behind the text, and its id may be the end.
    x = ops.copy(embedding(target))
    positions = layers.PositionEmbedding(
        max_length, initializer=initializer, dtype=dtype, name="decoder_positions"
    )
    x = layers.Dropout(dropout, dtype=dtype, name="decoder_dropout")(positions(x))
    for block in stacks.decoders:
        x = stacks.decoder_block(block)(x, context)
    x = layers.LayerNormalization(epsilon=1e-5, dtype=dtype, name="decoder_norm")(x)
    blocks = [*stacks.encoders, *stacks.decoders]
    x = Marker("features", embedding="embedding", blocks=blocks, dtype=dtype)(x)
    x = Marker("head", "language_model", dtype=dtype)(x)
    x = embedding(x, reverse=True)
    return Model({source.name: source, "target": target}, x, name=name)


def _convolve(x: Tensor, dim: int, dtype: DType) -> Tensor:
    """Features (B, 2 S, M) -> (B, S, D)."""
    for i, stride in enumerate((1, 2)):
        # One zero at each side: "same" would add none at the left with stride 2.
        x = keras.layers.ZeroPadding1D(1, dtype=dtype, name=f"padding_{i}")(x)
        x = keras.layers.Conv1D(
            dim,
            3,
            strides=stride,
            activation="gelu",
            data_format="channels_last",
            kernel_initializer=keras.initializers.GlorotUniform(),
            dtype=dtype,
            name=f"convolution_{i}",
        )(x)
    return x


@keras.saving.register_keras_serializable("keras_tfm")
class Sinusoids(keras.initializers.Initializer):
    """The position table of Whisper's encoder: sines, then cosines.

    P(p, i) = sin(p w_i) and P(p, D/2 + i) = cos(p w_i) with w_i = 10000^(-i / (D/2 - 1)), computed
    in float64. The frequencies end at 1/10000 exactly, other than those of `PositionalEncoding`.

    >>> from keras_tfm.models.encoder_decoders.whisper import Sinusoids
    >>> Sinusoids()((2, 4)).numpy().astype(float).round(4).tolist()
    [[0.0, 0.0, 1.0, 1.0], [0.8415, 0.0001, 0.5403, 1.0]]
    """

    def __call__(self, shape: Any, dtype: DType = None) -> Tensor:
        """The table (S, D)."""
        length, dim = shape
        if dim % 2:
            raise ValueError(f"dim must be even, as sines and cosines are, got {dim}")
        frequencies = 10000.0 ** (-np.arange(dim // 2) / max(1, dim // 2 - 1))
        angles = np.outer(np.arange(length), frequencies)
        table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        return ops.convert_to_tensor(table.astype("float32"), dtype=dtype)

    def clone(self) -> "Sinusoids":
        """Another one."""
        return Sinusoids()

    def get_config(self) -> Config:
        """No arguments."""
        return {}
