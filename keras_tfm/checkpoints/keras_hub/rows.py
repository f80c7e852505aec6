"""Rows of the layers that KerasHub's backbones share, for the tables of its families.

A row's tensors are paths of KerasHub's variables, such as "pooled_dense/kernel".
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from keras_tfm.checkpoints.rows import Row
from keras_tfm.checkpoints.transforms import Joined, Offset, Reshaped, Same, Shape, Transform

QUERY_KEY_VALUE = ("query", "key", "value")


def dense(weight: str, *layers: str, bias: bool = True) -> tuple[Row, ...]:
    """The rows of a dense layer's kernel and bias; several layers are concatenated in one.

    >>> from keras_tfm.checkpoints.keras_hub.rows import dense
    >>> [(row.weight, row.tensors) for row in dense("pooler", "pooled_dense")]
    [('pooler/kernel', ('pooled_dense/kernel',)), ('pooler/bias', ('pooled_dense/bias',))]
    """
    transform = Joined(len(layers)) if len(layers) > 1 else Same()
    return tuple(
        Row(f"{weight}/{name}", tuple(f"{x}/{name}" for x in layers), transform)
        for name in ("kernel", *["bias"] * bias)
    )


def norm(weight: str, layer: str) -> tuple[Row, ...]:
    """The rows of a layer normalisation."""
    return tuple(Row(f"{weight}/{name}", (f"{layer}/{name}",)) for name in ("gamma", "beta"))


def rms_norm(weight: str, layer: str, offset: float = 0.0, name: str = "scale") -> tuple[Row, ...]:
    """The row of an RMS normalisation; `offset` is 1 where KerasHub's scale is 1 + w."""
    transform = Offset(offset) if offset else Same()
    return (Row(f"{weight}/scale", (f"{layer}/{name}",), transform),)


