"""RoBERTa (arXiv:1907.11692), XLM-R (1911.02116), CamemBERT (1911.03894): BERT, trained longer."""

from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.encoders.bidirectional_encoder import BidirectionalEncoder
from keras_tfm.models.identity import builder, check_model_type
from keras_tfm.models.model import Model

# Table 9 of the RoBERTa paper, and table 1 of the XLM-R paper for the vocabularies: 50,265 and
# 250,002. roberta(50265, **SIZES["base"]).
SIZES: dict[str, Arguments] = {
    "base": {"dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072},
    "large": {"dim": 1024, "num_layers": 24, "num_heads": 16, "intermediate_dim": 4096},
}


@builder
def roberta(
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
    num_segments: int = 1,
    pad_id: int = 1,
    pooler: bool = False,
    multilingual: bool = False,
    model_type: str | None = None,
    name: str = "roberta",
    dtype: DType = None,
) -> Model:
    """RoBERTa's encoder, from token ids to features, without a head.

    It differs from BERT in its padding id, in one segment instead of two, and in the first
    `pad_id + 1` rows of the position table, which stay unused. Padding must be on the right: the
    original counts positions from the first token that is not padding.

    Args:
        num_segments: int, rows of the segment table; every token belongs to segment 0.
        multilingual: bool, whether a saved checkpoint is of type "xlm-roberta". The model is the
            same.
        model_type: str, "camembert": type of a saved checkpoint. The model is the same. Default:
            "roberta", or that of `multilingual`.

    Returns:
        A functional model from `tokens` (B, T), int32, to features (B, T, D); with a pooler to a
        dict of "features" and "pooled" (B, D).

    Raises:
        ValueError: an argument out of range, or `num_heads` does not divide `dim`.

    Example:

    >>> from keras_tfm.models import roberta, sequence_classifier
    >>> model = roberta(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> sequence_classifier(model, num_classes=3).output.shape
    (None, 3)
    """
    check_model_type(model_type, () if multilingual else ("camembert",))
    parts = BidirectionalEncoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, dropout=dropout, attention_dropout=attention_dropout,
        activation=activation, layer_norm_epsilon=layer_norm_epsilon, max_length=max_length,
        num_segments=num_segments, pad_id=pad_id, position_offset=pad_id + 1, dtype=dtype,
    )  # fmt: skip
    return parts.build(name, pooler=pooler)
