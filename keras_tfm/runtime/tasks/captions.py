"""Pictures in, text out: a file of a model that describes pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from keras_tfm.runtime.tasks.detection import as_pixels
from keras_tfm.runtime.tasks.text import generated_texts, target_of

if TYPE_CHECKING:
    from keras_tfm.runtime.model import Model


class Captions:
    """The method of `runtime.Model` that describes pictures."""

    def caption(self, images: Any, prompt: Sequence[int] | None = None) -> Any:
        """The text that a model of pictures and text writes for a picture.

        Args:
            images: path, bytes of a file, `PIL.Image.Image` or uint8 array, a picture of any size
                as in `predict_images`; or a list of them.
            prompt: list of int, the first tokens of the text, such as a start token of a language.
                They are not a part of the text. Default: the `default_prompt` with which the file
                was exported, or its `start_id`.

        Returns:
            A text for a picture, a list for a list.

        Raises:
            ValueError: the file has no signature that generates, no tokenizer, or was exported
                without `images`; there is no picture; or as `predict_images`.
            FileNotFoundError, TypeError, ModuleNotFoundError: as `predict_images`.
        """
        model = cast("Model", self)
        if isinstance(images, dict):
            raise TypeError("expected a picture or a list of them, got a dictionary")
        inputs = as_pixels(model, images)
        target = target_of(model)
        (pixels,) = inputs.values()
        if prompt is not None:
            inputs[target] = [list(prompt)] * len(pixels)
        found = generated_texts(model, inputs, with_prompt=False)
        texts = [x if isinstance(x, str) else str(x[0].text) for x in found]
        several = isinstance(images, list | tuple) or np.ndim(images) == 4
        return texts if several else texts[0]
