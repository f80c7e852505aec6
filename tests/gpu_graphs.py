"""Small graphs that LiteRT's GPU delegate refuses or computes wrongly unless they are rewritten."""

import numpy as np
import tensorflow as tf

from keras_tfm.export.graph.gpu_graph import rewrite_for_gpu
from keras_tfm.runtime import flatbuffer


def for_gpu(content):
    """The file with operators that the delegate takes."""
    model = flatbuffer.read(content)
    rewrite_for_gpu(model)
    return flatbuffer.write(model)


def converted(function, *shapes, dtype=tf.float32):
    """A .tflite file of a function of tensors."""
    specs = [tf.TensorSpec(shape, dtype) for shape in shapes]
    concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
    return tf.lite.TFLiteConverter.from_concrete_functions([concrete], tf.Module()).convert()


def numbers(*shape, dtype="float32"):
    """A constant; no two values are equal."""
    return tf.constant(np.arange(1, np.prod(shape) + 1).reshape(shape).astype(dtype))


def five_axes(function):
    """The function of (2, 2, 3, 4, 5), given (2, 2, 12, 5); the result has at most four axes."""

    def flat(x):
        y = function(tf.reshape(x, (2, 2, 3, 4, 5)))
        return y if len(y.shape) < 5 else tf.reshape(y, (y.shape[0], -1, y.shape[-1]))

    return flat, [(2, 2, 12, 5)]


def scores(x):
    """Attention with a bias for all rows and a mask for all heads."""
    y = tf.matmul(x, x, transpose_b=True) + x[:, :1, ..., :4]
    mask = tf.cast(x[:, :, :1, :1, :4] > 0, tf.float32)
    return tf.matmul(tf.nn.softmax(y + mask), x) * tf.reduce_max(mask, -1, keepdims=True)


def is_positive(x):
    return tf.cast(x > 0, tf.int32)


