"""Another process that fails, or does not end."""

import pytest

from keras_tfm.runtime.inspection.subprocesses import run_module


def test_a_process_that_takes_too_long_is_ended():
    message = "waiting in a separate process took more than 0.2 s, and was ended"
    with pytest.raises(RuntimeError, match=message):
        run_module("waiting", "timeit", "-n", "1", "import time; time.sleep(60)", seconds=0.2)


def test_the_last_line_of_a_process_that_fails_is_the_reason():
    with pytest.raises(
        RuntimeError, match=r"reading in a separate process failed .*'no such file'"
    ):
        run_module("reading", "json.tool", "no such file")
