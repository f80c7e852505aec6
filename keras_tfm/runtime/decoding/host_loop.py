"""The decoding loop on the host: `encode`, `prefill` and `decode`, driven token by token.

The KV caches are arguments of `prefill` and `decode`. They stay in LiteRT's memory, and each step
writes only its new entries there.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_tfm.runtime.decoding.sampling import Choose
from keras_tfm.runtime.decoding.steps import Steps
from keras_tfm.runtime.litert_internals import as_value_errors
from keras_tfm.runtime.manifest.fields import by_length

# From the tokens so far (B, n), and a number, to that many guesses of the next tokens (B, number).
Guess = Callable[[np.ndarray, int], np.ndarray]


class CopiedBuffers:
    """The interface of `litert_internals.Buffers` for a runner that copies its arguments."""

    def __init__(self, runner: Callable[..., dict[str, np.ndarray]], signature: dict[str, Any]):
        self._runner = runner
        self.inputs = {
            name: np.zeros(spec["shape"], spec["dtype"])
            for name, spec in signature["inputs"].items()
        }

    def run(self) -> dict[str, np.ndarray]:
        """The results for the arguments in `inputs`."""
        with as_value_errors():
            return self._runner(**self.inputs)


def step(
    signatures: dict[str, dict[str, Any]],
    buffers: Callable[[str], Any],
    known: dict[str, np.ndarray],
    prompt: np.ndarray,
    choose: Choose,
    guess: Guess | None = None,
) -> Iterator[np.ndarray]:
    """Yields the tokens (B,) of each step; the target's pad id for rows that have ended.

    Args:
        signatures, buffers, known: as in `Steps`.
        prompt: (B, P), at least one column.
        choose: logits (B, V) -> tokens (B,).
        guess: a draft; a step reads what it guesses, and each row advances by the tokens that are
            right in all rows.
    """
    settings = signatures[by_length(signatures, "decode")[-1]]
    ends = np.array(end_ids_of(settings), "int64")
    steps = Steps(signatures, buffers, known, len(prompt))
    steps.read(prompt, prompt.shape[1] - 1)
    ended = np.zeros(len(prompt), bool)
    if guess is not None:
        yield from _verified(steps, settings, prompt, choose, guess)
        return
    token = prompt[:, -1:]
    while steps.position + 1 < settings["max_length"]:
        logits = steps.decode(token)
        chosen = checked_tokens(choose(logits), ended, logits.shape[-1], settings["pad_id"])
        yield chosen.astype("int32")
        ended |= (chosen[:, np.newaxis] == ends).any(axis=1)
        if ended.all():
            return
        token = chosen[:, np.newaxis]


def _verified(
    steps: Steps, settings: dict[str, Any], prompt: np.ndarray, choose: Choose, guess: Guess
) -> Iterator[np.ndarray]:
    """`step` with a draft, after the prompt but its last token has been read."""
    ends, length = np.array(end_ids_of(settings), "int64"), settings["max_length"]
    ended = np.zeros(len(prompt), bool)
    tokens = np.full((len(prompt), length), settings["pad_id"], "int32")
    last = prompt.shape[1] - 1  # the column of the last certain token
    tokens[:, : last + 1] = prompt
    count = steps.drafted
    while last + 1 < length:
        guesses = guess(tokens[:, : last + 1], count)[:, : length - 1 - last]
        tokens[:, last + 1 :][:, : guesses.shape[1]] = guesses
        logits = steps.verify(tokens)
        for i in range(min(logits.shape[1], length - 1 - last)):
            chosen = checked_tokens(
                choose(logits[:, i]), ended, logits.shape[-1], settings["pad_id"]
            )
            last += 1
            # After the last of a step's tokens there is no draft.
            wrong = i + 1 == logits.shape[1] or np.any((chosen != tokens[:, last]) & ~ended)
            tokens[:, last] = chosen
            yield chosen.astype("int32")
            ended |= (chosen[:, np.newaxis] == ends).any(axis=1)
            if ended.all():
                return
            if wrong:
                break
        steps.rewind(last)


def end_ids_of(settings: dict[str, Any]) -> list[int]:
    """The end tokens of a signature's settings."""
    ids: list[int] = (
        [] if settings["end_id"] is None else np.atleast_1d(settings["end_id"]).tolist()
    )
    return ids


def checked_tokens(chosen: Any, ended: np.ndarray, size: int, pad_id: int) -> np.ndarray:
    """The chosen tokens (B,), checked; `pad_id` for rows that have ended."""
    tokens = np.asarray(chosen)
    if tokens.shape != ended.shape or tokens.dtype.kind not in "iu":
        raise TypeError(
            f"choose must return integer tokens of shape {ended.shape}, got "
            + (f"{tokens.dtype} {tokens.shape}" if tokens.ndim else type(chosen).__name__)
        )
    checked = tokens[~ended]
    if checked.min() < 0 or checked.max() >= size:
        raise ValueError(f"choose must return tokens in 0..{size - 1}, got {checked.tolist()}")
    return np.where(ended, pad_id, tokens)


def prompt_of(rows: Sequence[np.ndarray], name: str) -> np.ndarray:
    """Prompts of one length as an array (B, P), int32."""
    lengths = {len(row) for row in rows}
    if len(lengths) != 1:
        raise ValueError(
            f"{name}: prompts that are stepped together must have one length, got {sorted(lengths)}"
        )
    return np.stack(rows).astype("int32")
