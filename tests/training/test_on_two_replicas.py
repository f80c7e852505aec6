"""Metrics and callbacks under MirroredStrategy on two logical CPUs equal those on one device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from execution import tensorflow_only

pytestmark = tensorflow_only
SCRIPT = Path(__file__).with_name("on_two_replicas.py")


@pytest.fixture(scope="module")
def results():
    return results_of(
        "metrics", "clipped", "momentum", "own_steps", "not_finite", "generated", "dino"
    )


def results_of(*cases):
    pytest.importorskip("sacrebleu")
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *cases],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    return found["one"], found["two"]


def test_metrics_of_uneven_tokens(results):
    one, two = (x["metrics"] for x in results)
    for name in ("perplexity", "accuracy"):
        assert two[name] == pytest.approx(one[name], rel=1e-6)
        assert two[name][1] == 2 * 8  # labels that count, twice


def test_the_norm_and_the_clipping_are_those_of_the_whole_batch(results):
    one, two = (x["clipped"] for x in results)
    assert one[0] == pytest.approx(0.5, rel=1e-5)
    assert two == pytest.approx(one, rel=1e-5)


def test_the_steps_are_the_same(results):
    one, two = (np.array(x["momentum"]) for x in results)
    np.testing.assert_allclose(two, one, rtol=0.0, atol=1e-6)
    np.testing.assert_allclose(one[1], one[0], rtol=0.0, atol=1e-6)  # with a scaled loss


def test_a_train_step_of_a_subclass_keeps_its_sums(results):
    """With a watch of the gradients, and after it: those of the model, or else the optimizer's."""
    one, two = (x["own_steps"] for x in results)
    (norm, *weights, _), (expected, *others, _) = two[0], one[0]
    assert norm == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(weights, others, rtol=0.0, atol=1e-6)
    *_, (mean,) = one[1]
    *_, means = two[1]
    np.testing.assert_allclose(means, [mean, mean], rtol=0.0, atol=1e-6)


def test_a_row_of_the_second_replica_stops_both(results):
    for (message, weights), count in zip((x["not_finite"] for x in results), (12, 6), strict=True):
        assert message.startswith("the loss is inf at step 1 (epoch 1, batch 1)")
        assert f"input x has 1 inf of {count} numbers" in message
        assert np.all(np.array(weights) == 1.0)


def test_scores_of_what_is_generated(results):
    one, two = (x["generated"] for x in results)
    assert {"loss", "val_bleu", "val_chrf"} == one.keys() == two.keys()
    for name, values in one.items():
        assert two[name] == pytest.approx(values, rel=1e-5)


def test_the_centre_and_the_steps_of_self_distillation(results):
    one, two = (x["dino"] for x in results)
    assert np.abs(one[0]).max() > 1e-3
    assert_same_steps(one, two)


@pytest.mark.slow
def test_sinkhorn_knopp_sees_the_batch_of_all_replicas():
    one, two = (x["sinkhorn"] for x in results_of("sinkhorn"))
    assert np.abs(one[0]).max() <= 1e-3  # there is no centre
    assert_same_steps(one, two)


def assert_same_steps(one, two):
    assert one[2] == two[2] == 2
    for a, b in zip(one[:2], two[:2], strict=True):
        np.testing.assert_allclose(b, a, rtol=0.0, atol=1e-5 * np.abs(a).max())
