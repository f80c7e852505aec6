"""Where an export writes: what it may replace, with which mode, and what a signal leaves."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from keras_tfm import atomic_files, runtime
from keras_tfm.export import export_saved_model, export_tflite
from keras_tfm.runtime import flatbuffer

ROOT = Path(__file__).parents[2]
MODEL = b"a trained model"


def dense(units=3):
    x = keras.Input((2,), name="x")
    return keras.Model(x, keras.layers.Dense(units)(x), name="dense")


def export(path, units=3, **options):
    return export_tflite(dense(units), path, verify=False, **options)


def units_of(path):
    return runtime.load(path).signatures["predict"]["outputs"]["output"]["shape"][1]


@pytest.fixture
def umask():
    """Sets the umask; the earlier one comes back."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# --- What is replaced --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.keras", "model.tflite"])
def test_a_file_that_is_not_an_export_is_refused(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(MODEL)
    with pytest.raises(FileExistsError, match=r"is not an export of keras_tfm") as caught:
        export(path)
    assert "overwrite=True replaces it" in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_bytes() == MODEL
    export(path, overwrite=True)
    assert units_of(path) == 3
    assert list(tmp_path.iterdir()) == [path]


def test_a_tflite_file_of_another_program_is_refused(tmp_path):
    double = tf.function(lambda x: {"y": 2.0 * x}, input_signature=[tf.TensorSpec((1, 3))])
    converter = tf.lite.TFLiteConverter.from_concrete_functions([double.get_concrete_function()])
    path = tmp_path / "model.tflite"
    path.write_bytes(converter.convert())
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        export(path)
    assert path.read_bytes() == before


def test_an_earlier_export_is_replaced_and_so_is_an_empty_file(tmp_path):
    path = tmp_path / "model.tflite"
    path.touch()
    export(path, 3)
    assert units_of(path) == 3
    export(path, 5)
    assert units_of(path) == 5


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("earlier", [False, True])
def test_a_write_that_fails(tmp_path, monkeypatch, call, error, earlier):
    path = tmp_path / "model.tflite"
    if earlier:
        export(path, 3)

    def fail(*arguments):
        raise error

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(type(error)):
        export(path, 5)
    assert list(tmp_path.iterdir()) == [path] * earlier
    assert not earlier or units_of(path) == 3


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["FIFO", "socket", "device"])
def test_what_is_not_a_regular_file_is_refused(tmp_path, kind, overwrite):
    path = tmp_path / "model.tflite"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    else:
        path.symlink_to("/dev/null")
    before = path.stat()
    with pytest.raises(FileExistsError, match="it is a device, a FIFO or a socket"):
        export(path, overwrite=overwrite)
    after = path.stat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)


def test_a_file_that_appears_during_the_export_is_kept(tmp_path, monkeypatch):
    path, save = tmp_path / "model.tflite", flatbuffer.save

    def and_another(*arguments):
        save(*arguments)
        path.write_bytes(MODEL)

    monkeypatch.setattr(flatbuffer, "save", and_another)
    with pytest.raises(FileExistsError):
        export(path)
    assert path.read_bytes() == MODEL
    assert list(tmp_path.iterdir()) == [path]


def test_a_saved_model_of_another_program_is_refused(tmp_path):
    path = tmp_path / "served"
    dense(3).export(path, verbose=False)
    with pytest.raises(FileExistsError, match="keras_tfm did not write the SavedModel there"):
        export_saved_model(dense(5), path)
    assert served_units(path) == 3
    export_saved_model(dense(5), path, overwrite=True)
    assert served_units(path) == 5
    export_saved_model(dense(7), path)  # now it is an earlier export
    assert served_units(path) == 7


def served_units(path):
    served = tf.saved_model.load(str(path)).signatures["serving_default"]
    return next(iter(served.structured_outputs.values())).shape[1]


# --- Modes and links ---------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_mode_of_the_umask(tmp_path, umask, mask):
    umask(mask)
    export(tmp_path / "model.tflite")
    assert mode(tmp_path / "model.tflite") == 0o666 & ~mask
    export_saved_model(dense(), tmp_path / "served")
    inside = [path for path in (tmp_path / "served").rglob("*") if path.is_dir()]
    assert {mode(path) for path in (tmp_path / "served", *inside)} == {0o777 & ~mask}


def test_the_mode_of_an_earlier_export_is_kept(tmp_path, umask):
    umask(0o022)
    for path, write in ((tmp_path / "model.tflite", export), (tmp_path / "served", None)):
        write = write or (lambda path: export_saved_model(dense(), path))
        write(path)
        path.chmod(0o750)
        write(path)
        assert mode(path) == 0o750


def test_a_symbolic_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "versions").mkdir()
    (tmp_path / "links").mkdir()
    link, file = tmp_path / "links" / "latest.tflite", tmp_path / "versions" / "1.tflite"
    link.symlink_to(file)
    for units in (3, 5):  # at first the link points to nothing
        assert export(link, units).path == str(link)
        assert link.is_symlink() and units_of(file) == units
    assert list((tmp_path / "links").iterdir()) == [link]
    assert list((tmp_path / "versions").iterdir()) == [file]

    file.write_bytes(MODEL)
    with pytest.raises(FileExistsError):
        export(link)


