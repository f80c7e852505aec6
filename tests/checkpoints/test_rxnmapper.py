"""Real weights of an ALBERT: rxnmapper's, which reads chemical reactions as SMILES.

`pip install --no-deps rxnmapper` (3 MB). Its weights are a `pytorch_model.bin`.
"""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from keras_tfm import checkpoints, export, runtime

REACTIONS = [
    "CC(=O)O.OCC>>CC(=O)OCC.O",
    "BrCCOCCBr.CCN(C(C)C)C(C)C.CN(C)C=O.Cl.NCC(F)(F)CO>>OCC(F)(F)CN1CCOCC1",
]
# A token of SMILES is an atom, a bond or a bracket: the pattern of rxnmapper's tokenizer.
TOKEN = re.compile(
    r"\[[^\]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%\d{2}|\d"
)


@pytest.fixture(scope="module")
def original():
    if find_spec("rxnmapper") is None:
        pytest.skip("rxnmapper is not installed: pip install --no-deps rxnmapper")
    (folder,) = find_spec("rxnmapper").submodule_search_locations
    return next(Path(folder).rglob("pytorch_model.bin")).parent


@pytest.fixture(scope="module")
def peer(original):
    """The model of transformers."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.AlbertConfig(**json.loads((original / "config.json").read_text()))
    model = transformers.AlbertForMaskedLM(config).eval()
    weights = torch.load(original / "pytorch_model.bin", map_location="cpu", weights_only=True)
    missing = model.load_state_dict(weights, strict=False).missing_keys
    assert set(missing) <= {"predictions.decoder.weight", "predictions.decoder.bias"}
    return model


def ids_of(original, reaction):
    vocabulary = {
        token: i for i, token in enumerate((original / "vocab.txt").read_text().split("\n"))
    }
    return [vocabulary[x] for x in ("[CLS]", *TOKEN.findall(reaction), "[SEP]")]


def test_keras_and_the_file_answer_as_transformers(original, peer, tmp_path):
    import torch

    model = checkpoints.load_huggingface(original)
    export.export_tflite(model, tmp_path / "rxn.tflite", source_length=80)
    file = runtime.load(tmp_path / "rxn.tflite")
    for reaction in REACTIONS:
        ids = np.array([ids_of(original, reaction)])
        with torch.inference_mode():
            wanted = peer(torch.tensor(ids)).logits[0].numpy()
        given = {"tokens": ids.astype("int32"), "segments": np.zeros(ids.shape, "int32")}
        scale = np.abs(wanted).max()
        found = np.asarray(model.predict_on_batch(given))[0]
        np.testing.assert_allclose(found, wanted, atol=3e-5 * scale)
        (exported,) = file.predict(given).values()
        np.testing.assert_allclose(exported[0][: len(wanted)], wanted, atol=1e-4 * scale)
        # The weights are real: random ones would find one token in 591.
        assert (wanted.argmax(-1) == ids[0])[1:-1].mean() > 0.5
