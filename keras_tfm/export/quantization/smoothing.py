"""Moves outliers of activations into weights."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.export.quantization.kernels import Kernels
from keras_tfm.keras_internals import Node, calls_of, nodes_in_order, sublayers
from keras_tfm.layers.base_layer import Projection
from keras_tfm.layers.embeddings.token_embedding import TokenEmbedding
from keras_tfm.layers.feed_forward import FeedForward
from keras_tfm.layers.mixture_of_experts import MixtureOfExperts
from keras_tfm.layers.multi_head_attention.base import MultiHeadAttention
from keras_tfm.layers.multi_head_attention.multi_head_cross_attention import MultiHeadCrossAttention
from keras_tfm.layers.multi_head_attention.multi_head_self_attention import MultiHeadSelfAttention
from keras_tfm.layers.positions.alibi import ALiBi
from keras_tfm.layers.positions.disentangled_position_embedding import DisentangledPositionEmbedding
from keras_tfm.layers.positions.relative_position_bias import RelativePositionBias
from keras_tfm.layers.positions.rotary_embedding import RotaryEmbedding
from keras_tfm.layers.residual import Residual
from keras_tfm.layers.transformer_block import ONE_RESIDUAL, TransformerBlock
from keras_tfm.models.identity import Marker

# The exponents (a, b) that are tried. (a, 1 - a) is SmoothQuant's, (a, 0) AWQ's.
_EXPONENTS = [(0.0, 0.0)] + [(a / 20, 0.0) for a in range(4, 17)]
_EXPONENTS += [(a / 10, 1 - a / 10) for a in range(2, 9)]
# The range of factors.
_LEAST, _MOST = 1e-2, 1e2
_TINY = 1e-5
# Columns of a table on which exponents are tried.
_COLUMNS = 4096


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
    block: TransformerBlock, activations: Mapping[int, Activations], kernels: Kernels
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

    The grid of a quantized checkpoint keeps its levels: the factors are powers of two, the same for
    the channels that share a scale and an offset.

    Args:
        block: `TransformerBlock`, changed in place.
        activations: what its projections are given, by their ids; scaled as the weights are.
        kernels: of the model.
    """
    smoothing = _Smoothing(activations, kernels)
    attention, cross = block.self_attention, getattr(block, "cross_attention", None)
    readers, networks = _networks(block.feed_forward)
    # Other position parts project with the layer's kernels, or add to its values.
    separate = ALiBi | RelativePositionBias | RotaryEmbedding | None
    is_shared = block.parallel == ONE_RESIDUAL  # one norm for both sublayers
    if isinstance(attention, MultiHeadSelfAttention):
        names = ("query_key_value", "query", "key", "value", "gate_projection")
        inputs = [getattr(attention, name) for name in names if hasattr(attention, name)]
        if is_shared:
            inputs += readers
        # Keys and values of a context have the same kernels, but another norm.
        is_known = bool(readers) or not is_shared
        if isinstance(attention.position, separate) and not attention.merged and is_known:
            smoothing.after_norm(block.self_attention_residual, inputs)
    if isinstance(attention, MultiHeadSelfAttention) and isinstance(
        attention.position, separate | DisentangledPositionEmbedding
    ):
        # A norm of values would undo it, keys are not to be scaled, other blocks read the values.
        is_plain = attention.value_norm is None and not attention.tied_values
        is_plain = is_plain and attention.key_value == "own"
        fused = hasattr(attention, "query_key_value")
        if is_plain:
            smoothing.after_values(
                attention, attention.query_key_value if fused else attention.value
            )
    if isinstance(cross, MultiHeadCrossAttention) and isinstance(cross.position, separate):
        smoothing.after_norm(block.cross_attention_residual, [cross.query])
        smoothing.after_values(cross, cross.key_value if cross.fused_key_value else cross.value)
    if readers and not is_shared:
        smoothing.after_norm(block.feed_forward_residual, readers)
    for network in networks:
        if network.gated:
            linear = slice(network.intermediate_dim, None)
            smoothing.after_projection(network.inner, linear, network.outer)


def _networks(feed_forward: keras.Layer | None) -> tuple[list[Projection], list[FeedForward]]:
    """The projections that read what a block's feed-forward network is given, and the networks.

    Those of all experts; none, if a network is another layer.
    """
    if isinstance(feed_forward, FeedForward):
        return [feed_forward.inner], [feed_forward]
    if not isinstance(feed_forward, MixtureOfExperts):
        return [], []
    parts = [*feed_forward.experts, *([feed_forward.shared] if feed_forward.shared else [])]
    networks = [part for part in parts if isinstance(part, FeedForward)]
    if len(networks) < len(parts):
        return [], []
    routers = [feed_forward.router, *([feed_forward.gate] if feed_forward.shared_gate else [])]
    return [*routers, *(network.inner for network in networks)], networks


