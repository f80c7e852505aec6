"""Classifiers on encoder-decoder models: the decoder reads the source again, shifted right."""

import keras
from keras import ops

from keras_tfm.layers import SequencePooling
from keras_tfm.layers.types import Tensor
from keras_tfm.models import identity
from keras_tfm.models.derived_model import derived_model
from keras_tfm.models.model import Model

# The families whose classifiers read the source as target, too.
SHIFTED = ("bart", "mbart", "pegasus", "marian", "m2m_100", "t5", "t5gemma", "t5gemma2")


def with_shifted_source(model: keras.Model) -> keras.Model:
    """The model with one input, `source`, which is also its target, shifted right.

    For models with a start token and an end token, such as `bart` (arXiv:1910.13461, section 3.1).
    Other models are returned as they are. The layers and weights are those of the model.
    """
    family, arguments = identity.identity_of(model).family, identity.identity_of(model).arguments
    x = identity.features_of(model)
    if family not in SHIFTED or x is None or not isinstance(model.input, dict):
        return model
    source = model.input["source"]
    if family == "mbart":
        # The last token of a source is its language, with which the target starts.
        real = ops.cast(ops.not_equal(source, arguments["pad_id"]), "int32")
        # Not their number: the padding id may be a token between others.
        columns = ops.cumsum(ops.ones_like(real), axis=1) - 1
        last = ops.max(real * columns, axis=1, keepdims=True)
        first = ops.take_along_axis(source, last, axis=1)
    else:
        start = arguments["start_id"]
        first = ops.full_like(source[:, :1], arguments["pad_id"] if start is None else start)
    shifted = ops.concatenate([first, source[:, :-1]], axis=1)
    features = Model(model.input, x)
    return derived_model(model, source, features.call({"source": source, "target": shifted}))


def end_token_features(model: keras.Model, features: Tensor) -> Tensor | None:
    """Features (B, D) of the decoder at the last end token of the source.

    They have seen the whole text. Zeros for a row without an end token. None if the model does not
    read its source as target, see `with_shifted_source`.
    """
    if not _reads_source_as_target(model):
        return None
    end_id = identity.identity_of(model).arguments["end_id"]
    if not isinstance(end_id, int):
        raise ValueError(f"{model.name}: this head needs one end_id, got {end_id!r}")
    marker = identity.features_marker(model)
    assert marker is not None
    pooling = SequencePooling("last", dtype=marker.dtype_policy, name="pooling")
    return pooling(features, mask=ops.equal(model.input, end_id))


def shifted_mask(model: keras.Model) -> Tensor | None:
    """The mask (B, T) of a target that is the source, shifted right: True for tokens.

    The last of them has seen the whole text, unless no padding follows the text. None as in
    `end_token_features`.
    """
    if not _reads_source_as_target(model):
        return None
    real = ops.not_equal(model.input, identity.identity_of(model).arguments["pad_id"])
    return ops.concatenate([ops.ones_like(real[:, :1]), real[:, :-1]], axis=1)


def has_decoder(model: keras.Model) -> bool:
    """Whether an encoder-decoder model has features of its decoder: it is not the encoder alone."""
    return bool(identity.tensors_of(model, "features"))


def _reads_source_as_target(model: keras.Model) -> bool:
    family = identity.identity_of(model).family
    return family in SHIFTED and has_decoder(model) and not isinstance(model.input, dict)
