"""What contacts and masked residues are compared with: mutual information and the profile."""

import numpy as np

from keras_tfm.text import alignment_profile
from keras_tfm.text.alignments import GAP_ID


def mutual_information(ids: np.ndarray) -> np.ndarray:
    """Mutual information of columns with the average product correction: (S, N) -> (N, N).

    Dunn, Wahl and Gloor (2008). Rows are weighted by the number of rows with 80 % identity, and
    frequencies have a pseudocount of one row.
    """
    states = np.where(ids > 20, 0, ids)  # unknown residues and gaps are one state
    near = (states[:, None] == states[None]).mean(-1) > 0.8
    weights = 1.0 / near.sum(axis=1)
    count, length = 21, ids.shape[1]
    one_hot = (states[..., None] == np.arange(count)).reshape(len(ids), -1).astype("float32")
    total = weights.sum() + 1.0
    single = (weights @ one_hot + 1.0 / count) / total
    pairs = (one_hot.T * weights.astype("float32")) @ one_hot
    pairs = (pairs + 1.0 / count**2) / total
    terms = pairs * np.log(pairs / np.outer(single, single))
    information = terms.reshape(length, count, length, count).sum(axis=(1, 3))
    np.fill_diagonal(information, 0.0)
    means = information.sum(axis=0) / (length - 1)
    return information - np.outer(means, means) / max(1e-12, means.mean())


def precision(scores: np.ndarray, contacts: np.ndarray, measured: np.ndarray) -> float:
    """The share of contacts among the L/5 pairs with the highest scores."""
    first, second = np.nonzero(np.triu(measured))
    top = max(1, len(scores) // 5)
    best = np.argsort(-scores[first, second], kind="stable")[:top]
    return float(contacts[first[best], second[best]].mean())


def from_profile(ids: np.ndarray, hidden: np.ndarray, residues_only: bool) -> np.ndarray:
    """The most frequent letter of each column among what is not hidden: (S, N) -> (N,)."""
    seen = alignment_profile(np.where(hidden, 0, ids))
    share = alignment_profile(np.ravel(np.where(hidden, 0, ids))[:, None])[0]
    seen = seen + 1e-3 * share  # where a column is hidden in all rows, and for ties
    return seen[:, 1 : GAP_ID + (not residues_only)].argmax(axis=-1) + 1


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return float(np.mean(values)), float(error)
