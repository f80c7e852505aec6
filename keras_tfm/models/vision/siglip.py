"""SigLIP: "Sigmoid Loss for Language Image Pre-Training" (2303.15343); SigLIP 2 (2502.14786)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from keras_tfm.arguments import check_number
from keras_tfm.layers.types import Arguments, DType
from keras_tfm.models.identity import Marker, builder
from keras_tfm.models.model import Model
from keras_tfm.models.vision.clip import LogitBias, LogitScale, tower_arguments
from keras_tfm.models.vision.siglip_encoders import MEAN, STD, siglip_image, siglip_text


def _size(
    tower: Sequence[int], patch_size: int, image_size: int, text: Sequence[int] = (), **more: Any
) -> Arguments:
    names = ("dim", "num_layers", "num_heads", "intermediate_dim")
    towers = [dict(zip(names, x, strict=True)) for x in (tower, text or tower)]
    return {
        "image_size": image_size, "patch_size": patch_size, "image": towers[0], "text": towers[1],
        **more,
    }  # fmt: skip


# "so400m" is the shape of "Getting ViT in Shape" (arXiv:2305.13035); the texts of "giant" have its
# encoder. Names and sizes of images as in the released checkpoints; parameters as in KerasHub's
# siglip_presets.py, less its ids of positions. Use: siglip(**SIZES["siglip2-base-16"]).
_BASE = (768, 12, 12, 3072)
_LARGE = (1024, 24, 16, 4096)
_SO400M = (1152, 27, 16, 4304)
_GIANT = (1536, 40, 16, 6144)
_GEMMA: Arguments = {"vocabulary_size": 256000, "pad_id": 0}
SIZES: dict[str, Arguments] = {
    "base-16": _size(_BASE, 16, 224),
    "base-16-384": _size(_BASE, 16, 384),
    "large-16-256": _size(_LARGE, 16, 256),
    "so400m-14-384": _size(_SO400M, 14, 384),
    "siglip2-base-32-256": _size(_BASE, 32, 256, **_GEMMA),
    "siglip2-base-16": _size(_BASE, 16, 224, **_GEMMA),
    "siglip2-base-16-512": _size(_BASE, 16, 512, **_GEMMA),
    "siglip2-large-16-256": _size(_LARGE, 16, 256, **_GEMMA),
    "siglip2-so400m-14": _size(_SO400M, 14, 224, **_GEMMA),
    "siglip2-so400m-16-384": _size(_SO400M, 16, 384, **_GEMMA),
    "siglip2-giant-16-256": _size(_GIANT, 16, 256, _SO400M, **_GEMMA),
}


@builder
def siglip(
    image_size: int | Sequence[int] = 224,
    patch_size: int | Sequence[int] = 16,
    vocabulary_size: int = 32000,
    max_length: int = 64,
    pad_id: int = 1,
    image: Mapping[str, Any] | None = None,
    text: Mapping[str, Any] | None = None,
    logit_scale: float = math.log(10),
    logit_bias: float = -10.0,
    image_mean: Sequence[float] = MEAN,
    image_std: Sequence[float] = STD,
    name: str = "siglip",
    dtype: DType = None,
) -> Model:
    """SigLIP and SigLIP 2: an encoder of images and one of texts, with similar vectors for a pair.

    As `clip`, with an encoder of texts that sees the whole text, padding included, and trained pair
    by pair: sigmoid(scale v . t + bias) is the probability that picture and text belong together,
    whatever other texts there are. Train it with `training.SigmoidLoss`; `clip_towers` makes two
    models of it, one for images and one for texts, which share its weights.

    Args:
        image_size: int or (height, width) of the images, in pixels.
        max_length: int, number of tokens of every text: shorter ones are padded in the model.
        pad_id: int, id of the padding, which attention sees as any other token: 1 in SigLIP, 0 in
            SigLIP 2.
        image: dict, further arguments of `siglip_image`, such as `dim` and `num_layers`. Default:
            those of ViT-B.
        text: dict, further arguments of `siglip_text`. Default: those of the base models.
        logit_scale: float, the initial logarithm of the scale.
        logit_bias: float, the initial bias. With -10 all pairs begin as negatives, as nearly all
            are.
        dtype: dtype or dtype policy of every layer. Default: the global policy. Embeddings, scale
            and bias are float32.

    Returns:
        A functional model from a dict of `pixels` (B, height, width, C), values from 0 to 255, and
        `tokens` (B, T), int32, T up to `max_length`, to a dict of "image_embedding" (B, E) and
        "text_embedding" (B, E) of length 1, "scale" (B, 1), the learned factor of their inner
        products, and "bias" (B, 1), which is added to them; both are the same in each row. E is the
        width of the encoder of images.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or one of `image` and `text` that is an argument of
            `siglip`, or unknown.

    Example:

    >>> from keras_tfm.models import siglip
    >>> tower = {"dim": 12, "num_layers": 1, "num_heads": 3, "intermediate_dim": 16}
    >>> model = siglip(16, 8, vocabulary_size=11, max_length=7, image=tower, text=tower)
    >>> {key: x.shape for key, x in model.output.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'image_embedding': (None, 12), 'text_embedding': (None, 12), 'scale': (None, 1),
     'bias': (None, 1)}
    """
    check_number("logit_scale", logit_scale)
    check_number("logit_bias", logit_bias)
    shared = {"normalize": True, "dtype": dtype}
    of_image = {
        "image_size": image_size,
        "patch_size": patch_size,
        "image_mean": image_mean,
        "image_std": image_std,
        "pooling": True,
        **shared,
    }
    of_image = tower_arguments("image", siglip_image, of_image, image)
    images = siglip_image(**of_image)
    of_text = {
        "vocabulary_size": vocabulary_size,
        "max_length": max_length,
        "pad_id": pad_id,
        "projection_dim": images.output.shape[-1],
        **shared,
    }
    texts = siglip_text(**tower_arguments("text", siglip_text, of_text, text))
    blocks = [x.name for x in (*images.blocks, *texts.blocks)]
    embedding = Marker("towers", blocks=blocks, dtype="float32")(images.output)
    outputs = {
        "image_embedding": embedding,
        "text_embedding": texts.output,
        # Without a maximum: the scales of the released models exceed 100.
        "scale": LogitScale(logit_scale, maximum=None, name="logit_scale")(embedding),
        "bias": LogitBias(logit_bias, name="logit_bias")(embedding),
    }
    return Model({"pixels": images.input, "tokens": texts.input}, outputs, name=name)
