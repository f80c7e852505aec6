"""BERT: "Pre-training of Deep Bidirectional Transformers" (arXiv:1810.04805)."""

from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.encoders.bidirectional_encoder import BidirectionalEncoder
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model

# "base" and "large": section 3 of the paper. The others: table 1 of "Well-Read Students Learn
# Better" (arXiv:1908.08962), where all heads have width 64 and F = 4 D.
# Use: bert(30522, **SIZES["base"]).
SIZES: dict[str, Arguments] = {
    "tiny": {"dim": 128, "num_layers": 2, "num_heads": 2, "intermediate_dim": 512},
    "mini": {"dim": 256, "num_layers": 4, "num_heads": 4, "intermediate_dim": 1024},
    "small": {"dim": 512, "num_layers": 4, "num_heads": 8, "intermediate_dim": 2048},
    "medium": {"dim": 512, "num_layers": 8, "num_heads": 8, "intermediate_dim": 2048},
    "base": {"dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072},
    "large": {"dim": 1024, "num_layers": 24, "num_heads": 16, "intermediate_dim": 4096},
}


@builder
def bert(
    vocabulary_size: int,
    dim: int = 768,
    num_layers: int = 12,
    num_heads: int = 12,
    intermediate_dim: int = 3072,
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    activation: Activation = "gelu",
    layer_norm_epsilon: float = 1e-12,
    max_length: int = 512,
    num_segments: int = 2,
    segments: bool = True,
    pad_id: int = 0,
    pooler: bool = True,
    name: str = "bert",
    dtype: DType = None,
) -> Model:
    """BERT's encoder, from token ids to features, without a head.

    Add a head with `masked_language_model`, `next_sentence`, `sequence_classifier`,
    `token_classifier` or `question_answering`.

    Args:
        max_length: int, maximum number of positions.
        segments: bool, whether the model has the input `segments`. Without it all tokens belong to
            segment 0, for single texts. The weights are the same in both cases.

    Returns:
        A functional model from `tokens` (B, T) and, with `segments=True`, `segments` (B, T), both
        int32, to a dict of "features" (B, T, D) and "pooled" (B, D): a dense layer with tanh on the
        first token's features. Without a pooler, the output is the features alone.

    Raises:
        ValueError: an argument out of range, or `num_heads` does not divide `dim`.

    Example:

    >>> from keras_tfm.models import bert, sequence_classifier
    >>> model = bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> list(model.input), model.output["features"].shape
    (['tokens', 'segments'], (None, None, 8))
    >>> sequence_classifier(model, num_classes=3).output.shape
    (None, 3)
    """
    parts = BidirectionalEncoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, dropout=dropout, attention_dropout=attention_dropout,
        activation=activation, layer_norm_epsilon=layer_norm_epsilon, max_length=max_length,
        num_segments=num_segments, segments=segments, pad_id=pad_id,
        dtype=dtype,
    )  # fmt: skip
    return parts.build(name, pooler=pooler)
