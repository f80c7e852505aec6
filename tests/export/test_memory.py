"""The memory and the disk that an export needs: estimated, streamed, and errors when they end."""

import os
import resource
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import keras
import pytest
from keras_weights import randomize
from small_models import decoder_only

from keras_tfm import models
from keras_tfm.export import export_tflite, pipeline, verify
from keras_tfm.export.quantization import presets
from keras_tfm.export.verification.comparison import ModelOutputs

ROOT = Path(__file__).parents[2]
STEPS = {"signatures": ["prefill", "decode"], "prompt_length": 4, "max_length": 12}


def wide():
    """3 MB of float32, 0.8 MB of int8."""
    return randomize(models.llama(701, dim=256, num_layers=1, num_heads=4, intermediate_dim=512))


@contextmanager
def largest_file(size):
    """A limit on the size of files: what a disk without room answers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    model = wide()
    path = tmp_path_factory.mktemp("wide") / "wide.tflite"
    report = export_tflite(model, path, quantization="int8", **STEPS)
    return model, path, report


def test_a_disk_that_fills_during_the_verification(exported, tmp_path):
    """The file fits, the copy with weights in float32 does not."""
    model, path, _ = exported
    before = path.read_bytes()
    with largest_file(2 * len(before)), pytest.raises(OSError, match=r"float\.tflite") as caught:
        verify(model, path)
    assert "\n" not in str(caught.value)
    assert list(path.parent.iterdir()) == [path] and path.read_bytes() == before


@pytest.mark.parametrize("share", [0.5, 2])
def test_a_disk_that_fills_during_the_export(share, exported, tmp_path, monkeypatch):
    """The limit begins behind the converter, which writes large files of its own."""
    model, path, report = exported
    new, save = tmp_path / "model.tflite", pipeline.Converted.save
    new.write_bytes(path.read_bytes())
    limits = ExitStack()

    def limited(*arguments):
        limits.enter_context(largest_file(int(share * report.bytes)))
        save(*arguments)

    monkeypatch.setattr(pipeline.Converted, "save", limited)
    with limits, pytest.raises(OSError, match=r"\.tflite") as caught:
        export_tflite(model, new, quantization="int8", **STEPS)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [new] and new.read_bytes() == path.read_bytes()


def test_too_little_memory_is_said_before_the_conversion(tmp_path, monkeypatch):
    model = decoder_only(num_layers=1)
    need = presets.memory_needed(model.count_params(), "int8", verify=True)
    assert need == 5 * model.count_params()
    assert (
        presets.memory_needed(model.count_params(), "int8", verify=False)
        == 2 * model.count_params()
    )
    monkeypatch.setattr(presets, "available_memory", lambda: need - 1)

    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("keras_tfm.export.tflite.convert_members", stop)
    expected = rf"needs about {need / 1e9:.2g} GB of memory .*, {(need - 1) / 1e9:.2g} GB are"
    with pytest.warns(UserWarning, match=expected) as caught, pytest.raises(KeyboardInterrupt):
        export_tflite(model, tmp_path / "x.tflite", quantization="int8", source_length=4)
    (said,) = (x for x in caught if "GB" in str(x.message))
    assert said.filename == __file__ and "verify=False needs about" in str(said.message)


def test_a_large_model_is_compared_on_few_rows_and_steps(exported, monkeypatch):
    model, path, report = exported
    monkeypatch.setattr(ModelOutputs, "LARGE", model.count_params() - 1)
    found = verify(model, path)
    small = {x.signature: x for x in report.verification.checks}
    for x in found.checks:
        assert x.rows == 1 < small[x.signature].rows
        # The same weights, on other rows: of the same size.
        assert 0.3 < x.tolerance / small[x.signature].tolerance < 3
        assert x.graph_error < 1e-5
    other = randomize(wide(), 5)
    with pytest.raises(ValueError, match="a weight or an operator differs"):
        verify(other, path, tolerance=10.0)


def test_generated_logits_of_a_large_model(monkeypatch, tmp_path):
    model = wide()
    monkeypatch.setattr(ModelOutputs, "LARGE", 1000)
    sizes = {"source_length": 5, "prompt_length": 4, "max_length": 30}
    report = export_tflite(model, tmp_path / "x.tflite", ["predict", "generate"], "int8", **sizes)
    checks = {x.signature: x for x in report.verification.checks}
    assert [x.rows for x in checks.values()] == [1, 1]
    assert all(0 < x.graph_error < 1e-5 for x in checks.values())
    weight = next(x for x in model.weights if x.path.endswith("kernel"))
    weight.assign(keras.ops.flip(weight))
    with pytest.raises(ValueError, match="generate"):
        verify(model, report.path)


# Exports or verifies a model of 86 million weights, 345 MB in float32 that stay in their folder, in
# a process that may allocate some megabytes more than it has before. Mapped files do not count.
LIMITED = """
import os, resource, sys
import keras
from keras_tfm import models
from keras_tfm.checkpoints import load_huggingface, save_huggingface
from keras_tfm.export import export_tflite, verify

SIZE = {"dim": 1024, "num_layers": 2, "num_heads": 8, "intermediate_dim": 2048}
STEPS = {"signatures": ["prefill", "decode"], "prompt_length": 16, "max_length": 48}
action, folder, path, megabytes = sys.argv[1:]

def limit():
    (line,) = (x for x in open("/proc/self/status") if x.startswith("VmData:"))
    most = 1024 * int(line.split()[1]) + int(megabytes) * 1000000
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))

if action == "save":
    keras.utils.set_random_seed(0)
    save_huggingface(models.llama(32000, **SIZE), folder)
    sys.exit()
model = load_huggingface(folder, lazy=True)
assert 300e6 < 4 * model.count_params() < 400e6
if action == "export":
    model(keras.ops.ones((1, 3), "int32"))  # starts TensorFlow's threads
    limit()
    report = export_tflite(model, path, quantization="int8", **STEPS)
    print(max(x.graph_error for x in report.verification.checks))
else:
    export_tflite(model, path, quantization="int8", verify=False, **STEPS)
    limit()
    print(max(x.graph_error for x in verify(model, path).checks))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    run_limited("save", folder, "", 0)
    return folder


def run_limited(action, folder, path, megabytes):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, action, str(folder), str(path), str(megabytes)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize(("action", "megabytes"), [("export", 1300), ("verify", 850)])
def test_a_process_with_little_memory(action, megabytes, saved, tmp_path):
    path = tmp_path / "model.tflite"
    printed = run_limited(action, saved, path, megabytes)
    assert 0 < float(printed[-1]) < 1e-4
    assert [x.name for x in tmp_path.iterdir()] == [path.name]
