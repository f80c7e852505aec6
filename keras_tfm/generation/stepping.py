"""Checks that a stepped model gives the same logits as a full pass."""

import contextlib
import itertools
import math
import re
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.generation.interface import interface_of
from keras_tfm.generation.shared_traces import FirstOfEqual
from keras_tfm.generation.stepped_model import LayerCall, SteppedModel
from keras_tfm.generation.tokenizers.keras_hub import keras_hub_hint
from keras_tfm.keras_internals import get_mask, set_mask, sublayers
from keras_tfm.layers import DecodingScope
from keras_tfm.layers.embeddings.replace_placeholders import any_placeholders
from keras_tfm.layers.types import Arguments, Tensor
from keras_tfm.matmul_precision import full_precision, product_rounding
from keras_tfm.models.without_storage import with_largest_weight

# The tokens of a step, at most: its scores against all cached keys must fit in memory.
_CHUNK = 1024
# With more numbers, the median is that of a sample.
_SAMPLE = 1 << 20
# Relative rounding of products up to which single logits can be compared: float32, not TF32.
_EXACT = 1e-5
# The RMS difference of a step from the full pass, in units of what rounding the layer's inputs once
# changes: 0.6 at most in 48 models of three families, with products of 10 and of 7 bits.
_NOISE = 2.0
# The largest difference of logits in half precision, within which each layer is still compared.
_HALF = 5e-2
# The number of positions at which layers are compared if all logits agree within `_HALF`: the
# outputs of all layers are in memory.
_SHARP = 64
# The RMS change of a layer's outputs by later tokens, in units of the rounding of its inputs.
_LATER = 0.25
# How far the sum of probabilities is from 1, in half precision, too.
_OF_ONE = 1e-2
# How a cache's error ends, since outside of this check another model is the usual cause.
_ANOTHER_MODEL = ": it was made by another model"


def check_stepping(
    model: keras.Model, target: str | None = None, length: int = 8, tolerance: float = 1e-3
) -> None:
    """Raises unless `model` gives the same logits stepped as in a full pass, on random inputs.

    A layer that sees later positions of the target (a convolution with `padding="same"`, attention
    that is not causal), or mixes positions without a cache, would silently generate wrong tokens.
    This function compares the two passes, and names the first layer whose output differs.

    Both are computed at the backend's full precision, without TF32. If products are rounded all the
    same (a half-precision policy, or the logits differ on a device without float32 products), each
    layer is compared on its own, stepped on the inputs that it has in the full pass. The root mean
    square of its relative differences at a position may then be twice what rounding its inputs once
    more changes, which a mixture of positions exceeds. Besides, other tokens in the second half
    must not change a layer's outputs in the first half: the full passes round alike.

    The random ids cover the vocabulary from its first to its last id. They include ids that the
    model itself contains: constants of operations (`ops.equal(tokens, 900)`) and attributes of
    layers such as `separator_id`.

    Trainable weights that are all about 0 are random numbers during the check: a branch that a new
    model multiplies by 0 (ReZero, LayerScale) would hide what it mixes until it is trained.

    Args:
        model: functional model.
        target: str, name of the stepped input. Default: "target", or the only input.
        length: int, number of positions to compare. Use the length that will be generated, because
            a convolution may reach far back. The first three and the last two are single steps.
        tolerance: float, the largest allowed difference, relative to the larger of the logit and
            the median logit. Rounding alone gives 1e-6 in float32 and 1e-2 in bfloat16.

    Raises:
        ValueError: a layer differs; the error names the first one. Or the outputs are
            probabilities, not logits.

    Example:

    >>> from keras_tfm.generation import check_stepping
    >>> from keras_tfm.models import transformer
    >>> check_stepping(transformer(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16))
    """
    stepped = SteppedModel(model, target)
    interface_of(model).check_side_inputs(stepped.target)
    # Checked once per graph. The ids of the variables are in the key because LoRA and `quantize`,
    # which change what a layer computes, replace variables.
    checked = vars(model).setdefault("_keras_tfm_checked", set())
    key = (stepped.target, length, tolerance, *((id(x), x.trainable) for x in model.variables))
    if key in checked:
        return
    inputs = _random_inputs(stepped, length)
    call = _WithoutZeros(tolerance).call
    is_half = any("float16" in str(layer.compute_dtype) for layer in model.layers)  # and bfloat16
    with full_precision(), with_largest_weight(model), any_placeholders():
        agree, failure = False, None
        try:
            largest = max(tolerance, _HALF) if is_half else tolerance
            agree = _agree(stepped, inputs, length, largest, call)
        except _BadOutputs as error:
            raise ValueError(f"{model.name} cannot be stepped: {error}") from None
        except Exception as error:
            failure = error
        if agree and not is_half:
            checked.add(key)
            return
        rounding = _rounding(model)
        if agree and length > _SHARP:
            length = _SHARP
            inputs = _random_inputs(stepped, length)
        try:
            fault = _first_fault(stepped, inputs, length, tolerance, rounding, call, agree)
        except Exception as error:
            fault, failure = None, failure or error
    if failure is None and fault is None and rounding > _EXACT:
        checked.add(key)
        return
    if failure is not None and fault is None:
        reason = first_line(failure)
    else:
        reason = (fault or _Fault(model.layers[-1].name)).reason
    message = f"{model.name} cannot be stepped: {reason}"
    raise ValueError(message + keras_hub_hint(model)) from failure


