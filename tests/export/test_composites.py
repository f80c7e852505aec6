"""RMS normalizations as one operator: the same values, and nothing else is touched."""

import numpy as np
import pytest
import tensorflow as tf
from flatbuffers import flexbuffers
from keras_weights import randomize

from keras_tfm import models
from keras_tfm.export import export_tflite
from keras_tfm.export.graph.composites import mark_rms_norms
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.manifest.storage import import_litert

SHAPE, EPSILON = (2, 5, 7), 1e-3
RANDOM = np.random.default_rng(0)
GAMMA = RANDOM.normal(size=SHAPE[-1]).astype("float32")


def root(x, axis=-1):
    return tf.math.rsqrt(tf.reduce_mean(tf.square(x), axis, keepdims=True) + EPSILON)


NORMALIZATIONS = {
    "gamma first": lambda x: (x * GAMMA) * root(x) + 1.0,
    "gamma last": lambda x: (x * root(x)) * GAMMA + 1.0,
    "two": lambda x: (x * root(x)) * GAMMA + (tf.sin(x) * root(tf.sin(x))) * GAMMA[::-1],
}
OTHERS = {
    "another axis": lambda x: (x * root(x, axis=1)) * GAMMA,
    "two axes": lambda x: (x * root(x, axis=(1, 2))) * GAMMA,
    "gamma of rows": lambda x: (x * root(x)) * GAMMA[:5, np.newaxis],
    "a scalar": lambda x: (x * root(x)) * GAMMA[0],
    "gamma is the root": lambda x: (x * root(x)) * root(x),
    "gamma is computed": lambda x: (x * root(x)) * tf.sin(x[0, 0]),
    "of another tensor": lambda x: (tf.sin(x) * root(x)) * GAMMA,
    "used elsewhere": lambda x: (x * root(x)) * GAMMA + x * root(x),
    "the root is a result": lambda x: ((x * root(x)) * GAMMA, root(x)),
    "epsilon of each row": lambda x: (
        x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, True) + GAMMA[:5, np.newaxis] ** 2)
    ) * GAMMA,
}  # fmt: skip


def converted(function):
    x = tf.TensorSpec(SHAPE, tf.float32)
    concrete = tf.function(function).get_concrete_function(x)
    return tf.lite.TFLiteConverter.from_concrete_functions([concrete]).convert()


def run(content, x):
    interpreter = import_litert("interpreter").Interpreter(model_content=content, num_threads=1)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def with_rms_norms(content):
    model = flatbuffer.read(content)
    mark_rms_norms(model)
    return flatbuffer.write(model)


def operators(content):
    """The names of the operators of each graph."""
    model, schema = flatbuffer.read(content), import_litert("schema_py_generated")
    names = {x: name for name, x in vars(schema.BuiltinOperator).items() if isinstance(x, int)}
    codes = [names[max(x.builtinCode, x.deprecatedBuiltinCode)] for x in model.operatorCodes]
    return [[codes[x.opcodeIndex] for x in graph.operators] for graph in model.subgraphs]


def composites(content):
    model = flatbuffer.read(content)
    found = [x for graph in model.subgraphs for x in graph.operators if x.builtinOptions2]
    return [x.builtinOptions2 for x in found]


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_values_stay_the_same(name):
    function = NORMALIZATIONS[name]
    before = converted(function)
    after = with_rms_norms(before)
    main, inside = operators(after)
    count = 2 if name == "two" else 1
    assert main.count("STABLEHLO_COMPOSITE") == count and "RSQRT" not in main
    assert sorted(inside) == ["ADD", "MEAN", "MUL", "MUL", "RSQRT", "SQUARE"]
    for composite in composites(after):
        attributes = flexbuffers.Loads(bytes(composite.compositeAttributes))
        assert composite.name == b"odml.rms_norm" and composite.decompositionSubgraphIndex == 1
        assert attributes == {"epsilon": pytest.approx(EPSILON, rel=1e-6)}
    x = RANDOM.normal(size=SHAPE).astype("float32")
    np.testing.assert_allclose(run(after, x), function(tf.constant(x)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run(after, x), run(before, x), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_normalization_stays(name):
    content = converted(OTHERS[name])
    assert "RSQRT" in operators(content)[0]
    assert operators(with_rms_norms(content)) == operators(content)


@pytest.mark.default
def test_a_language_model(tmp_path):
    """Two blocks have five normalizations, of other shapes in each signature."""
    model = randomize(models.llama(13, dim=8, num_layers=2, num_heads=2, intermediate_dim=12))
    path = tmp_path / "llama.tflite"
    settings = {"prompt_length": 4, "max_length": 9, "verify": False}
    export_tflite(model, path, ["prefill", "decode"], **settings)
    after = with_rms_norms(path.read_bytes())
    graphs = operators(after)
    counts = [x.count("STABLEHLO_COMPOSITE") for x in graphs]
    # A prefill ends with the last keys and values: two norms fewer.
    assert sorted(counts) == [0, 0, 3, 5]
    assert sum("RSQRT" in x for x in graphs) == 2


def test_layer_normalization_stays(tmp_path):
    model = randomize(models.gpt(13, dim=8, num_layers=1, num_heads=2, intermediate_dim=12))
    path = tmp_path / "gpt.tflite"
    export_tflite(model, path, ["predict"], source_length=4, verify=False)
    content = path.read_bytes()
    assert any("RSQRT" in x for x in operators(content))
    assert operators(with_rms_norms(content)) == operators(content)
