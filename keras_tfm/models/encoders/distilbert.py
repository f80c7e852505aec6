"""DistilBERT: "a distilled version of BERT" (arXiv:1910.01108)."""

from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.encoders.bidirectional_encoder import BidirectionalEncoder
from keras_tfm.models.identity import builder
from keras_tfm.models.model import Model

# Section 3 of the paper: half of BERT-base's layers. distilbert(30522, **SIZES["base"]).
SIZES: dict[str, Arguments] = {
    "base": {"dim": 768, "num_layers": 6, "num_heads": 12, "intermediate_dim": 3072},
}


@builder
def distilbert(
    vocabulary_size: int,
    dim: int = 768,
    num_layers: int = 6,
    num_heads: int = 12,
    intermediate_dim: int = 3072,
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    activation: Activation = "gelu",
    layer_norm_epsilon: float = 1e-12,
    max_length: int = 512,
    pad_id: int = 0,
    pooler_activation: Activation = "relu",
    name: str = "distilbert",
    dtype: DType = None,
) -> Model:
    """DistilBERT's encoder, from token ids to features, without a head.

    BERT's encoder without segments and without a pooler.

    Returns:
        A functional model from `tokens` (B, T), int32, to features (B, T, D).

    Raises:
        ValueError: an argument out of range, or `num_heads` does not divide `dim`.

    Example:

    >>> from keras_tfm.models import distilbert
    >>> distilbert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16).output.shape
    (None, None, 8)
    """
    parts = BidirectionalEncoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, dropout=dropout, attention_dropout=attention_dropout,
        activation=activation, layer_norm_epsilon=layer_norm_epsilon, max_length=max_length,
        pad_id=pad_id, dtype=dtype,
    )  # fmt: skip
    return parts.build(name)
