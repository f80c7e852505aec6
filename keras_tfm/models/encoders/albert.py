"""ALBERT: "A Lite BERT for Self-supervised Learning" (arXiv:1909.11942)."""

from keras_tfm.layers import gelu_tanh
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.encoders.bidirectional_encoder import BidirectionalEncoder
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model

# Table 1 of the paper. albert(30000, **SIZES["base"]).
SIZES: dict[str, Arguments] = {
    "base": {"dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072},
    "large": {"dim": 1024, "num_layers": 24, "num_heads": 16, "intermediate_dim": 4096},
    "xlarge": {"dim": 2048, "num_layers": 24, "num_heads": 16, "intermediate_dim": 8192},
    "xxlarge": {"dim": 4096, "num_layers": 12, "num_heads": 64, "intermediate_dim": 16384},
}


@builder
def albert(
    vocabulary_size: int,
    dim: int = 768,
    num_layers: int = 12,
    num_heads: int = 12,
    intermediate_dim: int = 3072,
    embedding_dim: int = 128,
    dropout: float = 0.0,
    attention_dropout: float | None = None,
    activation: Activation = gelu_tanh,
    layer_norm_epsilon: float = 1e-12,
    max_length: int = 512,
    num_segments: int = 2,
    segments: bool = True,
    pad_id: int = 0,
    pooler: bool = True,
    name: str = "albert",
    dtype: DType = None,
) -> Model:
    """ALBERT's encoder, from token ids to features, without a head.

    One block is called `num_layers` times, and embeddings have a width of their own.

    Args:
        num_layers: int, number of calls of the one block.
        intermediate_dim: int, inner width of the feed-forward network (F).
        embedding_dim: int, width of the embeddings, which a dense layer projects to `dim`.
        activation: str or function, activation of the feed-forward network.

    Returns:
        A functional model from `tokens` (B, T) and `segments` (B, T), int32, to a dict of
        "features" (B, T, D) and "pooled" (B, D); without a pooler to the features alone.

    Raises:
        ValueError: an argument out of range, or `num_heads` does not divide `dim`.

    Example:

    >>> from keras_tfm.models import albert
    >>> sizes = {"dim": 8, "num_heads": 2, "intermediate_dim": 16, "embedding_dim": 6}
    >>> one, three = albert(11, num_layers=1, **sizes), albert(11, num_layers=3, **sizes)
    >>> one.count_params() == three.count_params()
    True
    """
    parts = BidirectionalEncoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, dropout=dropout, attention_dropout=attention_dropout,
        activation=activation, layer_norm_epsilon=layer_norm_epsilon, max_length=max_length,
        embedding_dim=embedding_dim, num_segments=num_segments, segments=segments, pad_id=pad_id,
        dtype=dtype,
    )  # fmt: skip
    return parts.build(name, shared_block=True, pooler=pooler)
