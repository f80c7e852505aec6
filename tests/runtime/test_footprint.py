"""`runtime.footprint`: what it says of a process that holds NumPy and LiteRT alone."""

import json
import subprocess
import sys
import textwrap

import pytest
from small_exports import real_file


@pytest.mark.parametrize("cached", [False, True], ids=["packed", "cache"])
def test_a_process_of_its_own(cached, tmp_path):
    report = real_file("float32")
    arguments = [report.path, "2", *([str(tmp_path)] if cached else [])]
    script = f"""
        import json, runpy, sys
        sys.argv = ["footprint", *{arguments}]
        runpy.run_module("keras_tfm.runtime.inspection.footprint", run_name="__main__")
        print(json.dumps(sorted({{name.split(".")[0] for name in sys.modules}})))
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    measured, packages = (json.loads(line) for line in done.stdout.splitlines())
    assert not {"tensorflow", "keras", "jax", "torch"} & set(packages)
    assert set(measured) == {"load_ms", "first_ms", "peak_bytes", "private_bytes"}
    assert all(value > 0 for value in measured.values())
    assert measured["peak_bytes"] > (0 if cached else report.bytes)
