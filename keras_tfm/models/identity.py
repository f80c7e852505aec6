"""The identity of a model: its family, arguments, head, and parts by role.

A functional model is a graph of layers; `.keras` files, `clone_model` and `with_dtype` preserve
only layers and their configurations. So the identity is stored in layers: markers, which return
their input unchanged and are found by their class.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from keras_tfm.keras_internals import nodes_in_order, producer

Tensor = Any


@dataclass(frozen=True)
class Head:
    """The head of a model.

    Attributes:
        kind: str, "language_model" for the logits of `transformer`, `gpt` and `t5`, otherwise the
            name of the function of `keras_tfm.models` that made the head.
        arguments: dict, the arguments of that function including defaults.
    """

    kind: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Identity:
    """The information that a `FeaturesMarker` carries.

    A dataclass, because `arguments` may contain layers, and Keras would track layers in a layer's
    dict attribute as sublayers.

    Attributes:
        family: str, name of the builder, or None for a hand-composed model.
        arguments: dict, the builder's arguments including defaults, without `name`.
        embedding: str, name of the `TokenEmbedding` layer, or None.
        blocks: tuple of str, names of the block layers in order.
    """

    family: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    embedding: str | None = None
    blocks: tuple[str, ...] = ()


class Marker(keras.layers.Layer):
    """Base class of markers: an identity layer without weights that passes on the mask."""

    def __init__(self, **kwargs: Any):
        # No autocast: the input keeps its dtype under any policy.
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True

    def call(self, inputs: Tensor) -> Tensor:
        """Returns the input."""
        return inputs

    def rematerialized_call(self, layer_call: Any, *args: Any, **kwargs: Any) -> Any:
        """`layer_call`: there is nothing to recompute."""
        return layer_call

    def compute_output_spec(self, inputs: Tensor) -> keras.KerasTensor:
        """Shape and dtype of the input."""
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        """Shape of the input."""
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        # Keras's own refuses a marker whose dtype was given as a policy object.
        return dict(super().get_config())


@keras.saving.register_keras_serializable("keras_tfm")
class FeaturesMarker(Marker):
    """Marks the features (B, T, D) of a model and carries the model's identity.

    It has the dtype policy of the model's layers, which heads use as their default.

    Args:
        family: str, name of the builder, or None.
        arguments: dict, the builder's arguments; `name` is removed.
        embedding: str, name of the `TokenEmbedding` layer, or None.
        blocks: names of the block layers in order.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.models.identity import FeaturesMarker
    >>> marker = FeaturesMarker("bert", {"dim": 8})
    >>> x = np.ones((1, 2, 3), "float32")
    >>> bool(np.all(marker(x) == x)), marker.identity.family
    (True, 'bert')
    """

    def __init__(
        self,
        family: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        embedding: str | None = None,
        blocks: Sequence[str] = (),
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        # Lists for tuples, as in a file: JSON has no tuples.
        given = {
            key: _with_lists(value) for key, value in (arguments or {}).items() if key != "name"
        }
        self.identity = Identity(family, given, embedding, tuple(blocks))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "family": self.identity.family,
            "arguments": keras.saving.serialize_keras_object(self.identity.arguments),
            "embedding": self.identity.embedding,
            "blocks": list(self.identity.blocks),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The layer of a configuration."""
        return super().from_config(_with_arguments(config))


@keras.saving.register_keras_serializable("keras_tfm")
class EncodedMarker(FeaturesMarker):
    """Marks the encoder's features (B, S, D) in an encoder-decoder model.

    Its identity is used for models without the decoder, such as `encoder(model)`.
    """


@keras.saving.register_keras_serializable("keras_tfm")
class PairMarker(FeaturesMarker):
    """Carries the identity of a model of two towers, such as `clip`; each has a marker of its own.

    The model has no features of its own.
    """


@keras.saving.register_keras_serializable("keras_tfm")
class PooledMarker(Marker):
    """Marks the pooled vector (B, D) of a whole sequence."""


@keras.saving.register_keras_serializable("keras_tfm")
class VisualMarker(Marker):
    """Marks the features (B, N, C) of the regions in a model of texts and regions of images."""


@keras.saving.register_keras_serializable("keras_tfm")
class AlignmentMarker(FeaturesMarker):
    """Marks the features (B, S, N, D) of the sequences in a model of alignments.

    It carries the identity, too: a head on it leaves the target's features out of the graph.
    """


@keras.saving.register_keras_serializable("keras_tfm")
class PairsMarker(FeaturesMarker):
    """Marks the features (B, N, N, E) of the pairs in a model of alignments, with the identity."""


