"""Dropout on JAX by hashing each value's row and column: nothing is stored for the gradient."""

import functools

import jax
import jax.numpy as jnp

from keras_tfm.layers.types import Tensor


def hashed_dropout(x: Tensor, rate: float, seed: Tensor) -> Tensor:
    """Dropout in which a hash of each value's place and the seed decides what is dropped.

    XLA compiles it into the operations around it, for the gradient too: a third of the arithmetic
    of JAX's own generator, and no mask is stored.

    Args:
        x: float tensor (..., N).
        rate: float, dropout rate, 0 < rate < 1.
        seed: two integers.
    """
    return _drop(rate, x, jnp.asarray(seed).astype("uint32"))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _drop(rate: float, x: Tensor, seed: Tensor) -> Tensor:
    if x.ndim == 0:
        return _drop(rate, x[None], seed)[0]
    kept = kept_values(rate, seed, row_numbers(x.shape[:-1]), jnp.arange(x.shape[-1]))
    return jnp.where(kept, x * jnp.asarray(1 / (1 - rate), x.dtype), jnp.zeros((), x.dtype))


@_drop.defjvp
def _dropped_tangent(
    rate: float, primals: tuple[Tensor, Tensor], tangents: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    x, seed = primals
    # Recomputed in the backward pass: the seed is all that is stored. The barrier keeps XLA from
    # finding out that it has these bits already.
    drop = jax.checkpoint(functools.partial(_drop, rate), prevent_cse=False)
    return _drop(rate, x, seed), drop(tangents[0], jax.lax.optimization_barrier(seed))


def row_numbers(shape: tuple[int, ...]) -> Tensor:
    """The number of each row, from 0, of a tensor (*shape, N): uint32 (*shape, 1)."""
    number = jnp.zeros((*shape, 1), "uint32")
    stride = 1
    for axis in reversed(range(len(shape))):
        place = jax.lax.broadcasted_iota("uint32", (*shape, 1), axis)
        number = number + place * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    return number


def kept_values(rate: float, seed: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Which values dropout keeps, boolean: a hash of the seed, the row and the column.

    Each row has an affine sequence of its own, of which each number is hashed once more.

    Args:
        rate: float, dropout rate.
        seed: uint32 (2,).
        rows: uint32 (..., 1).
        columns: integers (N,).
    """
    first = _mix(_mix(seed[0]) + seed[1])
    start = _mix(_mix(rows + first) ^ _mix(first + jnp.uint32(0x9E3779B9)))
    step = _mix(start + jnp.uint32(0x9E3779B9)) | jnp.uint32(1)
    bits = _mix(start + columns.astype("uint32") * step)
    # Compared as 31 bits: CPUs have no vector instruction for an unsigned comparison.
    return (bits >> 1).astype("int32") >= jnp.int32(round(rate * 2**31))


def _mix(x: Tensor) -> Tensor:
    """A permutation of 32 bits in which each bit depends on all: C. Wellons's lowbias32."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> shift)) * jnp.uint32(factor)
    return x ^ (x >> 16)
