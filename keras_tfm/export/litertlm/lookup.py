"""The section EMBEDDER: an id -> a vector with the id as a number in front.

LiteRT-LM looks up the vector of a token in this section, and passes it to a graph. The table of
tokens stays in that graph, so that a file has it once. In the place of a feature of a picture it
passes what the section VISION_ADAPTER returns.

Example:

>>> from keras_tfm.export.litertlm.lookup import ids_of
>>> ids_of([[[3.0, 0.0], [5.0, 0.0]]]).numpy().tolist()
[[3, 5]]
"""

import tensorflow as tf

# float32 has all integers below.
LARGEST_ID = 1 << 24


def check_size(size: int | None) -> None:
    """Raises ValueError unless each id of a vocabulary is a number in float32."""
    if size is not None and size > LARGEST_ID:
        raise ValueError(
            f"the section EMBEDDER of a .litertlm file has ids below {LARGEST_ID}, got {size}"
        )


def convert_lookup(width: int) -> bytes:
    """The .tflite file of the section: an id (1, 1) -> a vector (1, 1, width)."""
    behind = [(0, 0), (0, 0), (0, width - 1)]
    module = tf.Module()
    module.embed = tf.function(
        lambda token_ids: {
            "embeddings": tf.pad(tf.cast(token_ids[..., tf.newaxis], "float32"), behind)
        },
        input_signature=[tf.TensorSpec((1, 1), "int32", "token_ids")],
    )
    return convert_function(module, module.embed)


def convert_function(
    module: tf.Module, function: tf.types.experimental.PolymorphicFunction
) -> bytes:
    """The .tflite file of a function with an input signature."""
    functions = [function.get_concrete_function()]
    content: bytes = tf.lite.TFLiteConverter.from_concrete_functions(functions, module).convert()
    return content


def ids_of(vectors: tf.Tensor) -> tf.Tensor:
    """The ids (1, T), int32, of vectors (1, T, width)."""
    return tf.cast(tf.convert_to_tensor(vectors)[:, :, 0], "int32")