class _BadOutputs(Exception):
    """The outputs of a full pass are no logits."""


class _Fault(NamedTuple):
    """A layer that cannot be stepped.

    Attributes:
        layer: its name.
        error: what it raises; None: it gives another result.
        advice: str, what may be wrong with the layers inside it.
    """

    layer: str
    error: Exception | None = None
    advice: str = ""

    @property
    def reason(self) -> str:
        if self.error is None:
            return (
                f"a token at a time, layer {self.layer!r} gives another result than over the whole "
                "sequence, so it mixes positions of the target, or counts them, without a "
                f"DecodingScope{self.advice}"
            )
        raised = first_line(self.error)
        if repr(self.layer) in raised:
            return raised
        # The cache is that of the step before: the layer, not the model, is another one.
        cause = raised.partition(_ANOTHER_MODEL)[0]
        if cause != raised:
            return (
                f"a token at a time, layer {self.layer!r} does not call the layers inside it as in "
                f"the step before, each on inputs (batch, tokens, ...): {cause}"
            )
        return f"a token at a time, layer {self.layer!r} fails: {raised}"


class _WithoutZeros:
    """Calls layers with random numbers in place of trainable weights that are all about 0.

    Only these weights are copied, and only those of the layers that are called.

    Args:
        largest: float, the largest absolute value of a weight that is about 0.
    """

    def __init__(self, largest: float):
        self._largest = largest
        # By the id of a variable; None: it is left as it is.
        self._values: dict[int, np.ndarray | None] = {}

    def call(self, layer: Any, args: tuple[Any, ...], kwargs: Arguments) -> Tensor:
        """`layer(*args, **kwargs)`, with these numbers."""
        variables = getattr(layer, "trainable_variables", ())  # an operation has none
        values = [(x, self._value(x)) for x in variables]
        replaced = [(x, value) for x, value in values if value is not None]
        with keras.StatelessScope(replaced) if replaced else contextlib.nullcontext():
            return layer(*args, **kwargs)

    def _value(self, variable: keras.Variable) -> np.ndarray | None:
        known, shape = self._values, tuple(variable.shape)
        if id(variable) not in known:
            known[id(variable)] = None
            if self._is_zero(variable):
                # Positive and below 1: a layer may take a root, or multiply its state by it.
                generator = np.random.default_rng(zlib.crc32(variable.path.encode()))
                scale = 0.5 / math.prod(shape[:-1]) ** 0.5
                known[id(variable)] = scale * generator.uniform(0.2, 1.0, shape)
        return known[id(variable)]

    def _is_zero(self, variable: keras.Variable) -> bool:
        if "float" not in variable.dtype or 0 in variable.shape:
            return False
        x = variable.value
        first = x[(0,) * (len(x.shape) - 1)][:16] if len(x.shape) else x
        # The first numbers tell of most weights that they are not 0. No absolute values of all
        # others, which are a copy.
        return all(
            max(float(_array(ops.max(y))), -float(_array(ops.min(y)))) <= self._largest
            for y in (first, x)
        )


