"""Exports of models whose large weights stay in their folder."""

import gc
import os

import numpy as np
import pytest
from keras_weights import randomize

from keras_tfm import keras_internals, models
from keras_tfm.checkpoints import huggingface, load_huggingface, save_huggingface
from keras_tfm.export import export_tflite, verify
from keras_tfm.export.graph import conversion
from keras_tfm.export.graph.stand_ins import StandIns
from keras_tfm.export.quantization import precision
from keras_tfm.models import without_storage
from keras_tfm.models.with_dtype import float32_view
from keras_tfm.runtime import load

STEPS = {"signatures": ["prefill", "decode"], "prompt_length": 4, "max_length": 12}
SIZE = {"dim": 256, "num_layers": 2, "num_heads": 4, "intermediate_dim": 512}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    save_huggingface(randomize(models.llama(701, **SIZE)), folder)
    return folder


def is_lazy(model):
    return [
        not keras_internals.is_initialized(x) for x in model.weights if np.prod(x.shape) > 65536
    ]


@pytest.mark.parametrize("quantization", ["int8", pytest.param("int4", marks=pytest.mark.slow)])
def test_the_file_is_that_of_the_loaded_model(quantization, folder, tmp_path):
    lazy, whole = (load_huggingface(folder, lazy=x) for x in (True, False))
    reports = [
        export_tflite(model, tmp_path / f"{name}.tflite", quantization=quantization, **STEPS)
        for name, model in {"lazy": lazy, "whole": whole}.items()
    ]
    first, second = ((tmp_path / f"{name}.tflite").read_bytes() for name in ("lazy", "whole"))
    assert first == second
    for x, y in zip(*(report.verification.checks for report in reports), strict=True):
        assert x.relative_error == pytest.approx(y.relative_error, rel=1e-3)
    assert all(is_lazy(lazy)) and not any(is_lazy(whole))
    assert verify(lazy, tmp_path / "whole.tflite").failures == []


def test_large_weights_of_half_precision_are_not_copied(tmp_path, monkeypatch):
    model = randomize(models.llama(701, **SIZE, dtype="bfloat16"))
    views = []

    def make_view(given):
        views.append(float32_view(given))
        return views[-1]

    monkeypatch.setattr(precision, "float32_view", make_view)
    reports = []
    for many in (1, 10**9):
        monkeypatch.setattr(without_storage, "_MANY", many)
        path = tmp_path / f"{many}.tflite"
        reports.append(export_tflite(model, path, quantization="int8", **STEPS))
    assert len(views) == 1 and all(is_lazy(views[0]))
    first, second = ((tmp_path / f"{many}.tflite").read_bytes() for many in (1, 10**9))
    assert first == second
    for x, y in zip(*(report.verification.checks for report in reports), strict=True):
        assert x.relative_error == pytest.approx(y.relative_error, rel=1e-3)


@pytest.mark.parametrize("many", [1, 10**9])
def test_a_folder_is_exported(many, folder, tmp_path, monkeypatch):
    """Its weights are loaded unless they are many."""
    monkeypatch.setattr(without_storage, "_MANY", many)
    lazy = []

    def load(self, *arguments):
        result = own(self, *arguments)
        lazy.extend(is_lazy(result))
        return result

    own = huggingface.Checkpoint.load
    monkeypatch.setattr(huggingface.Checkpoint, "load", load)
    report = export_tflite(str(folder), tmp_path / "model.tflite", quantization="int8", **STEPS)
    assert report.verification.failures == [] and lazy and set(lazy) == {many == 1}


def test_weights_that_no_number_stands_for_are_loaded(folder, tmp_path, monkeypatch):
    """As the converter then needs their values, they stay in memory."""
    lost = []

    def lose(self, *arguments):
        if not lost:
            lost.extend(x for x in self._made.values() if "feed_forward" in x.variable.path)
            raise conversion.UnplacedError(lost)
        fill(self, *arguments)

    fill = StandIns.fill
    monkeypatch.setattr(StandIns, "fill", lose)
    model = load_huggingface(folder, lazy=True)
    export_tflite(model, tmp_path / "model.tflite", quantization="int8", **STEPS)
    for weight in model.weights:
        if np.prod(weight.shape) > 65536:
            in_memory = keras_internals.is_initialized(weight)
            assert in_memory == ("feed_forward" in weight.path), weight.path


@pytest.mark.filterwarnings("ignore:int8_full. XNNPACK runs")
def test_int8_full_needs_all_values(tmp_path):
    model = models.sequence_classifier(models.bert(500, **{**SIZE, "num_layers": 1}), 3)
    save_huggingface(randomize(model), tmp_path / "bert")
    lazy, whole = (
        load_huggingface(tmp_path / "bert", lazy=x, segments=False) for x in (True, False)
    )
    generator = np.random.default_rng(0)
    rows = [{"tokens": generator.integers(1, 500, (1, 6)).astype("int32")} for _ in range(20)]
    for name, one in {"lazy": lazy, "whole": whole}.items():
        export_tflite(
            one, tmp_path / f"{name}.tflite", quantization="int8_full", source_length=6,
            representative_data=rows, verify=False,
        )  # fmt: skip
    found = [load(tmp_path / f"{name}.tflite").predict(rows[0]) for name in ("lazy", "whole")]
    for x, y in zip(*(one.values() for one in found), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_folder_that_changes_during_the_export_leaves_nothing(folder, tmp_path, monkeypatch):
    own = tmp_path / "folder"
    own.mkdir()
    for file in folder.iterdir():
        (own / file.name).write_bytes(file.read_bytes())
    model = load_huggingface(own, lazy=True)
    fill = StandIns.fill

    def change(self, *arguments):
        fill(self, *arguments)
        os.utime(own / "model.safetensors", (1, 1))

    monkeypatch.setattr(StandIns, "fill", change)
    with pytest.raises(ValueError, match=r"model.safetensors was changed while it was") as error:
        export_tflite(model, tmp_path / "model.tflite", quantization="int8", **STEPS)
    assert "\n" not in str(error.value)
    assert [x.name for x in tmp_path.iterdir()] == ["folder"]


@pytest.mark.default
def test_the_converter_loads_no_saved_model_in_python(tmp_path, monkeypatch):
    """Nor collects its garbage.

    `lite._load` and `lite.gc` are private: this fails when TensorFlow does either in another way.
    """
    from tensorflow.lite.python import lite
    from tensorflow.python.saved_model import load as saved_model

    def refuse(*args, **options):
        raise AssertionError("a SavedModel was loaded")

    before, collected = lite._load, []
    monkeypatch.setattr(gc, "collect", lambda *x: collected.append(x))
    monkeypatch.setattr(saved_model.Loader, "__init__", refuse)
    model = randomize(models.llama(31, dim=16, num_layers=1, num_heads=2, intermediate_dim=24))
    export_tflite(model, tmp_path / "model.tflite", verify=False, **STEPS)
    assert lite._load is before and lite.gc is gc and not collected
    # One that another thread converts is loaded as always.
    another = str(tmp_path / "another")
    with (
        conversion._without_loading(tmp_path, []),
        pytest.raises(OSError, match="SavedModel file does not exist"),
    ):
        lite._load(another, {"serve"})