@keras.saving.register_keras_serializable("keras_tfm")
class HeadMarker(Marker):
    """Marks the input of a head and carries the head's kind and arguments.

    Args:
        kind: str, the head's kind, see `Head`.
        arguments: dict, the arguments of the function that made the head.
    """

    def __init__(self, kind: str, arguments: Mapping[str, Any] | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.head = Head(kind, dict(arguments or {}))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "kind": self.head.kind,
            "arguments": keras.saving.serialize_keras_object(self.head.arguments),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The layer of a configuration."""
        return super().from_config(_with_arguments(config))


def _with_arguments(config: dict[str, Any]) -> dict[str, Any]:
    arguments = keras.saving.deserialize_keras_object(config["arguments"])
    return {**config, "arguments": arguments}


def _with_lists(value: Any) -> Any:
    """The same value with lists in place of tuples, in dictionaries, too."""
    if type(value) is dict:
        return {key: _with_lists(x) for key, x in value.items()}
    return [_with_lists(x) for x in value] if isinstance(value, list | tuple) else value


def describe(model: keras.Model) -> dict[str, Any] | None:
    """Returns a model's family, arguments and head as JSON values; None for a hand-composed model.

    Objects among the arguments are serialised with `keras.saving.serialize_keras_object`.

    Args:
        model: functional `keras.Model`.

    Returns:
        A dict with the keys "family", "arguments" and "head", or None.

    Example:

    >>> from keras_tfm.models import bert, describe, token_classifier
    >>> model = bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> described = describe(token_classifier(model, num_classes=3))
    >>> described["family"], described["arguments"]["dim"], described["head"]["kind"]
    ('bert', 8, 'token_classifier')
    """
    identity = identity_of(model)
    if identity.family is None:
        return None
    head = head_of(model)
    described = {
        "family": identity.family,
        "arguments": identity.arguments,
        "head": None if head is None else {"kind": head.kind, "arguments": head.arguments},
    }
    return dict(keras.saving.serialize_keras_object(described))


def identity_of(model: keras.Model) -> Identity:
    """The identity of a functional model; an empty one for any other model."""
    pair = _markers(model, PairMarker)
    marker = pair[-1] if pair else features_marker(model)
    if marker is None:
        others = _markers(model, AlignmentMarker) or _markers(model, PairsMarker)
        marker = others[0] if len(others) == 1 else None
    return Identity() if marker is None else marker.identity


def features_marker(model: keras.Model) -> FeaturesMarker | None:
    """The marker of the model's features: the decoder's, or the encoder's without a decoder."""
    found = _markers(model, FeaturesMarker) or _markers(model, EncodedMarker)
    # A head on features given by the user adds a second marker without a family, which counts. Two
    # markers with families are two models in one: a new model without an identity.
    if not found or (len(found) > 1 and found[-1].identity.family is not None):
        return None
    return found[-1]


def encoded_marker(model: keras.Model) -> EncodedMarker | None:
    """The marker of the encoder's features."""
    found = _markers(model, EncodedMarker)
    return found[0] if len(found) == 1 else None


def blocks_of(model: keras.Model, identity: Identity) -> list[keras.layers.Layer]:
    """The block layers of an identity that a model has, in order."""
    layers = {layer.name: layer for layer in model.layers}
    return [layers[name] for name in identity.blocks if name in layers]


def features_of(model: keras.Model) -> Tensor | None:
    """The symbolic features (B, T, D), or None."""
    return _output(model, features_marker(model))


def encoded_of(model: keras.Model) -> Tensor | None:
    """The symbolic features (B, S, D) of the encoder, or None."""
    return _output(model, encoded_marker(model))


def pooled_of(model: keras.Model) -> Tensor | None:
    """The symbolic pooled vector (B, D), or None."""
    found = _markers(model, PooledMarker)
    return _output(model, found[-1] if found else None)


def all_pooled_of(model: keras.Model) -> list[Tensor]:
    """The symbolic pooled vectors: a model of two streams has one of each and a fused one."""
    return [outputs_in(model, marker)[-1] for marker in _markers(model, PooledMarker)]


def visual_of(model: keras.Model) -> Tensor | None:
    """The symbolic features (B, N, C) of the regions, or None."""
    found = _markers(model, VisualMarker)
    return _output(model, found[-1] if found else None)


def alignment_of(model: keras.Model) -> Tensor | None:
    """The symbolic features (B, S, N, D) of an alignment, or None."""
    found = _markers(model, AlignmentMarker)
    return _output(model, found[-1] if found else None)


def pairs_of(model: keras.Model) -> Tensor | None:
    """The symbolic features (B, N, N, E) of pairs of residues, or None."""
    found = _markers(model, PairsMarker)
    return _output(model, found[-1] if found else None)


def head_of(model: keras.Model) -> Head | None:
    """The head, or None."""
    found = _markers(model, HeadMarker)
    return found[-1].head if found else None


def outputs_in(model: keras.Model, operation: Any) -> list[Tensor]:
    """The outputs of an operation in the graph of one functional model.

    `operation.output` may belong to another model that shares the layer.
    """
    made = [x for x in model.inputs if producer(x).operation is operation]
    calls = [node for node in nodes_in_order(model) if node.operation is operation]
    return made + [x for node in calls for x in node.output_tensors]


def is_functional(model: Any) -> bool:
    """Whether a model is a graph of `keras.Input` and layers."""
    return hasattr(model, "operations") and hasattr(model, "inputs")


def _markers(model: keras.Model, kind: type) -> list[Any]:
    """The markers of a class, without subclasses, in graph order."""
    if not is_functional(model):
        return []
    return [operation for operation in model.operations if type(operation) is kind]


def _output(model: keras.Model, marker: Marker | None) -> Tensor | None:
    return None if marker is None else outputs_in(model, marker)[-1]
