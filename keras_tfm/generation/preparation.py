"""Checks the inputs of generation, and pads the prompts to one length.

Example:

>>> from keras_tfm.generation.preparation import end_ids_of
>>> end_ids_of(2), end_ids_of([2, 7]), end_ids_of(None)
((2,), (2, 7), ())
"""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.generation.interface import interface_of
from keras_tfm.generation.stepped_model import table_length
from keras_tfm.layers.types import Tensor
from keras_tfm.runtime.decoding.special_ids import (
    REAL_PAD,
    TokenRows,
    check_last_tokens,
    check_placeholders,
    unpadded_prompts,
)


class Prepared(NamedTuple):
    """The inputs of a loop.

    Attributes:
        arrays: dict of the model's inputs without the stepped one.
        prompt: (B, P), int32, padded on the left.
        padding: (B,), int32, number of padding columns of each row; optional.
        limit: (B,), int32, number of columns that each row may use. None: all.
        seed: (2,), integers.
        length: int, number of columns of the loop.
        longest: int, number of columns of the result.
    """

    arrays: dict[str, np.ndarray]
    prompt: np.ndarray
    padding: np.ndarray | None
    limit: np.ndarray | None
    seed: np.ndarray
    length: int
    longest: int

    def repeat_rows(self, n: int) -> "Prepared":
        """The same inputs with each row n times."""
        if n == 1:
            return self

        def rows(x: np.ndarray | None) -> Any:
            return None if x is None else np.repeat(x, n, axis=0)

        return self._replace(
            arrays={name: rows(x) for name, x in self.arrays.items()},
            prompt=rows(self.prompt),
            padding=rows(self.padding),
            limit=rows(self.limit),
        )

    @property
    def shortest(self) -> int:
        """The smallest number of columns that a row may use, besides its padding."""
        if self.padding is None or self.limit is None:
            return self.length
        return int(np.min(self.limit - self.padding, initial=self.length))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The arguments of the compiled functions."""
        seed = ops.convert_to_tensor(self.seed, dtype="int32")
        arrays = {name: divided_rows(x) for name, x in self.arrays.items()}
        return arrays, *map(divided_rows, (self.prompt, self.padding, self.limit)), seed


def divided_rows(x: np.ndarray | None) -> Tensor | None:
    """In the scope of a `keras.distribution`, divides rows between its devices, as `fit` does.

    Every device gets all rows if the number of devices does not divide the number of rows, or if
    there are several processes, because each of them returns all rows.
    """
    distribution = keras.distribution.distribution()
    if x is None or distribution is None or distribution.num_processes > 1:
        return x
    mesh = distribution.device_mesh
    if len(x) % mesh.shape[list(mesh.axis_names).index(distribution.batch_dim_name)]:
        return x
    return keras.distribution.distribute_tensor(x, distribution.get_data_layout(x.shape))


class Preparation:
    """Converts the inputs of a call to those of a `GenerationLoop`.

    Args:
        model: functional model.
        target: str, name of the stepped input.
        max_length: int, maximum number of tokens of a row, including the prompt. None with
            `max_new_tokens`.
        max_new_tokens: int, maximum number of tokens after the prompt. None with `max_length`.
        start_id: int, the first token of every row without a prompt; optional.
    """

    def __init__(
        self,
        model: keras.Model,
        target: str,
        max_length: int | None,
        max_new_tokens: int | None,
        start_id: int | None,
    ):
        self.model, self.target = model, target
        self.max_length, self.max_new_tokens = max_length, max_new_tokens
        self.start_id = start_id
        self._inputs = interface_of(model).inputs
        masked = self._inputs[target].masked_id
        self.masks_padding, self.pad_id = masked is not None, masked or 0
        self.table_length = table_length(model, target)

    def __call__(self, inputs: Any, seed: int | None = None) -> Prepared:
        """Checks the inputs, and pads the prompts on the left to one length."""
        arrays, rows = self._by_name(inputs)
        if rows is None:
            if self.start_id is None:
                raise ValueError(f"give a start_id, or prompts as the input {self.target!r}")
            if not arrays:
                raise ValueError(f"the input {self.target!r} must hold prompts, got none")
            rows = np.full((len(next(iter(arrays.values()))), 1), self.start_id, "int32")
        counts = {name: len(x) for name, x in {**arrays, self.target: rows}.items()}
        if len(set(counts.values())) != 1:
            raise ValueError(f"all inputs must have the same number of rows, got {counts}")
        lengths = np.array([len(row) for row in rows], "int32")
        longest = int(lengths.max(initial=1))
        if self.table_length is not None and longest > self.table_length:
            raise ValueError(
                f"a prompt must have at most {self.table_length} tokens, the length of the "
                f"position table, got {longest}"
            )
        width = self._width(longest)
        padding = width - lengths
        if self.max_new_tokens is None:
            assert self.max_length is not None
            if len(lengths) and not (lengths.min() > 0 and longest < self.max_length):
                raise ValueError(
                    "a prompt must have at least one token and fewer than max_length "
                    f"({self.max_length}), got {lengths.min()} to {longest}"
                )
            ends = np.full(len(lengths), self.max_length, "int32")
            length = self.max_length
            if padding.any():
                length += 1 << int(padding.max() - 1).bit_length()
        else:
            if len(lengths) and not lengths.min():
                raise ValueError("a prompt must have at least one token, got 0")
            ends = lengths + np.int32(self.max_new_tokens)
            length = width + self.max_new_tokens
        prompt = np.full((len(lengths), width), self.pad_id, "int32")
        for row, tokens, before in zip(prompt, rows, padding, strict=True):
            row[before:] = tokens
        is_padded = bool(padding.any())
        return Prepared(
            arrays,
            prompt,
            padding.astype("int32") if is_padded else None,
            (padding + ends).astype("int32") if is_padded else None,
            np.random.SeedSequence(seed).generate_state(2).astype("int64") % (2**31 - 1),
            length,
            int(ends.max(initial=self.max_length or 1)),
        )

    def _width(self, longest: int) -> int:
        """The columns of a batch of prompts: a power of two, or the length of the position table.

        A few graphs serve prompts of all lengths.
        """
        width = 1 << (longest - 1).bit_length()
        return width if self.table_length is None else min(width, self.table_length)

    def _by_name(self, inputs: Any) -> tuple[dict[str, np.ndarray], Any]:
        """The inputs by name, and the rows of the prompt; None without a prompt."""
        others = [name for name in self._inputs if name != self.target]
        if not isinstance(inputs, dict):
            if len(others) > 1:
                raise ValueError(f"the model has inputs {others}: give a dictionary of arrays")
            inputs = {(others or [self.target])[0]: inputs}
        missing = [name for name in others if name not in inputs]
        surplus = [name for name in inputs if name not in self._inputs]
        if missing or surplus:
            raise ValueError(
                f"inputs must be {others} and may have {self.target!r}; "
                f"missing: {missing}, unknown: {surplus}"
            )
        inputs = dict(inputs)
        rows = inputs.pop(self.target, None)
        if rows is not None:
            rows = self._rows(rows)
        arrays = {}
        for name, x in inputs.items():
            spec = self._inputs[name].spec
            try:
                array = np.asarray(ops.convert_to_numpy(x))
            except ValueError:  # lists of several lengths
                raise ValueError(
                    f"input {name!r} must be an array {tuple(spec.shape)}, got rows of other "
                    "lengths: pad them"
                ) from None
            wanted = spec.dtype
            if "int" in wanted and not np.issubdtype(array.dtype, np.integer):
                raise TypeError(f"input {name!r} must be integers, got {array.dtype}")
            if wanted == "bool" and array.dtype.kind not in "biu":
                raise TypeError(f"input {name!r} must be bool, got {array.dtype}")
            if array.ndim != len(spec.shape):
                raise ValueError(
                    f"input {name!r} must have shape {tuple(spec.shape)}, got {array.shape}"
                )
            self._check_range(name, array)
            arrays[name] = array.astype(wanted)
        return arrays, rows

    def _rows(self, rows: Any) -> list[np.ndarray]:
        """The prompts, each (P,), int32, without padding."""
        is_array, is_text = not isinstance(rows, list | tuple), isinstance(rows, TokenRows)
        if is_array:
            rows = ops.convert_to_numpy(rows)
            if rows.ndim != 2:
                raise ValueError(f"a prompt must have shape (B, P), got {rows.shape}")
        result = []
        for row in rows:
            array = np.asarray(row)
            if array.size and not np.issubdtype(array.dtype, np.integer):
                raise TypeError(f"input {self.target!r} must be integers, got {array.dtype}")
            if array.ndim != 1:
                raise ValueError(
                    f"a prompt must have shape (B, P) or be a list of rows, got a row {array.shape}"
                )
            self._check_range(self.target, array)
            result.append(array.astype("int32"))
        result = unpadded_prompts(
            self.target,
            result,
            self.pad_id,
            self.start_id,
            self.masks_padding,
            is_array,
            is_text,
        )
        known = self._inputs[self.target]
        if known.placeholder is not None:
            check_placeholders(self.target, result, *known.placeholder)
        if known.placeholder is not None and known.sees_later:
            check_last_tokens(self.target, result, known.placeholder.token_id)
        return result

    def _check_range(self, name: str, ids: np.ndarray) -> None:
        known = self._inputs[name]
        own = [known.masked_id, None if known.padding is None else REAL_PAD]
        ids = ids[~np.isin(ids, [x for x in own if x is not None])]
        size = known.vocabulary_size
        if size is not None and ids.size and (ids.min() < 0 or ids.max() >= size):
            raise ValueError(f"{name}: ids must be in 0..{size - 1}, got {ids.min()}..{ids.max()}")


def end_ids_of(end_id: int | Sequence[int] | None) -> tuple[int, ...]:
    """The end tokens as a tuple; empty for None."""
    if end_id is None:
        return ()
    try:
        return (operator.index(end_id),)  # type: ignore[arg-type]
    except TypeError:
        pass
    try:
        return tuple(operator.index(value) for value in end_id)  # type: ignore[union-attr]
    except TypeError as error:
        raise TypeError(
            f"end_id must be an integer, several integers or None, got {end_id!r}"
        ) from error


def check_ids(
    model: keras.Model, target: str, max_length: int, start_id: int | None, end_ids: Sequence[int]
) -> None:
    """Raises if max_length or a special token does not fit the model's logits."""
    check_integer("max_length", max_length)
    if max_length < 2:
        raise ValueError(
            f"max_length must be at least 2, the start token included, got {max_length}"
        )
    outputs = [len(x.shape) for x in model.outputs]
    if outputs not in ([3], [3, 4]):  # logits (B, T, V), and drafts (B, T, n, V)
        raise ValueError(
            "generation needs a model with one output, the logits, or with draft heads besides; "
            f"got {len(model.outputs)} outputs: choose the logits, keras.Model(model.input, logits)"
        )
    size = model.outputs[0].shape[-1]
    taken = interface_of(model).inputs[target].vocabulary_size or size
    if taken < size:
        raise ValueError(
            f"the logits are over {size} ids, but the input {target!r} takes only {taken}"
        )
    # A start token may be an input that is never generated.
    known = [("start_id", start_id, taken), *(("end_id", end_id, size) for end_id in end_ids)]
    for name, value, limit in known:
        check_integer(name, value, None, optional=True)
        if value is not None and not 0 <= value < limit:
            raise ValueError(f"{name} must be in 0..{limit - 1}, got {value}")
