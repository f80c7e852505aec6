"""Text in, pictures out: a file of DALL-E and the decoder of its discrete VAE."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from keras_tfm.runtime.decoding.sampling import Sampler
from keras_tfm.runtime.manifest.fields import by_length
from keras_tfm.runtime.media.decoded_picture import import_pillow
from keras_tfm.runtime.tasks.text import target_of, tokenizer_of
from keras_tfm.runtime.tokenizers.tokenizer import shown

if TYPE_CHECKING:
    from keras_tfm.runtime.model import Model

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


class Drawings:
    """The method of `runtime.Model` that draws."""

    def draw(
        self,
        texts: Any,
        candidates: int = 1,
        judge: Model | None = None,
        guidance: float = 1.0,
        sampler: Sampler | None = None,
    ) -> list[Any]:
        """Draws pictures of texts, with a file of `models.dalle` and `models.dvae_decoder`.

        Codes are sampled step by step with the signature "decode"; a file with "generate" alone
        draws the one picture of its strategy. With guidance, each picture takes two rows of
        "decode": the text's and one without a caption (arXiv:2207.12598).

        Args:
            texts: str, or list of B.
            candidates: int, number of pictures per text.
            judge: `runtime.Model`, a file such as one of `models.clip_towers`, by which the
                pictures of a text are sorted, the best first (arXiv:2102.12092, section 2.6).
                Default: this file, if it holds the two models of `models.clip_towers`; otherwise
                the pictures are not sorted.
            guidance: float, scale of classifier-free guidance. 1: none. Otherwise the file must
                have been exported with a `batch_size` of at least 2.
            sampler: `Sampler`, by which codes are chosen. `Sampler(temperature=0)` takes the most
                probable one. Default: `Sampler()`.

        Returns:
            A list of `Drawing` for a text; for a list of texts, a list of such lists.

        Raises:
            TypeError: a text that is no str, or an argument of the wrong type.
            ValueError: a text is empty, or has more tokens than the model has positions of text;
                the file lacks one of the two models, a tokenizer or a large enough batch; the
                judge's vectors of texts and pictures have different widths.
            ModuleNotFoundError: Pillow or the tokenizer's package is missing.
        """
        model = cast("Model", self)
        pillow = import_pillow()
        if isinstance(candidates, bool) or not isinstance(candidates, int) or candidates < 1:
            raise ValueError(f"candidates must be an integer of at least 1, got {candidates!r}")
        painter, decoder = _part(model, PAINTER), _part(model, DECODER)
        single = isinstance(texts, str)
        several = [texts] if single else list(texts)
        prompts = _prompts(painter, several)
        rows = np.repeat(prompts, candidates, axis=0)
        codes = _painted(painter, rows, guidance, sampler or Sampler())
        pixels = next(iter(decoder.predict(codes).values()))
        if pixels.ndim != 4 or pixels.shape[-1] not in (1, 3):
            raise ValueError(
                f"{model.path}: the model of {DECODER!r} must return pictures (B, H, W, 1 or 3), "
                f"got {pixels.shape}"
            )
        arrays = np.clip(np.rint(pixels), 0, 255).astype("uint8")
        arrays = arrays[..., 0] if arrays.shape[-1] == 1 else arrays
        drawn = [
            Drawing(pillow.Image.fromarray(x), ids) for x, ids in zip(arrays, codes, strict=True)
        ]
        groups = [drawn[i : i + candidates] for i in range(0, len(drawn), candidates)]
        if judge is None and holds(model, *JUDGES):
            judge = model
        if judge is not None:
            groups = _judged(judge, several, groups)
        return groups[0] if single else groups


def holds(model: Model, *families: str) -> bool:
    """Whether a file holds one model of each of these families."""
    return all(len(_members(model, family)) == 1 for family in families)


def _members(model: Model, family: str) -> list[Model]:
    """The models of a family in a file."""
    return [
        one
        for one in model.models.values()
        if (one.manifest.get("model") or {}).get("family") == family
    ]


def _part(model: Model, family: str) -> Model:
    """The model of a family in a file."""
    found = _members(model, family)
    if len(found) != 1:
        raise ValueError(
            f"{model.path} must hold one model of models.{PAINTER} and one of models.{DECODER} to "
            f"draw, got {len(found)} of {family!r}: export both together, with "
            f"export_tflite({{'dalle': ..., 'decoder': ...}}, signatures={{'dalle': ['decode']}})"
        )
    return found[0]


def _arguments(painter: Model) -> tuple[int, int, int]:
    """Number of text positions, of the text's ids, and of codes."""
    given = painter.manifest["model"]["arguments"]
    names = ("text_length", "text_vocabulary_size", "image_vocabulary_size")
    length, text, image = (int(given[name]) for name in names)
    return length, text, image


def _prompts(painter: Model, texts: list[Any]) -> np.ndarray:
    """The texts as prompts (B, N), padded with a padding token for each position."""
    length, size, _ = _arguments(painter)
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
                f"text {i} must have 1 to {length} tokens, got {len(ids)}: {shown(text)}"
            )
        row[: len(ids)] = ids
    return rows


def _painted(painter: Model, prompts: np.ndarray, guidance: float, sampler: Sampler) -> np.ndarray:
    """The codes (B, M) after prompts (B, N)."""
    length, size, count = _arguments(painter)
    first = length + size
    names = by_length(painter.signatures, "decode")
    if not names:
        tokens = painter.generate(prompts).tokens
        codes = tokens[:, length:] - first
        if codes.min(initial=0) < 0:
            raise ValueError(
                f"{painter.path} generated text where an image should be: export it with "
                f"processors.SuppressTokens(range({first}))"
            )
        return codes.astype("int32")
    decode = painter.signatures[names[-1]]
    batch = decode["inputs"][decode["target"]]["shape"][0]
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
        parts.append(np.stack([*_sampled(painter, rows, first, guidance, sampler, generator)], 1))
    codes = np.concatenate(parts)
    assert codes.max(initial=0) < count
    return codes.astype("int32")


def _sampled(
    painter: Model,
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
        given = _log_softmax(logits[:rows])
        if guided:
            without = _log_softmax(logits[rows : 2 * rows])
            given = without + guidance * (given - without)
        probabilities = sampler.probabilities(given[:, first:])
        ends = np.cumsum(probabilities, axis=-1)
        drawn = generator.random((rows, 1)) * ends[:, -1:]
        chosen = first + (ends > drawn).argmax(axis=-1)
        # Both halves continue with the same codes; further rows are not used.
        return np.resize(chosen, len(logits))

    given = np.concatenate([prompts, empty]) if guided else prompts
    for tokens in painter.stream({target_of(painter): given}, choose):
        yield tokens[:rows] - first


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype("float64") - logits.max(-1, keepdims=True)
    result: np.ndarray = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return result


def _judged(judge: Model, texts: list[str], groups: list[list[Drawing]]) -> list[list[Drawing]]:
    """The pictures of each text with their scores, the best first."""
    words = judge.embed_text(texts)
    result = []
    for vector, group in zip(words, groups, strict=True):
        found = judge.embed_image([np.asarray(x.picture) for x in group])
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
