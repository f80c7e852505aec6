"""Embeddings of texts and pictures: one vector each, for search and zero-shot classification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from keras_tfm.runtime.manifest.fields import by_length
from keras_tfm.runtime.tasks.text import rows_of_texts
from keras_tfm.runtime.tasks.zero_shot import ZeroShotClassifier

if TYPE_CHECKING:
    from keras_tfm.runtime.model import Model


class Embeddings:
    """The methods of `runtime.Model` that return vectors."""

    def embed(self, texts: Any, prompt: str | None = None) -> np.ndarray:
        """Sentence embeddings (B, D) of texts, float32; (D,) for a single text.

        The model needs the head `keras_tfm.models.sentence_embedding`. Each text runs in the
        shortest exported length that fits.

        Args:
            texts: str, or list of B.
            prompt: str, name of a prompt in the file, "query" for instance, whose text is put
                before each text; default: the file's default prompt, if it has one.

        Raises:
            TypeError, ValueError, ModuleNotFoundError: as `generate_text`; or the file has no such
                head, or no such prompt.
        """
        model = cast("Model", self)
        head = _head(model)
        if not embeds_sentences(model):
            raise ValueError(
                f"{model.path} has no sentence embeddings: expected a model with the head "
                f"'sentence_embedding', got {head.get('kind')!r}"
            )
        prefix = _prefix(model, head["arguments"], prompt)
        return _of_texts(model, texts, prefix)

    def embed_text(self, texts: Any) -> np.ndarray:
        """The vectors (B, D) of texts, float32, as the model returns them; (D,) for a single text.

        For a file such as one of `models.clip_towers`: of several models, the one with a tokenizer
        and a full pass reads the texts. Each text runs in the shortest exported length that fits.

        Args:
            texts: str, or list of B.

        Raises:
            TypeError, ModuleNotFoundError: as `generate_text`.
            ValueError: as `generate_text`; a text is empty; no model, or several models, of the
                file have a tokenizer and a full pass; or the model returns something other than one
                vector a text.
        """
        model = _only(cast("Model", self), "tokenizers")
        prefix = _prefix(model, _head(model)["arguments"], None) if embeds_sentences(model) else ""
        for i, text in enumerate([texts] if isinstance(texts, str) else texts):
            if isinstance(text, str) and not text.strip():
                raise ValueError(f"text {i} must have at least one character, got {text!r}")
        return _of_texts(model, texts, prefix)

    def embed_image(self, images: Any) -> np.ndarray:
        """The vectors (B, D) of pictures, float32, as the model returns them; (D,) for one.

        Of several models in the file, the one with an image processor reads the pictures.

        Args:
            images: picture, or list of B, as in `predict_images`.

        Raises:
            FileNotFoundError, TypeError, ModuleNotFoundError: as `predict_images`.
            ValueError: as `predict_images`; no model, or several models, of the file have an image
                processor; or the model returns something other than one vector a picture.
        """
        model = _only(cast("Model", self), "images")
        if isinstance(images, dict):
            raise TypeError("expected a picture or a list of pictures, got a dictionary of inputs")
        vectors = model.predict_images(images)[_output(model)]
        several = isinstance(images, list | tuple) or getattr(images, "ndim", 0) == 4
        return vectors if several else vectors[0]

    def zero_shot(
        self,
        labels: Sequence[str],
        template: str | Sequence[str] = "a photo of a {}",
        scale: float | None = None,
    ) -> ZeroShotClassifier:
        """A classifier of pictures whose classes are given as words, by a model such as CLIP.

        A picture's class is the one whose text has the most similar vector (arXiv:2103.00020,
        section 3.1). The texts are embedded once, here.

        Args:
            labels: list of C str, names of the classes.
            template: str, the text of a class, in which {} stands for its name; or a list of
                several, whose vectors are averaged.
            scale: float, factor of the cosine similarities before the softmax, the inverse of the
                temperature. Default: the learned one in the file, see `models.clip_towers`, or 100.

        Raises:
            TypeError, ValueError, ModuleNotFoundError: as `embed_text`; a template without {}; the
                same label twice; or vectors of texts and pictures of different widths.
        """
        return ZeroShotClassifier(cast("Model", self), labels, template, scale)


def _head(model: Model) -> dict[str, Any]:
    """The head of a model in its manifest; empty if it has none."""
    return (model.manifest.get("model") or {}).get("head") or {}


def embeds_sentences(model: Model) -> bool:
    """Whether a model has the head `keras_tfm.models.sentence_embedding`."""
    return _head(model).get("kind") == "sentence_embedding"


def _only(model: Model, field: str) -> Model:
    """The model itself; of several in the file, the one with a full pass and `field`."""
    if not model.models:
        return model
    found = {
        name: one
        for name, one in model.models.items()
        if one.manifest.get(field) and by_length(one.signatures, "predict")
    }
    if len(found) == 1:
        return next(iter(found.values()))
    what = {"tokenizers": "a tokenizer", "images": "an image processor"}[field]
    raise ValueError(
        f"{model.path} must have one model with {what}, its models are {list(model.models)}, "
        f"of which these have one: {list(found)}: choose one, such as "
        f"runtime.load(path).models[{next(iter(model.models))!r}]"
    )


def _output(model: Model) -> str:
    """The output with one vector a row; of several, the one named "embedding"."""
    signature = next(x for x in model.signatures.values() if x["role"] == "predict")
    shapes = {name: x["shape"] for name, x in signature["outputs"].items()}
    vectors = [name for name, shape in shapes.items() if len(shape) == 2]
    if "embedding" in vectors or len(shapes) == len(vectors) == 1:
        return "embedding" if "embedding" in vectors else vectors[0]
    raise ValueError(
        f"{model.path} has no embeddings: expected one output (B, D), or one named 'embedding', "
        f"got {shapes}"
    )


def _of_texts(model: Model, texts: Any, prefix: str) -> np.ndarray:
    """The vectors of texts, each in the shortest exported length that fits."""
    single = isinstance(texts, str)
    if single:
        texts = [texts]
    elif not isinstance(texts, list | tuple) or not all(isinstance(x, str) for x in texts):
        raise TypeError(f"expected a text (str) or a list of texts, got {type(texts).__name__}")
    inputs = rows_of_texts(model, "predict", [prefix + text for text in texts])
    # Grouped by exported length, so that one long text does not make all rows long.
    groups: dict[str, list[int]] = {}
    for i in range(len(texts)):
        one = {name: [rows[i]] for name, rows in inputs.items()}
        chosen, _ = model._runner.choose("predict", one)
        groups.setdefault(chosen, []).append(i)
    vectors: Any = [None] * len(texts)
    output = _output(model)
    for signature, members in groups.items():
        part = {name: [rows[i] for i in members] for name, rows in inputs.items()}
        found = model.run(signature, part)[output]
        for i, vector in zip(members, found, strict=True):
            vectors[i] = vector
    return vectors[0] if single else np.stack(vectors)


def _prefix(model: Model, arguments: dict[str, Any], prompt: str | None) -> str:
    """The text of the prompt with this name, or of the default one."""
    prompts: dict[str, str] = arguments.get("prompts") or {}
    name = arguments.get("default_prompt") if prompt is None else prompt
    if name is None:
        return ""
    if name not in prompts:
        raise ValueError(f"{model.path} has no prompt {name!r}, it has {list(prompts)}")
    return prompts[name]
