"""The inputs that a verification runs: the caller's rows, or random ones."""

import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import keras
import numpy as np

from keras_tfm.export.signatures.input_numbers import InputNumbers
from keras_tfm.generation.interface import interface_of
from keras_tfm.runtime.checked_inputs import pad_id_of
from keras_tfm.runtime.decoding.special_ids import unpadded_length
from keras_tfm.runtime.inspection.random_inputs import (
    Numbers,
    insert_placeholders,
    is_mask,
    random_inputs,
)
from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.manifest.manifest import Decode, Input, Predict, Stepped, Stream
from keras_tfm.runtime.manifest.manifest import Signature as FileSignature
from keras_tfm.runtime.tasks.source_stream import UNKNOWN_END

# Rows of a model's inputs, by name: arrays, or lists of rows of different lengths.
Inputs = dict[str, Any]

# The minimum and maximum number of calls per signature with random inputs. Within these limits they
# cover the vocabulary. A decoding loop takes as long as many calls of "predict".
CALLS = {"predict": (2, 64), "generate": (2, 4), "decode": (2, 4), "stream": (2, 2)}
# Of few outputs, such as one probability, the error of one rounding says little of another's, and
# one row less still, whose outputs have the error of the same weights. The least number of outputs
# in the calls of "predict" and "stream"; the other signatures have logits over a vocabulary.
FEW_OUTPUTS = 64
# The numbers of calls that these may cost: more of a small model, up to this many weights in all.
_MORE_CALLS = (4, FEW_OUTPUTS)
_MORE_WEIGHTS = 50_000_000
# The minimum number of pieces of a source in a call of "stream".
PIECES = 4
# The maximum number of outputs in the calls of a signature, 0.3 GB, unless the minimum of calls has
# more. A check has several copies: logits over a large vocabulary would fill the memory.
OUTPUTS = 1 << 26
# What the report says of an input of which the model tells nothing.
GUESS = "normally distributed numbers, as nothing in the model tells the scale of real ones"


