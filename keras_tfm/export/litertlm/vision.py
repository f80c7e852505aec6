"""The sections VISION_ENCODER and VISION_ADAPTER: a picture -> vectors in the places of tokens.

LiteRT-LM stretches a picture to H x W, runs the encoder and the adapter, and passes the vectors to
the signatures of the model among those of the section EMBEDDER. A vector has the id of a token as a
number in front, or -1 before a feature, so that the table of tokens stays in the model's graph.

Example:

>>> from keras_tfm.export.litertlm.vision import vision_of
>>> from keras_tfm.models import gpt
>>> vision_of(gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)) is None
True
"""

from contextlib import AbstractContextManager
from typing import NamedTuple

import keras
import tensorflow as tf

from keras_tfm.export.litertlm.lookup import convert_function, ids_of
from keras_tfm.export.signatures.signature import Argument, Signature, Tensors, for_edge
from keras_tfm.generation.interface import interface_of
from keras_tfm.keras_internals import calls_of, nodes_in_order, producer
from keras_tfm.layers import ReplacePlaceholders
from keras_tfm.layers.embeddings.replace_placeholders import features_in_place

# The signature of the encoder, and its argument.
ENCODER, _IMAGES = "encoder", "images"


class Vision(NamedTuple):
    """How a model reads a picture.

    Attributes:
        pixels, target: str, the inputs of pixels (B, H, W, 3) and of ids.
        token_id: int, the placeholder token of features.
        encoder: functional model from pixels to features (B, L, D), of the model's layers.
    """

    pixels: str
    target: str
    token_id: int
    encoder: keras.Model

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of a picture."""
        _, height, width, _ = self.encoder.input_shape
        return height, width

    @property
    def features(self) -> int:
        """The number of features of a picture (L)."""
        return int(self.encoder.output_shape[1])

    @property
    def width(self) -> int:
        """The size of a vector, 1 + D."""
        return 1 + int(self.encoder.output_shape[2])

    def ids(self, vectors: tf.Tensor) -> tf.Tensor:
        """The ids (1, T) of vectors (1, T, 1 + D), with the placeholder for features."""
        ids = ids_of(vectors)
        return tf.where(ids < 0, self.token_id, ids)

    def places(self, vectors: tf.Tensor) -> AbstractContextManager[None]:
        """The context in which the model reads the features among vectors (1, T, 1 + D)."""
        return features_in_place(ids_of(vectors) < 0, vectors[:, :, 1:])


def vision_of(model: keras.Model) -> Vision | None:
    """How a model reads a picture; None if it has no placeholder tokens.

    Raises:
        ValueError: it reads pictures in another way than LiteRT-LM gives them.
    """
    inputs = interface_of(model).inputs
    targets = [name for name, x in inputs.items() if x.placeholder is not None]
    pictures = [name for name, x in inputs.items() if x.is_pixels]
    if not targets:
        return None
    target, name = targets[0], model.name
    if len(pictures) != 1 or len(inputs) != 2:
        raise ValueError(
            f"{name} has the inputs {[*inputs]} and reads features at the placeholder tokens of "
            f"{target!r}: LiteRT-LM runs such a model with one other input, of pixels, which only "
            "an ImageNormalization reads; use export_tflite"
        )
    if inputs[target].sees_later:
        raise ValueError(
            f"the tokens of a picture see each other in {name}, and LiteRT-LM reads prompts in "
            "pieces, which could divide a picture: use export_tflite, or export the language model "
            "alone"
        )
    shape = tuple(inputs[pictures[0]].spec.shape)
    if len(shape) == 5:
        raise ValueError(
            f"{name} reads {shape[1]} images of each row, such as tiles, but LiteRT-LM gives a "
            "picture as one image: build it with num_images=None, or use export_tflite"
        )
    if len(shape) != 4 or shape[3] != 3 or None in shape[1:]:
        raise ValueError(
            "LiteRT-LM gives a picture as RGB pixels (B, H, W, 3) of a fixed size, but the input "
            f"{pictures[0]!r} of {name} is {shape}: use export_tflite"
        )
    nodes = [x for x in nodes_in_order(model) if isinstance(x.operation, ReplacePlaceholders)]
    if len(nodes) != 1 or len(nodes[0].input_tensors) != 3:
        raise ValueError(
            f"{name} must have one ReplacePlaceholders in its own graph, without a mask of "
            f"features, for LiteRT-LM, got {len(nodes)}"
        )
    features = nodes[0].input_tensors[2]
    pixels = _input(model, pictures[0])
    if None in features.shape[1:]:
        raise ValueError(
            f"the features of a picture must be of a fixed number for LiteRT-LM, but those of "
            f"{name} are {tuple(features.shape)}"
        )
    read = _inputs_of(features, None)
    if read != {id(pixels)} or id(pixels) in _inputs_of(model.outputs[0], nodes[0].operation):
        raise ValueError(
            f"{name} must read {pictures[0]!r} through its ReplacePlaceholders alone, and the "
            "features nothing else, for LiteRT-LM: use export_tflite"
        )
    token_id = nodes[0].operation.token_id
    return Vision(pictures[0], target, token_id, keras.Model(pixels, features, name=ENCODER))


def encoder_signature(vision: Vision) -> Signature:
    """The signature of VISION_ENCODER: `images` (1, H, W, 3) from 0 to 1 -> `features`."""
    spec = tf.TensorSpec((1, *vision.size, 3), "float32")

    def encode(given: Tensors) -> Tensors:
        return {"features": vision.encoder(given[_IMAGES] * 255.0, training=False)}

    return Signature(ENCODER, "predict", for_edge(encode), {_IMAGES: Argument(spec)})


def convert_adapter(vision: Vision) -> bytes:
    """The .tflite file of VISION_ADAPTER: features (1, L, D) -> vectors (1, L, 1 + D)."""
    module = tf.Module()
    module.adapt = tf.function(
        lambda features: {
            "mm_embedding": tf.pad(features, [(0, 0), (0, 0), (1, 0)], constant_values=-1.0)
        },
        input_signature=[
            tf.TensorSpec((1, vision.features, vision.width - 1), "float32", "features")
        ],
    )
    return convert_function(module, module.adapt)


def _input(model: keras.Model, name: str) -> keras.KerasTensor:
    """A symbolic input by its name in `interface_of`."""
    if isinstance(model.input, dict):
        x: keras.KerasTensor = model.input[name]
        return x
    return next(x for x in model.inputs if producer(x).operation.name == name)


def _inputs_of(output: keras.KerasTensor, without: keras.Operation | None) -> set[int]:
    """The ids of the inputs that a tensor depends on, except by the features of one layer."""
    waiting, seen, found = [output], {id(output)}, set()
    while waiting:
        x = waiting.pop()
        made = producer(x)
        node = calls_of(made.operation)[made.node_index]
        before = list(node.input_tensors)
        if node.is_input:
            found.add(id(x))
        if made.operation is without:
            before = before[:2]
        for y in before:
            if id(y) not in seen:
                seen.add(id(y))
                waiting.append(y)
    return found
