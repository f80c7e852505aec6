"""Whether a model may be stepped: the same logits a token at a time as all at once."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.generation.model_inputs import call_model, find_target, input_names
from keras_tfm.layers import DecodingScope


def check_stepping(
    model: keras.Model, target: str | None = None, length: int = 4, tolerance: float = 1e-3
) -> None:
    """Raises unless `model` gives the same logits stepped as in a full pass, on random inputs.

    A layer that mixes positions of the target and does not consult the `DecodingScope` (a
    convolution, pooling, attention that is not causal) would make wrong tokens in silence. This
    compares the two passes and names the first layer whose output differs.

    Args:
        model: functional.
        target: the name of the input that is stepped.
        length: how many tokens are compared.
        tolerance: largest difference allowed, relative to the largest logit, at least 1. Rounding
            in float32 makes 1e-6, in bfloat16 1e-2.

    Raises:
        ValueError: with the name of the first layer that differs.
    """
    target = find_target(model, target)
    inputs = _random_inputs(model, target, length)
    if "float16" in str(model.compute_dtype):  # and bfloat16
        tolerance = max(tolerance, 5e-2)
    whole, stepped = _both(model, inputs, target, length)
    if all(_agree(y, steps, tolerance) for y, steps in zip(whole, stepped, strict=True)):
        return
    name = _first_difference(model, inputs, target, length, tolerance) or model.layers[-1].name
    raise ValueError(
        f"{model.name} cannot be stepped: a token at a time, layer {name!r} gives another result "
        "than over the whole sequence, so it mixes positions of the target without a DecodingScope"
    )


def _random_inputs(model: keras.Model, target: str, length: int) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    inputs = {}
    for name, x in zip(input_names(model), keras.tree.flatten(model.input), strict=True):
        unknown = length if name == target else length + 1
        shape = tuple(2 if i == 0 else d or unknown for i, d in enumerate(x.shape))
        if name == target and x.shape[1] is not None:
            raise ValueError(
                f"{model.name} cannot be stepped: its input {target!r} has a fixed length, "
                f"{x.shape[1]}; declare keras.Input((None,)), which takes one token as well"
            )
        if "int" in x.dtype:
            # Few and small, so that they are in any vocabulary; none is 0, which may be padding.
            inputs[name] = generator.integers(1, 3, shape).astype(x.dtype)
        else:
            inputs[name] = generator.normal(size=shape).astype(x.dtype)
    return {name: ops.convert_to_tensor(x) for name, x in inputs.items()}


def _both(
    model: keras.Model, inputs: dict[str, Any], target: str, length: int
) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Each output of the full pass, and each output of every step."""

    def run(values: dict[str, Any]) -> list[np.ndarray]:
        outputs = keras.tree.flatten(call_model(model, values))
        return [ops.convert_to_numpy(ops.cast(y, "float32")) for y in outputs]

    whole = run(inputs)
    steps, cache = [], None
    for position in range(length):
        token = inputs[target][:, position : position + 1]
        with DecodingScope(cache, position=position, length=length) as scope:
            steps.append(run({**inputs, target: token}))
        cache = scope.cache
    return whole, [list(outputs) for outputs in zip(*steps, strict=True)]


def _agree(whole: np.ndarray, steps: list[np.ndarray], tolerance: float) -> bool:
    if any(step.shape[:1] + step.shape[2:] != whole.shape[:1] + whole.shape[2:] for step in steps):
        return False
    if any(step.ndim < 2 or step.shape[1] != 1 for step in steps) or whole.shape[1] != len(steps):
        return False
    scale = max(1.0, float(np.abs(whole).max()))
    return float(np.abs(np.concatenate(steps, axis=1) - whole).max()) <= tolerance * scale


def _first_difference(
    model: keras.Model, inputs: dict[str, Any], target: str, length: int, tolerance: float
) -> str | None:
    """The first layer after the target input whose stepped output is not that of the full pass."""
    names, tensors = [], []
    for layer in model.layers:
        try:
            output = layer.output
        except (AttributeError, ValueError):  # called more than once, or never
            continue
        if isinstance(output, keras.KerasTensor) and _depends_on(model, output, target):
            names.append(layer.name)
            tensors.append(output)
    if not tensors:
        return None
    whole, stepped = _both(keras.Model(model.input, tensors), inputs, target, length)
    for name, all_at_once, steps in zip(names, whole, stepped, strict=True):
        if not _agree(all_at_once, steps, tolerance):
            return name
    return None


def _depends_on(model: keras.Model, tensor: keras.KerasTensor, target: str) -> bool:
    """Whether `tensor` is computed from the target, and not from the other inputs alone."""
    others = [
        x
        for name, x in zip(input_names(model), keras.tree.flatten(model.input), strict=True)
        if name != target
    ]
    try:
        keras.Model(others, tensor)
    except ValueError:  # "not connected": some input is missing, and it is the target
        return True
    return False
