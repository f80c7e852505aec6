"""Checks that a stepped model gives the same logits as a full pass."""

import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.generation.keras_hub_models import keras_hub_hint
from keras_tfm.generation.model_inputs import input_specs, vocabulary_sizes
from keras_tfm.generation.shared_traces import FirstOfEqual
from keras_tfm.generation.stepped_model import SteppedModel
from keras_tfm.layers import DecodingScope

# The tokens of a step, at most: its scores against all cached keys must fit in memory.
_CHUNK = 1024


def check_stepping(
    model: keras.Model, target: str | None = None, length: int = 8, tolerance: float = 1e-3
) -> None:
    """Raises unless `model` gives the same logits stepped as in a full pass, on random inputs.

    A layer that mixes positions of the target and does not read the `DecodingScope` (a convolution,
    pooling, attention that is not causal) would silently generate wrong tokens. This function
    compares the two passes, and names the first layer whose output differs.

    Args:
        model: functional model.
        target: str, name of the stepped input. Default: "target", or the only input.
        length: int, number of positions to compare. Use the length that will be generated, because
            a convolution may reach far back. The first three and the last two are single steps.
        tolerance: float, the largest allowed difference, relative to the larger of the logit and
            the median logit. Rounding alone gives 1e-6 in float32 and 1e-2 in bfloat16.

    Raises:
        ValueError: a layer differs; the error names the first one.

    Example:

    >>> from keras_tfm.generation import check_stepping
    >>> from keras_tfm.models import transformer
    >>> check_stepping(transformer(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16))
    """
    stepped = SteppedModel(model, target)
    # Checked once per graph. The ids of the variables are in the key because LoRA and `quantize`,
    # which change what a layer computes, replace variables.
    checked = vars(model).setdefault("_keras_tfm_checked", set())
    key = (stepped.target, length, tolerance, *(id(variable) for variable in model.variables))
    if key in checked:
        return
    inputs = _random_inputs(model, stepped.target, length)
    if any("float16" in str(layer.compute_dtype) for layer in model.layers):  # and bfloat16
        tolerance = max(tolerance, 5e-2)
    whole, steps = _both(stepped, inputs, length)
    if not all(np.isfinite(y).any() and not np.isnan(y).any() for y in whole):
        raise ValueError(f"{model.name} cannot be stepped: its outputs are NaN or not finite")
    if all(_agree(y, parts, tolerance) for y, parts in zip(whole, steps, strict=True)):
        checked.add(key)
        return
    name = _first_difference(stepped, inputs, length, tolerance) or model.layers[-1].name
    raise ValueError(
        f"{model.name} cannot be stepped: a token at a time, layer {name!r} gives another result "
        "than over the whole sequence, so it mixes positions of the target without a DecodingScope"
        + keras_hub_hint(model)
    )


def _random_inputs(model: keras.Model, target: str, length: int) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    sizes = vocabulary_sizes(model)
    inputs = {}
    for name, x in input_specs(model).items():
        # Another length than the target's, but not a longer one: position tables may end there.
        unknown = length if name == target else max(2, length - 1)
        shape = tuple(2 if i == 0 else d or unknown for i, d in enumerate(x.shape))
        if name == target and x.shape[1] is not None:
            raise ValueError(
                f"{model.name} cannot be stepped: its input {target!r} has a fixed length, "
                f"{x.shape[1]}; declare keras.Input((None,)), which also accepts a single token"
            )
        if "int" in x.dtype or name in sizes:
            # All ids about equally often, because a sequence of equal ids looks the same in any
            # order. Id 0, which may be padding, only if there are no others.
            size = sizes.get(name, 3)
            first = min(1, max(size - 2, 0))
            ids = first + np.arange(np.prod(shape)) % (size - first)
            inputs[name] = generator.permutation(ids).reshape(shape).astype(x.dtype)
        else:
            inputs[name] = generator.normal(size=shape).astype(x.dtype)
    return {name: ops.convert_to_tensor(x) for name, x in inputs.items()}


def _both(
    stepped: SteppedModel, inputs: dict[str, Any], length: int, every: bool = False
) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Each output of the full pass and of every step; with `every`, the outputs of all calls."""

    def arrays(outputs: Any) -> list[np.ndarray]:
        flat = keras.tree.flatten(outputs)
        return [ops.convert_to_numpy(ops.cast(y, "float32")) for y in flat]

    def call() -> Any:
        # Equal blocks can all be stepped if the first one can. `every` needs them all.
        return None if every else FirstOfEqual().call

    steps, cache = [], None
    try:
        encoded = stepped.encode(inputs)
        tokens = inputs[stepped.target]
        whole = arrays(stepped.step(encoded, tokens, every, call()))
        for start, end in _chunks(length):
            with DecodingScope(cache, position=start, length=length) as scope:
                part = stepped.step(encoded, tokens[:, start:end], every, call())
                steps.append(arrays(part))
            cache = scope.cache
    except Exception as error:
        message = f"{stepped.model.name} cannot be stepped: {_first_line(error)}"
        raise ValueError(message + keras_hub_hint(stepped.model)) from error
    return whole, [list(outputs) for outputs in zip(*steps, strict=True)]


def _first_line(error: Exception) -> str:
    """The cause of an error, without the arguments that Keras lists."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith("Exception encountered")]
    return (
        (telling or lines or [type(error).__name__])[0]
        .replace("\x1b[1m", "")
        .replace("\x1b[0m", "")
    )


def _chunks(length: int) -> Iterator[tuple[int, int]]:
    """Single steps at both ends, and between them steps of up to `_CHUNK` tokens."""
    between = range(3, length - 2, _CHUNK)
    ends = sorted({*range(min(3, length) + 1), *between, *range(max(length - 2, 0), length + 1)})
    return itertools.pairwise(ends)


def _agree(whole: np.ndarray, steps: list[np.ndarray], tolerance: float) -> bool:
    if any(
        step.ndim < 2 or step.shape[:1] + step.shape[2:] != whole.shape[:1] + whole.shape[2:]
        for step in steps
    ):
        return False
    together = np.concatenate(steps, axis=1)
    if together.shape != whole.shape:
        return False
    finite = np.isfinite(whole)
    if not np.array_equal(together[~finite], whole[~finite]):
        return False
    size = np.abs(whole[finite])
    if not size.size:
        return True
    # Relative to the logit or the median logit, since a few logits may be -1e9 (a forbidden token)
    # and others 0.
    some = size[size > 0]
    allowed = tolerance * np.maximum(size, float(np.median(some)) if some.size else 0.0)
    return bool((np.abs(together[finite] - whole[finite]) <= allowed).all())


def _first_difference(
    stepped: SteppedModel, inputs: dict[str, Any], length: int, tolerance: float
) -> str | None:
    """The first call whose stepped output differs from that of the full pass."""
    names = [call.node.operation.name for call in stepped.stepping for _ in call.makes]
    whole, steps = _both(stepped, inputs, length, every=True)
    for name, all_at_once, parts in zip(names, whole, steps, strict=True):
        if not _agree(all_at_once, parts, tolerance):
            return name
    return None
