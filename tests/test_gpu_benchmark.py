"""The parts of benchmarks/gpu.py that need no GPU; `.ci/full` runs its --smoke."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu

    yield gpu
    del sys.modules["gpu"]


def test_operations_of_a_step(gpu):
    """32.8 ms on an H200 were 356 TFLOP/s."""
    assert gpu.step_flops("train", smoke=False) / 0.0328 == pytest.approx(
        356e12, rel=2e-3
    )  # three digits
    # 8 times the length with an eighth of the rows: the same weights, 8 times the attention.
    long, short = (gpu.step_flops(x, smoke=False) for x in ("long", "train"))
    attention = 3 * 2 * 16 * 1024 * 12 * 768 * 1024
    assert long == pytest.approx(short + 7 * attention)


def test_the_table_compares_with_pytorch(gpu, capsys):
    def worker(name, seconds, memory):
        result = object.__new__(gpu.Worker)
        result.name, result.seconds, result.memory = name, seconds, memory
        return result

    ours = worker("keras_tfm, jax", [0.0328, 0.0328, 9.0], 2**33)
    peer = worker("PyTorch compiled", [0.036], 2**34)
    gpu.print_table("train", [peer, ours], 1e15, smoke=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "| training, B=16, T=1024 | ms a step | of the card's rate | of time | peak GiB |",
        "|---|---:|---:|---:|---:|",
        "| keras_tfm, jax | 32.8 | 36% | 0.91 | 8.00 |",
        "| PyTorch compiled | 36.0 | 32% | 1.00 | 16.00 |",
    ]


def test_without_a_gpu_it_says_so(gpu, monkeypatch):
    monkeypatch.setattr(gpu, "card", lambda backend, smoke: {"device": "CPU", "rate": 0.0})
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--backends", "jax"])
    with pytest.raises(SystemExit, match=r"^no GPU: --smoke runs it on the CPU\njax: finds no GPU"):
        gpu.main()


def test_a_contestant_that_ends_leaves_its_reason(gpu):
    worker = gpu.Worker("nobody", "nothing", "train", smoke=True)
    with pytest.raises(RuntimeError, match=r"ended early: .*(nothing|backend)"):
        worker.answer(120)
    worker.end()
