"""Text in, pictures out: a file of DALL-E and the decoder of its discrete VAE."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from keras_tfm.runtime.decoding import host_loop
from keras_tfm.runtime.decoding.generate import generate
from keras_tfm.runtime.decoding.sampling import Sampler
from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.manifest.manifest import Decode, of_role
from keras_tfm.runtime.media.decoded_picture import import_pillow
from keras_tfm.runtime.tasks.embedding import embed_image, embed_text
from keras_tfm.runtime.tasks.text import target_of, tokenizer_of
from keras_tfm.runtime.tokenizers.tokenizer import excerpt

# The families of the two models that draw, and of the two that judge.
PAINTER, DECODER = "dalle", "dvae_decoder"
JUDGES = ("clip_image", "clip_text")


class Drawing(NamedTuple):
    """A picture that was drawn.

    Attributes:
        picture: `PIL.Image.Image`, RGB or grey; `picture.save("a.png")` writes it.
        codes: (M,), int32, the codes that it was decoded from.
        score: float, the cosine of its vector and the text's, from the judge; None without one.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.runtime import Drawing
    >>> Drawing(None, np.array([3, 1]), 0.25).score
    0.25
    """

    picture: Any
    codes: np.ndarray
    score: float | None = None


class Judge(Protocol):
    """What sorts pictures by their texts: a `runtime.Model` with CLIP's encoders."""

    def embed_text(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors (B, D) of texts."""

    def embed_image(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """Vectors (B, D) of pictures."""


def draw(
    file: LoadedFile,
    texts: str | Sequence[str],
    candidates: int,
    judge: Judge | None,
    guidance: float,
    sampler: Sampler | None,
) -> list[Drawing] | list[list[Drawing]]:
    """See `Model.draw`."""
    pillow = import_pillow()
    if isinstance(candidates, bool) or not isinstance(candidates, int) or candidates < 1:
        raise ValueError(f"candidates must be an integer of at least 1, got {candidates!r}")
    painter, decoder = _part(file, PAINTER), _part(file, DECODER)
    several = [texts] if isinstance(texts, str) else list(texts)
    prompts = _prompts(painter, several)
    rows = np.repeat(prompts, candidates, axis=0)
    codes = _paint(painter, rows, guidance, sampler or Sampler())
    pixels = next(iter(decoder.predict(codes).values()))
    if pixels.ndim != 4 or pixels.shape[-1] not in (1, 3):
        raise ValueError(
            f"{file.path}: the model of {DECODER!r} must return pictures (B, H, W, 1 or 3), "
            f"got {pixels.shape}"
        )
    arrays = np.clip(np.rint(pixels), 0, 255).astype("uint8")
    arrays = arrays[..., 0] if arrays.shape[-1] == 1 else arrays
    drawn = [Drawing(pillow.Image.fromarray(x), ids) for x, ids in zip(arrays, codes, strict=True)]
    groups = [drawn[i : i + candidates] for i in range(0, len(drawn), candidates)]
    if judge is not None:
        groups = _rank(judge.embed_text(several), judge.embed_image, groups)
    elif holds(file, *JUDGES):
        groups = _rank(embed_text(file, several), partial(embed_image, file), groups)
    return groups[0] if isinstance(texts, str) else groups


def holds(file: LoadedFile, *families: str) -> bool:
    """Whether a file holds one model of each of these families."""
    return all(len(_members(file, family)) == 1 for family in families)


def _members(file: LoadedFile, family: str) -> list[LoadedFile]:
    """The models of a family in a file."""
    parts = [(x, x.manifest.model) for x in file.models.values()]
    return [part for part, model in parts if model is not None and model.family == family]


def _part(file: LoadedFile, family: str) -> LoadedFile:
    """The model of a family in a file."""
    found = _members(file, family)
    if len(found) != 1:
        raise ValueError(
            f"{file.path} must hold one model of models.{PAINTER} and one of models.{DECODER} to "
            f"draw, got {len(found)} of {family!r}: export both together, with "
            f"export_tflite({{'dalle': ..., 'decoder': ...}}, signatures={{'dalle': ['decode']}})"
        )
    return found[0]


def _sizes(painter: LoadedFile) -> tuple[int, int, int]:
    """Number of text positions, of the text's ids, and of codes."""
    assert painter.manifest.model is not None
    arguments = painter.manifest.model.arguments
    names = ("text_length", "text_vocabulary_size", "image_vocabulary_size")
    length, text, image = (int(arguments[name]) for name in names)
    return length, text, image


def _prompts(painter: LoadedFile, texts: Sequence[str]) -> np.ndarray:
    """The texts as prompts (B, N), padded with a padding token for each position."""
    length, size, _ = _sizes(painter)
    if not texts:
        raise ValueError("got no texts")
    tokenizer = tokenizer_of(painter, target_of(painter))
    rows = np.tile(np.arange(size, size + length, dtype="int32"), (len(texts), 1))
    for i, (row, text) in enumerate(zip(rows, texts, strict=True)):
        if not isinstance(text, str):
            raise TypeError(f"expected a text (str) or a list of texts, got {type(text).__name__}")
        if not text.strip():
            raise ValueError(f"text {i} must have at least one character, got {text!r}")
        ids = tokenizer.encode(text)
        if not 1 <= len(ids) <= length:
            raise ValueError(
                f"text {i} must have 1 to {length} tokens, got {len(ids)}: {excerpt(text)}"
            )
        row[: len(ids)] = ids
    return rows


def _paint(
    painter: LoadedFile, prompts: np.ndarray, guidance: float, sampler: Sampler
) -> np.ndarray:
    """The codes (B, M) after prompts (B, N)."""
    length, size, count = _sizes(painter)
    first = length + size
    if not of_role(painter.signatures, Decode):
        tokens = generate(painter, prompts).tokens
        codes = tokens[:, length:] - first
        if codes.min(initial=0) < 0:
            raise ValueError(
                f"{painter.path} generated text where an image should be: export it with "
                f"processors.SuppressTokens(range({first}))"
            )
        return codes.astype("int32")
    decode = host_loop.decode_of(painter)
    batch = decode.inputs[decode.target].shape[0]
    at_once = batch if guidance == 1 else batch // 2
    if not at_once:
        raise ValueError(
            f"guidance needs two rows per picture, but {painter.path} was exported for one row: "
            "export it with a batch size of 2 or more, or draw without guidance"
        )
    generator = np.random.default_rng(sampler.seed)
    parts = []
    for start in range(0, len(prompts), at_once):
        rows = prompts[start : start + at_once]
        parts.append(np.stack([*_sample(painter, rows, first, guidance, sampler, generator)], 1))
    codes = np.concatenate(parts)
    assert codes.max(initial=0) < count
    return codes.astype("int32")


def _sample(
    painter: LoadedFile,
    prompts: np.ndarray,
    first: int,
    guidance: float,
    sampler: Sampler,
    generator: np.random.Generator,
) -> Iterator[np.ndarray]:
    """The codes (B,) of each step after prompts (B, N), all for one run of "decode"."""
    rows, length = prompts.shape
    empty = np.tile(np.arange(first - length, first, dtype="int32"), (rows, 1))
    guided = guidance != 1

    def choose(logits: np.ndarray) -> np.ndarray:
        scores = _log_softmax(logits[:rows])
        if guided:
            without = _log_softmax(logits[rows : 2 * rows])
            scores = without + guidance * (scores - without)
        probabilities = sampler.probabilities(scores[:, first:])
        ends = np.cumsum(probabilities, axis=-1)
        drawn = generator.random((rows, 1)) * ends[:, -1:]
        chosen = first + (ends > drawn).argmax(axis=-1)
        # Both halves continue with the same codes; further rows are not used.
        return np.resize(chosen, len(logits))

    both = np.concatenate([prompts, empty]) if guided else prompts
    for tokens in host_loop.stream(painter, {target_of(painter): both}, choose):
        yield tokens[:rows] - first


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype("float64") - logits.max(-1, keepdims=True)
    result: np.ndarray = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return result


def _rank(
    words: np.ndarray,
    embed: Callable[[Sequence[np.ndarray]], np.ndarray],
    groups: list[list[Drawing]],
) -> list[list[Drawing]]:
    """The pictures of each text with their scores, the best first.

    `words`: (B, D), the vectors of the texts; `embed`: from pictures to their vectors.
    """
    result = []
    for vector, group in zip(words, groups, strict=True):
        found = embed([np.asarray(x.picture) for x in group])
        if found.shape[-1] != vector.shape[-1]:
            raise ValueError(
                "the judge's vectors of pictures and texts must have the same width, "
                f"got {found.shape[-1]} and {vector.shape[-1]}"
            )
        lengths = np.linalg.norm(found, axis=-1) * np.linalg.norm(vector)
        scores = found @ vector / np.maximum(lengths, 1e-12)
        scored = [x._replace(score=float(y)) for x, y in zip(group, scores, strict=True)]
        result.append(sorted(scored, key=lambda x: -cast("float", x.score)))
    return result
