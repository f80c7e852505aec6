"""wav2vec 2.0: "A Framework for Self-Supervised Learning of Speech" (arXiv:2006.11477).

And HuBERT (arXiv:2106.07447) and XLS-R (arXiv:2111.09296), which have the same encoder.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm import layers
from keras_tfm.arguments import check_integer
from keras_tfm.layers.arguments import as_activation
from keras_tfm.layers.audio.audio_layer import AudioLayer
from keras_tfm.layers.audio.padding import audio_mask, normalize_windows, windows_of_audio
from keras_tfm.layers.types import Activation, Arguments, Config, DType, Shape, Size, Tensor
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model

_STABLE: Arguments = {"normalize_first": True, "feature_norm": "layer", "feature_bias": True}
_LARGE: Arguments = {"dim": 1024, "num_layers": 24, "num_heads": 16, "intermediate_dim": 4096}
# The configurations on the Hugging Face hub: facebook/wav2vec2-base-960h and hubert-base-ls960;
# wav2vec2-large-960h; wav2vec2-large-960h-lv60-self, wav2vec2-xls-r-300m, hubert-large-ls960-ft;
# hubert-xlarge-ls960-ft and wav2vec2-xls-r-1b; wav2vec2-xls-r-2b. Use: wav2vec2(**SIZES["base"]).
SIZES: dict[str, Arguments] = {
    "base": {"dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072},
    "large": _LARGE,
    "large-lv60": {**_LARGE, **_STABLE},
    "1b": {"dim": 1280, "num_layers": 48, "num_heads": 16, "intermediate_dim": 5120, **_STABLE},
    "2b": {"dim": 1920, "num_layers": 48, "num_heads": 16, "intermediate_dim": 7680, **_STABLE},
}  # fmt: skip
SAMPLE_RATE = 16000
# Of the norms after convolutions; torch's default, which no configuration changes.
_EPSILON = 1e-5


@builder
def wav2vec2(
    dim: int = 768,
    num_layers: int = 12,
    num_heads: int = 12,
    intermediate_dim: int = 3072,
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    activation_dropout: float = 0.0,
    feature_dropout: float = 0.0,
    activation: Activation = "gelu",
    layer_norm_epsilon: float = 1e-5,
    normalize_first: bool = False,
    feature_dims: Sequence[int] = (512,) * 7,
    feature_kernels: Sequence[int] = (10, 3, 3, 3, 3, 2, 2),
    feature_strides: Sequence[int] = (5, 2, 2, 2, 2, 2, 2),
    feature_norm: str = "group",
    feature_bias: bool = False,
    feature_activation: Activation = "gelu",
    position_kernel: int = 128,
    position_groups: int = 16,
    normalize_audio: bool = True,
    classifier_dim: int = 256,
    hubert: bool = False,
    name: str = "wav2vec2",
    dtype: DType = None,
) -> Model:
    """The encoder of wav2vec 2.0 and HuBERT, from speech to features, without a head.

    Convolutions turn samples at 16 kHz into a feature for each 20 ms (320 samples), of 25 ms each.
    A wide grouped convolution adds the positions. The blocks are post-norm, with a group
    normalisation in the first convolution (base), or pre-norm, with a layer normalisation in each
    convolution (large-lv60, XLS-R). `ctc_classifier` makes a recogniser of letters of it.

    The samples behind the last one of a row that is not zero are padding, which changes nothing:
    a row of a batch, or audio in a longer exported length, gives what it gives alone. That is what
    `transformers` computes with an `attention_mask` for `feature_norm="layer"`. For
    `feature_norm="group"` its feature extractor makes no mask, and padding changes the features
    there: compare with it without padding.

    SpecAugment's masks of features in training and LayerDrop are not part of the model; nor are the
    convolutions of `add_adapter` and the quantizer of pretraining. The kernel of the positions is
    one weight: the weight normalisation (arXiv:1602.07868) that it is trained with in the original
    is multiplied out.

    Args:
        feature_dropout: float, dropout rate of the projected features.
        feature_dims: list of int, widths of the convolutions.
        feature_kernels: list of int, their kernel sizes.
        feature_strides: list of int, their strides.
        feature_norm: str, "group", a group normalisation of each channel over time in the first
            convolution, or "layer", a layer normalisation in every convolution.
        feature_bias: bool, whether the convolutions have biases.
        feature_activation: str or function, activation of all convolutions.
        position_kernel: int, kernel size of the convolution of the positions.
        position_groups: int, its number of groups. Must divide `dim`.
        normalize_audio: bool, whether the samples of a row get mean 0 and variance 1.
        classifier_dim: int, width of the dense layer with which `sequence_classifier` begins.
        hubert: bool, whether a checkpoint is saved as HuBERT.

    Returns:
        A functional model from `audio` (B, samples), float32, values from -1 to 1 at 16 kHz, at
        least 400 samples, to features (B, T, D).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, heads or groups that do not divide `dim`; in a call,
            audio of fewer than 400 samples.

    Example:

    >>> import numpy as np
    >>> from keras_tfm import models
    >>> model = models.wav2vec2(
    ...     16, num_layers=1, num_heads=2, intermediate_dim=16, feature_dims=(8,) * 7
    ... )
    >>> recogniser = models.ctc_classifier(model, 4, labels=["", " ", "a", "b"])
    >>> second = np.sin(np.arange(16000) * 0.1).astype("float32")
    >>> recogniser({"audio": second[np.newaxis]}).shape
    TensorShape([1, 49, 4])
    """
    check_integer("num_layers", num_layers)
    attention_rate = dropout if attention_dropout is None else attention_dropout

    def norm(name: str) -> layers.LayerNormalization:
        return layers.LayerNormalization(epsilon=layer_norm_epsilon, dtype=dtype, name=name)

    source = keras.Input((None,), name="audio")
    x = FeatureEncoder(
        feature_dims, feature_kernels, feature_strides, feature_norm, feature_bias,
        feature_activation, normalize_audio, dtype=dtype, name="features",
    )(source)  # fmt: skip
    x = keras.layers.Dense(dim, dtype=dtype, name="feature_projection")(norm("feature_norm")(x))
    x = layers.Dropout(feature_dropout, dtype=dtype, name="feature_dropout")(x)
    x = ConvolutionalPosition(
        position_kernel, position_groups, feature_activation, dtype=dtype, name="positions"
    )(x)
    if not normalize_first:
        x = norm("encoder_norm")(x)
    x = layers.Dropout(dropout, dtype=dtype, name="encoder_dropout")(x)
    blocks = [f"encoder_{i}" for i in range(num_layers)]
    for block in blocks:
        place = "input_norm" if normalize_first else "sum_norm"
        options: Arguments = {place: norm("norm"), "dropout": dropout}
        x = layers.TransformerEncoderBlock(
            self_attention=layers.MultiHeadSelfAttention(
                num_heads, dropout=attention_rate, dtype=dtype, name="self_attention"
            ),
            feed_forward=layers.FeedForward(
                intermediate_dim, activation=activation, dropout=activation_dropout, dtype=dtype,
                name="feed_forward",
            ),
            residual=layers.Residual(**options, dtype=dtype),
            dtype=dtype,
            name=block,
        )(x)  # fmt: skip
    if normalize_first:
        x = norm("encoder_norm")(x)
    x = Marker("features", blocks=blocks, dtype=dtype)(x)
    return Model({source.name: source}, x, name=name)


class _Waveform(AudioLayer):
    """What the layers share that read the waveform."""

    sample_rate, masks_padding = SAMPLE_RATE, True

    def __init__(self, kernels: Sequence[int], strides: Sequence[int], **kwargs: Any):
        # No autocast: in float16 quiet samples would be zeros, and so padding.
        super().__init__(autocast=False, **kwargs)
        if not kernels or len(kernels) != len(strides):
            raise ValueError(
                "kernels and strides must be one for each convolution, "
                f"got {list(kernels)} and {list(strides)}"
            )
        for size in (*kernels, *strides):
            check_integer("kernels and strides", size)
        self.kernels, self.strides = list(kernels), list(strides)
        # Samples of a feature, and between the first samples of neighbouring features.
        self.step = math.prod(strides)
        steps = [math.prod(strides[:i]) for i in range(len(strides))]
        self.shortest = 1 + sum(
            (kernel - 1) * step for kernel, step in zip(kernels, steps, strict=True)
        )

    def count(self, samples: Size) -> Size:
        """The number of features, given the number of samples."""
        return None if samples is None else (samples - self.shortest) // self.step + 1

    def mask(self, audio: Tensor) -> Tensor:
        """Which features have no padding: (B, samples) -> (B, T), boolean."""
        count = self.count(ops.shape(audio)[1])
        return windows_of_audio(audio, count, self.shortest, self.step)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "kernels": self.kernels, "strides": self.strides}


@keras.saving.register_keras_serializable("keras_tfm")
class FeatureEncoder(_Waveform):
    """Features of audio by convolutions, with the mask of the padding.

    y = activation(norm(conv(x))), section 2 of arXiv:2006.11477. With `norm="group"` only the first
    convolution has a norm: each channel's mean and variance are those of a row's audio, which
    padding does not change.

    A file keeps the first kernel in float32: with 8 bits for samples, a loud sound would drown the
    quiet ones.

    Args:
        dims: list of int, widths of the convolutions.
        kernels: list of int, their kernel sizes.
        strides: list of int, their strides.
        norm: str, "group" or "layer".
        use_bias: bool, whether they have biases.
        activation: str or function, their activation.
        normalize: bool, whether the samples of a row get mean 0 and variance 1 before, as by
            `Wav2Vec2FeatureExtractor` of transformers.

    Call arguments:
        audio: float tensor (B, samples). A row's padding is what comes behind its last sample that
            is not zero.

    Returns:
        Float tensor (B, T, D), with the mask of `FeatureEncoderMask`.

    Raises:
        ValueError: lists of other lengths, an unknown norm; audio of another rank, or of too few
            samples for one feature.

    >>> import numpy as np
    >>> from keras_tfm.models.encoders.wav2vec2 import FeatureEncoder
    >>> second = np.sin(np.arange(16000) * 0.1).astype("float32")[np.newaxis]
    >>> tuple(FeatureEncoder([8, 6], [10, 3], [5, 2])(second).shape)
    (1, 1599, 6)
    """

    def __init__(
        self,
        dims: Sequence[int],
        kernels: Sequence[int],
        strides: Sequence[int],
        norm: str = "group",
        use_bias: bool = False,
        activation: Activation = "gelu",
        normalize: bool = True,
        **kwargs: Any,
    ):
        super().__init__(kernels, strides, **kwargs)
        if len(dims) != len(kernels):
            raise ValueError(
                f"dims must be one for each of {len(kernels)} convolutions, got {list(dims)}"
            )
        for size in dims:
            check_integer("dims", size)
        if norm not in ("group", "layer"):
            raise ValueError(f"norm must be 'group' or 'layer', got {norm!r}")
        self.dims, self.norm, self.use_bias, self.normalize = list(dims), norm, use_bias, normalize
        self.activation = as_activation("activation", activation)
        self.convolutions = [
            keras.layers.Conv1D(
                width, kernel, strides=stride, use_bias=use_bias, kernel_initializer="he_normal",
                data_format="channels_last", dtype=self.dtype_policy, name=f"convolution_{i}",
            )
            for i, (width, kernel, stride) in enumerate(
                zip(self.dims, self.kernels, self.strides, strict=True)
            )
        ]  # fmt: skip
        self.norms = [
            layers.LayerNormalization(epsilon=_EPSILON, dtype=self.dtype_policy, name=f"norm_{i}")
            for i in range(len(self.dims) if norm == "layer" else 0)
        ]
        self.supports_masking = True

    def build(self, audio_shape: Shape) -> None:
        """Creates the kernels and the normalisations' weights."""
        self.check(audio_shape)
        for convolution, width in zip(self.convolutions, (1, *self.dims), strict=False):
            convolution.build((None, None, width))
        for norm, width in zip(self.norms, self.dims, strict=False):
            norm.build((None, None, width))
        if self.norm == "group":
            shape = (self.dims[0],)
            self.gamma = self.add_weight(name="gamma", shape=shape, initializer="ones")
            self.beta = self.add_weight(name="beta", shape=shape, initializer="zeros")
        self.built = True

    def call(self, audio: Tensor) -> Tensor:
        """(B, samples) -> (B, T, D)."""
        self.check(audio.shape)
        x = ops.cast(audio, keras.backend.result_type(audio.dtype, "float32"))
        x = ops.cast(_standardize(x) if self.normalize else x, self.compute_dtype)
        x = ops.expand_dims(x, -1)
        for i, convolution in enumerate(self.convolutions):
            x = convolution(x)
            if self.norm == "layer":
                x = self.norms[i](x)
            elif i == 0:
                count = ops.shape(x)[1]
                real = windows_of_audio(audio, count, self.kernels[0], self.strides[0])
                x = normalize_windows(x, real, self.gamma, self.beta, by_channel=True)
                x = ops.cast(x, self.compute_dtype)
            x = self.activation(x)
        return x

    def compute_mask(self, audio: Tensor, previous_mask: Tensor | None = None) -> Tensor:
        """True for the features of a row's audio: (B, T)."""
        if isinstance(audio, keras.KerasTensor):
            return FeatureEncoderMask(self.kernels, self.strides)(audio)
        return self.mask(audio)

    def exact_constants(self) -> list[Any]:
        """The first kernel, which no preset rounds."""
        return [ops.convert_to_numpy(ops.cast(self.convolutions[0].kernel, "float32"))]

    def compute_output_shape(self, audio_shape: Shape) -> Shape:
        """(B, T, D)."""
        self.check(audio_shape)
        return (audio_shape[0], self.count(audio_shape[1]), self.dims[-1])

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "dims": self.dims,
            "norm": self.norm,
            "use_bias": self.use_bias,
            "activation": keras.activations.serialize(self.activation),
            "normalize": self.normalize,
        }


