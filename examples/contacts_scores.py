"""Mutual information and the profile of columns: inputs of the model, and its competitors."""

import numpy as np

from keras_tfm.text import alignment_profile
from keras_tfm.text.alignments import GAP_ID


def mutual_information(ids: np.ndarray) -> np.ndarray:
    """Mutual information of columns with the average product correction: (S, N) -> (N, N).

    Dunn, Wahl and Gloor (2008). Rows are weighted by the number of rows with 80 % identity, and
    frequencies have a pseudocount of one row.
    """
    states = np.where(ids > 20, 0, ids)  # unknown residues and gaps are one state
    weights = sequence_weights(ids)
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


def sequence_weights(ids: np.ndarray) -> np.ndarray:
    """One divided by the number of rows with 80 % identity, itself included: (S, N) -> (S,)."""
    states = np.where(ids > 20, 0, ids)
    return 1.0 / ((states[:, None] == states[None]).mean(-1) > 0.8).sum(axis=1)


def coupling(ids: np.ndarray, separation: int) -> np.ndarray:
    """Mutual information as an input: (S, N) -> (N, N, 2), float32.

    The first number is that of `mutual_information` in standard deviations of the pairs at least
    `separation` apart, at most 8 from their mean. The second is the first times the logarithm of
    the number of different sequences: with few of them mutual information is noise.
    """
    found = mutual_information(ids)
    apart = np.abs(np.subtract.outer(range(len(found)), range(len(found)))) >= separation
    some = found[apart] if apart.any() else found
    scaled = np.clip((found - some.mean()) / max(1e-9, some.std()), -8, 8)
    reliable = np.log10(sequence_weights(ids).sum()) - 1
    return np.stack([scaled, scaled * reliable], axis=-1).astype("float32")


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


def log_profile(ids: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    """Logarithms of the shares of each token id in a column of what is not hidden, as an input.

    (..., S, N) -> (..., N, 24), float32. Three more rows have the shares of the whole alignment.
    """
    seen = np.where(hidden, 0, ids)
    count = (seen > 0).sum(axis=-2)[..., None]
    everywhere = seen.reshape(*seen.shape[:-2], -1, 1)
    share = (count * alignment_profile(seen) + 3 * alignment_profile(everywhere)) / (count + 3)
    return np.log(np.maximum(share, 1e-6)).astype("float32")


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return float(np.mean(values)), float(error)
