"""Mamba-2: a selective state space of constant size."""

import math
from collections.abc import Collection, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer, check_not_negative, check_numbers
from keras_tfm.layers.arguments import as_activation, biased_parts
from keras_tfm.layers.base_layer import Projection
from keras_tfm.layers.decoding.scope import current_scope
from keras_tfm.layers.multi_head_attention.heads import (
    merge_heads,
    merge_last,
    split_heads,
    split_last,
)
from keras_tfm.layers.recurrent.causal_convolution import causal_convolution, zero_padding
from keras_tfm.layers.recurrent.state_space import repeat_each, scan_state_space
from keras_tfm.layers.recurrent.token_mixer import TokenMixer
from keras_tfm.layers.types import Activation, Shape, Size, Tensor

_LAYERS = ("input_projection", "output_projection")
_NORMS = ("after_gate", "before_gate", None)


@keras.saving.register_keras_serializable("keras_tfm")
class Mamba2(TokenMixer):
    """The mixer of Mamba-2, a selective state space (arXiv:2405.21060).

    z, u, d are x W_in, split, and v, b, c are activation(convolution(u)), split: values of H heads,
    and keys and queries of G groups of heads. Each head has a state S (N, P), zeros before the
    first token:

    S_t = e^(-e^a D_t) S_t-1 + b_t (D_t v_t)^T, y_t = S_t^T c_t + s v_t,
    D_t = softplus(d_t + d), clipped to `time_step_limit`;

    the layer returns RMSNormalization(y * silu(z)) W_out, normalised in each group; or, by `norm`,
    (RMSNormalization(y) * silu(z)) W_out or (y * silu(z)) W_out. Several tokens are computed in
    chunks of 64, as matrix products, with memory that grows with T. Inside a `DecodingScope` its
    states are the matrices S, in float32, and the last inputs of the convolution.

    Args:
        num_heads: int, number of heads (H).
        head_dim: int, width of a head (P).
        state_dim: int, width of keys and queries (N); a state has N x P numbers.
        num_groups: int, number of groups (G), whose heads share keys and queries. Must divide H.
        kernel_size: int, number of tokens that the convolution reads, the last one itself.
        activation: str or function, activation after the convolution.
        epsilon: float, epsilon of the normalisation.
        use_bias: bool, whether both projections add a bias, or a list of those that do: any of
            "input_projection" and "output_projection".
        convolution_bias: bool, whether the convolution adds a bias.
        time_step_limit: tuple of two floats, the least and the largest time step D. Default: no
            limits.
        norm: str, "after_gate" or "before_gate", the place of the normalisation; None: none.
        projection_scales: list of five floats, factors of z, v, b, c and d, the parts of x W_in, as
            in Falcon-H1. Default: no factors.
        **kwargs: `kernel_initializer` and `bias_initializer`, of the projections and the
            convolution, and the arguments of `keras.layers.Layer`.

    Call arguments:
        x: float tensor (B, T, D).
        mask: (B, T), boolean, True = token, False = padding, which counts as zeros in the
            convolution and leaves the state as it is. Default: the mask that `x` carries.

    Returns:
        Float tensor (B, T, D).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or an input of another rank.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import Mamba2
    >>> layer = Mamba2(num_heads=4, head_dim=6, state_dim=8)
    >>> tuple(layer(np.ones((2, 5, 12), "float32")).shape)
    (2, 5, 12)
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        state_dim: int,
        num_groups: int = 1,
        kernel_size: int = 4,
        activation: Activation = "silu",
        epsilon: float = 1e-5,
        use_bias: bool | Collection[str] = False,
        convolution_bias: bool = True,
        time_step_limit: Sequence[float] | None = None,
        norm: str | None = "after_gate",
        projection_scales: Sequence[float] | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("num_heads", num_heads)
        check_integer("head_dim", head_dim)
        check_integer("state_dim", state_dim)
        check_integer("num_groups", num_groups)
        check_integer("kernel_size", kernel_size, minimum=2)
        check_not_negative("epsilon", epsilon)
        if num_heads % num_groups:
            raise ValueError(f"num_groups ({num_groups}) must divide num_heads ({num_heads})")
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.state_dim = state_dim
        self.num_groups = num_groups
        self.kernel_size = kernel_size
        self.activation = as_activation("activation", activation)
        self.epsilon = epsilon
        self._biased = biased_parts(use_bias, _LAYERS)
        self.use_bias = use_bias if isinstance(use_bias, bool) else sorted(use_bias)
        self.convolution_bias = convolution_bias
        self.time_step_limit = _as_limit(time_step_limit)
        if norm not in _NORMS:
            raise ValueError(f"norm must be one of {_NORMS}, got {norm!r}")
        self.norm = norm
        self.projection_scales = _as_scales(projection_scales)
        self._inner = num_heads * head_dim
        self._key_width = num_groups * state_dim

    def build(self, x_shape: Shape) -> None:
        """Creates the weights for inputs of width D."""
        self._check_input(x_shape)
        inner, heads = self._inner, (self.num_heads,)
        convolved = inner + 2 * self._key_width
        self.input_projection = self._projection(0, inner + convolved + self.num_heads)
        self.input_projection.build(x_shape)
        self.kernel = self.add_weight(
            shape=(self.kernel_size, 1, convolved), initializer=self.kernel_initializer.clone(),
            name="kernel",
        )  # fmt: skip
        self.bias = None
        if self.convolution_bias:
            self.bias = self.add_weight(
                shape=(convolved,), initializer=self.bias_initializer.clone(), name="bias"
            )
        # In float32 under any policy: the exponential of the second is.
        self.time_step_bias = self.add_weight(
            shape=heads, initializer=_time_step_biases, autocast=False, name="time_step_bias"
        )
        self.log_rate = self.add_weight(
            shape=heads, initializer=_log_rates, autocast=False, name="log_rate"
        )
        self.skip = self.add_weight(shape=heads, initializer="ones", autocast=False, name="skip")
        if self.norm is not None:
            self.scale = self.add_weight(shape=(inner,), initializer="ones", name="scale")
        self.output_projection = self._projection(1, x_shape[-1])
        self.output_projection.build((*x_shape[:-1], inner))
        self.built = True

    def _projection(self, index: int, units: int) -> Projection:
        name = _LAYERS[index]
        return self._dense(name, units, name in self._biased)

    def _mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        inner, keys = self._inner, self._key_width
        gate, inputs, steps = self._project(
            self.input_projection, x, inner, inner + 2 * keys, self.num_heads
        )
        if self.projection_scales is not None:
            first, *middle, last = self.projection_scales
            gate, steps = gate * first, steps * last
            factors = np.repeat(middle, (inner, keys, keys))
            inputs = inputs * ops.cast(factors, inputs.dtype)
        inputs = self.activation(
            causal_convolution(f"{self.name}_convolution", inputs, self.kernel, self.bias, mask)
        )
        inputs = ops.cast(inputs, self._state_dtype)
        given = (inputs, self._time_steps(steps))
        scope = current_scope.get()
        if scope is not None:
            y = scope.recur(self.name, self._recur, given, self._begin, mask)
        else:
            y, _ = self._recur(given, self._begin(x.shape[0] or ops.shape(x)[0]), mask)
        value = inputs[..., :inner]
        y = y + repeat_each(ops.cast(self.skip, y.dtype), value) * value
        gate = ops.silu(ops.cast(gate, y.dtype))
        y = self._normalize(y) * gate if self.norm == "before_gate" else y * gate
        y = self._normalize(y) if self.norm == "after_gate" else y
        return self.output_projection(ops.cast(y, self.compute_dtype))

    @property
    def _state_dtype(self) -> str:
        return keras.backend.result_type(self.compute_dtype, "float32")

    def _time_steps(self, steps: Tensor) -> Tensor:
        """The time step of each head: (B, T, H)."""
        steps = ops.cast(steps, self._state_dtype)
        steps = ops.softplus(steps + ops.cast(self.time_step_bias, steps.dtype))
        return steps if self.time_step_limit is None else ops.clip(steps, *self.time_step_limit)

    def _begin(self, rows: Size) -> Tensor:
        """The states before the first token."""
        width = self._inner // self.num_groups
        return ops.zeros((rows, self.num_groups, self.state_dim, width), dtype=self._state_dtype)

    def _recur(self, given: Tensor, state: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The outputs of N tokens of each row (R, N, H P), and the states after them."""
        x, steps = given
        if mask is not None:
            steps = zero_padding(steps, mask)
        inner, keys = self._inner, self._key_width
        value = x[..., :inner]
        value = self._groups(value * repeat_each(steps, value))
        key = self._groups(x[..., inner : inner + keys])
        query = self._groups(x[..., inner + keys :])
        decay = self._groups(-ops.exp(ops.cast(self.log_rate, steps.dtype)) * steps)
        before = ops.reshape(state, (-1, *state.shape[2:]))
        y, after = scan_state_space(query, key, value, decay, before)
        length = y.shape[1] or ops.shape(y)[1]
        y = ops.reshape(y, (-1, self.num_groups, length, y.shape[-1]))
        return merge_heads(y), ops.reshape(after, (-1, *state.shape[1:]))

    def _groups(self, x: Tensor) -> Tensor:
        """(R, N, G W) -> (R G, N, W)."""
        x = split_heads(x, self.num_groups)
        return ops.reshape(x, (-1, x.shape[2] or ops.shape(x)[2], x.shape[-1]))

    def _normalize(self, y: Tensor) -> Tensor:
        """`y` divided by the root mean square of its group, times the weight: (B, T, H P)."""
        groups, width = self.num_groups, self._inner // self.num_groups
        y = split_last(y, groups, width)
        mean_square = ops.mean(ops.square(y), axis=-1, keepdims=True)
        # The last factor is no constant: see `RMSNormalization`.
        y = y * ops.reshape(ops.cast(self.scale, y.dtype), (groups, width))
        return merge_last(y * ops.rsqrt(mean_square + self.epsilon))


