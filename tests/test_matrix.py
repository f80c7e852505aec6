"""The matrix of layers in docs/matrix.md is what docs/matrix.py finds."""

import importlib.util
import re
from pathlib import Path

import keras
import pytest

from keras_tfm import layers

DOCS = Path(__file__).parents[1] / "docs"
spec = importlib.util.spec_from_file_location("matrix", DOCS / "matrix.py")
matrix = importlib.util.module_from_spec(spec)
spec.loader.exec_module(matrix)

# One row that cannot be stepped, and one that is stepped beside an encoder; the others are slow.
QUICK = {'`keras.layers.Conv1D`, `padding="causal"`', "`MultiHeadCrossAttention`"}
ROWS = [(group, name) for group, rows in matrix.GROUPS.items() for name in rows]


def committed():
    """(group, name of a row) -> its cells."""
    return {
        (entry["group"], name): cells.split(" | ")
        for entry in matrix.ENTRY.finditer(matrix.PAGE.read_text())
        for name, cells in re.findall(
            r"^\| (.*?) \| ((?:yes|no)(?: \| (?:yes|no))+) \|$", entry[0], re.M
        )
    }


def test_the_page_has_the_rows_of_the_script():
    assert list(committed()) == ROWS


def test_the_page_has_every_layer_of_the_library():
    page = matrix.PAGE.read_text()
    names = {
        name
        for name in layers.__all__
        if isinstance(getattr(layers, name), type)
        and issubclass(getattr(layers, name), (keras.layers.Layer, layers.AttentionPosition))
    }
    names -= {"AttentionPosition"}  # the base class
    assert {"MultiHeadSelfAttention", "ALiBi", "Residual"} <= names
    assert [name for name in sorted(names) if not re.search(rf"`.*\b{name}\b.*`", page)] == []


@pytest.mark.default
@pytest.mark.parametrize(
    ("group", "name"),
    [pytest.param(*row, marks=[pytest.mark.slow] * (row[1] not in QUICK)) for row in ROWS],
)
def test_a_row_is_what_a_fresh_run_finds(group, name):
    cells, _ = matrix.row(matrix.GROUPS[group][name])
    assert cells == committed()[group, name]
