"""Runs a module of keras_tfm in another process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_module(
    what: str, module: str, *arguments: str, given: Any = None, seconds: float | None = None
) -> Any:
    """The JSON that `python -m module arguments` prints.

    Args:
        what: what the process does, for errors: "loading model.tflite".
        module: str, its name.
        arguments: its arguments.
        given: standard input, as JSON.
        seconds: float, the time after which the process is ended. Default: none.

    Raises:
        RuntimeError: the process failed or was ended; the error has its last message.

    Example:

    >>> from keras_tfm.runtime.inspection.subprocesses import run_module
    >>> run_module("reading JSON", "json.tool", given={"a": 1})
    {'a': 1}
    """
    root = str(Path(__file__).parents[3])  # the folder of the package
    paths = [root, os.environ.get("PYTHONPATH", "")]
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(
            f"{what} in a separate process took more than {seconds:g} s, and was ended"
        ) from error
    if done.returncode != 0:
        raise RuntimeError(
            f"{what} in a separate process failed with exit code {done.returncode}: "
            + _cause(done.stderr)
        )
    return json.loads(done.stdout)


def _cause(log: str) -> str:
    """The line of a log that gives the cause of a failure."""
    lines = [x for x in log.strip().splitlines() if not x.startswith("INFO: ")]
    # LiteRT-LM logs the cause as an error, perhaps below a line with its own place in the source,
    # and then raises an exception without it.
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("E0000 "):
            return below[2:] if below.startswith("\u2514 ") else line.partition("] ")[2]
    return (lines[-1:] or ["no message"])[0]