# What this version of the delegate computes rightly: another ignores transposed operands (LiteRT
# issue 8913), and the published source refuses slices of fewer axes.
TAKEN = {
    *("transposed right operand", "transposed left operand"),
    *("slice of two axes", "slice of one axis"),
}
# The function, the shapes of its arguments, and the operators that are refused or wrong.
REWRITTEN = {
    "transposed right operand": (
        lambda x, y: tf.matmul(x, y, transpose_b=True),
        [(2, 3, 5), (2, 4, 5)],
        "BATCH_MATMUL",
    ),
    "transposed left operand": (
        lambda x, y: tf.matmul(x, y, adjoint_a=True),
        [(2, 5, 3), (2, 5, 4)],
        "BATCH_MATMUL",
    ),
    "constant left operand": (
        lambda x: tf.matmul(numbers(2, 3, 5), x + 1.0),
        [(2, 5, 7)],
        "BATCH_MATMUL",
    ),
    "constant and transposed": (
        lambda x: tf.matmul(numbers(1, 2, 3, 5), x + 1.0, transpose_b=True),
        [(1, 2, 7, 5)],
        "BATCH_MATMUL",
    ),
    "last row": (lambda x: x[:, -1] * 2.0, [(2, 3, 5)], "STRIDED_SLICE"),
    "removed axis": (lambda x: x[..., 1, 1:] * 2.0, [(2, 3, 4, 5)], "STRIDED_SLICE"),
    "slice with steps": (lambda x: x[:, 2:, -2, ::2] * 2.0, [(2, 3, 4, 5)], "STRIDED_SLICE"),
    "two removed axes": (lambda x: x[1, :, 0] * 2.0, [(2, 3, 5)], "STRIDED_SLICE"),
    "slice of two axes": (lambda x: x[:, 1:-1] * 2.0, [(2, 5)], "STRIDED_SLICE"),
    "removed axis of two": (lambda x: x[-2, 1::2] * 2.0, [(3, 5)], "STRIDED_SLICE"),
    "slice of one axis": (lambda x: x[1:] * 2.0, [(5,)], "STRIDED_SLICE"),
    "constant of two axes": (lambda x: tf.nn.relu(x) + numbers(5, 7), [(5, 7)], "ADD"),
    "constant with a batch": (lambda x: tf.nn.relu(x) + numbers(5, 7), [(1, 7)], "ADD"),
    "constant column": (lambda x: numbers(5, 1) - tf.nn.relu(x), [(5, 7)], "SUB"),
    "constant of one axis": (lambda x: tf.nn.relu(x) * numbers(7), [(7,)], "MUL"),
    "constant of three axes": (
        lambda x: tf.maximum(tf.nn.relu(x), numbers(2, 5, 7)),
        [(2, 5, 7)],
        "MAXIMUM",
    ),
    "constant of more axes": (lambda x: tf.nn.relu(x) + numbers(1, 5, 7), [(5, 7)], "ADD"),
    "constant row of more axes": (lambda x: tf.nn.relu(x) + numbers(1, 1, 7), [(5, 7)], "ADD"),
    "constant mask": (
        lambda x: tf.where((x > 0) & (numbers(5, 5) > 9), x, 1.0),
        [(1, 1, 1, 5)],
        "LOGICAL_AND SELECT_V2",
    ),
    "indices of two axes": (lambda x: tf.gather(numbers(5, 3), is_positive(x)), [(2, 4)], "GATHER"),
    "indices of three axes": (
        lambda x: tf.gather(numbers(5, 3), is_positive(x)),
        [(2, 4, 3)],
        "GATHER",
    ),
    "indices on another axis": (
        lambda x: tf.gather(x + 1.0, is_positive(x), axis=1),
        [(3, 2)],
        "GATHER",
    ),
    "indices by row": (
        lambda x: tf.gather(x + 1.0, is_positive(x), batch_dims=1),
        [(3, 5)],
        "GATHER",
    ),
    "indices by two axes": (
        lambda x: tf.gather(x + 1.0, is_positive(x)[..., 0], batch_dims=2),
        [(3, 2, 4, 5)],
        "GATHER STRIDED_SLICE",
    ),
    "integers of 64 bits": (
        lambda x: tf.cast(tf.argmax(x, 1) + 5, tf.float32),
        [(3, 5)],
        "ADD ARG_MAX CAST",
    ),
    "broadcast": (lambda x: tf.broadcast_to(x + 1.0, (2, 3, 5)), [(3, 1)], "BROADCAST_TO"),
    "broadcast of booleans": (
        lambda x: tf.cast(tf.broadcast_to(x > 0, (2, 3, 5)), tf.float32),
        [(3, 1)],
        "BROADCAST_TO",
    ),
    "one-hot of three axes": (lambda x: tf.one_hot(is_positive(x), 3), [(2, 3, 5)], "ONE_HOT"),
    "largest": (
        lambda x: tf.math.top_k(x, 1)[0] + tf.cast(tf.math.top_k(x, 1)[1], tf.float32),
        [(2, 3, 5)],
        "TOPK_V2",
    ),
    "choice of a row": (
        lambda x, y: tf.where(x > 0, x, tf.nn.relu(y)),
        [(3, 5), (1, 5)],
        "SELECT_V2",
    ),
    "choice of a constant": (
        lambda x: tf.where(x > 0, x, numbers(5)),
        [(3, 5)],
        "SELECT_V2",
    ),
    "difference of two parts": (
        lambda x: tf.subtract(*tf.split(x, 2, -1)),
        [(3, 4)],
        "SPLIT",
    ),
    "difference of two rows": (
        lambda x: tf.subtract(*tf.unstack(x, axis=1)),
        [(3, 2, 5)],
        "UNPACK",
    ),
    "parts of other sizes": (
        lambda x: tf.concat(tf.split(x, [1, 3], 1)[::-1], 1),
        [(2, 4, 5)],
        "SPLIT_V",
    ),
    "cumulative sum": (
        lambda x: tf.cast(tf.cumsum(is_positive(x), 1), tf.float32),
        [(2, 5)],
        "CUMSUM",
    ),
    "reflection": (
        lambda x: tf.pad(x + 1.0, [[0, 0], [3, 2]], "REFLECT"),
        [(2, 7)],
        "MIRROR_PAD",
    ),
    "transpose of five axes": (
        *five_axes(lambda x: tf.transpose(x, (0, 1, 3, 2, 4))),
        "RESHAPE TRANSPOSE",
    ),
    "transpose of the first of five axes": (
        *five_axes(lambda x: tf.transpose(x, (2, 3, 0, 1, 4))),
        "RESHAPE TRANSPOSE",
    ),
    "slice of five axes": (
        *five_axes(lambda x: tf.exp(x)[:, :, 1:, :-1:2]),
        "RESHAPE STRIDED_SLICE",
    ),
    "attention of five axes": (*five_axes(scores), None),
    "sums of five axes": (*five_axes(lambda x: tf.reduce_sum(x, (1, 2))), "RESHAPE SUM"),
    "means of five axes": (
        *five_axes(lambda x: tf.reduce_mean(x, -1, keepdims=True)),
        "MEAN RESHAPE",
    ),
    "repeats of five axes": (*five_axes(lambda x: tf.tile(x, (1, 1, 2, 1, 3))), "RESHAPE TILE"),
    "parts of five axes": (
        *five_axes(lambda x: tf.concat(tf.split(tf.exp(x), 2, 3)[::-1], 3)),
        "CONCATENATION RESHAPE SPLIT",
    ),
    "choice of five axes": (
        *five_axes(lambda x: tf.where(x > 0, x, 0.5)),
        "GREATER RESHAPE SELECT_V2",
    ),
}
