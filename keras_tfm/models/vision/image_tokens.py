"""What vision-language models share: an image encoder, and its features inside the text."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm import layers
from keras_tfm.arguments import check_integer
from keras_tfm.layers.embeddings.lookup import as_integers
from keras_tfm.layers.images.patch_embedding import as_pair
from keras_tfm.layers.types import Arguments, Config, DType, Shape, Tensor
from keras_tfm.models.vision.vit import PixelEncoder

# SigLIP of ViT-B's size is the default; this is its shape-optimised size.
SO400M: Arguments = {"dim": 1152, "num_layers": 27, "num_heads": 16, "intermediate_dim": 4304}


def encode_images(
    image: Mapping[str, object] | None, num_images: int | None, dtype: DType, **options: object
) -> tuple[Tensor, Tensor, PixelEncoder]:
    """SigLIP's encoder, without pooling: the symbolic input and features (B N, patches, D).

    Args:
        image: dict, arguments of the encoder that differ from those of SigLIP's base size.
        num_images: int, number of images of each row (N). Default: one, without an axis for it.
        dtype: dtype policy of the layers.
        options: further arguments of `PixelEncoder`.

    Returns:
        The input, the features, and the parts of the encoder.
    """
    check_integer("num_images", num_images, optional=True)
    arguments = image_encoder_arguments(image) | options
    parts = PixelEncoder(dropout=0.0, dtype=dtype, prefix="image_", class_token=False, **arguments)
    pixels, x, _ = parts.encode(num_images)
    norm = layers.LayerNormalization(
        epsilon=parts.layer_norm_epsilon, dtype=dtype, name="image_final_norm"
    )
    return pixels, norm(x), parts


def patch_grid(
    image_size: int | Sequence[int], patch_size: int | Sequence[int], name: str, factor: int
) -> tuple[int, int]:
    """The rows and columns of patches, which the argument `name` must divide."""
    check_integer(name, factor)
    sizes, patches = as_pair("image_size", image_size), as_pair("patch_size", patch_size)
    rows, columns = (size // patch for size, patch in zip(sizes, patches, strict=True))
    if rows % factor or columns % factor:
        raise ValueError(
            f"{name} must divide the rows and columns of patches, {rows} and {columns}, got "
            f"{factor}"
        )
    return rows, columns


def image_encoder_arguments(given: Mapping[str, object] | None) -> Arguments:
    """The arguments of the image encoder, with the defaults of SigLIP's base size."""
    known: Arguments = {
        "dim": 768, "num_layers": 12, "num_heads": 12, "intermediate_dim": 3072,
        "activation": layers.gelu_tanh, "layer_norm_epsilon": 1e-6, "attention_dropout": 0.0,
    }  # fmt: skip
    wrong = [name for name in given or {} if name not in known]
    if wrong:
        raise ValueError(f"image= must have arguments among {list(known)}, got {wrong[0]!r}")
    arguments = {**known, **(given or {})}
    for name in ("dim", "num_layers", "num_heads", "intermediate_dim"):
        check_integer(f"image[{name!r}]", arguments[name])
    return arguments


def place_features(
    x: Tensor, image_id: int, num_images: int | None, vocabulary_size: int, dtype: DType
) -> Callable[[Tensor, Tensor], Tensor]:
    """A function of tokens (B, T) and their embeddings that puts features in their places.

    Args:
        x: the features of images, (B N, L, D).
        image_id: int, the placeholder token.
        num_images: int, N; None: one image a row.
        vocabulary_size: int, which the token must be in.
        dtype: dtype policy of the layer.
    """
    check_integer("image_id", image_id, minimum=0)
    if image_id >= vocabulary_size:
        raise ValueError(
            f"image_id must be in the vocabulary, 0..{vocabulary_size - 1}, got {image_id}"
        )
    group: int | None = None
    if num_images is not None:  # one sequence of the images of a row
        group = x.shape[1]
        x = JoinImages(num_images, name="features")(x)

    def place(tokens: Tensor, embedded: Tensor) -> Tensor:
        layer = layers.ReplacePlaceholders(image_id, group=group, dtype=dtype, name="image_tokens")
        return layer(embedded, tokens, x)

    return place


@keras.saving.register_keras_serializable("keras_tfm")
class JoinImages(keras.layers.Layer):
    """Makes one sequence of the features of N images: (B N, L, D) -> (B, N L, D).

    >>> import numpy as np
    >>> from keras_tfm.models.vision.image_tokens import JoinImages
    >>> JoinImages(3)(np.zeros((6, 7, 8), "float32")).shape
    TensorShape([2, 21, 8])
    """

    def __init__(self, num_images: int, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)
        self.num_images = num_images

    def call(self, x: Tensor) -> Tensor:
        """(B N, L, D) -> (B, N L, D)."""
        return ops.reshape(x, (-1, self.num_images * x.shape[1], x.shape[2]))

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """(B, N L, D)."""
        rows, length, dim = x_shape
        return (
            None if rows is None else rows // self.num_images, self.num_images * length, dim
        )  # fmt: skip

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "num_images": self.num_images}


@keras.saving.register_keras_serializable("keras_tfm")
class PlaceholderRuns(keras.layers.Layer):
    """Numbers the runs of a token, such as the pictures of a text, for `groups` of attention.

    Inside a `DecodingScope`, the runs are those of the step's tokens.

    Args:
        token_id: int, the token.

    >>> import numpy as np
    >>> from keras_tfm.models.vision.image_tokens import PlaceholderRuns
    >>> np.array(PlaceholderRuns(9)(np.array([[9, 9, 3, 9, 4]]))).tolist()
    [[1, 1, 0, 2, 0]]
    """

    def __init__(self, token_id: int, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)
        self.token_id = token_id

    def call(self, tokens: Tensor) -> Tensor:
        """(B, T), integers -> (B, T), int32: 1 in the first run, 2 in the second; 0 elsewhere."""
        found = ops.cast(
            ops.equal(as_integers(tokens, f"{self.name}: tokens"), self.token_id), "int32"
        )
        before = ops.pad(found, [(0, 0), (1, 0)])[:, :-1]
        return found * ops.cumsum(found * (1 - before), axis=1)

    def compute_output_spec(self, tokens: keras.KerasTensor) -> keras.KerasTensor:
        """(B, T), int32."""
        return keras.KerasTensor(tokens.shape, "int32")

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "token_id": self.token_id}
