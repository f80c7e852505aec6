"""Embeddings of texts and pictures: one vector each, for search and zero-shot classification."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.manifest.manifest import Head, Predict, of_role
from keras_tfm.runtime.media.image_processor import Pictures
from keras_tfm.runtime.tasks.pictures import are_several, as_pixels
from keras_tfm.runtime.tasks.text import rows_of_texts


def embed(
    file: LoadedFile, texts: str | Sequence[str], prompt: str | None, dimensions: int | None
) -> np.ndarray:
    """See `Model.embed`."""
    head = head_of(file)
    if head is None or not embeds_sentences(file):
        raise ValueError(
            f"{file.path} has no sentence embeddings: expected a model with the head "
            f"'sentence_embedding', got {head and head.kind!r}"
        )
    prefix, length = prompt_text(str(file.path), head.arguments, prompt), max_length(head)
    vectors = _embed_texts(file, texts, prefix, length)
    return first_dimensions(vectors, dimensions, bool(head.arguments.get("normalize", True)))


def max_length(head: Head) -> int | None:
    """The number of tokens at which the head of sentence embeddings truncates texts."""
    length: int | None = head.arguments.get("max_seq_length")
    return length


def first_dimensions(vectors: np.ndarray, dimensions: int | None, normalize: bool) -> np.ndarray:
    """The first numbers of vectors, of Matryoshka embeddings (arXiv:2205.13147).

    Args:
        vectors: (..., D).
        dimensions: int, E. None: all.
        normalize: bool, whether the vectors are scaled to length 1, then to be scaled again.

    Raises:
        ValueError: `dimensions` is not in 1 to D.

    >>> import numpy as np
    >>> from keras_tfm.runtime.tasks.embedding import first_dimensions
    >>> first_dimensions(np.array([[0.6, 0.0, 0.8]]), 2, normalize=True).tolist()
    [[1.0, 0.0]]
    """
    if dimensions is None:
        return vectors
    size = vectors.shape[-1]
    if type(dimensions) is not int or not 1 <= dimensions <= size:
        raise ValueError(f"dimensions must be an integer in 1..{size}, got {dimensions!r}")
    vectors = vectors[..., :dimensions]
    if not normalize:
        return vectors
    # As keras.layers.UnitNormalization: zeros stay zeros.
    norms = np.sqrt(np.maximum(np.sum(vectors**2, axis=-1, keepdims=True), 1e-12))
    return vectors / norms


def embed_text(file: LoadedFile, texts: str | Sequence[str]) -> np.ndarray:
    """See `Model.embed_text`."""
    found = _only(file, "a tokenizer", [x for x in file.models.values() if x.manifest.tokenizers])
    head = head_of(found)
    prefix, length = "", None
    if head is not None and embeds_sentences(found):
        prefix, length = prompt_text(str(found.path), head.arguments, None), max_length(head)
    for i, text in enumerate([texts] if isinstance(texts, str) else texts):
        if isinstance(text, str) and not text.strip():
            raise ValueError(f"text {i} must have at least one character, got {text!r}")
    return _embed_texts(found, texts, prefix, length)


def embed_image(file: LoadedFile, images: Pictures) -> np.ndarray:
    """See `Model.embed_image`."""
    found = _only(
        file, "an image processor", [x for x in file.models.values() if x.manifest.images]
    )
    if isinstance(images, dict):
        raise TypeError("expected a picture or a list of pictures, got a dictionary of inputs")
    vectors = found.predict(as_pixels(found, images))[_output(found)]
    return vectors if are_several(images) else vectors[0]


def head_of(file: LoadedFile) -> Head | None:
    """The head of a model in its manifest."""
    return None if file.manifest.model is None else file.manifest.model.head


def embeds_sentences(file: LoadedFile) -> bool:
    """Whether a model has the head `keras_tfm.models.sentence_embedding`."""
    head = head_of(file)
    return head is not None and head.kind == "sentence_embedding"


def _only(file: LoadedFile, what: str, candidates: Iterable[LoadedFile]) -> LoadedFile:
    """The file itself; of several models, the only candidate that has a full pass."""
    if not file.models:
        return file
    found = [x for x in candidates if of_role(x.signatures, Predict)]
    if len(found) == 1:
        return found[0]
    names = [name for name, x in file.models.items() if x in found]
    raise ValueError(
        f"{file.path} must have one model with {what}, its models are {list(file.models)}, "
        f"of which these have one: {names}: choose one, such as "
        f"runtime.load(path).models[{next(iter(file.models))!r}]"
    )


def _output(file: LoadedFile) -> str:
    """The output with one vector a row; of several, the one named "embedding"."""
    signature = next(x for x in file.signatures.values() if isinstance(x, Predict))
    shapes = {name: x.shape for name, x in signature.outputs.items()}
    vectors = [name for name, shape in shapes.items() if len(shape) == 2]
    if "embedding" in vectors or len(shapes) == len(vectors) == 1:
        return "embedding" if "embedding" in vectors else vectors[0]
    raise ValueError(
        f"{file.path} has no embeddings: expected one output (B, D), or one named 'embedding', "
        f"got {shapes}"
    )


def _embed_texts(
    file: LoadedFile, texts: str | Sequence[str], prefix: str, length: int | None
) -> np.ndarray:
    """The vectors of texts, each in the shortest exported length that fits."""
    if isinstance(texts, str):
        return _embed_texts(file, [texts], prefix, length)[0]
    if not isinstance(texts, list | tuple) or not all(isinstance(x, str) for x in texts):
        raise TypeError(f"expected a text (str) or a list of texts, got {type(texts).__name__}")
    inputs = rows_of_texts(file, [prefix + text for text in texts], length)
    # Grouped by exported length, so that one long text does not make all rows long.
    groups: dict[str, list[int]] = {}
    for i in range(len(texts)):
        one = {name: [rows[i]] for name, rows in inputs.items()}
        chosen, _ = file.choose(Predict, one)
        groups.setdefault(chosen, []).append(i)
    vectors: dict[int, np.ndarray] = {}
    output = _output(file)
    for signature, members in groups.items():
        part = {name: [rows[i] for i in members] for name, rows in inputs.items()}
        found = file.run(signature, part)[output]
        for i, vector in zip(members, found, strict=True):
            vectors[i] = vector
    return np.stack([vectors[i] for i in range(len(texts))])


def prompt_text(owner: str, arguments: Mapping[str, Any], prompt: str | None) -> str:
    """The text of a prompt of sentence embeddings.

    Args:
        owner: str, the file or model, for the error.
        arguments: those of the head.
        prompt: str, its name. None: the default one, if there is one.

    Raises:
        ValueError: there is no such prompt.
    """
    prompts: dict[str, str] = arguments.get("prompts") or {}
    name = arguments.get("default_prompt") if prompt is None else prompt
    if name is None:
        return ""
    if name not in prompts:
        raise ValueError(f"{owner} has no prompt {name!r}, it has {list(prompts)}")
    return prompts[name]
