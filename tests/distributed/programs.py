"""Runs the programs beside this file in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LAUNCH = ROOT / "examples" / "multi_worker" / "launch.py"


def run(program, *arguments, workers=None, timeout=600):
    """Runs `program`, by the launcher where `workers` says how many; a CompletedProcess."""
    launch = [LAUNCH, "--workers", workers, sys.executable] if workers else []
    command = [sys.executable, *launch, HERE / program, *arguments]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    environment.pop("TF_CONFIG", None)
    return subprocess.run(
        [str(part) for part in command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
