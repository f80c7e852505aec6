"""Whether an exported file answers as the model does, signature by signature."""

import functools
import itertools
import logging
import operator
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.export.precision import in_float32
from keras_tfm.export.signatures import named_outputs
from keras_tfm.generation.generator import Generator
from keras_tfm.generation.model_inputs import call_model, input_specs
from keras_tfm.generation.strategies import Beam, Greedy, Strategy
from keras_tfm.runtime.host_loop import by_length
from keras_tfm.runtime.model import Model, load
from keras_tfm.runtime.random_inputs import random_inputs

_log = logging.getLogger(__name__)

# How far a file may be off: the root mean square of the errors, relative to that of the model's
# numbers. Rounding makes 1e-6 in float32, 1e-3 in float16; eight bits 1e-2 in a trained model, and
# ten times that in one whose weights are random and large, four bits ten times that again.
TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "int8": 0.25, "int8_full": 0.5, "int4": 0.75}
# Rows of inputs made at random, if the caller gives none.
ROWS = 2
RUNS = 3


@dataclass
class Check:
    """One signature against the model.

    Attributes:
        signature: its name.
        rows: of inputs that were compared.
        max_error, mean_error: of the numbers, absolute; of "generate", which returns none, by how
            much the model's logit of a token lies below its best one.
        relative_error: the root mean square of the errors by that of the model's numbers.
        top_1: how many of the largest numbers of the last axis (the class, the next token) are the
            model's, 0 to 1; of "generate" how many tokens are; None where there is no such axis.
        ms: median of a call, one thread; of "decode" of a step.
    """

    signature: str
    rows: int
    max_error: float
    mean_error: float
    relative_error: float
    top_1: float | None
    ms: float


@dataclass
class Verification:
    """What was compared; `print` it, or take `asdict()`."""

    path: str
    quantization: str
    tolerance: float
    checks: list[Check]

    @property
    def failures(self) -> list[str]:
        """What is beyond the tolerance, as sentences."""
        result = []
        for x in self.checks:
            if not x.relative_error <= self.tolerance:  # NaN is none
                result.append(
                    f"{x.signature} is off by {x.relative_error:.2g} of the model's numbers "
                    f"(at most {x.max_error:.2g}), more than {self.tolerance:g}"
                )
        return result

    def asdict(self) -> dict[str, Any]:
        """Everything, as plain dictionaries and lists."""
        return asdict(self)

    def __str__(self) -> str:
        """A table for people."""
        lines = [
            f"  {'against Keras':16} {'rows':>5} {'max error':>10} {'mean error':>11} "
            f"{'relative':>9} {'top-1':>7} {'ms':>9}"
        ]
        for x in self.checks:
            top = "" if x.top_1 is None else f"{100 * x.top_1:.1f} %"
            lines.append(
                f"  {x.signature:16} {x.rows:5} {x.max_error:10.2g} {x.mean_error:11.2g} "
                f"{x.relative_error:9.1g} {top:>7} {x.ms:9.3f}"
            )
        return "\n".join(lines)


class VerificationError(ValueError):
    """A file that does not answer as the model; `verification` has the numbers."""

    def __init__(self, message: str, verification: Verification):
        super().__init__(message)
        self.verification = verification


