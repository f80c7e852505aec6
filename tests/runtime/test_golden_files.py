"""Files of every manifest format, as they were written once: this version runs all of them.

tests/golden/make.py makes them. Format 1 is a file of one model, format 2 one of several.
"""

import hashlib
import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from keras_tfm import runtime
from keras_tfm.runtime.manifest.manifest import FORMAT, ROLES

GOLDEN = Path(__file__).parents[1] / "golden"


def test_every_format_has_a_file():
    names = {path.name for path in GOLDEN.glob("*.xz")}
    assert names == {f"format_{version}.tflite.xz" for version in range(1, FORMAT + 1)}


def content_of(version):
    return lzma.decompress((GOLDEN / f"format_{version}.tflite.xz").read_bytes())


def file_and_answers(version, folder):
    path = folder / "model.tflite"
    path.write_bytes(content_of(version))
    wanted = json.loads((GOLDEN / f"format_{version}.json").read_text(encoding="utf-8"))
    file = runtime.load(path)
    assert file.manifest["format"] == version
    return file, wanted


def test_a_golden_file_of_several_models_answers_as_it_did(tmp_path):
    file, wanted = file_and_answers(2, tmp_path)
    assert set(file.models) == {"image", "text"}
    pixels = list(np.array(wanted["pixels"], "uint8"))
    np.testing.assert_allclose(file.embed_image(pixels), wanted["image"], atol=1e-4)
    np.testing.assert_allclose(file.embed_text(wanted["texts"]), wanted["text"], atol=1e-4)


def test_a_golden_file_of_one_model_answers_as_it_did(tmp_path):
    file, wanted = file_and_answers(1, tmp_path)
    assert {x["role"] for x in file.signatures.values()} == set(ROLES) - {"stream"}
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


def test_a_golden_file_with_states_answers_as_it_did(tmp_path):
    file, wanted = file_and_answers(3, tmp_path)
    for prompt, tokens in zip(wanted["prompts"], wanted["continued"], strict=True):
        for draft in (None, runtime.PromptLookup()):
            steps = file.stream({"tokens": [prompt]}, draft=draft)
            assert [int(x[0]) for x in steps] == tokens[3:]


def test_a_golden_file_reads_its_source_in_pieces(tmp_path):
    file, wanted = file_and_answers(4, tmp_path)
    stream, readings = file.open_stream(), wanted["readings"]
    parts = [stream.append(readings[:5]), stream.append(readings[5:]), stream.finish()]
    found = np.concatenate([part["output"] for part in parts])
    np.testing.assert_allclose(found, wanted["outputs"], atol=1e-4)


# The bytes that were committed: a golden file that is made again is not golden.
DIGESTS = {
    1: "9a1272f965f8ecd33791590f1a75c2083dfe2f883982c6d65fccaaaf3c770f39",
    2: "b37a088542734df46c92ce4861acf12acbc1d291e1bf01d88595345328ca0daa",
    3: "bb3ed17bd4240da5298637d4dae69a772eb70c4b3bbf097b061a1e42e5a84b7b",
    4: "6150263520107c118ce92af3539b9a21ac3e93b5822d765ef881e3d586e3fee4",
}


@pytest.mark.parametrize("version", range(1, FORMAT + 1))
def test_a_golden_file_is_never_changed(version):
    assert hashlib.sha256(content_of(version)).hexdigest() == DIGESTS[version]
