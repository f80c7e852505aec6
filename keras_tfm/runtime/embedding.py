"""Sentence embeddings of texts, from a file with the head `models.sentence_embedding`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from keras_tfm.runtime.text import rows_of_texts

if TYPE_CHECKING:
    from keras_tfm.runtime.model import Model


def embed(model: Model, texts: Any, prompt: str | None) -> np.ndarray:
    """See `Model.embed`."""
    head = (model.manifest.get("model") or {}).get("head") or {}
    if head.get("kind") != "sentence_embedding":
        raise ValueError(
            f"{model.path} has no sentence embeddings: expected a model with the head "
            f"'sentence_embedding', got {head.get('kind')!r}"
        )
    prefix = _prefix(model, head["arguments"], prompt)
    single = isinstance(texts, str)
    if single:
        texts = [texts]
    elif not isinstance(texts, list | tuple) or not all(isinstance(x, str) for x in texts):
        raise TypeError(f"expected a text (str) or a list of texts, got {type(texts).__name__}")
    name, rows = rows_of_texts(model, "predict", [prefix + text for text in texts])
    # Grouped by exported length, so that one long text does not make all rows long.
    groups: dict[str, list[int]] = {}
    runner = model._runner
    for i, row in enumerate(rows):
        groups.setdefault(runner.choose("predict", {name: [row]})[0], []).append(i)
    vectors: Any = [None] * len(rows)
    for signature, members in groups.items():
        (output,) = model.run(signature, {name: [rows[i] for i in members]}).values()
        for i, vector in zip(members, output, strict=True):
            vectors[i] = vector
    return vectors[0] if single else np.stack(vectors)


def _prefix(model: Model, arguments: dict[str, Any], prompt: str | None) -> str:
    """The text of the prompt with this name, or of the default one."""
    prompts: dict[str, str] = arguments["prompts"] or {}
    name = arguments["default_prompt"] if prompt is None else prompt
    if name is None:
        return ""
    if name not in prompts:
        raise ValueError(f"{model.path} has no prompt {name!r}, it has {list(prompts)}")
    return prompts[name]
