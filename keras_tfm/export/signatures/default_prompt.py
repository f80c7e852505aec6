"""The argument `default_prompt` of an export, checked.

Example:

>>> import keras
>>> from keras_tfm.export.signatures.default_prompt import checked_prompt
>>> model = keras.Sequential([keras.Input((None,)), keras.layers.Embedding(9, 5)])
>>> checked_prompt([2, 3], model, ["generate"], longest=4)
[2, 3]
>>> checked_prompt([2, 5], model, ["generate"], longest=4)
Traceback (most recent call last):
ValueError: default_prompt must be ids in 0..4, got [2, 5]
"""

import operator
from collections.abc import Sequence

import keras

from keras_tfm.arguments import check_integer


def checked_prompt(
    ids: Sequence[int] | None, model: keras.Model, roles: Sequence[str], longest: int
) -> list[int]:
    """The ids of a default prompt, see `ExportArguments`; empty for None.

    Args:
        ids: list of int; None if the export has no default prompt.
        model: the exported model, whose first output is logits.
        roles: list of str, the roles of the signatures.
        longest: int, the largest prompt length of the file; 0 for none.
    """
    if ids is None:
        return []
    for x in ids:
        check_integer("default_prompt", x, minimum=0)
    prompt = [operator.index(x) for x in ids]
    size = model.outputs[0].shape[-1]
    if "generate" not in roles or not 1 <= len(prompt) <= longest:
        raise ValueError(
            "default_prompt is for 'generate' with a prompt_length of at least its length, "
            f"got {len(prompt)} ids, prompt_length {longest or None} and {list(roles)}"
        )
    if max(prompt) >= size:
        raise ValueError(f"default_prompt must be ids in 0..{size - 1}, got {prompt}")
    return prompt
