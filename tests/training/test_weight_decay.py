import re

import families
import keras
import numpy as np
import pytest
from blocks import decoder_block, encoder_block, head_norms
from execution import saving, tensorflow_only

from keras_tfm import layers
from keras_tfm.training import exclude_from_weight_decay


def model_of_everything():
    ids = keras.Input((None,), dtype="int32")
    embedding = layers.TokenEmbedding(11, 8, name="tokens")
    x = layers.PositionEmbedding(16, name="positions")(embedding(ids))
    x = encoder_block(16, 2, position=layers.RelativePositionBias(), name="encoder")(x)
    x = decoder_block(
        16, 2, cross_attention=False, position=layers.RelativePositionEmbedding(4), gated=True,
        **head_norms(), layer_scale=0.1, norm="rms_norm", name="decoder",
    )(x)  # fmt: skip
    # Keras's own: a bias of two axes.
    x = keras.layers.EinsumDense("btd,dhk->bthk", (None, 2, 4), bias_axes="hk", name="einsum")(x)
    x = keras.layers.Reshape((-1, 8))(x)
    return keras.Model(ids, embedding(x, reverse=True))


KERNELS = [
    *("encoder/self_attention/output_projection/kernel",),
    *("encoder/self_attention/query_key_value/kernel",),
    *("encoder/feed_forward/inner/kernel", "encoder/feed_forward/outer/kernel"),
    *("decoder/self_attention/output_projection/kernel",),
    *("decoder/self_attention/query_key_value/kernel",),
    *("decoder/feed_forward/inner/kernel", "decoder/feed_forward/outer/kernel"),
    "einsum/kernel",
]
TABLES = [
    *("tokens/embeddings", "positions/positions"),
    "encoder/self_attention/relative_position_bias/table",
    "decoder/self_attention/relative_position_embedding/key_table",
    "decoder/self_attention/relative_position_embedding/value_table",
]


@pytest.mark.parametrize("name", ["olmo2", "deberta-v2", "detr", "vit", "siglip", "lxmert"])
def test_only_kernels_of_families_shrink(name):
    """Also not the norms of all heads, DeBERTa's distances, DETR's queries, tokens and probes."""
    model = families.small_model(name)
    optimizer = exclude_from_weight_decay(keras.optimizers.AdamW(weight_decay=0.1), model)
    shrink = [w.path for w in model.trainable_weights if optimizer._use_weight_decay(w)]
    assert shrink
    assert [path for path in shrink if not path.endswith("kernel")] == []


@pytest.mark.parametrize("embeddings", [True, False])
def test_only_kernels_shrink(embeddings):
    """Gradients of 0 and a decay of 1/2 at a rate of 1/4: by 1/8 a step, or not at all."""
    model = model_of_everything()
    for weight in model.weights:
        weight.assign(keras.ops.ones(weight.shape))
    optimizer = keras.optimizers.AdamW(0.25, weight_decay=0.5)
    assert exclude_from_weight_decay(optimizer, model, embeddings) is optimizer
    weights = model.trainable_weights
    optimizer.apply([keras.ops.zeros(w.shape) for w in weights], weights)
    values = {re.sub(r"_\d+/", "/", w.path): keras.ops.convert_to_numpy(w) for w in weights}
    shrunk = {path for path, x in values.items() if not np.all(x == 1.0)}
    assert shrunk == {*KERNELS, *(() if embeddings else TABLES)}
    assert np.all(keras.ops.convert_to_numpy(model.get_layer("einsum").kernel) == 0.875)


@saving
@tensorflow_only
def test_a_loaded_model_needs_it_again_and_takes_it(tmp_path):
    """Without an error there are no gradients: what changes has decayed."""
    x = keras.Input((1,))
    model = keras.Model(x, keras.layers.Dense(1, bias_initializer="ones")(x))
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=1.0)
    model.compile(exclude_from_weight_decay(optimizer, model), "mse")
    model.fit(np.zeros((1, 1)), np.ones((1, 1)), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    exclude_from_weight_decay(loaded.optimizer, loaded)
    loaded.fit(np.zeros((1, 1)), np.ones((1, 1)), verbose=0)
    kernels, biases = zip(*(x.get_weights() for x in (model, loaded)), strict=True)
    assert biases[0] == biases[1] == 1.0
    assert kernels[1] == pytest.approx(0.9 * kernels[0], rel=1e-6)


def test_through_an_optimizer_that_scales_the_loss():
    model = model_of_everything()
    inner = keras.optimizers.AdamW(0.25, weight_decay=0.5)
    exclude_from_weight_decay(keras.optimizers.LossScaleOptimizer(inner), model)
    inner.build(model.trainable_weights)
    assert not inner._use_weight_decay(model.get_layer("tokens").embeddings)
    assert inner._use_weight_decay(model.get_layer("einsum").kernel)


def test_what_there_is_nothing_to_exclude_of():
    model = model_of_everything()
    with pytest.raises(ValueError, match=r"with a weight_decay, got adam.* with none"):
        exclude_from_weight_decay(keras.optimizers.Adam(), model)
    empty = keras.Sequential([keras.layers.Dense(3)])
    with pytest.raises(ValueError, match=r"is built, got sequential.* without weights"):
        exclude_from_weight_decay(keras.optimizers.AdamW(), empty)
