"""A small DALL-E and the decoder of a small discrete VAE, with a tokenizer of words."""

import functools
from pathlib import Path

import numpy as np
from keras_weights import randomize
from small_clip import PROCESSOR, small_clip, tokenizer
from small_exports import once_a_run
from small_tokenizers import words

from keras_tfm import models, text
from keras_tfm.export import export_tflite
from keras_tfm.generation import Generator, Greedy, processors

TEXT, IDS, CODES, GRID = 3, 13, 7, (2, 3)
LENGTH = TEXT + GRID[0] * GRID[1]
ROWS = text.CaptionedImages(TEXT, IDS, CODES)
SAMPLED, GREEDY = ("prefill", "decode"), ("generate",)


@functools.cache
def dalle():
    model = randomize(
        models.dalle(
            IDS, CODES, TEXT, GRID, dim=12, num_layers=3, num_heads=3, intermediate_dim=10,
            masks=["row", "column", "convolution"], kernel_size=3, tie_output=False,
        )
    )  # fmt: skip
    for weight in model.get_layer("positions").weights:
        weight.assign(2 * weight)  # so that not all cells get the same code
    return model


@functools.cache
def decoder():
    return randomize(models.dvae_decoder((8, 12), CODES, 6, 3, 1, 5))


def greedy(guidance=1.0):
    """The strategy that draws the most probable codes."""
    some = [processors.SuppressTokens(range(ROWS.first_code))]
    if guidance != 1:
        some = [processors.Guidance(guidance, ROWS.unconditional), *some]
    return Greedy(processors=some)


def drawn(captions, guidance=1.0):
    """The codes (B, M) that Keras draws."""
    generator = Generator(dalle(), LENGTH, strategy=greedy(guidance))
    return ROWS.codes(generator(ROWS.prompts(captions)).tokens)


def file(signatures=SAMPLED, batch_size=4, guidance=None) -> Path:
    """Both models in one float32 file, verified; `guidance` is for `GREEDY`."""
    return _drawing(signatures, batch_size, guidance).path


@once_a_run
def _drawing(path, signatures, batch_size, guidance):
    return export_tflite(
        {"dalle": dalle(), "decoder": decoder()},
        path,
        {"dalle": list(signatures)},
        prompt_length=TEXT,
        max_length=LENGTH,
        strategy=None if guidance is None else greedy(guidance),
        batch_size=batch_size,
        tokenizer={"dalle": words(IDS)},
    )


def judged_file() -> Path:
    """Both, and the encoders of a small CLIP that reads the same words."""
    return _judged_drawing().path


@once_a_run
def _judged_drawing(path):
    return export_tflite(
        {"dalle": dalle(), "decoder": decoder(), **models.clip_towers(small_clip())},
        path,
        {"dalle": list(SAMPLED)},
        prompt_length=TEXT,
        source_length=TEXT + 1,
        max_length=LENGTH,
        batch_size=4,
        tokenizer={"dalle": words(IDS), "text": tokenizer()},
        images={"image": PROCESSOR},
        verify=False,
    )


def pixels(codes):
    """What Keras decodes, rounded."""
    return np.rint(np.asarray(decoder()(codes))).astype("uint8")
