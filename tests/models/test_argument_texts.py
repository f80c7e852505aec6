"""Docstrings of builders, completed with the arguments that they share."""

import inspect
import re

import pytest
from families import BUILDERS

from keras_tfm import models
from keras_tfm.models.argument_texts import with_shared_arguments


@pytest.mark.parametrize("name", BUILDERS)
def test_every_argument_is_described_once_and_in_order(name):
    build = getattr(models, name)
    (section,) = re.findall(r"^Args:\n((?: .*\n)+)", inspect.getdoc(build), re.M)
    described = re.findall(r"^ {4}(\w+(?:, \w+)*): ", section, re.M)
    names = list(inspect.signature(build).parameters)
    found = [x for entry in described for x in entry.split(", ")]
    assert sorted(found) == sorted(names)
    assert found == names or any(", " in x for x in described)  # "as in" another builder
    assert max(map(len, section.splitlines())) <= 96


def test_own_texts_go_before_shared_ones():
    text = with_shared_arguments("A.\n\nArgs:\n    dim: int,\n        odd.\n", ["name", "dim"])
    assert text == "A.\n\nArgs:\n    name: str, the model's name.\n    dim: int,\n        odd."


def test_the_kind_of_builder_decides():
    def of(*names):
        return with_shared_arguments("A.\n\nReturns:\n    It.\n", names)

    assert "    num_layers: int, number of blocks.\n" in of("num_layers")
    both = of("num_layers", "num_decoder_layers")
    assert "    num_layers: int, number of encoder blocks.\n" in both
    assert both.endswith("Default: `num_layers`.\n\nReturns:\n    It.")


def test_an_argument_without_a_description():
    with pytest.raises(ValueError, match=r"description of the arguments \['odd'\] in 'A") as error:
        with_shared_arguments("A.\n\nExample:\n", ["dim", "odd"])
    assert "\n" not in str(error.value)
