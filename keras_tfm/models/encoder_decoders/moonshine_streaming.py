"""Moonshine v2, whose encoder reads audio as it comes.

The paper: https://download.moonshine.ai/docs/moonshine_streaming_paper.pdf.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm import layers
from keras_tfm.arguments import check_integer
from keras_tfm.layers.audio.audio_layer import AudioLayer
from keras_tfm.layers.decoding.scope import current_scope
from keras_tfm.layers.decoding.source_scope import SourceScope
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Activation, Arguments, Config, DType, Shape, Size, Tensor
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model

# The defaults of `MoonshineStreamingConfig` in transformers, which are those of the checkpoint
# UsefulSensors/moonshine-streaming-tiny. Use: moonshine_streaming(32768, **SIZES["tiny"]).
SIZES: dict[str, Arguments] = {
    "tiny": {
        "dim": 320, "num_layers": 6, "num_heads": 8, "intermediate_dim": 1280,
        "windows": [(16, 4), (16, 4), (16, 1), (16, 1), (16, 4), (16, 4)],
    },
}  # fmt: skip
SAMPLE_RATE = 16000
# Strides of the two convolutions, of kernels of five frames.
_KERNEL, _STRIDES = 5, (2, 2)


@builder
def moonshine_streaming(
    vocabulary_size: int = 32768,
    dim: int = 320,
    num_layers: int = 6,
    num_heads: int = 8,
    intermediate_dim: int = 1280,
    windows: Sequence[Sequence[int]] = ((16, 4), (16, 4), (16, 1), (16, 1), (16, 4), (16, 4)),
    decoder_dim: int | None = None,
    num_decoder_layers: int | None = None,
    num_decoder_heads: int | None = None,
    decoder_intermediate_dim: int | None = None,
    num_key_value_heads: int | None = None,
    head_dim: int | None = None,
    decoder_head_dim: int | None = None,
    activation: Activation = "gelu",
    decoder_activation: Activation = "silu",
    frame_length: int = 80,
    rope_theta: float = 10000.0,
    rotary_dim: int | None = None,
    rope_scaling: RotaryScaling | None = None,
    encoder_attention_bias: bool = False,
    attention_bias: bool = False,
    attention_dropout: float = 0.0,
    max_features: int = 4096,
    max_length: int = 4096,
    tied: bool = False,
    pad_id: int | None = None,
    start_id: int | None = 1,
    end_id: int | Sequence[int] | None = 2,
    name: str = "moonshine_streaming",
    dtype: DType = None,
) -> Model:
    """Moonshine v2, an encoder-decoder from speech to token logits, whose encoder reads in pieces.

    Frames of 5 ms are normalised, compressed and projected; two causal convolutions make a feature
    of four of them, for each 20 ms. The encoder's blocks have no positions ("ergodic"), and a
    window each: (16, 4) sees 15 features before and 3 after. The decoder adds learned positions to
    the features, and projects them to its own width.

    `models.encoder(model)` is what reads audio in pieces, `models.decoder(model)` writes tokens for
    the features so far.

    The samples behind the last one of a row that is not zero are padding, and frames that they
    reach into are left out, so a row of a batch gives what it gives alone. `transformers` makes up
    to two features more of a padded row, and attends without windows if it gets no
    `attention_mask`: compare with it without padding, and with a mask of ones.

    Args:
        dim: int, width of the encoder.
        num_layers: int, number of blocks of the encoder, as many as `windows`.
        num_heads: int, number of attention heads of the encoder.
        intermediate_dim: int, inner width of the encoder's feed-forward networks.
        windows: list of pairs (left, right): in each block, features less than `left` before and
            less than `right` after a feature are seen, as of `MultiHeadSelfAttention`.
        decoder_dim: int, width of the decoder. Default: `dim`.
        num_decoder_layers: int, number of blocks of the decoder. Default: `num_layers`.
        num_decoder_heads: int, heads of the decoder. Default: `num_heads`.
        num_key_value_heads: int, number of key and value heads of the encoder.
        head_dim: int, width of a head of the encoder. Default: `dim` / `num_heads`.
        decoder_head_dim: int, width of a head of the decoder. Default: its width / its heads.
        activation: str or function, activation of the encoder's feed-forward networks.
        decoder_activation: str or function, activation of the gates in the decoder.
        frame_length: int, samples of a frame.
        rotary_dim: int, even, number of dimensions of a decoder's head that are rotated. Default:
            0.8 K, rounded down to an even number.
        encoder_attention_bias: bool, whether all projections of the encoder's attention have a
            bias.
        attention_bias: bool, whether the query, key and value projections of the decoder have a
            bias.
        max_features: int, the number of learned positions: the most features.
        max_length: int, maximum number of tokens of a target in training. Stored, not enforced.
        tied: bool, whether the output shares the table of the embedding.
        pad_id: int, id of padding tokens, behind the end of a target. Default: 0.
        start_id: int, the first token of a target.

    `start_id`, `end_id` and `max_length` do not change the model. They are kept in
    `model.arguments`, and loaded and saved with a checkpoint.

    Returns:
        A functional model from `audio` (B, samples), float32, values from -1 to 1 at 16 kHz, and
        `target` (B, T), int32, to logits (B, T, V).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or the heads do not divide a width.

    Example:

    >>> import numpy as np
    >>> from keras_tfm import models
    >>> from keras_tfm.generation import ModelStream
    >>> model = models.moonshine_streaming(
    ...     11, dim=16, num_layers=2, num_heads=2, intermediate_dim=16, windows=[(5, 3), (4, 1)]
    ... )
    >>> stream = ModelStream(models.encoder(model), piece_length=320)  # a feature
    >>> second = np.sin(np.arange(16000) * 0.1).astype("float32")
    >>> len(stream.append(second)["output"]), len(stream.finish()["output"])
    (48, 2)
    """
    check_integer("dim", dim)
    check_integer("num_heads", num_heads)
    check_integer("num_layers", num_layers)
    check_integer("max_features", max_features)
    if len(windows) != num_layers:
        raise ValueError(f"windows must be one for each of {num_layers} blocks, got {len(windows)}")
    width, heads = decoder_dim or dim, num_decoder_heads or num_heads
    size = decoder_head_dim or width // heads
    for total, number, given, names in (
        (dim, num_heads, head_dim, ("num_heads", "dim")),
        (width, heads, decoder_head_dim, ("num_decoder_heads", "decoder_dim")),
    ):
        if given is None and total % number:
            raise ValueError(f"{names[0]} ({number}) must divide {names[1]} ({total})")
    rotated = max(2, 8 * size // 20 * 2) if rotary_dim is None else rotary_dim

    def norm(name: str) -> layers.LayerNormalization:
        return layers.LayerNormalization(epsilon=1e-5, center=False, dtype=dtype, name=name)

    attention: Arguments = {"dropout": attention_dropout, "dtype": dtype}
    source = keras.Input((None,), name="audio")
    x = FrameEmbedding(dim, frame_length, dtype=dtype, name="frames")(source)
    encoders = [f"encoder_{i}" for i in range(num_layers)]
    for block, (left, right) in zip(encoders, windows, strict=True):
        x = layers.TransformerEncoderBlock(
            self_attention=layers.MultiHeadSelfAttention(
                num_heads, window=(left, right), num_key_value_heads=num_key_value_heads,
                head_dim=head_dim, use_bias=encoder_attention_bias, name="self_attention",
                **attention,
            ),
            feed_forward=layers.FeedForward(
                intermediate_dim, activation=activation, dtype=dtype, name="feed_forward"
            ),
            residual=layers.Residual(input_norm=norm("norm"), dtype=dtype),
            dtype=dtype,
            name=block,
        )(x)  # fmt: skip
    x = norm("encoder_norm")(x)
    context = Marker("encoded", blocks=encoders, dtype=dtype)(x)
    context = Memory(dtype=dtype, name="memory")(context)
    context = layers.PositionEmbedding(max_features, dtype=dtype, name="memory_positions")(context)
    if width != dim:
        projection = keras.layers.Dense(
            width, use_bias=False, dtype=dtype, name="memory_projection"
        )
        context = projection(context)

    embedding = layers.TokenEmbedding(
        vocabulary_size, width, mask_id=pad_id,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=0.02), dtype=dtype,
        name="embedding",
    )  # fmt: skip
    target = keras.Input((None,), dtype="int32", name="target")
    # An operation drops the padding mask: padding comes behind the text, and its id may be the end.
    x = ops.copy(embedding(target))
    decoders = [f"decoder_{i}" for i in range(num_decoder_layers or num_layers)]
    biased: Any = ["query", "key", "value"] if attention_bias else False
    for block in decoders:
        x = layers.TransformerDecoderBlock(
            self_attention=layers.MultiHeadSelfAttention(
                heads, causal=True, head_dim=decoder_head_dim, use_bias=biased,
                position=layers.RotaryEmbedding(
                    rope_theta, rotary_dim=rotated, interleaved=True, scaling=rope_scaling,
                    dtype=dtype,
                ),
                name="self_attention", **attention,
            ),
            cross_attention=layers.MultiHeadCrossAttention(
                heads, head_dim=decoder_head_dim, use_bias=biased, name="cross_attention",
                **attention,
            ),
            feed_forward=layers.FeedForward(
                decoder_intermediate_dim or intermediate_dim, activation=decoder_activation,
                gated=True, dtype=dtype, name="feed_forward",
            ),
            residual=layers.Residual(input_norm=norm("norm"), dtype=dtype),
            dtype=dtype,
            name=block,
        )(x, context)  # fmt: skip
    x = norm("decoder_norm")(x)
    x = Marker("features", embedding="embedding", blocks=[*encoders, *decoders], dtype=dtype)(x)
    x = Marker("head", "language_model", dtype=dtype)(x)
    if tied:
        logits = embedding(x, reverse=True)
    else:
        output = keras.layers.Dense(vocabulary_size, use_bias=False, dtype=dtype, name="logits")
        logits = output(x)
    return Model({source.name: source, "target": target}, logits, name=name)


@keras.saving.register_keras_serializable("keras_tfm")
class FrameEmbedding(AudioLayer):
    """Features of audio for each 20 ms: frames, normalised and compressed, and two convolutions.

    f = SiLU(W asinh(e^k (x - mean(x)) / sqrt(var(x) + 1e-6))) of each frame x, with a learned k,
    and y = conv2(SiLU(conv1(f))), causal convolutions of five inputs with a stride of two.

    Args:
        dim: int, width of the features (D).
        frame_length: int, samples of a frame.

    Call arguments:
        audio: float tensor (B, samples). A row's padding is what comes behind its last sample that
            is not zero. Samples that fill no frame are dropped.

    Returns:
        Float tensor (B, ceil(frames / 4), D), with a mask of the features without padding.

    Raises:
        ValueError: audio of another rank, or of too few samples for a frame.

    >>> import numpy as np
    >>> from keras_tfm.models.encoder_decoders.moonshine_streaming import FrameEmbedding
    >>> second = np.sin(np.arange(16000) * 0.1).astype("float32")[np.newaxis]
    >>> tuple(FrameEmbedding(8)(second).shape)
    (1, 50, 8)
    """

    sample_rate, masks_padding = SAMPLE_RATE, True

    def __init__(self, dim: int, frame_length: int = 80, **kwargs: Any):
        # No autocast: in float16 quiet samples would be zeros, and so padding.
        super().__init__(autocast=False, **kwargs)
        check_integer("dim", dim)
        check_integer("frame_length", frame_length)
        self.dim, self.frame_length, self.shortest = dim, frame_length, frame_length
        self.projection = keras.layers.Dense(
            dim, activation="silu", use_bias=False, dtype=self.dtype_policy, name="projection"
        )
        self.convolutions = [
            keras.layers.Conv1D(
                outputs, _KERNEL, strides=stride, padding="causal", activation=activation,
                data_format="channels_last", dtype=self.dtype_policy, name=f"convolution_{i}",
            )
            for i, (outputs, stride, activation) in enumerate(
                zip((2 * dim, dim), _STRIDES, ("silu", None), strict=True), start=1
            )
        ]  # fmt: skip
        self.supports_masking = True

    def build(self, audio_shape: Shape) -> None:
        """Creates the weights."""
        self.check(audio_shape)
        self.compression = self.add_weight(
            name="compression", shape=(), initializer=keras.initializers.Constant(-0.2876821)
        )  # log(0.75)
        self.projection.build((None, None, self.frame_length))
        for convolution, width in zip(self.convolutions, (1, 2), strict=True):
            convolution.build((None, None, width * self.dim))
        self.built = True

    def call(self, audio: Tensor) -> Tensor:
        """(B, samples) -> (B, features, D)."""
        scope = current_scope.get()
        if isinstance(scope, SourceScope):
            frames = scope.slide(
                self.name, self._frames, audio, self.frame_length, self.frame_length
            )
        else:
            self.check(audio.shape)
            frames = self._frames(audio)
        x = frames - ops.mean(frames, axis=-1, keepdims=True)
        x = x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + 1e-6)
        x = ops.exp(ops.cast(self.compression, x.dtype)) * x
        # asinh, of operators of LiteRT; of the magnitude, as the root and a negative x may cancel.
        size = ops.abs(x)
        x = ops.sign(x) * ops.log(size + ops.sqrt(ops.square(size) + 1.0))
        x = self.projection(ops.cast(x, self.compute_dtype))
        for convolution in self.convolutions:
            x = convolution(x)
        return x

    def _frames(self, audio: Tensor) -> Tensor:
        """(B, samples) -> (B, frames, samples of a frame), float32."""
        size = self.frame_length
        count = (audio.shape[1] or ops.shape(audio)[1]) // size
        audio = ops.cast(audio, keras.backend.result_type(audio.dtype, "float32"))
        return ops.reshape(audio[:, : count * size], (ops.shape(audio)[0], count, size))

    def compute_mask(self, audio: Tensor, previous_mask: Tensor | None = None) -> Tensor | None:
        """True for the features of a row's audio: (B, features); None for a piece of a source."""
        if isinstance(current_scope.get(), SourceScope):
            return None
        if isinstance(audio, keras.KerasTensor):
            return FrameEmbeddingMask(self.frame_length)(audio)
        return feature_mask(audio, self.frame_length)

    def compute_output_shape(self, audio_shape: Shape) -> Shape:
        """(B, features, D)."""
        self.check(audio_shape)
        return (audio_shape[0], _count(audio_shape[1], self.frame_length), self.dim)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "dim": self.dim, "frame_length": self.frame_length}


