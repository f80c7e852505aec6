"""Traces equal blocks of a stack only twice into a TensorFlow graph, for fast compilation.

Adding a few operations to a graph takes Python a millisecond, and a stack may have thirty blocks of
more than a hundred operations each. The first block of a step is traced like any layer; it makes
the tensors that all blocks share (masks, position tables). The second block is traced as a function
of its input, its weights and its KV cache entries, and this function is called for all others.
TensorFlow and XLA inline it.
"""

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras

from keras_tfm.keras_internals import get_mask, set_mask, sublayers
from keras_tfm.layers.decoding.cache import Entry
from keras_tfm.layers.decoding.scope import DecodingScope, current_scope
from keras_tfm.layers.decoding.state import State
from keras_tfm.layers.multi_head_attention.attention_probe import current_probe
from keras_tfm.layers.multi_head_attention.multi_head_self_attention import MultiHeadSelfAttention
from keras_tfm.layers.target import current_target
from keras_tfm.layers.transformer_block import TransformerBlock
from keras_tfm.layers.types import Arguments, Tensor

# Parts of Keras that compute what their configuration says.
_CONFIGURED = (keras.DTypePolicy, keras.quantizers.Quantizer, keras.quantizers.QuantizationConfig)


class _Traced(NamedTuple):
    """A block as a function.

    Attributes:
        function: function of the input, the weights and the block's cache entries; it returns the
            output and what the scope records for each call of an attention layer.
        states: list of `State`, the kind of the entry of each of these calls.
        keeps_mask: bool, whether the output carries the input's mask.
    """

    function: Callable[..., Any]
    states: list[State]
    keeps_mask: bool


class SharedTraces:
    """The traced functions of one step, shared by equal blocks."""

    def __init__(self) -> None:
        self._known: dict[Any, _Traced | None] = {}
        # Objects whose ids are in the keys, kept so that their ids are not reused.
        self._compared: list[Any] = []

    def call(self, layer: keras.Layer, args: tuple[Any, ...], kwargs: Arguments) -> Tensor:
        """`layer(*args, **kwargs)`, with the function of an equal block if there is one."""
        scope = current_scope.get()
        if scope is None or not _may_share(layer, args):
            return layer(*args, **kwargs)
        names = _entry_names(layer)
        taken = scope.upcoming(len(names))
        key, compared = self._key(layer, args, kwargs, scope, taken)
        if key not in self._known:
            self._known[key] = None
            self._compared.append(compared)
            return layer(*args, **kwargs)
        weights = [variable.value for variable in layer.variables]
        traced = self._known[key]
        if traced is None:
            traced = self._known[key] = _trace(layer, args, kwargs, scope, weights, taken)
        y, notes = traced.function(args[0], weights, taken)
        for (entry, new), name, state in zip(notes, names, traced.states, strict=True):
            scope.note(name, state, entry, new)
        if traced.keeps_mask:
            set_mask(y, _mask(args[0], kwargs))
        return y

    def _key(
        self, layer: keras.Layer, args: Any, kwargs: Any, scope: DecodingScope, taken: list[Entry]
    ) -> tuple[Any, Any]:
        """A key that equal calls share, and the objects that it compares by id."""
        x, *others = args
        others = [*others, *kwargs.values(), _mask(x, kwargs)]
        shared = tuple(y if isinstance(y, int | float | str | None) else id(y) for y in others)
        weights = tuple((tuple(w.shape), w.dtype) for w in layer.variables)
        # Only the first block's entry has the padding mask, and that block shares no function.
        entries = tuple(
            tuple((part, tuple(y.shape), y.dtype) for part, y in entry.items() if part != "mask")
            for entry in taken
        )
        key = (
            id(scope), _state(layer), tuple(kwargs), shared, weights, entries,
            tuple(x.shape), x.dtype,
        )  # fmt: skip
        return key, (scope, others)


def _mask(x: Tensor, kwargs: Arguments) -> Tensor | None:
    """The padding mask of a call: the argument `mask` if given, else the mask of `x`."""
    mask = kwargs.get("mask")
    return get_mask(x) if mask is None else mask


def _entry_names(layer: keras.Layer) -> list[str]:
    """The names of the cache entries of a block, in the order of the calls."""
    attention, cross = layer.self_attention, layer.cross_attention
    names = []
    if attention is not None and attention.causal:
        names.append(attention.name)
        if attention.merged:
            names.append(attention.memory_name)
    return names if cross is None else [*names, cross.name]


def _may_share(layer: keras.Layer, args: tuple[Any, ...]) -> bool:
    if current_target.get().is_edge or current_probe.get() is not None:
        return False
    import tensorflow as tf

    return _is_known(layer) and bool(tf.is_symbolic_tensor(args[0]))


