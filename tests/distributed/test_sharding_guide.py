"""The programs of docs/sharding.md, on JAX with 8 virtual devices: for `.ci/full jax`."""

from sharded import WITH_8_DEVICES
from test_docs import run_blocks

pytestmark = WITH_8_DEVICES


def test_the_guide_runs_and_prints_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_blocks("sharding")
