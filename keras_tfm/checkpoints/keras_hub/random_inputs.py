"""Random inputs with padding, for a model of KerasHub and one of this library."""

from typing import Any

import numpy as np
from keras import ops

from keras_tfm.checkpoints.keras_hub.source import Source
from keras_tfm.models import Model
from keras_tfm.models.encoder_decoders.whisper import SAMPLES_PER_POSITION

ROWS, LENGTH, MASKED = 3, 11, 2
# Of images, if the model takes any size.
SIDE = 67
# The input of token ids with the features: the decoder's, if there is one.
_TARGETS = ("target", "tokens")


class RandomInputs:
    """The same random inputs under both names.

    Attributes:
        ours: those of our model, in its structure.
        of_backbone: dict, those of the backbone.
        of_task: dict, those of the task.
    """

    def __init__(self, model: Model, source: Source, seed: int = 0):
        self._rng = np.random.default_rng(seed)
        self._given, self._family = model.arguments, source.family
        self._longest = source.family.longest(model)
        self._names = [x.name for x in model.inputs]
        self._mask: np.ndarray | None = None
        self._positions: np.ndarray | None = None
        self._is_dict = isinstance(model.input, dict)
        known = source.backbone.input if isinstance(source.backbone.input, dict) else ()
        ours: dict[str, np.ndarray] = {}
        theirs: dict[str, np.ndarray] = {}
        for name, other in self._family.inputs.items():
            if name == "segments":
                ours[name] = theirs[other] = self._segments()
            elif name == "audio":
                ours[name], theirs[other] = self._speech(model)
            elif name == "pixels":
                ours[name], theirs[other] = self._pixels()
            else:
                lengths = np.array([self.length, self.length // 2 + 1, 1])
                ours[name], mask = self._ids(lengths)
                theirs[other] = ours[name]
                if _mask_name(other) in known:
                    theirs[_mask_name(other)] = mask.astype("int32")
                if name in _TARGETS:
                    self._mask = mask
        if "position_ids" in known:  # those of a text, from 0
            theirs["position_ids"] = np.tile(np.arange(self.length, dtype="int32"), (ROWS, 1))
        self.ours = self._in_structure(ours)
        self.of_backbone: Any = theirs if known else next(iter(theirs.values()))
        self.of_task = self.of_backbone
        if source.kind == "MaskedLM":
            self._positions = self._rng.integers(0, self.length // 2 + 1, (ROWS, MASKED), "int32")
            self._positions[-1] = 0  # the only token that is not padding
            self.of_task = {**theirs, "mask_positions": self._positions}

    @property
    def length(self) -> int:
        """The number of columns."""
        if self._family.full_length and self._longest:
            return self._longest
        return int(min(LENGTH, self._longest or LENGTH))

    def real(self, x: Any) -> np.ndarray:
        """The values at the tokens that are not padding: (B, T, ...) -> (N, ...)."""
        array = np.asarray(ops.convert_to_numpy(x))
        if self._mask is None or array.shape[:2] != self._mask.shape:
            return array
        return array[self._mask]

    def at_masks(self, output: np.ndarray) -> np.ndarray:
        """The logits (B, T, V) of a masked language model at chosen positions; others unchanged."""
        if self._positions is None:
            return output
        return np.take_along_axis(output, self._positions[..., None], axis=1)

    def prompts(self, new_tokens: int) -> tuple[Any, dict[str, np.ndarray], int, int | None]:
        """Prompts of which both generate tokens.

        Args:
            new_tokens: int, how many to generate, if there are positions for them.

        Returns:
            Our inputs; KerasHub's; the length of the result, with the prompts; the start token of
            an encoder-decoder model; None for others.
        """
        total = self.length
        known = max(1, total - new_tokens)
        ours, theirs, start = dict[str, np.ndarray](), dict[str, np.ndarray](), None
        for name, other in self._family.inputs.items():
            if name in _TARGETS:
                ids, _ = self._ids(np.full(ROWS, total))
                if name == "target":
                    known, start = 1, int(ids[0, 0])
                    ids[:, 0] = start
                else:
                    ours[name] = ids[:, :known].copy()
                mask = np.arange(total) < np.full((ROWS, 1), known)
                ids[:, known:] = 0
            else:
                ids, mask = self._ids(np.array([total, total // 2 + 1, 1]))
                ours[name] = ids
            theirs |= {other: ids, _mask_name(other): mask.astype("int32")}
        return self._in_structure(ours, {"target"}), theirs, total, start

    def _ids(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids (B, T) of which the first `length` of each row are no padding, and the mask."""
        pad_id = self._given.get("pad_id", 0) or 0
        ids = self._rng.integers(0, self._given["vocabulary_size"] - 1, (len(lengths), self.length))
        ids += ids >= pad_id
        mask = np.arange(self.length) < lengths[:, None]
        return np.where(mask, ids, pad_id).astype("int32"), mask

    def _segments(self) -> np.ndarray:
        size = self._given["num_segments"] if "segments" in self._names else 1
        return self._rng.integers(0, size, (ROWS, self.length), "int32")

    def _speech(self, model: Model) -> tuple[np.ndarray, np.ndarray]:
        """Noise as samples, if the model takes them, and as features, which KerasHub takes."""
        length = self._given["max_source_length"]
        if "audio" not in self._names:
            shape = (ROWS, 2 * length, self._given["num_mels"])
            features = self._rng.normal(size=shape).astype("float32")
            return features, features
        samples = self._rng.uniform(-0.5, 0.5, (ROWS, SAMPLES_PER_POSITION * length))
        audio = samples.astype("float32")
        return audio, np.asarray(ops.convert_to_numpy(model.get_layer("log_mel")(audio)))

    def _pixels(self) -> tuple[np.ndarray, np.ndarray]:
        """Pixels from 0 to 255, and as KerasHub's converter makes them."""
        mean, deviation = (np.array(self._given[f"image_{x}"]) for x in ("mean", "std"))
        size = self._given["image_size"] or (SIDE, SIDE)
        size = (size, size) if isinstance(size, int) else size
        pixels = self._rng.uniform(0, 255, (ROWS, *size, len(mean)))
        return pixels.astype("float32"), ((pixels / 255 - mean) / deviation).astype("float32")

    def _in_structure(self, arrays: dict[str, np.ndarray], left_out: Any = ()) -> Any:
        """Arrays in the structure of the model's inputs."""
        if "audio" in arrays:  # the features of a model without `log_mel`
            arrays = {**arrays, "features": arrays["audio"]}
        names = [name for name in self._names if name not in left_out]
        if self._is_dict:
            return {name: arrays[name] for name in names}
        return arrays[names[0]]


def _mask_name(ids: str) -> str:
    return ids.replace("token_ids", "padding_mask")