def verify(
    model: keras.Model,
    path: str | Path,
    inputs: dict[str, Any] | None = None,
    tolerance: float | None = None,
    strategy: Strategy | None = None,
) -> Verification:
    """Runs every signature of a file and the model on the same inputs.

    "predict" is compared number by number. "decode", with its "encode" and "prefill", is fed a text
    token by token, and its logits are compared with those of one full pass. Of "generate" every
    token must be the one that the full pass over the tokens before it gives the largest logit; of
    another strategy than greedy, tokens and scores must be those of the same loop in Keras.

    Args:
        model: the model that was exported; one of mixed precision is compared in float32.
        path: the file.
        inputs: rows for the model's inputs by name, of any lengths that were exported, of which the
            stepped one may be among them; by default made at random, of every length exported.
        tolerance: the largest relative error (`Check.relative_error`); by default 1e-4 in float32,
            1e-2 in float16, 0.25 in int8, 0.5 in int8_full, 0.75 in int4.
        strategy: the one that was exported; a file tells it, but for one of your own.

    Raises:
        VerificationError: a signature is beyond the tolerance.
        ValueError: the inputs do not fit, or the file is damaged.
        TypeError: ids are no integers.

    Example:

    >>> import tempfile, keras
    >>> from keras_tfm.export import export_tflite, verify
    >>> x = keras.Input((2,), name="x")
    >>> model = keras.Model(x, keras.layers.Dense(3)(x))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_tflite(model, folder + "/dense.tflite")
    ...     verify(model, report.path).checks[0].top_1
    1.0
    """
    file = load(path)
    model = in_float32(model)
    quantization = file.manifest["quantization"]
    if tolerance is None:
        tolerance = TOLERANCES[quantization]
    if inputs is not None:
        _checked_rows(model, file, inputs)
    comparison = _Comparison(model, file, inputs, strategy or _strategy_of(file))
    checks = []
    for name in file.signatures:
        _log.info("comparing %s with %s", name, model.name)
        checks.append(comparison.of(name))
    result = Verification(str(path), quantization, tolerance, checks)
    if result.failures:
        raise VerificationError(
            f"the file does not answer as {model.name}: {'; '.join(result.failures)}", result
        )
    return result


def _strategy_of(file: Model) -> Strategy:
    """The strategy that a file was exported with."""
    for signature in file.signatures.values():
        settings = dict(signature.get("strategy") or {})
        if settings:
            name = settings.pop("name")
            if name != "Beam" or set(settings) != {field.name for field in fields(Beam)}:
                raise ValueError(f"{file.path} was exported with a {name} of your own: give it")
            return Beam(**settings)
    return Greedy()


