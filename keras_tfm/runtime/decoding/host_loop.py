"""The decoding loop on the host: `encode`, `prefill` and `decode`, driven token by token.

The KV caches are arguments of `prefill` and `decode`. They stay in LiteRT's memory, and each step
writes only its new entries there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from keras_tfm.runtime.checked_inputs import (
    Inputs,
    Values,
    check_prompt_length,
    filled_batch,
    fit,
    pad_id_of,
    prompt_input,
    prompt_rows,
    separate_rows,
)
from keras_tfm.runtime.decoding.drafts import Draft, checked_drafts
from keras_tfm.runtime.decoding.sampling import Choose, Sampler, chooser
from keras_tfm.runtime.decoding.special_ids import REAL_PAD
from keras_tfm.runtime.decoding.steps import Steps
from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.manifest.manifest import (
    Decode,
    Encode,
    Generate,
    Input,
    Prefill,
    Signature,
    of_role,
)

# From the tokens so far (B, n), and a number, to that many guesses of the next tokens (B, number).
Guess = Callable[[np.ndarray, int], np.ndarray]


def decode_of(file: LoadedFile) -> Decode:
    """The signature "decode" with the largest caches; raises a ValueError if there is none."""
    *_, largest = file.of_role(Decode).values()
    return largest


def stream(
    file: LoadedFile,
    inputs: Inputs,
    choose: Choose | Sampler | None,
    prefill: str | None = None,
    draft: Draft | None = None,
) -> Iterator[np.ndarray]:
    """Yields the tokens (B,) of each step; see `Model.stream`.

    `prefill`: the only signature that reads prompts in chunks. Default: the fastest.
    """
    decode = decode_of(file)
    target, named, prompts = decode.target, _by_name(file, inputs, decode.target), None
    if target in named:
        prompts = prompt_rows(target, named.pop(target), prompt_input(decode), decode.start_id)
    yield from _stream(file, named, prompts, choose, prefill, draft)


def _stream(
    file: LoadedFile,
    inputs: Mapping[str, Values],
    prompts: Sequence[np.ndarray] | None,
    choose: Choose | Sampler | None,
    prefill: str | None = None,
    draft: Draft | None = None,
) -> Iterator[np.ndarray]:
    """`stream` of the other inputs by name, with prompts that are checked."""
    decode = decode_of(file)
    target, batch = decode.target, decode.inputs[decode.target].shape[0]
    known = _shared_arguments(file, decode, inputs)
    rows = next((len(x) for x in known.values()), batch)
    if prompts is not None:
        prompt, rows = prompt_of(prompts, target), len(prompts)
    elif decode.start_id is None:
        raise ValueError(f"{file.path} was exported without a start_id: give {target!r}")
    else:
        prompt = np.full((rows, 1), decode.start_id, "int32")
    for x in known.values():
        if len(x) != rows:
            raise ValueError(
                f"all inputs must have the same number of rows, got {len(x)} and {rows}"
            )
    if not 0 < rows <= batch:
        raise ValueError(f"{file.path} decodes at most {batch} rows at once, got {rows}")
    check_prompt_length(prompt.shape[1], decode.max_length)
    guess = None if draft is None else _guess(file, draft, inputs, rows, batch)
    known = {key: filled_batch(x, batch) for key, x in known.items()}
    prompt = filled_batch(prompt, batch)
    signatures = {
        name: x
        for name, x in file.signatures.items()
        if prefill is None or not isinstance(x, Prefill) or name == prefill
    }
    caches = Steps(signatures, file.buffers, known, batch)
    steps = step(decode, caches, prompt, chooser(choose, prompt), guess)
    with file.lock:
        file.take_caches(caches)
    while True:
        with file.lock:
            _ = file.runners  # raises if the file was closed
            if not file.has_caches(caches):
                raise RuntimeError(
                    "another stream has begun, or 'decode' has run, and one file has one set "
                    "of caches: load it twice to run two side by side"
                )
            tokens = next(steps, None)
        if tokens is None:
            return
        yield tokens[:rows]


def step(
    decode: Decode,
    steps: Steps,
    prompt: np.ndarray,
    choose: Choose,
    guess: Guess | None = None,
) -> Iterator[np.ndarray]:
    """Yields the tokens (B,) of each step; the target's pad id for rows that have ended.

    Args:
        decode: the signature with the largest caches.
        steps: the caches, of no token yet.
        prompt: (B, P), at least one column.
        choose: logits (B, V) -> tokens (B,).
        guess: a draft; a step reads what it guesses, and each row advances by the tokens that are
            right in all rows.
    """
    ends = np.array(decode.end_ids, "int64")
    steps.read(prompt, prompt.shape[1] - 1)
    ended = np.zeros(len(prompt), bool)
    if guess is not None:
        yield from _verify(steps, decode, prompt, choose, guess)
        return
    token = prompt[:, -1:]
    while steps.position + 1 < decode.max_length:
        logits = steps.decode(token)
        chosen = checked_tokens(choose(logits), ended, logits.shape[-1], decode.pad_id)
        yield chosen.astype("int32")
        ended |= (chosen[:, np.newaxis] == ends).any(axis=1)
        if ended.all():
            return
        token = chosen[:, np.newaxis]


def _verify(
    steps: Steps, decode: Decode, prompt: np.ndarray, choose: Choose, guess: Guess
) -> Iterator[np.ndarray]:
    """`step` with a draft, after the prompt but its last token has been read."""
    ends, length = np.array(decode.end_ids, "int64"), decode.max_length
    ended = np.zeros(len(prompt), bool)
    tokens = np.full((len(prompt), length), decode.pad_id, "int32")
    last = prompt.shape[1] - 1  # the column of the last certain token
    tokens[:, : last + 1] = prompt
    count = steps.draft_length
    while last + 1 < length:
        guesses = guess(tokens[:, : last + 1], count)[:, : length - 1 - last]
        tokens[:, last + 1 :][:, : guesses.shape[1]] = guesses
        logits = steps.verify(tokens)
        for i in range(min(logits.shape[1], length - 1 - last)):
            chosen = checked_tokens(choose(logits[:, i]), ended, logits.shape[-1], decode.pad_id)
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


def _guess(
    file: LoadedFile, draft: Draft, inputs: Mapping[str, Values], rows: int, batch: int
) -> Guess:
    """The draft as a function of the tokens (batch, n) and a number of tokens."""
    if not any(x.verifies for x in of_role(file.signatures, Prefill).values()):
        raise ValueError(
            f"{file.path} has no step that verifies several tokens: export it with a draft_length"
        )
    expected = _all_inputs(file)
    sources = {key: separate_rows(key, x, expected.get(key)) for key, x in inputs.items()}
    for key, x in expected.items():  # a draft may repeat the ids of a source
        if x.padding is not None and key in sources:
            sources[key] = [np.where(row == REAL_PAD, pad_id_of(x), row) for row in sources[key]]
    size = decode_of(file).vocabulary_size

    def guess(tokens: np.ndarray, count: int) -> np.ndarray:
        found = checked_drafts(draft(tokens[:rows].copy(), count, sources), (rows, count), size)
        return filled_batch(found, batch)

    return guess


def _all_inputs(file: LoadedFile) -> dict[str, Input]:
    """The inputs of all signatures."""
    return {key: x for signature in file.signatures.values() for key, x in signature.inputs.items()}


def generate_on_host(file: LoadedFile, inputs: Inputs) -> np.ndarray:
    """Greedy tokens (B, T) for any number of rows; the target's pad id after the end of a row."""
    if not of_role(file.signatures, Decode):
        raise ValueError(f"{file.path} has no signature 'generate', it has {list(file.signatures)}")
    decode = decode_of(file)
    target, length = decode.target, decode.max_length
    named = _by_name(file, inputs, target)
    batch = decode.inputs[target].shape[0]
    expected = {**_all_inputs(file), target: prompt_input(decode)}
    if target in named:
        named[target] = prompt_rows(target, named[target], expected[target], decode.start_id)
    arrays = {key: separate_rows(key, x, expected.get(key)) for key, x in named.items()}
    counts = {key: len(x) for key, x in arrays.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"all inputs must have the same number of rows, got {counts}")
    rows = next(iter(counts.values()), batch)
    if rows == 0:
        raise ValueError("got no rows")
    result = np.full((rows, length), decode.pad_id, "int32")
    # Rows that are stepped together must have prompts of the same length.
    lengths = [len(row) for row in arrays[target]] if target in arrays else [1] * rows
    for count in lengths:
        check_prompt_length(count, length)
    stop = 0
    while stop < rows:
        start = stop
        while stop < min(rows, start + batch) and lengths[stop] == lengths[start]:
            stop += 1
        chunk: dict[str, list[np.ndarray]] = {key: x[start:stop] for key, x in arrays.items()}
        part, prompts = result[start:stop], chunk.pop(target, None)
        column = 1
        if prompts is not None:
            column = len(prompts[0])
            part[:, :column] = prompts
        elif decode.start_id is not None:
            part[:, 0] = decode.start_id
        with file.lock:  # for the whole chunk: another thread would overwrite the caches
            for tokens in _stream(file, chunk, prompts, None):
                part[:, column] = tokens
                column += 1
    return result


