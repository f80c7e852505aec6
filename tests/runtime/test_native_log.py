"""A program's standard error without TensorFlow's and LiteRT's log; nothing else is lost."""

import os
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path

import pytest

from keras_tfm.runtime import native_log

DESCRIPTORS = Path("/proc/self/fd")
LOG = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795390706.705430   10904 service.cc:153] XLA service initialized",
    "W1122 23:36:26.123456   10904 tf_tfl_flatbuffer_helpers.cc:364] Ignored output_format.",
    "INFO: Created TensorFlow Lite XNNPACK delegate for CPU.",
    "INFO: [environment.cc:36] Creating LiteRT environment with options",
    "WARNING: [npu_registry.cc:34] NPU accelerator could not be loaded",
]
# Errors of the same loggers, and lines that resemble the log.
KEPT = [
    "E0000 00:00:1795390704.866940   10904 cuda_platform.cc:52] failed call to cuInit",
    "ERROR: tensorflow/lite/kernels/gather.cc:163 gather index out of bounds",
    "INFO: training began",
    "WARNING: disk is nearly full",
    "I am here",
    "",
]


def say(text):
    os.write(2, text.encode())


def test_log_lines_are_removed_and_others_forwarded_in_order(capfd):
    lines = [line for pair in zip(LOG, KEPT, strict=True) for line in pair]
    with native_log.remove():
        say("\n".join(lines) + "\n")
    say("after\n")
    assert capfd.readouterr().err == "\n".join([*KEPT, "after\n"])


def test_errors_of_a_block_pass_with_what_was_written(capfd):
    with pytest.raises(KeyError, match="reason"), native_log.remove():
        say("clue\n")
        raise KeyError("reason")
    say("after\n")
    assert capfd.readouterr().err == "clue\nafter\n"


def test_where_no_open_file_can_be_removed(capfd, monkeypatch, tmp_path):
    """As on Windows: the file of the lines is removed at the end."""

    def unlink(path):
        if not opened.reader.closed:
            raise PermissionError(f"in use: {path}")
        remove(path)

    remove, opened = os.unlink, native_log._Redirection
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "unlink", unlink)
    with native_log.remove():
        say(f"{LOG[1]}\nclue\n")
        assert len(list(tmp_path.iterdir())) == 1
    assert capfd.readouterr().err == "clue\n"
    assert not list(tmp_path.iterdir())


def test_what_python_wrote_before_comes_before(capfd):
    print("before", file=sys.stderr, end=" ")
    with native_log.remove():
        say("inside ")
    print("after", file=sys.stderr, end="")
    sys.stderr.flush()
    assert capfd.readouterr().err == "before inside after"


def test_blocks_within_blocks(capfd):
    with native_log.remove():
        say("a\n")
        with native_log.remove():
            say(LOG[3] + "\nb\n")
        say(LOG[3] + "\nc\n")
    say(LOG[3] + "\n")
    assert capfd.readouterr().err == f"a\nb\nc\n{LOG[3]}\n"


def test_incomplete_lines_and_bytes_that_are_no_text(capfdbinary):
    with native_log.remove():
        os.write(2, b"\xff\0ok\r50 %")
    assert capfdbinary.readouterr().err == b"\xff\0ok\r50 %"


def test_a_line_in_two_writes(capfd):
    with native_log.remove():
        say(LOG[3][:20])
        threading.Event().wait(0.2)  # the forwarding thread reads in between
        say(LOG[3][20:] + "\nI am")
        threading.Event().wait(0.2)
        say(" here\n")
    assert capfd.readouterr().err == "I am here\n"


def test_lines_are_forwarded_while_the_block_runs():
    script = """
        import os, sys
        from keras_tfm.runtime import native_log
        with native_log.remove():
            os.write(2, b"now\\n")
            sys.stdin.readline()  # until the reader has the line
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    pipes = dict.fromkeys(("stdin", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes) as process:
        assert process.stderr.readline() == b"now\n"
        process.communicate(b"\n", timeout=60)
    assert process.returncode == 0


def test_more_than_a_pipe_holds(capfd):
    """C++ may write while it holds the GIL: no other thread of Python reads meanwhile."""
    text = "x" * 99 + "\n"
    with native_log.remove():
        say(text * 10_000)
    assert capfd.readouterr().err == text * 10_000


@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="Linux lists a process's files here")
def test_no_descriptor_is_leaked():
    before = len(list(DESCRIPTORS.iterdir()))
    for _ in range(5):
        with native_log.remove():
            say(LOG[3] + "\n")
    assert len(list(DESCRIPTORS.iterdir())) == before


def test_blocks_of_two_threads_that_overlap(capfd):
    """Whichever ends last, standard error is what it was."""
    first, second = native_log.remove(), native_log.remove()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    say("after")
    assert capfd.readouterr().err == "after"


def test_a_process_that_ends_in_the_block(capfd):
    with native_log.remove():
        subprocess.run([sys.executable, "-c", "import os; os.write(2, b'child\\n')"], check=True)
    assert capfd.readouterr().err == "child\n"


def test_a_process_without_standard_error():
    """As a service may be started: `2>&-`."""
    script = """
        from keras_tfm.runtime import native_log
        with native_log.remove():
            pass
        print("done")
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, timeout=60, preexec_fn=lambda: os.close(2)
    )
    assert done.stdout == b"done\n"
