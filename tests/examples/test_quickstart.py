"""The notebook runs from top to bottom, with little training, and its outputs fit a screen."""

import pytest
from notebooks import EXAMPLES, check_outputs, check_stored, execute

NAME = "quickstart.ipynb"


@pytest.mark.slow
def test_every_cell_runs_and_writes_a_file(tmp_path):
    (tmp_path / "dates_data.py").write_bytes((EXAMPLES / "dates_data.py").read_bytes())
    notebook = execute(NAME, tmp_path, QUICKSTART_EXAMPLES=3000)
    check_outputs(notebook)
    assert (tmp_path / "quickstart.tflite").stat().st_size > 500_000
    pictures = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 3  # the training curve, attention, sizes


def test_it_is_stored_without_outputs():
    check_stored(NAME)
