"""Generation with "encode", "prefill" and "decode": the decoding loop runs on the host."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_tfm.runtime.checked_inputs import (
    check_prompt_length,
    filled_batch,
    fit,
    prompt_rows,
    prompt_spec,
    separate_rows,
)
from keras_tfm.runtime.decoding.drafts import Draft, checked_drafts
from keras_tfm.runtime.decoding.host_loop import Guess, prompt_of, step
from keras_tfm.runtime.decoding.sampling import Choose, Sampler, chooser
from keras_tfm.runtime.decoding.trailing_padding import REAL_PAD
from keras_tfm.runtime.manifest.fields import by_length, of_kind
from keras_tfm.runtime.signature_runner import SignatureRunner


def stream(
    runner: SignatureRunner,
    inputs: Any,
    choose: Choose | Sampler | None,
    prefill: str | None = None,
    draft: Draft | None = None,
) -> Iterator[np.ndarray]:
    """Yields the tokens (B,) of each step; see `Model.stream` and `Model.stream_by`."""
    decode = runner.signatures[runner.names("decode")[-1]]
    target = decode["target"]
    inputs = _by_name(runner, inputs, target)
    if target in inputs:
        inputs[target] = prompt_rows(
            target, inputs[target], prompt_spec(decode), decode["start_id"]
        )
    yield from _stream(runner, inputs, choose, prefill, draft)


def _stream(
    runner: SignatureRunner,
    inputs: dict[str, Any],
    choose: Choose | Sampler | None,
    prefill: str | None = None,
    draft: Draft | None = None,
) -> Iterator[np.ndarray]:
    """`stream` of inputs by name, with prompts that are checked."""
    decode = runner.signatures[runner.names("decode")[-1]]
    target, batch = decode["target"], decode["inputs"][decode["target"]]["shape"][0]
    given = inputs.pop(target, None)
    known = _known(runner, decode, inputs)
    rows = next((len(x) for x in known.values()), batch)
    if given is not None:
        prompt, rows = prompt_of(given, target), len(given)
    elif decode["start_id"] is None:
        raise ValueError(f"{runner.path} was exported without a start_id: give {target!r}")
    else:
        prompt = np.full((rows, 1), decode["start_id"], "int32")
    for x in known.values():
        if len(x) != rows:
            raise ValueError(
                f"all inputs must have the same number of rows, got {len(x)} and {rows}"
            )
    if not 0 < rows <= batch:
        raise ValueError(f"{runner.path} decodes at most {batch} rows at once, got {rows}")
    check_prompt_length(prompt.shape[1], decode["max_length"])
    guess = None if draft is None else _guess(runner, draft, inputs, rows, batch)
    known = {key: filled_batch(x, batch) for key, x in known.items()}
    steps = step(
        {
            name: signature
            for name, signature in runner.signatures.items()
            if prefill is None or signature["role"] != "prefill" or name == prefill
        },
        runner.buffers,
        known,
        filled_batch(prompt, batch),
        chooser(choose, filled_batch(prompt, batch)),
        guess,
    )
    with runner.lock:
        number = runner.cache_user = runner.cache_user + 1
    while True:
        with runner.lock:
            _ = runner.runners  # raises if the model was closed
            if number != runner.cache_user:
                raise RuntimeError(
                    "another stream has begun, or 'decode' has run, and one file has one set "
                    "of caches: load it twice to run two side by side"
                )
            tokens = next(steps, None)
        if tokens is None:
            return
        yield tokens[:rows]


def _guess(
    runner: SignatureRunner, draft: Draft, inputs: dict[str, Any], rows: int, batch: int
) -> Guess:
    """The draft as a function of the tokens (batch, n) and a number of tokens."""
    if not any("logits" in x["outputs"] for x in runner.signatures.values() if _is_prefill(x)):
        raise ValueError(
            f"{runner.path} has no step that verifies several tokens: export it with a draft_length"
        )
    specs = {k: x for s in runner.signatures.values() for k, x in s["inputs"].items()}
    given = {key: separate_rows(key, x, specs.get(key)) for key, x in inputs.items()}
    for key, spec in specs.items():  # a draft may repeat the ids of a source
        if "padding" in spec and key in given:
            given[key] = [np.where(x == REAL_PAD, spec["pad_id"], x) for x in given[key]]
    size = runner.signatures[runner.names("decode")[-1]]["vocabulary_size"]

    def guess(tokens: np.ndarray, count: int) -> np.ndarray:
        found = checked_drafts(draft(tokens[:rows].copy(), count, given), (rows, count), size)
        return filled_batch(found, batch)

    return guess


def _is_prefill(signature: dict[str, Any]) -> bool:
    return bool(signature["role"] == "prefill")


def generate(runner: SignatureRunner, inputs: Any) -> np.ndarray:
    """Greedy tokens (B, T) for any number of rows; the target's pad id after the end of a row."""
    names = by_length(runner.signatures, "decode")
    if not names:
        raise ValueError(
            f"{runner.path} has no signature 'generate', it has {list(runner.signatures)}"
        )
    decode = runner.signatures[names[-1]]
    target, length = decode["target"], decode["max_length"]
    inputs = _by_name(runner, inputs, target)
    batch = decode["inputs"][target]["shape"][0]
    specs = {k: x for s in runner.signatures.values() for k, x in s["inputs"].items()}
    specs[target] = prompt_spec(decode)
    if target in inputs:
        inputs[target] = prompt_rows(target, inputs[target], specs[target], decode["start_id"])
    arrays = {key: separate_rows(key, x, specs.get(key)) for key, x in inputs.items()}
    counts = {key: len(x) for key, x in arrays.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"all inputs must have the same number of rows, got {counts}")
    rows = next(iter(counts.values()), batch)
    if rows == 0:
        raise ValueError("got no rows")
    result = np.full((rows, length), decode["pad_id"], "int32")
    # Rows that are stepped together must have prompts of the same length.
    lengths = [len(row) for row in arrays[target]] if target in arrays else [1] * rows
    for count in lengths:
        check_prompt_length(count, length)
    stop = 0
    while stop < rows:
        start = stop
        while stop < min(rows, start + batch) and lengths[stop] == lengths[start]:
            stop += 1
        chunk = {key: x[start:stop] for key, x in arrays.items()}
        part = result[start:stop]
        column = 1
        if target in chunk:
            column = len(chunk[target][0])
            part[:, :column] = chunk[target]
        elif decode["start_id"] is not None:
            part[:, 0] = decode["start_id"]
        with runner.lock:  # for the whole chunk: another thread would overwrite the caches
            for tokens in _stream(runner, chunk, None):
                part[:, column] = tokens
                column += 1
    return result