def _rounding(model: keras.Model) -> float:
    """The relative rounding of the inputs of the model's matrix products."""
    dtypes = {str(layer.compute_dtype) for layer in model.layers}
    rounding = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
    return max(product_rounding(), *(rounding.get(name, 0.0) for name in dtypes))


def _random_inputs(stepped: SteppedModel, length: int) -> dict[str, Tensor]:
    model, target = stepped.model, stepped.target
    generator = np.random.default_rng(0)
    inputs = {}
    for name, known in interface_of(model).inputs.items():
        x, size = known.spec, known.vocabulary_size
        # Another length than the target's, but not a longer one: position tables may end there.
        unknown = length if name == target else max(2, length - 1)
        if known.audio is not None:
            unknown = max(unknown, 2 * known.audio.shortest)  # some frames
        shape = tuple(2 if i == 0 else d or unknown for i, d in enumerate(x.shape))
        if name == target and x.shape[1] is not None:
            raise ValueError(
                f"{model.name} cannot be stepped: its input {target!r} has a fixed length, "
                f"{x.shape[1]}; declare keras.Input((None,)), which also accepts a single token"
            )
        if "int" in x.dtype or size is not None:
            # All ids about equally often, because a sequence of equal ids looks the same in any
            # order. Id 0, which may be padding, only if there are no others.
            size = size or 3
            first = min(1, max(size - 2, 0))
            known_ids = np.arange(first, size)
            if size > 2:  # a full pass takes it for padding at the ends of a row, a step does not
                known_ids = known_ids[known_ids != (known.masked_id or 0)]
            count = math.prod(shape)
            spread = known_ids
            if count < len(known_ids):  # special tokens often have the last ids
                spread = known_ids[np.linspace(0, len(known_ids) - 1, count).astype(int)]
            ids = generator.permutation(spread[np.arange(count) % len(spread)])
            inputs[name] = ids.reshape(shape).astype(x.dtype)
            if name == target:
                stepped.place_named_ids(inputs[name], known_ids)
            if known.placeholder is not None:  # in several steps, and no two in a row
                others = known_ids[known_ids != known.placeholder.token_id]
                inputs[name][inputs[name] == known.placeholder.token_id] = others[0]
                inputs[name][:, 1::2] = known.placeholder.token_id
        else:
            inputs[name] = generator.normal(size=shape).astype(x.dtype)
    return {name: ops.convert_to_tensor(x) for name, x in inputs.items()}


def _array(x: Tensor) -> np.ndarray:
    return ops.convert_to_numpy(ops.cast(x, "float32"))