class TiedTable(NamedTuple):
    """A table of tokens whose transpose makes the logits, and the norm that it reads."""

    table: TokenEmbedding
    norm: keras.Layer


def tied_tables(model: keras.Model) -> list[TiedTable]:
    """The tied tables of a functional model whose logits read a norm that nothing else reads."""
    nodes = nodes_in_order(model)
    readers: dict[int, list[Node]] = {}
    for node in nodes:
        for tensor in node.input_tensors:
            readers.setdefault(id(tensor), []).append(node)
    outputs = {id(x) for x in keras.tree.flatten(model.outputs)}

    def final_readers(tensor: object) -> list[Node | None]:
        """The calls that read a tensor, behind markers; with None if it is an output."""
        found: list[Node | None] = [None] if id(tensor) in outputs else []
        for node in readers.get(id(tensor), []):
            is_marker = isinstance(node.operation, Marker)
            found += final_readers(node.output_tensors[0]) if is_marker else [node]
        return found

    tables = [x for x in sublayers(model) if isinstance(x, TokenEmbedding)]
    found = []
    for norm_call in nodes:
        norm = norm_call.operation
        is_norm = isinstance(norm, keras.layers.LayerNormalization | keras.layers.RMSNormalization)
        if not is_norm or calls_of(norm) != [norm_call]:
            continue
        after = final_readers(norm_call.output_tensors[0])
        if len(after) != 1 or after[0] is None or after[0].operation not in tables:
            continue
        table = after[0].operation
        is_only = [x for x in calls_of(table) if _is_reverse(x)] == after
        is_shared = sum(x.embeddings is table.embeddings for x in tables) > 1
        last = len(norm_call.output_tensors[0].shape) - 1
        is_of_channels = np.ravel(norm.axis).tolist() in ([-1], [last])
        if is_only and not is_shared and is_of_channels and _has_factor(norm):
            found.append(TiedTable(table, norm))
    return found


def _has_factor(norm: keras.Layer) -> bool:
    if isinstance(norm, keras.layers.LayerNormalization):
        return norm.gamma is not None
    return isinstance(norm, keras.layers.RMSNormalization) and bool(norm.weights)


def _is_reverse(node: Node) -> bool:
    return bool(node.arguments.kwargs.get("reverse"))


def smooth_tied_table(
    tied: TiedTable, activations: Mapping[int, Activations], kernels: Kernels
) -> None:
    """As `smooth_block`, for logits: a lookup divides by the factors (`TokenEmbedding.scale`)."""
    table, norm = tied
    if id(table) not in activations:
        return
    factors = _best([table], activations, kernels, None)
    rows = np.ones(table.vocabulary_size, "float32")
    if not kernels.can_scale(table, factors, rows):
        return
    _divide_norm(norm, factors)
    kernels.scale(table, factors, rows)
    table.scale = tuple((table.lookup_factors() / factors).astype("float32").tolist())
    activations[id(table)].divide(factors)


