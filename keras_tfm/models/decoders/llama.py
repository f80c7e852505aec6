"""Llama (arXiv:2302.13971, 2407.21783) and relatives: Mistral, Qwen, ERNIE, Arcee, EuroBERT ..."""

from collections.abc import Collection, Sequence

from keras_tfm.layers import (
    Residual,
    RotaryEmbedding,
    Routing,
    TransformerDecoderBlock,
    YaRNScaling,
)
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.decoders.causal_decoder import RotaryDecoder
from keras_tfm.models.decoders.experts import Experts
from keras_tfm.models.identity import builder, check_model_type
from keras_tfm.models.model import Model

_EUROBERT: Arguments = {
    "rope_theta": 250000.0, "causal": False, "classifier_activation": "gelu", "max_length": 8192,
    "pad_id": 128001,
}  # fmt: skip
# From the models' configurations on the Hugging Face hub. llama(49152, **SIZES["smollm2-135m"]).
SIZES: dict[str, Arguments] = {
    "smollm2-135m": {
        "dim": 576, "num_layers": 30, "num_heads": 9, "num_key_value_heads": 3,
        "intermediate_dim": 1536, "rope_theta": 100000.0, "tie_output": True, "max_length": 8192,
    },
    "smollm2-360m": {
        "dim": 960, "num_layers": 32, "num_heads": 15, "num_key_value_heads": 5,
        "intermediate_dim": 2560, "rope_theta": 100000.0, "tie_output": True, "max_length": 8192,
    },
    "qwen2.5-0.5b": {
        "dim": 896, "num_layers": 24, "num_heads": 14, "num_key_value_heads": 2,
        "intermediate_dim": 4864, "rope_theta": 1e6, "rms_norm_epsilon": 1e-6, "tie_output": True,
        "attention_bias": ["query", "key", "value"], "max_length": 32768,
    },
    "qwen3-0.6b": {
        "dim": 1024, "num_layers": 28, "num_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_dim": 3072, "rope_theta": 1e6, "rms_norm_epsilon": 1e-6, "tie_output": True,
        "query_key_norm": True, "max_length": 40960,
    },
    "ernie4.5-0.3b": {
        "dim": 1024, "num_layers": 18, "num_heads": 16, "num_key_value_heads": 2, "head_dim": 128,
        "intermediate_dim": 3072, "rope_theta": 500000.0, "interleaved": True, "tie_output": True,
        "max_length": 131072,
    },
    "ministral3-3b": {
        "dim": 3072, "num_layers": 26, "num_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_dim": 9216, "rope_theta": 1e6, "query_beta": 0.1, "tie_output": True,
        "rope_scaling": YaRNScaling(16.0, 16384, attention_factor=1.0), "max_length": 262144,
    },
    "llama2-7b": {
        "dim": 4096, "num_layers": 32, "num_heads": 32, "intermediate_dim": 11008,
        "max_length": 4096,
    },
    "mistral-7b": {
        "dim": 4096, "num_layers": 32, "num_heads": 32, "num_key_value_heads": 8,
        "intermediate_dim": 14336, "windows": 4096, "max_length": 32768,
    },
    "mixtral-8x7b": {
        "dim": 4096, "num_layers": 32, "num_heads": 32, "num_key_value_heads": 8,
        "intermediate_dim": 14336, "rope_theta": 1e6, "experts": Experts(Routing(8, 2)),
        "max_length": 32768,
    },
    "qwen3-30b-a3b": {
        "dim": 2048, "num_layers": 48, "num_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "intermediate_dim": 768, "rope_theta": 1e6, "rms_norm_epsilon": 1e-6,
        "query_key_norm": True, "experts": Experts(Routing(128, 8)), "max_length": 40960,
    },
    "eurobert-210m": {
        "dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072, **_EUROBERT,
    },
    "eurobert-610m": {
        "dim": 1152, "num_layers": 26, "num_heads": 18, "num_key_value_heads": 6,
        "intermediate_dim": 4096, **_EUROBERT,
    },
    "eurobert-2.1b": {
        "dim": 2304, "num_layers": 32, "num_heads": 18, "num_key_value_heads": 6,
        "intermediate_dim": 6144, **_EUROBERT,
    },
}  # fmt: skip


