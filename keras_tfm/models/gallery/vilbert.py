"""ViLBERT: "Pretraining Task-Agnostic Visiolinguistic Representations" (arXiv:1908.02265)."""

from collections.abc import Sequence
from dataclasses import replace

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers import (
    Dropout,
    MultiHeadCrossAttention,
    RegionEmbedding,
    TransformerDecoderBlock,
)
from keras_tfm.layers.types import Activation, Arguments, DType
from keras_tfm.models.encoders.bidirectional_encoder import BidirectionalEncoder, initializer
from keras_tfm.models.gallery.lxmert import region_inputs
from keras_tfm.models.heads.head_base import token
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model

FUSIONS = {"product": ops.multiply, "sum": ops.add}
# Section 3.1 of the paper, and the authors' configuration bert_base_6layer_6conect.
# Use: vilbert(30522, **SIZES["base"]).
SIZES: dict[str, Arguments] = {
    "base": {
        "dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072,
        "visual_dim": 1024, "num_visual_layers": 6, "num_visual_heads": 8,
        "visual_intermediate_dim": 1024, "co_attention_dim": 1024, "num_co_attention_heads": 8,
        "text_schedule": (6, 7, 8, 9, 10, 11), "visual_schedule": (0, 1, 2, 3, 4, 5),
    },
}  # fmt: skip


@builder
def vilbert(
    vocabulary_size: int,
    dim: int = 768,
    num_layers: int = 12,
    num_heads: int = 12,
    intermediate_dim: int = 3072,
    visual_dim: int = 1024,
    num_visual_layers: int = 6,
    num_visual_heads: int = 8,
    visual_intermediate_dim: int = 1024,
    co_attention_dim: int = 1024,
    num_co_attention_heads: int = 8,
    text_schedule: Sequence[int] = (6, 7, 8, 9, 10, 11),
    visual_schedule: Sequence[int] = (0, 1, 2, 3, 4, 5),
    fusion: str = "product",
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    activation: Activation = "gelu",
    layer_norm_epsilon: float = 1e-12,
    max_length: int = 512,
    num_segments: int = 2,
    segments: bool = True,
    region_dim: int = 2048,
    num_regions: int | None = 37,
    region_mask: bool = False,
    name: str = "vilbert",
    dtype: DType = None,
) -> Model:
    """ViLBERT: two streams of different widths, one of text and one of image regions.

    In a co-attention block, the queries of each stream attend to the keys and values of the other;
    a feed-forward network follows in each. Between co-attention blocks, each stream has blocks of
    its own. The first region stands for the whole image: the mean of the features and the box
    (0, 0, 1, 1). Id 0 is padding in texts.

    Add a head with `image_text_pretraining` (masked words, masked regions, and whether text and
    image belong together), `visual_question_answering` or `sequence_classifier`.

    Args:
        dim: int, width of the text stream (D).
        num_layers: int, number of blocks of the text stream.
        num_heads: int, number of attention heads of the text stream. Must divide `dim`.
        intermediate_dim: int, inner width of the text stream's feed-forward networks.
        visual_dim: int, width of the stream of regions (E).
        num_visual_layers: int, number of blocks of the stream of regions.
        num_visual_heads: int, number of its attention heads. Must divide `visual_dim`.
        visual_intermediate_dim: int, inner width of its feed-forward networks.
        co_attention_dim: int, width of queries, keys and values of all heads of a co-attention, and
            of the pooled vectors (P).
        num_co_attention_heads: int, number of its heads. Must divide `co_attention_dim`.
        text_schedule: list of int, for each co-attention block, the number of text blocks before
            it (`t_biattention_id` in the authors' code).
        visual_schedule: list of int, likewise for blocks of regions (`v_biattention_id`).
        fusion: str, how the pooled vectors of both streams are combined: "product" or "sum".
        dropout: float, dropout rate after each sublayer, after the embeddings, and of the fused
            vector.
        max_length: int, maximum number of positions of a text.
        num_regions: int, number of regions of an image (N), the first one included. None: any
            number.

    Returns:
        A functional model with the inputs of `lxmert`. The outputs are a dict of "features"
        (B, T, D) of the text, "visual_features" (B, N, E) and "pooled" (B, P): the product of
        "text_pooled" and "visual_pooled", each a dense layer with ReLU on the first token's and the
        first region's features.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range; a number of heads that does not divide its width; a
            schedule that is not in order, or names a block that does not exist; two schedules of
            different lengths.

    Example:

    >>> from keras_tfm.models import vilbert
    >>> model = vilbert(11, dim=8, num_layers=2, num_heads=2, intermediate_dim=16, visual_dim=6,
    ...                 num_visual_layers=1, num_visual_heads=3, visual_intermediate_dim=10,
    ...                 co_attention_dim=4, num_co_attention_heads=2, text_schedule=[1],
    ...                 visual_schedule=[0], region_dim=7, num_regions=5)
    >>> [model.output[x].shape for x in ("features", "visual_features", "pooled")]
    [(None, None, 8), (None, 5, 6), (None, 4)]
    """
    check_integer("visual_dim", visual_dim)
    check_integer("num_visual_layers", num_visual_layers)
    check_integer("num_visual_heads", num_visual_heads)
    check_integer("co_attention_dim", co_attention_dim)
    check_integer("num_co_attention_heads", num_co_attention_heads)
    if co_attention_dim % num_co_attention_heads:
        raise ValueError(
            f"num_co_attention_heads ({num_co_attention_heads}) must divide co_attention_dim "
            f"({co_attention_dim})"
        )
    if fusion not in FUSIONS:
        raise ValueError(f"fusion must be one of {list(FUSIONS)}, got {fusion!r}")
    check_schedule("text_schedule", text_schedule, num_layers)
    check_schedule("visual_schedule", visual_schedule, num_visual_layers)
    if len(text_schedule) != len(visual_schedule):
        raise ValueError(
            "text_schedule and visual_schedule must have an entry for each co-attention block, "
            f"got {len(text_schedule)} and {len(visual_schedule)}"
        )
    parts = BidirectionalEncoder(
        vocabulary_size=vocabulary_size, dim=dim, num_layers=num_layers, num_heads=num_heads,
        intermediate_dim=intermediate_dim, dropout=dropout, attention_dropout=attention_dropout,
        activation=activation, layer_norm_epsilon=layer_norm_epsilon, max_length=max_length,
        num_segments=num_segments, segments=segments, dtype=dtype,
    )  # fmt: skip
    visual = replace(parts, num_heads=num_visual_heads, intermediate_dim=visual_intermediate_dim)
    inputs, x = parts.embed()
    x = parts.normalize(x)
    regions, seen = region_inputs(region_dim, num_regions, region_mask)
    inputs |= regions
    y = RegionEmbedding(
        visual_dim,
        epsilon=layer_norm_epsilon,
        dropout=dropout,
        kernel_initializer=initializer(),
        dtype=dtype,
        name="region_embedding",
    )(regions["region_features"], regions["region_boxes"])
    names: list[str] = []

    def block(layer: keras.layers.Layer) -> keras.layers.Layer:
        names.append(layer.name)
        return layer

    done, visual_done = 0, 0
    # Last, the blocks after the last co-attention.
    stops = [*zip(text_schedule, visual_schedule, strict=True), (num_layers, num_visual_layers)]
    for i, (stop, visual_stop) in enumerate(stops):
        for j in range(done, stop):
            x = block(parts.block(f"encoder_{j}"))(x)
        for j in range(visual_done, visual_stop):
            y = block(visual.block(f"visual_encoder_{j}"))(y, mask=seen)
        done, visual_done = stop, visual_stop
        if i < len(text_schedule):
            sizes = (co_attention_dim, num_co_attention_heads)
            of_text = block(_co_attention(parts, f"co_text_{i}", *sizes))
            of_regions = block(_co_attention(visual, f"co_visual_{i}", *sizes))
            x, y = of_text(x, y, context_mask=seen), of_regions(y, x)
    x = Marker("features", embedding="embedding", blocks=names, dtype=dtype)(x)
    y = Marker("visual", dtype=dtype)(y)
    pooled = {}
    for stream, features in (("text", x), ("visual", y)):
        dense = keras.layers.Dense(
            co_attention_dim,
            activation="relu",
            kernel_initializer=initializer(),
            dtype=dtype,
            name=f"{stream}_pooler",
        )
        marker = Marker("pooled", dtype=dtype, name=f"{stream}_pooled_marker")
        pooled[f"{stream}_pooled"] = marker(dense(token(features, 0)))
    fused = FUSIONS[fusion](*pooled.values())
    fused = Dropout(dropout, dtype=dtype, name="pooled_dropout")(fused)
    fused = Marker("pooled", dtype=dtype)(fused)
    outputs = {"features": x, "visual_features": y, "pooled": fused, **pooled}
    return Model(inputs, outputs, name=name)


