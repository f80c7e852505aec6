"""What the tests of notebooks share: a notebook that runs with little training, and its outputs."""

import ast
import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
LINES = 50  # of a screen


def execute(name: str, folder: Path, **settings: object):
    """Runs a notebook of examples/ in a folder.

    Args:
        name: str, its file.
        folder: the working directory.
        settings: environment variables, set before its first import.
    """
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    first = notebook.cells[2]
    lines = [f"os.environ[{key!r}] = {str(x)!r}\n" for key, x in settings.items()]
    first.source = "import os\n" + "".join(lines) + first.source
    resources = {"metadata": {"path": str(folder)}}
    return nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()


def check_outputs(notebook) -> None:
    """Every cell ran, and no output is larger than a screen."""
    for cell in notebook.cells:
        assert cell.cell_type != "code" or cell.execution_count
        for output in cell.get("outputs", []):
            assert len(output.get("text", "").splitlines()) <= LINES, cell.source


def check_stored(name: str) -> None:
    """A notebook is stored without outputs, and each cell is Python."""
    nbformat = pytest.importorskip("nbformat")
    for cell in nbformat.read(EXAMPLES / name, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        if cell.cell_type == "code":
            ast.parse(re.sub(r"^%.*", "", cell.source, flags=re.M))  # "%matplotlib inline"
