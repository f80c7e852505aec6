"""Generates tokens: with the signature "generate", or with the decoding loop on the host."""

from typing import Any, NamedTuple

import numpy as np

from keras_tfm.runtime.checked_inputs import fit, left_padded
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


def generate(file: LoadedFile, inputs: Any) -> Generated:
    """See `Model.generate`."""
    if not of_role(file.signatures, Generate):
        return Generated(generate_on_host(file, inputs))
    return generate_by(file, *file.choose(Generate, inputs))


def generate_by(file: LoadedFile, name: str, inputs: dict[str, Any]) -> Generated:
    """The results of signature `name`, without the padding on the left of prompts."""
    signature, padding = file.signatures[name], None
    if isinstance(signature, Generate) and signature.prompt is not None:
        inputs = _with_prompts(name, signature, signature.prompt, inputs)
        padding = inputs[signature.of_kind("padding")[0]]
    results = file.run(name, inputs)
    tokens = results["tokens"]
    if padding is not None and isinstance(signature, Generate):
        for row, count in enumerate(padding):
            tokens[row] = np.roll(tokens[row], -count, axis=-1)
        tokens = np.ascontiguousarray(tokens[..., : signature.max_length])
    return Generated(tokens, results.get("scores"))


def _with_prompts(
    name: str, signature: Generate, prompt: str, inputs: dict[str, Any]
) -> dict[str, Any]:
    """The inputs with prompts padded on the left; without prompts, with default ones."""
    expected, start_id = dict(signature.inputs), signature.start_id
    (counts,) = signature.of_kind("padding")
    del expected[counts]
    if not set(expected) - {prompt} <= set(inputs) <= set(expected):
        raise ValueError(f"{name} takes the inputs {list(expected)}, got {list(inputs)}")
    prompts = inputs.get(prompt)
    if prompt not in inputs:
        first = signature.default_prompt or ([] if start_id is None else [start_id])
        if not first or not inputs:
            raise ValueError(
                f"{name} needs a prompt, {prompt!r}: got none"
                + ("" if start_id is not None else " and there is no start_id")
            )
        key, x = next(iter(inputs.items()))
        prompts = [first] * len(fit(key, x, expected[key]))
    tokens, padding = left_padded(prompt, prompts, expected[prompt], start_id)
    return {**inputs, prompt: tokens, counts: padding}
