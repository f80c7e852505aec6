"""The interface of a functional model: its inputs, and how it treats padding.

Example:

>>> from keras_tfm.generation.interface import interface_of
>>> from keras_tfm.models import transformer
>>> model = transformer(11, 13, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
>>> interface = interface_of(model)
>>> interface.find_target()
'target'
>>> [(x.name, x.vocabulary_size, x.pad_id) for x in interface.inputs.values()]
[('source', 11, 0), ('target', 13, 0)]
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_tfm.generation.tokenizers.keras_hub import keras_hub_hint, refuse_keras_hub
from keras_tfm.keras_internals import calls_of, functional_of, producer
from keras_tfm.layers import (
    EndTokenPooling,
    ImageNormalization,
    ReplacePlaceholders,
    SegmentEmbedding,
    TokenEmbedding,
)
from keras_tfm.layers.audio.audio_layer import AudioLayer
from keras_tfm.layers.embeddings.pad_tokens import PadTokens
from keras_tfm.layers.embeddings.replace_placeholders import any_placeholders
from keras_tfm.layers.embeddings.token_mask import TokenMask
from keras_tfm.layers.types import Tensor
from keras_tfm.models.encoder_decoders.shifted_source import SHIFTED
from keras_tfm.models.identity import head_of, identity_of
from keras_tfm.models.vision.image_tokens import PlaceholderRuns
from keras_tfm.runtime.decoding.special_ids import REAL_PAD

Arrays = Mapping[str, np.ndarray]

# Names in transformers and in KerasHub.
_SEGMENTS = ("segments", "segment_ids", "token_type_ids")
_MASKS = ("attention_mask", "padding_mask", "input_mask")
# The lengths that find side inputs. Neither may be 1, which would be broadcast; position tables may
# be short.
_LONG, _SHORT = 3, 2


class Placeholder(NamedTuple):
    """The token that features replace.

    Attributes:
        token_id: int, its id.
        features: int, their number, if it is known: a row has the token as often, or never.
        group: int, the number of features of one picture, if a row may have the first ones alone.
    """

    token_id: int
    features: int | None
    group: int | None


@dataclass(frozen=True)
class Input:
    """One input of a functional model.

    Attributes:
        name: str, the name by which the model takes it.
        spec: the symbolic input, whose shape begins with that of the rows.
        vocabulary_size: int, number of ids, if an embedding reads the input.
        masked_id: int, the id that an embedding masks: `TokenEmbedding(mask_id=...)`, or 0 with
            `mask_zero=True`, also of Keras's `Embedding`; or with which `PadTokens` pads.
        padding: str, where the padding id is padding, for an input in which it may be a token: one
            of the values of "padding" in a manifest, `TokenEmbedding(padding=...)`, or "by_id" for
            a classifier that reads the last token whose id is not the padding id, as that of
            `transformers`. The token is passed as `REAL_PAD`, so nothing but such embeddings may
            read the input, except in the classifiers of `models.with_shifted_source`.
        segments_of: str, the input of tokens whose token types these are: what a `SegmentEmbedding`
            reads, or an input named as those are in `transformers` and KerasHub.
        mask_of: str, the input of tokens whose padding mask this is, by its name there.
        end_id: int, the end token that rows must contain, which an `EndTokenPooling` looks for.
        placeholder: the token that a `ReplacePlaceholders` replaces by features.
        sees_later: bool, whether placeholder tokens of a picture see each other, also later ones
            (`PlaceholderRuns`): the whole picture must be in one step.
        is_pixels: bool, whether only an `ImageNormalization` reads the input: pixels from 0 to 255.
        audio: an `AudioLayer` such as `LogMelSpectrogram`, if only such layers read the input.
    """

    name: str
    spec: keras.KerasTensor
    vocabulary_size: int | None = None
    masked_id: int | None = None
    padding: str | None = None
    segments_of: str | None = None
    mask_of: str | None = None
    end_id: int | None = None
    placeholder: Placeholder | None = None
    sees_later: bool = False
    is_pixels: bool = False
    audio: AudioLayer | None = None

    @property
    def takes_ids(self) -> bool:
        """Whether the input is one of token ids: integers (B, T)."""
        return "int" in self.spec.dtype and len(self.spec.shape) == 2

    @property
    def pad_id(self) -> int | None:
        """The padding id of an input of token ids: 0 if no embedding masks an id."""
        return (self.masked_id or 0) if self.takes_ids else None

    @property
    def is_open(self) -> bool:
        """Whether an axis after that of the rows has no fixed length."""
        return None in self.spec.shape[1:]

    @property
    def follows_tokens(self) -> bool:
        """Whether the values follow from the tokens of another input."""
        return self.segments_of is not None or self.mask_of is not None


class Interface:
    """What a functional model takes, read from its graph. `interface_of` reads it only once.

    Args:
        model: functional `keras.Model`.

    Attributes:
        model: the model.
        inputs: dict of `Input` by name, in the model's order.

    Raises:
        TypeError: the model is not functional, or an input is no tensor or takes strings.
        ValueError: two embeddings of the same input mask different ids.
    """

    def __init__(self, model: keras.Model):
        self.model = model
        self.inputs = _read_inputs(model)
        self._side_inputs: dict[str, list[str]] = {}

    @property
    def names(self) -> list[str]:
        """The names by which the model takes its inputs."""
        return [*self.inputs]

    def find_target(self, target: str | None = None) -> str:
        """The name of the stepped input: `target` if given, else "target", or the only input."""
        names = self.names
        refuse_keras_hub(self.model)
        if target is None:
            target = "target" if "target" in names or len(names) > 1 else names[0]
        if target not in names:
            raise ValueError(
                f"the model has no input {target!r} to step, its inputs are {names}: "
                f"choose one with target=...{keras_hub_hint(self.model)}"
            )
        return target

    def call(self, inputs: Mapping[str, Any]) -> Tensor:
        """The model's outputs in inference mode, from inputs by name, which may be random."""
        with any_placeholders():
            return self.model(self.arrange(inputs), training=False)

    def arrange(self, inputs: Mapping[str, Any]) -> Any:
        """Inputs by name in the structure of the model's: one tensor, a list or a dictionary."""
        if isinstance(self.model.input, keras.KerasTensor):
            (only,) = inputs.values()
            return only
        if not isinstance(self.model.input, dict):
            return [inputs[name] for name in self.inputs]
        return inputs

    def name_outputs(self, outputs: Any) -> dict[str, Any]:
        """The model's outputs by their names in a file.

        Raises:
            ValueError: an output is None, as of a subclass that changes `call`.

        >>> import keras
        >>> from keras_tfm.generation.interface import interface_of
        >>> x = keras.Input((2,))
        >>> list(interface_of(keras.Model(x, x * 2)).name_outputs(["y"]))
        ['output']
        """
        flat = keras.tree.flatten(outputs)
        if any(x is None for x in flat):
            items = outputs.items() if isinstance(outputs, dict) else enumerate(flat)
            missing = [key for key, x in items if x is None]
            raise ValueError(
                f"expected tensors as the outputs of {self.model.name}, got None as {missing}: "
                "leave it out of what the model returns"
            )
        if isinstance(outputs, dict):
            return outputs
        if len(flat) == 1:
            return {"output": flat[0]}
        names: list[str] = []
        for name in self.model.output_names:  # outputs of the same layer have the same name
            unique, number = name, 1
            while unique in names:
                unique, number = f"{name}_{number}", number + 1
            names.append(unique)
        return dict(zip(names, flat, strict=True))

    def check_output_rows(self) -> None:
        """Raises unless the first axis of each output is that of the rows, as far as it is known.

        A file runs any number of rows, a batch at a time.

        Raises:
            ValueError: an output is a scalar or has another first axis; the error names it.

        Example:

        >>> import keras
        >>> from keras_tfm.generation.interface import interface_of
        >>> x = keras.Input((2,))
        >>> interface_of(keras.Model(x, keras.ops.sum(x), name="total")).check_output_rows()
        Traceback (most recent call last):
        ValueError: output 'output' of total has the shape (), whose first axis is not that of the \
rows: return a result for each row, such as ops.sum(x, axis=-1), or, if all batches have the same \
size, declare it with keras.Input(..., batch_size=...)
        """
        sizes = {None, *(x.spec.shape[0] for x in self.inputs.values())}
        for name, output in self.name_outputs(self.model.output).items():
            shapes = [tuple(x.shape) for x in keras.tree.flatten(output)]
            wrong = [shape for shape in shapes if not shape or shape[0] not in sizes]
            if wrong:
                raise ValueError(
                    f"output {name!r} of {self.model.name} has the shape {wrong[0]}, whose "
                    "first axis is not that of the rows: return a result for each row, such as "
                    "ops.sum(x, axis=-1), or, if all batches have the same size, declare it with "
                    "keras.Input(..., batch_size=...)"
                )

    # What is found by calling the model

    def side_inputs(self, target: str) -> list[str]:
        """The inputs that must be as long as the stepped one, `target`."""
        if target not in self._side_inputs:
            self._side_inputs[target] = self._find_side_inputs(target)
        return self._side_inputs[target]

    def check_side_inputs(self, target: str) -> None:
        """Raises if another input must be as long as the stepped one, `target`.

        An example is an `attention_mask` or `position_ids` of a model ported from `transformers`:
        there is no value for a token that is not chosen yet.

        Raises:
            ValueError: there are such inputs; the error names them.

        Example:

        >>> import keras
        >>> from keras_tfm import layers
        >>> from keras_tfm.generation.interface import interface_of
        >>> ids, places = (keras.Input((None,), dtype="int32", name=x) for x in ("ids", "places"))
        >>> x = layers.TokenEmbedding(7, 4)(ids) + keras.layers.Embedding(9, 4)(places)
        >>> interface_of(keras.Model([ids, places], x, name="ported")).check_side_inputs("ids")
        Traceback (most recent call last):
        ValueError: ported cannot be stepped: it reads ['places'] for each token of 'ids', and \
there are none for new tokens: build the model without them; generation hides the padding of \
prompts, layers such as PositionEmbedding count positions, and other values can be computed from \
the tokens inside the model
        """
        found = self.side_inputs(target)
        if found:
            raise ValueError(
                f"{self.model.name} cannot be stepped: it reads {found} for each token of "
                f"{target!r}, and there are none for new tokens: build the model without them; "
                "generation hides the padding of prompts, layers such as PositionEmbedding count "
                "positions, and other values can be computed from the tokens inside the model"
            )

    def _find_side_inputs(self, target: str) -> list[str]:
        names = [
            name
            for name, x in self.inputs.items()
            if name != target and x.spec.shape[1:2] == (None,)
        ]
        if not names or self.inputs[target].spec.shape[1:2] != (None,):
            return []
        if self._accepts(names) or not self._accepts([]):
            return []
        # As long as each other, such as a source and its mask: not as the target.
        free = {
            name
            for name in names
            if self._accepts([name])
            or any(self._accepts([name, other]) for other in names if other != name)
        }
        return [name for name in names if name not in free] or names

    def _accepts(self, shorter: Collection[str]) -> bool:
        """Whether the model can be called with some inputs that are shorter than all others."""
        inputs = {}
        for name, x in self.inputs.items():
            length = _SHORT if name in shorter else _LONG
            shape = (1, *(length if d is None else d for d in x.spec.shape[1:]))
            value = 1 if (x.vocabulary_size or 2) > 1 else 0
            inputs[name] = np.full(shape, value).astype(x.spec.dtype)
        try:
            self.call(inputs)
        except Exception:
            return False
        return True

    def invisibly_padded(self, names: Collection[str]) -> frozenset[str]:
        """The inputs of ids among `names` whose padding does not change the outputs.

        Each is padded with its own padding id. If inputs must have equal lengths, all are padded.
        """
        ids = tuple(x.name for x in self.inputs.values() if x.takes_ids and x.spec.shape[1] is None)
        # Masks of other dtypes than integers.
        masks = [
            x.name
            for x in self.inputs.values()
            if x.mask_of is not None and not x.takes_ids and x.spec.shape[1] is None
        ]
        # A row without the token that the tokenizer appends would get it from its padding.
        ended = [x.name for x in self.inputs.values() if x.padding == "after_end"]

        @functools.cache
        def outputs(difference: int, longer: tuple[str, ...]) -> list[np.ndarray] | None:
            """With padding after the ids of `longer`; None if inputs must have equal lengths."""
            inputs = self._some_rows(difference)
            for key in masks:
                inputs[key] = np.ones_like(inputs[key])
            for key in ended:
                inputs[key][:, -1] = REAL_PAD
            for key in (*longer, *(masks if longer == ids else ())):
                value = self.inputs[key].pad_id or 0
                inputs[key] = np.pad(inputs[key], ((0, 0), (0, 3)), constant_values=value)
            return self._flat_outputs(inputs)

        def is_invisible(name: str) -> bool:
            for difference, longer in ((1, (name,)), (0, ids)):
                short, long = outputs(difference, ()), outputs(difference, longer)
                if short is not None and long is not None:
                    return all(_is_as_before(*pair) for pair in zip(short, long, strict=True))
            return False

        return frozenset(name for name in names if name in ids and is_invisible(name))

    def needing_a_token(self, names: Collection[str]) -> frozenset[str]:
        """The inputs of ids among `names` for which a row of padding alone makes an output NaN.

        A masked average, for instance, divides by the number of tokens.
        """
        ids = [name for name in names if self.inputs[name].takes_ids]
        rows, found = self._some_rows(0), set()
        for name in ids:
            blank = {**rows, name: np.full_like(rows[name], self.inputs[name].pad_id)}
            if any(np.isnan(y).any() for y in self._flat_outputs(blank) or ()):
                found.add(name)
        return frozenset(found)

    def _flat_outputs(self, inputs: Arrays) -> list[np.ndarray] | None:
        """The outputs in float32; None if the model does not accept the inputs."""
        try:
            flat = keras.tree.flatten(self.call(inputs))
            return [keras.ops.convert_to_numpy(keras.ops.cast(y, "float32")) for y in flat]
        except Exception:
            return None

    def _some_rows(self, difference: int) -> dict[str, np.ndarray]:
        """Rows of every input: random ones, then rows that repeat one id.

        Each input is `difference` longer than the one before it.
        """
        generator = np.random.default_rng(0)
        inputs = {}
        for i, x in enumerate(self.inputs.values()):
            length = (5 if x.audio is None else x.audio.shortest) + i * difference
            shape = (12, *(length if d is None else d for d in x.spec.shape[1:]))
            if "int" in x.spec.dtype or x.vocabulary_size is not None:
                # Unknown: ids 0 and 1, which every vocabulary has.
                size = x.vocabulary_size or 2
                ids = np.setdiff1d(np.arange(size), x.pad_id or 0) if size > 1 else np.arange(1)
                values = generator.choice(ids, shape)
                if x.takes_ids:
                    chosen = np.linspace(0, len(ids) - 1, 8).astype(int)
                    values[4:] = ids[chosen][:, np.newaxis]
            else:
                values = generator.normal(size=shape)
            inputs[x.name] = values.astype(x.spec.dtype)
        return inputs


