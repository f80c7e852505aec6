"""DraftLoss against loops in NumPy."""

import numpy as np
import pytest

from keras_tfm.training import DraftLoss

LABELS = np.array([[3, 1, 4, 2, 5, 0], [6, 2, 0, 0, 0, 0]])


def reference(labels, logits, smoothing=0.0, weights=None):
    """The mean over heads and positions, one by one."""
    total = count = 0.0
    size = logits.shape[-1]
    for b, row in enumerate(labels):
        for t in range(len(row)):
            for i in range(logits.shape[2]):
                if t + i + 1 >= len(row) or row[t + i + 1] == 0:
                    continue
                weight = 1.0 if weights is None else weights[b, t + i + 1]
                x = logits[b, t, i].astype("float64")
                log_p = x - np.log(np.sum(np.exp(x)))
                target = np.full(size, smoothing / size)
                target[row[t + i + 1]] += 1 - smoothing
                total -= weight * float(target @ log_p)
                count += weight
    return total / count


@pytest.mark.parametrize("heads", [1, 3, 7])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_mean_over_heads(heads, smoothing, weighted):
    generator = np.random.default_rng(heads)
    logits = generator.normal(size=(2, 6, heads, 7)).astype("float32")
    weights = generator.uniform(size=(2, 6)).astype("float32") if weighted else None
    found = DraftLoss(smoothing)(LABELS, logits, weights)
    np.testing.assert_allclose(
        float(found), reference(LABELS, logits, smoothing, weights), rtol=1e-5
    )


def test_a_weight_per_row():
    logits = np.random.default_rng(0).normal(size=(2, 6, 2, 7)).astype("float32")
    rows = np.array([1.0, 0.25], "float32")
    found = DraftLoss()(LABELS, logits, rows)
    wanted = reference(LABELS, logits, weights=np.repeat(rows[:, None], 6, axis=1))
    np.testing.assert_allclose(float(found), wanted, rtol=1e-5)


def test_logits_of_other_axes():
    with pytest.raises(ValueError, match=r"needs the drafts \(B, T, n, V\).*got \(2, 6, 7\)"):
        DraftLoss()(LABELS, np.zeros((2, 6, 7), "float32"))


def test_places_behind_the_end_need_a_label_to_ignore():
    with pytest.raises(ValueError, match="ignore_class must be an integer"):
        DraftLoss(ignore_class=None)
