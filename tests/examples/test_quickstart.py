"""The notebook runs from top to bottom, with little training, and its outputs fit a screen."""

from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"
LINES = 50  # of a screen


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quickstart")
    for name in ("dates_data.py",):
        (folder / name).write_bytes(NOTEBOOK.with_name(name).read_bytes())
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells[2].source = "import os\nos.environ['QUICKSTART_EXAMPLES'] = '3000'\n" + (
        notebook.cells[2].source
    )
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(folder)}}
    )
    return client.execute(), folder


def test_every_cell_runs_and_writes_a_file(executed):
    notebook, folder = executed
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert (folder / "quickstart.tflite").stat().st_size > 500_000
    pictures = [
        output for cell in cells for output in cell.outputs if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 3  # the training curve, attention, sizes


def test_no_output_is_larger_than_a_screen(executed):
    notebook, _ = executed
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            assert len(output.get("text", "").splitlines()) <= LINES, cell.source


def test_it_is_stored_without_outputs():
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
