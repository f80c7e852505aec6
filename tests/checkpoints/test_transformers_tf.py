"""tf_model.h5 of transformers 4, converted by the guide's program, gives the same logits."""

import re
from pathlib import Path

import numpy as np
import pytest

from keras_tfm.checkpoints import load_huggingface

pytest.importorskip("safetensors")

ROOT = Path(__file__).parents[2]
FOLDERS = ROOT / "tests/parity/transformers_tf"
IDS = np.array([[3, 4, 5, 6]])


def convert(source, target):
    page = (ROOT / "docs/from-transformers-tf.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    (program,) = (x for x in programs if "def convert(" in x)
    names = {}
    exec(program, names)
    names["convert"](source, target)


@pytest.mark.parametrize(
    "name, inputs",
    [
        ("bert", {"tokens": IDS, "segments": np.zeros_like(IDS)}),
        ("gpt2", IDS),
        ("t5", {"source": IDS, "target": IDS}),
    ],
)
def test_a_converted_folder_gives_the_logits_of_the_tensorflow_class(name, inputs, tmp_path):
    convert(FOLDERS / name, tmp_path / "folder")
    found = load_huggingface(tmp_path / "folder")(inputs)
    # float32, with sums in another order.
    np.testing.assert_allclose(found, np.load(FOLDERS / name / "logits.npy"), rtol=1e-5, atol=1e-6)