def interface_of(model: keras.Model) -> Interface:
    """The interface of a functional model, which is read at the first call and kept with it.

    That of a built `keras.Sequential` describes the functional model of its layers.

    Raises:
        TypeError: the model is neither of them.
    """
    graph = functional_of(model)
    if not hasattr(graph, "inputs") or not hasattr(graph, "operations"):
        raise TypeError(
            "expected a functional keras.Model (made of keras.Input and layers), "
            f"got {type(model).__name__}{_lack_of(model)}"
        )
    # In `vars`, because Keras would track an attribute.
    known = vars(graph).get("_keras_tfm_interface")
    if known is None or known.model is not graph:
        known = vars(graph)["_keras_tfm_interface"] = Interface(graph)
    return known


class _Reading(NamedTuple):
    """Properties of an input according to one layer that reads it."""

    vocabulary_size: int | None = None
    masked_id: int | None = None
    rule: str | None = None  # where the padding id is padding, unless everywhere
    has_rule: bool = False  # False for layers that do not decide where padding is
    is_segments: bool = False
    end_id: int | None = None
    placeholder: Placeholder | None = None
    sees_later: bool = False
    is_pixels: bool = False
    audio: AudioLayer | None = None


def _lack_of(model: object) -> str:
    """Why a model is not read as a functional one."""
    if not isinstance(model, keras.Model):
        return ""
    if type(model).call is not keras.Sequential.call:
        return (
            " with a call method of its own: give keras.Model(x, model(x)) of a new "
            "x = keras.Input(...)"
        )
    return " without inputs: make keras.Input its first layer"


