"""Masked image regions: hides features of regions and makes the targets."""

import numpy as np

from keras_tfm.arguments import check_integer, check_rate


class MaskRegions:
    """Masks some regions of each image, whose classes the model learns to predict.

    The counterpart of `MaskTokens` for `models.image_text_pretraining`. Each region is chosen with
    probability `rate`, at least one of a row. The features of a chosen region become zeros with
    probability 90 % and stay unchanged with 10 %: ViLBERT (arXiv:1908.02265), section 3.1. The
    choice depends only on `seed` and the step.

    Args:
        rate: float, probability that a region is chosen.
        zero_share: float, probability that the features of a chosen region become zeros.
        first: int, number of leading regions of each row that are never chosen: 1 if the first
            one stands for the whole image.
        name: str, the input to change; the mask of padding is the input "region_mask", if present.
        targets: str, entry of the batch with the detector's probabilities (B, N, K), which is
            removed from the inputs.
        seed: int, seed of the choice.

    Call arguments:
        batch: dict of inputs and the targets.
        step: int, the step, counted over all epochs.

    Returns:
        A tuple: the inputs, the targets (B, N, K) float32, and weights (B, N) float32, 1 for chosen
        regions and 0 elsewhere, for `training.RegionKLDivergence`. In a row with no region to
        choose, none is.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or a batch without features or targets of regions.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.text import MaskRegions
    >>> batch = {"region_features": np.ones((1, 4, 2)), "region_classes": np.ones((1, 4, 3)) / 3}
    >>> inputs, targets, weights = MaskRegions(rate=0.3, first=1, seed=1)(batch, step=0)
    >>> inputs["region_features"][0, :, 0].tolist(), weights.tolist()
    ([1.0, 1.0, 0.0, 1.0], [[0.0, 0.0, 1.0, 0.0]])
    """

    def __init__(
        self,
        rate: float = 0.15,
        zero_share: float = 0.9,
        first: int = 1,
        name: str = "region_features",
        targets: str = "region_classes",
        seed: int = 0,
    ):
        check_rate("rate", rate)
        check_rate("zero_share", zero_share)
        check_integer("first", first, minimum=0)
        self.rate, self.zero_share, self.first = rate, zero_share, first
        check_integer("seed", seed, minimum=0)
        self.name, self.targets, self.seed = name, targets, seed

    def __call__(
        self, batch: dict[str, np.ndarray], step: int
    ) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Inputs and targets -> inputs with masked regions, targets, weights."""
        check_integer("step", step, minimum=0)
        missing = [x for x in (self.name, self.targets) if x not in batch]
        if missing:
            raise ValueError(f"a batch to mask must have {missing[0]!r}, got {sorted(batch)}")
        inputs = dict(batch)
        targets = np.asarray(inputs.pop(self.targets), "float32")
        features = np.asarray(inputs[self.name], "float32")
        if features.shape[:2] != targets.shape[:2]:
            raise ValueError(
                f"{self.targets} must be (B, N, K) for features {features.shape}, "
                f"got {targets.shape}"
            )
        rng = np.random.default_rng([self.seed, step])
        real = np.ones(features.shape[:2], bool)
        if "region_mask" in inputs:
            real = np.asarray(inputs["region_mask"]) != 0
        real = real & (np.arange(features.shape[1]) >= self.first)
        numbers = np.where(real, rng.random(real.shape), 2.0)
        lowest = numbers == numbers.min(axis=1, keepdims=True)
        chosen = real & ((numbers < self.rate) | lowest)
        zero = chosen & (rng.random(real.shape) < self.zero_share)
        inputs[self.name] = np.where(zero[..., None], np.float32(0), features)
        return inputs, targets, chosen.astype("float32")
