"""`Model.close` and `with`: memory and the mapped file are released, and later calls refused."""

import gc
from pathlib import Path

import numpy as np
import pytest
from small_exports import QUESTIONS, real_file, small_file, small_tokens

from keras_tfm import runtime

MAPS = Path("/proc/self/maps")
CACHES = pytest.mark.parametrize("cached", [False, True], ids=["plain", "weight cache"])


def load(path, folder, cached):
    return runtime.load(path, weight_cache=folder if cached else None)


@CACHES
def test_closed_models_refuse_every_call(tmp_path, cached):
    signatures = ("generate", "predict", "encode", "decode")
    path = small_file(signatures=signatures).path
    with load(path, tmp_path, cached) as model:
        np.testing.assert_array_equal(model.generate(QUESTIONS).tokens, small_tokens())
        stream = model.stream(QUESTIONS[:1])
        next(stream)
    model.close()  # once more
    inputs = {"source": QUESTIONS[:1], "target": np.ones((1, 9), "int32")}
    for call in (
        lambda: model.generate(QUESTIONS),
        lambda: model.predict(inputs),
        lambda: next(stream),
        lambda: next(model.stream(QUESTIONS[:1])),
    ):
        with pytest.raises(ValueError, match="the model was closed"):
            call()
    assert model.signatures  # the manifest stays


def test_errors_in_the_block_pass():
    with pytest.raises(KeyError, match="reason"), runtime.load(small_file().path) as model:
        raise KeyError("reason")
    with pytest.raises(ValueError, match="closed"):
        model.generate(QUESTIONS)


@pytest.mark.skipif(not MAPS.exists(), reason="Linux lists a process's mapped files here")
@CACHES
def test_no_file_stays_mapped(tmp_path, cached):
    path = real_file("int8").path
    model = load(path, tmp_path, cached)
    model.generate([[3, 4]])
    names = [str(path), *([str(next(tmp_path.iterdir()))] if cached else [])]
    for name in names:
        assert name in MAPS.read_text()
    model.close()
    gc.collect()  # arrays of the manifest's reader
    for name in names:
        assert name not in MAPS.read_text()
