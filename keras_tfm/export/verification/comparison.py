"""Runs the signatures of a file and the model on the same inputs, and compares the results."""

import functools
import time
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.export.signatures.input_numbers import InputNumbers, input_numbers
from keras_tfm.export.verification.checks import (
    EXACT,
    Check,
    check,
    difference,
    gaps_of,
    log_probability,
    root_mean_square,
    time_call,
    top_1_gaps,
)
from keras_tfm.export.verification.loop_logits import LoopLogits
from keras_tfm.export.verification.rows import PIECES, Inputs, VerificationRows
from keras_tfm.generation.generator import Generator
from keras_tfm.generation.interface import interface_of
from keras_tfm.generation.step_rules.step_rule import find_rule
from keras_tfm.generation.strategies import Beam, Drafted, Greedy, Strategy
from keras_tfm.keras_internals import sublayers
from keras_tfm.models.without_storage import with_largest_weight
from keras_tfm.runtime.checked_inputs import left_padded, pad_id_of
from keras_tfm.runtime.decoding import host_loop
from keras_tfm.runtime.decoding.generate import generate_by
from keras_tfm.runtime.decoding.special_ids import unpadded_length
from keras_tfm.runtime.inspection.random_inputs import insert_placeholders
from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.manifest.manifest import Decode, Encode, Generate, Prefill, Stream, of_role
from keras_tfm.runtime.tasks.source_stream import FileStream

# Of a large model, the number of steps that are compared.
STEPS = 8
# The number of differences of outputs that are kept to compare two roundings.
DIFFERENCES = 1 << 24


