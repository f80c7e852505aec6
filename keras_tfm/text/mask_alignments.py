"""Masked alignments: hides residues and makes the labels."""

import math

import numpy as np

from keras_tfm.arguments import check_integer, check_rate
from keras_tfm.text.alignments import ALIGNMENT_IDS, AMINO_ACIDS, GAP_ID, MASK_ID, alignment_profile
from keras_tfm.text.batches import Batch, input_to_mask


class MaskAlignments:
    """Masks residues of alignments, which the model learns to predict. For `Batches.map`.

    Each residue or gap is chosen with probability `rate`. A chosen one becomes a random amino acid
    with probability `random_share`, a draw from its column's profile with `profile_share`, stays
    unchanged with `same_share`, and otherwise becomes the mask: AlphaFold 2 (Jumper et al. 2021),
    supplement 1.2.7. Unlike there, the model sees no unmasked copy of the target sequence.

    The choice depends only on `seed` and the step.

    Args:
        rate: float, probability that a residue or gap is chosen.
        random_share: float, probability that a chosen one becomes a random amino acid.
        profile_share: float, probability that it is drawn from its column's profile.
        same_share: float, probability that it stays unchanged.
        name: str, name of the input to change.
        seed: int, seed of the choice.

    Call arguments:
        batch: dict of inputs, or only the input, (B, S, N) integers of `encode_alignment`, padded
            with 0.
        step: int, the step, counted over all epochs.

    Returns:
        A tuple for `model.fit`: the inputs, labels (B, S, N) int32, and weights (B, S, N) float32,
        1 for chosen residues and gaps and 0 elsewhere.

    Raises:
        TypeError: an input that is not of integers.
        ValueError: a share is out of range; the shares add up to more than 1; an input that is
            missing, not (B, S, N), or contains ids that `encode_alignment` does not produce.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.text import MaskAlignments, encode_alignment
    >>> batch = encode_alignment(["ACDEF", "ACDE-"])[None]
    >>> ids, labels, weights = MaskAlignments(rate=0.5, seed=1)(batch, step=0)
    >>> labels[weights > 0].tolist() == batch[weights > 0].tolist()
    True
    """

    def __init__(
        self,
        rate: float = 0.15,
        random_share: float = 0.1,
        profile_share: float = 0.1,
        same_share: float = 0.1,
        name: str = "tokens",
        seed: int = 0,
    ):
        shares = {
            "random_share": random_share,
            "profile_share": profile_share,
            "same_share": same_share,
        }
        for argument, value in {"rate": rate, **shares}.items():
            check_rate(argument, value)
        total = math.fsum(shares.values())  # `sum` gives 1.0000000000000002 for 0.33, 0.56, 0.11
        if total > 1:
            raise ValueError(f"{', '.join(shares)} must add up to at most 1, got {total}")
        check_integer("seed", seed, minimum=0)
        self.rate, self.name, self.seed = rate, name, seed
        self.random_share, self.profile_share = random_share, profile_share
        self.same_share = same_share

    def __call__(self, batch: Batch, step: int) -> tuple[Batch, np.ndarray, np.ndarray]:
        """Inputs -> inputs with masked residues, labels, weights."""
        check_integer("step", step, minimum=0)
        ids = input_to_mask(batch, self.name)
        if ids.ndim != 3:
            raise ValueError(f"{self.name} must be (B, S, N), got shape {ids.shape}")
        if ids.dtype.kind not in "iu":
            raise TypeError(f"{self.name} must be integers, got {ids.dtype}")
        odd = ids[(ids < 0) | (ids >= ALIGNMENT_IDS)]
        if odd.size:
            raise ValueError(f"{self.name} must be in 0..{ALIGNMENT_IDS - 1}, got {odd[0]}")
        rng = np.random.default_rng([self.seed, step])
        chosen = (ids != 0) & (rng.random(ids.shape) < self.rate)
        hidden = np.full(ids.shape, MASK_ID)
        draw, edge = rng.random(ids.shape), 0.0
        for share, replacement in (
            (self.random_share, rng.integers(1, len(AMINO_ACIDS) + 1, ids.shape)),
            (self.profile_share, _from_profile(ids, rng)),
            (self.same_share, ids),
        ):
            here = (draw >= edge) & (draw < edge + share)
            hidden, edge = np.where(here, replacement, hidden), edge + share
        labels = np.where(chosen, ids, 0).astype("int32")
        ids = np.where(chosen, hidden, ids).astype("int32")
        inputs = {**batch, self.name: ids} if isinstance(batch, dict) else ids
        return inputs, labels, chosen.astype("float32")


def _from_profile(ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each place an id, drawn from the profile of its column: (B, S, N)."""
    totals = np.cumsum(alignment_profile(ids), axis=-1)[:, None]  # (B, 1, N, V)
    drawn = (rng.random((*ids.shape, 1)) >= totals).sum(axis=-1)
    return np.minimum(drawn, ALIGNMENT_IDS - 1).clip(1, GAP_ID)