def _read_inputs(model: keras.Model) -> dict[str, Input]:
    """The inputs of a functional model, by name."""
    specs = _specs(model)
    names = {id(x): name for name, x in specs.items()}
    readings: dict[str, list[_Reading]] = {name: [] for name in specs}
    for operation in model.operations:
        inner: list[Input] = []
        graph = functional_of(operation)
        if isinstance(graph, keras.Model) and hasattr(graph, "operations"):
            known = {id(x.spec): x for x in interface_of(graph).inputs.values()}
            inner = [known[id(x)] for x in keras.tree.flatten(graph.input)]
        for node in calls_of(operation):
            last = len(node.input_tensors) - 1
            for place, x in enumerate(node.input_tensors):
                if id(x) in names:
                    reading = (
                        _Reading(
                            inner[place].vocabulary_size,
                            inner[place].masked_id,
                            placeholder=inner[place].placeholder,
                            sees_later=inner[place].sees_later,
                            is_pixels=inner[place].is_pixels,
                            audio=inner[place].audio,
                        )
                        if place < len(inner)  # and no mask after them
                        else _reading(operation, place, place == last, node.input_tensors)
                    )
                    readings[names[id(x)]].append(reading)
    head = head_of(model)
    reads_last = (
        head is not None
        and head.kind == "sequence_classifier"
        and head.arguments.get("pooling") == "last"
    )
    is_shifted = identity_of(model).family in SHIFTED
    inputs = {}
    for name, found in readings.items():
        marked = {x.placeholder for x in found if x.placeholder is not None}
        placeholder = marked.pop() if len(marked) == 1 else None
        rules = {x.rule for x in found if x.has_rule or not is_shifted}
        rule = rules.pop() if len(rules) == 1 else None
        inputs[name] = Input(
            name,
            specs[name],
            min((x.vocabulary_size for x in found if x.vocabulary_size is not None), default=None),
            _masked_id(model, name, [x.masked_id for x in found if x.masked_id is not None]),
            "by_id" if reads_last and rule == "ends" else rule,
            end_id=next((x.end_id for x in found[::-1] if x.end_id is not None), None),
            placeholder=placeholder,
            sees_later=any(x.sees_later for x in found),
            is_pixels=bool(found) and all(x.is_pixels for x in found),
            audio=found[0].audio if found and all(x.audio is not None for x in found) else None,
        )
    segments = {name for name, found in readings.items() if any(x.is_segments for x in found)}
    return inputs | _derived_inputs(inputs, segments)


