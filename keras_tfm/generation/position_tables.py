"""The length of a model's position table."""

import keras

from keras_tfm.generation.stepped_model import SteppedModel
from keras_tfm.keras_internals import sublayers
from keras_tfm.layers import ConcatenatePrefix, RemovePrefix
from keras_tfm.layers.positions.position_embedding import PositionTable


def table_length(model: keras.Model, target: str | None = None) -> int | None:
    """The length of the shortest table of learned positions in the layers that are stepped.

    Args:
        model: functional.
        target: the name of the stepped input.

    Returns:
        The number of positions of the stepped input, after a prefix; None without a table.

    >>> from keras_tfm.generation.position_tables import table_length
    >>> from keras_tfm.models import gpt
    >>> table_length(gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=7))
    7
    """
    lengths, prefix = [], 0
    for call in SteppedModel(model, target).stepping:
        layer = call.node.operation
        if isinstance(layer, ConcatenatePrefix):
            prefix += call.node.input_tensors[0].shape[1] or 0
        elif isinstance(layer, RemovePrefix):
            prefix -= call.node.input_tensors[0].shape[1] or 0
        elif isinstance(layer, keras.Layer):
            tables = [x for x in (layer, *sublayers(layer)) if isinstance(x, PositionTable)]
            lengths += [x.max_length - prefix for x in tables]
    return min(lengths, default=None)


def positions_to_check(model: keras.Model, target: str | None, length: int) -> int:
    """The number of positions that a generation of `length` tokens steps through.

    The last token is not read, so a table may have one position less.

    >>> from keras_tfm.generation.position_tables import positions_to_check
    >>> from keras_tfm.models import gpt
    >>> model = gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=7)
    >>> positions_to_check(model, None, 8), positions_to_check(model, None, 5)
    (7, 5)
    """
    return length - 1 if table_length(model, target) == length - 1 else length
