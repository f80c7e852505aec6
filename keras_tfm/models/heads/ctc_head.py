"""The head of a recogniser with connectionist temporal classification (CTC)."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.types import Config, DType, Initializer, Shape, Tensor
from keras_tfm.models.heads.head_base import checked_labels, head_base
from keras_tfm.models.identity import head
from keras_tfm.models.model import Model


@head
def ctc_classifier(
    model: keras.Model,
    num_classes: int,
    dropout: float | None = None,
    features: Tensor | str | None = None,
    kernel_initializer: Initializer | None = None,
    dtype: DType = None,
    labels: Sequence[str] | None = None,
    blank_id: int | None = None,
) -> Model:
    """Adds a dense layer for CTC (Graves et al. 2006): logits (B, T, V) of labels, and of a blank.

    The logits of padding are those of a blank that is certain. So the loss is that of the audio
    alone, without lengths, and the text of the best path ends with the audio.
    `keras_tfm.runtime.best_path` writes it; a file with the labels does in `transcribe`.

    Args:
        model: functional model, such as `models.wav2vec2(...)`.
        num_classes: int, number of classes (V), with the blank.
        dropout: float, dropout rate before the dense layer. Default: the model's; 0 for
            hand-composed models.
        features, kernel_initializer, dtype: see `keras_tfm.models.heads.text_heads`.
        labels: list of V texts, such as letters, of which the blank is "". They are kept by
            `save_huggingface` and `load_huggingface`, and in exported files.
        blank_id: int, the class that is no label. Default: that of the label "", or 0, which
            `keras.losses.CTC` needs.

    Raises:
        ValueError: there is not one label for each class, or not exactly one blank; a blank that is
            no class.

    Example, a step of training; targets are padded with the blank:

    >>> import keras
    >>> import numpy as np
    >>> from keras_tfm import models
    >>> model = models.wav2vec2(
    ...     16, num_layers=1, num_heads=2, intermediate_dim=16, feature_dims=(8,) * 7
    ... )
    >>> model = models.ctc_classifier(model, 4, labels=["", " ", "a", "b"])
    >>> model.compile("adam", keras.losses.CTC())
    >>> audio = np.random.default_rng(0).uniform(-0.5, 0.5, (2, 8000)).astype("float32")
    >>> audio[1, 4000:] = 0  # padding
    >>> history = model.fit({"audio": audio}, np.array([[2, 3, 1, 3], [3, 2, 0, 0]]), verbose=0)
    >>> history.history["loss"][0] < 1000
    True
    """
    labels = checked_labels(labels, num_classes)
    if labels is not None and labels.count("") != 1:
        raise ValueError(f"labels must have one blank, '', got {labels.count('')}")
    if blank_id is None:
        blank_id = 0 if labels is None else labels.index("")
    check_integer("blank_id", blank_id, minimum=0)
    if blank_id >= num_classes or (labels is not None and labels[blank_id] != ""):
        expected = f"0..{num_classes - 1}" if labels is None else str(labels.index(""))
        raise ValueError(f"blank_id must be {expected}, got {blank_id}")
    base = head_base(model, features, kernel_initializer, dtype)
    x = base.mark(base.features, labels=labels, blank_id=blank_id)
    logits = base.classify(x, num_classes, dropout, name="ctc")
    logits = BlankPadding(blank_id, dtype=base.dtype, name="blank_padding")(logits)
    return base.with_outputs(logits)


@keras.saving.register_keras_serializable("keras_tfm")
class BlankPadding(keras.layers.Layer):
    """Replaces the logits of padding with those of a blank that is certain.

    Args:
        blank_id: int, the class of the blank.

    Call arguments:
        logits: float tensor (B, T, V).
        mask: boolean tensor (B, T), True = of the sequence; optional.

    Returns:
        The logits without a mask; at padding, 20 for the blank and 0 for the other classes.

    >>> import numpy as np
    >>> from keras_tfm.models.heads.ctc_head import BlankPadding
    >>> logits = np.ones((1, 2, 3), "float32")
    >>> np.array(BlankPadding(0)(logits, mask=np.array([[True, False]]))).tolist()
    [[[1.0, 1.0, 1.0], [20.0, 0.0, 0.0]]]
    """

    def __init__(self, blank_id: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.blank_id = blank_id
        self.supports_masking = True
        self.built = True

    def call(self, logits: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, V) -> (B, T, V)."""
        if mask is None:
            return logits
        # Products, as XNNPACK does not delegate a select.
        real = ops.expand_dims(ops.cast(mask, logits.dtype), -1)
        blank = np.zeros(logits.shape[-1], "float32")
        blank[self.blank_id] = 20.0
        return logits * real + ops.cast(blank, logits.dtype) * (1 - real)

    def compute_mask(self, logits: Tensor, previous_mask: Tensor | None = None) -> None:
        """None: the loss must include the blanks that mark the padding."""

    def compute_output_shape(self, logits_shape: Shape) -> Shape:
        """The shape of the logits."""
        return logits_shape

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "blank_id": self.blank_id}
