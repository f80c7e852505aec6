"""The notebook of KerasHub runs from top to bottom, with little training."""

import pytest
from notebooks import check_outputs, check_stored, execute

for package in ("keras_hub", "litert_lm", "litert_lm_builder"):
    pytest.importorskip(package)
NAME = "kerashub.ipynb"


def texts(cell):
    return "".join(x.get("text", "") for x in cell.outputs if x.get("name") == "stdout")


@pytest.mark.slow
def test_every_cell_runs_and_the_file_answers_as_keras_hub(tmp_path):
    notebook = execute(NAME, tmp_path, KERASHUB_EPOCHS=8)
    check_outputs(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert (tmp_path / "gemma.tflite").stat().st_size > 100_000
    assert (tmp_path / "gemma.litertlm").stat().st_size > 100_000
    (asked,) = [cell for cell in cells if "generate_text" in cell.source]
    answers = texts(asked).splitlines()
    assert len(answers) == 5
    assert all(line.startswith("True ") for line in answers)
    assert any("LoRA" in texts(cell) for cell in cells)


def test_it_is_stored_without_outputs():
    check_stored(NAME)