def test_a_symbolic_link_to_a_saved_model(tmp_path):
    (tmp_path / "latest").symlink_to("1")
    for units in (3, 5):
        export_saved_model(dense(units), tmp_path / "latest")
        assert (tmp_path / "latest").is_symlink() and served_units(tmp_path / "1") == units
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "latest"]


# --- Signals -----------------------------------------------------------------------------------

# Exports over an earlier file, and is killed by a signal at one of the stages. TensorFlow is
# imported once, and each export runs in a fork.
KILLED = """
import os, pathlib, signal, sys
import keras, tensorflow as tf
from keras_tfm.export import export_saved_model, export_tflite, saved_model, tflite

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it

def kill(number):
    os.kill(os.getpid(), number)
    raise SystemExit("the process outlived the signal")

def run(folder, stage, number):
    x = keras.Input((2,), name="x")
    model = keras.Model(x, keras.layers.Dense(9)(x))
    if stage == "converting":
        tf.lite.TFLiteConverter.from_saved_model = lambda *_, **__: kill(number)
    elif stage == "verifying":
        tflite.verify_file = lambda *_: kill(number)
    else:
        saved_model.write_saved_model = lambda _, __, path, *___: (path.mkdir(), kill(number))
        return export_saved_model(model, folder / "served")
    export_tflite(model, folder / "model.tflite")

for folder in map(pathlib.Path, sys.argv[1:]):
    stage, number = folder.name.split("-")
    child = os.fork()
    if not child:
        run(folder, stage, int(number))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == int(number), (folder, status)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder for each stage and signal, as the killed exports left it, and their `TMPDIR`."""
    root, temporary = tmp_path_factory.mktemp("killed"), tmp_path_factory.mktemp("temporary")
    earlier, folders = root / "earlier", {}
    earlier.mkdir()
    export(earlier / "model.tflite", 3)
    export_saved_model(dense(3), earlier / "served")
    for stage, number in (
        ("converting", signal.SIGTERM),
        ("verifying", signal.SIGHUP),
        ("verifying", signal.SIGTERM),
        ("verifying", signal.SIGKILL),
        ("serving", signal.SIGTERM),
        ("serving", signal.SIGKILL),
        ("converting", signal.SIGKILL),  # last: the next export would remove what it leaves
    ):
        folders[stage, number] = root / f"{stage}-{int(number)}"
        shutil.copytree(earlier, folders[stage, number])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *map(str, folders.values())],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folders, temporary


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_sigterm_leaves_the_earlier_export_and_nothing_else(killed):
    folders, _ = killed
    for (_, number), folder in folders.items():
        assert units_of(folder / "model.tflite") == served_units(folder / "served") == 3
        if number != signal.SIGKILL:
            assert names(folder) == ["model.tflite", "served"]


def test_what_kill_9_leaves_the_next_export_removes(killed, monkeypatch):
    folders, temporary = killed
    for stage in ("verifying", "serving"):
        folder = folders[stage, signal.SIGKILL]
        left = [name for name in names(folder) if name.startswith(".keras_tfm-")]
        assert len(left) == 1 and len(names(folder)) == 3
        export(folder / "model.tflite", 5)
        assert names(folder) == ["model.tflite", "served"]
    # The SavedModel that was converted. TensorFlow's own files (`__autograph_generated_*`) stay.
    assert len(list(temporary.glob(".keras_tfm-*"))) == 1
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    export(folders["converting", signal.SIGKILL] / "model.tflite", 5)
    assert list(temporary.glob(".keras_tfm-*")) == []


def test_the_folder_of_an_export_that_runs_is_kept(tmp_path):
    with (
        atomic_files.temporary_folder(tmp_path) as first,
        atomic_files.temporary_folder(tmp_path) as second,
    ):
        assert first.is_dir() and second.is_dir() and first != second
    assert names(tmp_path) == []


def test_two_complete_saved_models_are_kept(tmp_path):
    """Killed between two renames, neither the earlier nor the new one is at its path."""
    left = tmp_path / ".keras_tfm-x"
    (left / "old").mkdir(parents=True)
    (left / "new").mkdir()
    with atomic_files.temporary_folder(tmp_path):
        pass
    assert names(left) == ["new", "old"]


def test_only_folders_that_are_ours_are_removed(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "thesis.txt").write_text("years of work")
    (tmp_path / ".keras_tfm-link").symlink_to(tmp_path / "target")
    (tmp_path / ".keras_tfm-file").write_text("")
    with atomic_files.temporary_folder(tmp_path):
        pass
    assert names(tmp_path) == [".keras_tfm-file", ".keras_tfm-link", "target"]
    assert names(tmp_path / "target") == ["thesis.txt"]


def test_handlers_of_signals_are_put_back(tmp_path):
    def own(*_):
        pass

    before = signal.getsignal(signal.SIGTERM)
    try:
        for handler in (signal.SIG_DFL, signal.SIG_IGN, own):
            signal.signal(signal.SIGTERM, handler)
            with atomic_files.temporary_folder(tmp_path), atomic_files.temporary_folder(tmp_path):
                ours = signal.getsignal(signal.SIGTERM) is not handler
                assert ours == (handler is signal.SIG_DFL)
            assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_export_in_a_thread(tmp_path):
    import threading

    thread = threading.Thread(target=export, args=(tmp_path / "model.tflite",))
    thread.start()
    thread.join()
    assert names(tmp_path) == ["model.tflite"]