def _as_limit(limit: Any) -> list[float] | None:
    """The limits, checked; None if nothing is clipped."""
    if limit is None:
        return None
    pair = list(limit) if isinstance(limit, list | tuple) else []
    if len(pair) != 2 or not all(type(x) in (int, float) for x in pair):
        raise TypeError(f"time_step_limit must be a pair of numbers, got {limit!r}")
    low, high = pair
    if not 0 <= low <= high:
        raise ValueError(f"time_step_limit must be 0 <= least <= largest, got {limit!r}")
    return None if low == 0 and high == math.inf else [float(low), float(high)]


def _as_scales(scales: Any) -> list[float] | None:
    """The five factors, checked; None if all are 1."""
    if scales is None:
        return None
    check_numbers("projection_scales", scales, 5)
    return None if all(scale == 1 for scale in scales) else [float(scale) for scale in scales]


def _time_step_biases(shape: Shape, dtype: str | None = None) -> Tensor:
    """Such that the time steps are 0.001 to 0.1, in equal parts of their logarithm."""
    low, high = math.log(0.001), math.log(0.1)
    steps = ops.exp(keras.random.uniform(shape, low, high, dtype=dtype or "float32"))
    return steps + ops.log(-ops.expm1(-steps))


def _log_rates(shape: Shape, dtype: str | None = None) -> Tensor:
    """The logarithms of numbers from 1 to 16."""
    return ops.log(keras.random.uniform(shape, 1.0, 16.0, dtype=dtype or "float32"))