@dataclass(frozen=True)
class HeadsFirst(Transform):
    """Kernels (H, D, K) as one (D, H K).

    >>> from keras_tfm.checkpoints.keras_hub.rows import HeadsFirst
    >>> HeadsFirst(4).shapes((6, 12))
    ((3, 6, 4),)
    """

    head_dim: int

    def _shape(self, shape: Shape) -> Shape:
        return (shape[1] // self.head_dim, shape[0], self.head_dim)

    def _load(self, array: np.ndarray) -> np.ndarray:
        return array.transpose(1, 0, 2).reshape(array.shape[1], -1)

    def _save(self, value: np.ndarray) -> np.ndarray:
        return value.reshape(len(value), -1, self.head_dim).transpose(1, 0, 2)


@dataclass(frozen=True)
class JoinedHeads(Transform):
    """Kernels (D, H, K), whose heads may differ in number and width, as one (D, sum of H K).

    >>> from keras_tfm.checkpoints.keras_hub.rows import JoinedHeads
    >>> JoinedHeads(((4, 6), (2, 3))).shapes((5, 30))
    ((5, 4, 6), (5, 2, 3))
    """

    heads: tuple[tuple[int, int], ...]

    def shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """The shape of each kernel."""
        return tuple((shape[0], *heads) for heads in self.heads)

    def load(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The kernels beside one another."""
        return np.concatenate([x.reshape(len(x), -1) for x in arrays], axis=-1)

    def save(self, value: np.ndarray) -> tuple[np.ndarray, ...]:
        """The kernels by head."""
        ends = np.cumsum([number * width for number, width in self.heads])[:-1]
        parts = zip(np.split(value, ends, axis=-1), self.heads, strict=True)
        return tuple(x.reshape(len(x), *heads) for x, heads in parts)


@dataclass(frozen=True)
class DepthwiseKernel(Transform):
    """The kernel (C, W) of a depthwise convolution as Keras's, (W, 1, C).

    >>> from keras_tfm.checkpoints.keras_hub.rows import DepthwiseKernel
    >>> DepthwiseKernel().shapes((4, 1, 12))
    ((12, 4),)
    """

    def _shape(self, shape: Shape) -> Shape:
        return (shape[2], shape[0])

    def _load(self, array: np.ndarray) -> np.ndarray:
        return array.T[:, np.newaxis]

    def _save(self, value: np.ndarray) -> np.ndarray:
        return value[:, 0].T


@dataclass(frozen=True)
class Positions(Transform):
    """A table of positions without the unused first rows that ours has, which become zeros.

    >>> from keras_tfm.checkpoints.keras_hub.rows import Positions
    >>> Positions(2).shapes((11, 6))
    ((9, 6),)
    """

    unused: int

    def _shape(self, shape: Shape) -> Shape:
        return (shape[0] - self.unused, shape[1])

    def _load(self, array: np.ndarray) -> np.ndarray:
        return np.concatenate([np.zeros_like(array, shape=(self.unused, array.shape[1])), array])

    def _save(self, value: np.ndarray) -> np.ndarray:
        return value[self.unused :]


@dataclass(frozen=True)
class Equal(Transform):
    """Several tables that KerasHub stores, and that must be equal, as one.

    >>> import numpy as np
    >>> from keras_tfm.checkpoints.keras_hub.rows import Equal
    >>> Equal(2).load([np.array([1.0]), np.array([1.0])]).tolist()
    [1.0]
    """

    count: int

    def shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """The same shape for each table."""
        return (shape,) * self.count

    def load(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The first table.

        Raises:
            ValueError: another one differs.
        """
        first, *others = arrays
        for other in others:
            if not np.array_equal(first, other):
                raise ValueError(
                    "the tables of the encoder's and the decoder's token embeddings must be equal, "
                    f"as one table is here, got a difference of {np.abs(first - other).max():.2g}"
                )
        return first

    def save(self, value: np.ndarray) -> tuple[np.ndarray, ...]:
        """The table for each place."""
        return (value,) * self.count


@dataclass(frozen=True)
class Lookup(Transform):
    """A table of positions, and the row of each position in it.

    >>> import numpy as np
    >>> from keras_tfm.checkpoints.keras_hub.rows import Lookup
    >>> Lookup().load([np.array([[1.0], [2.0]]), np.array([[1, 0]])]).tolist()
    [[2.0], [1.0]]
    """

    def shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """The shapes of the table and of the rows."""
        return shape, (1, shape[0])

    def load(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The table in the order of the positions."""
        table, rows = arrays
        return np.asarray(table[rows[0].astype(int)])

    def save(self, value: np.ndarray) -> tuple[np.ndarray, ...]:
        """The table, and its rows in order."""
        return value, np.arange(len(value))[np.newaxis]


def attention(
    weight: str,
    layer: str,
    dim: int,
    head_dim: int,
    widths: tuple[int, ...],
    bias: bool = True,
    output_bias: bool | None = None,
    heads_first: bool = False,
) -> tuple[Row, ...]:
    """The rows of a self-attention, whose kernels KerasHub keeps as (D, H, K) and (H, K, D).

    Args:
        weight: str, path of the `MultiHeadSelfAttention`.
        layer: str, path of KerasHub's attention.
        dim: int, width of the model (D).
        head_dim: int, width of a head (K).
        widths: number of outputs of queries, keys and values. Two: the keys are the values, too;
            one: the keys and values are those of another block.
        bias: bool, whether these have biases.
        output_bias: bool, whether the output projection has one. Default: as `bias`.
        heads_first: bool, whether the kernels of queries, keys and values are (H, D, K).
    """
    parts = [f"{layer}/{name}" for name in QUERY_KEY_VALUE[: len(widths)]]
    joined = f"{weight}/query" if len(widths) == 1 else f"{weight}/query_key_value"
    each = HeadsFirst(head_dim) if heads_first else Reshaped((dim, -1, head_dim), (dim, -1))
    rows = [
        Row(f"{joined}/kernel", tuple(f"{x}/kernel" for x in parts), Joined(widths, each=each)),
        *_output(weight, layer, dim, head_dim, bias if output_bias is None else output_bias),
    ]
    if bias:
        biases = Joined(widths, each=Reshaped((-1, head_dim), (-1,)))
        rows.append(Row(f"{joined}/bias", tuple(f"{x}/bias" for x in parts), biases))
    return tuple(rows)


def projections(
    weight: str, layer: str, dim: int, num_heads: int, biases: tuple[str, ...] = QUERY_KEY_VALUE
) -> tuple[Row, ...]:
    """The rows of an attention with separate projections, such as a cross-attention.

    Args:
        weight, layer, dim: as in `attention`.
        num_heads: int, number of heads (H). The context may have another width than the model.
        biases: the projections of queries, keys and values that have biases.
    """
    head_dim = dim // num_heads
    kernel = Reshaped((-1, num_heads, head_dim), (-1, num_heads * head_dim))
    bias = Reshaped((-1, head_dim), (-1,))
    rows = [
        Row(f"{weight}/{name}/kernel", (f"{layer}/{name}/kernel",), kernel)
        for name in QUERY_KEY_VALUE
    ]
    rows += [Row(f"{weight}/{name}/bias", (f"{layer}/{name}/bias",), bias) for name in biases]
    return (*rows, *_output(weight, layer, dim, head_dim, bias=True))


def _output(weight: str, layer: str, dim: int, head_dim: int, bias: bool) -> tuple[Row, ...]:
    """The rows of an attention's output projection."""
    path, name = f"{weight}/output_projection", f"{layer}/attention_output"
    kernel = Row(f"{path}/kernel", (f"{name}/kernel",), Reshaped((-1, head_dim, dim), (-1, dim)))
    return (kernel, Row(f"{path}/bias", (f"{name}/bias",))) if bias else (kernel,)


def block(
    path: str, layer: str, dim: int, num_heads: int, attention_name: str = "self_attention_layer"
) -> tuple[Row, ...]:
    """The rows of a `TransformerEncoder`, or of a `TransformerDecoder` without cross-attention.

    Args:
        path, layer: str, the paths of our block and KerasHub's.
        dim: int, width of the model (D).
        num_heads: int, number of heads (H).
        attention_name: str, name of the attention: "self_attention" in a decoder.
    """
    widths = (dim, dim, dim)
    return (
        *attention(
            f"{path}/self_attention", f"{layer}/{attention_name}", dim, dim // num_heads, widths
        ),
        *norm(f"{path}/self_attention_residual/norm", f"{layer}/self_attention_layer_norm"),
        *dense(f"{path}/feed_forward/inner", f"{layer}/feedforward_intermediate_dense"),
        *dense(f"{path}/feed_forward/outer", f"{layer}/feedforward_output_dense"),
        *norm(f"{path}/feed_forward_residual/norm", f"{layer}/feedforward_layer_norm"),
    )


def cross_attention(
    path: str, layer: str, dim: int, num_heads: int, biases: tuple[str, ...] = QUERY_KEY_VALUE
) -> tuple[Row, ...]:
    """The rows of the cross-attention of a `TransformerDecoder`; arguments as in `projections`."""
    return (
        *projections(f"{path}/cross_attention", f"{layer}/cross_attention", dim, num_heads, biases),
        *norm(f"{path}/cross_attention_residual/norm", f"{layer}/cross_attention_layer_norm"),
    )


def batch_norm(weight: str, layer: str) -> tuple[Row, ...]:
    """The rows of a batch normalisation."""
    names = ("gamma", "beta", "moving_mean", "moving_variance")
    return tuple(Row(f"{weight}/{name}", (f"{layer}/{name}",)) for name in names)


# The heads that KerasHub's tasks for texts have.
HEADS = (
    *dense("pooler", "pooled_dense"),
    *dense("classifier", "logits"),
    *dense("transform", "mlm_head/intermediate_dense"),
    *norm("transform_norm", "mlm_head/intermediate_layer_norm"),
    Row("output_bias/bias", ("mlm_head/output_bias",)),
)
