"""Moves outliers of activations into weights."""

from collections.abc import Callable, Mapping

import keras
import numpy as np
from keras import ops

from keras_tfm.export.quantization.gptq import round_kernel
from keras_tfm.layers.base_layer import Projection
from keras_tfm.layers.feed_forward import FeedForward
from keras_tfm.layers.multi_head_attention.base import MultiHeadAttention
from keras_tfm.layers.multi_head_attention.multi_head_cross_attention import MultiHeadCrossAttention
from keras_tfm.layers.multi_head_attention.multi_head_self_attention import MultiHeadSelfAttention
from keras_tfm.layers.positions.alibi import ALiBi
from keras_tfm.layers.positions.disentangled_position_embedding import (
    DisentangledPositionEmbedding,
)
from keras_tfm.layers.positions.relative_position_bias import RelativePositionBias
from keras_tfm.layers.positions.rotary_embedding import RotaryEmbedding
from keras_tfm.layers.residual import Residual
from keras_tfm.layers.transformer_block import ONE_RESIDUAL, TransformerBlock

# The exponents (a, b) that are tried. (a, 1 - a) is SmoothQuant's, (a, 0) AWQ's.
_EXPONENTS = [(0.0, 0.0)] + [(a / 20, 0.0) for a in range(4, 17)]
_EXPONENTS += [(a / 10, 1 - a / 10) for a in range(2, 9)]
# The range of factors.
_LEAST, _MOST = 1e-2, 1e2
_TINY = 1e-5


# Scales the inputs of projections; see `smooth_block`.
Scale = Callable[..., None]


