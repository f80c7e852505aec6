"""The page in examples/web, in headless Chromium, with files made here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import dates_data as data
import pytest

ROOT = Path(__file__).parents[2]
WEB = ROOT / "examples/web"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")


def test_the_page_answers_as_python_does(tmp_path):
    for needed, found in {
        "node": shutil.which("node"),
        "npm": shutil.which("npm"),
        "Chromium (CHROMIUM names another than `chromium`)": CHROMIUM,
    }.items():
        if not found:
            pytest.skip(f"needs {needed}")
    if not (WEB / "node_modules").exists():
        installed = subprocess.run(["npm", "ci"], cwd=WEB, capture_output=True, text=True)
        if installed.returncode:
            pytest.skip(f"npm ci failed: {installed.stderr[-500:]}")
    _export(tmp_path)
    expected = tmp_path / "expected.json"
    subprocess.run(
        [sys.executable, WEB / "test/expected.py", tmp_path, expected],
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    settings = {"MODELS": str(tmp_path), "EXPECTED": str(expected), "CHROMIUM": CHROMIUM}
    result = subprocess.run(
        ["npm", "test"], cwd=WEB, env={**os.environ, **settings}, capture_output=True, text=True
    )
    print(result.stdout)
    assert result.returncode == 0


def _export(folder: Path) -> None:
    """A small model that learned nothing, three times: what is compared are its tokens."""
    import keras

    from keras_tfm.export import export_tflite
    from keras_tfm.generation import Beam
    from keras_tfm.models import transformer

    keras.utils.set_random_seed(0)
    tokenizer, detokenizer = data.source_tokenizer(), data.target_tokenizer()
    model = transformer(
        tokenizer.get_vocab_size(),
        detokenizer.get_vocab_size(),
        dim=16,
        num_layers=1,
        num_heads=2,
        intermediate_dim=32,
        normalize_first=True,
    )
    # Wide enough that the answers differ from text to text.
    model.set_weights(
        [3.0 * weight if weight.ndim > 1 else weight for weight in model.get_weights()]
    )
    length = data.SOURCE_LENGTH
    files = {
        "float32": {"source_length": length},
        "int8": {"source_length": length, "quantization": "int8"},
        "beam": {"source_length": (length // 2, length), "batch_size": 2, "strategy": Beam(size=2)},
    }
    for name, options in files.items():
        export_tflite(
            model,
            folder / f"{name}.tflite",
            max_length=data.TARGET_LENGTH,
            start_id=data.START,
            end_id=data.END,
            tokenizer=tokenizer,
            detokenizer=detokenizer,
            verify=False,
            **options,
        )
