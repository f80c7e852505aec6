"""Two real processes on loopback, three on request: equality, a killed worker, a restart."""

import numpy as np
import programs
import pytest
import small_training
from programs import assert_equal

STEPS = 12  # three epochs of 22 rows in batches of 6


def heard(result):
    assert result.returncode == 0, result.stdout + result.stderr
    return small_training.heard(result.stdout)


@pytest.fixture(scope="module")
def alone():
    return heard(programs.run("worker.py", "--whole"))


@pytest.fixture(scope="module")
def two():
    """Two workers that nobody kills, without dropout."""
    return heard(programs.run("worker.py", "--whole", workers=2))


def assert_alike(one, other):
    assert other["workers"] == 2
    assert_equal(one, other)
    for name, value in one["evaluation"].items():
        assert other["evaluation"][name] == pytest.approx(value, abs=1e-6)
    assert len(other["predictions"]) == small_training.ROWS * 5 * small_training.SIZE


def test_fit_evaluate_and_predict_of_two_workers_equal_one(alone, two):
    assert_alike(alone["small"], two["small"])


@pytest.mark.slow
def test_a_transformer_too():
    """test_replicas.py trains one on two replicas by default."""
    one, other = (
        heard(programs.run("worker.py", "--transformer", workers=n))["transformer"]
        for n in (None, 2)
    )
    assert_alike(one, other)


@pytest.mark.slow
def test_weights_are_rounded_on_every_worker():
    one, other = (
        heard(programs.run("worker.py", "--rounded", workers=n))["rounded"] for n in (None, 2)
    )
    assert_alike(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
def test_a_worker_is_killed_and_all_go_on_from_the_checkpoint(tmp_path, alone, workers):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    expected = heard(programs.run("worker.py", "--resume", whole, workers=workers))["resumed"]

    kill = ["--kill-worker", 1, "--at-step", 7]
    result = programs.run("worker.py", "--resume", killed, *kill, workers=workers)
    assert result.returncode == 128 + 9, result.stdout + result.stderr
    assert "worker 1 ended with status -9" in result.stderr
    assert not [line for line in result.stdout.splitlines() if line.startswith("RESULT")]

    again = heard(programs.run("worker.py", "--resume", killed, workers=workers))["resumed"]
    assert again["workers"] == workers
    assert again["weights"] == expected["weights"]
    assert again["predictions"] == expected["predictions"]
    assert again["history"] == expected["history"]
    # The chief alone writes: what one process writes, and no more.
    names = {path.name.partition("-")[0] for path in killed.iterdir()}
    assert names == {"checkpoint", "ckpt"}
    steps = sorted(int(p.stem.partition("-")[2]) for p in killed.glob("*.index"))
    assert steps == [8, 10, STEPS]
    assert not np.allclose(again["weights"], alone["small"]["weights"])  # dropout was on


@pytest.mark.slow
@pytest.mark.parametrize("worker", [0, 1])
def test_workers_agree_when_to_write_and_to_exit(tmp_path, worker):
    """The clocks differ, and SIGTERM comes to one of them, within the second epoch."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    clock = ["--every-minutes", 0.01]
    expected = heard(programs.run("worker.py", "--resume", whole, *clock, workers=2))["resumed"]
    term = ["--kill-worker", worker, "--at-step", 6, "--signal", 15]
    result = programs.run("worker.py", "--resume", stopped, *clock, *term, workers=2)
    assert result.returncode == 128 + 15, result.stdout + result.stderr
    again = heard(programs.run("worker.py", "--resume", stopped, *clock, workers=2))["resumed"]
    assert again["weights"] == expected["weights"]
    assert again["history"] == expected["history"]


@pytest.mark.slow
def test_a_folder_that_not_all_workers_see_is_refused(tmp_path):
    """Worker 0 finds a checkpoint, worker 1 looks elsewhere."""
    folder = tmp_path / "a"
    result = programs.run("worker.py", "--resume", folder, workers=2)
    assert result.returncode == 0, result.stdout + result.stderr
    folders = [folder, tmp_path / "b"]
    result = programs.run("worker.py", "--resume-of-each", *folders, workers=2)
    assert result.returncode != 0
    assert "expected step 12 on each of them" in result.stdout
    assert "all workers must see the same folder" in result.stdout
