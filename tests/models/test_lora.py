"""`enable_lora`: which weights train, and what is refused."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import tensorflow_only
from grids import first_of

from keras_tfm import models

SMALL = {"dim": 8, "num_layers": 2, "num_heads": 2, "intermediate_dim": 11}
IDS = np.array([[3, 4, 5], [6, 7, 0]], "int32")


def classifier():
    keras.utils.set_random_seed(0)
    return models.sequence_classifier(models.gpt(13, **SMALL, max_length=5), 3)


@pytest.mark.parametrize("names", first_of([["query_key_value"], None]))
def test_only_adapters_and_the_head_train(names):
    model = classifier()
    expected, before = to_numpy(model(IDS)), {x.path: to_numpy(x) for x in model.weights}
    assert models.enable_lora(model, 2, alpha=4, names=names) == (2 if names else 8)
    assert_close(model(IDS), expected, 0.0)  # B starts at zero
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(IDS, np.ones((2, 3)), epochs=2, verbose=0)
    changed = [x.path for x in model.weights if np.any(to_numpy(x) != before.get(x.path, 0))]
    inside = {x.path for x in models.backbone(model).weights}
    head = [x.path for x in model.weights if x.path not in inside]
    assert head and set(head) < set(changed)
    assert all("lora" in path or path in head for path in changed)
    assert {x.path for x in model.trainable_weights} == set(changed)
    assert any("decoder_1" in path and path.endswith("lora_kernel_b") for path in changed)


@tensorflow_only
@pytest.mark.parametrize("quantization", first_of(["float32", "int8"]))
def test_a_file_has_the_adapters_merged(quantization, tmp_path):
    """It is as large as the file of the model without adapters, and verified against the model."""
    from keras_tfm.export import export_tflite

    plain, model, rng = classifier(), classifier(), np.random.default_rng(0)
    models.enable_lora(model, 2)
    for variable in model.variables:
        if variable.name == "lora_kernel_b":
            variable.assign(rng.normal(size=variable.shape))
    sizes = [
        export_tflite(x, tmp_path / name, ["predict"], quantization, source_length=3).bytes
        for x, name in ((plain, "plain.tflite"), (model, "adapted.tflite"))
    ]
    assert abs(sizes[0] - sizes[1]) < 64  # names; an adapter has 32 weights or more


def by_hand():
    x = keras.Input((4,))
    return keras.Model(x, keras.layers.Dense(3)(x), name="own")


def adapted():
    model = classifier()
    models.enable_lora(model, 2)
    return model


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        (by_hand, {"rank": 2}, TypeError, "made by a builder of keras_tfm.models, got own; for"),
        (classifier, {"rank": 0}, ValueError, "rank must be at least 1, got 0"),
        (classifier, {"rank": "2"}, TypeError, "rank must be an integer, got '2'"),
        (classifier, {"rank": 2, "names": ["wq"]}, ValueError, r"query_key_value,.*got \['wq'\]"),
        (classifier, {"rank": 2, "names": []}, ValueError, r"names must be of .*, got \[\]"),
        (adapted, {"rank": 2}, ValueError, "has adapters already"),
    ],
)
def test_what_cannot_be_adapted_is_refused(make, options, error, message):
    model = make()
    count = len(model.trainable_weights)
    with pytest.raises(error, match=message):
        models.enable_lora(model, **options)
    assert len(model.trainable_weights) == count