class _Comparison:
    """A model and a file of it."""

    def __init__(
        self, model: keras.Model, file: Model, inputs: dict[str, Any] | None, strategy: Strategy
    ):
        self.model, self.file, self.given, self.strategy = model, file, inputs, strategy
        self._generator: Generator | None = None

    def of(self, name: str) -> Check:
        """The check of one signature."""
        checks = {
            "predict": self._predict,
            "generate": self._generate,
            "encode": self._encode,
            "prefill": self._prefill,
            "decode": self._decode,
        }
        return checks[self.file.signatures[name]["role"]](name)

    def _rows(self, name: str, number: int) -> dict[str, np.ndarray]:
        """Arguments of a signature: one call's, of the whole length, for the model and the file."""
        signature = self.file.signatures[name]
        made = random_inputs(signature, seed=number)
        for key, x in made.items():
            if number and x.ndim == 2 and signature["inputs"][key]["padded"]:
                x[:, max(1, x.shape[1] // 2) :] = 0  # as shorter text is
        rows = self._fitting(name)
        if rows:
            for key in self._given(name):
                made[key] = self._chunk(key, made[key], rows, number)
        return made

    def _given(self, name: str) -> list[str]:
        """The inputs of a signature that the caller gave, without what is fed step by step."""
        signature = self.file.signatures[name]
        stepped = signature["target"] if signature["role"] == "decode" else None
        return [x for x in signature["inputs"] if x in (self.given or {}) and x != stepped]

    def _fitting(self, name: str) -> list[int]:
        """Which of the rows that the caller gave are short enough; none: they are made."""
        keys = self._given(name)
        if self.given is None or not keys:
            return []
        inputs = self.file.signatures[name]["inputs"]
        return [
            i
            for i in range(len(self.given[keys[0]]))
            if all(
                n <= m
                for key in keys
                for n, m in zip(np.shape(self.given[key][i]), inputs[key]["shape"][1:], strict=True)
            )
        ]

    def _chunk(self, key: str, like: np.ndarray, rows: list[int], number: int) -> np.ndarray:
        """Of what the caller gave, the rows of the call `number`, in the shape of `like`."""
        assert self.given is not None
        result = np.zeros_like(like)
        for i in range(len(like)):
            row = np.asarray(self.given[key][rows[(number * len(like) + i) % len(rows)]])
            result[i][tuple(slice(n) for n in row.shape)] = row
        return result

    def _calls(self, name: str) -> int:
        rows = self._fitting(name)
        batch = next(iter(self.file.signatures[name]["inputs"].values()))["shape"][0]
        return -(-len(rows) // batch) if rows else ROWS

    def _predict(self, name: str) -> Check:
        errors, wanted, top, seconds = [], [], [], []
        for number in range(self._calls(name)):
            inputs = self._rows(name, number)
            outputs, ms = _timed(functools.partial(self.file.run, name, inputs))
            expected = {
                key: ops.convert_to_numpy(y)
                for key, y in named_outputs(
                    self.model, call_model(self.model, _tensors(inputs))
                ).items()
            }
            for key, y in expected.items():
                found = outputs[key]
                errors.append(_difference(found, y))
                wanted.append(y.ravel())
                if y.ndim > 1 and y.shape[-1] > 1 and y.dtype.kind == "f":
                    top.append((np.argmax(found, -1) == np.argmax(y, -1)).ravel())
            seconds.append(ms)
        rows = len(seconds) * len(next(iter(inputs.values())))
        return _check(name, rows, errors, wanted, top, seconds)

    def _generate(self, name: str) -> Check:
        signature = self.file.signatures[name]
        errors, wanted, top, seconds = [], [], [], []
        for number in range(self._calls(name)):
            inputs: dict[str, Any] = dict(self._rows(name, number))
            inputs.pop("padding", None)
            prompt = signature.get("prompt")
            if prompt in self._given(name):
                inputs[prompt] = [np.trim_zeros(row, "b") for row in inputs[prompt]]
            elif prompt is not None:
                inputs[prompt] = inputs[prompt][:, : max(1, inputs[prompt].shape[1] - number)]
            found, ms = _timed(functools.partial(self.file.generate_by, name, inputs))
            seconds.append(ms)
            if isinstance(self.strategy, Greedy):
                gaps, scale, right = self._gaps(signature, inputs, found.tokens)
            else:
                gaps, scale, right = self._searched(signature, inputs, found)
            errors.append(gaps)
            wanted.append(scale)
            top.append(right)
        return _check(name, len(seconds) * len(found.tokens), errors, wanted, top, seconds)

    def _gaps(
        self, signature: dict[str, Any], inputs: dict[str, Any], tokens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """How far below the best logit each generated token's is; all logits; which are best."""
        target = signature["target"]
        others = {key: x for key, x in inputs.items() if key != target}
        logits = self._full_pass(others, target, tokens)
        gaps, scale, right = [], [], []
        for row, (ids, given) in enumerate(zip(tokens, logits, strict=True)):
            first = len(inputs[target][row]) if target in inputs else 1
            ends = np.atleast_1d([] if signature["end_id"] is None else signature["end_id"])
            ended = np.flatnonzero(np.isin(ids[first:], ends))
            last = first + ended[0] + 1 if len(ended) else len(ids)
            of = given[first - 1 : last - 1]
            chosen = np.take_along_axis(of, ids[first:last, np.newaxis], axis=-1)[:, 0]
            gaps.append(of.max(axis=-1) - chosen)
            scale.append((of - of.mean(axis=-1, keepdims=True)).ravel())
            right.append(gaps[-1] <= 0)
        return np.concatenate(gaps), np.concatenate(scale), np.concatenate(right)

    def _full_pass(self, others: dict[str, Any], target: str, tokens: np.ndarray) -> np.ndarray:
        inputs = _tensors({**others, target: tokens.astype("int32")})
        return _arrays(call_model(self.model, inputs))[0]

    def _searched(
        self, signature: dict[str, Any], inputs: dict[str, Any], found: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of another strategy: the scores, and the tokens where scores are no tie."""
        if self._generator is None:
            self._generator = Generator(
                self.model,
                signature["max_length"],
                signature["start_id"],
                signature["end_id"],
                self.strategy,
                signature["target"],
            )
        expected = self._generator(inputs)
        same = (found.tokens == expected.tokens).all(axis=-1).ravel()
        if found.scores is None:
            exact = self.file.manifest["quantization"] == "float32"
            return (~same & exact).astype("float64"), np.ones(len(same)), same
        wanted = np.asarray(expected.scores, "float64")
        return _difference(np.asarray(found.scores), wanted), wanted.ravel(), same

    def _encode(self, name: str) -> Check:
        """Seen in the steps after it."""
        return _walk_check(name, self._walk(encode=name, steps=2))

    def _prefill(self, name: str) -> Check:
        """Seen in the steps after it."""
        length = self.file.signatures[name]["inputs"][self._settings["target"]]["shape"][1]
        return _walk_check(name, self._walk(prefill=length, steps=2))

    def _decode(self, name: str) -> Check:
        """Of the positions that the caches of no smaller one hold."""
        rooms = [x["room"] for x in self.file.signatures.values() if x["role"] == "decode"]
        room = self.file.signatures[name]["room"]
        before = max((x for x in rooms if x < room), default=0)
        return _walk_check(name, self._whole_walk, slice(before, room))

    @property
    def _settings(self) -> dict[str, Any]:
        """Those of the largest `decode`."""
        decoders = [x for x in self.file.signatures.values() if x["role"] == "decode"]
        return max(decoders, key=operator.itemgetter("room"))

    @functools.cached_property
    def _whole_walk(self) -> list["_Walk"]:
        return self._walk()

    def _walk(
        self, encode: str | None = None, prefill: int = 0, steps: int | None = None
    ) -> list["_Walk"]:
        """Texts fed token by token, after a prefill of so many, and one full pass over each."""
        settings, decode = self._settings, by_length(self.file.signatures, "decode")[-1]
        target, length = settings["target"], settings["max_length"]
        source = encode or next(reversed(by_length(self.file.signatures, "encode")), None)
        first = min(prefill + 1, length - 1)
        result = []
        for number in range(ROWS if self.given is None else 1):
            inputs = self._rows(source, number) if source else {}
            for key, x in self._rows(decode, number).items():
                if key not in inputs and key != "position" and not key.startswith("cache_"):
                    inputs[key] = x
            tokens = self._text(decode, number)
            inputs[target] = tokens[:, :first]
            found: list[np.ndarray] = []

            def forced(
                logits: np.ndarray, tokens: np.ndarray = tokens, found: Any = found
            ) -> np.ndarray:
                found.append(logits)
                return tokens[:, first + len(found) - 1]

            times, begun = [], time.perf_counter()
            for _ in self.file.stream(inputs, choose=forced):
                times.append(1e3 * (time.perf_counter() - begun))
                if len(times) == steps:
                    break
                begun = time.perf_counter()
            others = {key: x for key, x in inputs.items() if key != target}
            full = self._full_pass(others, target, tokens)[:, first - 1 :][:, : len(found)]
            result.append(_Walk(np.stack(found, axis=1), full, np.array(times)))
        return result

    def _text(self, decode: str, number: int) -> np.ndarray:
        """Tokens (B, T) to be fed: those given, and after them others at random."""
        signature = self.file.signatures[decode]
        target = signature["target"]
        batch, size = signature["inputs"][target]["shape"][0], signature["vocabulary_size"]
        size = signature["inputs"][target].get("vocabulary_size", size)
        shape = (batch, signature["max_length"])
        # No end among them, which would stop the walk before the caches are full.
        ends = [] if signature["end_id"] is None else signature["end_id"]
        ids = np.arange(min(1, size - 1), size)
        ids = ids if np.isin(ids, ends).all() else np.setdiff1d(ids, ends)
        tokens = np.random.default_rng(number).choice(ids, shape)
        if self.given is not None and target in self.given:
            for row, given in zip(tokens, itertools.cycle(self.given[target]), strict=False):
                known = np.trim_zeros(np.asarray(given), "b")[: len(row)]
                row[: len(known)] = known
        return tokens.astype("int32")


class _Walk(NamedTuple):
    """Logits (B, T, V) of the steps and of the full pass, and milliseconds (T,) a step."""

    found: np.ndarray
    full: np.ndarray
    ms: np.ndarray


def _walk_check(name: str, walks: list[_Walk], steps: slice = slice(None)) -> Check:
    found = np.concatenate([walk.found[:, steps] for walk in walks])
    full = np.concatenate([walk.full[:, steps] for walk in walks])
    return _check(
        name,
        len(found),
        [_difference(found, full)],
        [full.ravel()],
        [(np.argmax(found, -1) == np.argmax(full, -1)).ravel()],
        [float(ms) for walk in walks for ms in walk.ms[steps]],
    )


def _checked_rows(model: keras.Model, file: Model, given: dict[str, Any]) -> None:
    """Raises unless every row that the caller gave fits one of the exported lengths."""
    specs = input_specs(model)
    taken = {key for x in file.signatures.values() for key in x["inputs"]}
    names = [name for name in specs if name in taken]
    if not isinstance(given, dict):
        raise TypeError(f"inputs must be a dictionary of {names}, got {type(given).__name__}")
    if not given or any(name not in names for name in given):
        raise ValueError(
            f"inputs to verify with must be among the file's, {names}, got {list(given)}"
        )
    counts = {name: len(rows) for name, rows in given.items()}
    if len(set(counts.values())) > 1 or not all(counts.values()):
        raise ValueError(f"inputs must have the same number of rows, at least one, got {counts}")
    for name, rows in given.items():
        shapes = [
            [*x["inputs"][name]["shape"][1:]]
            for x in file.signatures.values()
            if name in x["inputs"] and not (x["role"] == "decode" and x["target"] == name)
        ]
        shapes += [[x["max_length"]] for x in file.signatures.values() if x.get("target") == name]
        longest = max(shapes, default=[])
        for row in map(np.asarray, rows):
            if row.size and "int" in specs[name].dtype and row.dtype.kind not in "iu":
                raise TypeError(f"{name} must be integer ids, got {row.dtype}")
            shape = row.shape
            if len(shape) != len(specs[name].shape) - 1 or any(
                n > m if d is None else n != d
                for n, m, d in zip(shape, longest, specs[name].shape[1:], strict=True)
            ):
                raise ValueError(
                    f"input {name!r} must have rows of shape {tuple(longest)}"
                    + (" or shorter" if None in specs[name].shape[1:] else "")
                    + f", got {shape}"
                )


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and the median milliseconds of a call."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        result = run()
        times.append(1e3 * (time.perf_counter() - start))
    return result, float(np.median(times))


def _difference(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Flat, float64: 0 where both are equal, infinities too; no number where either is none."""
    found, wanted = found.astype("float64").ravel(), wanted.astype("float64").ravel()
    result = np.zeros_like(found)
    return np.subtract(found, wanted, out=result, where=found != wanted)


def _tensors(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: ops.convert_to_tensor(x) for name, x in inputs.items()}


def _arrays(outputs: Any) -> list[np.ndarray]:
    return [ops.convert_to_numpy(y) for y in keras.tree.flatten(outputs)]


def _check(
    name: str,
    rows: int,
    errors: list[np.ndarray],
    wanted: list[np.ndarray],
    top: list[np.ndarray],
    ms: list[float],
) -> Check:
    error, scale = np.abs(np.concatenate(errors)), np.concatenate(wanted).astype("float64")
    scale = scale[np.isfinite(scale)]
    root = float(np.sqrt(np.mean(scale**2))) if len(scale) else 0.0
    squares = float(np.sqrt(np.mean(error**2))) if len(error) else 0.0
    return Check(
        signature=name,
        rows=rows,
        max_error=float(error.max(initial=0.0)),
        mean_error=float(error.mean()) if len(error) else 0.0,
        relative_error=squares / max(root, 1e-6),
        top_1=float(np.concatenate(top).mean()) if top else None,
        ms=float(np.median(ms)),
    )