def _is_known(layer: keras.Layer) -> bool:
    """Whether a layer is a block without custom layers, whose attributes tell what it computes.

    Keys and values that blocks share are tensors of one graph.
    """
    if not isinstance(layer, TransformerBlock):
        return False
    attention = layer.self_attention
    if attention is not None and (
        not isinstance(attention, MultiHeadSelfAttention) or attention.key_value != "own"
    ):
        return False
    packages = {type(x).__module__.split(".")[0] for x in (layer, *sublayers(layer))}
    return packages <= {"keras", "keras_tfm"}


class FirstOfEqual:
    """Calls only the first of several equal blocks in a row; the others return their input.

    For checking whether a model can be stepped, which has the same answer for one block as for
    thirty.

    Args:
        call: function of a layer, its positional and its keyword arguments, that calls the layer.
    """

    def __init__(self, call: Callable[..., Tensor]):
        self._call_layer = call
        self._made: dict[int, tuple[Any, Tensor, Any]] = {}

    def call(self, layer: keras.Layer, args: tuple[Any, ...], kwargs: Arguments) -> Tensor:
        """The output of a layer, or its input if an equal layer computed it."""
        if not _is_known(layer):
            return self._call_layer(layer, args, kwargs)
        x, *others = args
        others = [*others, *kwargs.values()]
        shapes = tuple((tuple(w.shape), w.dtype) for w in layer.variables)
        key = _state(layer), shapes, tuple(kwargs), tuple(map(id, others))
        made = self._made.get(id(x))
        is_equal = made is not None and made[0] == key
        y = x if is_equal else self._call_layer(layer, args, kwargs)
        self._made[id(y)] = key, y, others  # kept, so that their ids are not reused
        return y


def _trace(
    layer: keras.Layer,
    args: tuple[Any, ...],
    kwargs: Arguments,
    scope: DecodingScope,
    weights: list[Tensor],
    taken: list[dict[str, Tensor]],
) -> _Traced:
    import tensorflow as tf

    x, *others = args
    mask = _mask(x, kwargs)
    variables = layer.variables
    seen: dict[str, Any] = {}

    def block(x: Tensor, weights: list[Tensor], taken: list[dict[str, Tensor]]) -> Any:
        if mask is not None:
            set_mask(x, mask)
        with (
            keras.StatelessScope(zip(variables, weights, strict=True)),
            scope.substitute(taken) as notes,
        ):
            y = layer(x, *others, **kwargs)
        seen["states"] = [x.state for x in notes]
        seen["keeps_mask"] = mask is not None and get_mask(y) is mask
        return y, [(x.before, x.new) for x in notes]

    function = tf.function(block, autograph=False)
    concrete = function.get_concrete_function(x, weights, taken)
    return _Traced(concrete, seen["states"], seen["keeps_mask"])


def _state(layer: keras.Layer) -> Any:
    """What a block computes with, but for the values of its weights: equal blocks have equal ones.

    Its configuration does not tell: two functions of one name, or what was set after the block was
    made, as by `enable_lora` or `models.enable_quantization`.
    """
    layers = [layer, *sublayers(layer)]
    numbers = {id(x): number for number, x in enumerate(layers)}
    return tuple(
        (type(x), *((name, _describe(y, numbers)) for name, y in _attributes(x))) for x in layers
    )


@functools.cache
def _keras_attributes() -> frozenset[str]:
    """The attributes of each layer of Keras; of these, only the policy changes what it computes."""
    return frozenset(vars(keras.layers.Layer())) - {"_dtype_policy"}


def _attributes(layer: keras.Layer) -> list[tuple[str, Any]]:
    known = _keras_attributes()
    return sorted(
        (name, x)
        for name, x in vars(layer).items()
        if name not in known and not name.startswith("_self_")  # TensorFlow's, of its checkpoints
    )


def _describe(x: Any, numbers: dict[int, int]) -> Any:
    """An attribute, where equal blocks have equal ones: functions and other objects by identity."""
    if isinstance(x, weakref.ref):
        x = x()
    if id(x) in numbers:  # a layer of the block, or the block
        return "layer", numbers[id(x)]
    if isinstance(x, keras.Variable):
        return "variable", tuple(x.shape), x.dtype
    if isinstance(x, keras.initializers.Initializer | keras.random.SeedGenerator):
        return None  # the weights are arguments, and nothing is dropped
    if isinstance(x, _CONFIGURED):
        return type(x), _describe(x.get_config(), numbers)
    if isinstance(x, Mapping):
        names = ("name", "shared_object_id", "build_config")
        return tuple((key, _describe(y, numbers)) for key, y in x.items() if key not in names)
    if isinstance(x, list | tuple):
        return tuple(_describe(y, numbers) for y in x)
    if isinstance(x, set | frozenset):
        return frozenset(_describe(y, numbers) for y in x)
    return x if isinstance(x, str | int | float | None) else ("object", id(x))