def _specs(model: keras.Model) -> dict[str, keras.KerasTensor]:
    """The symbolic inputs by name."""
    struct = model.input
    values = list(struct.values()) if isinstance(struct, dict) else struct
    for x in values if isinstance(values, list | tuple) else [values]:
        if not isinstance(x, keras.KerasTensor):
            raise TypeError(
                "expected a model whose inputs are one tensor, a list of them, or a dictionary, "
                f"got {type(x).__name__} among them"
            )
        if x.dtype == "string":
            raise TypeError(
                f"input {producer(x).operation.name!r} of {model.name} takes strings, but exported "
                "files and generation take numbers: leave layers such as StringLookup and "
                "TextVectorization out of the model, and give it the ids that they return"
            )
    if isinstance(struct, dict):  # not flattened, which would sort it
        return dict(struct)
    # An input without a name has the name of its layer.
    return {producer(x).operation.name: x for x in model.inputs}


def _reading(
    operation: keras.Operation, place: int, is_last: bool, tensors: Sequence[keras.KerasTensor]
) -> _Reading:
    """Properties of the layer's argument number `place` of `tensors`."""
    if isinstance(operation, TokenEmbedding | TokenMask):
        is_embedding = isinstance(operation, TokenEmbedding)
        own = operation.mask_id if is_embedding else operation.pad_id
        is_known = own is not None and own >= 0 and operation.padding != "anywhere"
        rule = operation.padding if is_known else None
        if is_embedding and place == 0:
            return _Reading(operation.vocabulary_size, own, rule, has_rule=True)
        return _Reading(rule=rule, has_rule=True)
    if isinstance(operation, keras.layers.Embedding) and place == 0:
        return _Reading(operation.input_dim, 0 if operation.mask_zero else None)
    if isinstance(operation, SegmentEmbedding) and place > 0:
        return _Reading(operation.num_segments if place == 1 else None, is_segments=True)
    if isinstance(operation, PadTokens):
        return _Reading(operation.vocabulary_size, operation.pad_id)
    if isinstance(operation, EndTokenPooling) and is_last:
        return _Reading(end_id=operation.end_id)
    if isinstance(operation, ReplacePlaceholders) and place == 1:
        found = Placeholder(operation.token_id, tensors[2].shape[1], operation.group)
        return _Reading(placeholder=found)
    if isinstance(operation, PlaceholderRuns):
        return _Reading(sees_later=True)
    if isinstance(operation, AudioLayer):
        return _Reading(audio=operation)
    return _Reading(is_pixels=isinstance(operation, ImageNormalization))