def _agree(
    stepped: SteppedModel,
    inputs: dict[str, Tensor],
    length: int,
    tolerance: float,
    call: LayerCall,
) -> bool:
    """Whether the outputs of the full pass and of the steps are equal.

    Those of a step are compared at once: a language model's logits take more memory than a block.

    Raises:
        _BadOutputs: the outputs are not numbers, or the first are probabilities.
    """

    def outputs(encoded: dict[str, Tensor], tokens: Tensor) -> list[np.ndarray]:
        # Equal blocks can all be stepped if the first one can.
        found = stepped.step(encoded, tokens, call=FirstOfEqual(call).call)
        return [_array(y) for y in keras.tree.flatten(found)]

    cache, agree = None, True
    encoded = stepped.encode(inputs)
    tokens = inputs[stepped.target]
    whole = outputs(encoded, tokens)
    if _are_probabilities(whole[0]):
        raise _BadOutputs(
            "generation needs a model that returns logits, got probabilities: at each position "
            "they sum to 1; remove the softmax and train with from_logits=True"
        )
    sizes = [_size(y) for y in whole]
    for start, end in _chunks(length):
        with DecodingScope(cache, position=start, length=length) as scope:
            parts = outputs(encoded, tokens[:, start:end])
        cache = scope.cache
        agree = agree and all(
            _is_part(part, y, start, end, tolerance, size)
            for part, y, size in zip(parts, whole, sizes, strict=True)
        )
    if not all(np.isfinite(y).any() and not np.isnan(y).any() for y in whole):
        raise _BadOutputs("its outputs are NaN or not finite")
    return agree


def _are_probabilities(outputs: np.ndarray) -> bool:
    """Whether numbers (B, T, V) are distributions over the last axis."""
    if outputs.ndim != 3 or outputs.shape[-1] < 2 or (outputs < 0).any():
        return False
    return bool((np.abs(outputs.sum(-1) - 1) < _OF_ONE).all())


