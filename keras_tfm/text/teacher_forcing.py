"""Decoder inputs and labels for teacher forcing."""

import numpy as np

from keras_tfm.text.rows import Ids, Rows


def teacher_forcing(
    source: Ids | None, target: Ids, names: tuple[str, str] = ("source", "target")
) -> tuple[dict[str, Rows], Rows]:
    """Makes inputs and labels of a decoder: the labels are the target shifted by one token.

    The decoder input is the target without its last token; the labels are the target without its
    first token. For encoder-decoder and decoder-only models.

    Args:
        source: list of rows of integers. None: a decoder-only model.
        target: list of the same number of rows, each with its start and end token.
        names: tuple of str, names of the model's two inputs; without a source only the second is
            used.

    Returns:
        A dict of the inputs and the labels, all as `Rows`: arguments of `BucketedBatches` and
        `PackedBatches`.

    Raises:
        ValueError: a target has fewer than two tokens, or the numbers of rows differ.
        TypeError: a row holds other values than integers.

    Example:

    >>> from keras_tfm.text import teacher_forcing
    >>> inputs, labels = teacher_forcing([[7, 8]], [[1, 5, 6, 2]])
    >>> inputs["source"][0].tolist(), inputs["target"][0].tolist(), labels[0].tolist()
    ([7, 8], [1, 5, 6], [5, 6, 2])
    """
    rows = Rows.of(target)
    short = np.flatnonzero(rows.lengths < 2)
    if len(short):
        raise ValueError(
            "a target must have at least two tokens, its start and one more, "
            f"got {rows[short[0]].tolist()} in row {short[0]}"
        )
    inputs = {}
    if source is not None:
        inputs[names[0]] = Rows.of(source)
        if len(inputs[names[0]]) != len(rows):
            raise ValueError(
                "source and target must have the same number of rows, "
                f"got {len(inputs[names[0]])} and {len(rows)}"
            )
    starts = rows.starts - np.arange(len(rows.starts))  # each row is one shorter
    inputs[names[1]] = Rows(np.delete(rows.values, rows.starts[1:] - 1), starts)
    return inputs, Rows(np.delete(rows.values, rows.starts[:-1]), starts)
