"""Gemma 4 (https://ai.google.dev/gemma/docs/core/model_card_4), for text: E2B, E4B and 31B."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm import layers
from keras_tfm.arguments import check_integer, check_positive
from keras_tfm.layers.arguments import as_activation
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.multi_head_attention.heads import merge_last, split_last
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Activation, Arguments, DType, Shape, Tensor
from keras_tfm.models.decoders.causal_decoder import RotaryDecoder, each_window, initializer
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model


def _size(num_layers: int, interval: int, window: int = 512, **more: Any) -> Arguments:
    windows = [window if (i + 1) % interval else None for i in range(num_layers)]
    return {"num_layers": num_layers, "windows": windows, **more}


# From the models' configurations on the Hugging Face hub. gemma4(262144, **SIZES["e2b"]).
SIZES: dict[str, Arguments] = {
    "e2b": _size(
        35, 5, dim=1536, num_heads=8, num_key_value_heads=1, intermediate_dim=6144,
        num_shared_layers=20, shared_intermediate_dim=12288, layer_input_dim=256,
        max_length=131072,
    ),
    "e4b": _size(
        42, 6, dim=2560, num_heads=8, num_key_value_heads=2, intermediate_dim=10240,
        num_shared_layers=18, layer_input_dim=256, max_length=131072,
    ),
    "31b": _size(
        60, 6, 1024, dim=5376, num_heads=32, num_key_value_heads=16, intermediate_dim=21504,
        tied_values=True, global_num_key_value_heads=4, max_length=262144,
    ),
}  # fmt: skip

_QUARTER = layers.ProportionalScaling(part=0.25)


@keras.saving.register_keras_serializable("keras_tfm")
class LayerInputs(RematerializedLayer):
    """The input of each block: per-layer embeddings of the tokens, and of their context.

    y = (e + norm(x W / sqrt(D))) / sqrt(2), where the norm is that of each block's P numbers.

    Args:
        dim: int, width of each block's input (P).
        epsilon: float, epsilon of the normalisation.

    Call arguments:
        x: (B, T, D), the embedded tokens.
        layer_embeddings: (B, T, L P), their embeddings for each block.

    Returns:
        (B, T, L P).

    >>> import numpy as np
    >>> from keras_tfm.models.decoders.gemma4 import LayerInputs
    >>> LayerInputs(3)(np.ones((1, 2, 5), "float32"), np.ones((1, 2, 6), "float32")).shape
    TensorShape([1, 2, 6])
    """

    def __init__(self, dim: int, epsilon: float = 1e-6, **kwargs: Any):
        super().__init__(**kwargs)
        self.dim = dim
        self.epsilon = epsilon
        self.norm = layers.RMSNormalization(epsilon=epsilon, dtype=self.dtype_policy, name="norm")

    def build(self, x_shape: Shape, layer_embeddings_shape: Shape) -> None:
        """Creates the projection."""
        width = layer_embeddings_shape[-1]
        self.projection = self._dense("projection", width, False, initializer(), "zeros")
        self.projection.build(x_shape)
        self.norm.build((None, None, width // self.dim, self.dim))
        self.built = True

    def call(self, x: Tensor, layer_embeddings: Tensor, x_mask: Tensor | None = None) -> Tensor:
        """(B, T, D), (B, T, L P) -> (B, T, L P)."""
        projected = self.projection(x) * ops.cast(x.shape[-1] ** -0.5, x.dtype)
        projected = self.norm(
            split_last(projected, layer_embeddings.shape[-1] // self.dim, self.dim)
        )
        return (merge_last(projected) + layer_embeddings) * ops.cast(2**-0.5, x.dtype)

    def compute_output_shape(self, x_shape: Shape, layer_embeddings_shape: Shape) -> Shape:
        """The shape of the embeddings."""
        return layer_embeddings_shape


@keras.saving.register_keras_serializable("keras_tfm")
class LayerInput(RematerializedLayer):
    """Adds a block's own input of each token, gated by the features; then scales all by a number.

    y = s (x + norm((g(x W_g) * p) W_o)). Without inputs, y = s x.

    Args:
        index: int, number of the block, from 0.
        dim: int, width of a block's input (P). None: there are none.
        activation: str or function, g.
        epsilon: float, epsilon of the normalisation.

    Call arguments:
        x: (B, T, D), the result of the block.
        layer_inputs: (B, T, L P), the inputs of all blocks.

    Returns:
        (B, T, D).

    >>> import numpy as np
    >>> from keras_tfm.models.decoders.gemma4 import LayerInput
    >>> layer = LayerInput(index=1, dim=3, activation="gelu")
    >>> layer(np.ones((1, 2, 5), "float32"), np.ones((1, 2, 6), "float32")).shape
    TensorShape([1, 2, 5])
    """

    def __init__(
        self,
        index: int,
        dim: int | None = None,
        activation: Activation = layers.gelu_tanh,
        epsilon: float = 1e-6,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("index", index, minimum=0)
        check_integer("dim", dim, optional=True)
        self.index = index
        self.dim = dim
        self.activation = as_activation("activation", activation)
        self.epsilon = epsilon
        if dim is not None:
            self.norm = layers.RMSNormalization(
                epsilon=epsilon, dtype=self.dtype_policy, name="norm"
            )

    def build(self, x_shape: Shape, layer_inputs_shape: Shape | None = None) -> None:
        """Creates the weights for features of width D."""
        if self.dim is not None:
            self.gate = self._dense("gate", self.dim, False, initializer(), "zeros")
            self.gate.build(x_shape)
            self.output_projection = self._dense(
                "output_projection", x_shape[-1], False, initializer(), "zeros"
            )
            self.output_projection.build((*x_shape[:-1], self.dim))
            self.norm.build(x_shape)
        self.scale = self.add_weight(name="scale", shape=(1,), initializer="ones")
        self.built = True

    def call(
        self, x: Tensor, layer_inputs: Tensor | None = None, x_mask: Tensor | None = None
    ) -> Tensor:
        """(B, T, D), (B, T, L P) -> (B, T, D)."""
        if self.dim is not None and layer_inputs is not None:
            own = layer_inputs[..., self.index * self.dim : (self.index + 1) * self.dim]
            gated = self.activation(self.gate(x)) * own
            x = x + self.norm(self.output_projection(gated))
        return x * self.scale


@builder
def gemma4(
    vocabulary_size: int,
    dim: int = 1536,
    num_layers: int = 35,
    num_heads: int = 8,
    intermediate_dim: int = 6144,
    num_key_value_heads: int | None = None,
    head_dim: int = 256,
    global_num_key_value_heads: int | None = None,
    global_head_dim: int = 512,
    tied_values: bool = False,
    num_shared_layers: int = 0,
    shared_intermediate_dim: int | None = None,
    layer_input_dim: int | None = None,
    activation: Activation = layers.gelu_tanh,
    rms_norm_epsilon: float = 1e-6,
    rope_theta: float = 1000000.0,
    rope_scaling: RotaryScaling | None = _QUARTER,
    local_rope_theta: float | None = 10000.0,
    windows: int | Sequence[int | None] | None = None,
    final_logit_soft_cap: float | None = 30.0,
    attention_bias: bool = False,
    attention_dropout: float = 0.0,
    tie_output: bool = True,
    max_length: int = 131072,
    pad_id: int | None = None,
    name: str = "gemma4",
    dtype: DType = None,
) -> Model:
    """Gemma 4, a decoder-only language model: from token ids to logits of the next token.

    Gemma 3's blocks with wider heads in blocks without a window, normalised values, and scores
    that are not divided by sqrt(K). The last blocks have no keys and values of their own, and no KV
    cache: a block with a window takes those of the last earlier block with a window, and a block
    without one those of the last earlier block without (arXiv:2405.12981). In E2B and E4B each
    block adds its own embedding of the token.

    Args:
        head_dim: int, width of a head (K) in blocks with a window.
        global_num_key_value_heads, global_head_dim: int, those of blocks without a window. Default
            of the first: `num_key_value_heads`.
        tied_values: bool, whether blocks without a window have one projection for keys and values.
        num_shared_layers: int, number of last blocks without keys and values of their own.
        shared_intermediate_dim: int, `intermediate_dim` of these blocks. Default: the same.
        layer_input_dim: int, width of the embeddings that each block adds (P). Default: none.
        rope_theta, rope_scaling: as in `layers.RotaryEmbedding`, of blocks without a window: by
            default a quarter of the pairs is rotated.
        local_rope_theta: float, `rope_theta` of the blocks with a window, which are not scaled.
            None: `rope_theta` and `rope_scaling` apply to all blocks.
        final_logit_soft_cap: float, c in c tanh(logit / c). None: no cap.
        attention_bias: bool, whether the attention's projections add a bias.

    Returns:
        A functional model from `tokens` (B, T), int32, to logits (B, T, V).

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range; a shared block
            without an earlier block of its kind.

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import gemma4
    >>> model = gemma4(
    ...     11, dim=8, num_layers=3, num_heads=2, intermediate_dim=16, head_dim=4,
    ...     global_head_dim=8, windows=[4, None, 4], num_shared_layers=1, layer_input_dim=3,
    ... )
    >>> generate(model, [[3, 4, 5]], max_length=6).tokens.shape
    (1, 6)
    """
    check_integer("num_shared_layers", num_shared_layers, minimum=0)
    check_integer("layer_input_dim", layer_input_dim, optional=True)
    check_positive("local_rope_theta", local_rope_theta, optional=True)
    check_positive("final_logit_soft_cap", final_logit_soft_cap, optional=True)
    parts = RotaryDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, num_key_value_heads=num_key_value_heads,
        head_dim=head_dim, activation=activation, rms_norm_epsilon=rms_norm_epsilon,
        windows=windows, attention_bias=attention_bias, attention_dropout=attention_dropout,
        tie_output=tie_output, pad_id=pad_id, scale_embedding=True, soft_cap=final_logit_soft_cap,
        name=name, dtype=dtype,
    )  # fmt: skip
    sources = shared_sources(each_window(windows, num_layers), num_shared_layers)

    def block(i: int, window: int | None) -> layers.TransformerDecoderBlock:
        theta, scaling = rope_theta, rope_scaling
        if window is not None and local_rope_theta is not None:
            theta, scaling = local_rope_theta, None
        options: Arguments = {"query_norm": parts.norm("query_norm")}
        if i in sources:
            options |= {"key_value": "given", "intermediate_dim": shared_intermediate_dim}
        else:
            options["key_norm"] = parts.norm("key_norm")
            options["value_norm"] = parts.norm("value_norm", scale=False)
            options["key_value"] = "returned" if i in sources.values() else "own"
        if window is None:
            options["head_dim"] = global_head_dim
            options["num_key_value_heads"] = global_num_key_value_heads
            options["tied_values"] = tied_values and i not in sources
        residual = layers.Residual(
            input_norm=parts.norm("norm"), output_norm=parts.norm("output_norm"), dtype=dtype
        )
        position = layers.RotaryEmbedding(theta, scaling=scaling, dtype=dtype)
        return parts.block(i, window, position, residual, scale=1.0, **options)

    def stack(tokens: Tensor, x: Tensor, blocks: list[keras.layers.Layer]) -> Tensor:
        inputs: tuple[Tensor, ...] = ()
        if layer_input_dim is not None:
            embedding = layers.TokenEmbedding(
                vocabulary_size,
                num_layers * layer_input_dim,
                scale=layer_input_dim**0.5,
                embeddings_initializer=initializer(),
                dtype=dtype,
                name="layer_embedding",
            )
            combine = LayerInputs(
                layer_input_dim, rms_norm_epsilon, dtype=dtype, name="layer_inputs"
            )
            inputs = (combine(x, embedding(tokens)),)
        shared: dict[int, tuple[Tensor, Tensor]] = {}
        for i, layer in enumerate(blocks):
            if i in sources:
                keys, values = shared[sources[i]]
                x = layer(x, keys=keys, values=values)
            elif i in sources.values():
                x, *shared[i] = layer(x)
            else:
                x = layer(x)
            x = LayerInput(
                i, layer_input_dim, activation, rms_norm_epsilon, dtype=dtype,
                name=f"layer_input_{i}",
            )(x, *inputs)  # fmt: skip
        return x

    return parts.build(block, norm=parts.norm("decoder_norm"), stack=stack)


def shared_sources(windows: Sequence[int | None], num_shared_layers: int) -> dict[int, int]:
    """The block whose keys and values each of the last blocks takes.

    >>> from keras_tfm.models.decoders.gemma4 import shared_sources
    >>> shared_sources([4, None, 4, None, 4], 2)
    {3: 1, 4: 2}
    """
    first = len(windows) - num_shared_layers
    found = {}
    for i in range(max(first, 0), len(windows)):
        before = [j for j in range(first) if windows[j] == windows[i]]
        if not before:
            raise ValueError(
                f"num_shared_layers must leave a block with the window {windows[i]} before the "
                f"last ones, whose keys block {i} shares, got {num_shared_layers} of {len(windows)}"
            )
        found[i] = before[-1]
    return found
