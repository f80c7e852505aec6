"""Moonshine: "Speech Recognition for Live Transcription and Voice Commands" (arXiv:2410.15608)."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm import layers
from keras_tfm.arguments import check_integer
from keras_tfm.layers.audio.audio_layer import AudioLayer
from keras_tfm.layers.audio.padding import normalize_windows, windows_of_audio
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Activation, Arguments, Config, DType, Shape, Size, Tensor
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model

# The configurations of UsefulSensors/moonshine-tiny and -base on the Hugging Face hub, whose
# `partial_rotary_factor` (0.9 and 0.62) is 32 dimensions of a head in both. Use:
# moonshine(32768, **SIZES["tiny"]).
SIZES: dict[str, Arguments] = {
    "tiny": {
        "dim": 288, "num_layers": 6, "num_heads": 8, "intermediate_dim": 1152, "rotary_dim": 32,
        "max_length": 194,
    },
    "base": {
        "dim": 416, "num_layers": 8, "num_heads": 8, "intermediate_dim": 1664, "rotary_dim": 32,
        "max_length": 512,
    },
}  # fmt: skip
SAMPLE_RATE = 16000
# Kernel sizes and strides of the three convolutions, section 3.1 of the paper.
_KERNELS, _STRIDES = (127, 7, 3), (64, 3, 2)
# Samples of the first frame of the encoder, and between the first samples of neighbouring frames.
SAMPLES_OF_FRAME = _KERNELS[0] + _STRIDES[0] * ((_KERNELS[1] - 1) + _STRIDES[1] * (_KERNELS[2] - 1))
SAMPLES_PER_FRAME = _STRIDES[0] * _STRIDES[1] * _STRIDES[2]


@builder
def moonshine(
    vocabulary_size: int = 32768,
    dim: int = 288,
    num_layers: int = 6,
    num_heads: int = 8,
    intermediate_dim: int = 1152,
    num_decoder_layers: int | None = None,
    activation: Activation = "gelu",
    decoder_activation: Activation = "silu",
    rope_theta: float = 10000.0,
    rotary_dim: int | None = None,
    rope_scaling: RotaryScaling | None = None,
    attention_dropout: float = 0.0,
    max_length: int = 194,
    pad_id: int | None = None,
    start_id: int | None = 1,
    end_id: int | Sequence[int] | None = 2,
    name: str = "moonshine",
    dtype: DType = None,
) -> Model:
    """Moonshine, an encoder-decoder from speech to token logits, for audio of any length.

    Three convolutions turn samples at 16 kHz into a frame for each 24 ms (384 samples), so the work
    grows with the audio: there is no window of 30 seconds. Encoder and decoder are pre-norm blocks
    with rotary positions of a part of each head, whose pairs are neighbours. The decoder's
    feed-forward networks are gated, its output shares the table of its embedding, and no attention
    or normalisation has a bias.

    The samples behind the last one of a row that is not zero are padding. Only the frames of the
    audio before it are normalised and attended to, so a row of a batch, or audio in a longer
    exported length, gives what it gives alone. `transformers` normalises the padding, too: compare
    with it without padding. A row of zeros has no frames, and the text does not depend on it.

    Args:
        num_decoder_layers: int, number of blocks of the decoder. Default: `num_layers`.
        activation: str or function, activation of the encoder's feed-forward networks. That of the
            convolutions is tanh, then GELU.
        decoder_activation: str or function, activation of the gates in the decoder.
        rotary_dim: int, even, number of dimensions of a head that are rotated. Default: 0.9 K,
            rounded down to an even number.
        max_length: int, maximum number of tokens of a target in training. Stored, not enforced.
        pad_id: int, id of padding tokens, behind the end of a target. Default: 0.
        start_id: int, the first token of a target.

    `start_id`, `end_id` and `max_length` do not change the model. They are kept in
    `model.arguments`, and loaded and saved with a checkpoint.

    Returns:
        A functional model from `audio` (B, samples), float32, values from -1 to 1 at 16 kHz, at
        least 895 samples, and `target` (B, T), int32, to logits (B, T, V).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or the heads do not divide `dim`; in a call, audio of
            fewer than 895 samples.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import moonshine
    >>> model = moonshine(11, dim=16, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> second = np.sin(np.arange(16000) * 0.1).astype("float32")
    >>> generate(model, second[np.newaxis], max_length=5, start_id=1, end_id=2).tokens.shape
    (1, 5)
    """
    check_integer("dim", dim)
    check_integer("num_layers", num_layers)
    check_integer("num_decoder_layers", num_decoder_layers, optional=True)
    check_integer("num_heads", num_heads)
    if dim % num_heads:
        raise ValueError(f"num_heads ({num_heads}) must divide dim ({dim})")
    rotated = max(2, 9 * (dim // num_heads) // 20 * 2) if rotary_dim is None else rotary_dim

    def norm(name: str) -> layers.LayerNormalization:
        return layers.LayerNormalization(epsilon=1e-5, center=False, dtype=dtype, name=name)

    def position() -> layers.RotaryEmbedding:
        return layers.RotaryEmbedding(
            rope_theta, rotary_dim=rotated, interleaved=True, scaling=rope_scaling, dtype=dtype
        )

    attention: Arguments = {"dropout": attention_dropout, "use_bias": False, "dtype": dtype}

    def parts(causal: bool) -> Arguments:
        """The arguments of the blocks of one stack."""
        return {
            "self_attention": layers.MultiHeadSelfAttention(
                num_heads, causal=causal, position=position(), name="self_attention", **attention
            ),
            "feed_forward": layers.FeedForward(
                intermediate_dim,
                activation=decoder_activation if causal else activation,
                gated=causal,
                dtype=dtype,
                name="feed_forward",
            ),
            "residual": layers.Residual(input_norm=norm("norm"), dtype=dtype),
            "dtype": dtype,
        }

    source = keras.Input((None,), name="audio")
    x = WaveformEmbedding(dim, dtype=dtype, name="waveform")(source)
    encoders = [f"encoder_{i}" for i in range(num_layers)]
    for block in encoders:
        x = layers.TransformerEncoderBlock(**parts(causal=False), name=block)(x)
    context = Marker("encoded", blocks=encoders, dtype=dtype)(norm("encoder_norm")(x))

    embedding = layers.TokenEmbedding(
        vocabulary_size,
        dim,
        mask_id=pad_id,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=0.02),
        dtype=dtype,
        name="embedding",
    )
    target = keras.Input((None,), dtype="int32", name="target")
    # An operation drops the padding mask: padding comes behind the text, and its id may be the end.
    x = ops.copy(embedding(target))
    decoders = [f"decoder_{i}" for i in range(num_decoder_layers or num_layers)]
    for block in decoders:
        x = layers.TransformerDecoderBlock(
            **parts(causal=True),
            cross_attention=layers.MultiHeadCrossAttention(
                num_heads, name="cross_attention", **attention
            ),
            name=block,
        )(x, context)
    x = norm("decoder_norm")(x)
    x = Marker("features", embedding="embedding", blocks=[*encoders, *decoders], dtype=dtype)(x)
    x = Marker("head", "language_model", dtype=dtype)(x)
    return Model({source.name: source, "target": target}, embedding(x, reverse=True), name=name)


class _Waveform(AudioLayer):
    """What the layers share that read the waveform."""

    sample_rate, shortest, masks_padding = SAMPLE_RATE, SAMPLES_OF_FRAME, True


@keras.saving.register_keras_serializable("keras_tfm")
class WaveformEmbedding(_Waveform):
    """Features of frames of audio, by three convolutions, with the mask of the padding.

    y = GELU(conv3(GELU(conv2(norm(tanh(conv1(x))))))), section 3.1 of arXiv:2410.15608. The norm's
    mean and variance are those of all channels of all frames of a row's audio: a group
    normalisation (arXiv:1803.08494) of one group, which padding does not change.

    A file keeps the first kernel in float32: with 8 bits for samples, a loud sound would drown the
    quiet ones.

    Args:
        dim: int, width of the features (D).

    Call arguments:
        audio: float tensor (B, samples). A row's padding is what comes behind its last sample that
            is not zero.

    Returns:
        Float tensor (B, frames, D), with the mask of `FrameMask`.

    Raises:
        ValueError: audio of another rank, or of too few samples for one frame.

    >>> import numpy as np
    >>> from keras_tfm.models.encoder_decoders.moonshine import WaveformEmbedding
    >>> second = np.sin(np.arange(16000) * 0.1).astype("float32")[np.newaxis]
    >>> tuple(WaveformEmbedding(8)(second).shape)
    (1, 40, 8)
    """

    def __init__(self, dim: int, **kwargs: Any):
        # No autocast: in float16 quiet samples would be zeros, and so padding.
        super().__init__(autocast=False, **kwargs)
        check_integer("dim", dim)
        self.dim = dim
        self.convolutions = [
            keras.layers.Conv1D(
                width,
                kernel,
                strides=stride,
                activation="gelu",
                data_format="channels_last",
                dtype=self.dtype_policy,
                name=f"convolution_{i}",
            )
            for i, width, kernel, stride in (
                (1, 2 * dim, _KERNELS[1], _STRIDES[1]),
                (2, dim, _KERNELS[2], _STRIDES[2]),
            )
        ]
        self.supports_masking = True

    def build(self, audio_shape: Shape) -> None:
        """Creates the kernels and the normalisation's weights."""
        self.check(audio_shape)
        self.kernel = self.add_weight(
            name="kernel", shape=(_KERNELS[0], 1, self.dim), initializer="glorot_uniform"
        )
        self.gamma = self.add_weight(name="gamma", shape=(self.dim,), initializer="ones")
        self.beta = self.add_weight(name="beta", shape=(self.dim,), initializer="zeros")
        for convolution, width in zip(self.convolutions, (1, 2), strict=True):
            convolution.build((None, None, width * self.dim))
        self.built = True

    def call(self, audio: Tensor) -> Tensor:
        """(B, samples) -> (B, frames, D)."""
        self.check(audio.shape)
        x = ops.expand_dims(ops.cast(audio, self.compute_dtype), -1)
        kernel = ops.cast(self.kernel, self.compute_dtype)
        x = ops.conv(x, kernel, _STRIDES[0], padding="valid", data_format="channels_last")
        real = windows_of_audio(audio, ops.shape(x)[1], _KERNELS[0], _STRIDES[0])
        x = normalize_windows(ops.tanh(x), real, self.gamma, self.beta)
        x = ops.cast(x, self.compute_dtype)
        for convolution in self.convolutions:
            x = convolution(x)
        return x

    def compute_mask(self, audio: Tensor, previous_mask: Tensor | None = None) -> Tensor:
        """True for the frames of a row's audio: (B, frames)."""
        return FrameMask()(audio) if isinstance(audio, keras.KerasTensor) else frame_mask(audio)

    def exact_constants(self) -> list[Any]:
        """The first kernel, which no preset rounds."""
        return [ops.convert_to_numpy(ops.cast(self.kernel, "float32"))]

    def compute_output_shape(self, audio_shape: Shape) -> Shape:
        """(B, frames, D)."""
        self.check(audio_shape)
        return (audio_shape[0], _count(audio_shape[1]), self.dim)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "dim": self.dim}


