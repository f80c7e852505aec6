"""The identity of a model: its family, arguments, head, and parts by role.

A functional model is a graph of layers; `.keras` files, `clone_model` and `with_dtype` preserve
only layers and their configurations. So the identity is stored in layers: markers, which return
their input unchanged. A builder or a head places markers by role; the decorators `builder` and
`head` write the function's name and arguments into them.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, ParamSpec, TypeVar, get_args

import keras
import numpy as np

from keras_tfm.keras_internals import nodes_in_order, producer
from keras_tfm.layers.types import Arguments, Config, Shape, Tensor
from keras_tfm.models.argument_texts import with_shared_arguments

P = ParamSpec("P")
R = TypeVar("R")

# The roles of markers. Those of the first group carry the identity of the model:
# - "features": the features (B, T, D) of the model, the decoder's in encoder-decoder models;
# - "encoded": the encoder's features (B, S, D), for models without the decoder;
# - "towers": a model of two towers, such as `clip`, each of which has an identity of its own;
# - "alignment": the features (B, S, N, D) of the sequences in a model of alignments, and
# - "pairs": those (B, N, N, E) of its pairs: a head on them leaves the features out of the graph.
IDENTITY_ROLES = ("features", "encoded", "towers", "alignment", "pairs")
# The others:
# - "pooled": the pooled vector (B, D) of a whole sequence;
# - "visual": the features (B, N, C) of the regions in a model of texts and regions of images;
# - "head": the input of a head, with the head's kind and arguments.
ROLES = (*IDENTITY_ROLES, "pooled", "visual", "head")
# Arguments that are not recorded: tensors and layers of the model, and its name.
_NOT_RECORDED = ("model", "features", "embedding", "name")


@dataclass(frozen=True)
class Head:
    """The head of a model.

    Attributes:
        kind: str, "language_model" for the logits of `transformer`, `gpt` and `t5`, otherwise the
            name of the function of `keras_tfm.models` that made the head.
        arguments: dict, the arguments of that function including defaults.
    """

    kind: str
    arguments: Arguments = field(default_factory=dict)


@dataclass(frozen=True)
class Identity:
    """The identity that the markers of a model carry.

    Attributes:
        family: str, name of the builder, or None for a hand-composed model.
        arguments: dict, the builder's arguments including defaults, without `name`.
        embedding: str, name of the `TokenEmbedding` layer; None: there is none.
        blocks: tuple of str, names of the block layers in order.
    """

    family: str | None = None
    arguments: Arguments = field(default_factory=dict)
    embedding: str | None = None
    blocks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Origin:
    """The function that made a model or a head, and its arguments.

    A dataclass, because `arguments` may contain layers, and Keras would track layers in a layer's
    dict attribute as sublayers.
    """

    function: str | None
    arguments: Arguments


@keras.saving.register_keras_serializable("keras_tfm")
class Marker(keras.layers.Layer):
    """Marks a tensor of a model by its role: an identity layer without weights.

    It passes on the mask, and has the dtype policy of the model's layers, which heads use as their
    default.

    Args:
        role: str, one of `ROLES`.
        function: str, the builder's name or the head's kind. Default: the name of the function
            that returns the model, if `builder` or `head` decorates it.
        arguments: dict, the function's arguments. With the default function: those that differ
            from the ones given.
        embedding: str, name of the `TokenEmbedding` layer. Default: none.
        blocks: names of the block layers in order.
        name: str, the layer's name. Default: the role and "_marker".

    Example:

    >>> import numpy as np
    >>> from keras_tfm.models.identity import Marker
    >>> marker = Marker("features", "bert", {"dim": 8})
    >>> x = np.ones((1, 2, 3), "float32")
    >>> bool(np.all(marker(x) == x)), marker.name, marker.origin.function
    (True, 'features_marker', 'bert')
    """

    def __init__(
        self,
        role: str,
        function: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        embedding: str | None = None,
        blocks: Sequence[str] = (),
        name: str | None = None,
        **kwargs: Any,
    ):
        if role not in ROLES:
            raise ValueError(f"role must be one of {list(ROLES)}, got {role!r}")
        # No autocast: the input keeps its dtype under any policy.
        super().__init__(autocast=False, name=name or f"{role}_marker", **kwargs)
        self.supports_masking = True
        self.role = role
        self.embedding = embedding
        self.blocks = tuple(blocks)
        self.origin = Origin(function, recordable(arguments or {}))

    @property
    def identity(self) -> Identity:
        """The identity of the model that the marker is in."""
        return Identity(self.origin.function, self.origin.arguments, self.embedding, self.blocks)

    def call(self, inputs: Tensor) -> Tensor:
        """Returns the input."""
        return inputs

    def rematerialized_call(self, layer_call: Any, *args: Any, **kwargs: Any) -> Any:
        """`layer_call`: there is nothing to recompute."""
        return layer_call

    def compute_output_spec(self, inputs: Tensor) -> keras.KerasTensor:
        """Shape and dtype of the input."""
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        """Shape of the input."""
        return inputs_shape

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "role": self.role,
            "function": self.origin.function,
            "arguments": keras.saving.serialize_keras_object(self.origin.arguments),
            "embedding": self.embedding,
            "blocks": list(self.blocks),
        }

    @classmethod
    def from_config(cls, config: Config) -> Any:
        """The layer of a configuration."""
        arguments = keras.saving.deserialize_keras_object(config["arguments"])
        return super().from_config({**config, "arguments": arguments})


class _EarlierMarker:
    """Reads the markers of `.keras` files from when each role had a class."""

    def __init__(self, role: str):
        self.role = role

    def from_config(self, config: Config) -> Marker:
        """The marker of an earlier configuration."""
        config = {"arguments": {}, **config, "role": self.role}
        config["function"] = config.pop("kind" if self.role == "head" else "family", None)
        return Marker.from_config(config)

    def get_config(self) -> Config:
        """Nothing: it is never saved, but Keras registers only what could be."""
        return {}


for _name, _role in (
    ("FeaturesMarker", "features"), ("EncodedMarker", "encoded"), ("PairMarker", "towers"),
    ("PooledMarker", "pooled"), ("VisualMarker", "visual"), ("AlignmentMarker", "alignment"),
    ("PairsMarker", "pairs"), ("HeadMarker", "head"),
):  # fmt: skip
    keras.saving.register_keras_serializable("keras_tfm", _name)(_EarlierMarker(_role))


def builder(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator of the function that builds a family: the model knows its name and arguments.

    The docstring is completed with the arguments that builders share, see `argument_texts`.
    """
    build = _recorder(function, IDENTITY_ROLES, _NOT_RECORDED)
    if function.__doc__ is not None:  # with python -OO
        names = list(inspect.signature(function).parameters)
        build.__doc__ = with_shared_arguments(function.__doc__, names)
    return build


