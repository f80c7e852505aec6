"""Rows of the layers that KerasHub's backbones share, for the tables of its families.

A row's tensors are paths of KerasHub's variables, such as "pooled_dense/kernel".
"""

from keras_tfm.checkpoints.rows import Row
from keras_tfm.checkpoints.transforms import Joined, Offset, Reshaped, Same


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
    """The rows of a layer normalisation, or of a batch normalisation's scale and offset."""
    return tuple(Row(f"{weight}/{name}", (f"{layer}/{name}",)) for name in ("gamma", "beta"))


def rms_norm(weight: str, layer: str, offset: float = 0.0) -> tuple[Row, ...]:
    """The row of an RMS normalisation; `offset` is 1 where KerasHub's scale is 1 + w."""
    transform = Offset(offset) if offset else Same()
    return (Row(f"{weight}/scale", (f"{layer}/scale",), transform),)


def attention(
    weight: str,
    layer: str,
    dim: int,
    head_dim: int,
    widths: tuple[int, int, int],
    bias: bool = True,
    output_bias: bool | None = None,
    names: tuple[str, str, str, str] = ("query", "key", "value", "attention_output"),
) -> tuple[Row, ...]:
    """The rows of a self-attention, whose kernels KerasHub keeps as (D, H, K) and (H, K, D).

    Args:
        weight: str, path of the `MultiHeadSelfAttention`.
        layer: str, path of KerasHub's attention.
        dim: int, width of the model (D).
        head_dim: int, width of a head (K).
        widths: number of outputs of queries, keys and values.
        bias: bool, whether these have biases.
        output_bias: bool, whether the output projection has one. Default: as `bias`.
        names: names of KerasHub's layers for queries, keys, values and output.
    """
    *parts, output = (f"{layer}/{name}" for name in names)
    kernel = Joined(widths, each=Reshaped((dim, -1, head_dim), (dim, -1)))
    rows = [
        Row(f"{weight}/query_key_value/kernel", tuple(f"{x}/kernel" for x in parts), kernel),
        Row(
            f"{weight}/output_projection/kernel",
            (f"{output}/kernel",),
            Reshaped((-1, head_dim, dim), (-1, dim)),
        ),
    ]
    if bias:
        each = Joined(widths, each=Reshaped((-1, head_dim), (-1,)))
        names_of_biases = tuple(f"{x}/bias" for x in parts)
        rows.append(Row(f"{weight}/query_key_value/bias", names_of_biases, each))
    if bias if output_bias is None else output_bias:
        rows.append(Row(f"{weight}/output_projection/bias", (f"{output}/bias",)))
    return tuple(rows)


# The heads that KerasHub's tasks for texts have.
HEADS = (
    *dense("pooler", "pooled_dense"),
    *dense("classifier", "logits"),
    *dense("transform", "mlm_head/intermediate_dense"),
    *norm("transform_norm", "mlm_head/intermediate_layer_norm"),
    Row("output_bias/bias", ("mlm_head/output_bias",)),
)