def _masked_id(model: keras.Model, name: str, ids: Sequence[int]) -> int | None:
    for value in ids:
        if value != ids[0]:
            raise ValueError(
                f"input {name!r} of {model.name} must have one padding id, "
                f"but its embeddings mask {ids[0]} and {value}"
            )
    return ids[0] if ids else None


def _derived_inputs(inputs: Mapping[str, Input], segments: Collection[str]) -> dict[str, Input]:
    """The inputs of segments and masks, with their tokens' name; none if it is ambiguous."""
    rows = [x for x in inputs.values() if len(x.spec.shape) == 2]
    masks = {x.name for x in rows if x.name in _MASKS}
    segments = {
        x.name
        for x in rows
        if x.name not in masks and (x.name in segments or (x.takes_ids and x.name in _SEGMENTS))
    }
    others = [x for x in rows if x.takes_ids and x.name not in segments | masks]
    ids = [x for x in others if x.vocabulary_size is not None] or others
    if len(ids) != 1:
        return {}
    tokens = ids[0].name
    return {
        **{name: replace(inputs[name], segments_of=tokens) for name in segments},
        **{name: replace(inputs[name], mask_of=tokens) for name in masks},
    }


def _is_as_before(short: np.ndarray, long: np.ndarray) -> bool:
    """Whether outputs are equal up to float32 rounding and 0.1% of their standard deviation."""
    if short.shape != long.shape:
        long = long[:, : short.shape[1]]
    finite = np.isfinite(short)
    if not np.array_equal(short[~finite], long[~finite]):
        return False
    numbers = short[finite]
    allowed = 1e-3 * (numbers.std() if numbers.size else 0.0) + 1e-5 * np.abs(numbers)
    return bool((np.abs(numbers - long[finite]) <= allowed).all())
