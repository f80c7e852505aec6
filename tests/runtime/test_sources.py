"""What `runtime.load` loads: paths, whatever the current folder becomes, and bytes."""

import io
import multiprocessing
import operator
import pickle
import shutil
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from execution import tensorflow_only
from small_exports import QUESTIONS, classifier_file, small_file, small_tokens

from keras_tfm import runtime
from keras_tfm.runtime.inspection import inspection

pytestmark = tensorflow_only
TEXT = "two three four"


@pytest.fixture
def content():
    return Path(classifier_file().path).read_bytes()


def logits(model):
    return model.predict_text(TEXT)["output"]


@pytest.fixture
def expected():
    return logits(runtime.load(classifier_file().path))


def in_zip(content, folder):
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.writestr("inside/x.tflite", content)
    return zipfile.Path(folder / "a.zip") / "inside" / "x.tflite"


SOURCES = {
    "bytes": lambda content, _: content,
    "bytearray": lambda content, _: bytearray(content),
    "memoryview": lambda content, _: memoryview(content),
    "BytesIO": lambda content, _: io.BytesIO(content),
    "zipfile.Path": in_zip,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_bytes_are_loaded_as_the_file_is(kind, content, expected, tmp_path):
    source = SOURCES[kind](content, tmp_path)
    model = runtime.load(source)
    if kind == "bytearray":
        source[:] = bytes(len(source))  # the model has a copy
    np.testing.assert_array_equal(logits(model), expected)
    assert model.labels == ["negative", "neutral", "positive"]
    assert model.content() == content
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(logits(copy), expected)
    name = "inside/x.tflite" if kind == "zipfile.Path" else "<bytes>"
    with pytest.raises(ValueError, match=f"{name} has no signature 'encode'"):
        model.run("encode", {})
    model.close()
    with pytest.raises(ValueError, match="the model was closed"):
        model.predict_text(TEXT)


def test_an_open_file_is_read(content, expected):
    with Path(classifier_file().path).open("rb") as file:
        np.testing.assert_array_equal(logits(runtime.load(file)), expected)


def test_weight_caches_of_bytes(tmp_path):
    """A cache is known by the checksum of its file: bytes and path share it."""
    path = Path(small_file().path)
    for source in (path.read_bytes(), path, path.read_bytes()):
        model = runtime.load(source, weight_cache=tmp_path / "cache")
        np.testing.assert_array_equal(model.generate(QUESTIONS).tokens, small_tokens())
        assert len(list((tmp_path / "cache").iterdir())) == 1


def test_bytes_are_inspected_and_bytes_that_are_no_file_are_refused(content):
    assert inspection.inspect_file(content).manifest == runtime.load(content).manifest
    assert inspection.inspect_file(content).path == "<bytes>"
    for wrong, message in (
        (b"", "<bytes> is not a .tflite file"),
        (content[:-1], "<bytes> is damaged"),
        (content.replace(b'"labels"', b'"lables"'), "<bytes> is damaged"),
    ):
        with pytest.raises(ValueError, match=message):
            runtime.load(wrong)
    for wrong in (None, 5, io.StringIO("text"), [content], np.frombuffer(content, "uint8")):
        with pytest.raises(TypeError, match=r"expected the path of a \.tflite file, its bytes"):
            runtime.load(wrong)


def test_benchmarks_need_a_path(content):
    from keras_tfm.export import benchmark

    with pytest.raises(TypeError, match=r"path must be that of a file, .* got bytes"):
        benchmark(content)


# Another current folder


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The files in the current folder; a function that changes to another one."""
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    shutil.copy(classifier_file().path, tmp_path / "here" / "x.tflite")
    monkeypatch.chdir(tmp_path / "here")
    yield lambda: monkeypatch.chdir(tmp_path / "there")
    assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.parametrize("cached", [False, True])
def test_the_current_folder_may_change(elsewhere, expected, cached):
    model = runtime.load("x.tflite", weight_cache="cache" if cached else None)
    elsewhere()
    assert model.path.is_absolute()
    np.testing.assert_array_equal(logits(model), expected)  # reads the tokenizer
    assert len(model.content()) == model.path.stat().st_size
    np.testing.assert_array_equal(logits(pickle.loads(pickle.dumps(model))), expected)


def test_a_spawned_process_loads_it_from_another_folder(elsewhere, expected):
    model = runtime.load(Path("x.tflite"))
    elsewhere()
    # A pool of `multiprocessing` would wait for ever if the process could not load the model.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        answer = pool.submit(operator.methodcaller("predict_text", TEXT), model).result()
    np.testing.assert_array_equal(answer["output"], expected)
