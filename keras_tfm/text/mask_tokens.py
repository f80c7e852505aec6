"""Masked language modelling: what is hidden, and what is to be predicted."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tfm.arguments import check_integer, check_rate


class MaskTokens:
    """Hides some tokens of each row, which the model is to predict: for `Batches.map`.

    Of each row `rate` of the tokens are chosen, rounded, and at least one; of those, each by a draw
    of its own, 80 % become `mask_id`, 10 % a token drawn from all that are not special, and 10 %
    stay as they are. "BERT" (arXiv:1810.04805), section 3.1. Special tokens and padding are never
    chosen and never drawn.

    What is hidden depends on `seed` and the step alone: another choice in every epoch, the same
    after an interruption.

    Args:
        vocabulary_size: V; tokens are drawn from 0 to V - 1.
        mask_id: the token that hides.
        special_ids: tokens that are never chosen, padding among them; `mask_id` is one of them
            without being named.
        rate: the share of a row's other tokens that is chosen.
        mask_share, random_share: of the chosen, those that become `mask_id` and those that become
            another token.
        ignore_id: the label of what was not chosen; the `ignore_class` of the loss.
        name: the input to change.
        positions: whether to add the input "mask_positions" (B, M), where the chosen tokens are, in
            ascending order, and to give labels and weights of those alone, (B, M): for
            `models.masked_language_model(model, positions=True)`. M is `rate` of T, rounded, at
            least 1; what a row has not is position 0 of weight 0.
        seed: of the choice.

    Call arguments:
        batch: inputs by name, or the input alone, (B, T), integers.
        step: counted over all epochs.

    Returns:
        A tuple for `model.fit`: the inputs, labels (B, T) int32, and weights (B, T) float32, 1 for
        what was chosen and 0 elsewhere; (B, M) with `positions`. A row without a token to choose
        has none.

    Raises:
        ValueError: an id or a share is out of range, or nothing is left to draw; a batch has labels
            already, or with `positions` no names.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.text import MaskTokens
    >>> mask = MaskTokens(vocabulary_size=50, mask_id=4, special_ids=[0, 1, 2, 3])
    >>> ids = np.array([[1, 20, 21, 22, 23, 24, 25, 2, 0, 0]])
    >>> inputs, labels, weights = mask({"ids": ids}, step=0)
    >>> inputs["ids"].tolist()
    [[1, 20, 21, 4, 23, 24, 25, 2, 0, 0]]
    >>> labels.tolist()
    [[0, 0, 0, 22, 0, 0, 0, 0, 0, 0]]
    """

    def __init__(
        self,
        vocabulary_size: int,
        mask_id: int,
        special_ids: Sequence[int] = (0,),
        rate: float = 0.15,
        mask_share: float = 0.8,
        random_share: float = 0.1,
        ignore_id: int = 0,
        name: str = "ids",
        positions: bool = False,
        seed: int = 0,
    ):
        check_integer("vocabulary_size", vocabulary_size)
        for argument, value in (
            ("rate", rate),
            ("mask_share", mask_share),
            ("random_share", random_share),
        ):
            check_rate(argument, value)
        if mask_share + random_share > 1:
            raise ValueError(
                "mask_share and random_share must add up to at most 1, "
                f"got {mask_share} and {random_share}"
            )
        special = {mask_id, *special_ids}
        for one in special:
            if not 0 <= one < vocabulary_size:
                raise ValueError(
                    f"special ids and mask_id must be in 0..{vocabulary_size - 1}, got {one}"
                )
        self._ordinary = np.setdiff1d(np.arange(vocabulary_size), list(special)).astype("int32")
        if not len(self._ordinary):
            raise ValueError(f"all {vocabulary_size} ids are special: there is nothing to predict")
        if ignore_id in self._ordinary:
            raise ValueError(
                f"ignore_id must be a special id or none at all (-100), got the token {ignore_id}"
            )
        self.vocabulary_size, self.mask_id = vocabulary_size, mask_id
        self.special_ids = tuple(sorted(special))
        self.rate, self.mask_share, self.random_share = rate, mask_share, random_share
        self.ignore_id, self.name, self.seed = ignore_id, name, seed
        self.positions = positions

    def __call__(self, batch: Any, step: int) -> tuple[Any, np.ndarray, np.ndarray]:
        """Inputs -> inputs with tokens hidden, labels, weights."""
        if isinstance(batch, tuple):
            raise ValueError("a batch to mask has inputs alone: its labels are made here")
        if self.positions and not isinstance(batch, dict):
            raise ValueError("positions=True adds an input: it needs a batch of inputs by name")
        ids = np.asarray(batch[self.name] if isinstance(batch, dict) else batch)
        rng = np.random.default_rng([self.seed, step])
        chosen = self._chosen(ids, rng)
        draw = rng.random(ids.shape)
        other = self._ordinary[rng.integers(len(self._ordinary), size=ids.shape)]
        hidden = np.where(draw < self.mask_share, self.mask_id, ids)
        replaced = (draw >= self.mask_share) & (draw < self.mask_share + self.random_share)
        hidden = np.where(replaced, other, hidden)
        ids, labels = (
            np.where(chosen, hidden, ids).astype("int32"),
            np.where(chosen, ids, self.ignore_id).astype("int32"),
        )
        if not isinstance(batch, dict):
            return ids, labels, chosen.astype("float32")
        inputs = {**batch, self.name: ids}
        if self.positions:
            places = np.argsort(~chosen, axis=1, kind="stable")[:, : self._count(ids.shape[1])]
            labels, chosen = (np.take_along_axis(x, places, axis=1) for x in (labels, chosen))
            inputs["mask_positions"] = np.where(chosen, places, 0).astype("int32")
        return inputs, labels, chosen.astype("float32")

    def _chosen(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Which positions are to be predicted: (B, T), boolean."""
        ordinary = ~np.isin(ids, self.special_ids)
        available = ordinary.sum(axis=1)
        counts = np.where(available > 0, self._count(available), 0)
        # The smallest of random numbers, which those that may not be chosen have not.
        numbers = np.where(ordinary, rng.random(ids.shape), 2.0)
        ranks = np.argsort(np.argsort(numbers, axis=1, kind="stable"), axis=1, kind="stable")
        return ranks < counts[:, None]

    def _count(self, available: Any) -> Any:
        """How many of so many tokens are chosen."""
        return np.maximum(1, np.rint(self.rate * available)).astype("int64")
