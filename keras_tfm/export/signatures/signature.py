"""A signature of an exported file: a function of tensors, and what is known of its arguments."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property

import tensorflow as tf

from keras_tfm.generation.interface import Input
from keras_tfm.layers.target import export_target
from keras_tfm.runtime.manifest.manifest import SIGNATURES, Tensor
from keras_tfm.runtime.manifest.manifest import Input as FileInput
from keras_tfm.runtime.manifest.manifest import Signature as FileSignature
from keras_tfm.runtime.manifest.records import Json

Tensors = dict[str, tf.Tensor]
Function = Callable[[Tensors], Tensors]


@dataclass(frozen=True)
class Argument:
    """An argument of a signature.

    Attributes:
        spec: its shape and dtype.
        kind: str, one of `manifest.KINDS`.
        input: the model's input that it is; None for caches, positions and the like.
        is_padded: bool, whether its rows may be padded.
        needs_token: bool, whether its rows need at least one token.
    """

    spec: tf.TensorSpec
    kind: str = "input"
    input: Input | None = None
    is_padded: bool = False
    needs_token: bool = False

    def manifest(self, is_stepped: bool) -> FileInput:
        """The argument's entry in the manifest.

        Args:
            is_stepped: bool, whether it is the stepped input of a decoding loop, whose prompts have
                no padding but that on their left, which the loop knows.
        """
        entry = FileInput(
            shape=list(self.spec.shape),
            dtype=self.spec.dtype.name,
            kind=self.kind,
            padded=self.is_padded,
        )
        known = self.input
        if known is None:
            return entry
        audio, place = known.audio, known.placeholder
        return replace(
            entry,
            pad_id=known.pad_id,
            padding=None if is_stepped else known.padding,
            segments_of=known.segments_of,
            mask_of=known.mask_of,
            needs_token=self.needs_token,
            end_id=known.end_id,
            sample_rate=None if audio is None else audio.sample_rate,
            shortest=audio.shortest if audio is not None and audio.shortest > 1 else None,
            vocabulary_size=known.vocabulary_size,
            placeholder_id=None if place is None else place.token_id,
            placeholders=None if place is None else place.features,
            placeholder_group=None if place is None else place.group,
            sees_later=known.sees_later,
        )


def with_padding(arguments: Mapping[str, Argument], names: Collection[str]) -> dict[str, Argument]:
    """The arguments, of which those among `names` may have padded rows."""
    return {name: replace(x, is_padded=name in names) for name, x in arguments.items()}


_traces: ContextVar[object] = ContextVar("traces", default=None)


@contextmanager
def new_traces() -> Iterator[None]:
    """Inside, signatures are traced again, once each.

    >>> import tensorflow as tf
    >>> from keras_tfm.export.signatures.signature import Argument, Signature, new_traces
    >>> inputs = {"x": Argument(tf.TensorSpec((2,), "float32"))}
    >>> signature = Signature("double", "predict", lambda inputs: {"y": 2 * inputs["x"]}, inputs)
    >>> before = signature.traced
    >>> with new_traces():
    ...     signature.traced is before, signature.traced is signature.traced
    (False, True)
    >>> signature.traced is before
    True
    """
    token = _traces.set(object())
    try:
        yield
    finally:
        _traces.reset(token)


@dataclass(frozen=True)
class Signature:
    """A named function of tensors, ready for tracing.

    Attributes:
        name: the signature's name in the file.
        role: one of `manifest.ROLES`.
        function: from a dictionary of the inputs by name to the outputs by name.
        inputs: dict of `Argument` by name.
        settings: further entries of the manifest.
        is_of_text: whether it takes strings.
    """

    name: str
    role: str
    function: Function
    inputs: Mapping[str, Argument]
    settings: Json = field(default_factory=dict)
    is_of_text: bool = False

    @cached_property
    def parameters(self) -> dict[str, str]:
        """The parameter of the TensorFlow function for each input, which must be an identifier.

        Other names are changed: "a b" to "a_b", "self" to "input_self". So are names that differ
        from another one in upper and lower case alone, which TensorFlow takes for the same.
        """
        result: dict[str, str] = {}
        taken = {"self"}  # in lower case
        for name in self.inputs:
            if re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name) and name.lower() not in taken:
                result[name] = name
                taken.add(name.lower())
        for name in [name for name in self.inputs if name not in result]:
            new = re.sub("[^A-Za-z0-9_]", "_", name)
            if not new[:1].isalpha() or new == "self":
                new = f"input_{new}"
            while new.lower() in taken:
                new += "_"
            result[name] = new
            taken.add(new.lower())
        return {name: result[name] for name in self.inputs}

    @property
    def traced(self) -> tf.types.experimental.ConcreteFunction:
        """The concrete function of `parameters`; traced once inside a `new_traces`."""
        key = _traces.get()
        if key not in self._traced:
            self._traced[key] = self._trace()
        return self._traced[key]

    @cached_property
    def _traced(self) -> dict[object, tf.types.experimental.ConcreteFunction]:
        return {}

    def _trace(self) -> tf.types.experimental.ConcreteFunction:

        def run(**given: tf.Tensor) -> Tensors:
            return self.function({name: given[x] for name, x in self.parameters.items()})

        specs = {name: argument.spec for name, argument in self.inputs.items()}
        return tf.function(run, autograph=False).get_concrete_function(
            **{
                parameter: tf.TensorSpec(specs[name].shape, specs[name].dtype, parameter)
                for name, parameter in self.parameters.items()
            }
        )

    def manifest(self, outputs: dict[str, Tensor]) -> FileSignature:
        """The signature's entry in the manifest, with its outputs in the file."""
        stepped = None if self.role == "predict" else self.settings.get("target")
        inputs = {name: x.manifest(name == stepped) for name, x in self.inputs.items()}
        return SIGNATURES[self.role](inputs=inputs, outputs=outputs, **self.settings)


def for_edge(function: Function, accelerator: str = "cpu") -> Function:
    """The function, traced for LiteRT with XNNPACK ("cpu") or a GPU delegate ("gpu")."""

    def run(inputs: Tensors) -> Tensors:
        with export_target(f"{accelerator}-edge"):
            return function(inputs)

    return run
