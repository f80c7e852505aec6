"""The rules of Keras's layers: recurrent ones, causal convolutions, pooling, attention, sums.

Example:

>>> import keras, numpy as np
>>> from keras_tfm.generation import generate
>>> tokens = keras.Input((None,), dtype="int32")
>>> x = keras.layers.Embedding(11, 8)(tokens)
>>> x = keras.layers.GRU(8, return_sequences=True)(x)
>>> model = keras.Model(tokens, keras.layers.Dense(11)(x))
>>> generate(model, np.array([[3, 4]]), max_length=6).tokens.shape
(1, 6)
"""

from typing import Any

import keras
from keras import ops

from keras_tfm.generation.step_rules.step_rule import StepRule, choose_rows, register_step
from keras_tfm.keras_internals import attention_parts, cumsum_operation, get_mask, set_mask
from keras_tfm.layers.decoding.scope import DecodingScope
from keras_tfm.layers.decoding.source_scope import SourceScope, refuse_mask
from keras_tfm.layers.multi_head_attention.attention import attention
from keras_tfm.layers.multi_head_attention.heads import swap
from keras_tfm.layers.multi_head_attention.stepped_attention import stepped_attention
from keras_tfm.layers.types import Size, Tensor


class _RecurrentRule(StepRule):
    """`LSTM`, `GRU`, `SimpleRNN` and `RNN(cell)`: the state is that of the cell."""

    def call(
        self,
        layer: keras.Layer,
        scope: DecodingScope,
        sequences: Tensor,
        initial_state: Tensor | None = None,
        mask: Tensor | None = None,
        training: bool = False,
    ) -> Any:
        """The outputs of the cell; `initial_state` is that before the first token."""
        _check_recurrent(layer)
        last: list[Tensor] = []

        def begin(rows: Size) -> Tensor:
            state = layer.get_initial_state(rows) if initial_state is None else initial_state
            state = list(state) if keras.tree.is_nested(state) else [state]
            dtype = layer.cell.compute_dtype
            return keras.tree.map_structure(lambda x: ops.cast(x, dtype), state)

        def step(x: Tensor, state: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
            y, last[:] = self.step(layer, x, state, mask)
            return y, list(last)

        y = scope.recur(layer.name, step, sequences, begin, mask)
        return (y, *last) if layer.return_state else y

    def step(
        self, layer: keras.Layer, x: Tensor, state: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The outputs (R, N, F) and the state; a masked token repeats the output before it."""
        y, after = super().step(layer, x, state, mask)
        repeats = isinstance(layer, keras.layers.LSTM | keras.layers.GRU | keras.layers.SimpleRNN)
        if mask is not None and x.shape[1] == 1 and repeats and not layer.zero_output_for_mask:
            y = choose_rows(mask, y, ops.cast(ops.expand_dims(state[0], 1), y.dtype))
        return y, after

    def token(self, layer: keras.Layer, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The output (R, F) of the cell, and its state in the structure and dtypes of `state`."""
        y, after = layer.cell(x, state)
        flat = zip(keras.tree.flatten(after), keras.tree.flatten(state), strict=True)
        after = keras.tree.pack_sequence_as(state, [ops.cast(x, y.dtype) for x, y in flat])
        return ops.cast(y, layer.compute_dtype), after


def _check_recurrent(layer: keras.Layer) -> None:
    faults = {
        "go_backwards=True reads later tokens first": layer.go_backwards,
        "return_sequences=False has one output for all tokens": not layer.return_sequences,
        "stateful=True keeps a state outside of the steps": layer.stateful,
    }
    for fault, is_there in faults.items():
        if is_there:
            raise ValueError(f"{type(layer).__name__} {layer.name!r} cannot be stepped: {fault}")


class _WindowRule(StepRule):
    """Causal convolution and pooling: the state is the last inputs.

    Causal are `padding="causal"`, and `padding="valid"` after a `ZeroPadding1D((n, 0))` of as many
    zeros as the layer reads before a token.
    """

    def call(self, layer: keras.Layer, scope: DecodingScope, inputs: Tensor) -> Tensor:
        """The outputs of a causal layer; of others, those of an ordinary call."""
        size = getattr(layer, "kernel_size", None) or layer.pool_size
        (dilation,) = getattr(layer, "dilation_rate", (1,))
        count = (size[0] - 1) * dilation
        if isinstance(scope, SourceScope):
            return self._slide(layer, scope, inputs, count)
        is_padded = layer.padding == "valid" and scope.has_zeros_before(inputs, count)
        plain = layer.data_format == "channels_last" and tuple(layer.strides) == (1,)
        if not plain or not count or not (layer.padding == "causal" or is_padded):
            return type(layer).call(layer, inputs)
        return scope.convolve(layer.name, lambda x: self._without_padding(layer, x), inputs, count)

    def _slide(self, layer: keras.Layer, scope: SourceScope, x: Tensor, count: int) -> Tensor:
        """The outputs for a piece of a source, with any stride and padding that is zeros."""
        padding = layer.padding
        is_convolution = isinstance(layer, keras.layers.Conv1D)
        if layer.data_format != "channels_last" or (
            padding == "same" and (not is_convolution or tuple(layer.strides) != (1,))
        ):
            raise ValueError(
                f"{layer.name}: a source that is read in pieces needs channels_last and padding "
                f"'causal' or 'valid', or 'same' of a Conv1D without strides, got "
                f"{layer.data_format} and {padding!r}"
            )
        zeros = (0, 0)
        if padding == "causal" or scope.has_zeros_before(x, count):
            zeros = (count, 0)
        elif padding == "same":
            zeros = (count // 2, count - count // 2)
        return scope.slide(
            layer.name,
            lambda x: self._without_padding(layer, x),
            x,
            count + 1,
            layer.strides[0],
            zeros,
        )

    @staticmethod
    def _without_padding(layer: keras.Layer, x: Tensor) -> Tensor:
        if layer.padding == "valid":
            return type(layer).call(layer, x)
        y = ops.conv(
            x, layer.kernel, layer.strides, "valid", layer.data_format, layer.dilation_rate
        )
        y = y if layer.bias is None else y + layer.bias
        return y if layer.activation is None else layer.activation(y)


class _ZeroPaddingRule(StepRule):
    """`ZeroPadding1D((n, 0))` before a convolution, whose last inputs take the place of zeros."""

    def call(self, layer: keras.Layer, scope: DecodingScope, inputs: Tensor) -> Tensor:
        """The inputs, without zeros."""
        count, after = layer.padding
        if after or layer.data_format != "channels_last":
            return type(layer).call(layer, inputs)
        scope.put_zeros_before(inputs, count)
        return inputs


class _AttentionRule(StepRule):
    """`MultiHeadAttention` and `GroupQueryAttention` of a sequence to itself: a KV cache."""

    def call(
        self,
        layer: keras.Layer,
        scope: DecodingScope,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Any:
        """The outputs of causal self-attention; of others, those of an ordinary call."""
        parts = attention_parts(layer)
        is_own = value is query and (key is None or key is query)
        is_plain = attention_mask is None and not return_attention_scores and use_causal_mask
        if is_own and len(query.shape) > 3 and not isinstance(scope, SourceScope):
            self._check_axes(layer, len(query.shape))
        if parts is None or not is_own or not is_plain:
            return type(layer).call(
                layer,
                query,
                value,
                key=key,
                query_mask=query_mask,
                value_mask=value_mask,
                key_mask=key_mask,
                attention_mask=attention_mask,
                return_attention_scores=return_attention_scores,
                training=training,
                use_causal_mask=use_causal_mask,
            )
        known = get_mask(query)
        set_mask(query, None)  # or the projections warn that they drop it
        q, k, v = (swap(dense(query), 1, 2) for dense in (parts.query, parts.key, parts.value))
        gate = None if parts.gate is None else parts.gate(query)
        set_mask(query, known)
        if isinstance(scope, SourceScope) and parts.window is not None:
            refuse_mask(layer.name, value_mask)
            around = scope.look_around(layer.name, q, k, v, True, parts.window)
            mask = ops.expand_dims(around.mask, (0, 1))
            y = swap(attention(around.query, around.key, around.value, mask=mask), 1, 2)
            return parts.output(y if gate is None else y * gate)
        step = scope.extend(layer.name, k, v, value_mask, parts.window)
        if step.entry is None or step.visible is None:
            mask = None if step.mask is None else ops.expand_dims(step.mask, (1, 2))
            y = attention(q, k, v, mask=mask, causal=True, window=parts.window)
        else:
            y = stepped_attention(q, k, v, step.entry, step.visible)
        y = swap(y, 1, 2)
        return parts.output(y if gate is None else y * gate)

    @staticmethod
    def _check_axes(layer: keras.Layer, rank: int) -> None:
        axes = layer.get_config().get("attention_axes") or range(1, rank - 1)
        if any(axis % rank == 1 for axis in axes):
            raise ValueError(
                f"{type(layer).__name__} {layer.name!r} cannot be stepped: attention over the "
                f"tokens needs inputs of 3 axes, (batch, tokens, features), got {rank} axes"
            )


class _SumRule(StepRule):
    """`keras.ops.cumsum` over the tokens: the state is the sum so far."""

    def call(self, layer: keras.Layer, scope: DecodingScope, x: Tensor) -> Tensor:
        """The sums of all tokens up to each; along another axis, those of an ordinary call."""
        rank = len(x.shape)
        if layer.axis is None or layer.axis % rank != 1:
            return type(layer).call(layer, x)
        return super().call(layer, scope, x)

    def begin(self, layer: keras.Layer, x: Tensor, rows: Size) -> Tensor:
        """Zeros (R, ...)."""
        # Truth values are counted.
        dtype = layer.dtype or ("int32" if x.dtype == "bool" else x.dtype)
        return ops.zeros((rows, *x.shape[2:]), dtype=dtype)

    def step(
        self, layer: keras.Layer, x: Tensor, state: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The sums (R, N, ...), and the last of them."""
        if mask is not None:
            mask = ops.reshape(mask, (*ops.shape(mask), *(1 for _ in x.shape[2:])))
            x = ops.where(mask, x, ops.zeros_like(x))
        y = type(layer).call(layer, x) + ops.expand_dims(state, 1)
        return y, y[:, -1]


for _layer_class in (
    keras.layers.LSTM,
    keras.layers.GRU,
    keras.layers.SimpleRNN,
    keras.layers.RNN,
):
    register_step(_layer_class, _RecurrentRule())
for _layer_class in (
    keras.layers.Conv1D,
    keras.layers.DepthwiseConv1D,
    keras.layers.SeparableConv1D,
    keras.layers.MaxPooling1D,
    keras.layers.AveragePooling1D,
):
    register_step(_layer_class, _WindowRule())
register_step(keras.layers.ZeroPadding1D, _ZeroPaddingRule())
for _layer_class in (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention):
    register_step(_layer_class, _AttentionRule())
register_step(cumsum_operation(), _SumRule())
