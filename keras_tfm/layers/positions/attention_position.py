"""Positions of tokens, and the interface of parts passed to attention as `position=`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import keras
import numpy as np
from keras import ops

from keras_tfm.layers.embeddings.lookup import as_integers
from keras_tfm.layers.types import Config, Size, Tensor


@dataclass(frozen=True, eq=False)
class Span:
    """Consecutive positions: start, start + 1, ...

    Attributes:
        start: int or int32 scalar tensor, the first position.
        length: int or int32 scalar tensor, number of tokens (T).
        limit: int, an upper bound (exclusive) of the positions of tokens. Default: unknown. A
            table of `limit` rows covers them. Padding at the end of a step may exceed it.
        together: bool, all T tokens share the position `start`, like the hypotheses of one beam
            search.
        padding: (B,), int32, number of padding positions before each row's first token. A row's
            positions are smaller by this number; padding itself gets position 0.
        shared: dict, results that the layers of one step share.
        least: int, a lower bound of `start` if that may be negative, before the first token.

    >>> from keras_tfm.layers.positions.attention_position import Span
    >>> Span(start=3, length=2).array().tolist()
    [3, 4]
    """

    start: Size
    length: Size
    limit: int | None = None
    together: bool = False
    padding: Tensor | None = None
    shared: dict[object, Tensor] = field(default_factory=dict, repr=False)
    least: int = 0

    @property
    def is_static(self) -> bool:
        """Whether the positions are known when the graph is made."""
        known = isinstance(self.start, int) and isinstance(self.length, int)
        return known and self.padding is None

    @property
    def count(self) -> Size:
        """The number of different positions."""
        return 1 if self.together else self.length

    @property
    def end(self) -> int | None:
        """An upper bound (exclusive) of the positions; None: unknown."""
        if self.limit is None and isinstance(self.start, int) and isinstance(self.length, int):
            return self.start + self.length
        return self.limit

    def array(self) -> np.ndarray:
        """(T,), int32. Requires `is_static`."""
        if self.together:
            return np.full(self.length, self.start, "int32")
        return np.arange(self.start, self.start + self.length, dtype="int32")

    def tensor(self) -> Tensor:
        """(T,), int32, or (B, T) with `padding`."""
        if self.is_static:
            return ops.convert_to_tensor(self.array())
        offsets = ops.arange(self.length, dtype="int32")
        positions = (offsets * 0 if self.together else offsets) + self.start
        if self.padding is None:
            return positions
        return ops.maximum(positions - ops.expand_dims(self.padding, 1), 0)

    def shift(self, offset: int) -> "Span":
        """The positions that are larger by `offset`."""
        limit = None if self.limit is None else self.limit + offset
        return Span(self.start + offset, self.length, limit, self.together, self.padding)

    def part(self, rows: slice) -> "Span":
        """The positions `rows` of a span with a known length."""
        first, last, _ = rows.indices(self.length)
        return Span(self.start + first, last - first, self.limit, self.together, self.padding)


class Positions(NamedTuple):
    """The positions of the queries and the keys of attention.

    Attributes:
        query: a `Span`, or int32 (..., T), or (..., T, C) for C coordinates.
        key: a `Span`, or int32 (..., S), or (..., S, C).
    """

    query: Tensor
    key: Tensor

    def part(self, rows: slice, columns: slice) -> "Positions":
        """The positions of some queries and some keys."""
        return Positions(_part(self.query, rows), _part(self.key, columns))

    def distances(self) -> Tensor:
        """The key's position minus the query's: (..., T, S), int32. Requires one coordinate."""
        query, key = self.query, self.key
        if all(isinstance(x, Span) and x.is_static for x in (query, key)):
            return ops.convert_to_tensor(key.array() - query.array()[:, np.newaxis])
        query, key = as_tensor(query), as_tensor(key)
        return ops.expand_dims(key, -2) - ops.expand_dims(query, -1)


def _part(positions: Span | Tensor, chosen: slice) -> Span | Tensor:
    if chosen == slice(None):
        return positions
    if isinstance(positions, Span):
        return positions.part(chosen)
    return positions[..., chosen]  # of several coordinates never in blocks: see `Positions.part`


def as_tensor(positions: Span | Tensor) -> Tensor:
    """A `Span` or positions as a tensor, int32."""
    return positions.tensor() if isinstance(positions, Span) else positions


def check_positions(
    name: str, positions: Span | Tensor, length: Size, leading: tuple[Size, ...], coordinates: bool
) -> Tensor:
    """Checks the positions that a caller passed and casts them to int32.

    Args:
        name: str, the argument's name, for errors.
        positions: integers (T,) or (*leading, T); with `coordinates` also (*leading, T, C).
        length: int or scalar tensor, number of tokens (T).
        leading: the input's axes before T.
        coordinates: bool, whether several coordinates per token are allowed.

    Raises:
        TypeError: the positions are not integers.
        ValueError: a shape that does not match the input.
    """
    positions = as_integers(ops.convert_to_tensor(positions), name)
    shape, rank = tuple(positions.shape), len(leading) + 1
    fits = len(shape) in ((1, rank, rank + 1) if coordinates else (1, rank))
    if fits:
        axis = 0 if len(shape) == 1 else rank - 1
        sizes = [(length, shape[axis]), *zip(leading, shape[:axis], strict=False)]
        fits = all(a == b or b == 1 for a, b in sizes if isinstance(a, int) and isinstance(b, int))
    if not fits:
        shapes = "(T,), (B, T) or (B, T, C)" if coordinates else "(T,) or (B, T)"
        raise ValueError(f"{name} must have shape {shapes} for T = {length}, got {shape}")
    return ops.cast(positions, "int32")


class AttentionInputs(NamedTuple):
    """The inputs of a position part in one call.

    Attributes:
        query: (..., H, T, K), queries, already multiplied by `scale`.
        positions: `Positions` of the T queries and the S keys.
        causal: bool, whether keys after the query are masked.
        keys: function without arguments that returns the keys (..., G, S, K). In a decoding step it
            concatenates cached and new keys, which is a copy: only parts with `reads_keys` call it.
        project_query: function, the layer's query projection, (..., N, D) -> (..., H, N, K).
        project_key: function, the layer's key projection, (..., N, D) -> (..., G, N, K).
        scale: float, the factor by which `query` was multiplied.
        seed: tensor, in training the seed that `AttentionPosition.draw` returned for this call, or
            None.

    Example:

    >>> from keras_tfm.layers import AttentionInputs
    >>> AttentionInputs._fields[:3]
    ('query', 'positions', 'causal')
    """

    query: Tensor
    positions: Positions
    causal: bool
    keys: Callable[[], Tensor]
    project_query: Callable[[Tensor], Tensor]
    project_key: Callable[[Tensor], Tensor]
    scale: float
    seed: Tensor | None = None


class PositionTerms(NamedTuple):
    """What a position part adds to attention.

    Attributes:
        scores: float tensor added to the scaled products of queries and keys, before the soft cap;
            broadcastable to (..., H, T, S); optional.
        bias: float tensor added after the soft cap; broadcastable to (..., H, T, S); optional.
        values: function from the attention weights (..., H, T, S) to a tensor that is added to the
            result (..., H, T, V); optional.

    Example:

    >>> from keras_tfm.layers import PositionTerms
    >>> PositionTerms(bias=0.5)
    PositionTerms(scores=None, bias=0.5, values=None)
    """

    scores: Tensor | None = None
    bias: Tensor | None = None
    values: Callable[[Tensor], Tensor] | None = None


class AttentionPosition(keras.layers.Layer):
    """The base class of position parts: they make attention depend on positions.

    `MultiHeadSelfAttention(position=...)` and `MultiHeadCrossAttention(position=...)` call the
    methods below; a subclass overrides those it needs. A part gets everything as arguments, in a
    decoding step too, and must not read the `DecodingScope`. Several layers may share one part and
    its weights.

    Example of a custom part:

    >>> import numpy as np
    >>> from keras import ops
    >>> from keras_tfm.layers import AttentionPosition, MultiHeadSelfAttention, PositionTerms
    >>> class Nearby(AttentionPosition):
    ...     def terms(self, inputs):
    ...         distances = ops.cast(inputs.positions.distances(), "float32")
    ...         return PositionTerms(bias=-ops.abs(distances))
    >>> layer = MultiHeadSelfAttention(num_heads=2, position=Nearby())
    >>> tuple(layer(np.ones((1, 3, 4), "float32")).shape)
    (1, 3, 4)
    """

    # Whether `terms` calls `inputs.keys()`. Needs a value: PyTorch's modules look it up.
    reads_keys = False
    # Whether positions count from a row's first token. False: they count left padding too, which
    # changes no distance, and are the same in all rows.
    absolute = False
    # Whether `scale_query` does anything.
    scales_query = False

    def build_for(self, num_heads: int, head_dim: int, value_dim: int) -> None:
        """Creates the weights for H heads with keys of width K and values of width V."""
        self.built = True

    def rotate(self, x: Tensor, positions: Span | Tensor) -> Tensor:
        """Transforms queries, or keys before they are cached, by their positions.

        Args:
            x: float tensor (..., H, T, K).
            positions: `Span` or int32 tensor, positions of the T queries or keys, in the form of
                `Positions.query`.

        Returns:
            Float tensor (..., H, T, K).
        """
        return x

    def scale_query(self, query: Tensor, positions: Span | Tensor) -> Tensor:
        """Multiplies rotated queries by factors of their positions; called with `scales_query`.

        Args:
            query: float tensor (..., H, T, K).
            positions: `Span` or int32 (..., T), which count from a row's first token.

        Returns:
            Float tensor (..., H, T, K).
        """
        return query

    def draw(self) -> Tensor | None:
        """Draws the seed of one call in training, for a part with dropout.

        `terms` may run several times in a call, also to recompute a block of a long sequence in the
        backward pass, and must drop the same values each time.
        """
        return None

    def terms(self, inputs: AttentionInputs) -> PositionTerms:
        """Returns what is added to the scores and to the result."""
        return PositionTerms()


# The layers that use each part: a part with weights that is used by several is shared.
_users: WeakKeyDictionary[keras.Layer, WeakSet[keras.Layer]] = WeakKeyDictionary()


def build_position(
    position: AttentionPosition, layer: keras.Layer, num_heads: int, head_dim: int, value_dim: int
) -> None:
    """Builds a part for a layer, and notes that this layer uses it."""
    position.build_for(num_heads, head_dim, value_dim)
    note_use(position, layer)


def note_use(part: keras.Layer, user: keras.Layer) -> None:
    """Notes that a layer uses a part, or a part another one: see `serialize_shared`."""
    _users.setdefault(part, WeakSet()).add(user)


def as_position(value: AttentionPosition | Config | None) -> AttentionPosition | None:
    """The position part for a constructor's argument: a part or its configuration; None stays None.

    Raises:
        TypeError: the argument is something else.
    """
    if isinstance(value, dict):
        value = keras.saving.deserialize_keras_object(value)
    if value is not None and not isinstance(value, AttentionPosition):
        raise TypeError(
            f"position must be an AttentionPosition such as RotaryEmbedding(), got {value!r}"
        )
    return value


def serialize_position(position: AttentionPosition | None) -> Config | None:
    """The configuration of a layer's part, or None if it has none."""
    return None if position is None else serialize_shared(position)