@builder
def llama(
    vocabulary_size: int,
    dim: int = 4096,
    num_layers: int = 32,
    num_heads: int = 32,
    intermediate_dim: int = 11008,
    num_key_value_heads: int | None = None,
    head_dim: int | None = None,
    activation: Activation = "silu",
    rms_norm_epsilon: float = 1e-5,
    rope_theta: float = 10000.0,
    rope_scaling: RotaryScaling | None = None,
    interleaved: bool = False,
    query_beta: float | None = None,
    windows: int | Sequence[int | None] | None = None,
    attention_bias: bool | Collection[str] = False,
    feed_forward_bias: bool = False,
    gated: bool = True,
    query_key_norm: bool = False,
    rotate_first: bool = False,
    experts: Experts | None = None,
    attention_dropout: float = 0.0,
    causal: bool = True,
    classifier_activation: Activation | None = None,
    tie_output: bool = False,
    max_length: int = 2048,
    pad_id: int | None = None,
    model_type: str | None = None,
    name: str = "llama",
    dtype: DType = None,
) -> Model:
    """A decoder-only language model of Llama's kind: from token ids to logits of the next token.

    Pre-norm blocks with RMS normalisation, rotary positions, grouped-query attention and SwiGLU.
    Mistral adds sliding windows, which Ministral has in some blocks, Qwen2 biases of queries, keys
    and values, Qwen3 normalised queries and keys, which HunYuan normalises after it has rotated
    them. ERNIE 4.5 and Helium rotate neighbouring pairs, and Ministral 3 multiplies queries by a
    factor of their position. Arcee has squared ReLU without a gate. Mixtral, Qwen2-MoE and
    Qwen3-MoE have experts. Some embedders, such as GTE's
    of Qwen2, are not causal, nor is EuroBERT (arXiv:2503.05500), a masked language model.

    Args:
        interleaved: bool, whether neighbouring pairs are rotated, see `layers.RotaryEmbedding`.
        query_beta: float, by how much the queries at later positions are multiplied, see there;
            `rope_scaling` must have an `original_length`. Default: they are not.
        classifier_activation: str or function, activation of the dense layer with which
            `sequence_classifier` begins, in EuroBERT. Default: there is no such layer.
        gated: bool, whether the feed-forward networks have a gate.
        query_key_norm: bool, whether queries and keys are normalised, with `rms_norm_epsilon`.
        rotate_first: bool, whether they are rotated before, as in HunYuan.
        model_type: str, "helium": the type of a saved checkpoint of the same model as ERNIE 4.5.
            Default: the type that has these arguments.

    Returns:
        A functional model from `tokens` (B, T), int32, to logits (B, T, V).

    Example:

    >>> from keras_tfm.generation import generate
    >>> from keras_tfm.models import llama
    >>> model = llama(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> generate(model, [[3, 4, 5]], max_length=6).tokens.shape
    (1, 6)
    """
    check_model_type(model_type, ("helium",))
    parts = RotaryDecoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, num_key_value_heads=num_key_value_heads,
        head_dim=head_dim, activation=activation, rms_norm_epsilon=rms_norm_epsilon,
        windows=windows, attention_bias=attention_bias, feed_forward_bias=feed_forward_bias,
        attention_dropout=attention_dropout, causal=causal, gated=gated, experts=experts,
        tie_output=tie_output, pad_id=pad_id, name=name, dtype=dtype,
    )  # fmt: skip

    def block(i: int, window: int | None) -> TransformerDecoderBlock:
        position = RotaryEmbedding(
            rope_theta, interleaved=interleaved, scaling=rope_scaling,
            query_beta=query_beta or 0.0, dtype=dtype,
        )  # fmt: skip
        residual = Residual(input_norm=parts.norm("norm"), dtype=dtype)
        norms = parts.head_norms() if query_key_norm else {}
        return parts.block(i, window, position, residual, rotate_first=rotate_first, **norms)

    return parts.build(block, norm=parts.norm("decoder_norm"))
