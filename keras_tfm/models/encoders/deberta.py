"""DeBERTa v2 (arXiv:2006.03654) and v3 (arXiv:2111.09543): BERT with disentangled attention."""

from keras_tfm.arguments import check_integer
from keras_tfm.layers import DisentangledPositionEmbedding, NGramEncoding, RelativePositionTable
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.encoders.bidirectional_encoder import BidirectionalEncoder, initializer
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model

# The released checkpoints: https://github.com/microsoft/DeBERTa. deberta(128100,
# **SIZES["v3-base"]).
_V2 = {
    "dim": 1536, "num_heads": 24, "intermediate_dim": 6144, "kernel_size": 3,
    "kernel_activation": "gelu",
}  # fmt: skip
SIZES: dict[str, Arguments] = {
    "v3-xsmall": {"dim": 384, "num_layers": 12, "num_heads": 6, "intermediate_dim": 1536},
    "v3-small": {"dim": 768, "num_layers": 6, "num_heads": 12, "intermediate_dim": 3072},
    "v3-base": {"dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072},
    "v3-large": {"dim": 1024, "num_layers": 24, "num_heads": 16, "intermediate_dim": 4096},
    "v2-xlarge": {"num_layers": 24, **_V2},
    "v2-xxlarge": {"num_layers": 48, **_V2},
}


@builder
def deberta(
    vocabulary_size: int,
    dim: int = 768,
    num_layers: int = 12,
    num_heads: int = 12,
    intermediate_dim: int = 3072,
    embedding_dim: int | None = None,
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    activation: Activation = "gelu",
    layer_norm_epsilon: float = 1e-7,
    max_length: int = 512,
    absolute_positions: bool = False,
    num_buckets: int | None = 256,
    max_distance: int | None = None,
    content_to_position: bool = True,
    position_to_content: bool = True,
    position_projections: bool = False,
    normalize_positions: bool = True,
    kernel_size: int | None = None,
    kernel_activation: Activation = "tanh",
    num_segments: int = 0,
    segments: bool = True,
    pad_id: int = 0,
    pooler_activation: Activation = "gelu",
    pooler_dropout: float = 0.0,
    name: str = "deberta",
    dtype: DType = None,
) -> Model:
    """DeBERTa's encoder, from token ids to features, without a head.

    BERT's encoder with a `DisentangledPositionEmbedding` in every block, whose scores between
    contents and relative positions take the place of absolute positions. There is no pooler.

    Args:
        dropout: float, dropout rate after each sublayer, after the embeddings, and of the table.
        max_length: int, maximum number of tokens with `absolute_positions`; any number without.
        absolute_positions: bool, whether learned absolute positions are added to the embeddings.
        num_buckets: int, number of buckets of each direction. None: one for each distance.
        max_distance: int, larger distances share the last bucket. Default: `max_length`.
        content_to_position: bool, whether scores of queries with positions are added.
        position_to_content: bool, whether scores of positions with keys are added. Without both,
            attention has no relative positions.
        position_projections: bool, whether the positions of each block have projections of their
            own, instead of those of its queries and keys.
        normalize_positions: bool, whether the table of relative positions is layer-normalised.
        kernel_size: int, odd window of the convolution beside the first block, as in v2
            (`NGramEncoding`). Default: no convolution.
        kernel_activation: str or function, activation of the convolution.
        num_segments: int, number of segments (token types); 0: none.
        segments: bool, whether a model with `num_segments` has the input `segments`.
        pooler_activation: activation of the dense layer that `sequence_classifier` puts on the
            first token.
        pooler_dropout: float, dropout rate before that layer.

    Returns:
        A functional model from `tokens` (B, T) and, with `num_segments`, `segments` (B, T), int32,
        to features (B, T, D).

    Raises:
        ValueError: an argument out of range, or `num_heads` does not divide `dim`.

    Example:

    >>> from keras_tfm.models import deberta, token_classifier
    >>> model = deberta(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> token_classifier(model, num_classes=3).output.shape
    (None, None, 3)
    """
    check_integer("num_heads", num_heads)
    parts = BidirectionalEncoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, dropout=dropout, attention_dropout=attention_dropout,
        activation=activation, layer_norm_epsilon=layer_norm_epsilon, max_length=max_length,
        embedding_dim=embedding_dim, num_segments=num_segments,
        segments=segments and num_segments > 0, pad_id=pad_id, dtype=dtype,
    )  # fmt: skip
    inputs, x = parts.embed(positions=absolute_positions)
    if (embedding_dim or dim) != dim:
        x = parts.project(x, use_bias=False)
    x = embedded = parts.normalize(x)
    terms = content_to_position + position_to_content
    scale = ((1 + terms) * (dim // num_heads)) ** -0.5
    table = RelativePositionTable(
        dim, max_distance or max_length, num_buckets, normalize_positions, layer_norm_epsilon,
        dropout, dtype=dtype, name="relative_positions",
    )  # fmt: skip
    position = None
    blocks = [f"encoder_{i}" for i in range(num_layers)]
    for i, block in enumerate(blocks):
        if terms and (position is None or position_projections):
            position = DisentangledPositionEmbedding(
                table, content_to_position, position_to_content, position_projections,
                initializer(), dtype=dtype, name="disentangled_positions",
            )  # fmt: skip
        x = parts.block(block, position=position, scale=scale)(x)
        if i == 0 and kernel_size:
            x = NGramEncoding(
                kernel_size, kernel_activation, dropout, layer_norm_epsilon, initializer(),
                dtype=dtype, name="convolution",
            )(x, embedded)  # fmt: skip
    x = Marker("features", embedding="embedding", blocks=blocks, dtype=dtype)(x)
    return Model(inputs, x, name=name)
