"""Gated DeltaNet: linear attention with a state of constant size."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer, check_not_negative
from keras_tfm.layers.arguments import as_activation
from keras_tfm.layers.decoding.scope import current_scope
from keras_tfm.layers.multi_head_attention.heads import merge_last, split_heads, split_last, swap
from keras_tfm.layers.recurrent.causal_convolution import causal_convolution, zero_padding
from keras_tfm.layers.recurrent.delta_rule import gated_delta_rule
from keras_tfm.layers.recurrent.token_mixer import TokenMixer
from keras_tfm.layers.rms_normalization import RMSNormalization
from keras_tfm.layers.types import Activation, Shape, Size, Tensor

# Added to the squared length of queries and keys.
_EPSILON = 1e-6


@keras.saving.register_keras_serializable("keras_tfm")
class GatedDeltaNet(TokenMixer):
    """Linear attention by the gated delta rule (arXiv:2412.06464), as in Qwen3-Next and Qwen3.5.

    q, k, v are activation(convolution(x W_qkv)), split; queries and keys are divided by their
    length, and queries by sqrt(K). Each head has a state S (K, V), zeros before the first token:

    S_t = e^g_t S_t-1 + k_t (beta_t (v_t - k_t^T e^g_t S_t-1))^T, y_t = S_t^T q_t,
    beta_t = sigmoid(x_t W_b), g_t = -e^a softplus(x_t W_a + b);

    the layer returns (RMSNormalization(y) * silu(x W_z)) W_o. Several tokens are computed in chunks
    (arXiv:2406.06484), with memory that grows with T. Inside a `DecodingScope` its states are the
    matrices S, in float32, and the last N - 1 inputs of the convolution.

    Args:
        num_heads: int, number of heads (H): of values, states and the gate.
        head_dim: int, width of a head of queries and keys (K).
        value_dim: int, width of a head of values (V). Default: K.
        num_key_heads: int, number of heads of queries and keys, each for H / num_key_heads
            consecutive heads of values. Must divide H. Default: H.
        kernel_size: int, number of tokens that the convolution reads (N), the last one itself.
        activation: str or function, activation after the convolution.
        epsilon: float, epsilon of the normalisation.
        **kwargs: `kernel_initializer` and `bias_initializer`, of b, and the arguments of
            `keras.layers.Layer`.

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
    >>> from keras_tfm.layers import GatedDeltaNet
    >>> layer = GatedDeltaNet(num_heads=4, head_dim=3, num_key_heads=2)
    >>> tuple(layer(np.ones((2, 5, 12), "float32")).shape)
    (2, 5, 12)
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        num_key_heads: int | None = None,
        kernel_size: int = 4,
        activation: Activation = "silu",
        epsilon: float = 1e-6,
        bias_initializer: Any = "ones",
        **kwargs: Any,
    ):
        super().__init__(bias_initializer=bias_initializer, **kwargs)
        check_integer("num_heads", num_heads)
        check_integer("head_dim", head_dim)
        check_integer("value_dim", value_dim, optional=True)
        check_integer("num_key_heads", num_key_heads, optional=True)
        check_integer("kernel_size", kernel_size, minimum=2)
        check_not_negative("epsilon", epsilon)
        if num_key_heads is not None and num_heads % num_key_heads:
            raise ValueError(f"num_key_heads ({num_key_heads}) must divide num_heads ({num_heads})")
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.value_dim = value_dim
        self.num_key_heads = num_key_heads
        self.kernel_size = kernel_size
        self.activation = as_activation("activation", activation)
        self.epsilon = epsilon
        self.use_bias = False
        self._values = value_dim or head_dim
        self._key_width = (num_key_heads or num_heads) * head_dim
        self.norm = RMSNormalization(epsilon=epsilon, dtype=self.dtype_policy, name="norm")

    def build(self, x_shape: Shape) -> None:
        """Creates the weights for inputs of width D."""
        self._check_input(x_shape)
        inner = self.num_heads * self._values
        width = 2 * self._key_width + inner
        self.query_key_value = self._dense("query_key_value", width)
        self.gate_projection = self._dense("gate", inner)
        self.beta_projection = self._dense("beta", self.num_heads)
        self.decay_projection = self._dense("decay", self.num_heads)
        for dense in (
            *(self.query_key_value, self.gate_projection),
            *(self.beta_projection, self.decay_projection),
        ):
            dense.build(x_shape)
        self.kernel = self.add_weight(
            shape=(self.kernel_size, 1, width), initializer=self.kernel_initializer.clone(),
            name="kernel",
        )  # fmt: skip
        # In float32 under any policy: the exponential of the first is.
        self.log_rate = self.add_weight(
            shape=(self.num_heads,), initializer=_log_rates, autocast=False, name="log_rate"
        )
        self.bias = self.add_weight(
            shape=(self.num_heads,), initializer=self.bias_initializer.clone(), autocast=False,
            name="bias",
        )  # fmt: skip
        self.norm.build((None, None, self.num_heads, self._values))
        self.output_projection = self._dense("output_projection", x_shape[-1])
        self.output_projection.build((*x_shape[:-1], inner))
        self.built = True

    def _mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        inputs = causal_convolution(
            f"{self.name}_convolution", self.query_key_value(x), self.kernel, mask=mask
        )
        given = (self.activation(inputs), *self._rates(x))
        scope = current_scope.get()
        if scope is not None:
            y = scope.recur(self.name, self._recur, given, self._begin, mask)
        else:
            y, _ = self._recur(given, self._begin(x.shape[0] or ops.shape(x)[0]), mask)
        gate = split_last(self.gate_projection(x), self.num_heads, self._values)
        y = self.norm(ops.cast(y, self.compute_dtype)) * ops.silu(gate)
        return self.output_projection(merge_last(y))

    @property
    def _state_dtype(self) -> str:
        return keras.backend.result_type(self.compute_dtype, "float32")

    def _rates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The logarithm of the state's decay, and beta: (B, T, H) each."""
        decay = ops.cast(self.decay_projection(x), self._state_dtype)
        rate = ops.exp(ops.cast(self.log_rate, decay.dtype))
        decay = -rate * ops.softplus(decay + ops.cast(self.bias, decay.dtype))
        return decay, ops.sigmoid(ops.cast(self.beta_projection(x), decay.dtype))

    def _begin(self, rows: Size) -> Tensor:
        """The states before the first token."""
        return ops.zeros(
            (rows, self.num_heads, self.head_dim, self._values), dtype=self._state_dtype
        )

    def _recur(self, given: Tensor, state: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The outputs of N tokens of each row, (R, N, H, V), and the states (R, H, K, V)."""
        x, *rates = given
        if mask is not None:
            rates = [zero_padding(rate, mask) for rate in rates]
        x, first = ops.cast(x, self._state_dtype), self._key_width
        query = self._heads(_unit(split_heads(x[..., :first], first // self.head_dim)))
        key = self._heads(_unit(split_heads(x[..., first : 2 * first], first // self.head_dim)))
        value = self._heads(split_heads(x[..., 2 * first :], self.num_heads))
        decay, beta = (self._heads(swap(rate, 1, 2)) for rate in rates)
        query, before = query * self.head_dim**-0.5, self._heads(state)
        y, after = gated_delta_rule(query, key, value, decay, beta, before)
        length = y.shape[1] or ops.shape(y)[1]
        y = ops.reshape(y, (-1, self.num_heads, length, self._values))
        return swap(y, 1, 2), ops.reshape(after, (-1, *state.shape[1:]))

    def _heads(self, x: Tensor) -> Tensor:
        """(R, H, ...) -> (R H, ...), repeating heads of keys for the heads of values they serve."""
        if x.shape[1] != self.num_heads:
            x = ops.repeat(x, self.num_heads // x.shape[1], axis=1)
        second = x.shape[2] or ops.shape(x)[2]
        return ops.reshape(x, (-1, second, *x.shape[3:]))


def _unit(x: Tensor) -> Tensor:
    """Vectors of length 1, nearly: x / sqrt(|x|^2 + epsilon).

    By the mean: of a sum of squares and an epsilon LiteRT's converter makes L2_NORMALIZATION, which
    leaves the epsilon out, and short vectors come out longer.
    """
    count = x.shape[-1]
    mean = ops.mean(ops.square(x), axis=-1, keepdims=True)
    return x * (ops.rsqrt(mean + _EPSILON / count) * count**-0.5)


def _log_rates(shape: Shape, dtype: str | None = None) -> Tensor:
    """The logarithms of numbers from 0.01 to 16."""
    return ops.log(keras.random.uniform(shape, 0.01, 16.0, dtype=dtype or "float32"))
