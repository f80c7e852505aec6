"""MPNet: "Masked and Permuted Pre-training for Language Understanding" (arXiv:2004.09297)."""

from keras_tfm.layers import RelativePositionBias
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.encoders.bidirectional_encoder import BidirectionalEncoder, initializer
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model

# The paper's section on experiments: BERT-base's sizes, which the embedder all-mpnet-base-v2 has,
# too. mpnet(30527, **SIZES["base"]).
SIZES: dict[str, Arguments] = {
    "base": {"dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072},
}
# The first position has this row of the table; in the original, padding has the row before it.
FIRST_POSITION = 2


@builder
def mpnet(
    vocabulary_size: int,
    dim: int = 768,
    num_layers: int = 12,
    num_heads: int = 12,
    intermediate_dim: int = 3072,
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    activation: Activation = "gelu",
    layer_norm_epsilon: float = 1e-5,
    max_length: int = 512,
    pad_id: int = 1,
    pooler: bool = False,
    name: str = "mpnet",
    dtype: DType = None,
) -> Model:
    """MPNet's encoder, from token ids to features, without a head.

    BERT's encoder without segments, and with two kinds of positions: learned absolute ones, added
    to the embeddings, and T5's relative ones. All blocks share one `RelativePositionBias` of 32
    buckets, b, which adds a number for each head h to the score of query t and key s:
    q_t k_s / sqrt(K) + b_h[bucket(s - t)].

    The first two rows of the table of absolute positions stay unused, as in RoBERTa. Padding must
    be on the right, and no token of a text may have its id: the original numbers the tokens that
    are not padding.

    Returns:
        A functional model from `tokens` (B, T), int32, to features (B, T, D); with a pooler to a
        dict of "features" and "pooled" (B, D).

    Raises:
        ValueError: an argument out of range, or `num_heads` does not divide `dim`.

    Example:

    >>> from keras_tfm.models import mpnet, sentence_embedding
    >>> model = mpnet(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> sentence_embedding(model).output.shape
    (None, 8)
    """
    parts = BidirectionalEncoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, dropout=dropout, attention_dropout=attention_dropout,
        activation=activation, layer_norm_epsilon=layer_norm_epsilon, max_length=max_length,
        pad_id=pad_id, position_offset=FIRST_POSITION, dtype=dtype,
    )  # fmt: skip
    position = RelativePositionBias(
        initializer=initializer(), dtype=dtype, name="relative_positions"
    )
    return parts.build(name, pooler=pooler, position=position)
