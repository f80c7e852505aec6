"""The list of model types: each entry has its table, and nothing else lists every family."""

import dataclasses
import importlib.util
import re
from pathlib import Path

import pytest
from execution import tensorflow_only

from keras_tfm import models
from keras_tfm.model_types import KINDS, MODEL_TYPES

pytestmark = pytest.mark.default  # about texts and sources: no branch shows what it notices
ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("model_type", MODEL_TYPES, ids=lambda x: x.name)
def test_an_entry_is_that_of_its_family(model_type):
    from keras_tfm.checkpoints.huggingface import FAMILIES

    assert FAMILIES[model_type.name].builder is getattr(models, model_type.builder)
    assert model_type.kind in KINDS


@pytest.mark.parametrize(
    "table",
    [
        "",
        "bert",
        "nowhere:BERT",
        "nowhere.bert:BERT",
        "encoders.bert:NOTHING",
        "encoders.bert:TABLE",
        "vision.vit:VIT",
    ],
)
def test_an_entry_without_its_table(table):
    from keras_tfm.checkpoints import huggingface

    entry = dataclasses.replace(MODEL_TYPES[0], table=table)
    with pytest.raises(ValueError, match=f"'bert' must have a table, .*, got '{table}'") as error:
        huggingface._family(entry)
    assert "\n" not in str(error.value)


@tensorflow_only
def test_the_docs_are_those_of_the_list():
    spec = importlib.util.spec_from_file_location("families_page", ROOT / "docs/families.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page, readme = script.PAGE.read_text(), script.README.read_text()
    entries = script.builders(page)
    for name, text, body in (
        ("models", readme, f"\n\n{script.titles()}\n\n"),
        ("number of models", readme, str(len(MODEL_TYPES))),
        ("classes", page, f"\n\n{script.classes()}\n\n"),
        ("builders", page, f"\n\n{entries}\n\n"),
    ):
        assert f"<!-- {name} -->{body}<!-- end {name} -->" in text, "run python docs/families.py"


# What scripts write from the list, the history, and configurations of transformers that test more
# options; test_every_family.py tests a family without a line there.
OTHERS = {
    "README.md",
    "docs/api/models.md",
    "CHANGELOG.md",
    "tests/checkpoints/test_transformers_encoders.py",
}


def words_in(path):
    """The words of a file, in lower case, without underscores, hyphens and spaces."""
    return {re.sub(r"[_-]", "", x.lower()) for x in re.findall(r"[\w-]+", path.read_text())}


@pytest.mark.parametrize("kind", ["encoder", "decoder", "images"])
def test_two_lists_by_hand_name_every_family(kind):
    """What names all of a kind must name a new one, too; what names a part of them is a choice."""
    builders = {x.builder.replace("_", "") for x in MODEL_TYPES if x.kind == kind}
    folders = ("keras_tfm", "tests", "docs", "benchmarks", "examples", ".ci", ".github")
    files = [*ROOT.glob("*.*"), *(x for folder in folders for x in (ROOT / folder).rglob("*.*"))]
    kept = [x for x in files if x.suffix in (".py", ".md", ".toml", ".yml", ".sh", ".ipynb")]
    found = {x.relative_to(ROOT).as_posix() for x in kept if builders <= words_in(x)}
    assert found - OTHERS == {"keras_tfm/model_types.py", "keras_tfm/models/__init__.py"}