class ModelOutputs:
    """The outputs of a model, each computed once.

    Args:
        model: a model in float32.

    >>> from keras_tfm.export.verification.comparison import ModelOutputs
    >>> x = keras.Input((2,), name="x")
    >>> outputs = ModelOutputs(keras.Model(x, keras.layers.Dense(3)(x)))
    >>> outputs.of({"x": np.ones((70, 2), "float32")})["output"].shape
    (70, 3)
    """

    # Rows per call of the model.
    ROWS = 64
    # A model of more weights is large: it is compared on few rows and steps.
    LARGE = 100_000_000

    def __init__(self, model: keras.Model):
        self.model = model
        self.interface = interface_of(model)
        self._known: dict[tuple[object, ...], dict[str, np.ndarray]] = {}
        self._batch: Inputs = {}  # of several rows, the first that was computed

    @property
    def is_large(self) -> bool:
        """Whether few rows and steps are compared, since the model has many weights."""
        return self.model.count_params() > self.LARGE

    @functools.cached_property
    def numbers(self) -> dict[str, InputNumbers]:
        """What the model tells of its inputs of numbers."""
        return input_numbers(self.model)

    def of(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """The outputs by their names in a file, for arrays of inputs by name."""
        key = tuple((name, x.shape, x.tobytes()) for name, x in inputs.items())
        if key not in self._known:
            rows = len(next(iter(inputs.values())))
            # A model may have a fixed batch size.
            step = next(iter(self.interface.inputs.values())).spec.shape[0] or self.ROWS
            parts: list[dict[str, np.ndarray]] = []
            for start in range(0, rows, step):
                chunk = {name: x[start : start + step] for name, x in inputs.items()}
                if not self._batch and len(next(iter(chunk.values()))) > 1:
                    self._batch = chunk
                parts.append(self._call(chunk))
            self._known[key] = {
                name: np.concatenate([part[name] for part in parts]) for name in parts[0]
            }
        return self._known[key]

    def _call(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """The outputs of one call."""
        with with_largest_weight(self.model):
            tensors = {name: ops.convert_to_tensor(x) for name, x in inputs.items()}
            results = self.interface.name_outputs(self.interface.call(tensors))
            return {name: ops.convert_to_numpy(y) for name, y in results.items()}

    def mixes_rows(self) -> bool:
        """Whether a row has other outputs beside copies of it than in the batch that was compared.

        False without a batch of several rows, and if the outputs differ from call to call.

        >>> from keras_tfm.export.verification.comparison import ModelOutputs
        >>> x = keras.Input((2,), name="x")
        >>> outputs = ModelOutputs(keras.Model(x, x - ops.mean(x, axis=0, keepdims=True)))
        >>> outputs.of({"x": np.array([[1, 2], [3, 5]], "float32")})["output"].tolist()
        [[-1.0, -1.5], [1.0, 1.5]]
        >>> outputs.mixes_rows()
        True
        """
        if not self._batch:
            return False
        copies = {name: np.repeat(x[:1], len(x), axis=0) for name, x in self._batch.items()}
        beside_copies, first, again = map(self._call, (copies, self._batch, self._batch))

        def differ(some: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> bool:
            errors = [difference(x[0], others[name][0]) for name, x in some.items()]
            scale = max(root_mean_square(x[0]) for x in others.values())
            return not max(map(root_mean_square, errors)) <= EXACT * max(scale, 1e-6)

        return not differ(again, first) and differ(beside_copies, first)

    def logits(self, inputs: Inputs) -> np.ndarray:
        """The first output of the model, before the draft heads that it may have."""
        return next(iter(self.of(inputs).values()))


class Comparison:
    """A model and a file exported from it.

    Args:
        outputs: the outputs of the model.
        file: the loaded file.
        inputs: dict of arrays, rows of the model's inputs; None: random ones.
        strategy: the strategy of "generate".
        is_of_weights: bool, whether the file is a copy with other weights, whose loops in a large
            model run only as far as their logits are compared.
    """

    def __init__(
        self,
        outputs: ModelOutputs,
        file: LoadedFile,
        inputs: Inputs | None,
        strategy: Strategy,
        is_of_weights: bool = False,
    ):
        self.outputs, self.file = outputs, file
        self.is_cut = is_of_weights and outputs.is_large
        # Drafts do not change the tokens.
        self.strategy = strategy.strategy if isinstance(strategy, Drafted) else strategy
        numbers = {name: x.numbers for name, x in outputs.numbers.items()}
        weights = outputs.model.count_params()
        self.rows = VerificationRows(file, inputs, numbers, outputs.is_large, weights)
        # By signature, the differences of each row, for inputs that do not depend on the file. For
        # "generate" these are the inputs of the first step.
        self.differences: dict[str, list[np.ndarray]] = {}
        self._generator: Generator | None = None

    def of(self, name: str) -> Check:
        """The check of one signature."""
        checks = {
            "predict": self._predict,
            "generate": self._generate,
            "encode": self._encode,
            "prefill": self._prefill,
            "decode": self._decode,
            "stream": self._stream,
        }
        return checks[self.file.signatures[name].role](name)

    def _predict(self, name: str) -> Check:
        """Compares the outputs number by number."""
        calls = [self.rows.arguments(name, i) for i in range(self.rows.calls(name))]
        inputs = {key: np.concatenate([call[key] for call in calls]) for key in calls[0]}
        found, ms = time_call(functools.partial(self.file.run, name, calls[0]))
        if len(calls) > 1:
            found = self.file.run(name, inputs)
        errors, wanted, gaps = [], [], []
        for key, expected in self.outputs.of(inputs).items():
            if found[key].shape != expected.shape:
                raise ValueError(
                    f"output {key!r} of {self.outputs.model.name} has the shape {expected.shape} "
                    f"for {len(expected)} rows together, and {found[key].shape} from the file, "
                    "which runs a batch at a time: it must not depend on the number of rows; "
                    "return something for each row, such as its features, and compare rows outside"
                )
            errors += list(map(difference, found[key], expected))
            wanted.append(expected.ravel())
            several = expected[0].ndim and expected.shape[-1] > 1
            if several and expected.dtype.kind == "f":
                gaps.append(top_1_gaps(found[key], expected))
        # Of logits over a large vocabulary, some are enough to measure rounding.
        step = 1 + sum(x.size for x in errors) // DIFFERENCES
        self.differences[name] = [x[::step].copy() for x in errors] if step > 1 else errors
        return check(name, len(next(iter(inputs.values()))), errors, wanted, gaps, [ms])

    def _stream(self, name: str) -> Check:
        """Compares the outputs for all pieces of a source with a pass over the whole of it."""
        stream = self.file.signatures[name]
        assert isinstance(stream, Stream)
        (source,) = stream.of_kind("input")
        errors, wanted, gaps, seconds = [], [], [], list[float]()
        # Enough pieces to fill the states twice, and one that is not full.
        n = stream.inputs[source].shape[1]
        kept = max((d for x in stream.states for d in stream.inputs[x].shape[1:]), default=1)
        count = PIECES + (stream.delay + 2 * min(kept, STEPS) * stream.stride) // n
        sources = self.rows.sources(name, count)
        for values in sources:
            reader, parts = FileStream(self.file), list[dict[str, np.ndarray]]()
            for start in range(0, len(values), n):
                begin = time.perf_counter()
                parts.append(reader.append(values[start : start + n]))
                seconds.append(1e3 * (time.perf_counter() - begin))
            parts.append(reader.finish())
            for key, expected in self.outputs.of({source: values[np.newaxis]}).items():
                found = np.concatenate([part[key] for part in parts])
                errors.append(difference(found, expected[0]))
                wanted.append(expected.ravel())
                if expected.shape[-1] > 1 and expected.dtype.kind == "f":
                    gaps.append(top_1_gaps(found[np.newaxis], expected))
        self.differences[name] = errors
        return check(name, len(sources), errors, wanted, gaps, seconds)

    def _generate(self, name: str) -> Check:
        """Compares the logits of every step with a full pass over the generated tokens."""
        signature = self.file.signatures[name]
        assert isinstance(signature, Generate)
        errors, wanted, gaps = [], [], []
        first: list[np.ndarray] = []
        seconds: list[float] = []
        loop = None
        greedy = isinstance(self.strategy, Greedy) and not self.strategy.processors
        if greedy:
            batch = next(iter(signature.inputs.values())).shape[0]
            size = batch * self.outputs.model.outputs[0].shape[-1]
            content = self.file.map_content()
            loop = LoopLogits(content, name, size, self.file.threads, self.file.xnnpack)
        rows = 0
        for number in range(self.rows.calls(name)):
            inputs: Inputs = dict(self.rows.arguments(name, number))
            for key in signature.of_kind("padding"):
                inputs.pop(key, None)
            prompt = signature.prompt
            if prompt is not None:
                given, length = prompt in self.rows.given_inputs(name), inputs[prompt].shape[1]
                rows_of_prompts = inputs[prompt][:, : length if given else length - number % length]
                pad_id = pad_id_of(signature.inputs[prompt])
                inputs[prompt] = [
                    row[: max(1, unpadded_length(row, pad_id))] for row in rows_of_prompts
                ]
                if not given:
                    known = signature.inputs[prompt]
                    inputs[prompt] = [insert_placeholders(x, known) for x in inputs[prompt]]
            if loop is not None and loop.found and self.is_cut:
                steps = self._steps(loop, signature, inputs, None)
                rows, seconds = rows + len(steps), [*seconds, 0.0]
                errors += [difference(x, y) for x, y, _ in steps]
                first += [difference(x[0], y[0]) for x, y, _ in steps]
                wanted += [y.ravel() for _, y, _ in steps]
                continue
            run = functools.partial(generate_by, self.file, name, inputs)
            found, ms = time_call(run) if not number else (run(), seconds[0])
            seconds.append(ms)
            rows += len(found.tokens)
            if loop is not None and loop.found:
                steps = self._steps(loop, signature, inputs, found.tokens)
                errors += [difference(x, y) for x, y, _ in steps]
                first += [difference(x[0], y[0]) for x, y, _ in steps]
                wanted += [y.ravel() for _, y, _ in steps]
                gaps += [gaps_of(chosen, y) for _, y, chosen in steps]
            elif greedy:  # with drafts, a step has logits after wrong tokens, too
                chosen_rows = self._choices(signature, inputs, found.tokens)
                below = [gaps_of(chosen, y) for chosen, y in chosen_rows]
                errors, first, gaps = errors + below, first + below, gaps + below
                wanted += [y.ravel() for _, y in chosen_rows]
            else:
                error, scale, same = self._compare_search(signature, inputs, found)
                errors += np.split(error, len(error))
                first += np.split(error, len(error))
                wanted.append(scale)
                # Without logits there is no margin: the scores are compared.
                gaps.append(np.where(same, 0.0, np.finfo("float64").tiny))
        self.differences[name] = first
        return check(name, rows, errors, wanted, gaps, seconds)

    def _steps(
        self,
        loop: LoopLogits,
        signature: Generate,
        inputs: Inputs,
        tokens: np.ndarray | None,
    ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each row, the file's and the model's logits (T, V) of its steps; the tokens (T,).

        `tokens`: the generated ones; None: those with the file's largest logits.
        """
        target, given = signature.target, dict(inputs)
        if signature.prompt is not None:
            given[target], given["padding"] = left_padded(
                target, inputs[target], signature.inputs[target], signature.start_id
            )
        most = STEPS if self.outputs.is_large else None
        found = loop.run({key: np.asarray(x) for key, x in given.items()}, most)
        others = {key: x for key, x in inputs.items() if key != target}
        if tokens is None:
            prompts = inputs.get(target, np.full((len(found), 1), signature.start_id))
            rows = map(np.concatenate, zip(prompts, np.argmax(found, axis=-1), strict=True))
            tokens = _pad(list(rows), signature.pad_id)
        elif most is not None:
            longest = max(map(len, inputs.get(target, [[0]])))
            tokens = tokens[:, : longest + found.shape[1]]
        wanted = self._full_pass(others, target, self._with_own_pictures(inputs, target, tokens))
        result = []
        for row, ids in enumerate(tokens):
            first = len(inputs[target][row]) if target in inputs else 1
            last = min(len(ids), first + found.shape[1])
            # After the end, or after a tie that was broken differently, the tokens differ.
            chosen = np.argmax(found[row, : last - first], axis=-1)
            ends = [*signature.end_ids, *self._last_ids(target)]
            stops = np.isin(ids[first:last], ends) | (chosen != ids[first:last])
            if np.any(stops):
                last = first + int(np.argmax(stops)) + 1
            result.append(
                (found[row, : last - first], wanted[row, first - 1 : last - 1], ids[first:last])
            )
        return result

    def _choices(
        self, signature: Generate, inputs: Inputs, tokens: np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each row, the generated tokens (T,), and the model's logits (T, V) before each."""
        target = signature.target
        others = {key: x for key, x in inputs.items() if key != target}
        logits = self._full_pass(others, target, self._with_own_pictures(inputs, target, tokens))
        result = []
        for row, ids in enumerate(tokens):
            first = len(inputs[target][row]) if target in inputs else 1
            ends = [*signature.end_ids, *self._last_ids(target)]
            stops = np.flatnonzero(np.isin(ids[first:], ends))
            last = first + stops[0] + 1 if len(stops) else len(ids)
            result.append((ids[first:last], logits[row, first - 1 : last - 1]))
        return result

    def _last_ids(self, target: str) -> list[int]:
        """The generated ids after which rows are not compared, since a full pass differs.

        With layers of Keras that have rules, an id that an embedding masks: it is padding, and
        Keras's attention gives it the mean of all values, also of later ones. A step has taken it
        for a token. Also the placeholder of a model in which tokens of a picture see each other:
        a full pass takes two adjacent placeholders for a picture.
        """
        masked = self.outputs.interface.inputs[target].masked_id
        has_rules = any(find_rule(layer) is not None for layer in sublayers(self.outputs.model))
        return [*([masked] if has_rules and masked is not None else []), *self._picture_ids(target)]

    def _picture_ids(self, target: str) -> list[int]:
        known = self.outputs.interface.inputs[target]
        return [known.placeholder.token_id] if known.sees_later and known.placeholder else []

    def _with_own_pictures(self, inputs: Inputs, target: str, tokens: np.ndarray) -> np.ndarray:
        """The rows, with another id for each generated placeholder.

        In a full pass, a picture just before it would see it.
        """
        result = tokens.copy()
        for picture in self._picture_ids(target):
            for row, ids in enumerate(result):
                text = ids[len(inputs[target][row]) if target in inputs else 1 :]
                text[text == picture] = picture - 1 if picture else picture + 1
        return result

    def _full_pass(self, others: Inputs, target: str, tokens: np.ndarray) -> np.ndarray:
        """The model's logits (B, T, V) over whole rows of tokens."""
        return self.outputs.logits({**others, target: tokens.astype("int32")})

    def _compare_search(
        self, signature: Generate, inputs: Inputs, found: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Errors of the scores, the scores, and whether the tokens are equal, row by row."""
        if self._generator is None:
            self._generator = Generator(
                self.outputs.model,
                signature.max_length,
                signature.start_id,
                signature.end_id,
                self.strategy,
                signature.target,
            )
        expected = self._generator(inputs)
        same = (found.tokens == expected.tokens).all(axis=-1).ravel()
        exact = not self.file.manifest.is_rounded
        if found.scores is None:
            return (~same & exact).astype("float64"), np.ones(len(same)), same
        scores, wanted = np.asarray(found.scores), np.asarray(expected.scores, "float64")
        error = difference(scores, wanted)
        beam = self.strategy
        if isinstance(beam, Beam) and not (exact or same.all() or beam.processors):
            # Rounding may lead the search to another hypothesis, which the model scores otherwise.
            # That the search itself is right is seen with unrounded weights.
            own = self._scores(beam, signature, inputs, found.tokens)
            error = np.where(same, error, difference(scores, own.reshape(scores.shape)))
        return error, wanted.ravel(), same

    def _scores(
        self, beam: Beam, signature: Generate, inputs: Inputs, tokens: np.ndarray
    ) -> np.ndarray:
        """The model's scores of hypotheses (B, T) or (B, N, T), flat."""
        rows, target = tokens.reshape(-1, tokens.shape[-1]), signature.target
        each = len(rows) // len(tokens)
        repeated = {
            key: [row for row in x for _ in range(each)] if key == target else np.repeat(x, each, 0)
            for key, x in inputs.items()
        }
        return np.array(
            [
                log_probability(ids, logits) / float(beam.divisor(len(ids)))
                for ids, logits in self._choices(signature, repeated, rows)
            ]
        )

    def _encode(self, name: str) -> Check:
        """Compares the logits of the steps that read the encoder's result."""
        return self._check_steps(name, self._run_steps(encode=name, steps=2))

    def _prefill(self, name: str) -> Check:
        """Compares the logits of the steps after two chunks and half a chunk of the prefill.

        Of a large model, after one and a half. For a prefill that returns logits, those of steps
        with right drafts.
        """
        signature = self.file.signatures[name]
        assert isinstance(signature, Prefill)
        if signature.verifies:
            most = STEPS if self.outputs.is_large else None
            return self._check_steps(name, self._run_steps(with_drafts=True, steps=most))
        length = signature.inputs[host_loop.decode_of(self.file).target].shape[1]
        most = (signature.capacity or length) // length * length
        count = min((1 if self.outputs.is_large else 2) * length + (length + 1) // 2, most)
        return self._check_steps(name, self._run_steps(prefill=name, before=count, steps=2))

    def _decode(self, name: str) -> Check:
        """Compares the logits at the positions where caches of this capacity are used.

        Of a large model, at the first of them.
        """
        decodes = of_role(self.file.signatures, Decode)
        capacity = decodes[name].capacity
        smaller = max((x.capacity for x in decodes.values() if x.capacity < capacity), default=0)
        if self.outputs.is_large:
            return self._check_steps(name, self._run_steps(before=smaller, steps=STEPS))
        return self._check_steps(name, self._all_steps, slice(smaller, capacity))

    def _check_steps(
        self, name: str, runs: list["_SteppedLogits"], steps: slice = slice(None)
    ) -> Check:
        found = np.concatenate([run.found[:, steps] for run in runs])
        full = np.concatenate([run.full[:, steps] for run in runs])
        errors = self.differences[name] = list(map(difference, found, full))
        times = [float(ms) for run in runs for ms in run.ms[steps]]
        return check(name, len(found), errors, [full.ravel()], [top_1_gaps(found, full)], times)

    @functools.cached_property
    def _all_steps(self) -> list["_SteppedLogits"]:
        return self._run_steps()

    def _run_steps(
        self,
        encode: str | None = None,
        prefill: str | None = None,
        before: int = 0,
        steps: int | None = None,
        with_drafts: bool = False,
    ) -> list["_SteppedLogits"]:
        """Runs the same tokens step by step and in one full pass.

        Args:
            encode: the name of the "encode" signature; default: the longest.
            prefill: the name of the "prefill" signature that reads the prompt.
            before: the number of tokens before the first step.
            steps: the number of steps; default: up to max_length.
            with_drafts: whether steps read several tokens, drafts that are right.
        """
        name, decode = list(of_role(self.file.signatures, Decode).items())[-1]
        target, length = decode.target, decode.max_length
        source = encode or next(reversed(of_role(self.file.signatures, Encode)), None)
        first = min(before + 1, length - 1)
        result = []
        for number in range(self.rows.stepped_batches(decode)):
            inputs = self.rows.arguments(source, number) if source else {}
            for key, x in self.rows.arguments(name, number).items():
                if key in self.outputs.interface.inputs and key not in inputs:
                    inputs[key] = x
            tokens = self.rows.tokens(decode, number)
            inputs[target] = tokens[:, :first]
            found: list[np.ndarray] = []

            def force(
                logits: np.ndarray, tokens: np.ndarray = tokens, found: list[np.ndarray] = found
            ) -> np.ndarray:
                found.append(logits)
                return tokens[:, first + len(found) - 1]

            def right(
                known: np.ndarray, count: int, _: object, tokens: np.ndarray = tokens
            ) -> np.ndarray:
                longer = np.pad(tokens, [(0, 0), (0, count)])
                return longer[:, known.shape[1] :][:, :count]

            times, begun = [], time.perf_counter()
            draft = right if with_drafts else None
            for _ in host_loop.stream(self.file, inputs, force, prefill, draft):
                times.append(1e3 * (time.perf_counter() - begun))
                if len(times) == steps:
                    break
                begun = time.perf_counter()
            others = {key: x for key, x in inputs.items() if key != target}
            if self.outputs.is_large:
                tokens = tokens[:, : first - 1 + len(found)]
            full = self._full_pass(others, target, tokens)[:, first - 1 :][:, : len(found)]
            result.append(_SteppedLogits(np.stack(found, axis=1), full, np.array(times)))
        return result


class Comparisons:
    """The models and a file exported from them: each signature is compared with its own model.

    Args:
        outputs: the outputs of each model by name; of a file of one model, the name is "".
        file: the loaded file.
        inputs: dict of arrays, rows of the model's inputs, or a dict of such by model; None: random
            ones.
        strategy: the strategy of "generate".
        is_of_weights: as of `Comparison`.
    """

    def __init__(
        self,
        outputs: dict[str, ModelOutputs],
        file: LoadedFile,
        inputs: Inputs | None,
        strategy: Strategy,
        is_of_weights: bool = False,
    ):
        self.outputs, self.file, self.inputs, self.strategy = outputs, file, inputs, strategy
        given = inputs or {}
        self._parts = {
            name: Comparison(
                one,
                file.models[name] if name else file,
                given.get(name) if name else inputs,
                strategy,
                is_of_weights,
            )
            for name, one in outputs.items()
        }

    def of(self, name: str) -> Check:
        """The check of one signature."""
        return self._parts[self.file.signatures[name].model or ""].of(name)

    @property
    def differences(self) -> dict[str, list[np.ndarray]]:
        """As those of `Comparison`."""
        return {key: x for part in self._parts.values() for key, x in part.differences.items()}


def _pad(rows: list[np.ndarray], pad_id: int) -> np.ndarray:
    """Rows of ids as an array (B, T), padded on the right."""
    tokens = np.full((len(rows), max(map(len, rows))), pad_id, "int32")
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = ids
    return tokens


class _SteppedLogits(NamedTuple):
    """Logits (B, T, V) of the steps and of the full pass, and milliseconds (T,) per step."""

    found: np.ndarray
    full: np.ndarray
    ms: np.ndarray