def check_schedule(name: str, schedule: Sequence[int], num_layers: int) -> None:
    """Raises a ValueError unless a schedule is in order and of blocks that exist."""
    if not schedule:
        raise ValueError(f"{name} must have an entry for each co-attention block, got none")
    for one in schedule:
        check_integer(name, one, minimum=0)
        if one > num_layers:
            raise ValueError(f"{name} must be of the {num_layers} blocks of its stream, got {one}")
    if list(schedule) != sorted(schedule):
        raise ValueError(f"{name} must be in ascending order, got {list(schedule)}")


def _co_attention(
    parts: BidirectionalEncoder, name: str, dim: int, num_heads: int
) -> TransformerDecoderBlock:
    """One stream's half of a co-attention block: cross-attention and a feed-forward network."""
    attention = MultiHeadCrossAttention(
        num_heads,
        head_dim=dim // num_heads,
        dropout=parts.attention_rate,
        kernel_initializer=initializer(),
        dtype=parts.dtype,
        name="cross_attention",
    )
    return TransformerDecoderBlock(
        parts.intermediate_dim,
        self_attention=False,
        cross_attention=attention,
        causal=False,
        dropout=parts.dropout,
        activation=parts.activation,
        layer_norm_epsilon=parts.layer_norm_epsilon,
        kernel_initializer=initializer(),
        dtype=parts.dtype,
        name=name,
    )