@keras.saving.register_keras_serializable("keras_tfm")
class FrameEmbeddingMask(AudioLayer):
    """The mask of a `FrameEmbedding` in the graph of a functional model.

    >>> import numpy as np
    >>> from keras_tfm.models.encoder_decoders.moonshine_streaming import FrameEmbeddingMask
    >>> audio = np.ones((2, 960), "float32")
    >>> audio[1, 400:] = 0
    >>> np.array(FrameEmbeddingMask()(audio)).tolist()
    [[True, True, True], [True, True, False]]
    """

    sample_rate, masks_padding, tells_padding = SAMPLE_RATE, True, True

    def __init__(self, frame_length: int = 80, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)
        self.frame_length = self.shortest = frame_length
        self.built = True

    def call(self, audio: Tensor) -> Tensor:
        """(B, samples) -> (B, features), boolean, True for the features of a row's audio."""
        return feature_mask(audio, self.frame_length)

    def compute_output_spec(self, audio: Tensor) -> keras.KerasTensor:
        """Shape and dtype of the result."""
        count = _count(audio.shape[1], self.frame_length)
        return keras.KerasTensor((audio.shape[0], count), dtype="bool")

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "frame_length": self.frame_length}


def feature_mask(audio: Tensor, frame_length: int) -> Tensor:
    """Which features are of whole frames of audio: (B, samples) -> (B, features), boolean."""
    samples = audio.shape[1] or ops.shape(audio)[1]
    count = samples // frame_length
    # Block i begins with the last sample of frame i, and ends before that of the next.
    x = ops.pad(audio[:, frame_length - 1 :], [[0, 0], [0, frame_length - 1]])
    x = ops.reshape(x[:, : count * frame_length], (ops.shape(audio)[0], count, frame_length))
    numbers = ops.arange(count, dtype="int32")
    real = ops.any(ops.not_equal(x, 0), axis=-1)
    last = ops.max(ops.where(real, numbers, -1), axis=1, keepdims=True)
    stride = _STRIDES[0] * _STRIDES[1]
    return ops.less_equal(numbers[::stride], last)


