"""The notebook of KerasHub runs from top to bottom, with little training."""

import ast
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
for package in ("ipykernel", "keras_hub", "litert_lm", "litert_lm_builder"):
    pytest.importorskip(package)

NOTEBOOK = Path(__file__).parents[2] / "examples" / "kerashub.ipynb"
LINES = 50  # of a screen


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kerashub")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    setting = "import os\nos.environ['KERASHUB_EPOCHS'] = '8'\n"
    notebook.cells[2].source = setting + notebook.cells[2].source
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(folder)}}
    )
    return client.execute(), folder


def texts(cell):
    return "".join(x.get("text", "") for x in cell.outputs if x.get("name") == "stdout")


def test_every_cell_runs_and_the_file_answers_as_keras_hub(executed):
    notebook, folder = executed
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert (folder / "gemma.tflite").stat().st_size > 100_000
    assert (folder / "gemma.litertlm").stat().st_size > 100_000
    (asked,) = [cell for cell in cells if "generate_text" in cell.source]
    answers = texts(asked).splitlines()
    assert len(answers) == 5
    assert all(line.startswith("True ") for line in answers)
    assert any("LoRA" in texts(cell) for cell in cells)


def test_no_output_is_larger_than_a_screen(executed):
    notebook, _ = executed
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            assert len(output.get("text", "").splitlines()) <= LINES, cell.source


def test_it_is_stored_without_outputs():
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        if cell.cell_type == "code":
            ast.parse(cell.source)
