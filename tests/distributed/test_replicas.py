"""One, two and four replicas on logical CPUs: equal weights, equal logs, equal predictions."""

import numpy as np
import programs
import pytest
import small_training
from programs import assert_equal


def results_of(tier):
    result = programs.run("on_replicas.py", tier)
    assert result.returncode == 0, result.stdout + result.stderr
    return small_training.heard(result.stdout)


@pytest.fixture(scope="module")
def results():
    return results_of("fast")


@pytest.fixture(scope="module")
def slow_results():
    return results_of("slow")


def test_replicas_with_unequal_padding_train_alike(results):
    assert_equal(results["1"], results["2"])


def test_recurrent_layers_of_replicas_without_rows(results):
    """Nine rows in batches of eight: the last one leaves one of two replicas without rows."""
    assert_equal(results["no rows 1"], results["no rows 2"])


def test_layers_of_keras_on_replicas_without_rows(results):
    """Training, validation and predictions."""
    one, two = (results[f"no rows, convolutions {n}"] for n in (1, 2))
    assert np.isfinite(one["weights"]).all()
    assert_equal(one, two)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["no rows", "no rows, convolutions"])
def test_three_of_four_replicas_without_rows(slow_results, case):
    assert_equal(slow_results[f"{case} 1"], slow_results[f"{case} 4"])


@pytest.mark.slow
def test_four_replicas_train_alike(slow_results):
    assert_equal(slow_results["small 1"], slow_results["4"])


@pytest.mark.slow
def test_losses_of_keras_too(slow_results):
    assert_equal(slow_results["ignored 1"], slow_results["ignored 2"])


@pytest.mark.slow
def test_losses_of_keras_with_a_mask(slow_results):
    assert_equal(slow_results["by mask 1"], slow_results["by mask 2"])


def test_all_at_once(results):
    """Odd batches, in parts, of labels that the mask hides, clipped: a fault of one is seen."""
    assert_equal(results["all at once 1"], results["all at once 2, 2 parts"])


@pytest.mark.slow
def test_labels_that_the_mask_hides_do_not_count(slow_results):
    assert_equal(slow_results["hidden 1"], slow_results["hidden 2"])


@pytest.mark.slow
def test_odd_first_and_last_batches(slow_results):
    """Eleven rows in batches of five: 3 + 2, 3 + 2, and one row for two replicas."""
    assert_equal(slow_results["odd batches 1"], slow_results["odd batches 2"])


@pytest.mark.slow
def test_strings(slow_results):
    assert_equal(slow_results["strings 1"], slow_results["strings 2"])


@pytest.mark.slow
def test_a_batch_in_parts_is_the_batch(slow_results):
    assert_equal(slow_results["small 1"], slow_results["2 replicas, 2 parts"])


@pytest.mark.slow
def test_unequal_parts(slow_results):
    """Batches of eight in three parts."""
    assert_equal(slow_results["small 1"], slow_results["3 parts"])


@pytest.mark.slow
def test_gradients_are_clipped_as_a_whole(slow_results):
    assert_equal(slow_results["clipped 1"], slow_results["clipped 2"])


@pytest.mark.slow
def test_half_precision(slow_results):
    one, two = (np.array(slow_results[f"half {n}"]["weights"]) for n in (1, 2))
    # Gradients of some 0.1 rounded to eleven bits, in six steps of rate 0.5.
    np.testing.assert_allclose(one, two, atol=3e-3, rtol=0)


def test_weights_and_activations_are_rounded_on_every_replica(results):
    one, two = results["rounded 1"], results["rounded 2, 2 parts"]
    assert_equal(one, two)


def test_statistics_of_a_bad_step_are_not_kept(results):
    assert results["stopped"]["wrong"] == []
    assert " at step 2 " in results["stopped"]["message"]


def test_a_step_of_a_subclass_sums_gradients_once(results):
    for case in ("own step 2", "parent's step 2"):
        one, other = results[case]
        assert one == other
        np.testing.assert_allclose(one, results["own step 1"][0], atol=1e-6)  # float32


def test_moving_statistics_are_averaged_by_rows(results):
    """Means of parts of a batch give the mean of the batch; variances do not."""
    (means, _), (of_both, variances) = (results[f"moving statistics {n}"] for n in (1, 2))
    assert of_both[0] == of_both[1]
    assert variances[0] == variances[1]
    np.testing.assert_allclose(of_both[0], means[0], rtol=1e-6)  # float32


def test_moving_statistics_of_an_own_step_are_averaged(results):
    """Those of renormalisation, too."""
    statistics = results["moving statistics of an own step 2"]
    assert len(statistics) == 5
    assert all(one == other for one, other in statistics)


def test_two_outputs_with_a_loss_each(results):
    """Each loss is divided by its own count."""
    assert_equal(results["two outputs"], results["two outputs, 2 replicas, 2 parts"])


def test_additional_losses_by_rows(results):
    """Keras lets a replica take the additional losses of another, without their gradients."""
    assert_equal(results["own losses 1"], results["own losses 4, 2 parts"])


@pytest.mark.slow
def test_additional_losses_of_whole_batches(slow_results):
    assert_equal(slow_results["own losses 1"], slow_results["own losses 4"])


@pytest.mark.slow
def test_the_trap_is_there(slow_results):
    """Keras alone, with one process: other weights on two replicas than on one. Else why bother."""
    one, two = (np.array(slow_results[f"keras alone {n}"]["weights"]) for n in (1, 2))
    assert np.abs(one - two).max() > 1e-3


def test_dropout_differs_between_replicas(results):
    """The two halves of a batch are equal, their logits are not."""
    first, second = np.array(results["dropout"])
    assert np.abs(first - second).max() > 1e-3


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("jit", "jit_compile must be False or 'auto' under MirroredStrategy"),
        ("synchronized in parts", "must be 1 under MirroredStrategy with norm, whose synchron"),
        ("steps_per_execution", "steps_per_execution must be 1 under MirroredStrategy, got 2"),
        ("small batch", "batch_size must be at least the number of replicas (2), got 1"),
        ("small dataset batch", "at least the number of replicas (2), got 1"),
        ("outside", "must be created inside the scope of MirroredStrategy"),
        ("a layer outside", "its variable outside/kernel was created outside"),
        ("optimizer", "use model.compile"),
    ],
)
def test_what_cannot_work_is_refused_early(results, what, text):
    assert text in results["refused"][what]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["odd first batch", "scalar logs"])
def test_keras_still_needs_the_override(slow_results, what):
    """Keras 3.15 fails here. Once it does not, `DistributedModel` can do without its own."""
    assert slow_results["keras fails"][what], "Keras repaired itself: delete the override"
