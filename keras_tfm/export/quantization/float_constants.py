"""The constants of a model's full passes in float32, as a converter makes them.

A table of sinusoids is no weight of the model, so its values before rounding are not among the
weights. They are those of the same graph, converted without rounding.

Example:

>>> import keras
>>> from keras_tfm.export.quantization.float_constants import float_constants
>>> from keras_tfm.layers import PositionalEncoding
>>> x = keras.Input((3, 4), name="x")
>>> model = keras.Model(x, PositionalEncoding()(x))
>>> inputs = {"x": {"shape": [1, 3, 4], "dtype": "float32"}}
>>> found = float_constants({"": model}, {"predict": {"role": "predict", "inputs": inputs}})
>>> max(found, key=lambda constant: constant.size).reshape(3, 4)[0].tolist()
[0.0, 1.0, 0.0, 1.0]
"""

from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from keras_tfm.export.graph.conversion import convert
from keras_tfm.export.quantization.presets import Quantization
from keras_tfm.export.signatures.make import full_pass
from keras_tfm.export.signatures.signature import Argument, Signature, for_edge
from keras_tfm.export.verification.float_file import Stored
from keras_tfm.export.verification.stored_weights import ModelWeights, Unrounded
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.manifest.manifest import Predict, of_role
from keras_tfm.runtime.manifest.manifest import Signature as FileSignature
from keras_tfm.runtime.manifest.storage import import_litert


def find_constants(
    unrounded: dict[int, Unrounded],
    stored: Mapping[int, Stored],
    models: Mapping[str, keras.Model],
    signatures: Mapping[str, FileSignature],
) -> None:
    """Replaces what no weight of the model tells by constants of the unrounded graphs.

    Their rounding errors are not random: near the start of a slow sinusoid, all have one sign.
    """
    if all(x.known for x in unrounded.values()):
        return
    constants = ModelWeights(float_constants(models, signatures))
    for buffer in [buffer for buffer, x in unrounded.items() if np.any(x.spread)]:
        found = constants.unrounded(*stored[buffer])
        if found.known and not np.any(found.spread):
            unrounded[buffer] = found


def float_constants(
    models: Mapping[str, keras.Model], signatures: Mapping[str, FileSignature]
) -> list[np.ndarray]:
    """The constants of every full pass of a file; empty if the models cannot be converted.

    Args:
        models: the models in float32 by name; the only one is "".
        signatures: those of the file's manifest by name.
    """
    types = import_litert("schema_py_generated").TensorType
    found = []
    for name, predict in of_role(signatures, Predict).items():
        model = models[predict.model or ""]
        inputs = {
            key: Argument(tf.TensorSpec(x.shape, x.dtype)) for key, x in predict.inputs.items()
        }
        signature = Signature(name, "predict", for_edge(full_pass(model)), inputs)
        try:
            content = convert(model, [signature], Quantization(model, "float32"))
        except ValueError:  # an operator of a file with custom operators
            continue
        graph = flatbuffer.read(content)
        for tensor in (tensor for x in graph.subgraphs for tensor in x.tensors):
            data = graph.buffers[tensor.buffer].data
            if tensor.type == types.FLOAT32 and data is not None and len(data) > 4:
                found.append(np.frombuffer(bytes(data), "float32").reshape(tensor.shape))
    return found
