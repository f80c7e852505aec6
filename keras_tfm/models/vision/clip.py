"""CLIP: "Learning Transferable Visual Models From Natural Language Supervision" (2103.00020)."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer, check_number
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.types import Arguments, DType, Shape, Tensor
from keras_tfm.models.derived_model import derived_model
from keras_tfm.models.heads.head_base import token
from keras_tfm.models.identity import Marker, builder, outputs_in
from keras_tfm.models.model import Model
from keras_tfm.models.vision.clip_encoders import HEAD, MEAN, STD, clip_image, clip_text


def _size(patch_size: int, image: Sequence[int], text: Sequence[int], **more: Any) -> Any:
    names = ("dim", "num_layers", "num_heads", "intermediate_dim")
    parts = {"image": image, "text": text}
    towers = {name: dict(zip(names, part, strict=True)) for name, part in parts.items()}
    return {"patch_size": patch_size, **towers, **more}


# Table 20 of the paper; the large models have embeddings of 768. Use: clip(**SIZES["base-32"]).
_BASE = ((768, 12, 12, 3072), (512, 12, 8, 2048))
_LARGE = ((1024, 24, 16, 4096), (768, 12, 12, 3072))
SIZES: dict[str, Arguments] = {
    "base-32": _size(32, *_BASE),
    "base-16": _size(16, *_BASE),
    "large-14": _size(14, *_LARGE, projection_dim=768),
    "large-14-336": _size(14, *_LARGE, projection_dim=768, image_size=336),
}


@builder
def clip(
    image_size: int | Sequence[int] = 224,
    patch_size: int | Sequence[int] = 32,
    vocabulary_size: int = 49408,
    max_length: int = 77,
    end_id: int | None = 49407,
    projection_dim: int = 512,
    image: Mapping[str, Any] | None = None,
    text: Mapping[str, Any] | None = None,
    logit_scale: float = math.log(1 / 0.07),
    image_mean: Sequence[float] = MEAN,
    image_std: Sequence[float] = STD,
    name: str = "clip",
    dtype: DType = None,
) -> Model:
    """CLIP: an encoder of images and one of texts, whose embeddings of a pair become similar.

    Train it with `training.ContrastiveLoss`, on images and their texts; `clip_towers` makes two
    models of it, one for images and one for texts, which share its weights.

    Args:
        image_size: int or (height, width) of the images, in pixels.
        max_length: int, maximum number of tokens of a text, the end token included.
        end_id: int, id of the end token. None: the largest id of each row.
        projection_dim: int, width of the embeddings of both encoders (E). The encoders may have
            different widths.
        image: dict, further arguments of `clip_image`, such as `dim` and `num_layers`. Default:
            those of ViT-B.
        text: dict, further arguments of `clip_text`. Default: those of the original's base models.
        logit_scale: float, the initial logarithm of the scale, the inverse of the temperature.
        dtype: dtype or dtype policy of every layer. Default: the global policy. Embeddings and
            scale are float32.

    Returns:
        A functional model from a dict of `pixels` (B, height, width, C), values from 0 to 255, and
        `tokens` (B, T), int32, to a dict of "image_embedding" (B, E) and "text_embedding" (B, E) of
        length 1, and "scale" (B, 1), the learned factor of their inner products, the same in each
        row. It never exceeds 100, as in section 2.5 of the paper.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or one of `image` and `text` that is an argument of
            `clip`, or unknown.

    Example:

    >>> from keras_tfm.models import clip
    >>> tower = {"dim": 12, "num_layers": 1, "num_heads": 3, "intermediate_dim": 16}
    >>> model = clip(16, 8, vocabulary_size=11, max_length=7, end_id=2, projection_dim=5,
    ...              image=tower, text=tower)
    >>> {key: x.shape for key, x in model.output.items()}
    {'image_embedding': (None, 5), 'text_embedding': (None, 5), 'scale': (None, 1)}
    """
    check_integer("projection_dim", projection_dim)
    check_number("logit_scale", logit_scale)
    shared = {"projection_dim": projection_dim, "dtype": dtype}
    of_image = {
        "image_size": image_size,
        "patch_size": patch_size,
        "image_mean": image_mean,
        "image_std": image_std,
        **shared,
    }
    of_text = {
        "vocabulary_size": vocabulary_size,
        "max_length": max_length,
        "end_id": end_id,
        **shared,
    }
    of_image = tower_arguments("image", clip_image, of_image, image)
    of_text = tower_arguments("text", clip_text, of_text, text)
    images, texts = clip_image(**of_image), clip_text(**of_text)
    blocks = [x.name for x in (*images.blocks, *texts.blocks)]
    embedding = Marker("towers", blocks=blocks, dtype="float32")(images.output)
    scale = LogitScale(logit_scale, name="logit_scale")(embedding)
    outputs = {"image_embedding": embedding, "text_embedding": texts.output, "scale": scale}
    return Model({"pixels": images.input, "tokens": texts.input}, outputs, name=name)


def clip_towers(model: keras.Model) -> dict[str, Model]:
    """The two models in a CLIP or SigLIP, from pixels and from tokens to embeddings.

    They share its weights. For `export_tflite`, which writes both into one file, and for
    checkpoints of one encoder. The learned scale and bias are stored with them as they are now, for
    `runtime.Model.zero_shot`: call this after training.

    Args:
        model: `keras.Model` of `clip` or `siglip`.

    Returns:
        A dict of two functional models, "image" as of `clip_image` and "text" as of `clip_text`; or
        as of `siglip_image` and `siglip_text` with `normalize`.

    Raises:
        ValueError: the model is not one of `clip` or `siglip`.

    Example:

    >>> from keras_tfm.models import clip, clip_towers
    >>> tower = {"dim": 12, "num_layers": 1, "num_heads": 3, "intermediate_dim": 16}
    >>> model = clip(16, 8, vocabulary_size=11, max_length=7, end_id=2, projection_dim=5,
    ...              image=tower, text=tower)
    >>> {name: one.output.shape for name, one in clip_towers(model).items()}
    {'image': (None, 5), 'text': (None, 5)}
    """
    layers = {x.name: x for x in getattr(model, "layers", [])}
    if not isinstance(layers.get("logit_scale"), LogitScale):
        name = getattr(model, "name", model)
        raise ValueError(f"expected a model of models.clip or models.siglip, got {name!r}")
    learned = {"scale": float(ops.convert_to_numpy(layers["logit_scale"].scale))}
    family = "clip"
    if isinstance(layers.get("logit_bias"), LogitBias):
        learned["bias"] = float(ops.convert_to_numpy(layers["logit_bias"].logit_bias))
        family = "siglip"
    towers = {}
    for name, source in (("image", "pixels"), ("text", "tokens")):
        inputs = model.input[source]
        x = outputs_in(model, layers[f"{family}_{name}_marker"])[-1]
        head = layers[f"{name}_head_marker"]
        arguments = {**head.origin.arguments, **learned}
        x = Marker("head", HEAD, arguments, dtype=head.dtype_policy)(x)
        if family == "siglip":
            x = layers["image_pooling"](x) if name == "image" else token(x, x.shape[1] - 1)
        elif name == "image":
            x = layers["image_final_norm"](token(x, 0))
        else:
            x = layers["text_pooling"](x, inputs)
        if f"{name}_projection" in layers:
            x = layers[f"{name}_projection"](x)
        x = layers[f"{name}_normalize"](x)
        towers[name] = derived_model(model, inputs, x, f"{family}_{name}")
    return towers


def tower_arguments(
    tower: str,
    tower_builder: Callable[..., Model],
    own: Mapping[str, Any],
    more: Mapping[str, Any] | None,
) -> Arguments:
    """The arguments of a tower's builder."""
    more = dict(more or {})
    known = list(inspect.signature(tower_builder).parameters)
    wrong = [name for name in more if name in own or name not in known or name == "name"]
    if wrong:
        free = [name for name in known if name not in own and name != "name"]
        raise ValueError(f"{tower}= must have arguments among {free}, got {wrong[0]!r}")
    return {**more, **own}


