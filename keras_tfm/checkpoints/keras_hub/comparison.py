"""Compares a model of KerasHub with the model of this library that it became."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from keras_tfm.checkpoints.keras_hub.heads import GENERATING, final_activation
from keras_tfm.checkpoints.keras_hub.random_inputs import RandomInputs
from keras_tfm.checkpoints.keras_hub.source import Source
from keras_tfm.generation import generate
from keras_tfm.matmul_precision import full_precision
from keras_tfm.models import Model

Array: TypeAlias = np.ndarray
# Of the largest value: float32 sums a few hundred products in another order, in each block.
TOLERANCE = 1e-5
_BLOCKS = 10  # of more blocks, each adds its part
NEW_TOKENS = 4


def check_equal(model: Model, source: Source) -> list[str]:
    """Raises a ValueError unless both give the same features, outputs and greedy tokens.

    Args:
        model: the model of this library.
        source: that of KerasHub, in float32.

    Returns:
        Notes on what differs in KerasHub itself.
    """
    inputs = RandomInputs(model, source)
    tolerance = _tolerance(model)
    with full_precision(), source.family.comparable(model, source.backbone):
        for name, ours, theirs in _outputs(model, source, inputs):
            if ours.shape != theirs.shape:
                raise ValueError(
                    f"{_pair(model, source)} differ: the shape of {name} is {ours.shape} and "
                    f"{theirs.shape}"
                )
            difference, allowed = _difference(ours, theirs, tolerance)
            if not difference <= allowed:
                where = _first_difference(model, source, inputs)
                raise ValueError(
                    f"{_pair(model, source)} differ {where}: {name} by {difference:.2g}, "
                    f"more than {allowed:.2g}"
                )
        if source.kind in GENERATING:
            return _check_tokens(model, source, inputs)
    return []


def _pair(model: Model, source: Source) -> str:
    return f"KerasHub's {type(source.model).__name__} and models.{model.family}"


def _tolerance(model: Model) -> float:
    return TOLERANCE * max(1.0, len(model.blocks) / _BLOCKS)


def _difference(ours: Array, theirs: Array, tolerance: float) -> tuple[float, float]:
    """The largest difference, and the largest that is allowed."""
    scale = float(np.max(np.abs(theirs), initial=0.0))
    return float(np.max(np.abs(ours - theirs), initial=0.0)), tolerance * scale


def _outputs(
    model: Model, source: Source, inputs: "RandomInputs"
) -> Iterator[tuple[str, Array, Array]]:
    """The names and values of features and outputs, without those of padding."""
    hidden = source.backbone(inputs.of_backbone, training=False)
    if source.family.pairs is not None:
        for name, x, y in source.family.pairs(model(inputs.ours, training=False), hidden):
            yield name, _array(x), _array(y)
        return
    keys = source.family.outputs
    features = hidden[keys["features"]] if keys else hidden
    ours = keras.Model(model.input, {"features": model.features, "output": model.output})(
        inputs.ours, training=False
    )
    yield "features", inputs.real(ours["features"]), inputs.real(features)
    output = ours["output"]
    if isinstance(output, dict):
        yield "pooled", _array(output["pooled"]), _array(hidden[keys["pooled"]])
    elif source.kind is not None:
        theirs = source.model(inputs.of_task, training=False)
        activation = final_activation(source.model, source.kind)
        output = output if activation is None else activation(output)
        if source.kind in GENERATING:
            yield "logits", inputs.real(output), inputs.real(theirs)
        else:
            yield "output", inputs.at_masks(_array(output)), _array(theirs)
    elif model.head is not None:
        theirs = source.family.logits(source.backbone, features)
        yield "logits", inputs.real(output), inputs.real(theirs)


def _array(x: Any) -> Array:
    return np.asarray(ops.convert_to_numpy(x))


def _first_difference(model: Model, source: Source, inputs: RandomInputs) -> str:
    """Where the two begin to differ, in words."""
    theirs = keras.tree.flatten(list(source.family.blocks(source.backbone)))
    ours = list(model.blocks)
    if not ours or not theirs:
        return "somewhere"
    with _record_calls(theirs) as expected:
        source.backbone(inputs.of_backbone, training=False)
    with _record_calls(ours) as found:
        model(inputs.ours, training=False)
    if len(found) != len(expected):
        return f"in their blocks, {len(found)} and {len(expected)}"
    pairs = list(zip(found, expected, strict=True))
    (_, x, _), (first, y, _) = pairs[0]
    if not _are_close(inputs, x, y):
        return f"in the embeddings, before {first}"
    for i, ((name, _, x), (other, _, y)) in enumerate(pairs):
        # A block of Gemma 4 has more layers in KerasHub: then the next block has the same input.
        ends = [(x, y), *((a, b) for (_, a, _), (_, b, _) in pairs[i + 1 : i + 2])]
        if not any(_are_close(inputs, *each) for each in ends):
            return f"first in {other} ({name} here)"
    return "after the last block"


def _are_close(inputs: RandomInputs, ours: Any, theirs: Any) -> bool:
    a, b = inputs.real(ours), inputs.real(theirs)
    if a.shape != b.shape:
        return False
    difference, allowed = _difference(a, b, TOLERANCE)
    return difference <= allowed


Record: TypeAlias = tuple[str, Any, Any]


@contextmanager
def _record_calls(layers: list[Any]) -> Iterator[list[Record]]:
    """The name, first input and first output of each call of these layers."""
    records: list[Record] = []

    def record(layer: keras.Layer) -> Callable[..., Any]:
        call = layer.call

        def recording(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            x = args[0] if args else next(iter(kwargs.values()))
            records.append((layer.name, x, keras.tree.flatten(result)[0]))
            return result

        return recording

    unique = list({id(x): x for x in layers}.values())
    for layer in unique:
        object.__setattr__(layer, "call", record(layer))
    try:
        yield records
    finally:
        for layer in unique:
            object.__delattr__(layer, "call")


def _check_tokens(model: Model, source: Source, inputs: RandomInputs) -> list[str]:
    """Raises unless both continue the same prompts with the same greedy tokens.

    Returns a note instead if KerasHub's tokens are not those of its own logits, which the model
    has, too: the cached steps of its GPT-NeoX rotate every query as if it were the first.
    """
    prompts, given, length, start = inputs.prompts(NEW_TOKENS)
    with _greedy(source.model) as task:
        tensors = {name: ops.convert_to_tensor(x) for name, x in given.items()}
        found = task.generate_step(tensors, stop_token_ids=None)
    key = next(name for name in ("decoder_token_ids", "token_ids") if name in found)
    theirs = _array(found[key])
    ours = _array(generate(model, prompts, max_length=length, start_id=start).tokens)
    pad_id = model.arguments.get("pad_id")
    for row, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        # A generated padding id is no token to one and a token to the other.
        end = next((i for i in range(length) if pad_id in (a[i], b[i])), length)
        first = next((i for i in range(end) if a[i] != b[i]), None)
        if first is None:
            continue
        # Up to there, both have the same tokens, and a full pass of both the same logits.
        logits = _next_logits(model, prompts, ours[:, :first])[row]
        nearly = 2 * _tolerance(model) * float(np.max(np.abs(logits)))
        lost, kept = (float(np.max(logits) - logits[x[first]]) for x in (b, a))
        if lost <= nearly:
            continue  # a tie
        if kept <= nearly:
            return [
                f"KerasHub's own generate leaves the most probable tokens of {source.model.name}: "
                f"it gives {b.tolist()}, and its logits {a.tolist()}, as here"
            ]
        raise ValueError(
            f"{_pair(model, source)} generate other tokens: {a.tolist()} here and {b.tolist()} in "
            "KerasHub"
        )
    return []


def _next_logits(model: Model, prompts: Any, tokens: Array) -> Array:
    """The logits (B, V) after the tokens, by a full pass."""
    inputs = {**prompts, "target": tokens} if isinstance(prompts, dict) else tokens
    return _array(model(inputs, training=False))[:, -1]


@contextmanager
def _greedy(task: keras.Model) -> Iterator[Any]:
    """The task with a greedy sampler."""
    sampler = importlib.import_module("keras_hub").samplers.GreedySampler()
    before = vars(task).get("sampler")
    task.sampler = sampler
    try:
        yield task
    finally:
        task.sampler = before
