"""A loaded file in other processes: forked ones, and those that receive it as a pickle."""

import os
import pickle
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from small_exports import QUESTIONS, small_file, small_tokens

from keras_tfm import runtime

CACHES = pytest.mark.parametrize("cached", [False, True], ids=["plain", "weight cache"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@CACHES
def test_a_forked_process_runs_the_model_of_its_parent(tmp_path, cached):
    """In a process that imports no TensorFlow, whose threads do not survive a fork."""
    np.savez(tmp_path / "data.npz", questions=QUESTIONS, tokens=small_tokens())
    script = f"""
        import os, signal
        import numpy as np
        from keras_tfm import runtime
        data = np.load("data.npz")
        model = runtime.load({small_file().path!r}, 2, weight_cache={"cache" if cached else None!r})

        def right():
            return np.array_equal(model.generate(data["questions"]).tokens, data["tokens"])

        assert right()
        process = os.fork()
        if not process:
            signal.alarm(30)  # ends it if it waits for a thread of its parent
            os._exit(0 if right() else 1)
        assert os.waitpid(process, 0)[1] == 0
        assert right()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


@CACHES
def test_a_pickled_model_is_loaded_again(tmp_path, cached, monkeypatch):
    path = Path(small_file().path)
    monkeypatch.chdir(tmp_path)
    shutil.copy(path, "x.tflite")
    pickled = pickle.dumps(runtime.load("x.tflite", 2, weight_cache="cache" if cached else None))
    monkeypatch.chdir(path.parent)  # the receiver may have another working directory
    copy = pickle.loads(pickled)
    np.testing.assert_array_equal(copy.generate(QUESTIONS).tokens, small_tokens())


def test_another_file_in_the_place_of_a_pickled_one(tmp_path):
    path = tmp_path / "x.tflite"
    shutil.copy(small_file().path, path)
    pickled = pickle.dumps(runtime.load(path))
    shutil.copy(small_file(num_layers=2).path, path)
    with pytest.raises(ValueError, match="was replaced by another file after it had been loaded"):
        pickle.loads(pickled)


def test_a_closed_model_is_not_pickled():
    model = runtime.load(small_file().path)
    model.close()
    with pytest.raises(ValueError, match="the model was closed"):
        pickle.dumps(model)