class VerificationRows:
    """Inputs for the signatures of a file.

    Args:
        file: the loaded file.
        given: rows of the model's inputs by name, of any lengths; None: random rows.
        numbers: the distribution of inputs of numbers by name, where it is known.
        is_large: bool, whether the model is so large that one call of each signature is enough, or
            a few calls of one with few outputs.
        weights: int, number of the model's weights.
    """

    def __init__(
        self,
        file: LoadedFile,
        given: Inputs | None,
        numbers: Mapping[str, Numbers] = MappingProxyType({}),
        is_large: bool = False,
        weights: int = 0,
    ):
        self.file, self.given, self.numbers, self.is_large = file, given, numbers, is_large
        self.weights = weights

    def arguments(self, name: str, number: int) -> dict[str, np.ndarray]:
        """The arguments of call `number` of a signature, for the model and the file.

        Random ids cycle through the vocabulary, so that the calls together cover it. Every second
        call has padding in its last quarter, half, or three quarters.
        """
        inputs = self.file.signatures[name].inputs
        arrays = random_inputs(inputs, number, self.numbers)
        for key, x in arrays.items():
            size, pad_id = inputs[key].vocabulary_size, inputs[key].pad_id
            if size is not None and size > 1 and x.dtype.kind in "iu":
                # Ids of more than two axes, as of an alignment, have no padding id.
                ids = np.setdiff1d(np.arange(size), [] if pad_id is None else pad_id)
                x = _in_turn(ids, number, x.shape).astype(x.dtype)
                arrays[key] = x = insert_placeholders(x, inputs[key])
            if number % 2 and inputs[key].padded:
                quarters = (2, 1, 3)[number // 2 % 3]
                x[:, max(1, x.shape[1] * quarters // 4) :] = pad_id or 0
            if pad_id is not None and inputs[key].end_id is not None:
                length = unpadded_length(x[0], pad_id)
                x[:, max(0, length - 1)] = inputs[key].end_id
        rows = self._fitting(name)
        if rows:
            for key in self.given_inputs(name):
                arrays[key] = self._chunk(key, arrays[key], inputs[key], rows, number)
        return arrays

    def given_inputs(self, name: str) -> list[str]:
        """The inputs of a signature that the caller provided, except the token of a step."""
        signature = self.file.signatures[name]
        stepped = signature.target if isinstance(signature, Decode) else None
        return [x for x in signature.inputs if x in (self.given or {}) and x != stepped]

    def calls(self, name: str) -> int:
        """The number of calls of a signature: they cover the given rows, or the vocabulary."""
        rows = self._fitting(name)
        signature = self.file.signatures[name]
        batch = next(iter(signature.inputs.values())).shape[0]
        if rows:
            return -(-len(rows) // batch)
        few = self._calls_of_few_outputs(signature)
        if self.is_large:
            return few
        sizes = [
            -(-x.vocabulary_size // int(np.prod(x.shape)))
            for x in signature.inputs.values()
            if x.vocabulary_size is not None
        ]
        least, most = CALLS[signature.role]
        size = sum(int(np.prod(x.shape)) for x in signature.outputs.values())
        most = max(least, min(most, OUTPUTS // max(1, size)))
        # On average, padding replaces half of the ids in half of the calls.
        return max(few, min(most, max([least, *(-(-4 * size // 3) for size in sizes)])))

    def _calls_of_few_outputs(self, signature: FileSignature) -> int:
        """The number of calls for enough outputs; 1 if a call has as many, or logits."""
        if isinstance(signature, Predict):
            names, pieces = list(signature.outputs), 1
        elif isinstance(signature, Stream):
            names, pieces = signature.results, PIECES
        else:
            return 1
        size = pieces * sum(int(np.prod(signature.outputs[name].shape)) for name in names)
        batch = next(iter(signature.inputs.values())).shape[0]
        least, most = _MORE_CALLS
        affordable = max(least, _MORE_WEIGHTS // max(1, self.weights * batch * pieces))
        return max(1, min(-(-FEW_OUTPUTS // max(1, size)), affordable, most))

    def stepped_batches(self, decode: Decode) -> int:
        """The number of batches of tokens to decode step by step."""
        if self.given is not None or self.is_large:
            return 1
        count = decode.inputs[decode.target].shape[0] * decode.max_length
        least, most = CALLS["decode"]
        return min(most, max(least, -(-decode.vocabulary_size // count)))

    def sources(self, name: str, pieces: int) -> list[np.ndarray]:
        """Sources for a signature "stream": the given ones, or `pieces` random pieces each.

        The last piece is not full.
        """
        stream = self.file.signatures[name]
        (source,) = stream.of_kind("input")
        expected = stream.inputs[source]
        if self.given is not None and source in self.given:
            return [np.asarray(row, expected.dtype) for row in self.given[source]]
        n, calls = expected.shape[1], self.calls(name)
        rows = [self.arguments(name, i)[source][0] for i in range(calls * pieces)]
        ends = range(pieces, len(rows) + 1, pieces)
        return [np.concatenate(rows[i - pieces : i])[: pieces * n - n // 2] for i in ends]

    def tokens(self, decode: Decode, number: int) -> np.ndarray:
        """Tokens (B, T) to decode step by step: the given ones, then random ones."""
        target = decode.target
        token, pad_id = decode.inputs[target], pad_id_of(decode.inputs[target])
        size = token.vocabulary_size or decode.vocabulary_size
        ids = np.arange(size) if size == 1 else np.setdiff1d(np.arange(size), pad_id)
        # No end token, which would stop the steps before the caches are full.
        ids = ids if np.isin(ids, decode.end_ids).all() else np.setdiff1d(ids, decode.end_ids)
        shape = (token.shape[0], decode.max_length)
        tokens = insert_placeholders(_in_turn(ids, number, shape), token)
        if self.given is not None and target in self.given:
            for row, given in zip(tokens, itertools.cycle(self.given[target]), strict=False):
                known = given[: unpadded_length(given, pad_id)][: len(row)]
                row[: len(known)] = known
        return tokens.astype("int32")

    def _fitting(self, name: str) -> list[int]:
        """The indices of the given rows that are short enough; empty: random rows are used."""
        keys = self.given_inputs(name)
        if self.given is None or not keys:
            return []
        inputs = self.file.signatures[name].inputs
        return [
            i
            for i in range(len(self.given[keys[0]]))
            if all(
                n <= m
                for key in keys
                for n, m in zip(np.shape(self.given[key][i]), inputs[key].shape[1:], strict=True)
            )
        ]

    def _chunk(
        self, key: str, like: np.ndarray, expected: Input, rows: list[int], number: int
    ) -> np.ndarray:
        """The given rows of call `number`, in the shape of `like`, padded."""
        assert self.given is not None
        result = np.full_like(like, expected.pad_id or 0)
        for i in range(len(like)):
            row = np.asarray(self.given[key][rows[(number * len(like) + i) % len(rows)]])
            result[i][tuple(slice(n) for n in row.shape)] = row
        return result


def _in_turn(ids: np.ndarray, number: int, shape: tuple[int, ...]) -> np.ndarray:
    """Part `number` of an endless sequence of all ids, each time in a new random order."""
    count = int(np.prod(shape))
    rounds = range(number * count // len(ids), (number + 1) * count // len(ids) + 1)
    taken = np.concatenate([np.random.default_rng(x).permutation(ids) for x in rounds])
    start = number * count - rounds[0] * len(ids)
    return taken[start : start + count].reshape(shape)


def inputs_of(
    file: LoadedFile, given: Inputs | None, numbers: Mapping[str, InputNumbers]
) -> dict[str, str]:
    """What a verification runs as each input of a file, in words.

    Args:
        file: the file, or the part of one model.
        given: dict, rows by input that the caller gave, if any.
        numbers: dict of `InputNumbers` by input, the scales that the model's layers imply.
    """
    result: dict[str, str] = {}
    for signature in file.signatures.values():
        for name, x in signature.inputs.items():
            if x.kind != "input" or name in result:
                continue
            if name in (given or {}):
                result[name] = f"{len((given or {})[name])} rows given"
            elif x.vocabulary_size is not None:
                result[name] = f"random ids below {x.vocabulary_size}"
            elif x.dtype == "bool" or is_mask(name, x.vocabulary_size):
                result[name] = "random masks"
            elif x.is_audio:
                result[name] = "noise"
            elif name in numbers:
                source = numbers[name].source
                told = f"random numbers of the scale that {source} tell"
                result[name] = GUESS if source is None else told
            elif x.dtype.endswith("int8"):
                result[name] = f"random {x.dtype}"
            else:
                result[name] = (
                    "random 0 and 1, as nothing in the model tells the range of real ones"
                )
    return result


def check_given(model: keras.Model, file: LoadedFile, given: Inputs) -> None:
    """Raises unless every given row fits one of the exported lengths."""
    specs = {name: x.spec for name, x in interface_of(model).inputs.items()}
    taken = {key for x in file.signatures.values() for key in x.inputs}
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
            [UNKNOWN_END, *x.inputs[name].shape[2:]]
            if isinstance(x, Stream)
            else x.inputs[name].shape[1:]
            for x in file.signatures.values()
            if name in x.inputs and not (isinstance(x, Decode) and x.target == name)
        ]
        stepped = [x for x in file.signatures.values() if isinstance(x, Stepped)]
        shapes += [[x.max_length] for x in stepped if x.target == name]
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
