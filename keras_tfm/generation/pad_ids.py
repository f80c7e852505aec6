"""The padding id of each input of a functional model."""

from typing import Any

import keras

from keras_tfm.generation.model_inputs import input_specs
from keras_tfm.keras_internals import calls_of
from keras_tfm.layers import TokenEmbedding


def pad_ids(model: keras.Model) -> dict[str, int]:
    """The padding id of each input of token ids, by name.

    Inputs of token ids are integers (B, T). The padding id is the one that the embedding masks:
    `TokenEmbedding(mask_id=...)`, or 0 with `mask_zero=True`, also of Keras's `Embedding`. It is 0
    if no embedding masks an id.

    Raises:
        ValueError: two embeddings of the same input mask different ids.

    Example:

    >>> import keras
    >>> from keras_tfm.generation.pad_ids import pad_ids
    >>> from keras_tfm.layers import TokenEmbedding
    >>> ids = keras.Input((None,), dtype="int32", name="ids")
    >>> pad_ids(keras.Model(ids, TokenEmbedding(11, 4, mask_id=7)(ids)))
    {'ids': 7}
    """
    masked = masked_ids(model)
    ids = [name for name, x in input_specs(model).items() if "int" in x.dtype and x.ndim == 2]
    return {name: masked.get(name, 0) for name in ids}


def masked_ids(model: keras.Model) -> dict[str, int]:
    """The id that an embedding masks, by input. Inputs without a masked id are left out."""
    inputs = {id(x): name for name, x in input_specs(model).items()}
    result: dict[str, int] = {}
    for operation in model.operations:
        taken: list[int | None]
        if isinstance(operation, TokenEmbedding):
            taken = [operation.mask_id]
        elif isinstance(operation, keras.layers.Embedding):
            taken = [0 if operation.mask_zero else None]
        elif isinstance(operation, keras.Model) and hasattr(operation, "operations"):
            inner = masked_ids(operation)
            names = {id(x): name for name, x in input_specs(operation).items()}
            taken = [inner.get(names[id(x)]) for x in keras.tree.flatten(operation.input)]
        else:
            continue
        for node in calls_of(operation):
            for x, value in zip(node.input_tensors, taken, strict=False):
                if id(x) in inputs and value is not None:
                    _put(result, inputs[id(x)], value, model)
    return result


def _put(result: dict[str, int], name: str, value: int, model: Any) -> None:
    if result.setdefault(name, value) != value:
        raise ValueError(
            f"input {name!r} of {model.name} must have one padding id, "
            f"but its embeddings mask {result[name]} and {value}"
        )