class _Smoothing(NamedTuple):
    """Scales the inputs of projections; see `smooth_block`."""

    activations: Mapping[int, Activations]
    kernels: Kernels

    def after_norm(self, residual: Residual, layers: list[Projection]) -> None:
        """Divides the output of the norm before a sublayer, if there is one.

        LiteRT's converter multiplies gamma of a layer norm into the kernel that follows, whatever
        its values. So they are multiplied here, and the weights that are rounded are those of the
        file. A file with the grid of a checkpoint multiplies by gamma on its own.
        """
        norm = residual.input_norm
        if not self._are_known(layers) or not _has_factor(norm):
            return
        if isinstance(norm, keras.layers.LayerNormalization) and not self._are_published(layers):
            gamma = ops.convert_to_numpy(norm.gamma)
            factors = np.where(np.abs(gamma) < _TINY, 1.0, gamma)
        else:
            factors = _best(layers, self.activations, self.kernels, None)
        if self._scale(layers, factors):
            _divide_norm(norm, factors)

    def after_values(self, attention: MultiHeadAttention, values: Projection) -> None:
        """Divides the values; heads of queries that share a head of values share the factors."""
        groups = attention.num_key_value_heads or attention.num_heads
        width = groups * (attention.output_projection.kernel.shape[0] // attention.num_heads)
        heads = groups, attention.num_heads // groups
        self.after_projection(values, slice(-width, None), attention.output_projection, heads)

    def after_projection(
        self,
        source: Projection,
        columns: slice,
        layer: Projection,
        heads: tuple[int, int] | None = None,
    ) -> None:
        """Divides those columns of `source` that `layer` reads."""
        if not self._are_known([layer]):
            return
        is_published = self._are_published([source, layer])
        factors = _best([layer], self.activations, self.kernels, heads, is_published)
        shared = factors if heads is None else factors.reshape(*heads, -1)[:, 0].ravel()
        outputs = np.ones(source.kernel.shape[-1], "float32")
        outputs[columns] /= shared
        inputs = np.ones(source.kernel.shape[0], "float32")
        if self.kernels.can_scale(source, inputs, outputs) and self._scale([layer], factors):
            self.kernels.scale(source, inputs, outputs)

    def _are_known(self, layers: list[Projection]) -> bool:
        return bool(layers) and all(id(x) in self.activations for x in layers)

    def _are_published(self, layers: list[Projection]) -> bool:
        return any(self.kernels.grid(x) is not None for x in layers)

    def _scale(self, layers: list[Projection], factors: np.ndarray) -> bool:
        """Multiplies the inputs of kernels by factors (D,), if all of them stay on their grids."""
        outputs = [np.ones(x.kernel.shape[-1], "float32") for x in layers]
        each = [*zip(layers, outputs, strict=True)]
        if not all(self.kernels.can_scale(layer, factors, ones) for layer, ones in each):
            return False
        for layer, ones in each:
            self.kernels.scale(layer, factors, ones)
            self.activations[id(layer)].divide(factors)
        return True


def _divide_norm(norm: keras.Layer, factors: np.ndarray) -> None:
    for weight in norm.weights:  # gamma and beta
        weight.assign(ops.convert_to_numpy(weight) / factors)


def _best(
    layers: Sequence[Projection | TokenEmbedding],
    activations: Mapping[int, Activations],
    kernels: Kernels,
    heads: tuple[int, int] | None,
    is_published: bool = False,
) -> np.ndarray:
    """The factors (D,) with which the rounded products of `layers` have the least squared error."""
    is_published = is_published or any(kernels.grid(x) is not None for x in layers)
    matrices = [kernels.matrix(x) for x in layers]
    given = [activations[id(x)] for x in layers]
    peaks = np.max([x.peaks for x in given], axis=0)
    largest = np.max([np.abs(x).max(1) for x in matrices], axis=0)
    if heads is not None:  # (groups, heads that share a group, K): one factor for those that share
        peaks, largest = (_share(x, heads) for x in (peaks, largest))
    if is_published:
        count = max(kernels.shared_channels(x) for x in layers)
        width = len(peaks) // (1 if heads is None else heads[0] * heads[1])
        if width % count:
            return np.ones(len(peaks), "float32")
        peaks, largest = (_share(x, (len(x) // count, count)) for x in (peaks, largest))
    rows = given[0].rows  # layers that share factors share their input
    # Each token counts the same: a norm follows, and some tokens are a thousand times as large.
    squares = sum(np.sum((rows @ _some_columns(x)) ** 2, -1, keepdims=True) for x in matrices)
    weights = 1 / np.maximum(squares, _TINY)
    matrices = [_some_columns(kernels.without_offsets(x)) for x in layers]
    if all(kernels.grid(x) is not None for x in layers):
        # They are not rounded: a triangular matrix of D columns has products of the same length.
        triangle = np.asarray(np.linalg.qr(np.hstack(matrices).T, mode="r"))
        layers, matrices = layers[:1], [triangle.T]
    exact = [rows @ matrix for matrix in matrices]
    least, best = np.inf, np.ones(len(peaks), "float32")
    for a, b in _EXPONENTS:
        factors = np.maximum(peaks, _TINY) ** a / np.maximum(largest, _TINY) ** b
        factors = np.clip(factors / np.exp(np.log(factors).mean()), _LEAST, _MOST)
        if is_published:
            factors = 2.0 ** np.rint(np.log2(factors))
        factors = factors.astype("float32")
        x = _rounded_activations(rows / factors)
        error = 0.0
        for layer, matrix, y in zip(layers, matrices, exact, strict=True):
            product = x @ kernels.round(layer, matrix * factors[:, np.newaxis])
            error += float(np.sum(weights * (product - y) ** 2))
        if error < least:
            least, best = error, factors
    return best


def _some_columns(matrix: np.ndarray) -> np.ndarray:
    """The matrix, or evenly spaced columns of that of a large table."""
    step = max(1, matrix.shape[1] // _COLUMNS) if matrix.shape[1] > 4 * _COLUMNS else 1
    return np.ascontiguousarray(matrix[:, ::step])


def _share(x: np.ndarray, heads: tuple[int, int]) -> np.ndarray:
    by_head = x.reshape(*heads, -1)
    return np.broadcast_to(by_head.max(1, keepdims=True), by_head.shape).ravel()


def _rounded_activations(x: np.ndarray) -> np.ndarray:
    """Each row (D,) rounded to 256 levels between its extremes and 0, as LiteRT does."""
    low, high = np.minimum(x.min(-1, keepdims=True), 0), np.maximum(x.max(-1, keepdims=True), 0)
    step = np.maximum((high - low) / 255, np.finfo("float32").tiny)
    zero = np.rint(-low / step)
    return (np.clip(np.rint(x / step) + zero, 0, 255) - zero) * step