def _known(
    runner: SignatureRunner, decode: dict[str, Any], inputs: dict[str, Any]
) -> dict[str, np.ndarray]:
    """The arguments that all steps share: the results of "encode"; without it, inputs."""
    encoders = by_length(runner.signatures, "encode")
    results = {key for key in decode["outputs"] if key != "logits"}
    contexts = [x for x in of_kind(decode, "cache") if x not in results]
    if (contexts or decode.get("prefix")) and not encoders:
        raise ValueError(f"{runner.path} has no signature 'encode', which its 'decode' needs")
    if encoders:
        name, inputs = runner.choose("encode", inputs)
        return runner.run(name, inputs)
    read = [x for x in of_kind(decode, "input") if x != decode["target"]]
    if set(inputs) != set(read):
        raise ValueError(
            f"the steps take the inputs {read} and {decode['target']!r}, got {list(inputs)}"
        )
    return {key: fit(key, inputs[key], decode["inputs"][key]) for key in read}


def known_of_row(runner: SignatureRunner, inputs: Any) -> dict[str, np.ndarray]:
    """`_known` of a single row, for a `Session`."""
    decode = runner.signatures[runner.names("decode")[-1]]
    known = _known(runner, decode, _by_name(runner, inputs, decode["target"]))
    counts = {len(x) for x in known.values()}
    if counts - {1}:
        raise ValueError(f"a session has one row, got {max(counts)}")
    return known


def _by_name(runner: SignatureRunner, inputs: Any, only: str) -> dict[str, Any]:
    """`inputs` as a dictionary; a bare array is the model's first input."""
    if isinstance(inputs, dict):
        return dict(inputs)
    signatures = runner.signatures
    names = by_length(signatures, "encode") or by_length(signatures, "generate")
    first = next(iter(signatures[names[0]]["inputs"])) if names else only
    return {first: inputs}
