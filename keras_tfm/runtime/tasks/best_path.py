"""The text of scores for labels and a blank: connectionist temporal classification (CTC)."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.manifest.manifest import Predict

BLANK = ""


def best_path(scores: npt.ArrayLike, labels: Sequence[str] | None) -> str:
    """The text of the best path (Graves et al. 2006, section 3.2) of a model with CTC.

    It takes the most probable class at each position, merges repetitions and removes blanks.
    Labels are joined by spaces, unless one of them has a space: then they are joined as they are,
    without spaces at the ends.

    Args:
        scores: (T, V), logits or probabilities, such as a row of what a model with the head
            `models.ctc_classifier` returns.
        labels: list of V str, of which one, the blank, is "". Of a loaded checkpoint:
            `model.head.arguments["labels"]`, which is None where its folder has none.

    Raises:
        ValueError: the labels have no blank or several, or are not V; scores of another rank.

    >>> from keras_tfm.runtime import best_path
    >>> best_path([[0, 1, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]], ["", "a", "b"])
    'a b'
    """
    array, labels = np.asarray(scores), [] if labels is None else list(labels)
    if labels.count(BLANK) != 1 or array.ndim != 2 or array.shape[1] != len(labels):
        raise ValueError(
            "expected scores (T, V) and V labels, of which one is the blank, '', got scores "
            f"{array.shape} and {len(labels)} labels with {labels.count(BLANK)} blanks"
        )
    best = array.argmax(axis=-1)
    first = np.diff(best, prepend=-1) != 0
    return join((labels[i] for i in best[first]), labels).strip()


def join(found: Iterable[str], labels: Sequence[str]) -> str:
    """The text of labels, of which blanks are left out."""
    space = "" if any(" " in label for label in labels) else " "
    return space.join(label for label in found if label != BLANK)


def ctc_output(file: LoadedFile, labels: Sequence[str] | None) -> str | None:
    """The output of a full pass over audio that has scores of CTC; None without one.

    Args:
        file: of one model.
        labels: the names of its classes.
    """
    passes = [x for x in file.signatures.values() if isinstance(x, Predict)]
    if labels is None or list(labels).count(BLANK) != 1 or not passes:
        return None
    reads_audio = all(x.is_audio for x in passes[0].inputs.values())
    names = [name for name, x in passes[0].outputs.items() if len(x.shape) == 3]
    alone = len(passes[0].outputs) == 1
    return names[0] if reads_audio and names and alone else None
