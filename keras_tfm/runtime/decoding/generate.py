"""Generates tokens: with the signature "generate", or with the decoding loop on the host."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from keras_tfm.runtime.checked_inputs import Inputs, Values, fit, left_padded
from keras_tfm.runtime.decoding.host_loop import generate_on_host
from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.manifest.manifest import Generate, of_role


class Generated(NamedTuple):
    """Generated tokens and, from a beam search, their scores.

    Attributes:
        tokens: (B, T), int32: the start token or the prompt, the generated tokens, and the pad id
            of the stepped input (`pad_id` of the signature) after the end. (B, n, T) if the file
            was exported with several hypotheses per row.
        scores: (B,) or (B, n) if the file was exported with a beam search; otherwise None.
    """

    tokens: np.ndarray
    scores: np.ndarray | None = None


def generate(file: LoadedFile, inputs: Inputs) -> Generated:
    """See `Model.generate`."""
    if not of_role(file.signatures, Generate):
        return Generated(generate_on_host(file, inputs))
    return generate_by(file, *file.choose(Generate, inputs))


def generate_by(file: LoadedFile, name: str, inputs: Mapping[str, Values]) -> Generated:
    """The results of signature `name`, without the padding on the left of prompts."""
    signature = file.signatures[name]
    if not isinstance(signature, Generate) or signature.prompt is None:
        results = file.run(name, inputs)
        return Generated(results["tokens"], results.get("scores"))
    others, prompts, padding = _left_padded(name, signature, signature.prompt, inputs)
    (counts,) = signature.of_kind("padding")
    results = file.run(name, {**others, signature.prompt: prompts, counts: padding})
    tokens = results["tokens"]
    for row, count in enumerate(padding):
        tokens[row] = np.roll(tokens[row], -count, axis=-1)
    tokens = np.ascontiguousarray(tokens[..., : signature.max_length])
    return Generated(tokens, results.get("scores"))


def _left_padded(
    name: str, signature: Generate, prompt: str, inputs: Mapping[str, Values]
) -> tuple[dict[str, Values], np.ndarray, np.ndarray]:
    """The other inputs; prompts, by default default ones, padded on the left; and by how much."""
    expected, start_id = dict(signature.inputs), signature.start_id
    (counts,) = signature.of_kind("padding")
    del expected[counts]
    if not set(expected) - {prompt} <= set(inputs) <= set(expected):
        raise ValueError(f"{name} takes the inputs {list(expected)}, got {list(inputs)}")
    others = {key: x for key, x in inputs.items() if key != prompt}
    if prompt in inputs:
        prompts = inputs[prompt]
    else:
        first = signature.default_prompt or ([] if start_id is None else [start_id])
        if not first or not inputs:
            raise ValueError(
                f"{name} needs a prompt, {prompt!r}: got none"
                + ("" if start_id is not None else " and there is no start_id")
            )
        key, x = next(iter(inputs.items()))
        prompts = [first] * len(fit(key, x, expected[key]))
    return others, *left_padded(prompt, prompts, expected[prompt], start_id)