def _standardize(x: Tensor) -> Tensor:
    """Mean 0 and variance 1 for the audio of each row, zeros in padding: (B, samples)."""
    real = ops.cast(audio_mask(x), x.dtype)
    count = ops.maximum(ops.sum(real, axis=1, keepdims=True), 1.0)
    x = real * (x - ops.sum(x, axis=1, keepdims=True) / count)
    variance = ops.sum(ops.square(x), axis=1, keepdims=True) / count
    return x * ops.rsqrt(variance + 1e-7)


@keras.saving.register_keras_serializable("keras_tfm")
class FeatureEncoderMask(_Waveform):
    """The mask of a `FeatureEncoder` in the graph of a functional model.

    >>> import numpy as np
    >>> from keras_tfm.models.encoders.wav2vec2 import FeatureEncoderMask
    >>> audio = np.ones((2, 20), "float32")
    >>> audio[1, 15:] = 0
    >>> np.array(FeatureEncoderMask([10], [5])(audio)).tolist()
    [[True, True, True], [True, True, False]]
    """

    def __init__(self, kernels: Sequence[int], strides: Sequence[int], **kwargs: Any):
        super().__init__(kernels, strides, **kwargs)
        self.built = True

    def call(self, audio: Tensor) -> Tensor:
        """(B, samples) -> (B, T), boolean, True for the features of a row's audio."""
        self.check(audio.shape)
        return self.mask(audio)

    def compute_output_spec(self, audio: Tensor) -> keras.KerasTensor:
        """Shape and dtype of the result."""
        return keras.KerasTensor((audio.shape[0], self.count(audio.shape[1])), dtype="bool")


