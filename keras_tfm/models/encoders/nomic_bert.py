"""NomicBERT, the encoder of nomic-embed-text (arXiv:2402.01613), and GTE (arXiv:2407.19669)."""

from collections.abc import Collection

from keras_tfm.layers import FeedForward, RotaryEmbedding, TransformerEncoderBlock
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.encoders.bidirectional_encoder import BidirectionalEncoder, initializer
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model

# nomic-embed-text v1 and v1.5, section 4 of the paper: nomic_bert(30528, **SIZES["base"]).
# gte-multilingual-base, the defaults of its configuration in transformers.
SIZES: dict[str, Arguments] = {
    "base": {"dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072},
    "gte-multilingual-base": {
        "dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072,
        "activation": "gelu", "attention_bias": True, "feed_forward_bias": ["outer"],
        "rope_theta": 160000.0, "max_length": 8192, "num_segments": 1, "pad_id": 1,
    },
}  # fmt: skip


@builder
def nomic_bert(
    vocabulary_size: int,
    dim: int = 768,
    num_layers: int = 12,
    num_heads: int = 12,
    intermediate_dim: int = 3072,
    head_dim: int | None = None,
    dropout: float = 0.0,
    attention_dropout: float | None = None,
    activation_dropout: float = 0.0,
    activation: Activation = "silu",
    attention_bias: bool = False,
    feed_forward_bias: bool | Collection[str] = False,
    layer_norm_epsilon: float = 1e-12,
    rope_theta: float = 1000.0,
    rope_scaling: RotaryScaling | None = None,
    max_length: int = 2048,
    num_segments: int = 2,
    segments: bool = True,
    pad_id: int = 0,
    name: str = "nomic_bert",
    dtype: DType = None,
) -> Model:
    """NomicBERT's encoder, from token ids to features, without a head.

    BERT's post-norm blocks with rotary positions and SwiGLU, without biases but for the norms'. GTE
    has GeGLU and more biases.

    Args:
        attention_dropout: float, dropout rate of the attention weights. Default: `dropout`.
        attention_bias: bool, whether the attention's projections add a bias (GTE).
        feed_forward_bias: bool, whether the feed-forward networks' layers add a bias, or a list of
            those that do: "inner", and "outer" (GTE).
        num_segments: int, number of segments (token types); 0: none.
        segments: bool, whether a model with `num_segments` has the input `segments`.
        pad_id: int, id of padding tokens.

    Returns:
        A functional model from `tokens` (B, T) and, with `num_segments`, `segments` (B, T), int32,
        to features (B, T, D).

    Example:

    >>> from keras_tfm.models import nomic_bert, sentence_embedding
    >>> model = nomic_bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> sentence_embedding(model).output.shape
    (None, 8)
    """
    parts = BidirectionalEncoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, dropout=dropout, attention_dropout=attention_dropout,
        activation=activation, layer_norm_epsilon=layer_norm_epsilon, max_length=max_length,
        num_segments=num_segments, segments=segments and num_segments > 0, pad_id=pad_id,
        dtype=dtype,
    )  # fmt: skip

    def block(name: str) -> TransformerEncoderBlock:
        feed_forward = FeedForward(
            intermediate_dim, activation=activation, gated=True, dropout=activation_dropout,
            use_bias=feed_forward_bias, kernel_initializer=initializer(), dtype=dtype,
            name="feed_forward",
        )  # fmt: skip
        position = RotaryEmbedding(rope_theta, scaling=rope_scaling, dtype=dtype)
        return parts.block(
            name, feed_forward, head_dim=head_dim, use_bias=attention_bias, position=position
        )

    inputs, x = parts.embed(positions=False)
    x = parts.normalize(x)
    names = [f"encoder_{i}" for i in range(num_layers)]
    for layer in map(block, names):
        x = layer(x)
    x = Marker("features", embedding="embedding", blocks=names, dtype=dtype)(x)
    return Model(inputs, x, name=name)
