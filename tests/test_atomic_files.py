"""One way of writing for all: complete or not at all, links and modes kept, nothing left behind."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from keras_tfm import atomic_files
from keras_tfm.runtime import adapters
from keras_tfm.runtime.tasks import saved_session

ROOT = Path(__file__).parents[1]


def write_session(path):
    steps = SimpleNamespace(read_entries=dict, known={}, states={}, position=2)
    saved_session.write(path, "0" * 64, [1, 2], None, steps)


def write_adapter(path):
    layer = adapters.LowRank(np.ones((3, 1), "float32"), np.ones((1, 2), "float32"), 2.0)
    adapters.write(path, "1234", {"query": layer})


def write_picture(path):
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("typer")
    from keras_tfm.cli.drawing import save

    save(image.new("RGB", (3, 5)), path)


def write_benchmark(path):
    pytest.importorskip("keras")
    from keras_tfm.runtime.inspection.benchmark import Benchmark

    Benchmark.write_json(SimpleNamespace(asdict=lambda: {"latencies": []}), path)


def write_text(path):
    with atomic_files.replacement(path) as new:
        new.write_text("new")


WRITERS = {
    "a session.npz": write_session,
    "adapter.npz": write_adapter,
    "picture.png": write_picture,
    "benchmark.json": write_benchmark,
    "text": write_text,
}
ALL = pytest.mark.parametrize("name", WRITERS)


@ALL
def test_a_link_stays_and_its_file_is_replaced(name, tmp_path):
    (tmp_path / "links").mkdir()
    (tmp_path / "files").mkdir()
    link, file = tmp_path / "links" / name, tmp_path / "files" / f"1 {name}"
    link.symlink_to(Path("..") / "files" / f"1 {name}")
    for _ in range(2):  # at first the link points to nothing
        WRITERS[name](link)
        assert link.is_symlink() and file.stat().st_size and not file.is_symlink()
        assert [*(tmp_path / "links").iterdir()] == [link]
        assert [*(tmp_path / "files").iterdir()] == [file]
        file.write_bytes(b"")


@ALL
def test_the_mode_is_the_umask_s_or_that_of_the_earlier_file(name, tmp_path):
    before = os.umask(0o027)
    try:
        WRITERS[name](tmp_path / name)
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o640
        (tmp_path / name).chmod(0o604)
        WRITERS[name](str(tmp_path / name) if name != "picture.png" else tmp_path / name)
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o604
    finally:
        os.umask(before)


@ALL
def test_an_error_leaves_the_earlier_file_and_nothing_else(name, tmp_path, monkeypatch):
    WRITERS[name](tmp_path / name)
    old = (tmp_path / name).read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        WRITERS[name](tmp_path / name)
    assert (tmp_path / name).read_bytes() == old
    assert [*tmp_path.iterdir()] == [tmp_path / name]


@pytest.mark.parametrize("name", ["a session.npz", "adapter.npz", "benchmark.json"])
def test_another_file_is_not_replaced(name, tmp_path):
    others = [b"old", b"{}", b"3"]
    for other in {"a session.npz", "adapter.npz", "benchmark.json"} - {name}:
        WRITERS[other](tmp_path / "other")
        others.append((tmp_path / "other").read_bytes())
        (tmp_path / "other").unlink()
    for content in others:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FileExistsError, match=r"cannot write .* exists and is not an? \w+"):
            WRITERS[name](tmp_path / name)
        assert (tmp_path / name).read_bytes() == content
    WRITERS[name](tmp_path / "new")
    WRITERS[name](tmp_path / "new")  # an earlier one of its kind is


@ALL
def test_what_cannot_be_written(name, tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"cannot write .*{name}: there is no folder"):
        WRITERS[name](tmp_path / "none" / name)
    (tmp_path / name).mkdir()
    with pytest.raises(IsADirectoryError, match=rf"cannot write .*{name}: it is a folder"):
        WRITERS[name](tmp_path / name)
    os.mkfifo(tmp_path / f"fifo {name}")
    with pytest.raises(FileExistsError, match="it is a device, a FIFO or a socket"):
        WRITERS[name](tmp_path / f"fifo {name}")


def test_what_kill_9_leaves_the_next_write_removes(tmp_path):
    """And not what another process, or a thread of this one, is writing at the time."""
    program = (
        "import os, sys\n"
        "from keras_tfm.atomic_files import replacement\n"
        "with replacement(sys.argv[1]) as new:\n"
        "    new.write_text('half')\n"
        "    print(new, flush=True)\n"
        "    sys.stdin.read()\n"
        f"    os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    )
    path = tmp_path / "text"
    process = subprocess.Popen(
        [sys.executable, "-c", program, path],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    left = Path(process.stdout.readline().strip())
    write_text(path)
    thread = threading.Thread(target=write_text, args=(path,))
    with atomic_files.temporary_folder(tmp_path) as mine:
        thread.start()
        thread.join()
        assert mine.is_dir()
    assert left.read_text() == "half"  # it is still being written
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert left.exists() and path.read_text() == "new"
    write_text(tmp_path / "another text")
    assert sorted(x.name for x in tmp_path.iterdir()) == ["another text", "text"]


def test_a_link_to_another_file_system(tmp_path, monkeypatch):
    """Where no rename leads: the file is copied beside its target first."""
    new, target, rename = tmp_path / "new", tmp_path / "files" / "x", os.replace
    target.parent.mkdir()
    (tmp_path / "link").symlink_to(target)
    new.write_text("new")

    def only_within_a_folder(a, b):
        if Path(a).parent.parent != Path(b).parent:
            raise OSError(18, "Invalid cross-device link")
        rename(a, b)

    monkeypatch.setattr(os, "replace", only_within_a_folder)
    atomic_files.replace(new, tmp_path / "link")
    assert target.read_text() == "new" and (tmp_path / "link").is_symlink()
    assert [*target.parent.iterdir()] == [target]


def test_folders_of_transformers(tmp_path):
    """Beside the files of a user; what a killed save left in the folder goes."""
    pytest.importorskip("safetensors")
    from keras_tfm import checkpoints, models

    folder = tmp_path / "hf"
    made = [models.gpt(n, dim=8, num_layers=1, num_heads=2, intermediate_dim=8) for n in (11, 13)]
    checkpoints.save_huggingface(made[0], folder)
    assert [*tmp_path.iterdir()] == [folder]
    (folder / "NOTES.md").write_text("mine")
    (folder / ".keras_tfm-killed").mkdir()
    (folder / ".keras_tfm-killed" / "model.safetensors").write_bytes(b"half")
    os.replace(folder / "model.safetensors", tmp_path / "weights")
    (folder / "model.safetensors").symlink_to(tmp_path / "weights")
    (folder / "config.json").chmod(0o604)
    with atomic_files.temporary_folder(folder) as other:
        checkpoints.save_huggingface(made[1], folder)
        assert other.is_dir()
    names = ["NOTES.md", "config.json", "model.safetensors"]
    assert sorted(x.name for x in folder.iterdir()) == names
    assert (folder / "model.safetensors").is_symlink()
    assert stat.S_IMODE((folder / "config.json").stat().st_mode) == 0o604
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 13
    assert checkpoints.load_huggingface(folder).arguments["vocabulary_size"] == 13


def test_a_folder_of_transformers_that_fails(tmp_path, monkeypatch):
    pytest.importorskip("safetensors")
    from keras_tfm import checkpoints, models
    from keras_tfm.checkpoints import huggingface

    def fail(*_):
        raise ValueError("not equal")

    monkeypatch.setattr(huggingface, "check_equal", fail)
    model = models.gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=8)
    with pytest.raises(ValueError, match="not equal"):
        checkpoints.save_huggingface(model, tmp_path / "hf")
    assert [*tmp_path.iterdir()] == []
