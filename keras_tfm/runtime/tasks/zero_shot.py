"""Classification of pictures by the words for their classes, with CLIP or SigLIP."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.media.image_processor import Pictures
from keras_tfm.runtime.tasks.embedding import embed_image, embed_text, head_of
from keras_tfm.runtime.tasks.pictures import softmax

# CLIP's largest scale, which its training reaches.
SCALE = 100.0


class Classification(NamedTuple):
    """A class of a picture.

    Attributes:
        label: str, name of the class.
        probability: float, between 0 and 1; those of all classes add up to 1. With a SigLIP, each
            is that of its own class alone, and they need not.

    Example:

    >>> from keras_tfm.runtime import Classification
    >>> Classification("cat", 0.98).label
    'cat'
    """

    label: str
    probability: float


class ZeroShotClassifier:
    """A classifier made of words; returned by `runtime.Model.zero_shot`.

    p_c = softmax_c(s v . t_c), where v is the unit vector of the picture, t_c that of the text of
    class c, and s the scale (arXiv:2103.00020, section 3.1). With a SigLIP, which has a bias b,
    p_c = sigmoid(s v . t_c + b) (arXiv:2303.15343).

    Attributes:
        labels: list of C str, names of the classes.
        vectors: array (C, D), float32, the unit vectors of the classes.
        scale: float, the factor s.
        bias: float, b; None for a model without one, such as CLIP.

    Example, with a file of `models.clip_towers`:

    >>> from keras_tfm import runtime
    >>> def of(path, picture):
    ...     classify = runtime.load(path).zero_shot(["cat", "dog"], template="a photo of a {}")
    ...     return classify(picture)[0].label
    """

    def __init__(
        self,
        file: LoadedFile,
        labels: Sequence[str],
        template: str | Sequence[str],
        scale: float | None = None,
    ):
        if isinstance(labels, str) or not all(isinstance(x, str) for x in labels):
            raise TypeError(f"labels must be a list of texts, got {labels!r}")
        templates = [template] if isinstance(template, str) else list(template)
        lacking = [x for x in templates if not isinstance(x, str) or "{}" not in x]
        if lacking or not templates:
            raise ValueError(f"a template must have {{}} for the label, got {template!r}")
        self.labels = list(labels)
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise ValueError(f"labels must be one or more different texts, got {self.labels}")
        empty = [i for i, label in enumerate(self.labels) if not label.strip()]
        if empty:
            raise ValueError(
                f"a label must have at least one character, but label {empty[0]} has none"
            )
        learned = _constant_of(file, "scale")
        self.scale = float((SCALE if learned is None else learned) if scale is None else scale)
        self.bias = _constant_of(file, "bias")
        texts = [x.replace("{}", label) for x in templates for label in self.labels]
        vectors = _unit(embed_text(file, texts))
        vectors = vectors.reshape(len(templates), len(self.labels), -1)
        self.vectors: np.ndarray = _unit(vectors.mean(0)).astype("float32")
        self._file = file

    def __call__(self, images: Pictures) -> list[Classification] | list[list[Classification]]:
        """The classes of a picture, the most probable first; or a list of them for each of several.

        Args:
            images: path, array or list of B, as in `runtime.Model.predict_images`.

        Returns:
            A list of C `Classification`, or a list of B such lists.
        """
        found = self.probabilities(images)
        return self._rank(found) if found.ndim == 1 else [self._rank(row) for row in found]

    def probabilities(self, images: Pictures) -> np.ndarray:
        """The probabilities (B, C) in the order of `labels`, float64; (C,) for a single picture."""
        vectors = embed_image(self._file, images)
        if vectors.shape[-1] != self.vectors.shape[-1]:
            raise ValueError(
                "the vectors of pictures and texts must have the same width, "
                f"got {vectors.shape[-1]} and {self.vectors.shape[-1]}"
            )
        logits = self.scale * _unit(vectors) @ self.vectors.T.astype("float64")
        return softmax(logits) if self.bias is None else 1 / (1 + np.exp(-(logits + self.bias)))

    def _rank(self, row: np.ndarray) -> list[Classification]:
        order = np.argsort(-row, kind="stable").tolist()
        return [Classification(self.labels[i], float(row[i])) for i in order]


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1, float64."""
    vectors = vectors.astype("float64")
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def _constant_of(file: LoadedFile, name: str) -> float | None:
    """The learned scale or bias in a file, if it has one."""
    for one in [file, *file.models.values()]:
        head = head_of(one)
        value = None if head is None else head.arguments.get(name)
        if isinstance(value, int | float):
            return float(value)
    return None
