"""Runs the programs beside this file in processes of their own, and compares what they say."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

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


# Float32 weights near 1 after six steps of sums in another order.
FLOAT32 = 1e-6


def assert_equal(one, other):
    """Equal weights, and whatever else `other` said of logs and predictions."""
    np.testing.assert_allclose(other["weights"], one["weights"], atol=FLOAT32, rtol=0)
    if other["predictions"]:
        # Logits of some 5, and sums of them.
        np.testing.assert_allclose(other["predictions"], one["predictions"], atol=1e-5, rtol=0)
    assert "loss" in other["history"]
    for name, values in other["history"].items():
        np.testing.assert_allclose(values, one["history"][name], atol=FLOAT32, err_msg=name)
