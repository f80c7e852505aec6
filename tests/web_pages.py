"""The pages and tests of examples/web, run by Node in headless Chromium."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from keras_tfm import runtime

WEB = Path(__file__).parents[1] / "examples/web"
RUNTIME = Path(__file__).parents[1] / "keras_tfm/web/runtime"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")


def need_browser() -> None:
    """Skips a test where Node, npm or Chromium is missing; installs the pages' packages."""
    for needed, found in {
        "node": shutil.which("node"),
        "npm": shutil.which("npm"),
        "Chromium (CHROMIUM names another than `chromium`)": CHROMIUM,
    }.items():
        if not found:
            pytest.skip(f"needs {needed}")
    _install("axe-core")


def need_node() -> None:
    """Skips a test where Node or npm is missing; installs the pages' packages."""
    for needed in ("node", "npm"):
        if not shutil.which(needed):
            pytest.skip(f"needs {needed}")
    _install("@huggingface/tokenizers")


def _install(package: str) -> None:
    if not (WEB / "node_modules" / package).exists():
        installed = subprocess.run(["npm", "ci"], cwd=WEB, capture_output=True, text=True)
        if installed.returncode:
            pytest.skip(f"npm ci failed: {installed.stderr[-500:]}")


def run_in_node(script: str, **settings: object) -> None:
    """Runs a script of examples/web/package.json with settings as environment variables."""
    result = subprocess.run(
        ["npm", "run", "--silent", script],
        cwd=WEB,
        env={**os.environ, **{name: str(x) for name, x in settings.items()}},
        capture_output=True,
        text=True,
    )
    print(result.stdout, result.stderr)
    assert result.returncode == 0


def run_in_browser(script: str, models: Path, expected: Path | dict, **settings: object) -> None:
    """Runs a script of examples/web/package.json on what it should find, or on a file of that."""
    if isinstance(expected, dict):
        (models / "expected.json").write_text(json.dumps(expected))
        expected = models / "expected.json"
    run_in_node(script, MODELS=models, EXPECTED=expected, CHROMIUM=CHROMIUM, **settings)


def answers_of(model: runtime.Model, texts: list[str]) -> dict:
    """What `files.test.js` compares: what Python answers to each text."""
    roles = {signature["role"] for signature in model.signatures.values()}
    if roles == {"predict"}:
        rows = [model.predict_text(text) for text in texts]
        outputs = [{name: x[0].tolist() for name, x in row.items()} for row in rows]
        return {"can": ["predict"], "outputs": outputs}
    answers = [x if isinstance(x, str) else x[0].text for x in model.generate_text(texts)]
    if "decode" not in roles:
        return {"can": ["generate"], "answers": answers}
    return {
        "can": ["stream"],
        "answers": answers,
        "pieces": [list(model.stream_text(text)) for text in texts],
        "unrepeated": [list(model.stream_text(text, _unrepeated())) for text in texts],
    }


def _unrepeated():
    """Chooses the most probable token that was not yet chosen."""
    seen: list[int] = []

    def choose(logits: np.ndarray) -> np.ndarray:
        row = logits[0].copy()
        row[seen] = -np.inf
        seen.append(int(row.argmax()))
        return np.full(len(logits), seen[-1])

    return choose
