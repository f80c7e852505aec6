"""The head for sentence embeddings: pooling, optional projections, a normalisation."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_tfm.arguments import check_integer
from keras_tfm.layers import SequencePooling
from keras_tfm.layers.types import Activation, DType, Initializer, Tensor
from keras_tfm.models.heads.head_base import head_base
from keras_tfm.models.identity import head
from keras_tfm.models.model import Model


@head
def sentence_embedding(
    model: keras.Model,
    pooling: str = "mean",
    normalize: bool = True,
    projection_dim: int | Sequence[int] | None = None,
    activation: Activation | Sequence[Activation | None] | None = None,
    projection_bias: bool | Sequence[bool] = True,
    dimensions: int | None = None,
    max_seq_length: int | None = None,
    prompts: Mapping[str, str] | None = None,
    default_prompt: str | None = None,
    features: Tensor | str | None = None,
    kernel_initializer: Initializer | None = None,
    dtype: DType = None,
) -> Model:
    """Adds a head for sentence embeddings (B, D), for search, clustering and deduplication.

    Sentence-BERT (arXiv:1908.10084): the features are pooled, optionally projected, and divided by
    their Euclidean norm. The inner product of two vectors is then the cosine similarity of their
    texts.

    The first numbers of a vector of Matryoshka embeddings (arXiv:2205.13147) are an embedding, too.
    `dimensions` cuts them in the model; the functions that embed texts have such an argument, too.

    Args:
        model: functional model, such as `models.bert(...)`.
        pooling: str, how token features are combined: a mode of `layers.SequencePooling`.
        normalize: bool, whether vectors are scaled to length 1.
        projection_dim: int, units of a dense layer after the pooling, or a list of several layers'.
            Default: no such layer.
        activation: str or function, activation of these layers, or a list with one for each.
            Default: linear.
        projection_bias: bool, whether these layers add a bias, or a list with one for each.
        dimensions: int, the first numbers of each vector, before it is scaled to length 1. Default:
            all.
        max_seq_length: int, the most tokens of a text. `generation.embed` and `runtime.Model.embed`
            truncate longer texts; the model itself takes any length. Default: no limit.
        prompts: dict from a text's role to its prefix, such as {"query": "query: "}. An exported
            file stores them; `generation.embed` and `runtime.Model.embed` add them.
        default_prompt: str, name of the prompt that is used if none is chosen. Default: no prompt.
        features, kernel_initializer, dtype: see `keras_tfm.models.heads.text_heads`.

    Raises:
        ValueError: unknown pooling; `activation` without `projection_dim`, or a list of another
            length; more `dimensions` than a vector has; `default_prompt` is not among the prompts.
        TypeError: prompts that are not texts; a size that is not an integer.

    Example:

    >>> from keras_tfm.models import bert, sentence_embedding
    >>> model = bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, segments=False)
    >>> sentence_embedding(model).output.shape
    (None, 8)
    """
    prompts = dict(prompts or {})
    for name, prompt in prompts.items():
        if not isinstance(name, str) or not isinstance(prompt, str):
            raise TypeError(f"prompts must map names to texts, got {name!r}: {prompt!r}")
    if default_prompt is not None and default_prompt not in prompts:
        raise ValueError(f"default_prompt must be one of {list(prompts)}, got {default_prompt!r}")
    if activation is not None and projection_dim is None:
        raise ValueError(f"activation is for projection_dim=, got {activation!r} without it")
    check_integer("dimensions", dimensions, optional=True)
    check_integer("max_seq_length", max_seq_length, optional=True)
    widths = [] if projection_dim is None else _each("projection_dim", projection_dim)
    activations = _each("activation", activation, len(widths))
    biases = _each("projection_bias", projection_bias, len(widths))
    base = head_base(model, features, kernel_initializer, dtype)
    x = base.mark(base.features, prompts=prompts)
    x = SequencePooling(pooling, dtype=base.dtype, name="pooling")(x)
    for i, width in enumerate(widths):
        x = base.dense(width, projection_name(i), activations[i], biases[i])(x)
    if dimensions is not None and dimensions > x.shape[-1]:
        raise ValueError(
            f"dimensions must be at most {x.shape[-1]}, the width of the vectors, got {dimensions}"
        )
    if dimensions is not None:
        x = x[:, :dimensions]
    if normalize:
        x = keras.layers.UnitNormalization(dtype=base.dtype, name="normalize")(x)
    return base.with_outputs(x)


def projection_name(i: int) -> str:
    """The name of the i-th dense layer."""
    return f"projection_{i}" if i else "projection"


def _each(name: str, given: Any, count: int | None = None) -> list[Any]:
    """The value of each dense layer, from one for all or a list."""
    if isinstance(given, list | tuple):
        if count is not None and len(given) != count:
            raise ValueError(f"{name} must have one entry for each of {count} layers, got {given}")
        return list(given)
    return [given] * (1 if count is None else count)
