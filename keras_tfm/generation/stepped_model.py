"""A model split in two: the layers that run once per input, and those that run in every step."""

import itertools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.generation.interface import interface_of
from keras_tfm.generation.logits import check_logits
from keras_tfm.generation.shared_traces import SharedTraces
from keras_tfm.generation.step_rules import keras_layers as keras_layers
from keras_tfm.generation.step_rules.step_rule import give_rules
from keras_tfm.keras_internals import (
    Node,
    accepts_training,
    functional_of,
    get_mask,
    is_functional,
    nodes_in_order,
    set_mask,
    sublayers,
)
from keras_tfm.layers import ConcatenatePrefix, RemovePrefix
from keras_tfm.layers.positions.position_embedding import PositionTable
from keras_tfm.layers.types import Arguments, Tensor
from keras_tfm.models.checked_inputs import check_keys
from keras_tfm.models.identity import Marker

# Function of a layer, its positional arguments and its keyword arguments that calls the layer.
LayerCall = Callable[[Any, tuple[Any, ...], Arguments], Any]
# The attributes of layers that hold token ids.
_NAME_OF_IDS = re.compile("(^|_)(ids?|tokens?)$")


class Call(NamedTuple):
    """One call of a layer or operation in the model's graph, with nested models expanded.

    Attributes:
        node: Keras's record of the call.
        reads: dict from the `id` of a symbolic input to the number of the value that it reads.
        makes: list of the numbers of the values that it returns.
        context: dict, the keyword arguments that Keras would pass on: `training`, if it is taken.
    """

    node: Node
    reads: dict[int, int]
    makes: list[int]
    context: dict[str, bool]