class Activations:
    """What a projection was given: its inputs x (N, D) over all examples.

    Attributes:
        peaks: (D,), the largest magnitude of each channel.
        rows: (n, D), at most some 2,000 of the inputs.
        products: (D, D), x^T x; None for weights of 8 bits.
    """

    def __init__(self, width: int, with_products: bool):
        self.peaks = np.zeros(width, "float32")
        self.products = np.zeros((width, width), "float32") if with_products else None
        self._kept: list[np.ndarray] = []

    @property
    def rows(self) -> np.ndarray:
        """The inputs that were kept."""
        return np.concatenate(self._kept)

    def add(self, x: np.ndarray, kept: int) -> None:
        """Adds inputs (N, D) and keeps `kept` of them."""
        self.peaks = np.maximum(self.peaks, np.abs(x).max(0, initial=0.0))
        self._kept.append(x[:: -(-len(x) // kept)].copy())
        if self.products is not None:
            self.products += x.T @ x

    def divide(self, factors: np.ndarray) -> None:
        """What the projection gets once each channel is divided by a factor (D,)."""
        self.peaks = self.peaks / factors
        self._kept = [x / factors for x in self._kept]
        if self.products is not None:
            self.products /= np.outer(factors, factors)


def smooth_block(
    block: TransformerBlock,
    activations: Mapping[int, Activations],
    bits_of: Callable[[Projection], int],
) -> None:
    """Scales the weights of a block so that less is lost by rounding; its outputs stay the same.

    LiteRT rounds the inputs x of a product to 256 levels between the extremes of each token. In
    language models a few channels have values a hundred times as large as the rest, which then
    share few levels. So channel j is divided by a factor s_j, and row j of the kernel W multiplied
    by it:

    s_j = max|x_j|^a / max|W_j|^b

    "SmoothQuant" (arXiv:2211.10438), equation 4, has b = 1 - a; "AWQ" (arXiv:2306.00978), equation
    5, has b = 0. Of the exponents tried, those whose rounded product is nearest to the exact one
    are taken. The division costs nothing: it changes the weights that produce the channel, which
    are gamma and beta of a norm before the sublayer, the values of attention, or the linear half of
    a gated feed-forward network.

    Args:
        block: `TransformerBlock`, changed in place.
        activations: what its projections are given, by their ids; scaled as the weights are.
        bits_of: the size of a projection's weights in the file, 4 or 8 bits.
    """

    def scale(
        layers: list[Projection],
        divide: Callable[[np.ndarray], None],
        heads: tuple[int, int] | None = None,
        factors: np.ndarray | None = None,
    ) -> None:
        if layers and all(id(x) in activations for x in layers):
            if factors is None:
                factors = _best(layers, activations, bits_of, heads)
            divide(
                factors if heads is None else factors.reshape(heads[0], heads[1], -1)[:, 0].ravel()
            )
            for layer in layers:
                kernel = ops.convert_to_numpy(layer.kernel)
                layer.kernel.assign(kernel * factors[:, np.newaxis])
                activations[id(layer)].divide(factors)

    attention, cross, feed_forward = (
        block.self_attention,
        getattr(block, "cross_attention", None),
        block.feed_forward,
    )
    # Other position parts project with the layer's kernels, or add to its values.
    separate = ALiBi | RelativePositionBias | RotaryEmbedding | None
    is_shared = block.parallel == ONE_RESIDUAL  # one norm for both sublayers
    if isinstance(attention, MultiHeadSelfAttention):
        names = ("query_key_value", "query", "key", "value", "gate_projection")
        inputs = [getattr(attention, name) for name in names if hasattr(attention, name)]
        if is_shared:
            inputs.append(feed_forward.inner)
        # Keys and values of a context have the same kernels, but another norm.
        if isinstance(attention.position, separate) and not attention.merged:
            _with_norm(block.self_attention_residual, inputs, scale)
    if isinstance(attention, MultiHeadSelfAttention) and isinstance(
        attention.position, separate | DisentangledPositionEmbedding
    ):
        # A norm of values would undo it, keys are not to be scaled, other blocks read the values.
        is_plain = attention.value_norm is None and not attention.tied_values
        is_plain = is_plain and attention.key_value == "own"
        fused = hasattr(attention, "query_key_value")
        if is_plain:
            _with_values(attention, attention.query_key_value if fused else attention.value, scale)
    if isinstance(cross, MultiHeadCrossAttention) and isinstance(cross.position, separate):
        _with_norm(block.cross_attention_residual, [cross.query], scale)
        _with_values(cross, cross.value, scale)
    if isinstance(feed_forward, FeedForward):
        if not is_shared:
            _with_norm(block.feed_forward_residual, [feed_forward.inner], scale)
        if feed_forward.gated:
            linear = slice(feed_forward.intermediate_dim, None)
            scale([feed_forward.outer], lambda s: _divide(feed_forward.inner, linear, s))


def _with_norm(residual: Residual, layers: list[Projection], scale: Scale) -> None:
    """Scales the output of the norm before a sublayer, if there is one.

    LiteRT's converter multiplies gamma of a layer norm into the kernel that follows, whatever its
    values. So they are multiplied here, and the weights that are rounded are those of the file.
    """
    norm, gamma = residual.input_norm, None
    if isinstance(norm, keras.layers.LayerNormalization):
        if norm.gamma is None:
            return
        gamma = ops.convert_to_numpy(norm.gamma)
        gamma = np.where(np.abs(gamma) < _TINY, 1.0, gamma)
    elif not isinstance(norm, keras.layers.RMSNormalization):
        return

    def divide(factors: np.ndarray) -> None:
        for weight in norm.weights:  # gamma and beta
            weight.assign(ops.convert_to_numpy(weight) / factors)

    scale(layers, divide, factors=gamma)


def _with_values(attention: MultiHeadAttention, values: Projection, scale: Scale) -> None:
    """Scales the values; heads of queries that share a head of values share the factors."""
    groups = attention.num_key_value_heads or attention.num_heads
    width = groups * (attention.output_projection.kernel.shape[0] // attention.num_heads)
    scale(
        [attention.output_projection],
        lambda factors: _divide(values, slice(-width, None), factors),
        (groups, attention.num_heads // groups),
    )


def _divide(layer: Projection, columns: slice, factors: np.ndarray) -> None:
    """Divides some outputs of a projection by factors."""
    for weight in (layer.kernel, layer.bias):
        if weight is not None:
            values = np.array(ops.convert_to_numpy(weight))
            values[..., columns] /= factors
            weight.assign(values)


def _best(
    layers: list[Projection],
    activations: Mapping[int, Activations],
    bits_of: Callable[[Projection], int],
    heads: tuple[int, int] | None,
) -> np.ndarray:
    """The factors (D,) with which the rounded products of `layers` have the least squared error."""
    kernels = [ops.convert_to_numpy(x.kernel) for x in layers]
    given = [activations[id(x)] for x in layers]
    peaks = np.max([x.peaks for x in given], axis=0)
    largest = np.max([np.abs(x).max(1) for x in kernels], axis=0)
    if heads is not None:  # (groups, heads that share a group, K): one factor for those that share
        peaks, largest = (_share(x, heads) for x in (peaks, largest))
    rows = given[0].rows  # layers that share factors share their input
    exact = [rows @ kernel for kernel in kernels]
    # Each token counts the same: a norm follows, and some tokens are a thousand times as large.
    weights = 1 / np.maximum(sum(np.sum(y**2, -1, keepdims=True) for y in exact), _TINY)
    least, best = np.inf, np.ones(len(peaks), "float32")
    for a, b in _EXPONENTS:
        factors = np.maximum(peaks, _TINY) ** a / np.maximum(largest, _TINY) ** b
        factors = np.clip(factors / np.exp(np.log(factors).mean()), _LEAST, _MOST)
        x = _rounded_activations(rows / factors)
        error = sum(
            float(
                np.sum(
                    weights
                    * (x @ round_kernel(kernel * factors[:, np.newaxis], bits_of(layer)) - y) ** 2
                )
            )
            for layer, kernel, y in zip(layers, kernels, exact, strict=True)
        )
        if error < least:
            least, best = error, factors.astype("float32")
    return best


def _share(x: np.ndarray, heads: tuple[int, int]) -> np.ndarray:
    by_head = x.reshape(*heads, -1)
    return np.broadcast_to(by_head.max(1, keepdims=True), by_head.shape).ravel()


def _rounded_activations(x: np.ndarray) -> np.ndarray:
    """Each row (D,) rounded to 256 levels between its extremes and 0, as LiteRT does."""
    low, high = np.minimum(x.min(-1, keepdims=True), 0), np.maximum(x.max(-1, keepdims=True), 0)
    step = np.maximum((high - low) / 255, np.finfo("float32").tiny)
    zero = np.rint(-low / step)
    return (np.clip(np.rint(x / step) + zero, 0, 255) - zero) * step
