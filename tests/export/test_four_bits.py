"""int4: numbers that scales in float16 cannot hold, exported and run in LiteRT."""

import keras
import numpy as np
import pytest
from small_exports import new_path

from keras_tfm import runtime
from keras_tfm.export import export_tflite
from keras_tfm.layers import TokenEmbedding
from keras_tfm.runtime import flatbuffer

IDS = np.arange(40, dtype="int32").reshape(5, 8)
RNG = np.random.default_rng(0)
KERNEL, TABLE = RNG.normal(size=(64, 64)) / 8, RNG.normal(size=(40, 64))
# Weights in four bits are off by 1/14 of the largest number of 32, in two products: 0.17 measured.
COARSE = 0.25


def tied(kernel, table):
    """A lookup, a product, and logits from the same table."""
    ids = keras.Input((8,), dtype="int32", name="ids")
    embedding, dense = TokenEmbedding(40, 64), keras.layers.Dense(64)
    model = keras.Model(ids, embedding(dense(embedding(ids)), reverse=True))
    embedding.embeddings.assign(table)
    dense.kernel.assign(kernel)
    return model


def changed(array, where, value):
    result = array.copy()
    result[where] = value
    return result


def types_of(path):
    """The types of the stored weights: 17 is INT4, 9 is INT8."""
    model = flatbuffer.read(path.read_bytes())
    return {use.tensor.type for use in flatbuffer.weight_uses(model)}


@pytest.mark.parametrize(
    ("kernel", "table", "types"),
    [
        pytest.param(KERNEL, changed(TABLE, 0, 0.0), {17}, id="a padding row of zeros"),
        pytest.param(
            changed(KERNEL, (slice(32), 5), 0.0),
            TABLE,
            {17},
            id="a block of zeros",
            marks=pytest.mark.slow,
        ),
        pytest.param(changed(KERNEL, (slice(32), 5), 1e-9), TABLE, {17}, id="a block near zero"),
        pytest.param(
            np.where(RNG.random((64, 64)) < 0.9, 0.0, KERNEL),
            TABLE,
            {17},
            id="pruned",
            marks=pytest.mark.slow,
        ),
        pytest.param(1e-9 * KERNEL, TABLE, {17, 9}, id="a matrix near zero"),
        pytest.param(1e6 * KERNEL, TABLE, {17, 9}, id="a huge matrix", marks=pytest.mark.slow),
        pytest.param(KERNEL, changed(TABLE, 3, 1e6), {17, 9}, id="a huge row"),
    ],
)
def test_numbers_beyond_float16_run(kernel, table, types):
    model, path = tied(kernel, table), new_path()
    export_tflite(model, path, quantization="int4")
    assert types_of(path) == types
    found, wanted = runtime.load(path).predict(IDS)["output"], np.asarray(model(IDS), "float64")
    # Row by row, so that a huge row hides nothing.
    errors = np.sqrt(np.mean((found - wanted) ** 2, axis=(1, 2)) / np.mean(wanted**2, axis=(1, 2)))
    assert 0.001 < errors.max() < COARSE


def test_a_matrix_of_zeros_returns_zeros():
    path = new_path()
    export_tflite(tied(0.0 * KERNEL, TABLE), path, quantization="int4")
    assert types_of(path) == {17}
    assert not np.any(runtime.load(path).predict(IDS)["output"])


def test_a_block_smaller_than_the_smallest_scale_is_rounded_to_that_scale():
    """Of 1e-4 the scale would be 1.4e-5; at 2^-14 it rounds to two steps."""
    path = new_path()
    export_tflite(tied(changed(KERNEL, (slice(32), 5), 1e-4), TABLE), path, quantization="int4")
    from keras_tfm.export.verification.float_file import FloatFile

    stored = FloatFile(path.read_bytes()).stored.values()
    (kernel,) = (x for x in stored if x.values.shape == (64, 64))
    np.testing.assert_array_equal(kernel.step[5, :32], 2.0**-14)
    np.testing.assert_array_equal(kernel.values[5, :32], 2.0**-13)
