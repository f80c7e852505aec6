"""Files in float16, in which GPUs compute by default: numbers end at 65504."""

import numpy as np
import pytest
import tensorflow as tf
from families import small_model
from keras_weights import randomize

from keras_tfm import models, runtime
from keras_tfm.export import Float16Check, check_in_float16, export_tflite
from keras_tfm.export.graph.float16_norms import bound_norms
from keras_tfm.export.graph.limited_roots import limit_roots
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.manifest.storage import import_litert

WIDTH = 300  # more than 128, so that rows are divided by a multiple of their mean


def rms(x, epsilon):
    root = tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + epsilon)
    return x * root


def of_differences(x, epsilon):
    center = x - tf.reduce_mean(x, -1, keepdims=True)
    return center * tf.math.rsqrt(tf.reduce_mean(center * center, -1, keepdims=True) + epsilon)


def squared_difference(x, epsilon):
    mean = tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.math.squared_difference(x, mean), -1, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + epsilon)


NORMS = {
    "rms": rms,
    "of differences": of_differences,
    "squared difference": squared_difference,
    "two axes": lambda x, epsilon: (
        x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), (1, 2), keepdims=True) + epsilon)
    ),
}


def of_length_1(x, limit=1e12):
    inverse = tf.math.rsqrt(tf.reduce_sum(tf.square(x), -1, keepdims=True))
    return x * tf.minimum(inverse, limit)


OTHERS = {
    "a small limit": lambda x: of_length_1(x, 100.0),
    "no mean": lambda x: x * tf.math.rsqrt(tf.reduce_sum(tf.square(x), -1, True) + 1e-5),
    "a product of two": lambda x: tf.math.rsqrt(tf.reduce_mean(x * tf.sin(x), -1, True) + 1e-5),
    "the mean is a result": lambda x: (
        tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, True) + 1e-5),
        tf.reduce_mean(tf.square(x), -1, True),
    ),
    "without the axis": lambda x: tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1) + 1e-5),
}


def rows(size):
    """A row of this size with a single large number, one of normal numbers, and one of zeros."""
    x = np.random.default_rng(0).normal(size=(1, 3, WIDTH)).astype("float32")
    x[0, 0, 7] = size
    x[0, 2] = 0
    return x


def converted(function):
    concrete = tf.function(function).get_concrete_function(tf.TensorSpec((1, 3, WIDTH)))
    return tf.lite.TFLiteConverter.from_concrete_functions([concrete]).convert()


def bounded(content):
    model = flatbuffer.read(content)
    bound_norms(model)
    return flatbuffer.write(model)


def run(content, x):
    interpreter = import_litert("interpreter").Interpreter(model_content=content, num_threads=1)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return [interpreter.get_tensor(y["index"]) for y in interpreter.get_output_details()]


def largest(content, x):
    """The largest number that the file computes."""
    module = import_litert("interpreter")
    interpreter = module.Interpreter(
        model_content=content,
        experimental_op_resolver_type=module.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        experimental_preserve_all_tensors=True,
    )
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    operators = flatbuffer.read(content).subgraphs[0].operators
    computed = [interpreter.get_tensor(int(y)) for one in operators for y in one.outputs]
    return np.max([np.abs(values).max() for values in computed])


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12])
@pytest.mark.parametrize("norm", NORMS)
def test_norms_are_the_same_and_stay_in_range(norm, epsilon):
    plain = converted(lambda x: NORMS[norm](x, epsilon))
    after = bounded(plain)
    for size in (3.0, 60_000.0, 1e-3):
        x = rows(size)
        (expected,), (found,) = run(plain, x), run(after, x)
        # Rounding of float32, relative to the row's largest number.
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=2e-6)
    assert largest(plain, rows(60_000.0)) > 65504 > largest(after, rows(60_000.0))


