"""Runs the signature "generate", whose decoding loop is in the file."""

from typing import Any, NamedTuple

import numpy as np

from keras_tfm.runtime.checked_inputs import fit, left_padded
from keras_tfm.runtime.manifest.fields import of_kind
from keras_tfm.runtime.signature_runner import SignatureRunner


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


def run_generate(runner: SignatureRunner, name: str, inputs: dict[str, Any]) -> Generated:
    """The results of signature `name`, without the padding on the left of prompts."""
    signature, padding = runner.signatures[name], None
    if "prompt" in signature:
        inputs = _prompted(name, signature, inputs)
        padding = inputs[of_kind(signature, "padding")[0]]
    results = runner.run(name, inputs)
    tokens = results["tokens"]
    if padding is not None:
        for row, count in enumerate(padding):
            tokens[row] = np.roll(tokens[row], -count, axis=-1)
        tokens = np.ascontiguousarray(tokens[..., : signature["max_length"]])
    return Generated(tokens, results.get("scores"))


def _prompted(name: str, signature: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs with prompts padded on the left; without prompts, with default ones."""
    prompt, specs = signature["prompt"], dict(signature["inputs"])
    (counts,) = of_kind(signature, "padding")
    del specs[counts]
    if not set(specs) - {prompt} <= set(inputs) <= set(specs):
        raise ValueError(f"{name} takes the inputs {list(specs)}, got {list(inputs)}")
    prompts = inputs.get(prompt)
    if prompt not in inputs:
        first = signature.get("default_prompt") or [signature["start_id"]]
        if first == [None] or not inputs:
            raise ValueError(
                f"{name} needs a prompt, {prompt!r}: got none"
                + ("" if signature["start_id"] is not None else " and there is no start_id")
            )
        key, x = next(iter(inputs.items()))
        prompts = [first] * len(fit(key, x, specs[key]))
    tokens, padding = left_padded(prompt, prompts, specs[prompt], signature["start_id"])
    return {**inputs, prompt: tokens, counts: padding}