def serialize_shared(part: keras.Layer) -> Config:
    """The configuration of a part, such that layers that share it still share it when loaded.

    Keras marks an object as shared only when it is serialised for the second time, and does not
    update the first configuration. So each layer serialises its part twice.
    Where Keras marks nothing, `"shared"` makes `refuse_separation` refuse the copy of one layer.
    """
    keras.saving.serialize_keras_object(part)
    config: Config = keras.saving.serialize_keras_object(part)
    is_shared = part.weights and len(_users.get(part, ())) > 1
    if is_shared and "shared_object_id" not in config:
        config["shared"] = True
    return config


def refuse_separation(config: object) -> None:
    """Raises if a layer's configuration has a part that the layer shares with others.

    Keras copies the layers of a `keras.Model` one by one, each with a part of its own then.

    Raises:
        ValueError: names the part.
    """
    if isinstance(config, dict):
        if config.get("shared") is True and "class_name" in config:
            raise ValueError(
                f"position {config['config']['name']!r} is shared by several layers, and a copy of "
                "one layer would have its own: clone_model and from_config keep it shared in a "
                "keras_tfm.Model, with_dtype and .keras files in every model"
            )
        config = list(config.values())
    if isinstance(config, list | tuple):
        for value in config:
            refuse_separation(value)
