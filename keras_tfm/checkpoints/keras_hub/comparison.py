"""Compares a model of KerasHub with the model of this library that it became."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from keras_tfm.checkpoints.keras_hub.heads import GENERATING, final_activation
from keras_tfm.checkpoints.keras_hub.source import Source
from keras_tfm.generation import generate
from keras_tfm.matmul_precision import full_precision
from keras_tfm.models import Model
from keras_tfm.models.encoder_decoders.whisper import SAMPLES_PER_POSITION

Array: TypeAlias = np.ndarray
# Of the largest value: float32 sums a few hundred products in another order, in each block.
TOLERANCE = 1e-5
_BLOCKS = 10  # of more blocks, each adds its part
NEW_TOKENS = 4
ROWS, LENGTH, MASKED = 3, 11, 2
# Of images, if the model takes any size.
SIDE = 67
# The input of token ids with the features: the decoder's, if there is one.
_TARGETS = ("target", "tokens")


class RandomInputs:
    """The same random inputs, with padding, under the names of both models.

    Attributes:
        ours: those of our model, in its structure.
        of_backbone: dict, those of the backbone.
        of_task: dict, those of the task.
    """

    def __init__(self, model: Model, source: Source, seed: int = 0):
        self._rng = np.random.default_rng(seed)
        self._given, self._family = model.arguments, source.family
        self._longest = source.family.longest(model)
        self._names = [x.name for x in model.inputs]
        self._mask: np.ndarray | None = None
        self._positions: np.ndarray | None = None
        self._is_dict = isinstance(model.input, dict)
        known = source.backbone.input if isinstance(source.backbone.input, dict) else ()
        ours: dict[str, np.ndarray] = {}
        theirs: dict[str, np.ndarray] = {}
        for name, other in self._family.inputs.items():
            if name == "segments":
                ours[name] = theirs[other] = self._segments()
            elif name == "audio":
                ours[name], theirs[other] = self._speech(model)
            elif name == "pixels":
                ours[name], theirs[other] = self._pixels()
            else:
                lengths = np.array([self.length, self.length // 2 + 1, 1])
                ours[name], mask = self._ids(lengths)
                theirs[other] = ours[name]
                if _mask_name(other) in known:
                    theirs[_mask_name(other)] = mask.astype("int32")
                if name in _TARGETS:
                    self._mask = mask
        if "position_ids" in known:  # those of a text, from 0
            theirs["position_ids"] = np.tile(np.arange(self.length, dtype="int32"), (ROWS, 1))
        self.ours = self._in_structure(ours)
        self.of_backbone: Any = theirs if known else next(iter(theirs.values()))
        self.of_task = self.of_backbone
        if source.kind == "MaskedLM":
            self._positions = self._rng.integers(0, self.length // 2 + 1, (ROWS, MASKED), "int32")
            self._positions[-1] = 0  # the only token that is not padding
            self.of_task = {**theirs, "mask_positions": self._positions}

    @property
    def length(self) -> int:
        """The number of columns."""
        if self._family.full_length and self._longest:
            return self._longest
        return int(min(LENGTH, self._longest or LENGTH))

    def real(self, x: Any) -> np.ndarray:
        """The values at the tokens that are not padding: (B, T, ...) -> (N, ...)."""
        array = np.asarray(ops.convert_to_numpy(x))
        if self._mask is None or array.shape[:2] != self._mask.shape:
            return array
        return array[self._mask]

    def at_masks(self, output: np.ndarray) -> np.ndarray:
        """The logits (B, T, V) of a masked language model at chosen positions; others unchanged."""
        if self._positions is None:
            return output
        return np.take_along_axis(output, self._positions[..., None], axis=1)

    def prompts(self, new_tokens: int) -> tuple[Any, dict[str, np.ndarray], int, int | None]:
        """Prompts of which both generate tokens.

        Args:
            new_tokens: int, how many to generate, if there are positions for them.

        Returns:
            Our inputs; KerasHub's; the length of the result, with the prompts; the start token of
            an encoder-decoder model; None for others.
        """
        total = self.length
        known = max(1, total - new_tokens)
        ours, theirs, start = dict[str, np.ndarray](), dict[str, np.ndarray](), None
        for name, other in self._family.inputs.items():
            if name in _TARGETS:
                ids, _ = self._ids(np.full(ROWS, total))
                if name == "target":
                    known, start = 1, int(ids[0, 0])
                    ids[:, 0] = start
                else:
                    ours[name] = ids[:, :known].copy()
                mask = np.arange(total) < np.full((ROWS, 1), known)
                ids[:, known:] = 0
            else:
                ids, mask = self._ids(np.array([total, total // 2 + 1, 1]))
                ours[name] = ids
            theirs |= {other: ids, _mask_name(other): mask.astype("int32")}
        return self._in_structure(ours, {"target"}), theirs, total, start

    def _ids(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids (B, T) of which the first `length` of each row are no padding, and the mask."""
        pad_id = self._given.get("pad_id", 0) or 0
        ids = self._rng.integers(0, self._given["vocabulary_size"] - 1, (len(lengths), self.length))
        ids += ids >= pad_id
        mask = np.arange(self.length) < lengths[:, None]
        return np.where(mask, ids, pad_id).astype("int32"), mask

    def _segments(self) -> np.ndarray:
        size = self._given["num_segments"] if "segments" in self._names else 1
        return self._rng.integers(0, size, (ROWS, self.length), "int32")

    def _speech(self, model: Model) -> tuple[np.ndarray, np.ndarray]:
        """Noise as samples, if the model takes them, and as features, which KerasHub takes."""
        length = self._given["max_source_length"]
        if "audio" not in self._names:
            shape = (ROWS, 2 * length, self._given["num_mels"])
            features = self._rng.normal(size=shape).astype("float32")
            return features, features
        samples = self._rng.uniform(-0.5, 0.5, (ROWS, SAMPLES_PER_POSITION * length))
        audio = samples.astype("float32")
        return audio, np.asarray(ops.convert_to_numpy(model.get_layer("log_mel")(audio)))

    def _pixels(self) -> tuple[np.ndarray, np.ndarray]:
        """Pixels from 0 to 255, and as KerasHub's converter makes them."""
        mean, deviation = (np.array(self._given[f"image_{x}"]) for x in ("mean", "std"))
        size = self._given["image_size"] or (SIDE, SIDE)
        size = (size, size) if isinstance(size, int) else size
        pixels = self._rng.uniform(0, 255, (ROWS, *size, len(mean)))
        return pixels.astype("float32"), ((pixels / 255 - mean) / deviation).astype("float32")

    def _in_structure(self, arrays: dict[str, np.ndarray], left_out: Any = ()) -> Any:
        """Arrays in the structure of the model's inputs."""
        if "audio" in arrays:  # the features of a model without `log_mel`
            arrays = {**arrays, "features": arrays["audio"]}
        names = [name for name in self._names if name not in left_out]
        if self._is_dict:
            return {name: arrays[name] for name in names}
        return arrays[names[0]]


def _mask_name(ids: str) -> str:
    return ids.replace("token_ids", "padding_mask")


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
