"""cuDNN's flash attention, through `jax.nn.dot_product_attention`, on an NVIDIA GPU."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from keras_tfm.layers.multi_head_attention import masks
from keras_tfm.layers.multi_head_attention.masks import ScoreTerms
from keras_tfm.layers.types import Arguments, DType, Tensor, Window

# cuDNN's head sizes are multiples of this.
WIDTH = 8


class Form(NamedTuple):
    """What distinguishes two calls for cuDNN.

    Attributes:
        query: shape (B, T, H, K).
        key: shape (B, S, G, K).
        dtype: str.
        bias: shape (B | 1, H | 1, T, S); optional.
        causal: bool.
        window: int; optional.
        padded: bool, whether the call has lengths.
    """

    query: tuple[int, ...]
    key: tuple[int, ...]
    dtype: str
    bias: tuple[int, ...] | None = None
    causal: bool = False
    window: int | None = None
    padded: bool = False


def is_available(query: Tensor, key: Tensor) -> bool:
    """Whether cuDNN computes attention of queries (B, H, T, K) to keys (B, G, S, K) here.

    Not in float32, and not on a GPU before Ampere.
    """
    if query.dtype not in ("float16", "bfloat16") or query.dtype != key.dtype:
        return False
    if platform() != "gpu":
        return False
    (batch, heads, length, width), groups = query.shape, key.shape[1]
    batch, width, columns = min(batch, 2), width + -width % WIDTH, key.shape[2]
    queries = batch, length + length % 2, heads, width
    return is_accepted(
        Form(queries, (batch, columns + columns % 2, groups, width), str(query.dtype))
    )


def flash_attention(query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms) -> Tensor:
    """softmax(QK^T scale + bias) V by cuDNN, without storing the scores where cuDNN can.

    A mask of keys alone is given as lengths if the padding is at the right in all rows, which the
    program finds out when it runs, and otherwise as a bias of the size of a mask (B, 1, T, S): so
    is every other mask. The program has both forms; the backward pass repeats the forward pass of
    the one that ran.

    Args:
        query: (B, H, T, K), float16 or bfloat16.
        key: (B, G, S, K), same dtype.
        value: (B, G, S, K), same dtype.
        terms: `ScoreTerms`; mask and bias have four axes.

    Returns:
        (B, H, T, K). The result for a query that sees no key is finite.
    """
    scale, mask, bias, causal, window = terms
    query, key, value = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))
    if mask is None and isinstance(window, int) and causal and bias is None:
        return jnp.swapaxes(
            _attend(query, key, value, scale=scale, causal=True, window=window), 1, 2
        )
    sight = None if window is None else _window(query.shape[1], window)
    if sight is not None:
        mask = sight if mask is None else sight & mask
    inputs = [query, key, value] if bias is None else [query, key, value, bias]

    def by_mask(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
        # The causal part of a mask costs nothing, but skips half the work where there is no mask.
        visible = mask
        if mask is not None and causal:
            visible = mask & jnp.tri(query.shape[1], dtype=bool)
        added = _added_bias(bias, visible, query, key)
        return _attend(query, key, value, added, scale=scale, causal=causal and mask is None)

    if mask is None or mask.shape[1:3] != (1, 1):
        return jnp.swapaxes(by_mask(*inputs), 1, 2)
    keys = jnp.broadcast_to(mask[:, 0, 0], (query.shape[0], key.shape[1]))
    # At least one: a row of length 0 is undefined. Its result is not read.
    lengths = jnp.maximum(jnp.sum(keys, axis=-1, dtype="int32"), 1)

    def by_length(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
        visible = None
        if bias is not None and causal:  # a bias is as large as the mask, which it can hold
            visible = jnp.tri(query.shape[1], dtype=bool)[None, None]
        added = _added_bias(bias, visible, query, key)
        is_causal = causal and added is None
        return _attend(query, key, value, added, lengths, scale=scale, causal=is_causal)

    is_right = jnp.all(keys[:, 1:] <= keys[:, :-1])

    # Without `checkpoint` both forms would store all that either needs, the mask included.
    @jax.checkpoint
    def attend(*inputs: Tensor) -> Tensor:
        return jax.lax.cond(is_right, by_length, by_mask, *inputs)

    return jnp.swapaxes(attend(*inputs), 1, 2)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    *,
    scale: float,
    causal: bool,
    window: int | None = None,
) -> Tensor:
    """(B, T, H, K), (B, S, G, K), (B, S, G, K) -> (B, T, H, K), by cuDNN if it accepts the call."""
    (_, length, _, width), columns = query.shape, key.shape[1]
    # JAX has cuDNN's gradients for even lengths alone. A key that is added is hidden, a query's
    # result is cut off.
    rows, more, wider = length % 2, columns % 2, -width % WIDTH
    query = jnp.pad(query, ((0, 0), (0, rows), (0, 0), (0, wider)))
    key, value = (jnp.pad(x, ((0, 0), (0, more), (0, 0), (0, wider))) for x in (key, value))
    if bias is not None:
        bias = jnp.pad(bias, ((0, 0),) * 3 + ((0, more),), constant_values=lowest(query.dtype))
        bias = jnp.pad(bias, ((0, 0), (0, 0), (0, rows), (0, 0)))
    elif more and lengths is None and not causal:
        lengths = jnp.full(query.shape[:1], columns, "int32")
    options: Arguments = {"scale": scale, "is_causal": causal, "bias": bias}
    if window is not None:
        options["local_window_size"] = (window - 1, 0)
    if lengths is not None:
        options["key_value_seq_lengths"] = lengths
        options["query_seq_lengths"] = jnp.full_like(lengths, query.shape[1])
    form = Form(
        _few(query.shape), _few(key.shape), str(query.dtype),
        None if bias is None else _few(bias.shape), causal, window, lengths is not None,
    )  # fmt: skip
    kind = "cudnn" if is_accepted(form) else "xla"
    y = jax.nn.dot_product_attention(query, key, value, implementation=kind, **options)
    return y[:, :length, :, :width]


def _few(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` with a batch of at most 2: what cuDNN accepts does not depend on it."""
    return (min(shape[0], 2), *shape[1:])