@keras.saving.register_keras_serializable("keras_tfm")
class LogitScale(RematerializedLayer):
    """The learned scale of a contrastive model: exp(s), the same for every row.

    Args:
        initial: float, initial value of s.
        maximum: float, the largest scale: s is clipped to its logarithm after each step. None: s is
            not clipped.

    Call arguments:
        x: tensor (B, ...), of which only the batch size is used.

    Returns:
        Float tensor (B, 1), float32.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.models.vision.clip import LogitScale
    >>> np.asarray(LogitScale(0.0)(np.zeros((2, 3), "float32"))).tolist()
    [[1.0], [1.0]]
    """

    def __init__(
        self, initial: float = math.log(1 / 0.07), maximum: float | None = 100.0, **kwargs: Any
    ):
        # float32: in bfloat16 the exponential of 4.6 is off by 3 %.
        super().__init__(**{"dtype": "float32", **kwargs})
        self.supports_masking = False  # the output has another shape
        check_number("initial", initial)
        check_number("maximum", maximum, optional=True)
        self.initial = initial
        self.maximum = maximum

    def build(self, x_shape: Shape) -> None:
        """Creates s."""
        self.logit_scale = self.add_weight(
            name="logit_scale",
            shape=(),
            initializer=keras.initializers.Constant(self.initial),
            constraint=None if self.maximum is None else _AtMost(math.log(self.maximum)),
            aggregation="mean",  # replicas clip it alike
        )
        self.built = True

    @property
    def scale(self) -> Tensor:
        """exp(s), a scalar."""
        return ops.exp(ops.convert_to_tensor(self.logit_scale))

    def call(self, x: Tensor) -> Tensor:
        """(B, ...) -> (B, 1)."""
        ones = ops.ones((ops.shape(x)[0], 1), self.compute_dtype)
        return ones * ops.cast(self.scale, self.compute_dtype)

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """(B, 1)."""
        return (x_shape[0], 1)


