"""`runtime.load(..., weight_cache=)`: the same answers, from a cache that is whole and its own."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import textwrap
import warnings
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers
from small_exports import QUESTIONS, real_file, small, small_file, small_tokens
from small_models import SOURCES, TARGET_SIZE, logits_of

from keras_tfm import atomic_files, runtime
from keras_tfm.export import export_tflite
from keras_tfm.runtime import weight_cache


@pytest.fixture(scope="module")
def report():
    return small_file(num_layers=2)


def caches(folder):
    return sorted(folder.iterdir())


@pytest.mark.parametrize("threads", [1, 2])
def test_it_answers_as_keras(report, tmp_path, threads):
    for _ in range(2):  # a cache that is made, and one that is read
        model = runtime.load(report.path, threads, weight_cache=tmp_path / "made")
        np.testing.assert_array_equal(model.generate(QUESTIONS).tokens, small_tokens(num_layers=2))
        targets = np.random.default_rng(0).integers(1, TARGET_SIZE, (4, 9)).astype("int32")
        logits = model.predict({"source": SOURCES, "target": targets})["output"]
        expected = logits_of(small(num_layers=2), SOURCES, targets)
        # As in tests/export/test_tflite.py.
        np.testing.assert_allclose(logits, expected, rtol=0.0, atol=1e-5)


def test_one_dtype_and_shape_as_without(report, tmp_path):
    plain, cached = runtime.load(report.path), runtime.load(report.path, weight_cache=tmp_path)
    for name in plain.signatures:
        inputs = {
            key: np.ones(spec["shape"], spec["dtype"])
            for key, spec in plain.signatures[name]["inputs"].items()
        }
        expected, found = plain.run(name, inputs), cached.run(name, inputs)
        assert found.keys() == expected.keys()
        for key in expected:
            assert (found[key].shape, found[key].dtype) == (
                expected[key].shape,
                expected[key].dtype,
            )


def test_a_second_load_makes_none(tmp_path):
    path = real_file("int8").path
    runtime.load(path, weight_cache=tmp_path)
    (cache,) = caches(tmp_path)
    before = cache.stat()
    runtime.load(path, weight_cache=tmp_path)
    assert caches(tmp_path) == [cache]
    assert cache.stat().st_ino == before.st_ino
    assert cache.stat().st_size > 1e5


def test_models_of_the_same_shapes_have_their_own(tmp_path):
    """XNNPACK would take one for the other."""
    x = keras.Input((37,), name="x")
    dense = layers.Dense(41)
    model, files = keras.Model(x, dense(x)), []
    for value in (1.0, 2.0):
        dense.kernel.assign(np.full((37, 41), value))
        files.append(export_tflite(model, tmp_path / f"{value}.tflite", verify=False).path)
    for file, value in ((files[0], 1.0), (files[1], 2.0), (files[0], 1.0)):
        loaded = runtime.load(file, weight_cache=tmp_path / "caches")
        outputs = loaded.predict(np.ones((1, 37)))["output"]
        np.testing.assert_array_equal(outputs, np.full((1, 41), 37 * value))
    assert len(caches(tmp_path / "caches")) == 2


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_cache_is_made_again(report, tmp_path, damage):
    runtime.load(report.path, weight_cache=tmp_path)
    (cache,) = caches(tmp_path)
    whole = cache.read_bytes()
    content = bytearray(whole)
    if damage == "flip":
        for i in range(len(content) // 2, len(content), 5):
            content[i] ^= 0x55
    cache.write_bytes(content if damage == "flip" else content[: 100 * (damage == "cut")])
    tokens = runtime.load(report.path, weight_cache=tmp_path).generate(QUESTIONS).tokens
    np.testing.assert_array_equal(tokens, small_tokens(num_layers=2))
    (again,) = caches(tmp_path)
    assert len(again.read_bytes()) == len(whole)


@pytest.fixture
def unwritable(tmp_path):
    """A folder that cannot be written, for root as well: the mode alone does not stop root."""
    folder = tmp_path / "caches"
    folder.mkdir()
    yield folder
    folder.chmod(0o700)


def make_unwritable(folder, monkeypatch):
    folder.chmod(0o500)

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied", str(folder))

    for module, name in ((tempfile, "mkdtemp"), (os, "replace"), (os, "unlink"), (os, "utime")):
        monkeypatch.setattr(module, name, refuse)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit for files")
@pytest.mark.parametrize("kind", ["full", "limit"])
def test_a_disk_without_space(report, tmp_path, monkeypatch, kind):
    """XNNPACK would end the process."""
    if kind == "full":
        usage = shutil.disk_usage(tmp_path)._replace(free=1000)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    else:
        limits = (1000, resource.RLIM_INFINITY)
        monkeypatch.setattr(resource, "getrlimit", lambda number: limits)
    with pytest.warns(UserWarning, match=r"packed in memory .*bytes are needed, 1,000 are free"):
        model = runtime.load(report.path, weight_cache=tmp_path / "c")
    np.testing.assert_array_equal(model.generate(QUESTIONS).tokens, small_tokens(num_layers=2))
    assert not caches(tmp_path / "c")


@pytest.mark.parametrize("before", ["nothing", "whole", "damaged"])
def test_a_folder_that_cannot_be_written(report, unwritable, monkeypatch, before):
    """A whole cache in it is used; otherwise weights are packed in memory, with a warning."""
    if before != "nothing":
        runtime.load(report.path, weight_cache=unwritable)
    if before == "damaged":
        (cache,) = caches(unwritable)
        cache.write_bytes(cache.read_bytes()[:100])
    contents = [path.read_bytes() for path in caches(unwritable)]
    make_unwritable(unwritable, monkeypatch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = runtime.load(report.path, weight_cache=unwritable)
    found = [str(x.message) for x in caught if "packed in memory" in str(x.message)]
    assert len(found) == (before != "whole")
    assert all(x.filename == __file__ for x in caught if str(x.message) in found)
    np.testing.assert_array_equal(model.generate(QUESTIONS).tokens, small_tokens(num_layers=2))
    assert [path.read_bytes() for path in caches(unwritable)] == contents


@pytest.mark.parametrize("change", ["version", "processor"])
def test_a_cache_of_another_litert_or_processor_is_not_used(report, tmp_path, monkeypatch, change):
    runtime.load(report.path, weight_cache=tmp_path)
    (first,) = caches(tmp_path)
    if change == "version":
        monkeypatch.setattr(weight_cache, "version", lambda package: "0.0.0")
    else:
        monkeypatch.setattr(weight_cache.platform, "machine", lambda: "another")
    model = runtime.load(report.path, weight_cache=tmp_path)
    np.testing.assert_array_equal(model.generate(QUESTIONS).tokens, small_tokens(num_layers=2))
    assert first in caches(tmp_path) and len(caches(tmp_path)) == 2


def test_the_caches_used_longest_ago_are_deleted(tmp_path, monkeypatch):
    x, folder, files = keras.Input((37,), name="x"), tmp_path / "caches", []
    for i in range(3):
        model = keras.Model(x, layers.Dense(41)(x))
        files.append(export_tflite(model, tmp_path / f"{i}.tflite", verify=False).path)
    made = []
    for i, file in enumerate(files[:2]):
        runtime.load(file, weight_cache=folder)
        (new,) = set(caches(folder)) - set(made)
        os.utime(new, (1000 + i, 1000 + i))
        made.append(new)
    other = folder / "note.txt"
    other.write_text("not a cache")
    runtime.load(files[0], weight_cache=folder)  # the first is now the one that was used last
    monkeypatch.setattr(weight_cache, "MAX_BYTES", int(2.5 * made[0].stat().st_size))
    runtime.load(files[2], weight_cache=folder)
    left = [path for path in caches(folder) if path != other]
    assert made[0] in left and made[1] not in left and len(left) == 2
    monkeypatch.setattr(weight_cache, "MAX_BYTES", 1)
    outputs = runtime.load(files[2], weight_cache=folder).predict(np.ones((1, 37)))["output"]
    expected = runtime.load(files[2]).predict(np.ones((1, 37)))["output"]
    np.testing.assert_array_equal(outputs, expected)
    assert len(caches(folder)) == 2 and other in caches(folder)  # its own stays


def test_folders_of_killed_processes_are_deleted(report, tmp_path):
    """And not that of a process that is building a cache."""
    left = tmp_path / ".keras_tfm-left"
    left.mkdir()
    (left / "cache").write_bytes(b"half")
    with atomic_files.temporary_folder(tmp_path / "..") as moved:
        building = moved.rename(tmp_path / ".keras_tfm-building")  # with its lock
        runtime.load(report.path, weight_cache=tmp_path)
        assert not left.exists() and building.exists()


def test_files_without_a_valid_checksum_are_refused_before_the_cache(report, tmp_path):
    """XNNPACK can crash on crafted graphs: neither it nor the folder sees such a file."""
    whole = Path(report.path).read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    foreign = whole.replace(b"keras_tfm", b"another_1")
    unsigned = re.sub(rb'"sha256": "[0-9a-f]{64}"', b'"sha256": "' + b"0" * 64 + b'"', whole)
    assert unsigned != whole and foreign != whole
    for content, message in (
        (bytes(flipped), "damaged"),
        (foreign, "no keras_tfm manifest"),
        (unsigned, "damaged"),
    ):
        path = tmp_path / "file.tflite"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            runtime.load(path, weight_cache=tmp_path / "caches")
        assert not (tmp_path / "caches").exists()


@pytest.mark.skipif(os.name != "posix", reason="POSIX modes")
def test_a_new_folder_is_private(report, tmp_path):
    runtime.load(report.path, weight_cache=tmp_path / "caches")
    assert (tmp_path / "caches").stat().st_mode & 0o077 == 0


def test_an_empty_path_is_refused(report, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="must be the path of a folder, got an empty path"):
        runtime.load(report.path, weight_cache="")
    assert not list(tmp_path.iterdir())


def test_a_model_without_weights(tmp_path):
    x = keras.Input((3,), name="x")
    report = export_tflite(
        keras.Model(x, layers.Rescaling(2.0)(x)), tmp_path / "double.tflite", verify=False
    )
    for _ in range(2):
        model = runtime.load(report.path, weight_cache=tmp_path / "caches")
        np.testing.assert_array_equal(model.predict([[1, 2, 3]])["output"], [[2, 4, 6]])


def test_a_folder_that_cannot_be_made(report, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match="file"):
        runtime.load(report.path, weight_cache=tmp_path / "file")


def test_dtypes_that_it_cannot_pass(report):
    generate = runtime.load(report.path).file.signatures["generate"]
    tokens = replace(generate.outputs["tokens"], dtype="int64")
    signatures = {"generate": replace(generate, outputs={"tokens": tokens})}
    with pytest.raises(ValueError, match=r"must be among .*, got int64 for 'tokens' of generate"):
        weight_cache.cached_runners(report.path, signatures, "0" * 64, 1, "unused")


def test_it_loads_neither_keras_nor_tensorflow(report, tmp_path):
    script = f"""
        import json, sys
        from keras_tfm import runtime
        model = runtime.load({report.path!r}, weight_cache={str(tmp_path)!r})
        tokens = model.generate([3, 4, 5, 6, 7]).tokens.tolist()
        print(json.dumps([tokens, sorted({{name.split(".")[0] for name in sys.modules}})]))
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    tokens, packages = json.loads(done.stdout)
    assert tokens == small_tokens(num_layers=2)[:1].tolist()
    assert not {"tensorflow", "keras", "jax", "torch"} & set(packages)
