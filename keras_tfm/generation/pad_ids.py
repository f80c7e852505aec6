"""The padding id of each input of a functional model."""

from typing import Any

import keras

from keras_tfm.generation.model_inputs import input_specs
from keras_tfm.keras_internals import calls_of
from keras_tfm.layers import TokenEmbedding
from keras_tfm.layers.embeddings.token_mask import TokenMask
from keras_tfm.models.encoder_decoders.shifted_source import SHIFTED
from keras_tfm.models.identity import head_of, identity_of


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


def paddings(model: keras.Model) -> dict[str, str]:
    """Where the padding id of an input is padding, by name; for inputs in which it may be a token.

    The values are those of "padding" in a manifest: `TokenEmbedding(padding=...)`, or "by_id" for a
    classifier that reads the last token whose id is not the padding id, as that of `transformers`.
    The token is passed as `REAL_PAD`, so nothing but such embeddings may read the input, except in
    the classifiers of `models.with_shifted_source`.
    """
    inputs = {id(x): name for name, x in input_specs(model).items()}
    found: dict[str, set[str | None]] = {}
    shifts = identity_of(model).family in SHIFTED
    for operation in model.operations:
        rule = None
        if isinstance(operation, TokenEmbedding | TokenMask):
            own = operation.mask_id if isinstance(operation, TokenEmbedding) else operation.pad_id
            is_known = own is not None and own >= 0 and operation.padding != "anywhere"
            rule = operation.padding if is_known else None
        elif shifts:
            continue
        for node in calls_of(operation):
            for x in node.input_tensors:
                if id(x) in inputs:
                    found.setdefault(inputs[id(x)], set()).add(rule)
    head = head_of(model)
    reads_last = (
        head is not None
        and head.kind == "sequence_classifier"
        and head.arguments.get("pooling") == "last"
    )
    result = {name: rules.pop() for name, rules in found.items() if len(rules) == 1}
    return {
        name: "by_id" if reads_last and rule == "ends" else rule
        for name, rule in result.items()
        if rule is not None
    }


def _put(result: dict[str, int], name: str, value: int, model: Any) -> None:
    if result.setdefault(name, value) != value:
        raise ValueError(
            f"input {name!r} of {model.name} must have one padding id, "
            f"but its embeddings mask {result[name]} and {value}"
        )