@functools.cache
def is_accepted(form: Form) -> bool:
    """Whether cuDNN computes a call and its gradients, found by compiling both.

    Its rules depend on the versions of cuDNN and of JAX and on the GPU; some are checked by JAX
    when a program is traced, others by XLA when it is compiled.
    """
    queries, keys = (jax.ShapeDtypeStruct(x, form.dtype) for x in (form.query, form.key))
    lengths = jax.ShapeDtypeStruct(form.query[:1], "int32") if form.padded else None
    bias = None if form.bias is None else jax.ShapeDtypeStruct(form.bias, form.dtype)
    size = None if form.window is None else (form.window - 1, 0)

    def run(arrays: Any, lengths: Tensor | None) -> Tensor:
        query, key, value, bias = arrays
        y = jax.nn.dot_product_attention(
            query, key, value, bias, is_causal=form.causal, local_window_size=size,
            query_seq_lengths=lengths, key_value_seq_lengths=lengths, implementation="cudnn",
        )  # fmt: skip
        return jnp.sum(y.astype("float32"))

    try:
        compile_for_gpu(
            jax.jit(jax.value_and_grad(run)).trace((queries, keys, keys, bias), lengths)
        )
    except Exception:  # whatever the reason is, XLA's own attention computes the same
        return False
    return True


def compile_for_gpu(traced: Any) -> None:
    """Compiles a traced function; tests on a CPU lower it instead."""
    traced.lower().compile()


def platform() -> str:
    """The platform that JAX computes on: "cpu", "gpu" or "tpu"."""
    device = jax.config.jax_default_device
    if device is None:
        return str(jax.default_backend())
    return str(getattr(device, "platform", device)).split(":")[0].replace("cuda", "gpu")


def lowest(dtype: DType) -> float:
    """What JAX adds to scores of hidden keys for cuDNN: finite, and its differences too."""
    return -(2.0**15) if dtype == "float16" else -(2.0**41)


def _added_bias(
    bias: Tensor | None, mask: Tensor | None, query: Tensor, key: Tensor
) -> Tensor | None:
    """Bias and mask as one tensor (B | 1, H | 1, T, S) to add, in the dtype of the queries."""
    if bias is None and mask is None:
        return None
    added = jnp.zeros((), query.dtype) if bias is None else bias.astype(query.dtype)
    if mask is not None:
        added = jnp.where(mask, added, jnp.asarray(lowest(query.dtype), query.dtype))
    added = added[(None,) * (4 - added.ndim)]
    # cuDNN broadcasts the first two axes alone.
    return jnp.broadcast_to(added, (*added.shape[:2], query.shape[1], key.shape[1]))


def _window(length: int, window: Window) -> Tensor:
    """(1, 1, T, T): whether a query sees a key in its window."""
    sight: Tensor = masks.in_sight(masks.distances(length, length, 0), False, window)
    return sight[None, None]
