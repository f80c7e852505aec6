"""Every class of every model type, saved here, read and saved by transformers, and read here."""

import shutil

import numpy as np
import pytest
from families import TYPES
from saved_folders import CASES, architecture_of, inputs_of, outputs_of, save

from keras_tfm.checkpoints import load_huggingface
from keras_tfm.checkpoints.image_settings import FILE as PREPROCESSOR

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# The class with most heads; the others are slow.
FAST = {f"{name}, {architecture_of(name)}" for name in TYPES}


@pytest.mark.parametrize(
    "case", [pytest.param(x, marks=[pytest.mark.slow] * (x not in FAST)) for x in CASES]
)
def test_both_ways(case, tmp_path):
    """With noise on every weight; transformers must know every tensor."""
    from read_by_transformers import TOLERANCE, answer, error_of, read

    model = save(case, tmp_path)
    assert error_of(tmp_path, answer(tmp_path)) <= TOLERANCE
    theirs = read(tmp_path)
    assert theirs.config.model_type == case.partition(",")[0]
    theirs.save_pretrained(tmp_path / "again")
    if (tmp_path / PREPROCESSOR).exists():  # which a processor would save
        shutil.copy(tmp_path / PREPROCESSOR, tmp_path / "again")
    options = {x: model.arguments[x] for x in ("audio", "image_size") if x in model.arguments}
    again, inputs = load_huggingface(tmp_path / "again", **options), inputs_of(model)
    expected, found = outputs_of(model, inputs), outputs_of(again, inputs)
    assert found.keys() == expected.keys()
    for name, x in found.items():
        np.testing.assert_allclose(x, expected[name], rtol=0, atol=1e-5 * max(1, np.abs(x).max()))
