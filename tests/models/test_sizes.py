"""Parameters of every size, counted without taking memory for them."""

import importlib
import json
from pathlib import Path

import keras
import pytest

from keras_tfm import models
from keras_tfm.models.without_storage import without_storage

FIXTURE = Path(__file__).parents[1] / "parity" / "huggingface" / "parameter_counts.json"
COUNTS = json.loads(FIXTURE.read_text())
BILLION = 10**9
# Billions, as table 2.1 of arXiv:2005.14165, section 3.7 of arXiv:1910.10683 and
# arXiv:2109.10282 round them.
PAPERS = {
    ("gpt", "gpt3-small"): 0.125, ("gpt", "gpt3-medium"): 0.350, ("gpt", "gpt3-large"): 0.760,
    ("gpt", "gpt3-xl"): 1.3, ("gpt", "gpt3-2.7b"): 2.7, ("gpt", "gpt3-6.7b"): 6.7,
    ("gpt", "gpt3-13b"): 13, ("gpt", "gpt3-175b"): 175,
    ("t5", "base"): 0.22, ("t5", "3b"): 2.8, ("t5", "11b"): 11,
    ("bert", "base"): 0.110, ("bert", "large"): 0.340,
    ("vision_encoder_decoder", "small"): 0.062, ("vision_encoder_decoder", "base"): 0.334,
    ("vision_encoder_decoder", "large"): 0.558, ("lfm2", "8b-a1b"): 8.3,
}  # fmt: skip
# Some take seconds each; by default these, of which one is compared with its paper.
FAST = {"bert-tiny", "bert-base", "t5-umt5-small"}


def sizes_of(family):
    builder = getattr(models, family)
    return importlib.import_module(builder.__module__).SIZES


def rows():
    for family, sizes in COUNTS.items():
        for size in sizes:
            name = f"{family}-{size}"
            yield pytest.param(family, size, id=name, marks=[pytest.mark.slow] * (name not in FAST))


@pytest.mark.parametrize(("family", "size"), list(rows()))
def test_parameters_are_as_many_as_in_transformers_and_the_paper(family, size):
    row = COUNTS[family][size]
    with without_storage():
        model = getattr(models, family)(row["vocabulary_size"], **sizes_of(family)[size])
    assert model.count_params() == row["parameters"]
    if (family, size) in PAPERS:
        assert model.count_params() / BILLION == pytest.approx(PAPERS[family, size], rel=0.03)


@pytest.mark.parametrize("family", COUNTS)
def test_every_size_is_counted(family):
    assert list(sizes_of(family)) == sorted(COUNTS[family], key=list(sizes_of(family)).index)


def test_nothing_is_allocated_and_nothing_is_left_to_be():
    with without_storage():
        model = models.gpt(50257, **sizes_of("gpt")["gpt3-small"])
    assert all(weight._value is None for weight in model.weights)  # not public
    with keras.StatelessScope():  # when it is closed, Keras fills what waits
        pass
    assert all(weight._value is None for weight in model.weights)
