"""Runs the signatures of a file and the model on the same inputs, and compares the results."""

import functools
import operator
import time
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.export.checks import Check, check, difference, timed
from keras_tfm.export.signatures import named_outputs
from keras_tfm.export.verification_rows import CALLS, VerificationRows, without_padding
from keras_tfm.generation.generator import Generator
from keras_tfm.generation.model_inputs import call_model, input_specs
from keras_tfm.generation.strategies import Greedy, Strategy
from keras_tfm.runtime.host_loop import by_length
from keras_tfm.runtime.manifest_fields import of_kind
from keras_tfm.runtime.model import Model


class Comparison:
    """A model and a file exported from it.

    Args:
        model: in float32.
        file: the loaded file.
        inputs: rows of the model's inputs; None: random ones.
        strategy: the strategy of "generate".
    """

    def __init__(
        self, model: keras.Model, file: Model, inputs: dict[str, Any] | None, strategy: Strategy
    ):
        self.model, self.file, self.strategy = model, file, strategy
        self.rows = VerificationRows(file, inputs)
        self._inputs = list(input_specs(model))
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

    def _predict(self, name: str) -> Check:
        """Compares the outputs number by number."""
        errors, wanted, top, seconds = [], [], [], []
        for number in range(self.rows.calls(name)):
            inputs = self.rows.arguments(name, number)
            outputs, ms = timed(functools.partial(self.file.run, name, inputs))
            results = named_outputs(self.model, call_model(self.model, _tensors(inputs)))
            for key, y in results.items():
                expected, found = ops.convert_to_numpy(y), outputs[key]
                errors.append(difference(found, expected))
                wanted.append(expected.ravel())
                several = expected[0].ndim and expected.shape[-1] > 1
                if several and expected.dtype.kind == "f":
                    top.append((np.argmax(found, -1) == np.argmax(expected, -1)).ravel())
            seconds.append(ms)
        rows = len(seconds) * len(next(iter(inputs.values())))
        return check(name, rows, errors, wanted, top, seconds)

    def _generate(self, name: str) -> Check:
        """Compares greedy tokens with the model's logits, others with the loop in Keras."""
        signature = self.file.signatures[name]
        errors, wanted, top, seconds = [], [], [], []
        for number in range(self.rows.calls(name)):
            inputs: dict[str, Any] = dict(self.rows.arguments(name, number))
            for key in of_kind(signature, "padding"):
                inputs.pop(key, None)
            prompt = signature.get("prompt")
            if prompt in self.rows.given_inputs(name):
                pad_id = signature["inputs"][prompt]["pad_id"]
                inputs[prompt] = [without_padding(row, pad_id) for row in inputs[prompt]]
            elif prompt is not None:
                inputs[prompt] = inputs[prompt][:, : max(1, inputs[prompt].shape[1] - number)]
            found, ms = timed(functools.partial(self.file.generate_by, name, inputs))
            seconds.append(ms)
            if isinstance(self.strategy, Greedy):
                gaps, scale, right = self._gaps(signature, inputs, found.tokens)
            else:
                gaps, scale, right = self._searched(signature, inputs, found)
            errors.append(gaps)
            wanted.append(scale)
            top.append(right)
        return check(name, len(seconds) * len(found.tokens), errors, wanted, top, seconds)

    def _gaps(
        self, signature: dict[str, Any], inputs: dict[str, Any], tokens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Each token's logit below the largest one; all logits, centred; which are largest."""
        target = signature["target"]
        others = {key: x for key, x in inputs.items() if key != target}
        logits = self._full_pass(others, target, tokens)
        ends = np.atleast_1d([] if signature["end_id"] is None else signature["end_id"])
        gaps, scale, right = [], [], []
        for row, (ids, given) in enumerate(zip(tokens, logits, strict=True)):
            first = len(inputs[target][row]) if target in inputs else 1
            ended = np.flatnonzero(np.isin(ids[first:], ends))
            last = first + ended[0] + 1 if len(ended) else len(ids)
            of = given[first - 1 : last - 1]
            chosen = np.take_along_axis(of, ids[first:last, np.newaxis], axis=-1)[:, 0]
            gaps.append(of.max(axis=-1) - chosen)
            scale.append((of - of.mean(axis=-1, keepdims=True)).ravel())
            right.append(gaps[-1] <= 0)
        return np.concatenate(gaps), np.concatenate(scale), np.concatenate(right)

    def _full_pass(self, others: dict[str, Any], target: str, tokens: np.ndarray) -> np.ndarray:
        """The model's logits (B, T, V) over whole rows of tokens."""
        inputs = _tensors({**others, target: tokens.astype("int32")})
        (logits,) = keras.tree.flatten(call_model(self.model, inputs))
        result: np.ndarray = ops.convert_to_numpy(logits)
        return result

    def _searched(
        self, signature: dict[str, Any], inputs: dict[str, Any], found: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Errors of the scores, the scores, and whether the tokens are equal, row by row."""
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
        return difference(np.asarray(found.scores), wanted), wanted.ravel(), same

    def _encode(self, name: str) -> Check:
        """Compares the logits of the steps that read the encoder's result."""
        return _walk_check(name, self._walk(encode=name, steps=2))

    def _prefill(self, name: str) -> Check:
        """Compares the logits of the steps after the prefill."""
        length = self.file.signatures[name]["inputs"][self._settings["target"]]["shape"][1]
        return _walk_check(name, self._walk(prefill=length, steps=2))

    def _decode(self, name: str) -> Check:
        """Compares the logits at the positions for which this signature's caches are used."""
        decoders = [x for x in self.file.signatures.values() if x["role"] == "decode"]
        capacity = self.file.signatures[name]["capacity"]
        smaller = [x["capacity"] for x in decoders if x["capacity"] < capacity]
        return _walk_check(name, self._whole_walk, slice(max(smaller, default=0), capacity))

    @property
    def _settings(self) -> dict[str, Any]:
        """The decode signature with the largest caches."""
        decoders = [x for x in self.file.signatures.values() if x["role"] == "decode"]
        return max(decoders, key=operator.itemgetter("capacity"))

    @functools.cached_property
    def _whole_walk(self) -> list["_Walk"]:
        return self._walk()

    def _walk(
        self, encode: str | None = None, prefill: int = 0, steps: int | None = None
    ) -> list["_Walk"]:
        """Feeds tokens step by step, after a prefill of `prefill` tokens, and in one full pass."""
        settings, decode = self._settings, by_length(self.file.signatures, "decode")[-1]
        target, length = settings["target"], settings["max_length"]
        source = encode or next(reversed(by_length(self.file.signatures, "encode")), None)
        first = min(prefill + 1, length - 1)
        result = []
        for number in range(CALLS if self.rows.given is None else 1):
            inputs = self.rows.arguments(source, number) if source else {}
            for key, x in self.rows.arguments(decode, number).items():
                if key in self._inputs and key not in inputs:
                    inputs[key] = x
            tokens = self.rows.tokens(decode, number)
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


class _Walk(NamedTuple):
    """Logits (B, T, V) of the steps and of the full pass, and milliseconds (T,) per step."""

    found: np.ndarray
    full: np.ndarray
    ms: np.ndarray


def _walk_check(name: str, walks: list[_Walk], steps: slice = slice(None)) -> Check:
    found = np.concatenate([walk.found[:, steps] for walk in walks])
    full = np.concatenate([walk.full[:, steps] for walk in walks])
    return check(
        name,
        len(found),
        [difference(found, full)],
        [full.ravel()],
        [(np.argmax(found, -1) == np.argmax(full, -1)).ravel()],
        [float(ms) for walk in walks for ms in walk.ms[steps]],
    )


def _tensors(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: ops.convert_to_tensor(x) for name, x in inputs.items()}
