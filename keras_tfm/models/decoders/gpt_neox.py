"""GPT-NeoX (arXiv:2204.06745) and relatives, decoder-only models with layer normalisation.

They are Pythia (arXiv:2304.01373), Phi-1 to Phi-2, StarCoder 2, GPT-J and CodeGen, Falcon, BLOOM,
StableLM, Nemotron and OLMo.
"""

from collections.abc import Collection, Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm import layers
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Activation, Arguments, DType, Shape, Tensor
from keras_tfm.models.decoders.causal_decoder import CausalDecoder, initializer
from keras_tfm.models.identity import builder, check_model_type
from keras_tfm.models.model import Model


def _size(dim: int, num_layers: int, num_heads: int) -> Arguments:
    sizes = {"dim": dim, "num_layers": num_layers, "num_heads": num_heads}
    return {**sizes, "intermediate_dim": 4 * dim}


def _phi(dim: int, num_layers: int, part: float, **more: object) -> Arguments:
    return {
        **_size(dim, num_layers, 32), "activation": layers.gelu_tanh, "parallel": "one_residual",
        "rotary_dim": int(dim // 32 * part), "output_bias": True, **more,
    }  # fmt: skip


def _starcoder2(
    dim: int, num_layers: int, num_heads: int, groups: int, **more: object
) -> Arguments:
    return {
        **_size(dim, num_layers, num_heads), "num_key_value_heads": groups, "parallel": False,
        "activation": layers.gelu_tanh, "rotary_dim": dim // num_heads, "windows": 4096,
        "tie_output": True, "max_length": 16384, **more,
    }  # fmt: skip


def _falcon(dim: int, num_layers: int, num_heads: int, **more: object) -> Arguments:
    return {
        **_size(dim, num_layers, num_heads), "rotary_dim": 64, "attention_bias": False,
        "feed_forward_bias": False, "tie_output": True, **more,
    }  # fmt: skip


def _bloom(dim: int, num_layers: int, num_heads: int) -> Arguments:
    return {
        **_size(dim, num_layers, num_heads), "activation": layers.gelu_tanh, "alibi": True,
        "parallel": False, "embedding_norm": True, "tie_output": True,
    }  # fmt: skip


def _gptj(dim: int, num_layers: int, num_heads: int, rotary_dim: int, **more: object) -> Arguments:
    return {
        **_size(dim, num_layers, num_heads), "activation": layers.gelu_tanh,
        "rotary_dim": rotary_dim, "interleaved": True, "parallel": "one_residual",
        "attention_bias": False, "output_bias": True, **more,
    }  # fmt: skip


def _swiglu(
    dim: int, num_layers: int, num_heads: int, intermediate_dim: int, **more: object
) -> Arguments:
    return {
        **_size(dim, num_layers, num_heads), "intermediate_dim": intermediate_dim, "gated": True,
        "activation": "silu", "parallel": False, "attention_bias": False,
        "feed_forward_bias": False, **more,
    }  # fmt: skip


_OLMO: Arguments = {"rotary_dim": 128, "norm_weights": False}
# "20b": section 2.1 of the GPT-NeoX paper. "pythia...": table 1 of the Pythia paper, under the
# names of the released models. gpt_neox(50304, **SIZES["pythia-160m"]). "phi...": config.json of
# the checkpoints of arXiv:2306.11644, arXiv:2309.05463 and Phi-2, with 51200 ids.
# "starcoder2...": table 8 of arXiv:2402.19173, and config.json of its checkpoints. "falcon...":
# arXiv:2311.16867. "bloom...": arXiv:2211.05100. "gpt-j-6b": the defaults of `GPTJConfig`.
# "codegen...": arXiv:2203.13474. "stablelm...": the defaults of `StableLmConfig`, and
# arXiv:2402.17834. "minitron-4b": arXiv:2407.14679. "olmo...": arXiv:2402.00838.
SIZES: dict[str, Arguments] = {
    "20b": _size(6144, 44, 64),
    "pythia-70m": _size(512, 6, 8),
    "pythia-160m": _size(768, 12, 12),
    "pythia-410m": _size(1024, 24, 16),
    "pythia-1b": _size(2048, 16, 8),
    "pythia-1.4b": _size(2048, 24, 16),
    "pythia-2.8b": _size(2560, 32, 32),
    "pythia-6.9b": _size(4096, 32, 32),
    "pythia-12b": _size(5120, 36, 40),
    "phi-1": _phi(2048, 24, 0.5),
    "phi-1.5": _phi(2048, 24, 0.5),
    "phi-2": _phi(2560, 32, 0.4, dropout=0.1),
    "starcoder2-3b": _starcoder2(3072, 30, 24, 2, rope_theta=999999.4420358813),
    "starcoder2-7b": _starcoder2(4608, 32, 36, 4, rope_theta=1e6),
    "starcoder2-15b": _starcoder2(6144, 40, 48, 4, rope_theta=100000.0, tie_output=False),
    "falcon-7b": _falcon(4544, 32, 71, num_key_value_heads=1, parallel="one_residual"),
    "falcon-40b": _falcon(8192, 60, 128, num_key_value_heads=8),
    "bloom-560m": _bloom(1024, 24, 16),
    "bloom-1.1b": _bloom(1536, 24, 16),
    "bloom-1.7b": _bloom(2048, 24, 16),
    "bloom-3b": _bloom(2560, 30, 32),
    "bloom-7.1b": _bloom(4096, 30, 32),
    "bloom-176b": _bloom(14336, 70, 112),
    "gpt-j-6b": _gptj(4096, 28, 16, 64),
    "codegen-350m": _gptj(1024, 20, 16, 32, model_type="codegen"),
    "codegen-2b": _gptj(2560, 32, 32, 64, model_type="codegen"),
    "codegen-6b": _gptj(4096, 33, 16, 64, model_type="codegen"),
    "codegen-16b": _gptj(6144, 34, 24, 64, model_type="codegen"),
    "stablelm-3b": _swiglu(2560, 32, 32, 6912, rotary_dim=20, max_length=4096),
    "stablelm-2-1.6b": _swiglu(
        2048, 24, 32, 5632, rotary_dim=16, attention_bias=["query", "key", "value"],
        max_length=4096,
    ),
    "minitron-4b": {
        **_size(3072, 32, 24), "intermediate_dim": 9216, "num_key_value_heads": 8,
        "activation": layers.squared_relu, "rotary_dim": 64, "parallel": False,
        "attention_bias": False, "feed_forward_bias": False, "max_length": 4096,
    },
    "olmo-1b": _swiglu(2048, 16, 16, 8192, tie_output=True, **_OLMO),
    "olmo-7b": _swiglu(4096, 32, 32, 11008, **_OLMO),
}  # fmt: skip


@keras.saving.register_keras_serializable("keras_tfm")
class HeadNormalization(RematerializedLayer):
    """Layer normalisation of each head, with a scale of its own: that of StableLM 2 12B.

    y = gamma (x - mean) / sqrt(variance + epsilon) over the last axis of (..., T, H, K), with gamma
    (H, K).

    Args:
        epsilon: float, is added to the variance.
    """

    axis = (-2, -1)  # so that attention puts heads and their channels last

    def __init__(self, epsilon: float = 1e-5, **kwargs: Any):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, x_shape: Shape) -> None:
        """Creates gamma for inputs (..., H, K)."""
        self.gamma = self.add_weight(
            name="gamma", shape=x_shape[-2:], initializer="ones", autocast=False
        )
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        """(..., T, H, K) -> (..., T, H, K)."""
        wide = ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
        wide = wide - ops.mean(wide, axis=-1, keepdims=True)
        scale = ops.rsqrt(ops.mean(wide * wide, axis=-1, keepdims=True) + self.epsilon)
        return ops.cast(wide * scale * ops.cast(self.gamma, wide.dtype), x.dtype)


