"""Files of every manifest format, as they were written once: this version runs all of them.

tests/golden/make.py makes the one of the current format.
"""

import hashlib
import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from keras_tfm import runtime
from keras_tfm.runtime.manifest_fields import FORMAT, ROLES

GOLDEN = Path(__file__).parents[1] / "golden"


def test_every_format_has_a_file():
    names = {path.name for path in GOLDEN.glob("*.xz")}
    assert names == {f"format_{version}.tflite.xz" for version in range(1, FORMAT + 1)}


def content_of(version):
    return lzma.decompress((GOLDEN / f"format_{version}.tflite.xz").read_bytes())


@pytest.mark.parametrize("version", range(1, FORMAT + 1))
def test_a_golden_file_is_loaded_and_answers_as_it_did(version, tmp_path):
    path = tmp_path / "model.tflite"
    path.write_bytes(content_of(version))
    wanted = json.loads((GOLDEN / f"format_{version}.json").read_text(encoding="utf-8"))
    file = runtime.load(path)
    assert file.manifest["format"] == version
    assert {x["role"] for x in file.signatures.values()} == set(ROLES)
    sources, prompts = wanted["sources"], wanted["prompts"]
    np.testing.assert_array_equal(file.generate(sources).tokens, wanted["tokens"])
    continued = file.generate({"source": sources, "target": prompts}).tokens
    np.testing.assert_array_equal(continued, wanted["continued"])
    for source, prompt, tokens in zip(sources, prompts, wanted["continued"], strict=True):
        streamed = [int(x[0]) for x in file.stream({"source": [source], "target": [prompt]})]
        assert streamed == tokens[3 : 3 + len(streamed)]
    logits = file.predict({"source": sources, "target": wanted["tokens"]})["output"]
    np.testing.assert_allclose(logits, wanted["logits"], atol=1e-4)  # kernels of other processors
    assert file.generate_text(wanted["texts"]) == wanted["answers"]


# The bytes that were committed: a golden file that is made again is not golden.
DIGESTS = {1: "9a1272f965f8ecd33791590f1a75c2083dfe2f883982c6d65fccaaaf3c770f39"}


@pytest.mark.parametrize("version", range(1, FORMAT + 1))
def test_a_golden_file_is_never_changed(version):
    assert hashlib.sha256(content_of(version)).hexdigest() == DIGESTS[version]
