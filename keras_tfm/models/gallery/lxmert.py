"""LXMERT: "Learning Cross-Modality Encoder Representations from Transformers" (1908.07490)."""

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers import MultiHeadCrossAttention, RegionEmbedding, TransformerDecoderBlock
from keras_tfm.layers.types import Activation, Arguments, DType, Tensor
from keras_tfm.models.encoders.bidirectional_encoder import BidirectionalEncoder, initializer
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model

# Section 4.1 of the paper. Use: lxmert(30522, **SIZES["base"]).
SIZES: dict[str, Arguments] = {
    "base": {
        "dim": 768, "num_layers": 9, "num_visual_layers": 5, "num_cross_layers": 5,
        "num_heads": 12, "intermediate_dim": 3072,
    },
}  # fmt: skip


@builder
def lxmert(
    vocabulary_size: int,
    dim: int = 768,
    num_layers: int = 9,
    num_visual_layers: int = 5,
    num_cross_layers: int = 5,
    num_heads: int = 12,
    intermediate_dim: int = 3072,
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    activation: Activation = "gelu",
    layer_norm_epsilon: float = 1e-12,
    max_length: int = 512,
    num_segments: int = 2,
    segments: bool = True,
    region_dim: int = 2048,
    num_regions: int | None = 36,
    region_mask: bool = False,
    name: str = "lxmert",
    dtype: DType = None,
) -> Model:
    """LXMERT: one encoder of texts, one of image regions, and one that relates both.

    The regions come from an object detector. In a block of the cross-modality encoder one
    cross-attention, with the same weights, serves both directions; then each stream has a
    self-attention and a feed-forward network of its own. Id 0 is padding in texts.

    Heads of `keras_tfm.models` take the features of the text and the pooled vector, such as
    `visual_question_answering`, `masked_language_model` and `next_sentence`.

    Args:
        dim: int, width of both streams (D).
        num_layers: int, number of blocks of the language encoder.
        num_visual_layers: int, number of blocks of the object-relationship encoder; may be 0.
        num_cross_layers: int, number of blocks of the cross-modality encoder.
        max_length: int, maximum number of positions of a text.
        num_regions: int, number of regions of an image (N). None: any number.

    Returns:
        A functional model from a dict of `tokens` (B, T), int32; with `segments=True`, `segments`
        (B, T), int32; `region_features` (B, N, C); `region_boxes` (B, N, 4), left, top, right and
        bottom edge as fractions of the image's size; and with `region_mask=True`, `region_mask`
        (B, N), int32, 1 = region, 0 = padding. The outputs are a dict of "features" (B, T, D) of
        the text, "visual_features" (B, N, D) and "pooled" (B, D).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or `num_heads` does not divide `dim`.

    Example:

    >>> from keras_tfm.models import lxmert
    >>> model = lxmert(11, dim=8, num_layers=2, num_visual_layers=1, num_cross_layers=1,
    ...                num_heads=2, intermediate_dim=16, region_dim=6, num_regions=5)
    >>> {key: x.shape for key, x in model.output.items()}["visual_features"]
    (None, 5, 8)
    """
    check_integer("num_visual_layers", num_visual_layers, minimum=0)
    check_integer("num_cross_layers", num_cross_layers)
    parts = BidirectionalEncoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, dropout=dropout, attention_dropout=attention_dropout,
        activation=activation, layer_norm_epsilon=layer_norm_epsilon, max_length=max_length,
        num_segments=num_segments, segments=segments, dtype=dtype,
    )  # fmt: skip
    inputs, x = parts.embed()
    x = parts.normalize(x)
    regions, seen = region_inputs(region_dim, num_regions, region_mask)
    inputs |= regions
    y = RegionEmbedding(
        dim,
        separate_norms=True,
        epsilon=layer_norm_epsilon,
        dropout=dropout,
        kernel_initializer=initializer(),
        dtype=dtype,
        name="region_embedding",
    )(regions["region_features"], regions["region_boxes"])
    blocks = []
    for i in range(num_layers):
        blocks.append(parts.block(f"encoder_{i}"))
        x = blocks[-1](x)
    for i in range(num_visual_layers):
        blocks.append(parts.block(f"visual_encoder_{i}"))
        y = blocks[-1](y, mask=seen)
    for i in range(num_cross_layers):
        cross = _cross_attention(parts, f"cross_{i}")
        of_text = parts.block(f"cross_text_{i}")
        of_regions = parts.block(f"cross_visual_{i}")
        blocks += [cross, of_text, of_regions]
        x, y = cross(x, y, context_mask=seen), cross(y, x)
        x, y = of_text(x), of_regions(y, mask=seen)
    names = [block.name for block in blocks]
    x = Marker("features", embedding="embedding", blocks=names, dtype=dtype)(x)
    y = Marker("visual", dtype=dtype)(y)
    outputs = {"features": x, "visual_features": y, "pooled": parts.pool(x)}
    return Model(inputs, outputs, name=name)


def region_inputs(
    region_dim: int, num_regions: int | None, region_mask: bool
) -> tuple[dict[str, Tensor], Tensor | None]:
    """The inputs of regions by name; the boolean mask (B, N), None without `region_mask`."""
    check_integer("region_dim", region_dim)
    check_integer("num_regions", num_regions, optional=True)
    inputs = {
        "region_features": keras.Input((num_regions, region_dim), name="region_features"),
        "region_boxes": keras.Input((num_regions, 4), name="region_boxes"),
    }
    if not region_mask:
        return inputs, None
    inputs["region_mask"] = keras.Input((num_regions,), dtype="int32", name="region_mask")
    return inputs, ops.not_equal(inputs["region_mask"], 0)


def _cross_attention(parts: BidirectionalEncoder, name: str) -> TransformerDecoderBlock:
    """Cross-attention in its residual connection, without the other sublayers."""
    attention = MultiHeadCrossAttention(
        parts.num_heads,
        dropout=parts.attention_rate,
        kernel_initializer=initializer(),
        dtype=parts.dtype,
        name="cross_attention",
    )
    return TransformerDecoderBlock(
        self_attention=False,
        cross_attention=attention,
        feed_forward=False,
        causal=False,
        dropout=parts.dropout,
        layer_norm_epsilon=parts.layer_norm_epsilon,
        dtype=parts.dtype,
        name=name,
    )
