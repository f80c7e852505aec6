"""ELECTRA: "Pre-training Text Encoders as Discriminators" (arXiv:2003.10555)."""

from typing import Any

from keras import ops

from keras_tfm.layers.types import Activation, Arguments, DType, Initializer, Tensor
from keras_tfm.models.encoders.bidirectional_encoder import BidirectionalEncoder
from keras_tfm.models.heads.head_base import head_base
from keras_tfm.models.identity import builder, head
from keras_tfm.models.model import Model

# Table 6 of the paper, the discriminators. electra(30522, **SIZES["base"]).
SIZES: dict[str, Arguments] = {
    "small": {
        "dim": 256, "num_layers": 12, "num_heads": 4, "intermediate_dim": 1024,
        "embedding_dim": 128,
    },
    "base": {
        "dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072,
        "embedding_dim": 768,
    },
    "large": {
        "dim": 1024, "num_layers": 24, "num_heads": 16, "intermediate_dim": 4096,
        "embedding_dim": 1024,
    },
}  # fmt: skip


@builder
def electra(
    vocabulary_size: int,
    dim: int = 256,
    num_layers: int = 12,
    num_heads: int = 4,
    intermediate_dim: int = 1024,
    embedding_dim: int | None = 128,
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    activation: Activation = "gelu",
    layer_norm_epsilon: float = 1e-12,
    max_length: int = 512,
    num_segments: int = 2,
    segments: bool = True,
    pad_id: int = 0,
    pooler_activation: Activation = "gelu",
    name: str = "electra",
    dtype: DType = None,
) -> Model:
    """ELECTRA's encoder, from token ids to features, without a head.

    BERT's encoder without a pooler, with embeddings of a width of their own. The generator takes
    the head `masked_language_model`, the discriminator `replaced_token_detection`.

    Returns:
        A functional model from `tokens` (B, T) and `segments` (B, T), int32, to features (B, T, D).

    Raises:
        ValueError: an argument out of range, or `num_heads` does not divide `dim`.

    Example:

    >>> from keras_tfm.models import electra, replaced_token_detection
    >>> model = electra(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, embedding_dim=6)
    >>> replaced_token_detection(model).output.shape
    (None, None)
    """
    parts = BidirectionalEncoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, dropout=dropout, attention_dropout=attention_dropout,
        activation=activation, layer_norm_epsilon=layer_norm_epsilon, max_length=max_length,
        embedding_dim=embedding_dim, num_segments=num_segments, segments=segments, pad_id=pad_id,
        dtype=dtype,
    )  # fmt: skip
    return parts.build(name)


@head
def replaced_token_detection(
    model: Any,
    features: Tensor | str | None = None,
    kernel_initializer: Initializer | None = None,
    dtype: DType = None,
) -> Model:
    """Adds ELECTRA's discriminator: logits (B, T) that each token was replaced by a generator.

    Args:
        model: functional model, such as `models.electra(...)`.
        features, kernel_initializer, dtype: see `keras_tfm.models.heads.text_heads`.

    >>> from keras_tfm.models import electra, replaced_token_detection
    >>> model = electra(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> replaced_token_detection(model).output.shape
    (None, None)
    """
    base = head_base(model, features, kernel_initializer, dtype)
    x = base.mark(base.features)
    x = base.dense(x.shape[-1], "transform", base.argument("activation", None, "gelu"))(x)
    return base.with_outputs(ops.squeeze(base.dense(1, "detector")(x), -1))