@keras.saving.register_keras_serializable("keras_tfm")
class ConvolutionalPosition(keras.layers.Layer):
    """Adds positions by a grouped convolution: y = x + activation(conv(x)), section 2 of the paper.

    An even kernel sees one position more before than after. Padding, and what is outside of the
    sequence, is zeros.

    Args:
        kernel_size: int, number of positions of the kernel.
        groups: int, number of groups of channels. Must divide D.
        activation: str or function.

    Call arguments:
        x: float tensor (B, T, D).
        mask: boolean tensor (B, T), True = feature; optional.

    Returns:
        Float tensor (B, T, D), with zeros for x in padding.

    Raises:
        ValueError: the groups do not divide D.

    >>> import numpy as np
    >>> from keras_tfm.models.encoders.wav2vec2 import ConvolutionalPosition
    >>> tuple(ConvolutionalPosition(4, 2)(np.ones((1, 5, 6), "float32")).shape)
    (1, 5, 6)
    """

    def __init__(
        self, kernel_size: int, groups: int = 1, activation: Activation = "gelu", **kwargs: Any
    ):
        super().__init__(**kwargs)
        check_integer("kernel_size", kernel_size)
        check_integer("groups", groups)
        self.kernel_size, self.groups = kernel_size, groups
        self.activation = as_activation("activation", activation)
        self.supports_masking = True

    def build(self, x_shape: Shape) -> None:
        """Creates the kernel and the bias."""
        dim = x_shape[-1]
        if dim % self.groups:
            raise ValueError(f"{self.name}: groups ({self.groups}) must divide dim ({dim})")
        # As of weights of variance 4 / (K D), in the original.
        deviation = 2 / math.sqrt(self.kernel_size * dim)
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.kernel_size, dim // self.groups, dim),
            initializer=keras.initializers.RandomNormal(stddev=deviation),
        )
        self.bias = self.add_weight(name="bias", shape=(dim,), initializer="zeros")
        self.built = True

    def call(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        if mask is not None:
            x = x * ops.expand_dims(ops.cast(mask, x.dtype), -1)
        size = self.kernel_size
        padded = ops.pad(x, [[0, 0], [size // 2, (size - 1) // 2], [0, 0]])
        y = _convolve(padded, ops.convert_to_tensor(self.kernel)) + self.bias
        return x + self.activation(y)

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """The shape of `x`."""
        return x_shape

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "kernel_size": self.kernel_size,
            "groups": self.groups,
            "activation": keras.activations.serialize(self.activation),
        }


def _convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """A grouped convolution: (B, T + K - 1, D), (K, D / G, D) -> (B, T, D)."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # Keras compiles grouped convolutions with XLA, anew for each length.
        return tf.nn.conv1d(x, kernel, stride=1, padding="VALID")
    return ops.conv(x, kernel, padding="valid", data_format="channels_last")
