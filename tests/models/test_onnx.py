"""`model.export(format="onnx")`, Keras's own, for batches and lengths that are unknown."""

import keras
import numpy as np
import pytest
from compare import assert_close
from execution import tensorflow_only

from keras_tfm import layers, models

SMALL = {"dim": 6, "num_layers": 1, "num_heads": 2, "intermediate_dim": 11}


def attention(**options):
    x = keras.Input((None, 12), name="x")
    return keras.Model(x, layers.MultiHeadSelfAttention(2, **options)(x))


MODELS = {
    "self-attention": attention,
    "causal": lambda: attention(causal=True),
    "grouped": lambda: attention(num_key_value_heads=1),
    "rotary": lambda: attention(position=layers.RotaryEmbedding()),
    "Shaw": lambda: attention(position=layers.RelativePositionEmbedding(3)),
    # tf2onnx has no Erfc, the operator of TensorFlow's exact GELU; the test below shows it.
    "bert": lambda: models.bert(13, **SMALL, activation=layers.gelu_tanh, max_length=9),
    "gpt": lambda: models.gpt(13, **SMALL, max_length=9),
    "t5": lambda: models.t5(13, **SMALL),
    "transformer": lambda: models.transformer(13, **SMALL),
}


@tensorflow_only
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_onnx_files_run_for_every_length(name, tmp_path):
    pytest.importorskip("tf2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    model = MODELS[name]()
    rng = np.random.default_rng(0)

    def draw(x, batch, length):
        shape = (batch, length, *x.shape[2:])
        if x.dtype == "float32":
            return rng.normal(size=shape).astype("float32")
        return rng.integers(0, 2 if x.name == "segments" else 13, shape, "int32")

    def arrays(batch, length):
        return {x.name: draw(x, batch, length) for x in model.inputs}

    def run(given):
        structure = keras.tree.map_structure(lambda x: given[x.name], model.input)
        return keras.tree.flatten(model(structure, training=False))

    run(arrays(2, 4))
    model.export(tmp_path / "model.onnx", format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    for batch, length in ((1, 1), (2, 5), (3, 8)):
        given = arrays(batch, length)
        named = {x.name: given[x.name] for x in session.get_inputs()}
        for actual, wanted in zip(session.run(None, named), run(given), strict=True):
            assert_close(actual, wanted, 1e-5)


@tensorflow_only
@pytest.mark.filterwarnings("ignore")
def test_the_exact_gelu_is_a_limit_of_keras_itself(tmp_path):
    """If this fails, docs/troubleshooting.md and the cases above can have the exact one."""
    pytest.importorskip("tf2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    x = keras.Input((None, 4), name="x")
    model = keras.Model(x, keras.layers.Dense(3, activation="gelu")(x))
    model(np.ones((1, 2, 4), "float32"))
    model.export(tmp_path / "model.onnx", format="onnx", verbose=False)
    with pytest.raises(Exception, match="No Op registered for Erfc"):
        onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
