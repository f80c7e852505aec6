"""Draft heads: further outputs that guess the tokens after the next one."""

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.keras_internals import functional_of
from keras_tfm.models.derived_model import derived_model
from keras_tfm.models.features import recompute, with_features
from keras_tfm.models.heads.head_base import unused_name
from keras_tfm.models.model import Model


def with_draft_heads(model: keras.Model, num_heads: int, name: str | None = None) -> Model:
    """The model with heads that draft tokens, for `generation.Drafted(DraftHeads())`.

    Head i guesses the token i places after the one that the model predicts. With the features h
    (B, T, D) before the model's projection to logits,

    drafts_i = projection(h + silu(W_i h + b_i)), i = 1 .. n,

    as in "Blockwise Parallel Decoding for Deep Autoregressive Models" (arXiv:1811.03115), with the
    residual heads of Medusa (arXiv:2401.10774). The projection is the model's own, so the heads add
    n (D + 1) D weights. W and b start at zero: each head begins with the model's own prediction.

    The heads are trained by `fit` with `training.DraftLoss` for the second output, together with
    the model or, if the layers of `model` were made untrainable, alone. They change neither the
    model's logits nor, in generation, its tokens.

    Args:
        model: functional model, or a `keras.Sequential` that begins with an `Input`, with logits
            (B, T, V) over the ids of the generated input. Its layers are shared.
        num_heads: int, number of heads (n).
        name: str, the name of the result. Default: the model's.

    Returns:
        A functional model with two outputs: the model's logits (B, T, V), and drafts (B, T, n, V).

    Raises:
        TypeError: `num_heads` is not an integer.
        ValueError: the model has several outputs, or `num_heads` is below 1.

    Example:

    >>> from keras_tfm.models import gpt, with_draft_heads
    >>> model = gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> [x.shape for x in with_draft_heads(model, 3).outputs]
    [(None, None, 11), (None, None, 3, 11)]
    """
    check_integer("num_heads", num_heads)
    model = functional_of(model)
    if len(model.outputs) != 1:
        raise ValueError(
            f"draft heads need a model with one output, the logits, got {len(model.outputs)}"
        )
    logits, features = with_features(model).outputs
    dim, size = features.shape[-1], logits.shape[-1]
    dense = keras.layers.Dense(
        num_heads * dim,
        activation="silu",
        kernel_initializer="zeros",
        dtype=features.dtype,
        name=unused_name(model, "draft_heads"),
    )
    # An operation of `ops` drops the mask, about which the layer Reshape would warn.
    h = keras.layers.Reshape((-1, num_heads, dim))(ops.expand_dims(dense(features), 2))
    h = h + ops.expand_dims(features, 2)
    # The heads of a token beside each other, as tokens are: projections take (B, T, D).
    drafts = recompute(logits, features, keras.layers.Reshape((-1, dim))(h))
    drafts = keras.layers.Reshape((-1, num_heads, size))(drafts)
    return derived_model(model, model.input, [logits, drafts], name)