def first_line(error: Exception) -> str:
    """The cause of an error, without the arguments that Keras lists."""
    text = re.sub(r"\x1b\[\d+m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith("Exception encountered")]
    line = (telling or lines or [type(error).__name__])[0]
    # TensorFlow names the operation before and after its message.
    return re.sub(r"^\{\{function_node .*?\}\} | \[Op:\w+\]( name:)?$", "", line)


def _chunks(length: int) -> Iterator[tuple[int, int]]:
    """Single steps at both ends, and between them steps of up to `_CHUNK` tokens."""
    between = range(3, length - 2, _CHUNK)
    ends = sorted({*range(min(3, length) + 1), *between, *range(max(length - 2, 0), length + 1)})
    return itertools.pairwise(ends)


def _is_part(
    part: np.ndarray, whole: np.ndarray, start: int, end: int, tolerance: float, size: float
) -> bool:
    """Whether no number of a step (B, n, ...) differs from those of the full pass (B, T, ...)."""
    if part.ndim < 2 or whole.ndim < 2 or part.shape != whole[:, start:end].shape:
        return False
    # One position at a time: a copy of all logits is large.
    return all(
        bool((_differences(whole[:, start + i], part[:, i], size) <= tolerance).all())
        for i in range(end - start)
    )


def _size(whole: np.ndarray) -> float:
    """The median size of the numbers that are finite and not 0; of logits, of some of them."""
    some = whole.reshape(-1)[:: 1 + whole.size // _SAMPLE]
    size = np.abs(some[np.isfinite(some) & (some != 0)])
    return float(np.median(size)) if size.size else 0.0


def _differences(whole: np.ndarray, part: np.ndarray, size: float) -> np.ndarray:
    """|part - whole| relative to the larger of |whole| and `size`; inf where one is not finite.

    Relative to the number or the median number, since a few logits may be -1e9 (a forbidden token)
    and others 0.
    """
    finite = np.isfinite(whole) & np.isfinite(part)
    relative = np.where(whole == part, 0.0, np.inf)
    difference = np.abs(part[finite] - whole[finite])
    scale = np.maximum(np.abs(whole[finite]), size)
    relative[finite] = np.divide(
        difference, scale, out=np.where(difference > 0, np.inf, 0.0), where=scale > 0
    )
    return relative


def _first_fault(
    stepped: SteppedModel,
    inputs: dict[str, Tensor],
    length: int,
    tolerance: float,
    rounding: float,
    call: LayerCall,
    agree: bool,
) -> _Fault | None:
    """The first layer that differs when it is stepped on the inputs that it has in the full pass.

    Rounding does not accumulate from layer to layer. What no layer raised is raised.

    Where products are rounded, outputs that change with later tokens differ, too: both full passes
    run the same kernels on the same shapes, so that those of a causal layer are equal.

    Args:
        agree: bool, whether the logits agree. Then outputs that cannot be compared, because they
            have no axis of positions, are a fault only if an output after them differs.
    """
    calls = _ComparedCalls(length, tolerance, rounding, call)
    cache = None
    try:
        encoded, tokens = stepped.encode(inputs), inputs[stepped.target]
        stepped.step(encoded, tokens, every=True, call=calls.record)
        for start, end in _chunks(length):
            calls.start(start, end)
            with DecodingScope(cache, position=start, length=length) as scope:
                stepped.step(encoded, tokens[:, start:end], every=True, call=calls.compare)
            cache = scope.cache
        if rounding > _EXACT:
            calls.start(0, length // 2)
            later = ops.concatenate(
                [tokens[:, : length // 2], ops.flip(tokens[:, length // 2 :], 0)], axis=1
            )
            stepped.step(encoded, later, every=True, call=calls.compare_earlier)
    except Exception:
        if not calls.errors and not any(calls.differ):
            raise
    if agree and not calls.errors and not calls.values_differ:
        return None
    for number, (each, differs) in enumerate(zip(stepped.stepping, calls.differ, strict=False)):
        if differs:
            operation = each.node.operation
            return _Fault(operation.name, calls.errors.get(number), _advice(operation))
    return None


def _advice(operation: keras.Operation) -> str:
    """What often is wrong with a layer that is, or has inside, one of Keras."""
    inside = [operation, *sublayers(operation)] if isinstance(operation, keras.Layer) else []
    attention = keras.layers.MultiHeadAttention | keras.layers.GroupQueryAttention
    if any(isinstance(x, attention) for x in inside):
        return (
            ": attention of Keras is stepped with use_causal_mask=True, not with an "
            "attention_mask, see docs/own-layers.md"
        )
    if any(isinstance(x, keras.layers.Embedding) for x in inside):
        return (
            ": positions that it counts from 0 must be those of the scope, as "
            "keras_tfm.layers.PositionEmbedding reads them, see docs/own-layers.md"
        )
    return ""


class _ComparedCalls:
    """The outputs of all calls of a full pass, with which those of each step are compared.

    Where products are rounded, positions are compared by the root mean square of their numbers.
    """

    def __init__(self, length: int, tolerance: float, rounding: float, call: LayerCall):
        self.differ: list[bool] = []
        self.values_differ = False
        self.errors: dict[int, Exception] = {}  # by the number of the call
        self._call = call
        self._whole: list[list[Tensor]] = []
        self._allowed: list[list[float]] = []
        self._length = length
        self._tolerance = tolerance
        self._rounding = rounding
        self._generator = np.random.default_rng(0)

    def record(self, layer: keras.Layer, args: tuple[Any, ...], kwargs: Arguments) -> Tensor:
        """Calls a layer in the full pass."""
        outputs = self._call(layer, args, kwargs)
        flat = keras.tree.flatten(outputs)
        self._whole.append(flat)
        self.differ.append(False)
        allowed = [self._tolerance] * len(flat)
        if self._rounding > _EXACT:
            args, kwargs = keras.tree.map_structure(self._disturb, (args, kwargs))
            again = keras.tree.flatten(self._call(layer, args, kwargs))
            noises = (self._noise(x, y) for x, y in zip(flat, again, strict=True))
            allowed = [max(self._tolerance, _NOISE * max(x, self._rounding)) for x in noises]
        self._allowed.append(allowed)
        return outputs

    def start(self, start: int, end: int) -> None:
        """The next calls are those of the step from position `start` to `end`."""
        self._start, self._end = start, end
        self._number = -1

    def compare(self, layer: keras.Layer, args: tuple[Any, ...], kwargs: Arguments) -> Tensor:
        """Calls a layer in a step; the result is that of the full pass, if it is equal."""
        self._number += 1
        try:
            outputs = self._call(layer, args, kwargs)
        except Exception as error:
            self.differ[self._number], self.errors[self._number] = True, error
            raise
        whole, allowed = self._whole[self._number], self._allowed[self._number]
        flat = keras.tree.flatten(outputs)
        scope = DecodingScope.current()
        if scope is not None and any(map(scope.has_zeros_before, flat)):
            return outputs  # without the zeros, which the convolution after it does not need
        parts = [self._part(*each) for each in zip(whole, flat, allowed, strict=True)]
        # Other layers find the step's cache entry by the keys that this layer returned.
        shared = [scope is not None and scope.shares(x) for x in flat]
        parts = [x if keep else y for x, y, keep in zip(flat, parts, shared, strict=True)]
        return keras.tree.pack_sequence_as(outputs, parts)

    def compare_earlier(
        self, layer: keras.Layer, args: tuple[Any, ...], kwargs: Arguments
    ) -> Tensor:
        """Calls a layer in a full pass with other tokens from position `end` on."""
        self._number += 1
        outputs = self._call(layer, args, kwargs)
        parts = []
        for whole, x in zip(self._whole[self._number], keras.tree.flatten(outputs), strict=True):
            if len(whole.shape) > 1 and whole.shape[1] == self._length and x.shape == whole.shape:
                before = whole[:, : self._end]
                if self._is_equal(before, x[:, : self._end], whole, _LATER * self._rounding):
                    # Without the little that is different, which would add up from layer to layer.
                    later = ops.concatenate([before, x[:, self._end :]], axis=1)
                    x = _with_mask_of(x, later)
                else:
                    self.differ[self._number] = self.values_differ = True
            parts.append(x)
        return keras.tree.pack_sequence_as(outputs, parts)

    def _part(self, whole: Tensor, part: Tensor, allowed: float) -> Tensor:
        """An output's part of the full pass, if the step's is equal."""
        here = whole[:, self._start : self._end] if len(whole.shape) > 1 else None
        same = here is not None and whole.shape[1] == self._length and here.shape == part.shape
        if same and self._is_equal(here, part, whole, allowed):
            return _with_mask_of(part, here)
        self.differ[self._number] = True
        self.values_differ |= same
        return part

    def _is_equal(self, here: Tensor, part: Tensor, whole: Tensor, allowed: float) -> bool:
        relative = _differences(_array(here), _array(part), _size(_array(whole)))
        if self._rounding > _EXACT:
            relative = _root_mean_squares(relative)
        return bool((relative <= allowed).all())

    def _noise(self, x: Tensor, again: Tensor) -> float:
        """The largest relative difference of a position's numbers, by their mean square."""
        x = _array(x)
        return float(_root_mean_squares(_differences(x, _array(again), _size(x))).max())

    def _disturb(self, x: Tensor) -> Tensor:
        """A float tensor whose numbers are rounded up or down, at random."""
        if not hasattr(x, "dtype") or "float" not in keras.backend.standardize_dtype(x.dtype):
            return x
        signs = self._generator.choice([-1, 1], tuple(x.shape))
        factors = ops.convert_to_tensor(1 + self._rounding * signs, dtype=x.dtype)
        return _with_mask_of(x, x * factors)


def _with_mask_of(x: Tensor, y: Tensor) -> Tensor:
    """`y`, with the padding mask of `x`."""
    mask = get_mask(x)
    if mask is not None:
        set_mask(y, mask)
    return y


def _root_mean_squares(x: np.ndarray) -> np.ndarray:
    """(B, n, ...) -> (n,), over all axes but that of positions."""
    return np.mean(x**2, axis=(0, *range(2, x.ndim))) ** 0.5
