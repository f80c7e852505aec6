"""Alignments of proteins as arrays of token ids. Reading files is a library's work: Biopython."""

from collections.abc import Sequence

import numpy as np

from keras_tfm.arguments import check_integer

# Ids of `models.evoformer`: 0 is padding, then these letters, a gap, and the mask of pretraining.
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
UNKNOWN_ID = len(AMINO_ACIDS) + 1
GAP_ID = UNKNOWN_ID + 1
MASK_ID = GAP_ID + 1
ALIGNMENT_IDS = MASK_ID + 1
# Ambiguous and rare residues, as in AlphaFold's table of letters: D or N, E or Q, I or L,
# selenocysteine as cysteine; pyrrolysine has no near relative.
_ALIASES = {"B": "D", "Z": "E", "J": "X", "U": "C", "O": "X"}
_GAPS = "-.~"


def encode_alignment(rows: Sequence[str], keep_inserts: bool = False) -> np.ndarray:
    """Token ids of an alignment, the target in the first row.

    Columns in which the target has a gap are removed, and so are lower-case letters of A3M files
    (insertions), as in AlphaFold 2 (Jumper et al. 2021), supplement 1.2.

    Args:
        rows: list of str, the aligned sequences, all of the same length without insertions. The
            letters are those of amino acids, X for an unknown one, B, Z, J, U and O, and "-", "."
            or "~" for a gap.
        keep_inserts: bool, read lower-case letters as residues and keep the columns of the target's
            gaps.

    Returns:
        (S, N) int32: 1 to 20 for the letters of `AMINO_ACIDS`, 21 unknown, 22 a gap. Id 0 is
        padding and 23 is the mask; neither occurs.

    Raises:
        ValueError: no rows, rows of unequal lengths, an unknown letter, or a target without
            residues.

    Example:

    >>> from keras_tfm.text import encode_alignment
    >>> encode_alignment(["AC-D", "AC-kkE", "A--X"]).tolist()
    [[1, 2, 3], [1, 2, 4], [1, 22, 21]]
    """
    if isinstance(rows, str) or not len(rows):
        raise ValueError(f"rows must be at least one aligned sequence, got {rows!r}")
    if not keep_inserts:
        rows = ["".join(x for x in row if not x.islower()) for row in rows]
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        first = next(i for i, row in enumerate(rows) if len(row) != len(rows[0]))
        raise ValueError(
            f"all rows of an alignment must have one length: row 0 has {len(rows[0])} columns, "
            f"row {first} has {len(rows[first])}"
        )
    table = _table()
    # A letter at a time: `"ß".upper()` has two.
    ids = np.array([[table.get(x.upper(), -1) for x in row] for row in rows], "int32")
    if (ids < 0).any():
        row, column = np.argwhere(ids < 0)[0]
        raise ValueError(f"unknown letter {rows[row][column]!r} in row {row}, column {column}")
    if not keep_inserts and ids.size:
        ids = ids[:, ids[0] != GAP_ID]
    if not ids.size:
        raise ValueError("the target, row 0, must have residues, got only gaps")
    return ids


def alignment_profile(ids: np.ndarray) -> np.ndarray:
    """The share of each token id in each column: (S, N) or (B, S, N) -> (..., N, 24) float32.

    Padding (id 0) is not counted; columns of padding are zeros.

    >>> import numpy as np
    >>> from keras_tfm.text.alignments import alignment_profile
    >>> alignment_profile(np.array([[1, 2], [1, 3]]))[:, 1:4].tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]
    """
    one_hot = np.asarray(ids)[..., None] == np.arange(ALIGNMENT_IDS)
    counts = one_hot.sum(axis=-3).astype("float32")
    counts[..., 0] = 0
    return counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1)


def crop_alignment(
    ids: np.ndarray, num_sequences: int, num_residues: int, rng: np.random.Generator
) -> tuple[np.ndarray, int]:
    """A random window of columns and a random choice of rows, padded to one shape.

    The target stays the first row (supplement 1.2.6 and 1.2.8).

    Args:
        ids: (S, N) integers, of `encode_alignment`.
        num_sequences: int, number of rows of the result.
        num_residues: int, number of columns of the result.
        rng: `numpy.random.Generator`.

    Returns:
        The crop (num_sequences, num_residues) int32, padded with 0, and the index of its first
        column.

    >>> import numpy as np
    >>> from keras_tfm.text.alignments import crop_alignment
    >>> crop, first = crop_alignment(np.array([[1, 2, 3]] * 2), 3, 4, np.random.default_rng(0))
    >>> crop.tolist(), first
    ([[1, 2, 3, 0], [1, 2, 3, 0], [0, 0, 0, 0]], 0)
    """
    check_integer("num_sequences", num_sequences)
    check_integer("num_residues", num_residues)
    ids = np.asarray(ids)
    rows, length = ids.shape
    first = int(rng.integers(max(1, length - num_residues + 1)))
    others = np.arange(1, rows)
    if rows > num_sequences:
        others = np.sort(rng.choice(others, num_sequences - 1, replace=False))
    part = ids[np.r_[0, others], first : first + num_residues]
    result = np.zeros((num_sequences, num_residues), "int32")
    result[: part.shape[0], : part.shape[1]] = part
    return result, first


def _table() -> dict[str, int]:
    table = {letter: i + 1 for i, letter in enumerate(AMINO_ACIDS)} | {"X": UNKNOWN_ID}
    table |= {letter: table[same] for letter, same in _ALIASES.items()}
    return table | dict.fromkeys(_GAPS, GAP_ID)