@keras.saving.register_keras_serializable("keras_tfm")
class LogitBias(RematerializedLayer):
    """The learned bias of a sigmoid loss (arXiv:2303.15343): b, the same for every row.

    Args:
        initial: float, initial value of b.

    Call arguments:
        x: tensor (B, ...), of which only the batch size is used.

    Returns:
        Float tensor (B, 1), float32.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.models.vision.clip import LogitBias
    >>> np.asarray(LogitBias(-10.0)(np.zeros((2, 3), "float32"))).tolist()
    [[-10.0], [-10.0]]
    """

    def __init__(self, initial: float = -10.0, **kwargs: Any):
        super().__init__(**{"dtype": "float32", **kwargs})  # as the logits that it is added to
        self.supports_masking = False  # the output has another shape
        check_number("initial", initial)
        self.initial = initial

    def build(self, x_shape: Shape) -> None:
        """Creates b."""
        self.logit_bias = self.add_weight(
            name="logit_bias",
            shape=(),
            initializer=keras.initializers.Constant(self.initial),
        )
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        """(B, ...) -> (B, 1)."""
        ones = ops.ones((ops.shape(x)[0], 1), self.compute_dtype)
        return ones * ops.cast(self.logit_bias, self.compute_dtype)

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """(B, 1)."""
        return (x_shape[0], 1)


class _AtMost(keras.constraints.Constraint):
    """Clips a variable; made by its layer, and not saved."""

    def __init__(self, maximum: float):
        self.maximum = maximum

    def __call__(self, value: Tensor) -> Tensor:
        return ops.minimum(value, self.maximum)
