"""Classifiers on encoder-decoder models: the decoder reads the source again, shifted right."""

import keras
from keras import ops

from keras_tfm.layers import SequencePooling
from keras_tfm.layers.types import Tensor
from keras_tfm.models import identity
from keras_tfm.models.model import Model

# The families whose classifiers read the source as target, too.
SHIFTED = ("bart", "mbart", "pegasus", "marian", "m2m_100")


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
        first = ops.full_like(source[:, :1], arguments["start_id"])
    shifted = ops.concatenate([first, source[:, :-1]], axis=1)
    features = Model(model.input, x, name=model.name)
    return Model(source, features.call({"source": source, "target": shifted}), name=model.name)


def end_token_features(model: keras.Model, features: Tensor) -> Tensor | None:
    """Features (B, D) of the decoder at the last end token of the source.

    They have seen the whole text. Zeros for a row without an end token. None if the model does not
    read its source as target, see `with_shifted_source`.
    """
    if identity.identity_of(model).family not in SHIFTED or isinstance(model.input, dict):
        return None
    end_id = identity.identity_of(model).arguments["end_id"]
    if not isinstance(end_id, int):
        raise ValueError(f"{model.name}: this head needs one end_id, got {end_id!r}")
    marker = identity.features_marker(model)
    assert marker is not None
    pooling = SequencePooling("last", dtype=marker.dtype_policy, name="pooling")
    return pooling(features, mask=ops.equal(model.input, end_id))
