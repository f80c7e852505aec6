"""The head for sentence embeddings: pooling, an optional projection, a normalisation."""

from collections.abc import Mapping

import keras

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
    projection_dim: int | None = None,
    activation: Activation | None = None,
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

    Args:
        model: functional model, such as `models.bert(...)`.
        pooling: str, how token features are combined: a mode of `layers.SequencePooling`.
        normalize: bool, whether vectors are scaled to length 1.
        projection_dim: int, units of a dense layer after the pooling. Default: no such layer.
        activation: str or function, activation of that dense layer. Default: linear.
        prompts: dict from a text's role to its prefix, such as {"query": "query: "}. An exported
            file stores them, and `runtime.Model.embed` adds them.
        default_prompt: str, name of the prompt that is used if none is chosen. Default: no prompt.
        features, kernel_initializer, dtype: see `keras_tfm.models.heads.text_heads`.

    Raises:
        ValueError: unknown pooling; `activation` without `projection_dim`; `default_prompt` is not
            among the prompts.
        TypeError: prompts that are not texts.

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
    base = head_base(model, features, kernel_initializer, dtype)
    x = base.mark(base.features, prompts=prompts)
    x = SequencePooling(pooling, dtype=base.dtype, name="pooling")(x)
    if projection_dim is not None:
        x = base.dense(projection_dim, "projection", activation)(x)
    if normalize:
        x = keras.layers.UnitNormalization(dtype=base.dtype, name="normalize")(x)
    return Model(model.input, x, name=model.name)
