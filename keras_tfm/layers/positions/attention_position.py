"""The interface of position parts, which are passed to attention as `position=`."""

from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import keras

from keras_tfm.layers.positions.coordinates import Positions, Span
from keras_tfm.layers.types import Config, Tensor


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