def _shared_arguments(
    file: LoadedFile, decode: Decode, inputs: Mapping[str, Values]
) -> dict[str, np.ndarray]:
    """The arguments that all steps share: the results of "encode"; without it, inputs."""
    has_encode = bool(of_role(file.signatures, Encode))
    contexts = [x for x in decode.of_kind("cache") if x not in decode.outputs]
    if (contexts or decode.prefix) and not has_encode:
        raise ValueError(f"{file.path} has no signature 'encode', which its 'decode' needs")
    if has_encode:
        return file.run(*file.choose(Encode, inputs))
    read = [x for x in decode.of_kind("input") if x != decode.target]
    if set(inputs) != set(read):
        raise ValueError(
            f"the steps take the inputs {read} and {decode.target!r}, got {list(inputs)}"
        )
    return {key: fit(key, inputs[key], decode.inputs[key]) for key in read}


def known_of_row(file: LoadedFile, inputs: Inputs) -> dict[str, np.ndarray]:
    """The arguments that all steps of a single row share, for a `Session`."""
    decode = decode_of(file)
    known = _shared_arguments(file, decode, _by_name(file, inputs, decode.target))
    counts = {len(x) for x in known.values()}
    if counts - {1}:
        raise ValueError(f"a session has one row, got {max(counts)}")
    return known


def _by_name(file: LoadedFile, inputs: Inputs, only: str) -> dict[str, Values]:
    """`inputs` as a dictionary; a bare array is the model's first input."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    found: Mapping[str, Signature] = of_role(file.signatures, Encode)
    found = found or of_role(file.signatures, Generate)
    return {next((key for x in found.values() for key in x.inputs), only): inputs}


def checked_tokens(chosen: Values, ended: np.ndarray, size: int, pad_id: int) -> np.ndarray:
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