class SteppedModel:
    """A functional model that steps one of its inputs a few tokens at a time.

    The layers that depend on this input are found once, in the model's graph. `step` runs them and
    `encode` runs the others, so an encoder runs once per generation, on every backend. Nested
    functional models are expanded.

    Args:
        model: functional model.
        target: str, name of the stepped input. Default: "target", or the only input.

    Raises:
        TypeError: the model is not functional, or its class has a `call` of its own.
        ValueError: the model has no such input.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.generation import SteppedModel
    >>> from keras_tfm.layers import DecodingScope
    >>> from keras_tfm.models import transformer
    >>> model = transformer(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> stepped = SteppedModel(model)
    >>> encoded = stepped.encode({"source": np.array([[3, 4, 5]], "int32")})
    >>> cache = None
    >>> for position, token in enumerate([1, 6, 7]):
    ...     with DecodingScope(cache, position=position, length=3) as scope:
    ...         logits = stepped.step(encoded, np.array([[token]], "int32"))
    ...     cache = scope.cache
    >>> tuple(logits.shape)
    (1, 1, 11)
    """

    def __init__(self, model: keras.Model, target: str | None = None):
        interface = interface_of(model)
        graph = interface.model
        self.model = graph
        if not is_functional(graph):
            raise TypeError(
                f"{model.name} cannot be stepped: {type(model).__name__} has a call method of its "
                "own, and the steps are those of its graph: give the model that calls it, "
                "keras.Model(x, model(x)) of a new x = keras.Input(...)"
            )
        self.target = interface.find_target(target)
        self._specs = {name: x.spec for name, x in interface.inputs.items()}
        self._count = 0
        self._inputs = {name: self._number() for name in self._specs}
        numbers = {id(x): self._inputs[name] for name, x in self._specs.items()}
        self._calls: list[Call] = []
        self._outputs = self._expand(graph, numbers)
        for call in self._calls:
            if not set(self._outputs).isdisjoint(call.makes):
                self._check_output(call.node.operation)
        self.encoding, self.stepping = self._divide()
        for call in self.stepping:
            give_rules(call.node.operation)

    @staticmethod
    def _check_output(operation: keras.Operation) -> None:
        """Raises unless what an operation returns can be an output."""
        check_logits(operation)

    def _number(self) -> int:
        self._count += 1
        return self._count - 1

    def _expand(self, model: keras.Model, numbers: dict[int, int]) -> list[int]:
        """Lists the calls of a model with numbered inputs; returns the numbers of its outputs."""
        for node in nodes_in_order(model):
            inputs, outputs = node.input_tensors, node.output_tensors
            reads = {id(x): numbers[id(x)] for x in inputs}
            inner = functional_of(node.operation)
            if is_functional(inner) and _is_plain_call(node):
                given = zip(inner.inputs, keras.tree.flatten(node.arguments.args), strict=True)
                makes = self._expand(inner, {id(x): numbers[id(y)] for x, y in given})
            elif isinstance(inner, Marker):
                makes = list(reads.values())
            else:
                makes = [self._number() for _ in outputs]
                context = {"training": False} if accepts_training(inner) else {}
                self._calls.append(Call(node, reads, makes, context))
            numbers.update((id(x), number) for x, number in zip(outputs, makes, strict=True))
        return [numbers[id(x)] for x in model.outputs]

    def _divide(self) -> tuple[list[Call], list[Call]]:
        """The calls of `encode` and those of `step`."""
        after = {self._inputs[self.target]}
        stepping = []
        for call in self._calls:
            if not after.isdisjoint(call.reads.values()):
                after.update(call.makes)
                stepping.append(call)
        made = {number for call in stepping for number in call.makes} | {self._inputs[self.target]}
        wanted = {number for call in stepping for number in call.reads.values()}
        wanted = (wanted | set(self._outputs)) - made
        # In the order of the calls. The numbers are the names of the encoded values.
        self._encoded = sorted(wanted)
        encoding = []
        for call in reversed(self._calls):
            if not wanted.isdisjoint(call.makes):
                wanted.update(call.reads.values())
                encoding.append(call)
        return encoding[::-1], stepping

    def encode(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Runs the layers that do not depend on the stepped input.

        Args:
            inputs: dict of all inputs except the stepped one.

        Returns:
            A dict of the tensors that the steps read, and their masks.

        Raises:
            ValueError: an input is missing.
        """
        check_keys(self.model.name, list(self._specs), list({**inputs, self.target: None}))
        values = {
            self._inputs[name]: self._convert(name, x)
            for name, x in inputs.items()
            if name in self._inputs and name != self.target
        }
        self._run(self.encoding, values)
        encoded = {}
        for number in self._encoded:
            encoded[str(number)] = x = values[number]
            mask = get_mask(x)
            if mask is not None:
                encoded[f"{number}_mask"] = mask
        return encoded

    def place_named_ids(self, ids: np.ndarray, known: np.ndarray) -> None:
        """Writes token ids that the model contains into the second halves of the rows.

        They are constants of operations (`ops.equal(tokens, 900)`), and attributes of layers whose
        names end in "id" or "token" (`separator_id`). Random ids would rarely include them.

        Args:
            ids: (B, T, ...), changed in place: the rows get one id each, in turns.
            known: array of int, the ids that may be written.
        """
        found: dict[int, None] = {}  # in the order of the calls
        for call in self.stepping:
            arguments, attributes = call.node.arguments, vars(call.node.operation)
            values = [*arguments.args, *arguments.kwargs.values()]
            values += [x for name, x in attributes.items() if _NAME_OF_IDS.search(name)]
            numbers = (x for x in keras.tree.flatten(values) if isinstance(x, int | np.integer))
            found.update(dict.fromkeys(int(x) for x in numbers if x is not True))
        rows, length = ids.shape[:2]
        places = itertools.product(range(length // 2, length - 1), range(rows))
        named = [x for x in found if x in known]
        for (position, row), number in zip(places, named, strict=False):
            ids[row, position] = number

    def input_name(self, name: str) -> str | None:
        """The input that a value of `encode` is; None for one that layers compute.

        Args:
            name: str, the value's name in the result of `encode`.
        """
        names = {str(number): name for name, number in self._inputs.items()}
        return names.get(name)

    def step(
        self,
        encoded: dict[str, Tensor],
        tokens: Tensor,
        every: bool = False,
        call: LayerCall | None = None,
    ) -> Tensor:
        """The model's outputs for n tokens. Call it inside a `DecodingScope`.

        Args:
            encoded: dict, the result of `encode`.
            tokens: (B, n), int32, values of the stepped input.
            every: bool, whether to return the outputs of all calls, in the order of `stepping`.
            call: function of a layer, its positional and its keyword arguments, that calls the
                layer. Default: calls it; in a TensorFlow graph equal blocks share a trace.
        """
        values = self._step_values(encoded, tokens)
        self._run(self.stepping, values, call or _sharing_call())
        if every:
            return [values[number] for call in self.stepping for number in call.makes]
        flat = [values[number] for number in self._outputs]
        return keras.tree.pack_sequence_as(self.model.output, flat)

    def step_partly(
        self, encoded: dict[str, Tensor], tokens: Tensor
    ) -> tuple[Tensor, Callable[[Tensor], list[Tensor]]]:
        """The first output for n tokens, and a function for the others at one of the tokens.

        Args:
            encoded: dict, the result of `encode`.
            tokens: (B, n), int32, values of the stepped input.

        Returns:
            The first output (B, n, ...), and a function of the index of a token, () int32, that
            runs the layers that the first output does not need, and returns the other outputs
            (B, 1, ...).
        """
        values = self._step_values(encoded, tokens)
        first, *others = self._outputs
        needed, before, after = {first}, [], []
        for call in reversed(self.stepping):
            if needed.isdisjoint(call.makes):
                after.append(call)
            else:
                needed.update(call.reads.values())
                before.append(call)
        self._run(before[::-1], values, _sharing_call())

        def rest(index: Tensor) -> list[Tensor]:
            made = {number for call in before for number in call.makes}
            read = {number for call in after for number in call.reads.values()}
            here = dict(values)
            for number in (read | set(others)) & made:
                x = values[number]
                batch, _, *sizes = ops.shape(x)
                here[number] = ops.slice(x, (0, index, *(0 for _ in sizes)), (batch, 1, *sizes))
            self._run(after[::-1], here)
            return [here[number] for number in others]

        return values[first], rest

    def _step_values(self, encoded: dict[str, Tensor], tokens: Tensor) -> dict[int, Tensor]:
        """The values that a step begins with, by number."""
        values = {self._inputs[self.target]: self._convert(self.target, tokens)}
        for number in self._encoded:
            values[number] = x = encoded[str(number)]
            mask = encoded.get(f"{number}_mask")
            if mask is not None:
                set_mask(x, mask)
        return values

    def _convert(self, name: str, x: Tensor) -> Tensor:
        return ops.convert_to_tensor(x, dtype=self._specs[name].dtype)

    @staticmethod
    def _run(
        calls: list[Call], values: dict[int, Tensor], call_layer: LayerCall | None = None
    ) -> None:
        for call in calls:
            layer = call.node.operation
            here = {x: values[number] for x, number in call.reads.items()}
            args, kwargs = call.node.arguments.fill_in(here)
            kwargs = {**kwargs, **call.context}
            y = call_layer(layer, args, kwargs) if call_layer else layer(*args, **kwargs)
            values.update(zip(call.makes, keras.tree.flatten(y), strict=True))


def _sharing_call() -> LayerCall | None:
    """How a step calls layers in a TensorFlow graph, where equal blocks share a trace."""
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    return None if tf.executing_eagerly() else SharedTraces().call


def _is_plain_call(node: Node) -> bool:
    """Whether a nested model was called with its inputs and their own masks alone."""
    arguments = node.arguments
    if len(arguments.args) != 1:
        return False
    masks = [get_mask(x) for x in keras.tree.flatten(arguments.args)]
    return not any(
        isinstance(x, keras.KerasTensor) and not any(x is mask for mask in masks)
        for x in keras.tree.flatten(arguments.kwargs)
    )


def table_length(model: keras.Model, target: str | None = None) -> int | None:
    """The length of the shortest table of learned positions in the layers that are stepped.

    Args:
        model: functional.
        target: the name of the stepped input.

    Returns:
        The number of positions of the stepped input, after a prefix; None without a table.

    >>> from keras_tfm.generation.stepped_model import table_length
    >>> from keras_tfm.models import gpt
    >>> table_length(gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=7))
    7
    """
    lengths, prefix = [], 0
    for call in SteppedModel(model, target).stepping:
        layer = call.node.operation
        if isinstance(layer, ConcatenatePrefix):
            prefix += call.node.input_tensors[0].shape[1] or 0
        elif isinstance(layer, RemovePrefix):
            prefix -= call.node.input_tensors[0].shape[1] or 0
        elif isinstance(layer, keras.Layer):
            tables = [x for x in (layer, *sublayers(layer)) if isinstance(x, PositionTable)]
            lengths += [x.max_length - prefix for x in tables]
    return min(lengths, default=None)


def positions_to_check(model: keras.Model, target: str | None, length: int) -> int:
    """The number of positions that a generation of `length` tokens steps through.

    The last token is not read, so a table may have one position less.

    >>> from keras_tfm.generation.stepped_model import positions_to_check
    >>> from keras_tfm.models import gpt
    >>> model = gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=7)
    >>> positions_to_check(model, None, 8), positions_to_check(model, None, 5)
    (7, 5)
    """
    return length - 1 if table_length(model, target) == length - 1 else length