@builder
def gpt_neox(
    vocabulary_size: int,
    dim: int = 768,
    num_layers: int = 12,
    num_heads: int = 12,
    intermediate_dim: int = 3072,
    num_key_value_heads: int | None = None,
    head_dim: int | None = None,
    activation: Activation = "gelu",
    layer_norm_epsilon: float = 1e-5,
    rope_theta: float = 10000.0,
    rotary_dim: int | None = None,
    rope_scaling: RotaryScaling | None = None,
    interleaved: bool = False,
    alibi: bool = False,
    windows: int | Sequence[int | None] | None = None,
    parallel: bool | str = True,
    gated: bool = False,
    attention_bias: bool | Collection[str] = True,
    feed_forward_bias: bool = True,
    norm_weights: bool = True,
    embedding_norm: bool = False,
    head_norm: bool = False,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    embedding_dropout: float | None = None,
    tie_output: bool = False,
    output_bias: bool = False,
    max_length: int = 2048,
    pad_id: int | None = None,
    model_type: str | None = None,
    name: str = "gpt_neox",
    dtype: DType = None,
) -> Model:
    """GPT-NeoX and relatives, decoder-only: from token ids to logits of the next token.

    GPT-2's blocks with rotary positions of a quarter of each head, and with attention and
    feed-forward network side by side: x + attention(norm(x)) + feed_forward(norm(x)). In Phi-1,
    Phi-1.5 and Phi-2, both read the output of one norm, and the logits have a bias; GPT-J and
    CodeGen (arXiv:2203.13474) also rotate neighbouring pairs. Falcon (arXiv:2311.16867) has no
    biases, and grouped keys and values, or one key and value for all heads.

    In the others, the feed-forward network follows the attention. StarCoder 2 has grouped keys and
    values and a window, and rotates whole heads. BLOOM (arXiv:2211.05100) has ALiBi in place of
    rotary positions, and normalises the embeddings. Nemotron (arXiv:2402.16819) has squared ReLU,
    StableLM (arXiv:2402.17834) and OLMo (arXiv:2402.00838) SwiGLU; norms of OLMo have no weights.

    Args:
        activation: str or function, activation of the feed-forward networks.
        num_heads: int, number of attention heads (H). Must divide D.
        rotary_dim: int, even, number of dimensions of a head that are rotated. Default: a quarter
            of the head.
        interleaved: bool, whether neighbouring pairs are rotated, see `layers.RotaryEmbedding`.
        alibi: bool, whether there is a penalty on distances, `layers.ALiBi`, and no rotation.
        parallel: bool, whether both sublayers of a block read its input. Default: they do; if not,
            the second reads the output of the first. "one_residual": both are behind one norm, and
            `dropout` applies to their sum.
        gated: bool, whether the feed-forward networks have a gate.
        norm_weights: bool, whether norms have a scale and an offset.
        embedding_norm: bool, whether the embeddings are normalised.
        head_norm: bool, whether each head of queries and keys is normalised, with a scale of its
            own.
        output_bias: bool, whether the logits have a bias.
        model_type: str, "codegen": the type of a saved checkpoint of the same model as GPT-J.
            Default: the type that has these arguments.

    Returns:
        A functional model from `tokens` (B, T), int32, to logits (B, T, V).

    Raises:
        ValueError: an argument out of range; `num_heads` does not divide `dim`, or a quarter of a
            head is no even number and `rotary_dim` is not given.

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import gpt_neox
    >>> model = gpt_neox(11, dim=16, num_layers=1, num_heads=2, intermediate_dim=32)
    >>> generate(model, [[3, 4, 5]], max_length=6).tokens.shape
    (1, 6)
    """
    check_model_type(model_type, ("codegen",))
    rotation = {"rotary_dim": rotary_dim, "rope_scaling": rope_scaling}
    if alibi and (interleaved or any(x is not None for x in rotation.values())):
        raise ValueError(
            "with alibi=True nothing is rotated: rotary_dim, rope_scaling and interleaved must not "
            f"be given, got {rotation} and interleaved={interleaved}"
        )
    parts = CausalDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, tie_output=tie_output,
        windows=windows, pad_id=pad_id, output_bias=output_bias, name=name, dtype=dtype,
    )  # fmt: skip
    rotated = (head_dim or dim // num_heads) // 4 if rotary_dim is None else rotary_dim

    def norm(name: str) -> layers.LayerNormalization:
        return layers.LayerNormalization(
            epsilon=layer_norm_epsilon, center=norm_weights, scale=norm_weights, dtype=dtype,
            name=name,
        )  # fmt: skip

    def block(i: int, window: int | None) -> layers.TransformerDecoderBlock:
        position = layers.ALiBi(dtype=dtype) if alibi else layers.RotaryEmbedding(
            rope_theta, rotary_dim=rotated, interleaved=interleaved, scaling=rope_scaling,
            dtype=dtype,
        )  # fmt: skip
        head_norms = {
            name: HeadNormalization(layer_norm_epsilon, dtype=dtype, name=name)
            for name in (("query_norm", "key_norm") if head_norm else ())
        }
        return layers.TransformerDecoderBlock(
            self_attention=layers.MultiHeadSelfAttention(
                num_heads, causal=True, window=window, num_key_value_heads=num_key_value_heads,
                head_dim=head_dim, dropout=attention_dropout, use_bias=attention_bias,
                position=position, kernel_initializer=initializer(), dtype=dtype,
                name="self_attention", **head_norms,
            ),
            cross_attention=False,
            feed_forward=layers.FeedForward(
                intermediate_dim, activation=activation, gated=gated, use_bias=feed_forward_bias,
                kernel_initializer=initializer(), dtype=dtype, name="feed_forward",
            ),
            residual=layers.Residual(input_norm=norm("norm"), dropout=dropout, dtype=dtype),
            parallel=parallel,
            dtype=dtype,
            name=f"decoder_{i}",
        )  # fmt: skip

    rate = dropout if embedding_dropout is None else embedding_dropout

    def normalize_and_drop(x: Tensor) -> Tensor:
        x = norm("embedding_norm")(x) if embedding_norm else x
        return layers.Dropout(rate, dtype=dtype, name="embedding_dropout")(x)

    return parts.build(block, normalize_and_drop, norm("decoder_norm"))
