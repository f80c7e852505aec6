"""What C++ writes to standard error is held back, and nothing else is lost."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from keras_tfm.runtime import native_log

DESCRIPTORS = Path("/proc/self/fd")


def say(text):
    os.write(2, text.encode())


def test_it_is_held_back(capfd):
    with native_log.removed() as log:
        say("banner\n")
    say("after\n")
    assert log.text == "banner\n"
    assert capfd.readouterr().err == "after\n"


def test_it_is_printed_when_the_block_fails(capfd):
    with pytest.raises(KeyError, match="reason"), native_log.removed() as log:
        say("clue\n")
        raise KeyError("reason")
    say("after\n")
    assert capfd.readouterr().err == "clue\nafter\n"
    assert log.text == "clue\n"


def test_what_python_wrote_before_comes_before(capfd):
    print("before", file=sys.stderr, end=" ")
    with native_log.removed():
        say("banner")
    print("after", file=sys.stderr, end="")
    sys.stderr.flush()
    assert capfd.readouterr().err == "before after"


def test_blocks_within_blocks(capfd):
    with native_log.removed() as outer:
        say("a")
        with native_log.removed() as inner:
            say("b")
        say("c")
    say("d")
    assert inner.text == "b"
    assert outer.text in ("ac", "abc")
    assert capfd.readouterr().err == "d"


def test_bytes_that_are_no_text(capfd):
    with native_log.removed() as log:
        os.write(2, b"\xff\0ok")
    assert log.text == "\ufffd\0ok"


@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="Linux lists a process's files here")
def test_no_descriptor_is_leaked():
    before = len(list(DESCRIPTORS.iterdir()))
    for _ in range(20):
        with native_log.removed():
            say("banner")
    assert len(list(DESCRIPTORS.iterdir())) == before


def test_blocks_of_two_threads_that_overlap(capfd):
    """Two models loaded at once: whichever ends last, standard error is what it was."""
    first, second = native_log.removed(), native_log.captured()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    say("after")
    assert capfd.readouterr().err == "after"


def run(script, **options):
    command = [sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.run(command, stdout=subprocess.PIPE, timeout=60, **options).stdout


def test_a_process_without_standard_error():
    """As a service may be started: `2>&-`."""
    script = """
        from keras_tfm.runtime import native_log
        with native_log.removed():
            pass
        print("done")
    """
    assert run(script, preexec_fn=lambda: os.close(2)) == b"done\n"