def test_vectors_of_length_1():
    """`keras.layers.UnitNormalization`; the limit of 1e12 is infinite in float16."""
    plain = converted(of_length_1)
    after = bounded(plain)
    for size in (3.0, 60_000.0, 1e-3):
        x = rows(size)
        (expected,), (found,) = run(plain, x), run(after, x)
        np.testing.assert_allclose(found[:, :2], expected[:, :2], atol=1e-7, rtol=2e-6)
        assert not found[:, 2].any()  # XNNPACK's inverse root of 0 is NaN in the plain file
        limited = flatbuffer.read(plain)  # as every file is
        limit_roots(limited)
        (found,) = run(flatbuffer.write(limited), x)
        np.testing.assert_array_equal(found[:, :2], expected[:, :2])
        assert not found[:, 2].any()
    x = rows(60_000.0)
    assert largest(plain, x) > 65504 > largest(after, x)


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_no_norm_is_left_alone(other):
    model = flatbuffer.read(converted(OTHERS[other]))
    before = [len(x.operators) for x in model.subgraphs]
    bound_norms(model)
    assert [len(x.operators) for x in model.subgraphs] == before


def decoder(scale):
    """A decoder with embeddings of this size, as the residual streams of language models have."""
    model = randomize(small_model("llama"))
    table = model.get_layer("embedding").weights[0]
    table.assign(table * scale)
    return model


def exported(model, path, **arguments):
    arguments = {"signatures": ["predict"], "source_length": 5, "verify": False, **arguments}
    return export_tflite(model, path, **arguments).path


def test_large_streams_survive_for_a_gpu_alone(tmp_path):
    """Numbers of 3,000, whose squares exceed float16's range; SmolLM2 has 24,886."""
    model = decoder(3_000.0)
    plain = check_in_float16(exported(model, tmp_path / "cpu.tflite"))
    bounded = check_in_float16(exported(model, tmp_path / "gpu.tflite", accelerator="gpu"))
    assert bounded.errors["predict"] < 5e-3 and not bounded.overflows
    assert 1_000 < bounded.largest < 65504 and bounded.warning is None
    assert not plain.errors["predict"] < 0.1
    assert "norm" in plain.overflows[0] and "of 65504" in plain.overflows[0]
    assert plain.warning.startswith(
        "in float16, GPUs compute this file wrongly: predict: llama_1/decoder_0"
    )


def test_the_export_warns_of_a_stream_that_leaves_float16(tmp_path):
    with pytest.warns(UserWarning, match=r"wrongly: predict: the constant .*embedding.* of 65504"):
        report = export_tflite(
            decoder(1e6),
            tmp_path / "x.tflite",
            signatures=["predict"],
            source_length=5,
            accelerator="gpu",
        )
    check = report.verification.float16
    assert check.errors["predict"] == np.inf and check.largest > 65504
    assert "in float16, error relative to the largest value: predict inf" in str(report)


def test_masks_are_not_the_largest_values(tmp_path):
    path = exported(randomize(small_model("bert")), tmp_path / "x.tflite", accelerator="gpu")
    check = check_in_float16(path)
    assert check.largest < 100 and check.errors["predict"] < 5e-3
    assert str(check).startswith("in float16, error relative to the largest value: predict 0.00")
    # Here a mask is -30000 in float16, too: what is masked has no effect.
    ids = np.array([[3, 4, 5, 0, 0]], "int32")
    assert check_in_float16(path, {"tokens": ids}).errors["predict"] < 5e-3


def test_padding_alone_has_an_embedding_of_zeros(tmp_path):
    model = randomize(models.sentence_embedding(small_model("bert")))
    path = exported(model, tmp_path / "x.tflite", accelerator="gpu")
    ids = {"tokens": np.zeros((1, 5), "int32"), "segments": np.zeros((1, 5), "int32")}
    (vector,) = runtime.load(path).run("predict", ids).values()
    assert not vector.any()
    assert check_in_float16(path, ids).errors["predict"] == 0.0


def test_a_check_without_findings_is_silent():
    assert Float16Check({"predict": 1e-3}, 30.0, "x").warning is None
