"""A small CLIP with random weights, its tokenizer of letters, and pictures."""

import functools

import keras
import numpy as np
from keras_weights import randomize

from keras_tfm import models, runtime

TOWER = {"dim": 36, "num_layers": 2, "num_heads": 3, "intermediate_dim": 40}
END = 2
LENGTH = 13
PROCESSOR = runtime.ImageProcessor((16, 12))
PICTURES = [
    np.random.default_rng(i).integers(0, 256, size, "uint8")
    for i, size in enumerate([(20, 30, 3), (16, 12, 3), (50, 11, 3)])
]


@functools.cache
def pair() -> keras.Model:
    """Made once: no test may change it."""
    model = models.clip(
        (16, 12),
        4,
        vocabulary_size=32,
        max_length=LENGTH,
        end_id=END,
        projection_dim=33,
        image=TOWER,
        text={**TOWER, "dim": 42, "num_heads": 7},
    )
    return randomize(model)


def letters():
    """A token a letter, and the start and end tokens around each text."""
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, processors
    from tokenizers import models as kinds

    ids = {x: i for i, x in enumerate(["<pad>", "<start>", "<end>", "<unk>", *" abcdefghijklmno"])}
    tokenizer = Tokenizer(kinds.WordPiece(ids, unk_token="<unk>"))
    tokenizer.add_special_tokens(["<pad>", "<start>", "<end>", "<unk>"])  # as BERT's
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", 1), ("<end>", 2)]
    )
    return tokenizer


def rows_of(texts, length=LENGTH) -> np.ndarray:
    """The ids of texts, padded."""
    tokenizer, rows = letters(), np.zeros((len(texts), length), "int32")
    for row, text in zip(rows, texts, strict=True):
        ids = tokenizer.encode(text).ids
        row[: len(ids)] = ids
    return rows
