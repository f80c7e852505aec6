"""The list of model types: each entry has its table, and every list of families is made of it."""

import dataclasses
import importlib.util
import re
from pathlib import Path

import pytest
from execution import tensorflow_only

from keras_tfm import models
from keras_tfm.model_types import KINDS, MODEL_TYPES

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("model_type", MODEL_TYPES, ids=lambda x: x.name)
def test_an_entry_is_that_of_its_family(model_type):
    from keras_tfm.checkpoints.huggingface import FAMILIES

    builder = model_type.call.partition("(")[0]
    assert FAMILIES[model_type.name].builder is getattr(models, builder)
    assert model_type.kind in KINDS


@pytest.mark.parametrize("table", ["bert:NOTHING", "bert:BASE", "t5:T5"])
def test_an_entry_without_its_table(table):
    from keras_tfm.checkpoints import huggingface

    entry = dataclasses.replace(MODEL_TYPES[0], table=table)
    name = table.replace(":", ".")
    with pytest.raises(ValueError, match=f"'bert' needs a Family .* keras_tfm.checkpoints.{name}"):
        huggingface._family(entry)


def test_readme_names_each_family():
    text = (ROOT / "README.md").read_text()
    words = {re.split(r"[ ,]", x.title)[0].removesuffix("'s") for x in MODEL_TYPES}
    assert {word for word in words if word not in text} == set()


@tensorflow_only
@pytest.mark.parametrize("page", ["families.md", "huggingface.md"])
def test_tables_are_those_of_the_list(page):
    spec = importlib.util.spec_from_file_location("families", ROOT / "docs/families.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    tables = {"classes": script.classes()} if page == "families.md" else {}
    if page == "huggingface.md":
        tables = {kind: script.by_kind(kind) for kind in KINDS[:3]}
    text = (ROOT / "docs" / page).read_text()
    for name, table in tables.items():
        assert f"<!-- {name} -->\n\n{table}\n\n<!-- end -->" in text, "run python docs/families.py"


def test_families_are_listed_in_one_place():
    """A file that names eight types as strings is a list of them."""
    names = "|".join(re.escape(x.name) for x in MODEL_TYPES)
    found = {}
    for path in sorted((ROOT / "keras_tfm").rglob("*.py")):
        listed = set(re.findall(rf'"({names})"', path.read_text()))
        if len(listed) >= 8:
            found[path.relative_to(ROOT / "keras_tfm").as_posix()] = len(listed)
    assert list(found) == LISTS, found


# The second has the names of the builders.
LISTS = ["model_types.py", "models/__init__.py"]