@keras.saving.register_keras_serializable("keras_tfm")
class FrameMask(_Waveform):
    """The mask of a `WaveformEmbedding` in the graph of a functional model.

    >>> import numpy as np
    >>> from keras_tfm.models.encoder_decoders.moonshine import FrameMask
    >>> audio = np.ones((2, 2000), "float32")
    >>> audio[1, 895:] = 0
    >>> np.array(FrameMask()(audio)).tolist()
    [[True, True, True], [True, False, False]]
    """

    def __init__(self, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)
        self.built = True

    def call(self, audio: Tensor) -> Tensor:
        """(B, samples) -> (B, frames), boolean, True for the frames of a row's audio."""
        self.check(audio.shape)
        return frame_mask(audio)

    def compute_output_spec(self, audio: Tensor) -> keras.KerasTensor:
        """Shape and dtype of the result."""
        return keras.KerasTensor((audio.shape[0], _count(audio.shape[1])), dtype="bool")


def frame_mask(audio: Tensor) -> Tensor:
    """Which frames of the encoder have no padding: (B, samples) -> (B, frames), boolean."""
    count = _count(ops.shape(audio)[1])
    return windows_of_audio(audio, count, SAMPLES_OF_FRAME, SAMPLES_PER_FRAME)


def _count(samples: Size) -> Size:
    """The number of frames, given the number of samples."""
    return None if samples is None else (samples - SAMPLES_OF_FRAME) // SAMPLES_PER_FRAME + 1