def _count(samples: Size, frame_length: int) -> Size:
    """The number of features, given the number of samples."""
    count = None if samples is None else samples // frame_length
    for stride in _STRIDES:
        count = None if count is None else -(-count // stride)
    return count


@keras.saving.register_keras_serializable("keras_tfm")
class Memory(keras.layers.Layer):
    """Features for a decoder: those of padding become zeros, and zeros are padding.

    So a decoder can be given features with zeros behind them.

    >>> import numpy as np
    >>> from keras_tfm.models.encoder_decoders.moonshine_streaming import Memory
    >>> features = np.ones((1, 3, 2), "float32")
    >>> features[0, 2] = 0
    >>> np.array(Memory().compute_mask(features)).tolist()
    [[True, True, False]]
    """

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, S, D) -> (B, S, D)."""
        if mask is None:
            return features
        return features * ops.cast(ops.expand_dims(mask, -1), features.dtype)

    def compute_mask(self, features: Tensor, previous_mask: Tensor | None = None) -> Tensor:
        """The mask that the features carry; without one, True where a feature is not zero."""
        if previous_mask is not None:
            return previous_mask
        return ops.any(ops.not_equal(features, 0), axis=-1)

    def compute_output_shape(self, features_shape: Shape) -> Shape:
        """The shape of the features."""
        return features_shape
