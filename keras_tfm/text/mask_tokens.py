"""Masked language modelling: masks tokens and makes the labels."""

from collections.abc import Sequence

import numpy as np

from keras_tfm.arguments import check_integer, check_rate
from keras_tfm.text.batches import Batch, input_to_mask


class MaskTokens:
    """Masks some tokens of each row, which the model learns to predict. For `Batches.map`.

    The fraction `rate` of each row's tokens is chosen, rounded, at least one. Each chosen token
    becomes `mask_id` with probability 80 %, a random token that is not special with 10 %, and stays
    unchanged with 10 %. "BERT" (arXiv:1810.04805), section 3.1. Special tokens and padding are
    never chosen, and are never used as random tokens.

    The choice depends only on `seed` and the step: it differs between epochs, and is the same after
    an interruption.

    Args:
        vocabulary_size: int, number of token ids (V). Random tokens are drawn from 0 to V - 1.
        mask_id: int, id of the mask token. (The `mask_id` of an embedding is `pad_id` here.)
        special_ids: list of ids that are never chosen. `mask_id` and `pad_id` are always included.
        rate: float, the fraction of a row's other tokens that is chosen.
        mask_share: float, probability that a chosen token becomes `mask_id`.
        random_share: float, probability that a chosen token becomes a random token.
        pad_id: int, the padding id. None: the rows have no padding.
        ignore_id: int, label of the tokens that were not chosen, the `ignore_class` of the loss.
            Default: `pad_id`.
        name: str, name of the input to change.
        positions: bool, whether to add the input "mask_positions" (B, M), the positions of the
            chosen tokens in ascending order, and to return labels and weights for these positions
            only, (B, M): for `models.masked_language_model(model, positions=True)`. M is `rate` of
            T, rounded, at least 1. Rows with fewer chosen tokens are padded with position 0 and
            weight 0.
        seed: int, seed of the choice.

    Call arguments:
        batch: dict of inputs, or only the input, integers (B, T).
        step: int, the step, counted over all epochs.

    Returns:
        A tuple for `model.fit`: the inputs, labels (B, T) int32, and weights (B, T) float32, 1 for
        chosen tokens and 0 elsewhere; (B, M) with `positions`. In a row with only special tokens
        no token is chosen.

    Raises:
        ValueError: an id or a share is out of range; all ids are special; a batch already has
            labels, or has no input of that name and shape; or `positions` with a batch that is not
            a dictionary.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.text import MaskTokens
    >>> mask = MaskTokens(vocabulary_size=50, mask_id=4, special_ids=[1, 2, 3])
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
        special_ids: Sequence[int] = (),
        rate: float = 0.15,
        mask_share: float = 0.8,
        random_share: float = 0.1,
        pad_id: int | None = 0,
        ignore_id: int | None = None,
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
        special = {mask_id, *special_ids, *([] if pad_id is None else [pad_id])}
        for one in special:
            if not 0 <= one < vocabulary_size:
                raise ValueError(
                    "special_ids, mask_id and pad_id must be in "
                    f"0..{vocabulary_size - 1}, got {one}"
                )
        self._ordinary = np.setdiff1d(np.arange(vocabulary_size), list(special)).astype("int32")
        if not len(self._ordinary):
            raise ValueError(f"some ids must not be special, got all {vocabulary_size} as special")
        if ignore_id is None:
            ignore_id = pad_id
        if ignore_id is None:
            raise ValueError("without a pad_id give an ignore_id, such as -100, got None")
        if ignore_id in self._ordinary:
            raise ValueError(
                f"ignore_id must be a special id or no id (-100), got the token {ignore_id}"
            )
        self.vocabulary_size, self.mask_id = vocabulary_size, mask_id
        self.special_ids = tuple(sorted(special))
        self.rate, self.mask_share, self.random_share = rate, mask_share, random_share
        check_integer("seed", seed, minimum=0)
        self.pad_id, self.ignore_id, self.name, self.seed = pad_id, ignore_id, name, seed
        self.positions = positions

    def __call__(self, batch: Batch, step: int) -> tuple[Batch, np.ndarray, np.ndarray]:
        """Inputs -> inputs with masked tokens, labels, weights."""
        if isinstance(batch, tuple):
            raise ValueError("a batch to mask must be inputs without labels, got a tuple")
        if self.positions and not isinstance(batch, dict):
            raise ValueError(
                "positions=True adds an input, so a batch must be a dictionary of inputs, "
                f"got {type(batch).__name__}"
            )
        check_integer("step", step, minimum=0)
        ids = input_to_mask(batch, self.name)
        self._check(ids)
        rng = np.random.default_rng([self.seed, step])
        chosen = self._choose(ids, rng)
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

    def _check(self, ids: np.ndarray) -> None:
        if ids.ndim != 2:
            raise ValueError(f"{self.name} must be (B, T), got shape {ids.shape}")
        if ids.dtype.kind not in "iu":
            raise TypeError(f"{self.name} must be integers, got {ids.dtype}")
        odd = ids[(ids < 0) | (ids >= self.vocabulary_size)]
        if odd.size:
            raise ValueError(f"{self.name} must be in 0..{self.vocabulary_size - 1}, got {odd[0]}")

    def _choose(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The positions to predict: (B, T), boolean."""
        ordinary = ~np.isin(ids, self.special_ids)
        available = ordinary.sum(axis=1)
        counts = np.where(available > 0, self._count(available), 0)
        # The positions with the smallest random numbers; special tokens have larger ones.
        numbers = np.where(ordinary, rng.random(ids.shape), 2.0)
        ranks = np.argsort(np.argsort(numbers, axis=1, kind="stable"), axis=1, kind="stable")
        return ranks < counts[:, None]

    def _count(self, available: np.ndarray | int) -> np.ndarray:
        """The number of chosen tokens among `available` ones."""
        return np.maximum(1, np.rint(self.rate * available)).astype("int64")
