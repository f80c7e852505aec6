"""Loading, inspecting and exporting leave the standard error of the process alone."""

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from small_exports import small_file

import keras_tfm

LINES = 4000


@pytest.mark.parametrize("action", ["load", "load with a weight cache", "inspect"])
def test_no_line_of_another_thread_or_of_a_child_is_lost(tmp_path, action):
    """A child that is started during the loads also writes after the last one has ended."""
    actions = {
        "load": "runtime.load(path)",
        "load with a weight cache": f"runtime.load(path, weight_cache={str(tmp_path)!r})",
        "inspect": "inspect_file(path)",
    }
    script = f"""
        import os, subprocess, sys, threading
        from keras_tfm import runtime
        from keras_tfm.runtime.inspection import inspect_file

        path = {small_file().path!r}
        loaded, started = threading.Event(), threading.Event()

        def write():
            for i in range({LINES}):
                os.write(2, b"line %d\\n" % i)
                if i == 10:
                    started.set()
            loaded.wait()

        def start():
            code = ("import os, sys; os.write(2, b'child began\\\\n'); sys.stdin.readline(); "
                    "os.write(2, b'child ended\\\\n')")
            return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)

        writer = threading.Thread(target=write)
        writer.start()
        started.wait()
        children = []
        for i in range(10):
            starter = threading.Thread(target=lambda: children.append(start()))
            starter.start()
            {actions[action]}
            starter.join()
        loaded.set()
        writer.join()
        for child in children:
            child.communicate(b"\\n", timeout=60)
            assert child.returncode == 0
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    # Anywhere in a line: LiteRT writes its own in several pieces.
    assert re.findall(r"line (\d+)\n", done.stderr) == [str(i) for i in range(LINES)]
    assert done.stderr.count("child began\n") == done.stderr.count("child ended\n") == 10


def test_the_reason_of_a_failed_load_is_in_the_error():
    """Nothing is taken from standard error: LiteRT's exception has the reason."""
    script = f"""
        import numpy as np
        from keras_tfm import runtime
        model = runtime.load({small_file().path!r})
        runner = model.file.runners["generate"]
        try:
            runner(source=np.full((1, 5), 10**6, "int32"))
        except RuntimeError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "out of bounds" in done.stdout


def test_the_library_does_not_redirect():
    """Only programs that own their process do: the command, examples, benchmarks."""
    package = Path(keras_tfm.__file__).parent
    users = {
        str(path.relative_to(package).parent)
        for path in package.rglob("*.py")
        if path.name != "native_log.py" and re.search(r"native_log|dup2", path.read_text())
    }
    # runtime: model.py names it in a docstring; inspection: programs that run in a subprocess
    assert users <= {"cli", "runtime", "runtime/inspection"}
    runtime = [ast.parse(path.read_text()) for path in (package / "runtime").rglob("*.py")]
    nodes = [node for tree in runtime for node in ast.walk(tree)]
    imported = {x.name for node in nodes if isinstance(node, ast.ImportFrom) for x in node.names}
    assert "native_log" not in imported
