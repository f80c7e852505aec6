import re

import keras
import numpy as np
import pytest
from blocks import decoder_block, encoder_block

from keras_tfm import layers, models
from keras_tfm.training import layer_decay

SMALL = {"dim": 12, "num_layers": 3, "num_heads": 3, "intermediate_dim": 16}


def classifier():
    keras.utils.set_random_seed(3)
    return models.image_classifier(models.vit(16, 8, **SMALL), num_classes=5)


def moved(model, optimizer):
    """How far a gradient of 1 moves each weight at a rate of 1, by path."""
    weights = model.trainable_weights
    before = [keras.ops.convert_to_numpy(w) for w in weights]
    optimizer.apply([keras.ops.ones(w.shape) for w in weights], weights)
    return {
        w.path: old - keras.ops.convert_to_numpy(w) for w, old in zip(weights, before, strict=True)
    }


def factor_of(path):
    """Of three blocks, by half."""
    if "encoder" in path:
        block = int(re.search(r"encoder_?(\d?)", path)[1] or 0)
        return 0.5 ** (3 - block)
    return 1.0 if path.startswith(("final_norm", "classifier", "output")) else 0.5**4


def test_rates_of_each_block():
    model, optimizer = classifier(), keras.optimizers.SGD(1.0)
    assert layer_decay(optimizer, model, 0.5) is optimizer
    distances = moved(model, optimizer)
    assert {factor_of(path) for path in distances} == {1.0, 0.5, 0.25, 0.125, 0.0625}
    for path, distance in distances.items():
        np.testing.assert_allclose(distance, factor_of(path), atol=1e-6, err_msg=path)


def test_a_composed_model_with_an_encoder_a_decoder_and_a_nested_model():
    """Embeddings are at the bottom wherever they stand; both stacks are counted in one row."""
    source, target = (keras.Input((None,), dtype="int32", name=x) for x in ("source", "target"))
    table = layers.TokenEmbedding(11, 8, name="table")
    inner = keras.Input((None, 8))
    encoder = keras.Model(inner, encoder_block(16, 2, name="first")(inner), name="encoder")
    y = layers.TokenEmbedding(11, 8, name="other")(target)
    y = decoder_block(16, 2, name="second")(y, encoder(table(source)))
    y = keras.layers.Dense(8, name="head")(y)
    model = keras.Model([source, target], table(y, reverse=True))
    distances = moved(model, layer_decay(keras.optimizers.SGD(1.0), model, 0.5))
    expected = {"table": 0.125, "other": 0.125, "first": 0.25, "second": 0.5, "head": 1.0}
    for path, distance in distances.items():
        name = next(x for x in path.split("/") if x in expected)
        np.testing.assert_allclose(distance, expected[name], atol=1e-6, err_msg=path)


def test_the_steps_are_those_of_parameter_groups_in_pytorch():
    """AdamW with a rate of its own for each block: updates and weight decay, four steps."""
    torch = pytest.importorskip("torch")
    model = classifier()
    optimizer = layer_decay(keras.optimizers.AdamW(0.01, weight_decay=0.3), model, 0.5)
    weights = model.trainable_weights
    tensors = [torch.tensor(keras.ops.convert_to_numpy(w), requires_grad=True) for w in weights]
    reference = torch.optim.AdamW(
        [
            {"params": [x], "lr": 0.01 * factor_of(w.path)}
            for x, w in zip(tensors, weights, strict=True)
        ],
        eps=1e-7,
        weight_decay=0.3,
    )
    rng = np.random.default_rng(5)
    for _ in range(4):
        # None near 0, where the two put epsilon in different places.
        gradients = [
            rng.choice([-1.0, 1.0], w.shape) * rng.uniform(0.5, 2, w.shape) for w in weights
        ]
        gradients = [x.astype("float32") for x in gradients]
        for tensor, gradient in zip(tensors, gradients, strict=True):
            tensor.grad = torch.tensor(gradient)
        reference.step()
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], weights)
    for tensor, weight in zip(tensors, weights, strict=True):
        found = keras.ops.convert_to_numpy(weight)
        expected = tensor.detach().numpy()
        np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=weight.path)


def test_bad_arguments():
    model, optimizer = classifier(), keras.optimizers.SGD(0.1)
    with pytest.raises(ValueError, match=r"rate must be at most 1, got 2"):
        layer_decay(optimizer, model, 2)
    with pytest.raises(ValueError, match="rate must be"):
        layer_decay(optimizer, model, 0)
    with pytest.raises(ValueError, match="that is built"):
        layer_decay(optimizer, keras.Sequential([keras.layers.Dense(3)]))
    plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="with transformer blocks"):
        layer_decay(optimizer, plain)
    layer_decay(optimizer, model)
    with pytest.raises(ValueError, match="called for this optimizer before"):
        layer_decay(optimizer, model)


def test_a_weight_made_later_is_named():
    model = classifier()
    optimizer = layer_decay(keras.optimizers.SGD(0.1, weight_decay=0.1), model)
    later = keras.Variable([1.0], name="later")
    optimizer.build([later])
    with pytest.raises(ValueError, match="no learning rate for later, which was made or became"):
        optimizer.apply([keras.ops.ones((1,))])


def test_weights_of_the_model_itself_are_behind_the_blocks():
    class Scaled(keras.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.scale = self.add_weight(name="scale", shape=(1,), initializer="ones")

    inner = classifier()
    model = Scaled(inputs=inner.inputs, outputs=inner.outputs)
    optimizer = layer_decay(keras.optimizers.SGD(0.5), model, 0.5)
    weights = model.trainable_weights
    optimizer.apply([keras.ops.ones(w.shape) for w in weights], weights)
    assert keras.ops.convert_to_numpy(model.scale).tolist() == [0.5]
