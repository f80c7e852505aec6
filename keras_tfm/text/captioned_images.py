"""Rows of a text and the codes of an image, for DALL-E."""

from collections.abc import Sequence

import numpy as np

from keras_tfm.arguments import check_integer, check_rate


class CaptionedImages:
    """Makes the rows of `models.dalle` from token ids of captions and codes of images.

    A row is the caption's tokens, padded to `text_length` with a padding token for each position,
    then the codes: ids in the order that `models.dalle` describes. Captions are never truncated.

    Args:
        text_length: int, number of positions of the text (N), as of the model.
        text_vocabulary_size: int, number of the text's token ids, as of the model.
        image_vocabulary_size: int, number of codes, as of the model.
        caption_dropout: float, probability that a caption is left out in training: a row of padding
            and codes, from which the model learns what `processors.Guidance` compares with.
        text_weight: float, share of the text in the loss, 1/8 in the paper (arXiv:2102.12092).
        seed: int, seed of the choice of captions that are left out.

    Call arguments:
        captions: list of B sequences of ids, without padding.
        codes: (B, M), integers, the codes of each image, row by row.
        step: int, the step, counted over all epochs. The choice depends only on it and the seed.

    Returns:
        A tuple: tokens (B, N + M - 1), the next tokens (B, N + M - 1), both int32, and their
        weights, float32: `text_weight` divided among the caption's tokens but the first, 0 for
        padding, and 1 - `text_weight` divided among the codes. Train with
        `keras.losses.SparseCategoricalCrossentropy(from_logits=True,
        reduction="mean_with_sample_weight")`.

    Raises:
        TypeError: ids or codes that are not integers.
        ValueError: an argument out of range; a caption without tokens, or with more than
            `text_length`; ids or codes out of range; not one caption for each image.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.text import CaptionedImages
    >>> rows = CaptionedImages(3, text_vocabulary_size=10, image_vocabulary_size=7)
    >>> rows.prompts([[5, 2]]).tolist()  # 12 is the padding token of position 2
    [[5, 2, 12]]
    >>> tokens, targets, weights = rows([[5, 2]], np.array([[0, 6]]), step=0)
    >>> tokens.tolist(), targets.tolist(), weights.tolist()
    ([[5, 2, 12, 13]], [[2, 12, 13, 19]], [[0.125, 0.0, 0.4375, 0.4375]])
    """

    def __init__(
        self,
        text_length: int,
        text_vocabulary_size: int,
        image_vocabulary_size: int,
        caption_dropout: float = 0.0,
        text_weight: float = 0.125,
        seed: int = 0,
    ):
        check_integer("text_length", text_length)
        check_integer("text_vocabulary_size", text_vocabulary_size)
        check_integer("image_vocabulary_size", image_vocabulary_size)
        check_rate("caption_dropout", caption_dropout)
        check_rate("text_weight", text_weight)
        self.text_length = text_length
        self.text_vocabulary_size = text_vocabulary_size
        self.image_vocabulary_size = image_vocabulary_size
        check_integer("seed", seed, minimum=0)
        self.caption_dropout, self.text_weight, self.seed = caption_dropout, text_weight, seed

    @property
    def first_code(self) -> int:
        """The id of code 0. Smaller ids are those of the text."""
        return self.text_vocabulary_size + self.text_length

    @property
    def unconditional(self) -> list[int]:
        """The prompt without a caption: the padding token of each position."""
        return list(range(self.text_vocabulary_size, self.first_code))

    def prompts(self, captions: Sequence[Sequence[int]]) -> np.ndarray:
        """The captions, padded: (B, N), int32, prompts for generation."""
        result = np.tile(np.array(self.unconditional, "int32"), (len(captions), 1))
        for i, (row, caption) in enumerate(zip(result, captions, strict=True)):
            ids = np.asarray(caption)
            if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
                raise TypeError(f"caption {i} must be integers in one dimension, got {caption!r}")
            if not 1 <= len(ids) <= self.text_length:
                raise ValueError(
                    f"caption {i} must have 1 to {self.text_length} tokens, got {len(ids)}"
                )
            _check_range(f"the ids of caption {i}", ids, self.text_vocabulary_size)
            row[: len(ids)] = ids
        return result

    def codes(self, tokens: np.ndarray) -> np.ndarray:
        """The codes in generated rows (B, N + M): (B, M), int32."""
        codes = np.asarray(tokens)[:, self.text_length :] - self.first_code
        _check_range("the codes of generated rows", codes, self.image_vocabulary_size)
        return codes.astype("int32")

    def __call__(
        self, captions: Sequence[Sequence[int]], codes: np.ndarray, step: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Captions and codes -> tokens, next tokens, weights."""
        codes = np.asarray(codes)
        if codes.ndim != 2 or codes.dtype.kind not in "iu":
            raise TypeError(f"codes must be integers (B, M), got {codes.dtype} {codes.shape}")
        if len(captions) != len(codes):
            raise ValueError(
                f"each image needs one caption, got {len(codes)} images and {len(captions)} "
                "captions"
            )
        if not codes.shape[1]:
            raise ValueError(f"an image needs at least one code, got codes of {codes.shape}")
        _check_range("codes", codes, self.image_vocabulary_size)
        check_integer("step", step, minimum=0)
        prompts = self.prompts(captions)
        left_out = np.random.default_rng([self.seed, step]).random(len(codes))
        prompts[left_out < self.caption_dropout] = self.unconditional
        rows = np.concatenate([prompts, codes + self.first_code], axis=1).astype("int32")
        targets = rows[:, 1:]
        of_text = targets < self.text_vocabulary_size
        of_text[:, self.text_length - 1 :] = False
        counts = np.maximum(of_text.sum(axis=1, keepdims=True), 1)
        weights = np.where(of_text, self.text_weight / counts, 0.0)
        weights[:, self.text_length - 1 :] = (1 - self.text_weight) / codes.shape[1]
        return rows[:, :-1], targets, weights.astype("float32")


def _check_range(name: str, ids: np.ndarray, size: int) -> None:
    if ids.size and not 0 <= ids.min() <= ids.max() < size:
        raise ValueError(f"{name} must be in 0..{size - 1}, got {ids.min()}..{ids.max()}")