def head(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator of a function that adds a head: the model knows its name and arguments."""
    return _recorder(function, ("head",), (*_NOT_RECORDED, "dtype"))


def check_model_type(model_type: str | None, known: Sequence[str]) -> None:
    """Raises unless the argument `model_type` of a builder is None or one of its known types."""
    if model_type is not None and model_type not in known:
        raise ValueError(f"model_type must be one of {[None, *known]}, got {model_type!r}")


def _recorder(
    function: Callable[P, R], roles: Sequence[str], ignored: Sequence[str]
) -> Callable[P, R]:
    signature = inspect.signature(function)
    numbers = {key for key, x in signature.parameters.items() if _is_float(x.annotation)}

    @functools.wraps(function)
    def build(*args: P.args, **kwargs: P.kwargs) -> R:
        model = function(*args, **kwargs)
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        given = {
            key: _as_floats(x) if key in numbers else x
            for key, x in call.arguments.items()
            if key not in ignored
        }
        for marker in (x for role in roles for x in markers(model, role)):
            if marker.origin.function is None:
                arguments = {**recordable(given), **marker.origin.arguments}
                marker.origin = Origin(function.__name__, arguments)
        return model

    return build


def _is_float(annotation: Any) -> bool:
    """Whether an annotation is one of floats, such as `float | None` or `Sequence[float]`."""
    parts = [x for x in get_args(annotation) if x is not NoneType]
    return all(map(_is_float, parts)) if parts else annotation is float


def _as_floats(value: Any) -> Any:
    """Integers as floats: `transformers` refuses an integer in many fields of `config.json`."""
    if isinstance(value, list | tuple):
        return [_as_floats(x) for x in value]
    return value if value is None else float(value)


def recordable(value: Any) -> Any:
    """The same value as in a file: JSON has no tuples, and no numbers of NumPy."""
    if isinstance(value, Mapping):
        return {key: recordable(x) for key, x in value.items()}
    if isinstance(value, np.generic):
        return value.item()
    return [recordable(x) for x in value] if isinstance(value, list | tuple) else value


def describe(model: keras.Model) -> Config | None:
    """Returns a model's family, arguments and head as JSON values; None for a hand-composed model.

    Objects among the arguments are serialised with `keras.saving.serialize_keras_object`.

    Args:
        model: functional `keras.Model`.

    Returns:
        A dict with the keys "family", "arguments" and "head"; None: no builder made the model.

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
    towers = markers(model, "towers")
    marker = towers[-1] if towers else features_marker(model)
    if marker is None:
        others = markers(model, "alignment") or markers(model, "pairs")
        marker = others[0] if len(others) == 1 else None
    return Identity() if marker is None else marker.identity


def features_marker(model: keras.Model) -> Marker | None:
    """The marker of the model's features: the decoder's, or the encoder's without a decoder."""
    found = markers(model, "features") or markers(model, "encoded")
    # A head on features given by the user adds a second marker without a family, which counts. Two
    # markers with families are two models in one: a new model without an identity.
    if not found or (len(found) > 1 and found[-1].origin.function is not None):
        return None
    return found[-1]


def blocks_of(model: keras.Model, identity: Identity) -> list[keras.layers.Layer]:
    """The block layers of an identity that a model has, in order."""
    layers = {layer.name: layer for layer in model.layers}
    return [layers[name] for name in identity.blocks if name in layers]


def features_of(model: keras.Model) -> Tensor | None:
    """The symbolic features (B, T, D), or None."""
    marker = features_marker(model)
    return None if marker is None else outputs_in(model, marker)[-1]


def tensors_of(model: keras.Model, role: str) -> list[Tensor]:
    """The symbolic tensors of a role, one of `ROLES`, in graph order."""
    return [outputs_in(model, marker)[-1] for marker in markers(model, role)]


def head_of(model: keras.Model) -> Head | None:
    """The head, or None."""
    found = markers(model, "head")
    return Head(str(found[-1].origin.function), found[-1].origin.arguments) if found else None


def markers(model: keras.Model, role: str) -> list[Marker]:
    """The markers of a role, in graph order."""
    operations = model.operations if is_functional(model) else []
    return [x for x in operations if isinstance(x, Marker) and x.role == role]


def outputs_in(model: keras.Model, operation: keras.Operation) -> list[Tensor]:
    """The outputs of an operation in the graph of one functional model.

    `operation.output` may belong to another model that shares the layer.
    """
    made = [x for x in model.inputs if producer(x).operation is operation]
    calls = [node for node in nodes_in_order(model) if node.operation is operation]
    return made + [x for node in calls for x in node.output_tensors]


def is_functional(model: Any) -> bool:
    """Whether a model is a graph of `keras.Input` and layers."""
    return hasattr(model, "operations") and hasattr(model, "inputs")
