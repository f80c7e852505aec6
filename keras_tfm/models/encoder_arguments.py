"""The arguments of the blocks of an encoder, of texts or of pixels."""

from dataclasses import dataclass

from keras_tfm.layers.types import Activation, DType


@dataclass(frozen=True, kw_only=True)
class EncoderArguments:
    """The arguments that builders of encoders share, see `bert`.

    >>> from keras_tfm.models.encoder_arguments import EncoderArguments
    >>> EncoderArguments(dim=8, num_layers=1, num_heads=2, intermediate_dim=16, dropout=0.1,
    ...     attention_dropout=None, activation="gelu", layer_norm_epsilon=1e-5, dtype=None
    ... ).attention_rate
    0.1
    """

    dim: int
    num_layers: int
    num_heads: int
    intermediate_dim: int
    dropout: float
    attention_dropout: float | None
    activation: Activation
    layer_norm_epsilon: float
    dtype: DType

    @property
    def attention_rate(self) -> float:
        """The dropout rate of the attention weights."""
        return self.dropout if self.attention_dropout is None else self.attention_dropout
